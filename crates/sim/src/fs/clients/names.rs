//! Calls that make, remove and move names.
//!
//! Invariant: model and engine do the same to a copy, also where the call is wrong on purpose.

use terrace_dataset::{Context, FileKind, RenameMode, Tree};

use super::call::{Change, Done, show};
use crate::{
    fs::{
        level::Run,
        state::{BlocksModel, Body, Node, Renaming, UNKNOWN_OBJECT},
    },
    violation::Check,
};

impl Run {
    pub(crate) fn name(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => vec![b'x'; 255],
            1 => format!("näme {}", self.random.below(4)).into_bytes(),
            2 => vec![0xFF, 0xFE, b'0' + self.random.below(4) as u8],
            _ => format!("n{}", self.random.below(40)).into_bytes(),
        }
    }

    pub(crate) fn create(&mut self, index: usize, dir: u64, kind: FileKind) -> Check {
        let name = self.name();
        let mode = *self.random.pick(&[0o644, 0o600, 0o755, 0o777, 0o400]);
        let target = format!("target/{}", "y".repeat(self.random.skewed(300) as usize)).into_bytes();
        let words = format!("create {kind:?} {dir}/{}", show(&name));
        self.call(index, &words, |fs, tree| {
            let context = Context::root();
            let (result, body, mode) = match kind {
                FileKind::Directory => (
                    fs.make_directory(&context, dir, &name, mode),
                    Body::Directory(Default::default()),
                    mode,
                ),
                FileKind::SymbolicLink => (
                    fs.symbolic_link(&context, dir, &name, &target),
                    Body::Symlink(target.clone()),
                    0o777,
                ),
                _ => {
                    let result = fs.create(&context, dir, &name, FileKind::File, mode, 0);
                    (result, Body::File(BlocksModel::default()), mode)
                }
            };
            // The number is the engine's to choose; where there is none, any unused one shows whether it could be.
            let object = result
                .as_ref()
                .map_or(UNKNOWN_OBJECT, |attributes| attributes.object);
            let model = tree.create(dir, &name, object, mode, body);
            Done::of(result, model, vec![object, dir])
                .stamping(&[(object, Change::Content), (dir, Change::Content)])
        })
    }

    pub(crate) fn unlink(&mut self, index: usize, dir: u64, name: &[u8]) -> Check {
        let held = self.filesystems[index].held.clone();
        let tree = &self.filesystems[index].history.newest().tree;
        let target = tree.lookup(dir, name).ok();
        let directory = target
            .and_then(|object| tree.node(object))
            .is_some_and(Node::is_directory);
        // Now and then the wrong call.
        let as_directory = directory != self.random.chance(1, 30);
        let words = format!(
            "{} {dir}/{}",
            if as_directory { "rmdir" } else { "unlink" },
            show(name)
        );
        self.call(index, &words, |fs, tree| {
            let context = Context::root();
            let is_held = |object| held.contains(&object);
            let (result, model) = if as_directory {
                (
                    fs.remove_directory(&context, dir, name).map(drop),
                    tree.remove_directory(dir, name, is_held),
                )
            } else {
                (
                    fs.unlink(&context, dir, name).map(drop),
                    tree.unlink(dir, name, is_held),
                )
            };
            let gone = model.ok();
            let stamped: Vec<_> = gone.iter().map(|object| (*object, Change::Attributes)).collect();
            let touched = gone.into_iter().chain([dir]).collect();
            Done::of(result, model.map(drop), touched)
                .stamping(&stamped)
                .stamping(&[(dir, Change::Content)])
                .freeing(true)
        })
    }

    pub(crate) fn rename(&mut self, index: usize, dir: u64, name: &[u8], new_dir: u64) -> Check {
        let held = self.filesystems[index].held.clone();
        let names = self.filesystems[index].history.newest().tree.names();
        let (new_dir, new_name) = if !names.is_empty() && self.random.chance(1, 2) {
            let (dir, name, _) = self.random.pick(&names).clone();
            (dir, name)
        } else {
            (new_dir, self.name())
        };
        let (mode, renaming) = *self.random.pick(&[
            (RenameMode::Replace, Renaming::Replace),
            (RenameMode::Replace, Renaming::Replace),
            (RenameMode::NoReplace, Renaming::NoReplace),
            (RenameMode::Exchange, Renaming::Exchange),
            (RenameMode::Whiteout, Renaming::Whiteout),
            (RenameMode::WhiteoutNoReplace, Renaming::WhiteoutNoReplace),
        ]);
        let words = format!(
            "rename {dir}/{} to {new_dir}/{} {renaming:?}",
            show(name),
            show(&new_name)
        );
        self.call(index, &words, |fs, tree| {
            let ends = [tree.lookup(dir, name), tree.lookup(new_dir, &new_name)];
            let mut touched: Vec<u64> = ends.into_iter().flatten().chain([dir, new_dir]).collect();
            // Two names of one object: nothing is done.
            let is_same = matches!(ends, [Ok(one), Ok(other)] if one == other);
            let mut stamped = match ends {
                _ if is_same => Vec::new(),
                ends => {
                    let objects = ends.into_iter().flatten();
                    let objects = objects.map(|object| (object, Change::Attributes));
                    objects
                        .chain([(dir, Change::Content), (new_dir, Change::Content)])
                        .collect()
                }
            };
            let context = Context::root();
            let result = fs.rename(&context, dir, name, new_dir, &new_name, mode);
            let mut model = tree.rename(dir, name, new_dir, &new_name, renaming, |object| {
                held.contains(&object)
            });
            if model.is_ok() && renaming.leaves_whiteout() && !is_same {
                let left = result
                    .as_ref()
                    .ok()
                    .and_then(|_| fs.lookup(&context, dir, name).ok());
                let whiteout = left.map_or(UNKNOWN_OBJECT, |attributes| attributes.object);
                model = tree.create(dir, name, whiteout, 0, Body::Whiteout);
                touched.push(whiteout);
                stamped.push((whiteout, Change::Content));
            }
            Done::of(result, model, touched).stamping(&stamped)
        })
    }
}
