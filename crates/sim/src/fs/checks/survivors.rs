//! What is left of the datasets without a device: all that can be read against the models, and what cannot.
//!
//! Invariants: no byte reads as another; what cannot be read is an error, which is kept with the place, so that whoever lost
//! a device can say what was to be expected of each.

use std::collections::{BTreeMap, BTreeSet};

use terrace_dataset::{At, DatasetError, FileKind, FsError, Tree};
use terrace_engine::Engine;

use crate::{
    ensure,
    fs::models::{BLOCK, Body, Models, TreeModel},
    trace,
    trace::Trace,
    violation,
    violation::{Check, Violation},
};

/// What cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// How much, about.
    pub(crate) bytes: u64,
    /// Where: a dataset or a snapshot, an object (0: of a volume), a place in it, bytes.
    places: BTreeSet<(String, u64, u64)>,
    /// Datasets and snapshots that cannot be opened.
    datasets: BTreeSet<String>,
    /// What was said of each.
    pub(crate) causes: Vec<String>,
}

impl Lost {
    /// Where in a dataset something cannot be read: objects, and places in them.
    pub(crate) fn of<'a>(&'a self, dataset: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
        let of_it = self.places.iter().filter(move |(name, ..)| name == dataset);
        of_it.map(|(_, object, at)| (*object, *at))
    }

    /// What could be read before can be now.
    pub(crate) fn is_no_more_than(&self, before: &Self) -> Check {
        // Of a dataset that could not be opened nothing is known of before.
        let mut more = self.places.difference(&before.places);
        let more = more.find(|(name, ..)| !before.datasets.contains(name));
        let closed = self.datasets.difference(&before.datasets).next();
        ensure!(
            closed.is_none(),
            "{closed:?} could be opened without the missing disk, and cannot be any more: {:?}",
            self.causes.last()
        );
        ensure!(
            more.is_none(),
            "{more:?} could be read without the missing disk, and cannot be any more: {:?}",
            self.causes.last()
        );
        Ok(())
    }

    fn add(&mut self, bytes: u64, place: (&str, u64, u64), error: &FsError) {
        self.bytes += bytes;
        self.places.insert((place.0.to_owned(), place.1, place.2));
        self.causes.push(error.to_string());
    }

    fn add_dataset(&mut self, name: &str, error: &DatasetError) {
        self.bytes += BLOCK as u64;
        self.datasets.insert(name.to_owned());
        self.causes.push(error.to_string());
    }
}

/// Everything against the models, where it can be read.
pub(crate) struct Survivors<'a> {
    pub(crate) models: &'a Models,
    pub(crate) trace: &'a Trace,
}

impl Survivors<'_> {
    /// Compares; returns what cannot be read. With `all_open` no dataset may be lost as a whole.
    pub(crate) fn compare(&self, engine: &Engine, all_open: bool) -> Check<Lost> {
        let mut lost = Lost::default();
        for filesystem in &self.models.filesystems {
            let handle = match engine.datasets().filesystem(&filesystem.name) {
                Ok(handle) => handle,
                Err(error) if !all_open => {
                    lost.add_dataset(&filesystem.name, &error);
                    continue;
                }
                Err(error) => violation!("{} does not open: {error}", filesystem.name),
            };
            let tree = &filesystem.history.newest().tree;
            survivors(&filesystem.name, &*handle, &tree.without_unnamed(), &mut lost)?;
            for (short, snapshot) in &filesystem.snapshots {
                let name = format!("{}@{short}", filesystem.name);
                match engine
                    .datasets()
                    .view(&filesystem.name, &At::Snapshot(short.clone()))
                {
                    Ok(view) => survivors(&name, &*view, &snapshot.tree, &mut lost)?,
                    Err(error) if !all_open => lost.add_dataset(&name, &error),
                    Err(error) => violation!("{name} is gone with a device: {error}"),
                }
            }
        }
        for volume in &self.models.volumes {
            let fail = |error: &dyn std::fmt::Display| Violation(format!("{}: {error}", volume.name));
            let handle = match engine.datasets().volume(&volume.name) {
                Ok(handle) => handle,
                Err(error) if !all_open => {
                    lost.add_dataset(&volume.name, &error);
                    continue;
                }
                Err(error) => return Err(fail(&error)),
            };
            let data = volume.history.newest();
            for at in (0..data.size).step_by(BLOCK) {
                let mut buffer = vec![0; BLOCK.min((data.size - at) as usize)];
                match handle.read(at, &mut buffer) {
                    Ok(()) => ensure!(
                        buffer == data.read(at, buffer.len()),
                        "{}: {BLOCK} bytes at {at} read as something else",
                        volume.name
                    ),
                    Err(error @ FsError::Io(_)) => {
                        lost.add(buffer.len() as u64, (&volume.name, 0, at), &error)
                    }
                    Err(error) => return Err(fail(&error)),
                }
            }
        }
        trace!(self.trace, "{} bytes cannot be read", lost.bytes);
        Ok(lost)
    }
}

