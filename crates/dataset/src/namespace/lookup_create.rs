//! Names: lookup, listing, and making objects.
//!
//! Invariants: a directory's inode lock orders the changes of its names; what an operation must know from the
//! records is read before the gate is entered; a name is visible only after its object is in RAM. The size of a
//! directory's inode is the number of its names, its links are 2 and one for each directory in it.

use crate::{
    live::LiveDataset,
    objects::{Found, HAS_DEFAULT_ACL, NameKey, Object, State, Target, name_bytes, put_xattr},
    posix::{
        ACCESS_EXECUTE, ACCESS_NAME, ACCESS_WRITE, Acl, Attributes, Context, DEFAULT_NAME, DirectoryEntry,
        FsError, NAME_BYTES_MAX, file_flags, permission,
    },
    records::{EntryRecord, FileKind, InodeRecord, Old, TARGET_BYTES_MAX, damaged, keys, split_value},
};
use std::sync::Arc;

/// Directories up to this many names are read as a whole when a name is not in RAM.
const SMALL_DIRECTORY: u64 = 256;
/// Records of one scan.
const SCAN: usize = 4096;

/// Whether a name may be made.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name == b"." || name == b".." {
        return Err(FsError::Exists);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        Err(FsError::Invalid)
    } else {
        Ok(())
    }
}

/// What a new object is, besides its place.
pub(crate) struct NewObject<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) device: u32,
    pub(crate) target: &'a [u8],
}

fn decode_entry(value: &[u8]) -> Result<(u64, Target), FsError> {
    let decoded = split_value(value)
        .and_then(|(birth, payload)| EntryRecord::decode(payload).map(|entry| (birth, entry)))
        .map_err(|cause| damaged("a directory entry", &cause))?;
    Ok((
        decoded.0,
        Target {
            object: decoded.1.object,
            kind: decoded.1.kind,
        },
    ))
}

