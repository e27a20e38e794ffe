//! A live filesystem against a plain model in RAM, with commits, snapshots, clean reopening and crashes in between.
//! After each commit and crash everything is compared, and the references with a full walk.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use terrace_dataset::{
    AllocateMode, At, AttributeMode, Context, Datasets, Environment, FileKind, Filesystem, FsError,
    NewDataset, Progress, RenameMode, SeekTarget, SetAttributes, Tree, check,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
}

#[derive(Debug, Clone)]
struct Node {
    body: Body,
    mode: u32,
    links: u32,
    opens: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Model {
    nodes: BTreeMap<u64, Node>,
}

impl Model {
    fn new() -> Self {
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

    fn pick(&self, which: usize, wanted: impl Fn(&Node) -> bool) -> Option<u64> {
        let fits: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, node)| wanted(node))
            .map(|(id, _)| *id)
            .collect();
        (!fits.is_empty()).then(|| fits[which % fits.len()])
    }

    fn directory(&self, which: usize) -> u64 {
        self.pick(which, |node| {
            matches!(node.body, Body::Directory(_)) && node.links > 0
        })
        .unwrap()
    }

    fn file(&self, which: usize) -> Option<u64> {
        self.pick(which, |node| matches!(node.body, Body::File(_)))
    }

    fn names(&mut self, directory: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.nodes.get_mut(&directory).unwrap().body {
            Body::Directory(names) => names,
            _ => panic!("not a directory"),
        }
    }

    fn data(&mut self, file: u64) -> &mut Vec<u8> {
        match &mut self.nodes.get_mut(&file).unwrap().body {
            Body::File(data) => data,
            _ => panic!("not a file"),
        }
    }

    fn is_directory(&self, id: u64) -> bool {
        matches!(self.nodes[&id].body, Body::Directory(_))
    }

    fn unlink(&mut self, id: u64) {
        let is_directory = self.is_directory(id);
        let node = self.nodes.get_mut(&id).unwrap();
        node.links = if is_directory { 0 } else { node.links - 1 };
        if node.links == 0 && node.opens == 0 {
            self.nodes.remove(&id);
        }
    }

    fn parent(&self, directory: u64) -> u64 {
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
    fn closed(&self) -> Self {
        let mut model = self.clone();
        model.nodes.retain(|_, node| node.links > 0);
        model.nodes.values_mut().for_each(|node| node.opens = 0);
        model
    }
}

#[derive(Debug, Clone)]
enum Change {
    Create {
        dir: usize,
        name: u8,
    },
    MakeDirectory {
        dir: usize,
        name: u8,
    },
    Symlink {
        dir: usize,
        name: u8,
    },
    Link {
        of: usize,
        dir: usize,
        name: u8,
    },
    Unlink {
        dir: usize,
        name: u8,
    },
    RemoveDirectory {
        dir: usize,
        name: u8,
    },
    Rename {
        dir: usize,
        name: u8,
        to: usize,
        new: u8,
        mode: u8,
    },
    Write {
        file: usize,
        at: u64,
        length: usize,
        byte: u8,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        at: u64,
        length: u64,
        zero: bool,
    },
    Copy {
        from: usize,
        at: u64,
        to: usize,
        onto: u64,
        length: u64,
    },
    Mode {
        of: usize,
        mode: u32,
    },
    SetXattr {
        of: usize,
        name: u8,
        length: usize,
    },
    RemoveXattr {
        of: usize,
        name: u8,
    },
    Open {
        of: usize,
    },
    Release {
        of: usize,
    },
    Commit,
    Tick,
    Snapshot,
    Reopen,
    Crash,
}

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..20_000u64,
        2 => (0..40u64).prop_map(|block| block * 4096),
        1 => (0..8u64).prop_map(|chunk| chunk * 131_072),
        1 => (MIB - 9000)..(MIB + 9000),
        1 => 0..3 * MIB,
    ]
}

