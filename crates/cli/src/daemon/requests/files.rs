//! Files without a mount: `ls`, `cat`, `put`, `get`.
//!
//! Invariants: `put` returns only when everything is durable; a file that is replaced is either the old or the new
//! one after a crash; a directory of any size is listed in pieces; a mount of the dataset, which relies on what it
//! knows, is told of every change.

use std::sync::Arc;

use serde_json::{Value, json};
use terrace_control::{Exchange, Failure, Message};
use terrace_dataset::{
    Attributes, Context, FileKind, Filesystem, FsError, Groups, RenameMode, SetAttributes, SetTime, Strip,
    Time, Tree,
};
use terrace_fuse::Session;

use crate::{
    daemon::{
        mounting::Mounts,
        open_pool::OpenPool,
        support::{Parameters, file_failure, find, walk},
    },
    machine::{Copied, TreeEntry, from_wire, to_wire, wire_parts},
};

const READ_BYTES: usize = 1 << 20;
const PAGE_ENTRIES: usize = 512;

pub(crate) fn ls(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("path")?;
    let recursive = parameters.flag("recursive")?;
    let place = find(pool.engine(), &name)?;
    let tree = &*place.tree;
    let fail = |error: &FsError| file_failure("list", &name, error);
    let top = walk(tree, &place.parts, true).map_err(|error| fail(&error))?;
    if top.kind != FileKind::Directory {
        let own = place.parts.last().cloned().unwrap_or_default();
        exchange.item(&entry_of(tree, &own, &top).map_err(|error| fail(&error))?)?;
        return Ok(Value::Null);
    }
    let mut stack = vec![(top.object, Vec::new())];
    while let Some((directory, prefix)) = stack.pop() {
        let mut below = Vec::new();
        for_each_entry(tree, directory, &mut |name, attributes| {
            let path = joined(&prefix, name);
            exchange.item(&entry_of(tree, &path, attributes).map_err(|error| fail(&error))?)?;
            if recursive && attributes.kind == FileKind::Directory {
                below.push((attributes.object, path));
            }
            Ok(())
        })
        .map_err(|error| error.into_failure(&fail))?;
        stack.extend(below.into_iter().rev());
    }
    Ok(Value::Null)
}

pub(crate) fn cat(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("path")?;
    let place = find(pool.engine(), &name)?;
    let fail = |error: &FsError| file_failure("read", &name, error);
    let file = walk(&*place.tree, &place.parts, true).map_err(|error| fail(&error))?;
    let bytes = send_file(&*place.tree, &file, exchange, &fail)?;
    Ok(json!({ "bytes": bytes }))
}

pub(crate) fn get_tree(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("path")?;
    let place = find(pool.engine(), &name)?;
    let tree = &*place.tree;
    let fail = |error: &FsError| file_failure("read", &name, error);
    let top = walk(tree, &place.parts, true).map_err(|error| fail(&error))?;
    let mut copied = Copied::default();
    let mut stack = vec![(Vec::new(), top)];
    while let Some((path, attributes)) = stack.pop() {
        let entry = entry_of(tree, &path, &attributes).map_err(|error| fail(&error))?;
        exchange.item(&entry)?;
        match attributes.kind {
            FileKind::File => {
                copied.bytes += send_file(tree, &attributes, exchange, &fail)?;
                copied.files += 1;
            }
            FileKind::Directory => {
                copied.others += 1;
                let mut below = Vec::new();
                for_each_entry(tree, attributes.object, &mut |name, attributes| {
                    below.push((joined(&path, name), *attributes));
                    Ok(())
                })
                .map_err(|error| error.into_failure(&fail))?;
                stack.extend(below.into_iter().rev());
            }
            _ => copied.others += 1,
        }
    }
    crate::daemon::support::answers::encode(&copied)
}

/// The client sends entries, each file's content behind it, and a result when it has sent all.
pub(crate) fn put_tree(
    pool: &OpenPool,
    mounts: &Mounts,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let outcome = receive_tree(pool, mounts, parameters, exchange);
    if outcome.is_err() {
        exchange.drain();
    }
    outcome
}