impl LiveDataset {
    /// The directory; `NotDirectory` if the object is something else.
    pub(crate) fn directory(&self, number: u64) -> Result<Arc<Object>, FsError> {
        let object = self.object(number)?;
        if object.kind == FileKind::Directory {
            Ok(object)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    /// What a name is, from RAM or from the records.
    pub(crate) fn find(&self, directory: &Arc<Object>, name: &[u8]) -> Result<Option<Target>, FsError> {
        let hash = keys::entry_hash(name);
        let (version, small) = {
            let state = directory.state.lock();
            let Some(entries) = &state.entries else {
                return Err(FsError::NotDirectory);
            };
            match entries.find(hash, name) {
                Found::Target(target) => return Ok(Some(target)),
                Found::Absent => return Ok(None),
                Found::Unknown => (entries.version, state.inode.size <= SMALL_DIRECTORY),
            }
        };
        if small && self.read_all(directory)? {
            let state = directory.state.lock();
            if let Some(entries) = &state.entries {
                match entries.find(hash, name) {
                    Found::Target(target) => return Ok(Some(target)),
                    Found::Absent => return Ok(None),
                    Found::Unknown => {}
                }
            }
        }
        let key = keys::entry(self.dataset.number(), directory.number, name);
        let Some(value) = self.dataset.store().get(&key)? else {
            return Ok(None);
        };
        let (birth, target) = decode_entry(&value)?;
        let mut state = directory.state.lock();
        if let Some(entries) = &mut state.entries
            && entries.version == version
        {
            entries.cache(
                &NameKey {
                    hash,
                    name: name.into(),
                },
                target,
                birth,
            );
            drop(state);
            self.environment_caches().relieve();
        }
        Ok(Some(target))
    }

    /// Brings all names of a directory into RAM, if there is room. Whether they are.
    fn read_all(&self, directory: &Arc<Object>) -> Result<bool, FsError> {
        let version = {
            let state = directory.state.lock();
            let Some(entries) = &state.entries else {
                return Err(FsError::NotDirectory);
            };
            if entries.complete {
                return Ok(true);
            }
            if self.names.count.bytes() + state.inode.size * name_bytes(0) > self.names_limit() {
                return Ok(false);
            }
            entries.version
        };
        let mut from = keys::entry_from(self.dataset.number(), directory.number, 0);
        let to = keys::entry_end(self.dataset.number(), directory.number);
        let mut read = Vec::new();
        loop {
            let records = self.dataset.store().scan(&from, &to, SCAN)?;
            for (key, value) in &records {
                let (hash, name) = keys::parse_entry(key)?;
                let (birth, target) = decode_entry(value)?;
                read.push((
                    NameKey {
                        hash,
                        name: name.into(),
                    },
                    target,
                    birth,
                ));
            }
            if read.len() as u64 * name_bytes(0) > self.names_limit() {
                return Ok(false);
            }
            match records.last() {
                Some((key, _)) if records.len() == SCAN => {
                    from = key.to_vec();
                    from.push(0);
                }
                _ => break,
            }
        }
        let mut state = directory.state.lock();
        let Some(entries) = &mut state.entries else {
            return Ok(false);
        };
        if entries.version != version {
            return Ok(entries.complete);
        }
        for (key, target, birth) in read {
            entries.cache(&key, target, birth);
        }
        entries.complete = true;
        drop(state);
        self.environment_caches().relieve();
        Ok(true)
    }

    /// Lookup, with search permission.
    pub(crate) fn look_up(
        &self,
        context: &Context,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        let directory = self.directory(directory)?;
        self.check(context, &directory, ACCESS_EXECUTE)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let number = match name {
            b"." => directory.number,
            b".." => self.parent_of(&directory),
            _ => {
                let number = self.find(&directory, name)?.ok_or(FsError::NotFound)?.object;
                self.note_found(number, directory.number);
                number
            }
        };
        self.attributes_of(number).map_err(|error| {
            if error == FsError::Stale {
                FsError::NotFound
            } else {
                error
            }
        })
    }

    /// `stat`.
    pub(crate) fn attributes_of(&self, number: u64) -> Result<Attributes, FsError> {
        let object = self.object(number)?;
        let state = object.state.lock();
        if state.freed {
            Err(FsError::Stale)
        } else {
            Ok(state.attributes(number))
        }
    }

    pub(crate) fn parent_of(&self, directory: &Arc<Object>) -> u64 {
        match directory.state.lock().inode.parent {
            0 => directory.number,
            parent => parent,
        }
    }

    /// At most `limit` names behind cookie `from`.
    pub(crate) fn list(
        &self,
        directory: u64,
        from: u64,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>, FsError> {
        let directory = self.directory(directory)?;
        if limit == 0 {
            return Ok(Vec::new());
        }
        if from == 0 {
            self.read_all(&directory)?;
        }
        let mut from = from;
        loop {
            let (found, to) = self.list_page(&directory, from, limit)?;
            match to {
                // A whole page of names that were just removed.
                Some(to) if found.is_empty() => from = to,
                _ => return Ok(found),
            }
        }
    }

    /// The same of the names up to a cookie that is returned; without one it is all names.
    fn list_page(
        &self,
        directory: &Arc<Object>,
        from: u64,
        limit: usize,
    ) -> Result<(Vec<DirectoryEntry>, Option<u64>), FsError> {
        let entry = |key: &NameKey, target: Target| DirectoryEntry {
            name: key.name.to_vec(),
            object: target.object,
            kind: target.kind,
            cookie: key.hash,
        };
        // What is in RAM first, then the records: a removal that is committed in between must not be missed.
        let mut cached = Vec::new();
        let mut cached_to = u64::MAX;
        {
            let state = directory.state.lock();
            let Some(entries) = &state.entries else {
                return Err(FsError::NotDirectory);
            };
            if entries.complete {
                let names = entries
                    .after(from)
                    .filter_map(|(key, slot)| slot.target.map(|target| entry(key, target)));
                return Ok((names.take(limit).collect(), None));
            }
            for (key, slot) in entries.after(from) {
                if cached.len() >= limit.saturating_mul(2) {
                    cached_to = key.hash - 1;
                    break;
                }
                cached.push((key.clone(), slot.target));
            }
        }
        let start = keys::entry_from(self.dataset.number(), directory.number, from.saturating_add(1));
        let end = keys::entry_end(self.dataset.number(), directory.number);
        let records = self.dataset.store().scan(&start, &end, limit)?;
        let mut listed = std::collections::BTreeMap::new();
        let mut scanned_to = u64::MAX;
        for (key, value) in &records {
            let (hash, name) = keys::parse_entry(key)?;
            if records.len() == limit {
                scanned_to = hash;
            }
            listed.insert(
                NameKey {
                    hash,
                    name: name.into(),
                },
                decode_entry(value)?.1,
            );
        }
        for (key, target) in cached {
            match target {
                Some(target) => listed.insert(key, target),
                None => listed.remove(&key),
            };
        }
        let to = cached_to.min(scanned_to);
        let found: Vec<_> = listed
            .into_iter()
            .filter(|(key, _)| key.hash <= to)
            .take(limit)
            .map(|(key, target)| entry(&key, target))
            .collect();
        Ok((found, (to != u64::MAX).then_some(to)))
    }

    /// Makes an object and names it.
    pub(crate) fn make(
        &self,
        context: &Context,
        directory: u64,
        name: &[u8],
        new: &NewObject<'_>,
    ) -> Result<Attributes, FsError> {
        self.writable()?;
        check_name(name)?;
        let directory = self.directory(directory)?;
        let _admitted = self.throttle(crate::live::METADATA_BYTES)?;
        self.take_metadata(2)?;
        let attributes = {
            let _names = directory.inode_lock.write();
            let exists = self.find(&directory, name)?.is_some();
            if exists {
                self.check(context, &directory, ACCESS_EXECUTE)?;
                return Err(FsError::Exists);
            }
            self.check(context, &directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
            let object = self.prepare(context, &directory, new)?;
            let key = NameKey::new(name);
            let _gate = self.enter();
            let mut state = directory.state.lock();
            if state.inode.links == 0 {
                return Err(FsError::NotFound);
            }
            file_flags::may_gain_names(&state.inode)?;
            if new.kind == FileKind::Directory && state.inode.links == u32::MAX {
                return Err(FsError::TooManyLinks);
            }
            let attributes = {
                let mut made = object.state.lock();
                made.inode.links = if new.kind == FileKind::Directory { 2 } else { 1 };
                self.mark_inode(&object, &mut made);
                made.attributes(object.number)
            };
            self.objects.insert((object.number, 0), object.clone());
            let target = Target {
                object: object.number,
                kind: new.kind,
            };
            if let Some(entries) = &mut state.entries {
                entries.change(key, Some(target), Old::Absent);
            }
            state.inode.size += 1;
            if new.kind == FileKind::Directory {
                state.inode.links += 1;
            }
            state.inode.modified = attributes.changed;
            state.inode.changed = attributes.changed;
            self.mark_inode(&directory, &mut state);
            attributes
        };
        self.settle()?;
        Ok(attributes)
    }

    /// A new object that nothing names yet and nobody sees: owner, group, mode and ACLs as its directory wants them.
    pub(crate) fn prepare(
        &self,
        context: &Context,
        directory: &Arc<Object>,
        new: &NewObject<'_>,
    ) -> Result<Arc<Object>, FsError> {
        if new.target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let inherits =
            new.kind != FileKind::SymbolicLink && directory.state.lock().inode.flags & HAS_DEFAULT_ACL != 0;
        let default = if inherits {
            self.xattr(directory, DEFAULT_NAME)?
        } else {
            None
        };
        let (mode, access) = match &default {
            Some(value) => Acl::parse(value)?.inherit(new.mode & 0o7777),
            None if new.kind == FileKind::SymbolicLink => (0o777, None),
            None => (new.mode & 0o7777 & !context.umask, None),
        };
        let (gid, mode, flags) = {
            let directory = &directory.state.lock().inode;
            let (gid, mode) = permission::inherit(context, directory, new.kind, mode);
            (gid, mode, file_flags::inherited(directory))
        };
        let mut inode = InodeRecord::new(new.kind, mode, context.uid, gid, self.now());
        inode.flags = flags;
        inode.device = new.device;
        inode.target = new.target.to_vec();
        inode.size = new.target.len() as u64;
        if new.kind == FileKind::Directory {
            inode.parent = directory.number;
        }
        let number = self.dataset.next_object();
        inode.body = number;
        let object = Object::fresh(number, inode, &self.names.count);
        object.state.lock().found_in = directory.number;
        if default.is_some() {
            let mut state = object.state.lock();
            if let Some(access) = access {
                put_xattr(&mut state, ACCESS_NAME, Some(access.encode().into()));
            }
            if let (FileKind::Directory, Some(default)) = (new.kind, default) {
                put_xattr(&mut state, DEFAULT_NAME, Some(default));
            }
        }
        Ok(object)
    }

    /// A regular file without a name, held once.
    pub(crate) fn make_temporary(
        &self,
        context: &Context,
        directory: u64,
        mode: u32,
    ) -> Result<Attributes, FsError> {
        self.writable()?;
        let directory = self.directory(directory)?;
        self.check(context, &directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
        file_flags::may_gain_names(&directory.state.lock().inode)?;
        self.take_metadata(2)?;
        let new = NewObject {
            kind: FileKind::File,
            mode,
            device: 0,
            target: &[],
        };
        let object = self.prepare(context, &directory, &new)?;
        let attributes = {
            let _gate = self.enter();
            let mut state = object.state.lock();
            state.opens = 1;
            self.mark_inode(&object, &mut state);
            self.objects.insert((object.number, 0), object.clone());
            state.attributes(object.number)
        };
        self.settle()?;
        Ok(attributes)
    }

    /// Another name for an object.
    pub(crate) fn make_link(
        &self,
        context: &Context,
        object: u64,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.writable()?;
        check_name(name)?;
        let object = self.object(object)?;
        if object.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let directory = self.directory(directory)?;
        self.take_metadata(2)?;
        let attributes = {
            let _names = directory.inode_lock.write();
            if self.find(&directory, name)?.is_some() {
                return Err(FsError::Exists);
            }
            self.check(context, &directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
            let key = NameKey::new(name);
            let now = self.now();
            let _gate = self.enter();
            let mut state = directory.state.lock();
            if state.inode.links == 0 {
                return Err(FsError::NotFound);
            }
            let attributes = {
                let mut linked = object.state.lock();
                if linked.freed {
                    return Err(FsError::NotFound);
                }
                file_flags::may_gain_names(&state.inode)?;
                file_flags::may_change(&linked.inode)?;
                linked.inode.links = linked.inode.links.checked_add(1).ok_or(FsError::TooManyLinks)?;
                linked.inode.changed = now;
                self.owe_nothing(&mut linked);
                self.mark_inode(&object, &mut linked);
                linked.attributes(object.number)
            };
            if let Some(entries) = &mut state.entries {
                entries.change(
                    key,
                    Some(Target {
                        object: object.number,
                        kind: object.kind,
                    }),
                    Old::Absent,
                );
            }
            added(&mut state, now);
            self.mark_inode(&directory, &mut state);
            attributes
        };
        // What it is may lie beneath a pinned directory only now.
        self.dataset.environment().pins.note_moved(self.dataset.number());
        self.settle()?;
        Ok(attributes)
    }
}

/// A name was added to a directory.
pub(crate) fn added(directory: &mut State, now: crate::records::Time) {
    directory.inode.size += 1;
    directory.inode.modified = now;
    directory.inode.changed = now;
}

/// A name was taken out of a directory.
pub(crate) fn removed(directory: &mut State, now: crate::records::Time) {
    directory.inode.size = directory.inode.size.saturating_sub(1);
    directory.inode.modified = now;
    directory.inode.changed = now;
}
