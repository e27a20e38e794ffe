//! A filesystem beside its model: each change is done to both, and both must answer the same.
//!
//! What must hold: an error of the filesystem is the model's; a crash leaves what the last commit had, with nothing open;
//! a snapshot shows what it showed; at the end the walk finds every reference.

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::{
    AllocateMode, At, AttributeMode, Context, Datasets, Environment, FileKind, Filesystem, FsError,
    NewDataset, Progress, RenameMode, SetAttributes, Tree, check,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

use super::{
    change::Change,
    comparison::compare,
    model::{Body, Model, add, put, rename, text},
};

pub(super) struct World {
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    filesystem: Arc<Filesystem>,
    model: Model,
    committed: Model,
    snapshots: Vec<(String, Model)>,
}

pub(super) fn open(memory: &Arc<MemoryStore>) -> Datasets {
    let store: Arc<dyn Store> = memory.clone();
    let environment = Environment::new(store, Arc::new(ManualClock::new(1_000_000_000)));
    Datasets::open(Arc::new(environment), "pool").unwrap()
}

impl World {
    pub(super) fn new() -> Self {
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

    pub(super) fn apply(mut self, change: &Change) -> Self {
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
                    2 => RenameMode::Whiteout,
                    3 => RenameMode::WhiteoutNoReplace,
                    _ => RenameMode::Replace,
                };
                let result = fs
                    .rename(&root, dir, &text(name), to, &text(new), mode)
                    .map(|_| ());
                let target = model.names(to).get(&text(new)).copied();
                let same = target == model.names(dir).get(&text(name)).copied();
                let expected = rename(model, dir, &text(name), to, &text(new), mode);
                assert_eq!(result, expected);
                if mode.leaves_whiteout() && result.is_ok() && !same {
                    let left = fs.lookup(&root, dir, &text(name)).unwrap();
                    assert_eq!((left.mode, left.uid, left.gid), (0, 0, 0));
                    add(model, dir, name, left.object, Body::Whiteout, 0);
                }
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
                    .snapshots()
                    .take(&format!("pool/a@{name}"), false, "")
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

    pub(super) fn finish(self) {
        self.filesystem.sync().unwrap();
        self.compare();
        for (name, model) in &self.snapshots {
            let view = self.datasets.view("pool/a", &At::Snapshot(name.clone())).unwrap();
            compare(&*view, model, false);
        }
        while self.datasets.sweeper().step(64).unwrap() == Progress::More {}
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
