//! Regions of the run are laid out anew, by hand and with writes, holes, reflinks, commits and snapshots in the middle of
//! it.
//!
//! What must hold: a relayout changes nothing that anybody can see, of now or of the past, whenever it is interrupted; a
//! change that is made while one is under way stays.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use terrace_dataset::{
    AllocateMode, Context, Cut, Filesystem, Fragment, FsError, Layout, ROOT, Relaid, SetAttributes, Tree,
    body_of_object,
};
use terrace_store::Store;

use crate::{
    act::Act,
    ensure,
    fs::{
        clients::{Client, Done, copied_in_part},
        models::{Body, Refused, TreeModel},
        world::World,
    },
    hardware::Random,
    models::Content,
    trace,
    violation::Check,
};

/// A change of a file, to be made while it is laid out anew.
enum Change {
    Write(u64, Vec<u8>),
    Punch(u64, u64),
    /// So many bytes are mapped once more, in another file.
    Share(u64, u64, u64),
    Truncate(u64),
}

impl Change {
    fn choose(random: &mut Random, size: u64, others: &[u64]) -> Self {
        let offset = random.below(size.max(1)) / 4096 * 4096;
        match random.below(8) {
            0..=3 => Self::Write(offset, Content::choose(random, 70_000).bytes()),
            4 => Self::Punch(offset, random.between(1, 50) * 4096),
            5..=6 if !others.is_empty() => {
                Self::Share(offset, *random.pick(others), 4096 * random.between(1, 40))
            }
            _ => Self::Truncate(offset),
        }
    }

    /// Makes it; returns how many bytes were copied.
    fn make(&self, filesystem: &Filesystem, object: u64) -> Result<u64, FsError> {
        let root = Context::root();
        match self {
            Self::Write(offset, data) => {
                let written = filesystem.write(&root, object, *offset, data, false);
                written.map(|written| written as u64)
            }
            Self::Punch(offset, length) => filesystem
                .allocate(&root, object, AllocateMode::Punch, *offset, *length)
                .map(|()| 0),
            Self::Share(offset, target, length) => {
                filesystem.copy_range(&root, object, *offset, *target, *offset, *length)
            }
            Self::Truncate(size) => {
                let change = SetAttributes {
                    size: Some(*size),
                    ..SetAttributes::default()
                };
                filesystem.set_attributes(&root, object, &change).map(|_| 0)
            }
        }
    }

    /// The same change of the model (after a failure: as it may have been made, and be found later); returns what it
    /// touches as well.
    fn model(
        &self,
        tree: &mut TreeModel,
        object: u64,
        made: &Result<u64, FsError>,
    ) -> (Result<(), Refused>, Vec<u64>) {
        match self {
            Self::Write(offset, data) => {
                let written = made.as_ref().map_or(data.len(), |written| *written as usize);
                (tree.write(object, *offset, &data[..written]), vec![object])
            }
            Self::Punch(offset, length) => (tree.punch(object, *offset, *length), vec![object]),
            Self::Share(offset, target, length) => {
                let data = copied(tree, object, (*offset, *length), made);
                (tree.write(*target, *offset, &data), vec![object, *target])
            }
            Self::Truncate(size) => (tree.resize(object, *size), vec![object]),
        }
    }

    /// What a crash may find of it.
    fn in_part(&self, tree: &TreeModel, object: u64, made: &Result<u64, FsError>) -> Vec<TreeModel> {
        match self {
            Self::Share(offset, target, length) => {
                let data = copied(tree, object, (*offset, *length), made);
                copied_in_part(tree, (*offset, *target), *offset, &data)
            }
            _ => Vec::new(),
        }
    }
}

/// What was copied out of an object (after a failure: what may have been).
fn copied(
    tree: &TreeModel,
    object: u64,
    (offset, length): (u64, u64),
    made: &Result<u64, FsError>,
) -> Vec<u8> {
    let data = tree.file(object).map(|file| file.read(offset, length as usize));
    let mut data = data.unwrap_or_default();
    if let Ok(copied) = made {
        data.truncate(*copied as usize);
    }
    data
}

