//! `TreeModel`: what a filesystem must hold, as plain maps.
//!
//! It knows nothing of commits, pages or chunks. States are cheap to clone (nodes are shared until changed), so that
//! the whole history since the last fsync can be kept and a recovered state looked up in it. Rules are those of POSIX
//! for user 0; where two errors are possible at once, only that there is one is compared.

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::FileFlags;

use super::blocks::BlocksModel;

/// The root directory.
pub const ROOT: u64 = 1;

/// Stands for an object whose number the engine did not come to say.
pub const UNKNOWN_OBJECT: u64 = u64::MAX;

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A regular file.
    File(BlocksModel),
    /// A directory: names and what they name.
    Directory(BTreeMap<Vec<u8>, u64>),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A character device 0:0.
    Whiteout,
}

/// Seconds and nanoseconds.
pub type Stamp = (i64, u32);

/// One object.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has (for a directory: 2 and its subdirectories).
    pub links: u32,
    /// What it is.
    pub body: Body,
    /// What `chattr` set.
    pub flags: FileFlags,
    /// Extended attributes.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Last change of the content, as the engine last showed it.
    pub modified: Stamp,
    /// Last change of anything, as the engine last showed it.
    pub changed: Stamp,
}

impl Node {
    fn new(mode: u32, links: u32, body: Body) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            links,
            body,
            flags: FileFlags::default(),
            attributes: BTreeMap::new(),
            modified: (0, 0),
            changed: (0, 0),
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }
}

/// A mode without setuid, and without setgid if that goes too.
pub fn without_set_id(mode: u32, setgid_goes: bool) -> u32 {
    mode & !0o4000 & !(if setgid_goes { 0o2000 } else { 0 })
}

/// Why the model refuses something.
pub type Refused = &'static str;

/// How a rename treats its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renaming {
    /// Replace it.
    Replace,
    /// There must be none.
    NoReplace,
    /// Change places with it.
    Exchange,
    /// Replace it, and leave a whiteout.
    Whiteout,
    /// There must be none; leave a whiteout.
    WhiteoutNoReplace,
}

impl Renaming {
    /// Whether a whiteout takes the place of the old name.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
}

/// A filesystem.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeModel {
    pub(super) nodes: BTreeMap<u64, Arc<Node>>,
}

impl TreeModel {
    /// From nodes that were read from somewhere.
    pub fn from_nodes(nodes: BTreeMap<u64, Arc<Node>>) -> Self {
        Self { nodes }
    }