fn receive_tree(
    pool: &OpenPool,
    mounts: &Mounts,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("target")?;
    let own_name = parameters
        .optional_text("name")?
        .and_then(|name| from_wire(&name));
    let place = find(pool.engine(), &name)?;
    let fail = |error: &FsError| file_failure("write", &name, error);
    let Some(filesystem) = place.live else {
        return Err(fail(&FsError::ReadOnly));
    };
    if filesystem_is_read_only(pool.engine(), &place.dataset) {
        return Err(fail(&FsError::ReadOnly));
    }
    // Into a directory that exists, under the source's own name; else under the last part of the target.
    let (directory, top) = match walk(&*filesystem, &place.parts, true) {
        Ok(found) if found.kind == FileKind::Directory && own_name.is_some() => {
            (found.object, own_name.unwrap_or_default())
        }
        Ok(found) if found.kind == FileKind::Directory => return Err(fail(&FsError::IsDirectory)),
        // Under one name each of several sources would take the place of the one before.
        Ok(_) | Err(FsError::NotFound) if parameters.flag("into_directory")? => {
            return Err(Failure::new(
                format!("write '{name}'"),
                "a directory is meant, and there is none of that name",
                "name one that 'terrace ls' shows, or the new file of a single source",
            ));
        }
        Ok(_) | Err(FsError::NotFound) => {
            let Some((last, above)) = place.parts.split_last() else {
                return Err(fail(&FsError::IsDirectory));
            };
            let above = walk(&*filesystem, above, true).map_err(|error| fail(&error))?;
            (above.object, last.clone())
        }
        Err(error) => return Err(fail(&error)),
    };
    let mut writer = Writer {
        filesystem: &filesystem,
        mounted: mounts.live_session(&place.dataset),
        directory,
        top,
        copied: Copied::default(),
        directories: Vec::new(),
    };
    loop {
        match exchange.receive()? {
            Message::Item(item) => {
                let entry: TreeEntry = crate::client::decode(item)?;
                writer
                    .write(&entry, exchange)
                    .map_err(|error| error.into_failure(&fail))?;
            }
            Message::Result(_) => break,
            _ => {
                return Err(Failure::new(
                    format!("write '{name}'"),
                    "the client broke the protocol",
                    "",
                ));
            }
        }
    }
    for (object, entry) in std::mem::take(&mut writer.directories).into_iter().rev() {
        settle(&filesystem, object, &entry).map_err(|error| fail(&error))?;
        writer.tell_attributes(object);
    }
    filesystem.sync().map_err(|error| fail(&error))?;
    crate::daemon::support::answers::encode(&writer.copied)
}

fn filesystem_is_read_only(engine: &terrace_engine::Engine, dataset: &str) -> bool {
    engine
        .datasets()
        .state(dataset)
        .is_ok_and(|state| state.settings().readonly)
}

/// Either kind of error of a copy.
enum CopyError {
    File(FsError),
    Failure(Failure),
}

impl CopyError {
    fn into_failure(self, name_it: &dyn Fn(&FsError) -> Failure) -> Failure {
        match self {
            Self::File(error) => name_it(&error),
            Self::Failure(failure) => failure,
        }
    }
}

impl From<FsError> for CopyError {
    fn from(error: FsError) -> Self {
        Self::File(error)
    }
}

impl From<Failure> for CopyError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// User 0, for changes that leave what a mount still knows for it to let go of.
const ROOT_USER: Context = Context {
    trusted: true,
    uid: 0,
    gid: 0,
    pid: 0,
    umask: 0,
    groups: Groups::None,
    strip: Strip::ByUser,
};

struct Writer<'a> {
    filesystem: &'a Filesystem,
    /// The mount of it, if there is one: it must be told.
    mounted: Option<Arc<Session>>,
    directory: u64,
    top: Vec<u8>,
    copied: Copied,
    directories: Vec<(u64, TreeEntry)>,
}