/// Lays a region of something out anew, in one of eight turns.
pub(crate) struct Relayout {
    random: Random,
}

impl Act<World> for Relayout {
    fn perform(&mut self, world: &mut World) -> Check {
        if !self.random.chance(1, 8) {
            return Ok(());
        }
        if !world.models.volumes.is_empty() && self.random.chance(1, 4) {
            return self.relayout_volume(world);
        }
        let index = self.random.index(world.models.filesystems.len());
        let Some(handle) = world.rig.handles.filesystem(index) else {
            return Ok(());
        };
        let tree = &world.models.filesystems[index].history.newest().tree;
        let files = tree.objects(|node| matches!(node.body, Body::File(_)));
        if files.is_empty() {
            return Ok(());
        }
        let object = *self.random.pick(&files);
        let size = tree.file(object).map_or(0, |file| file.size);
        let Some(fragment) = self.fragment(world, handle.dataset().number(), object, size)? else {
            return Ok(());
        };
        if self.random.chance(1, 3)
            && let Err(error) = handle.commit()
        {
            return world.after_error("commit", &error);
        }
        if self.random.chance(1, 3) {
            return self.relayout_beside(&mut Client::of(world, index), fragment, &files);
        }
        let before = handle.attributes(object);
        let (cut, most) = self.how();
        let all = with_neighbours(fragment, size);
        let done = world.rig.engine()?.datasets().relayout(&all, cut, &is_gain, most);
        trace!(
            world.rig.trace,
            "relayout {all:?}, {cut:?}, {most} bytes: {done:?}"
        );
        let done = match done.into_iter().collect::<Result<Vec<Relaid>, FsError>>() {
            Ok(done) => done,
            Err(error) => return world.after_error("relayout", &error),
        };
        let shown = match (before, handle.attributes(object)) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(error), _) | (_, Err(error)) => return world.after_error("attributes", &error),
        };
        ensure!(
            shown.0 == shown.1,
            "object {object} was {:?} before a relayout, and is {:?} after it",
            shown.0,
            shown.1
        );
        if !done.iter().any(|done| matches!(done, Relaid::Done { .. })) {
            return Ok(());
        }
        let filesystem = &world.models.filesystems[index];
        let Ok(file) = filesystem.history.newest().tree.file(object).cloned() else {
            return Ok(());
        };
        let mut buffer = vec![0xEE; all.len() << 20];
        let offset = fragment.region << 20;
        match handle.read(object, offset, &mut buffer) {
            Ok(read) => {
                ensure!(
                    buffer[..read] == file.read(offset, buffer.len()),
                    "a relayout of {fragment:?} changed its content"
                );
                Ok(())
            }
            Err(error) => world.after_error("read", &error),
        }
    }
}