fn extent() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..5000u64,
        2 => (1..40u64).prop_map(|blocks| blocks * 4096),
        1 => 1..400_000u64,
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let which = || any::<usize>();
    let name = || 0..6u8;
    prop_oneof![
        8 => (which(), name()).prop_map(|(dir, name)| Change::Create { dir, name }),
        4 => (which(), name()).prop_map(|(dir, name)| Change::MakeDirectory { dir, name }),
        1 => (which(), name()).prop_map(|(dir, name)| Change::Symlink { dir, name }),
        2 => (which(), which(), name()).prop_map(|(of, dir, name)| Change::Link { of, dir, name }),
        5 => (which(), name()).prop_map(|(dir, name)| Change::Unlink { dir, name }),
        3 => (which(), name()).prop_map(|(dir, name)| Change::RemoveDirectory { dir, name }),
        8 => (which(), name(), which(), name(), 0..4u8)
            .prop_map(|(dir, name, to, new, mode)| Change::Rename { dir, name, to, new, mode }),
        16 => (which(), place(), extent(), any::<u8>())
            .prop_map(|(file, at, length, byte)| Change::Write { file, at, length: length as usize, byte }),
        5 => (which(), prop_oneof![Just(0), place()]).prop_map(|(file, size)| Change::Truncate { file, size }),
        4 => (which(), place(), extent(), any::<bool>())
            .prop_map(|(file, at, length, zero)| Change::Punch { file, at, length, zero }),
        4 => (which(), place(), which(), place(), extent(), any::<bool>()).prop_map(|(from, at, to, onto, length, align)| {
            let round = |value: u64| if align { value / 4096 * 4096 } else { value };
            Change::Copy { from, at: round(at), to, onto: round(onto), length }
        }),
        2 => (which(), 0..0o10000u32).prop_map(|(of, mode)| Change::Mode { of, mode: mode & !0o2000 }),
        3 => (which(), 0..4u8, 0..300usize).prop_map(|(of, name, length)| Change::SetXattr { of, name, length }),
        2 => (which(), 0..4u8).prop_map(|(of, name)| Change::RemoveXattr { of, name }),
        2 => which().prop_map(|of| Change::Open { of }),
        2 => which().prop_map(|of| Change::Release { of }),
        6 => Just(Change::Commit),
        2 => Just(Change::Tick),
        2 => Just(Change::Snapshot),
        1 => Just(Change::Reopen),
        2 => Just(Change::Crash),
    ]
}

fn text(name: u8) -> Vec<u8> {
    format!("name{name}").into_bytes()
}

struct World {
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    filesystem: Arc<Filesystem>,
    model: Model,
    committed: Model,
    snapshots: Vec<(String, Model)>,
}