impl Writer<'_> {
    /// The attributes of an object changed.
    fn tell_attributes(&self, object: u64) {
        if let Some(session) = &self.mounted
            && let Err(error) = session.invalidate_object(object, false)
        {
            tracing::warn!("tell '{}' of a change: {error}", session.directory().display());
        }
    }

    /// What a name is changed; `gone` is what it was, if that has another name less.
    fn tell_name(&self, directory: u64, name: &[u8], gone: Option<Attributes>) {
        if let Some(session) = &self.mounted
            && let Err(error) = session.invalidate_entry(directory, name)
        {
            tracing::warn!("tell '{}' of a change: {error}", session.directory().display());
        }
        self.tell_attributes(directory);
        if let Some(gone) = gone {
            self.tell_attributes(gone.object);
            // Who has it open reads on.
            let kept = || {
                self.mounted
                    .as_ref()
                    .is_some_and(|session| session.keep(gone.object))
            };
            if gone.links == 0 && !kept() {
                self.filesystem.release_object(gone.object);
            }
        }
    }

    fn write(&mut self, entry: &TreeEntry, exchange: &mut Exchange) -> Result<(), CopyError> {
        let context = Context::root();
        let filesystem = self.filesystem;
        let parts = wire_parts(&entry.path).ok_or(FsError::Invalid)?;
        let (directory, name) = match parts.split_last() {
            None => (self.directory, self.top.clone()),
            Some((last, above)) => {
                let mut directory = filesystem.lookup(&context, self.directory, &self.top)?;
                for part in above {
                    directory = filesystem.lookup(&context, directory.object, part)?;
                }
                (directory.object, last.clone())
            }
        };
        let existing = match filesystem.lookup(&context, directory, &name) {
            Ok(found) => Some(found),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        match entry.kind.as_str() {
            "directory" => {
                let made = match existing {
                    Some(found) if found.kind == FileKind::Directory => found,
                    Some(_) => return Err(FsError::NotDirectory.into()),
                    None => filesystem.make_directory(&context, directory, &name, 0o700)?,
                };
                if existing.is_none() {
                    self.tell_name(directory, &name, None);
                }
                self.copied.others += 1;
                self.directories.push((made.object, entry.clone()));
            }
            "symlink" => {
                let target = from_wire(&entry.target).ok_or(FsError::Invalid)?;
                if let Some(found) = existing {
                    if found.kind == FileKind::Directory {
                        return Err(FsError::IsDirectory.into());
                    }
                    let gone = filesystem.unlink(&ROOT_USER, directory, &name)?;
                    self.tell_name(directory, &name, Some(gone));
                }
                let made = filesystem.symbolic_link(&context, directory, &name, &target)?;
                let change = SetAttributes {
                    uid: Some(entry.uid),
                    gid: Some(entry.gid),
                    ..SetAttributes::default()
                };
                filesystem.set_attributes(&context, made.object, &change)?;
                self.tell_name(directory, &name, None);
                self.copied.others += 1;
            }
            "file" => {
                if existing.is_some_and(|found| found.kind == FileKind::Directory) {
                    return Err(FsError::IsDirectory.into());
                }
                // Beside the old one and renamed over it when complete.
                let fresh = if existing.is_some() {
                    fresh_name(&name)
                } else {
                    name.clone()
                };
                match filesystem.unlink(&ROOT_USER, directory, &fresh) {
                    Ok(gone) => self.tell_name(directory, &fresh, Some(gone)),
                    Err(FsError::NotFound) => {}
                    Err(error) => return Err(error.into()),
                }
                let made = filesystem.create(&context, directory, &fresh, FileKind::File, 0o600, 0)?;
                let outcome = self
                    .content(made.object, exchange)
                    .and_then(|()| Ok(settle(filesystem, made.object, entry)?));
                if let Err(error) = outcome {
                    if let Ok(gone) = filesystem.unlink(&ROOT_USER, directory, &fresh) {
                        self.tell_name(directory, &fresh, Some(gone));
                    }
                    return Err(error);
                }
                let mut gone = None;
                if fresh != name {
                    let mode = RenameMode::Replace;
                    gone = filesystem.rename(&ROOT_USER, directory, &fresh, directory, &name, mode)?;
                    self.tell_name(directory, &fresh, None);
                }
                self.tell_name(directory, &name, gone);
                self.copied.files += 1;
            }
            _ => self.copied.skipped += 1,
        }
        Ok(())
    }

    fn content(&mut self, object: u64, exchange: &mut Exchange) -> Result<(), CopyError> {
        let context = Context::root();
        let mut offset = 0;
        while let Some(frame) = exchange.receive_content()? {
            let mut rest = &frame[..];
            while !rest.is_empty() {
                let written = self.filesystem.write(&context, object, offset, rest, false)?;
                offset += written as u64;
                rest = &rest[written..];
            }
        }
        self.copied.bytes += offset;
        Ok(())
    }
}

