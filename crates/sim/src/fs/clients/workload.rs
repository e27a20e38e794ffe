//! What clients do: calls of a filesystem and of a volume, done by engine and model alike. Here the seed chooses which
//! comes next; how a call is done and compared is in `call`.
//!
//! Invariant: a filesystem stays within bounds of objects and blocks: one that is crowded gets calls that make room.

use terrace_dataset::{Context, FileKind};

use super::call::{Change, Done, show};
use crate::{
    fs::{
        level::Run,
        state::{Body, Node},
    },
    violation::Check,
};

/// Objects that a filesystem of the run has at most.
const OBJECTS_MAX: usize = 90;
/// Content that a filesystem of the run has at most, blocks.
const BLOCKS_MAX: usize = 1500;

impl Run {
    /// One call to one filesystem.
    pub(crate) fn filesystem_call(&mut self) -> Check {
        let index = self.random.index(self.filesystems.len());
        let state = self.filesystems[index].history.newest().clone();
        let directories = state.tree.objects(Node::is_directory);
        let files = state.tree.objects(|node| matches!(node.body, Body::File(_)));
        let names = state.tree.names();
        let dir = *self.random.pick(&directories);
        // Mostly names that are there for calls that need one.
        let (old_dir, old_name) = if !names.is_empty() && self.random.chance(9, 10) {
            let (dir, name, _) = self.random.pick(&names).clone();
            (dir, name)
        } else {
            (dir, self.name())
        };
        let file = if files.is_empty() {
            None
        } else {
            Some(*self.random.pick(&files))
        };
        let crowded = state.tree.len() > OBJECTS_MAX || state.tree.used_blocks() > BLOCKS_MAX;
        let choice = if crowded {
            self.random.between(52, 75)
        } else {
            self.random.below(106)
        };
        match choice {
            0..=13 => self.create(index, dir, FileKind::File),
            14..=19 => self.create(index, dir, FileKind::Directory),
            20..=22 => self.create(index, dir, FileKind::SymbolicLink),
            23..=26 => match file {
                Some(object) => {
                    let name = self.name();
                    self.call(
                        index,
                        &format!("link {object} as {dir}/{}", show(&name)),
                        |fs, tree| {
                            let model = tree.link(object, dir, &name);
                            let linked = fs.link(&Context::root(), object, dir, &name);
                            Done::of(linked, model, vec![object, dir])
                                .stamping(&[(object, Change::Attributes), (dir, Change::Content)])
                        },
                    )
                }
                None => Ok(()),
            },
            27..=51 => match file {
                Some(object) => self.write(index, object),
                None => self.create(index, dir, FileKind::File),
            },
            52..=61 => self.unlink(index, old_dir, &old_name),
            62..=70 => self.rename(index, old_dir, &old_name, dir),
            71..=75 => match file {
                Some(object) => self.truncate(index, object),
                None => Ok(()),
            },
            76..=79 => match file {
                Some(object) => self.allocate(index, object),
                None => Ok(()),
            },
            80..=82 => match file {
                Some(object) => self.copy_range(index, object, *self.random.clone().pick(&files)),
                None => Ok(()),
            },
            83..=86 => self.change_attributes(index),
            87..=91 => self.extended_attribute(index),
            92..=93 => match file {
                Some(object) => self.hold_open(index, object),
                None => Ok(()),
            },
            94 => self.release_one(index),
            100..=101 => self.temporary(index, dir),
            102..=103 => self.link_held(index, dir),
            104..=105 => self.set_times(index),
            _ => match file {
                Some(object) => self.read(index, object),
                None => Ok(()),
            },
        }
    }
}
