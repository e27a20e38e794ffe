//! Everything against the models: one live dataset, all of them after an opening, and the full walk.
//!
//! What must hold: each dataset is, wholly, in one of the states that it was in since its last fsync, and what an opening
//! showed is not gone back behind; every record of the datasets is well formed, and every count of the store is exact.

use terrace_dataset::Tree;
use terrace_store::ChunkId;

use super::dump::dump;
use crate::{
    ensure,
    fs::{
        level::Run,
        state::{BlocksModel, TreeModel, TreeState},
    },
    trace,
    violation::{Check, Violation},
};

impl Run {
    /// The live state of one dataset against its model.
    pub(crate) fn check_one(&mut self) -> Check {
        let index = self.random.index(self.filesystems.len());
        let filesystem = &self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let page = self.random.between(1, 20) as usize;
        match dump(&*handle, page, 100 << 10) {
            Ok(shown) => {
                let state = filesystem.history.newest();
                ensure!(
                    state.is(&shown),
                    "{} shows something else than was written: {}",
                    filesystem.name,
                    state.tree.without_unnamed().difference(&shown)
                );
                for object in filesystem.held.clone() {
                    let Ok(file) = state.tree.file(object) else {
                        continue;
                    };
                    let mut buffer = vec![0; (file.size as usize).min(1 << 20)];
                    match handle.read(object, 0, &mut buffer) {
                        Ok(read) => ensure!(
                            buffer[..read] == file.read(0, buffer.len()),
                            "an open file without a name reads as something else"
                        ),
                        Err(error) => return self.after_error("reading an unnamed file", &error),
                    }
                }
                Ok(())
            }
            Err(error) => self.after_error("reading everything", &error),
        }
    }

    /// The full walk: every record of the datasets, and every count of the store against what these records refer to.
    pub(crate) fn audit(&mut self) -> Check {
        let engine = self.engine()?;
        let walked = terrace_dataset::check(engine.store()).and_then(|walk| {
            let expected = |tell: &mut dyn FnMut(ChunkId, i64)| {
                walk.references.iter().for_each(|(id, blocks)| tell(*id, *blocks));
                Ok(())
            };
            let audit = engine.chunks().audit(Some(&expected))?;
            Ok((walk, audit))
        });
        let (walk, audit) = match walked {
            Ok(found) => found,
            Err(error) => return self.excuse("audit", &error.to_string()),
        };
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        let lost = walk.lost_bodies.iter();
        let lost = lost.map(|(dataset, body)| format!("body {body} of dataset {dataset} belongs to no file"));
        let wrong: Vec<String> = audit
            .discrepancies
            .into_iter()
            .chain(walk.problems)
            .chain(lost)
            .collect();
        ensure!(
            wrong.is_empty(),
            "the full walk found {} things wrong: {}",
            wrong.len(),
            wrong.iter().take(5).cloned().collect::<Vec<_>>().join("; ")
        );
        Ok(())
    }

    /// Everything against the models, after an opening.
    pub(crate) fn check_all(&mut self) -> Check {
        let engine = self.engine()?;
        self.settle_snapshots()?;
        self.check_names()?;
        for index in 0..self.filesystems.len() {
            let names: Vec<String> = self.filesystems[index].snapshots.keys().cloned().collect();
            let filesystem = &mut self.filesystems[index];
            let name = filesystem.name.clone();
            let handle = engine
                .datasets()
                .filesystem(&name)
                .map_err(|error| Violation(format!("{name} does not open: {error}")))?;
            let shown: TreeModel = dump(&*handle, 13, 64 << 10)
                .map_err(|error| Violation(format!("{name} cannot be read after opening: {error}")))?;
            filesystem.handle = Some(handle);
            let undone = filesystem
                .history
                .recovered(
                    |state| state.is(&shown) && state.tree.other_taken(&shown).is_none(),
                    |state| {
                        let taken = state.tree.other_taken(&shown).filter(|_| state.is(&shown));
                        taken.unwrap_or_else(|| state.tree.without_unnamed().difference(&shown))
                    },
                )
                .map_err(|violation| Violation(format!("{name}: {violation}")))?;
            trace!(self.trace, "{name}: {undone} operations undone");
            let exact = shown.clone();
            filesystem.history.amend(|state| {
                *state = TreeState {
                    tree: exact.with_promises_of(&state.tree),
                    exact: true,
                }
            });
            // What an opening shows is durable: it does not go back behind that.
            filesystem.history.synced();
            for short in names {
                if self.filesystems[index].snapshots.contains_key(&short) && self.random.chance(1, 2) {
                    self.check_snapshot(index, &short)?;
                }
            }
            self.recover_retained(index)?;
        }
        for volume in &mut self.volumes {
            let fail = |error: &dyn std::fmt::Display| Violation(format!("{}: {error}", volume.name));
            let handle = engine
                .datasets()
                .volume(&volume.name)
                .map_err(|error| fail(&error))?;
            let size = handle.size_bytes();
            let mut data = BlocksModel::sized(size);
            let mut buffer = vec![0; 256 << 10];
            let mut at = 0;
            while at < size {
                let take = buffer.len().min((size - at) as usize);
                handle
                    .read(at, &mut buffer[..take])
                    .map_err(|error| fail(&error))?;
                data.write(at, &buffer[..take]);
                at += take as u64;
            }
            let undone = volume
                .history
                .recovered(|state| *state == data, |state| format!("{state:?}, not {data:?}"))
                .map_err(|violation| fail(&violation))?;
            trace!(self.trace, "{}: {undone} operations undone", volume.name);
            volume.history.synced();
            volume.handle = Some(handle);
        }
        self.check_volume_snapshots()?;
        self.check_guests()?;
        self.check_volume_sizes()?;
        self.check_sizes()?;
        self.check_settings()?;
        self.check_tables()?;
        self.audit()
    }
}
