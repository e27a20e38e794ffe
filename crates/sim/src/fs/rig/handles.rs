//! `Handles`: the datasets that clients have open, and the objects that they hold open.
//!
//! Invariant: they end with the engine that they belong to.

use std::sync::Arc;

use terrace_dataset::{Filesystem, Volume};

/// See the module.
#[derive(Default)]
pub(crate) struct Handles {
    filesystems: Vec<OpenFilesystem>,
    volumes: Vec<Option<Arc<Volume>>>,
}

#[derive(Default)]
struct OpenFilesystem {
    handle: Option<Arc<Filesystem>>,
    /// Objects held open, once per entry.
    held: Vec<u64>,
}

impl Handles {
    pub(crate) fn filesystem(&self, index: usize) -> Option<Arc<Filesystem>> {
        self.filesystems.get(index)?.handle.clone()
    }

    pub(crate) fn volume(&self, index: usize) -> Option<Arc<Volume>> {
        self.volumes.get(index)?.clone()
    }

    /// All filesystems that are open, by their places among the models.
    pub(crate) fn filesystems(&self) -> impl Iterator<Item = (usize, &Arc<Filesystem>)> {
        let all = self.filesystems.iter().enumerate();
        all.filter_map(|(index, one)| Some((index, one.handle.as_ref()?)))
    }

    /// All volumes that are open.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (usize, &Arc<Volume>)> {
        let all = self.volumes.iter().enumerate();
        all.filter_map(|(index, one)| Some((index, one.as_ref()?)))
    }

    pub(crate) fn open_filesystem(&mut self, index: usize, handle: Arc<Filesystem>) {
        if self.filesystems.len() <= index {
            self.filesystems.resize_with(index + 1, OpenFilesystem::default);
        }
        self.filesystems[index].handle = Some(handle);
    }

    pub(crate) fn open_volume(&mut self, index: usize, handle: Arc<Volume>) {
        if self.volumes.len() <= index {
            self.volumes.resize(index + 1, None);
        }
        self.volumes[index] = Some(handle);
    }

    pub(crate) fn close_filesystem(&mut self, index: usize) {
        self.filesystems[index].handle = None;
    }

    pub(crate) fn close_volume(&mut self, index: usize) {
        self.volumes[index] = None;
    }

    /// The engine is gone.
    pub(crate) fn close_all(&mut self) {
        for filesystem in &mut self.filesystems {
            filesystem.handle = None;
            filesystem.held.clear();
        }
        self.volumes.iter_mut().for_each(|volume| *volume = None);
    }

    /// Objects of a filesystem that are held open.
    pub(crate) fn held(&self, index: usize) -> &[u64] {
        self.filesystems.get(index).map_or(&[], |one| &one.held)
    }

    pub(crate) fn hold(&mut self, index: usize, object: u64) {
        self.filesystems[index].held.push(object);
    }

    /// The object that was held last is not any more.
    pub(crate) fn release_last(&mut self, index: usize) -> Option<u64> {
        self.filesystems.get_mut(index)?.held.pop()
    }
}