fn open(memory: &Arc<MemoryStore>) -> Datasets {
    let store: Arc<dyn Store> = memory.clone();
    let environment = Environment::new(store, Arc::new(ManualClock::new(1_000_000_000)));
    Datasets::open(Arc::new(environment), "pool").unwrap()
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::new(1 << 30));
        let datasets = open(&memory);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let filesystem = datasets.filesystem("pool/a").unwrap();
        Self {
            memory,
            datasets,
            filesystem,
            model: Model::new(),
            committed: Model::new(),
            snapshots: Vec::new(),
        }
    }

    fn reopen(self) -> Self {
        let Self {
            memory,
            datasets,
            filesystem,
            committed,
            snapshots,
            ..
        } = self;
        drop((filesystem, datasets));
        let datasets = open(&memory);
        let filesystem = datasets.filesystem("pool/a").unwrap();
        let model = committed.closed();
        let world = Self {
            memory,
            datasets,
            filesystem,
            committed: model.clone(),
            model,
            snapshots,
        };
        world.compare();
        world
    }

    fn apply(mut self, change: &Change) -> Self {
        let fs = self.filesystem.clone();
        let root = Context::root();
        let model = &mut self.model;
        match *change {
            Change::Create { dir, name } => {
                let dir = model.directory(dir);
                let made = fs.create(&root, dir, &text(name), FileKind::File, 0o644, 0);
                if model.names(dir).contains_key(&text(name)) {
                    assert_eq!(made, Err(FsError::Exists));
                } else {
                    add(
                        model,
                        dir,
                        name,
                        made.unwrap().object,
                        Body::File(Vec::new()),
                        0o644,
                    );
                }
            }
            Change::MakeDirectory { dir, name } => {
                let dir = model.directory(dir);
                let made = fs.make_directory(&root, dir, &text(name), 0o755);
                if model.names(dir).contains_key(&text(name)) {
                    assert_eq!(made, Err(FsError::Exists));
                } else {
                    add(
                        model,
                        dir,
                        name,
                        made.unwrap().object,
                        Body::Directory(BTreeMap::new()),
                        0o755,
                    );
                    model.nodes.get_mut(&dir).unwrap().links += 1;
                }
            }
            Change::Symlink { dir, name } => {
                let dir = model.directory(dir);
                let made = fs.symbolic_link(&root, dir, &text(name), b"some/where");
                if model.names(dir).contains_key(&text(name)) {
                    assert_eq!(made, Err(FsError::Exists));
                } else {
                    add(
                        model,
                        dir,
                        name,
                        made.unwrap().object,
                        Body::Link(b"some/where".to_vec()),
                        0o777,
                    );
                }
            }
            Change::Link { of, dir, name } => {
                let dir = model.directory(dir);
                let Some(of) = model.pick(of, |node| !matches!(node.body, Body::Directory(_))) else {
                    return self;
                };
                let made = fs.link(&root, of, dir, &text(name));
                let taken = model.names(dir).contains_key(&text(name));
                if taken {
                    assert_eq!(made, Err(FsError::Exists));
                } else {
                    made.unwrap();
                    model.names(dir).insert(text(name), of);
                    model.nodes.get_mut(&of).unwrap().links += 1;
                }
            }
            Change::Unlink { dir, name } => {
                let dir = model.directory(dir);
                let result = fs
                    .unlink(&root, dir, &text(name))
                    .map(|attributes| attributes.links);
                match model.names(dir).get(&text(name)).copied() {
                    None => assert_eq!(result, Err(FsError::NotFound)),
                    Some(id) if model.is_directory(id) => assert_eq!(result, Err(FsError::IsDirectory)),
                    Some(id) => {
                        assert_eq!(result, Ok(model.nodes[&id].links - 1));
                        model.names(dir).remove(&text(name));
                        model.unlink(id);
                    }
                }
            }
            Change::RemoveDirectory { dir, name } => {
                let dir = model.directory(dir);
                let result = fs.remove_directory(&root, dir, &text(name)).map(|_| ());
                match model.names(dir).get(&text(name)).copied() {
                    None => assert_eq!(result, Err(FsError::NotFound)),
                    Some(id) if !model.is_directory(id) => assert_eq!(result, Err(FsError::NotDirectory)),
                    Some(id) if !model.names(id).is_empty() => assert_eq!(result, Err(FsError::NotEmpty)),
                    Some(id) => {
                        result.unwrap();
                        model.names(dir).remove(&text(name));
                        model.nodes.get_mut(&dir).unwrap().links -= 1;
                        model.unlink(id);
                    }
                }
            }
            Change::Rename {
                dir,
                name,
                to,
                new,
                mode,
            } => {
                let (dir, to) = (model.directory(dir), model.directory(to));
                let mode = match mode {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                let result = fs
                    .rename(&root, dir, &text(name), to, &text(new), mode)
                    .map(|_| ());
                let expected = rename(model, dir, &text(name), to, &text(new), mode);
                assert_eq!(result, expected);
            }
            Change::Write {
                file,
                at,
                length,
                byte,
            } => {
                let Some(file) = model.file(file) else { return self };
                let content: Vec<u8> = (0..length)
                    .map(|at| byte.wrapping_add((at / 4096) as u8) & 7)
                    .collect();
                assert_eq!(fs.write(&root, file, at, &content, false), Ok(length));
                put(model.data(file), at as usize, &content);
            }
            Change::Truncate { file, size } => {
                let Some(file) = model.file(file) else { return self };
                let change = SetAttributes {
                    size: Some(size),
                    ..SetAttributes::default()
                };
                assert_eq!(fs.set_attributes(&root, file, &change).unwrap().size, size);
                model.data(file).resize(size as usize, 0);
            }
            Change::Punch {
                file,
                at,
                length,
                zero,
            } => {
                let Some(file) = model.file(file) else { return self };
                let mode = if zero {
                    AllocateMode::Zero { keep_size: false }
                } else {
                    AllocateMode::Punch
                };
                fs.allocate(&root, file, mode, at, length).unwrap();
                let data = model.data(file);
                let (from, to) = (
                    (at as usize).min(data.len()),
                    ((at + length) as usize).min(data.len()),
                );
                data[from..to].fill(0);
                if zero && data.len() < (at + length) as usize {
                    data.resize((at + length) as usize, 0);
                }
            }
            Change::Copy {
                from,
                at,
                to,
                onto,
                length,
            } => {
                let (Some(from), Some(to)) = (model.file(from), model.file(to)) else {
                    return self;
                };
                let result = fs.copy_range(&root, from, at, to, onto, length);
                let source = model.data(from).clone();
                let end = (at + length)
                    .min(source.len() as u64)
                    .max(at.min(source.len() as u64));
                let count = end.saturating_sub(at);
                if count > 0 && from == to && at < onto + count && onto < at + count {
                    assert_eq!(result, Err(FsError::Invalid));
                } else {
                    assert_eq!(result, Ok(count));
                    if count > 0 {
                        put(model.data(to), onto as usize, &source[at as usize..end as usize]);
                    }
                }
            }
            Change::Mode { of, mode } => {
                let Some(of) = model.pick(of, |node| !matches!(node.body, Body::Link(_))) else {
                    return self;
                };
                let change = SetAttributes {
                    mode: Some(mode),
                    ..SetAttributes::default()
                };
                fs.set_attributes(&root, of, &change).unwrap();
                model.nodes.get_mut(&of).unwrap().mode = mode;
            }
            Change::SetXattr { of, name, length } => {
                let of = model.pick(of, |_| true).unwrap();
                let (name, value) = (format!("trusted.{name}").into_bytes(), vec![name; length]);
                fs.set_extended_attribute(&root, of, &name, &value, AttributeMode::Set)
                    .unwrap();
                model.nodes.get_mut(&of).unwrap().xattrs.insert(name, value);
            }
            Change::RemoveXattr { of, name } => {
                let of = model.pick(of, |_| true).unwrap();
                let name = format!("trusted.{name}").into_bytes();
                let result = fs.remove_extended_attribute(&root, of, &name);
                let had = model.nodes.get_mut(&of).unwrap().xattrs.remove(&name).is_some();
                assert_eq!(result, if had { Ok(()) } else { Err(FsError::NoAttribute) });
            }
            Change::Open { of } => {
                let of = model.pick(of, |_| true).unwrap();
                fs.open_object(of).unwrap();
                model.nodes.get_mut(&of).unwrap().opens += 1;
            }
            Change::Release { of } => {
                let Some(of) = model.pick(of, |node| node.opens > 0) else {
                    return self;
                };
                fs.release_object(of);
                let node = model.nodes.get_mut(&of).unwrap();
                node.opens -= 1;
                if node.opens == 0 && node.links == 0 {
                    model.nodes.remove(&of);
                }
            }
            Change::Commit => {
                fs.sync().unwrap();
                self.committed = self.model.clone();
                self.compare();
            }
            Change::Tick => {
                self.datasets.commit_all().unwrap();
                self.committed = self.model.clone();
            }
            Change::Snapshot => {
                let name = format!("s{}", self.snapshots.len());
                self.datasets
                    .snapshot(&format!("pool/a@{name}"), false, "")
                    .unwrap();
                self.committed = self.model.clone();
                self.snapshots.push((name, self.model.clone()));
            }
            Change::Reopen => {
                drop(fs);
                self.datasets.save_all().unwrap();
                self.committed = self.model.clone();
                return self.reopen();
            }
            Change::Crash => {
                drop(fs);
                return self.reopen();
            }
        }
        self
    }

    fn compare(&self) {
        compare(&*self.filesystem, &self.model, true);
    }

    fn finish(self) {
        self.filesystem.sync().unwrap();
        self.compare();
        for (name, model) in &self.snapshots {
            let view = self.datasets.view("pool/a", &At::Snapshot(name.clone())).unwrap();
            compare(&*view, model, false);
        }
        while self.datasets.sweep_step(64).unwrap() == Progress::More {}
        self.filesystem.sync().unwrap();
        self.compare();
        let store: Arc<dyn Store> = self.memory.clone();
        let report = check(&store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        let references = self.memory.references();
        assert_eq!(report.references, references);
        assert_eq!(self.filesystem.dirty_bytes(), 0);
    }
}

fn add(model: &mut Model, dir: u64, name: u8, object: u64, body: Body, mode: u32) {
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

fn put(data: &mut Vec<u8>, at: usize, content: &[u8]) {
    if data.len() < at + content.len() {
        data.resize(at + content.len(), 0);
    }
    data[at..at + content.len()].copy_from_slice(content);
}

fn rename(
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
        (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
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

fn compare(tree: &dyn Tree, model: &Model, live: bool) {
    let context = Context::root();
    for (id, node) in &model.nodes {
        if node.links == 0 && !live {
            continue;
        }
        let attributes = tree.attributes(*id).unwrap();
        assert_eq!(
            (attributes.links, attributes.mode),
            (node.links, node.mode),
            "object {id}"
        );
        match &node.body {
            Body::File(data) => {
                assert_eq!(attributes.size, data.len() as u64, "size of {id}");
                let mut read = vec![0xee; data.len() + 100];
                assert_eq!(tree.read(*id, 0, &mut read), Ok(data.len()));
                if let Some(at) = (0..data.len()).find(|at| read[*at] != data[*at]) {
                    panic!(
                        "object {id} differs at {at}: {} instead of {}",
                        read[at], data[at]
                    );
                }
                let mut part = [0u8; 777];
                let from = data.len() / 3;
                let length = tree.read(*id, from as u64, &mut part).unwrap();
                assert_eq!(part[..length], data[from..(from + 777).min(data.len())]);
                compare_seek(tree, *id, data);
            }
            Body::Link(target) => assert_eq!(&tree.read_link(*id).unwrap(), target),
            Body::Directory(names) => {
                assert_eq!(attributes.size, names.len() as u64);
                let mut listed = BTreeMap::new();
                let mut from = 0;
                loop {
                    let entries = tree.read_directory(*id, from, 2).unwrap();
                    let Some(last) = entries.last() else { break };
                    from = last.cookie;
                    for entry in entries {
                        assert!(listed.insert(entry.name, entry.object).is_none());
                    }
                }
                assert_eq!(&listed, names, "names of {id}");
                for name in (0..6).map(text) {
                    let found = tree
                        .lookup(&context, *id, &name)
                        .map(|attributes| attributes.object);
                    assert_eq!(found.ok(), names.get(&name).copied());
                }
                if node.links > 0 {
                    assert_eq!(tree.parent(*id).unwrap(), model.parent(*id));
                }
            }
        }
        let names = tree.extended_attributes(*id).unwrap();
        assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>());
        for (name, value) in &node.xattrs {
            assert_eq!(&tree.extended_attribute(*id, name).unwrap(), value);
        }
    }
}

/// Holes are zero, and data and holes follow each other to the end.
fn compare_seek(tree: &dyn Tree, id: u64, data: &[u8]) {
    let size = data.len() as u64;
    assert_eq!(tree.seek(id, size, SeekTarget::Data), Err(FsError::NoData));
    let mut at = 0;
    while at < size {
        let start = match tree.seek(id, at, SeekTarget::Data) {
            Ok(start) => start,
            Err(FsError::NoData) => size,
            Err(error) => panic!("{error}"),
        };
        assert!(start >= at && data[at as usize..start as usize].iter().all(|byte| *byte == 0));
        if start == size {
            break;
        }
        let end = tree.seek(id, start, SeekTarget::Hole).unwrap();
        assert!(end > start && end <= size);
        at = end;
    }
}

/// The same cases in every run, unless `TERRACE_SEED` and `TERRACE_CASES` ask for others.
fn config() -> ProptestConfig {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    ProptestConfig {
        cases: number("TERRACE_CASES").unwrap_or(32) as u32,
        rng_seed: proptest::test_runner::RngSeed::Fixed(number("TERRACE_SEED").unwrap_or(2)),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_filesystem_is_its_model(changes in proptest::collection::vec(change(), 1..90)) {
        let mut world = World::new();
        for change in &changes {
            world = world.apply(change);
        }
        world.finish();
    }
}