    /// All nodes that have a name, in the order of their numbers.
    pub fn named(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.links > 0)
            .map(|(number, node)| (*number, &**node))
    }

    /// Without the objects that nothing names: what a crash leaves.
    pub fn without_unnamed(&self) -> Self {
        Self {
            nodes: self
                .nodes
                .iter()
                .filter(|(_, node)| node.links > 0)
                .map(|(n, node)| (*n, node.clone()))
                .collect(),
        }
    }

    /// With the objects that another state has and nothing names: nobody who looks sees them.
    pub fn with_unnamed_of(mut self, other: &Self) -> Self {
        let nodes = other.nodes.iter();
        let unnamed = nodes.filter(|(object, node)| node.links == 0 && **object != UNKNOWN_OBJECT);
        for (object, node) in unnamed {
            self.nodes.entry(*object).or_insert_with(|| node.clone());
        }
        self
    }

    /// A node.
    pub fn node(&self, object: u64) -> Option<&Node> {
        self.nodes.get(&object).map(|node| &**node)
    }

    /// Gives an object another number.
    pub fn renumber(&mut self, from: u64, to: u64) {
        if let Some(node) = self.nodes.remove(&from) {
            self.nodes.insert(to, node);
        }
        for node in self.nodes.values_mut() {
            if let Body::Directory(entries) = &node.body
                && entries.values().any(|object| *object == from)
                && let Body::Directory(entries) = &mut Arc::make_mut(node).body
            {
                entries
                    .values_mut()
                    .filter(|object| **object == from)
                    .for_each(|object| *object = to);
            }
        }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Data blocks of all files.
    pub fn used_blocks(&self) -> usize {
        self.nodes
            .values()
            .map(|node| {
                if let Body::File(data) = &node.body {
                    data.used_blocks()
                } else {
                    0
                }
            })
            .sum()
    }

    fn node_mut(&mut self, object: u64) -> Result<&mut Node, Refused> {
        self.nodes
            .get_mut(&object)
            .map(Arc::make_mut)
            .ok_or("no such object")
    }

    /// Changes a node in place.
    pub fn change(&mut self, object: u64, change: impl FnOnce(&mut Node)) -> Result<(), Refused> {
        self.node_mut(object).map(change)
    }

    /// Takes away what a change of content does that is made by user 0 of group 0 without CAP_FSETID.
    pub fn strip_set_id(&mut self, object: u64) -> Result<(), Refused> {
        self.change(object, |node| {
            node.mode = without_set_id(node.mode, node.mode & 0o010 != 0 || node.gid != 0);
        })
    }

    fn entries(&self, dir: u64) -> Result<&BTreeMap<Vec<u8>, u64>, Refused> {
        match &self.node(dir).ok_or("no such directory")?.body {
            Body::Directory(entries) if self.node(dir).is_some_and(|node| node.links > 0) => Ok(entries),
            Body::Directory(_) => Err("the directory is gone"),
            _ => Err("not a directory"),
        }
    }

    fn entries_mut(&mut self, dir: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, Refused> {
        match &mut self.node_mut(dir)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err("not a directory"),
        }
    }

    /// What a name names.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<u64, Refused> {
        self.entries(dir)?.get(name).copied().ok_or("no such name")
    }

    pub(super) fn file_mut(&mut self, object: u64) -> Result<&mut BlocksModel, Refused> {
        match &mut self.node_mut(object)?.body {
            Body::File(data) => Ok(data),
            _ => Err("not a file"),
        }
    }

    /// A file's content.
    pub fn file(&self, object: u64) -> Result<&BlocksModel, Refused> {
        match &self.node(object).ok_or("no such object")?.body {
            Body::File(data) => Ok(data),
            _ => Err("not a file"),
        }
    }

    /// Whether a name can be made there.
    pub fn may_create(&self, dir: u64, name: &[u8]) -> Result<(), Refused> {
        if name.len() > 255 {
            return Err("the name is too long");
        }
        if self.entries(dir)?.contains_key(name) {
            Err("the name exists")
        } else {
            Ok(())
        }
    }

    /// A new object under a name.
    pub fn create(
        &mut self,
        dir: u64,
        name: &[u8],
        object: u64,
        mode: u32,
        body: Body,
    ) -> Result<(), Refused> {
        self.may_create(dir, name)?;
        if self.nodes.contains_key(&object) {
            return Err("the object number is in use");
        }
        let directory = matches!(body, Body::Directory(_));
        let mut node = Node::new(mode, if directory { 2 } else { 1 }, body);
        node.flags = self.node(dir).map_or_else(FileFlags::default, |dir| dir.flags);
        self.nodes.insert(object, Arc::new(node));
        self.entries_mut(dir)?.insert(name.to_vec(), object);
        if directory {
            self.node_mut(dir)?.links += 1;
        }
        Ok(())
    }

    /// An object without a name.
    pub fn create_unnamed(&mut self, dir: u64, object: u64, mode: u32) -> Result<(), Refused> {
        let mut node = Node::new(mode, 0, Body::File(BlocksModel::default()));
        node.flags = self.node(dir).map_or_else(FileFlags::default, |dir| dir.flags);
        self.nodes.insert(object, Arc::new(node));
        Ok(())
    }

    /// Another name for an object.
    pub fn link(&mut self, object: u64, dir: u64, name: &[u8]) -> Result<(), Refused> {
        self.may_create(dir, name)?;
        if self.node(object).ok_or("no such object")?.is_directory() {
            return Err("a directory has one name");
        }
        self.entries_mut(dir)?.insert(name.to_vec(), object);
        self.node_mut(object)?.links += 1;
        Ok(())
    }

    fn lose_link(&mut self, object: u64, held: bool) {
        if let Ok(node) = self.node_mut(object) {
            node.links = if node.is_directory() { 0 } else { node.links - 1 };
            if node.links == 0 && !held {
                self.nodes.remove(&object);
            }
        }
    }

    /// Forgets an object without a name that nobody holds open any more.
    pub fn released(&mut self, object: u64) {
        if self.node(object).is_some_and(|node| node.links == 0) {
            self.nodes.remove(&object);
        }
    }

    /// Removes a name of something that is not a directory; `held` says whether somebody has it open.
    pub fn unlink(&mut self, dir: u64, name: &[u8], held: impl Fn(u64) -> bool) -> Result<u64, Refused> {
        let object = self.lookup(dir, name)?;
        if self.node(object).is_some_and(Node::is_directory) {
            return Err("it is a directory");
        }
        self.entries_mut(dir)?.remove(name);
        self.lose_link(object, held(object));
        Ok(object)
    }

    /// Removes an empty directory.
    pub fn remove_directory(
        &mut self,
        dir: u64,
        name: &[u8],
        held: impl Fn(u64) -> bool,
    ) -> Result<u64, Refused> {
        let object = self.lookup(dir, name)?;
        if !self.entries(object)?.is_empty() {
            return Err("it is not empty");
        }
        self.entries_mut(dir)?.remove(name);
        self.node_mut(dir)?.links -= 1;
        self.lose_link(object, held(object));
        Ok(object)
    }

    /// Whether `object` is `of` or lies below it.
    fn is_within(&self, object: u64, of: u64) -> bool {
        object == of
            || self.node(of).is_some_and(|node| {
                if let Body::Directory(entries) = &node.body {
                    entries.values().any(|child| {
                        self.node(*child).is_some_and(Node::is_directory) && self.is_within(object, *child)
                    })
                } else {
                    false
                }
            })
    }

    /// Renames. The whiteout that this may leave is made by whoever knows its number.
    #[allow(clippy::too_many_arguments)]
    pub fn rename(
        &mut self,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        mode: Renaming,
        held: impl Fn(u64) -> bool,
    ) -> Result<(), Refused> {
        let object = self.lookup(dir, name)?;
        if new_name.len() > 255 {
            return Err("the name is too long");
        }
        let target = self.entries(new_dir)?.get(new_name).copied();
        let is_directory = |of: u64| self.node(of).is_some_and(Node::is_directory);
        let moves_directory = is_directory(object);
        if moves_directory && self.is_within(new_dir, object) {
            return Err("into itself");
        }
        let Some(target) = target else {
            if mode == Renaming::Exchange {
                return Err("no such target");
            }
            self.entries_mut(dir)?.remove(name);
            self.entries_mut(new_dir)?.insert(new_name.to_vec(), object);
            if moves_directory {
                self.node_mut(dir)?.links -= 1;
                self.node_mut(new_dir)?.links += 1;
            }
            return Ok(());
        };
        let target_directory = is_directory(target);
        match mode {
            Renaming::NoReplace | Renaming::WhiteoutNoReplace => Err("the target exists"),
            Renaming::Exchange => {
                if target_directory && self.is_within(dir, target) {
                    return Err("into itself");
                }
                self.entries_mut(dir)?.insert(name.to_vec(), target);
                self.entries_mut(new_dir)?.insert(new_name.to_vec(), object);
                if dir != new_dir && moves_directory != target_directory {
                    let (loses, gains) = if moves_directory {
                        (dir, new_dir)
                    } else {
                        (new_dir, dir)
                    };
                    self.node_mut(loses)?.links -= 1;
                    self.node_mut(gains)?.links += 1;
                }
                Ok(())
            }
            Renaming::Replace | Renaming::Whiteout => {
                if object == target {
                    return Ok(());
                }
                match (moves_directory, target_directory) {
                    (true, false) => return Err("the target is not a directory"),
                    (false, true) => return Err("the target is a directory"),
                    (true, true) if !self.entries(target)?.is_empty() => {
                        return Err("the target is not empty");
                    }
                    _ => {}
                }
                self.entries_mut(dir)?.remove(name);
                self.entries_mut(new_dir)?.insert(new_name.to_vec(), object);
                if moves_directory {
                    // One subdirectory leaves `dir`; in `new_dir` one takes another's place.
                    self.node_mut(dir)?.links -= 1;
                }
                self.lose_link(target, held(target));
                Ok(())
            }
        }
    }

    /// Writes to a file.
    pub fn write(&mut self, object: u64, offset: u64, data: &[u8]) -> Result<(), Refused> {
        self.file_mut(object)?.write(offset, data);
        Ok(())
    }

    /// Changes a file's size.
    pub fn resize(&mut self, object: u64, size: u64) -> Result<(), Refused> {
        self.file_mut(object)?.resize(size);
        Ok(())
    }

    /// Makes a range of a file read as zero; with `grow` the size grows to its end.
    pub fn zero(&mut self, object: u64, offset: u64, length: u64, grow: bool) -> Result<(), Refused> {
        let file = self.file_mut(object)?;
        let end = offset.saturating_add(length);
        file.zero(offset, length);
        if grow {
            file.size = file.size.max(end);
        }
        Ok(())
    }

    /// Sets room aside for a range of a file; with `grow` the size grows to its end.
    pub fn preallocate(&mut self, object: u64, offset: u64, length: u64, grow: bool) -> Result<(), Refused> {
        let file = self.file_mut(object)?;
        file.preallocate(offset, length);
        if grow {
            file.size = file.size.max(offset + length);
        }
        Ok(())
    }

    /// Makes a range of a file read as zero, and gives its room back.
    pub fn punch(&mut self, object: u64, offset: u64, length: u64) -> Result<(), Refused> {
        let file = self.file_mut(object)?;
        file.zero(offset, length);
        file.release(offset, length);
        Ok(())
    }

    /// Every file, directory and link that has a name, for the workload to pick from.
    pub fn objects(&self, kind: impl Fn(&Node) -> bool) -> Vec<u64> {
        self.named()
            .filter(|(_, node)| kind(node))
            .map(|(object, _)| object)
            .collect()
    }

    /// Every name: (directory, name, object).
    pub fn names(&self) -> Vec<(u64, Vec<u8>, u64)> {
        let mut names = Vec::new();
        for (dir, node) in self.named() {
            if let Body::Directory(entries) = &node.body {
                names.extend(entries.iter().map(|(name, object)| (dir, name.clone(), *object)));
            }
        }
        names
    }

    /// The paths of an object from the root, as far as they are text.
    pub fn paths(&self, object: u64) -> Vec<Option<String>> {
        if object == ROOT {
            return vec![Some(String::new())];
        }
        let mut paths = Vec::new();
        for (dir, name, _) in self.names().into_iter().filter(|(_, _, found)| *found == object) {
            let name = String::from_utf8(name).ok();
            for above in self.paths(dir) {
                paths.push(
                    above
                        .zip(name.as_ref())
                        .map(|(above, name)| format!("{above}/{name}")),
                );
            }
        }
        paths
    }

    /// The first difference to another state, in words.
    pub fn difference(&self, other: &TreeModel) -> String {
        let names: BTreeMap<u64, Vec<u8>> = self
            .names()
            .into_iter()
            .chain(other.names())
            .map(|(_, name, object)| (object, name))
            .collect();
        let show = |object: u64| {
            let name = names
                .get(&object)
                .map_or_else(|| "/".into(), |name| String::from_utf8_lossy(name).into_owned());
            format!("object {object} ({})", name.chars().take(20).collect::<String>())
        };
        for (object, node) in &self.nodes {
            match other.nodes.get(object) {
                None => return format!("{} is only in the first", show(*object)),
                Some(theirs) if theirs != node => {
                    let brief = |node: &Node| {
                        let mut words = format!(
                            "mode {:o} owner {}:{} links {} {:?} modified {:?} changed {:?}",
                            node.mode, node.uid, node.gid, node.links, node.body, node.modified, node.changed
                        );
                        words.push_str(&format!(" {} attributes", node.attributes.len()));
                        words.chars().take(400).collect::<String>()
                    };
                    return format!("{} is {} – {}", show(*object), brief(node), brief(theirs));
                }
                Some(_) => {}
            }
        }
        for object in other.nodes.keys() {
            if !self.nodes.contains_key(object) {
                return format!("{} is only in the second", show(*object));
            }
        }
        "none".into()
    }
}
