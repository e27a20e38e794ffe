//! The model: what a filesystem must show, as plain maps and bytes.
//!
//! Invariant: an object is there as long as a name or an open handle holds it; nothing of the code under test is used.

use std::collections::BTreeMap;

use terrace_dataset::{FsError, RenameMode};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
    /// A character device 0:0.
    Whiteout,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) opens: u32,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) nodes: BTreeMap<u64, Node>,
}

impl Model {
    pub(super) fn new() -> Self {
        let root = Node {
            body: Body::Directory(BTreeMap::new()),
            mode: 0o755,
            links: 2,
            opens: 0,
            xattrs: BTreeMap::new(),
        };
        Self {
            nodes: BTreeMap::from([(1, root)]),
        }
    }

    pub(super) fn pick(&self, which: usize, wanted: impl Fn(&Node) -> bool) -> Option<u64> {
        let fits: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, node)| wanted(node))
            .map(|(id, _)| *id)
            .collect();
        (!fits.is_empty()).then(|| fits[which % fits.len()])
    }

    pub(super) fn directory(&self, which: usize) -> u64 {
        self.pick(which, |node| {
            matches!(node.body, Body::Directory(_)) && node.links > 0
        })
        .unwrap()
    }

    pub(super) fn file(&self, which: usize) -> Option<u64> {
        self.pick(which, |node| matches!(node.body, Body::File(_)))
    }

    pub(super) fn names(&mut self, directory: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.nodes.get_mut(&directory).unwrap().body {
            Body::Directory(names) => names,
            _ => panic!("not a directory"),
        }
    }

    pub(super) fn data(&mut self, file: u64) -> &mut Vec<u8> {
        match &mut self.nodes.get_mut(&file).unwrap().body {
            Body::File(data) => data,
            _ => panic!("not a file"),
        }
    }

    pub(super) fn is_directory(&self, id: u64) -> bool {
        matches!(self.nodes[&id].body, Body::Directory(_))
    }

    pub(super) fn unlink(&mut self, id: u64) {
        let is_directory = self.is_directory(id);
        let node = self.nodes.get_mut(&id).unwrap();
        node.links = if is_directory { 0 } else { node.links - 1 };
        if node.links == 0 && node.opens == 0 {
            self.nodes.remove(&id);
        }
    }

    pub(super) fn parent(&self, directory: u64) -> u64 {
        let holds = |node: &Node| match &node.body {
            Body::Directory(names) => names.values().any(|id| *id == directory),
            _ => false,
        };
        self.nodes
            .iter()
            .find(|(_, node)| holds(node))
            .map_or(1, |(id, _)| *id)
    }

    fn is_below(&self, mut directory: u64, above: u64) -> bool {
        loop {
            if directory == above {
                return true;
            }
            if directory == 1 {
                return false;
            }
            directory = self.parent(directory);
        }
    }

    /// What a crash leaves: nothing is open any more.
    pub(super) fn closed(&self) -> Self {
        let mut model = self.clone();
        model.nodes.retain(|_, node| node.links > 0);
        model.nodes.values_mut().for_each(|node| node.opens = 0);
        model
    }
}

pub(super) fn text(name: u8) -> Vec<u8> {
    format!("name{name}").into_bytes()
}

pub(super) fn add(model: &mut Model, dir: u64, name: u8, object: u64, body: Body, mode: u32) {
    let links = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
    model.names(dir).insert(text(name), object);
    model.nodes.insert(
        object,
        Node {
            body,
            mode,
            links,
            opens: 0,
            xattrs: BTreeMap::new(),
        },
    );
}

pub(super) fn put(data: &mut Vec<u8>, at: usize, content: &[u8]) {
    if data.len() < at + content.len() {
        data.resize(at + content.len(), 0);
    }
    data[at..at + content.len()].copy_from_slice(content);
}

pub(super) fn rename(
    model: &mut Model,
    dir: u64,
    name: &[u8],
    to: u64,
    new: &[u8],
    mode: RenameMode,
) -> Result<(), FsError> {
    let source = *model.names(dir).get(name).ok_or(FsError::NotFound)?;
    let target = model.names(to).get(new).copied();
    match (mode, target) {
        (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => return Err(FsError::Exists),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound),
        _ => {}
    }
    if dir != to {
        if model.is_directory(source) && model.is_below(to, source) {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target
            && model.is_directory(target)
            && model.is_below(dir, target)
        {
            return Err(if mode == RenameMode::Exchange {
                FsError::Invalid
            } else {
                FsError::NotEmpty
            });
        }
    }
    if target == Some(source) {
        return Ok(());
    }
    let moved = |model: &mut Model, id: u64, from: u64, to: u64| {
        if model.is_directory(id) && from != to {
            model.nodes.get_mut(&from).unwrap().links -= 1;
            model.nodes.get_mut(&to).unwrap().links += 1;
        }
    };
    if mode == RenameMode::Exchange {
        let target = target.unwrap();
        model.names(to).insert(new.to_vec(), source);
        model.names(dir).insert(name.to_vec(), target);
        moved(model, source, dir, to);
        moved(model, target, to, dir);
        return Ok(());
    }
    if let Some(target) = target {
        match (model.is_directory(source), model.is_directory(target)) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            (true, true) if !model.names(target).is_empty() => return Err(FsError::NotEmpty),
            (true, true) => model.nodes.get_mut(&to).unwrap().links -= 1,
            _ => {}
        }
    }
    model.names(to).insert(new.to_vec(), source);
    model.names(dir).remove(name);
    moved(model, source, dir, to);
    if let Some(target) = target {
        model.unlink(target);
    }
    Ok(())
}