impl Relayout {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0x1A1D_0000_0000),
        }
    }

    /// The same while somebody changes the file.
    fn relayout_beside(&mut self, client: &mut Client<'_>, fragment: Fragment, files: &[u64]) -> Check {
        let object = fragment.object;
        let size = client.size_of(object);
        let others = files.iter().copied().filter(|other| *other != object);
        let others: Vec<u64> = others.collect();
        let change = Change::choose(&mut self.random, size, &others);
        let commits = self.random.chance(1, 2);
        let (cut, most) = self.how();
        let engine = client.world.rig.engine()?;
        let (laid, committed) = (Cell::new(Ok(Relaid::Left)), Cell::new(Ok(())));
        let called = client.call("a change beside a relayout", |fs, tree| {
            let made = RefCell::new(None);
            let make = || {
                made.borrow_mut().get_or_insert_with(|| {
                    let result = change.make(fs, object);
                    if commits {
                        committed.set(fs.commit().map(drop));
                    }
                    result
                });
            };
            let wanted = |_: &Fragment, layout: &Layout| {
                make();
                layout.is_gain()
            };
            laid.set(one(engine.datasets().relayout(&[fragment], cut, &wanted, most)));
            make();
            let result = made.into_inner().unwrap_or(Ok(0));
            let pieces = change.in_part(tree, object, &result);
            let (model, touched) = change.model(tree, object, &result);
            Done::of(result, model, touched).by_way_of(pieces)
        });
        called?;
        let laid = laid.into_inner();
        trace!(
            client.world.rig.trace,
            "relayout {fragment:?} beside it: {laid:?}"
        );
        let failed = [laid.err(), committed.into_inner().err()];
        for error in failed.into_iter().flatten() {
            // Opened again since: nothing of it is left.
            let same = client
                .world
                .rig
                .engine
                .as_ref()
                .is_some_and(|now| Arc::ptr_eq(now, &engine));
            if same {
                client.world.after_error("relayout", &error)?;
            }
        }
        Ok(())
    }

    fn relayout_volume(&mut self, world: &mut World) -> Check {
        let Some(handle) = world.rig.handles.volume(0) else {
            return Ok(());
        };
        let model = world.models.volumes[0].history.newest().clone();
        let Some(fragment) = self.fragment(world, handle.dataset().number(), ROOT, model.size)? else {
            return Ok(());
        };
        let (cut, most) = self.how();
        let all = with_neighbours(fragment, model.size);
        let done = world.rig.engine()?.datasets().relayout(&all, cut, &is_gain, most);
        trace!(
            world.rig.trace,
            "relayout {all:?}, {cut:?}, {most} bytes: {done:?}"
        );
        if let Some(error) = done.into_iter().find_map(Result::err) {
            return world.after_error("relayout", &error);
        }
        let offset = fragment.region << 20;
        let mut buffer = vec![0xEE; (model.size - offset).min((all.len() as u64) << 20) as usize];
        match handle.read(offset, &mut buffer) {
            Ok(()) => {
                ensure!(
                    buffer == model.read(offset, buffer.len()),
                    "a relayout of {fragment:?} changed its content"
                );
                Ok(())
            }
            Err(error) => world.after_error("read of a volume", &error),
        }
    }

    fn fragment(
        &mut self,
        world: &mut World,
        dataset: u32,
        object: u64,
        size: u64,
    ) -> Check<Option<Fragment>> {
        let region = self.random.below(size.div_ceil(1 << 20).max(1));
        if region << 20 >= size {
            return Ok(None);
        }
        let store: Arc<dyn Store> = world.rig.engine()?.chunks().clone();
        match body_of_object(&store, dataset, object) {
            Ok(body) => Ok(body.map(|body| Fragment {
                dataset,
                body,
                region,
                object,
            })),
            Err(error) => {
                world.after_error("a look for an inode", &FsError::from(error))?;
                Ok(None)
            }
        }
    }

    /// How it is cut, and how much of it is written at most.
    fn how(&mut self) -> (Cut, u64) {
        *self.random.pick(&[
            (Cut::InOrder, 1),
            (Cut::InOrder, 100_000),
            (Cut::Survivors, 256 << 10),
            (Cut::InOrder, 1 << 20),
            (Cut::Survivors, 1 << 20),
        ])
    }
}

/// It and up to two that come after it.
fn with_neighbours(fragment: Fragment, size: u64) -> Vec<Fragment> {
    let regions = fragment.region..(fragment.region + 3).min(size.div_ceil(1 << 20));
    let of_region = |region| Fragment { region, ..fragment };
    regions.map(of_region).collect()
}

fn is_gain(_: &Fragment, layout: &Layout) -> bool {
    layout.is_gain()
}

/// The outcome of the only region.
fn one(done: Vec<Result<Relaid, FsError>>) -> Result<Relaid, FsError> {
    done.into_iter().next().unwrap_or(Ok(Relaid::Left))
}
