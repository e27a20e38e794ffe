//! `Subject`: what a command about placement is about: a file, a directory, a volume, or a whole dataset.
//!
//! Invariants: only what is live has a place that can be changed, so a past state is refused; directories are walked
//! piece by piece, whatever their size.

use std::{collections::HashSet, rc::Rc, sync::Arc};

use terrace_control::Failure;
use terrace_dataset::{FileKind, Filesystem, FsError, ROOT, Tree};
use terrace_engine::Engine;

use super::{
    answers::failed,
    paths::{file_failure, locate, walk},
};

/// Entries of a directory taken at once.
const PAGE: usize = 512;

/// Directories above one another that are named.
const DEPTH_MAX: usize = 4096;

/// See the module.
pub struct Subject {
    /// As the user wrote it.
    pub name: String,
    /// The dataset, and its number.
    pub dataset: String,
    pub number: u32,
    /// Where the walk begins: the root of a filesystem, the content of a volume.
    pub object: u64,
    pub kind: FileKind,
    /// The whole dataset is meant.
    pub is_dataset: bool,
    /// It is a file with other names, which may lie anywhere.
    pub has_other_names: bool,
    size_bytes: u64,
    filesystem: Option<Arc<Filesystem>>,
    /// The names that lead to it from the root.
    parts: Vec<Vec<u8>>,
}

/// A file in a subject, or the volume that it is.
pub struct Content {
    /// Below the subject; empty for the subject itself.
    pub path: Vec<u8>,
    pub object: u64,
    pub size_bytes: u64,
    /// It has other names, which may lie anywhere.
    pub has_other_names: bool,
    /// The directories between the subject and it, the nearest last.
    pub directories: Rc<[u64]>,
}

impl Subject {
    /// What a name means.
    pub fn find(engine: &Engine, name: &str) -> Result<Self, Failure> {
        let what = format!("find '{name}'");
        let (dataset, at, parts) = locate(engine, name)?;
        if at.is_some() {
            return Err(Failure::new(
                what,
                "it is a past state",
                "ask for the live one: its unchanged parts lie where those of the snapshot lie",
            ));
        }
        let datasets = engine.datasets();
        let state = datasets.state(&dataset).map_err(|error| failed(&what, &error))?;
        let mut subject = Self {
            name: name.to_owned(),
            number: state.number(),
            object: ROOT,
            kind: FileKind::Volume,
            is_dataset: parts.is_empty(),
            has_other_names: false,
            size_bytes: 0,
            filesystem: None,
            parts: Vec::new(),
            dataset,
        };
        if state.kind().is_volume() {
            if !parts.is_empty() {
                return Err(Failure::new(
                    what,
                    format!("'{}' is a volume and has no files", subject.dataset),
                    "name the volume alone",
                ));
            }
            let volume = datasets
                .volume(&subject.dataset)
                .map_err(|error| failed(&what, &error))?;
            subject.size_bytes = volume.size_bytes();
            return Ok(subject);
        }
        let filesystem = datasets
            .filesystem(&subject.dataset)
            .map_err(|error| failed(&what, &error))?;
        let top = walk(&*filesystem, &parts, true).map_err(|error| file_failure("find", name, &error))?;
        (subject.object, subject.kind, subject.size_bytes) = (top.object, top.kind, top.size);
        subject.has_other_names = top.kind == FileKind::File && top.links > 1;
        subject.filesystem = Some(filesystem);
        subject.parts = parts;
        Ok(subject)
    }

    /// The object that the mover is told: 0 is all of the dataset.
    pub fn for_mover(&self) -> u64 {
        if self.is_dataset { 0 } else { self.object }
    }

    /// The directories that it lies in, the nearest first: names and objects. A name that leads through a symbolic link is
    /// followed to where that leads.
    pub fn directories_above(&self) -> Vec<(String, u64)> {
        let Some(filesystem) = &self.filesystem else {
            return Vec::new();
        };
        let mut above = Vec::new();
        for count in (0..self.parts.len()).rev() {
            if let Ok(found) = walk(&**filesystem, &self.parts[..count], true)
                && found.kind == FileKind::Directory
            {
                let names = self.parts[..count]
                    .iter()
                    .map(|part| String::from_utf8_lossy(part).into_owned());
                let path: Vec<String> = std::iter::once(self.dataset.clone()).chain(names).collect();
                above.push((path.join("/"), found.object));
            }
        }
        above
    }

    /// The path of a directory of its dataset. Of each directory above it the entries are looked through.
    pub fn path_of_directory(&self, directory: u64) -> Option<String> {
        let filesystem = self.filesystem.as_ref()?;
        let (mut at, mut names) = (directory, Vec::new());
        while at != ROOT {
            let above = filesystem.parent(at).ok()?;
            let mut from = 0;
            let name = loop {
                let page = filesystem.read_directory(above, from, PAGE).ok()?;
                from = page.last()?.cookie;
                if let Some(entry) = page.iter().find(|entry| entry.object == at) {
                    break String::from_utf8_lossy(&entry.name).into_owned();
                }
            };
            if names.len() > DEPTH_MAX {
                return None;
            }
            names.push(name);
            at = above;
        }
        names.push(self.dataset.clone());
        names.reverse();
        Some(names.join("/"))
    }

    /// Calls `visit` for every file in it, in the order of the directories, until it answers `false`. What goes away
    /// meanwhile is passed over.
    pub fn contents(&self, mut visit: impl FnMut(Content) -> Result<bool, Failure>) -> Result<(), Failure> {
        let Some(filesystem) = &self.filesystem else {
            visit(Content {
                path: Vec::new(),
                object: self.object,
                size_bytes: self.size_bytes,
                has_other_names: false,
                directories: Rc::default(),
            })?;
            return Ok(());
        };
        let fail = |error: &FsError| file_failure("look at", &self.name, error);
        let mut stack = vec![(Vec::new(), self.object, Rc::default())];
        // A file with several names is one file.
        let mut seen = HashSet::new();
        while let Some((path, object, directories)) = stack.pop() {
            let found = match filesystem.attributes(object) {
                Ok(found) => found,
                Err(FsError::NotFound | FsError::Stale) => continue,
                Err(error) => return Err(fail(&error)),
            };
            if found.kind == FileKind::File && found.links > 1 && !seen.insert(object) {
                continue;
            }
            if found.kind == FileKind::File {
                let content = Content {
                    path,
                    object,
                    size_bytes: found.size,
                    has_other_names: found.links > 1,
                    directories,
                };
                if !visit(content)? {
                    return Ok(());
                }
                continue;
            }
            if found.kind != FileKind::Directory {
                continue;
            }
            let within: Rc<[u64]> = match object == self.object {
                true => directories,
                false => directories.iter().copied().chain([object]).collect(),
            };
            let (mut from, first) = (0, stack.len());
            loop {
                let page = filesystem
                    .read_directory(object, from, PAGE)
                    .map_err(|error| fail(&error))?;
                let Some(last) = page.last() else { break };
                from = last.cookie;
                stack.extend(page.iter().map(|entry| {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(&entry.name);
                    (below, entry.object, within.clone())
                }));
            }
            // The first name is looked at first.
            stack[first..].reverse();
        }
        Ok(())
    }
}