fn fresh_name(name: &[u8]) -> Vec<u8> {
    let mut fresh = b".terrace-put-".to_vec();
    fresh.extend_from_slice(&name[..name.len().min(200)]);
    fresh
}

/// Owner, mode and time as they were where it came from.
fn settle(filesystem: &Filesystem, object: u64, entry: &TreeEntry) -> Result<(), FsError> {
    let context = Context::root();
    let owner = SetAttributes {
        uid: Some(entry.uid),
        gid: Some(entry.gid),
        ..SetAttributes::default()
    };
    filesystem.set_attributes(&context, object, &owner)?;
    let modified = Time {
        seconds: entry.modified_seconds,
        nanos: entry.modified_nanoseconds.min(999_999_999),
    };
    let rest = SetAttributes {
        mode: Some(entry.mode & 0o7777),
        modified: Some(SetTime::To(modified)),
        ..SetAttributes::default()
    };
    filesystem.set_attributes(&context, object, &rest).map(drop)
}

/// Called with name and attributes of each entry.
type Visit<'a> = dyn FnMut(&[u8], &Attributes) -> Result<(), Failure> + 'a;

fn for_each_entry(tree: &dyn Tree, directory: u64, visit: &mut Visit<'_>) -> Result<(), CopyError> {
    let mut from = 0;
    loop {
        let page = tree.read_directory(directory, from, PAGE_ENTRIES)?;
        let Some(last) = page.last() else { return Ok(()) };
        from = last.cookie;
        let mut found = Vec::with_capacity(page.len());
        for entry in page {
            match tree.attributes(entry.object) {
                Ok(attributes) => found.push((entry.name, attributes)),
                // Removed since the directory was read.
                Err(FsError::NotFound | FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (name, attributes) in found {
            visit(&name, &attributes)?;
        }
    }
}

fn send_file(
    tree: &dyn Tree,
    file: &Attributes,
    exchange: &mut Exchange,
    fail: &dyn Fn(&FsError) -> Failure,
) -> Result<u64, Failure> {
    match file.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(fail(&FsError::IsDirectory)),
        _ => return Err(fail(&FsError::Invalid)),
    }
    let mut buffer = vec![0; READ_BYTES.min(usize::try_from(file.size).unwrap_or(READ_BYTES).max(4096))];
    let mut offset = 0;
    loop {
        let read = tree
            .read(file.object, offset, &mut buffer)
            .map_err(|error| fail(&error))?;
        if read == 0 {
            break;
        }
        exchange.send_content(&buffer[..read])?;
        offset += read as u64;
    }
    exchange.end_content()?;
    Ok(offset)
}

fn joined(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    if prefix.is_empty() {
        name.to_vec()
    } else {
        [prefix, b"/", name].concat()
    }
}

fn entry_of(tree: &dyn Tree, path: &[u8], attributes: &Attributes) -> Result<TreeEntry, FsError> {
    let target = if attributes.kind == FileKind::SymbolicLink {
        to_wire(&tree.read_link(attributes.object)?)
    } else {
        String::new()
    };
    Ok(TreeEntry {
        path: to_wire(path),
        kind: kind_name(attributes.kind).into(),
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        modified_seconds: attributes.modified.seconds,
        modified_nanoseconds: attributes.modified.nanos,
        target,
    })
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::SymbolicLink => "symlink",
        FileKind::Pipe => "fifo",
        FileKind::Socket => "socket",
        _ => "device",
    }
}
