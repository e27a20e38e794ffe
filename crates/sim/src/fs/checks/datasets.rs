//! What filesystems and volumes show, against their models: live, and after an opening.
//!
//! What must hold: each dataset is, wholly, in one of the states that it was in since its last fsync, and what an opening
//! showed is not gone back behind.

use terrace_dataset::{Kind, Tree};

use super::{
    dump::dump,
    invariant::{Compared, Invariant, Trouble},
};
use crate::{
    ensure,
    fs::{
        models::{BlocksModel, Models, TreeModel, TreeState},
        rig::Rig,
    },
    trace,
    violation::Violation,
};

/// The live state of one filesystem, which chance picks, against its model.
pub(crate) struct FilesystemShown;

impl Invariant for FilesystemShown {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let index = rig.random.index(models.filesystems.len());
        let filesystem = &models.filesystems[index];
        let Some(handle) = rig.handles.filesystem(index) else {
            return Ok(());
        };
        let page = rig.random.between(1, 20) as usize;
        let shown = dump(&*handle, page, 100 << 10);
        let shown = shown.map_err(|error| Trouble::failed("reading everything", error))?;
        let state = filesystem.history.newest();
        ensure!(
            state.is(&shown),
            "{} shows something else than was written: {}",
            filesystem.name,
            state.tree.without_unnamed().difference(&shown)
        );
        for object in rig.handles.held(index) {
            let Ok(file) = state.tree.file(*object) else {
                continue;
            };
            let mut buffer = vec![0; (file.size as usize).min(1 << 20)];
            match handle.read(*object, 0, &mut buffer) {
                Ok(read) => ensure!(
                    buffer[..read] == file.read(0, buffer.len()),
                    "an open file without a name reads as something else"
                ),
                Err(error) => return Err(Trouble::failed("reading an unnamed file", error)),
            }
        }
        Ok(())
    }
}

/// After an opening a filesystem is opened, and is in one of its states, which is durable then.
pub(crate) struct FilesystemFound(pub(crate) usize);

impl Invariant for FilesystemFound {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let filesystem = &mut models.filesystems[self.0];
        let name = filesystem.name.clone();
        let handle = rig.engine()?.datasets().filesystem(&name);
        let handle = handle.map_err(|error| Violation(format!("{name} does not open: {error}")))?;
        let shown: TreeModel = dump(&*handle, 13, 64 << 10)
            .map_err(|error| Violation(format!("{name} cannot be read after opening: {error}")))?;
        rig.handles.open_filesystem(self.0, handle);
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
        trace!(rig.trace, "{name}: {undone} operations undone");
        filesystem.history.amend(|state| {
            *state = TreeState {
                tree: shown.with_promises_of(&state.tree),
                exact: true,
            }
        });
        // What an opening shows is durable: it does not go back behind that.
        filesystem.history.synced();
        Ok(())
    }
}

/// The same of all volumes.
pub(crate) struct VolumesFound;

impl Invariant for VolumesFound {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        for (index, volume) in models.volumes.iter_mut().enumerate() {
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
            trace!(rig.trace, "{}: {undone} operations undone", volume.name);
            volume.history.synced();
            rig.handles.open_volume(index, handle);
        }
        Ok(())
    }
}

/// The size that a volume has is the one that is told of it.
pub(crate) struct VolumeSizes;

impl Invariant for VolumeSizes {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let engine = rig.engine()?;
        for (index, handle) in rig.handles.volumes() {
            let name = &models.volumes[index].name;
            let info = engine.datasets().info(name);
            let info = info.map_err(|error| Violation(format!("{name}: {error}")))?;
            let size_bytes = handle.size_bytes();
            ensure!(
                info.kind == Kind::Volume { size_bytes },
                "{name} has {size_bytes} bytes, and is listed as {:?}",
                info.kind
            );
        }
        Ok(())
    }
}