/// What of a tree can be read is what the model says; what cannot is added to the lost.
fn survivors(name: &str, shown: &dyn Tree, model: &TreeModel, lost: &mut Lost) -> Check {
    for object in model.objects(|_| true) {
        let Some(node) = model.node(object) else { continue };
        let attributes = match shown.attributes(object) {
            Ok(attributes) => attributes,
            Err(error @ FsError::Io(_)) => {
                lost.add(BLOCK as u64, (name, object, 0), &error);
                continue;
            }
            Err(error) => violation!("{name}: object {object}: {error}"),
        };
        ensure!(
            (attributes.mode, attributes.uid, attributes.gid, attributes.links)
                == (node.mode, node.uid, node.gid, node.links),
            "{name}: object {object} has other attributes than before"
        );
        match &node.body {
            Body::File(file) => {
                ensure!(
                    attributes.size == file.size,
                    "{name}: object {object} has another size"
                );
                // Of a long file what is around its blocks.
                let blocks: Vec<u64> = match file.size {
                    ..=0x20_0000 => (0..file.size.div_ceil(BLOCK as u64)).collect(),
                    _ => file.block_numbers(),
                };
                for block in blocks {
                    let at = block * BLOCK as u64;
                    let mut buffer = vec![0; BLOCK.min((file.size - at) as usize)];
                    match shown.read(object, at, &mut buffer) {
                        Ok(read) => ensure!(
                            read == buffer.len() && buffer == file.read(at, read),
                            "{name}: object {object} reads at {at} as something else"
                        ),
                        Err(error @ FsError::Io(_)) => {
                            lost.add(buffer.len() as u64, (name, object, at), &error)
                        }
                        Err(error) => violation!("{name}: object {object} at {at}: {error}"),
                    }
                }
            }
            Body::Whiteout => ensure!(
                (attributes.kind, attributes.device) == (FileKind::CharacterDevice, 0),
                "{name}: object {object} is no whiteout any more"
            ),
            Body::Symlink(target) => match shown.read_link(object) {
                Ok(link) => ensure!(link == *target, "{name}: link {object} leads elsewhere"),
                Err(error @ FsError::Io(_)) => lost.add(1, (name, object, 0), &error),
                Err(error) => violation!("{name}: link {object}: {error}"),
            },
            Body::Directory(entries) => match shown.read_directory(object, 0, usize::MAX >> 1) {
                Ok(found) => {
                    let found: BTreeMap<_, _> = found
                        .into_iter()
                        .map(|entry| (entry.name, entry.object))
                        .collect();
                    ensure!(
                        found == *entries,
                        "{name}: directory {object} lists something else"
                    );
                }
                Err(error @ FsError::Io(_)) => lost.add(1, (name, object, 0), &error),
                Err(error) => violation!("{name}: directory {object}: {error}"),
            },
        }
    }
    Ok(())
}
