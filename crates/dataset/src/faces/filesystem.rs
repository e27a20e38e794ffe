//! `Filesystem`: a dataset as a POSIX filesystem, live. The public face; the work is done by the parts of
//! the `LiveDataset`.

use super::live_dataset::{HasLive, LiveDataset};
use crate::{
    live::DatasetState,
    namespace::NewObject,
    objects::{HAS_CAPABILITY, Object, State, drop_capability},
    posix::{
        ACCESS_WRITE, AllocateMode, AttributeMode, Attributes, Context, DirectoryEntry, FileFlags, FsError,
        FsStatistics, ROOT, RenameMode, SeekTarget, SetAttributes, Strip, Tree, file_flags, permission,
    },
    quota::OfReserve,
    records::{FILE_BYTES_MAX, FileKind, InodeRecord, Old, Time, VersionedBatch},
    writing::some_written,
};
use std::sync::Arc;

use terrace_store::{BLOCK_BYTES, ChunkId, Sequence};

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteDone {
    /// How many bytes it wrote, from the first on: less than asked for where only these had room, as it was set aside for them.
    pub bytes: usize,
    /// What became of the set-id bits.
    pub set_id: SetId,
}

/// What became of a file's set-id bits as its content was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetId {
    /// They are as they were, if there were any.
    Kept,
    /// One or both fell: who relies on the mode must be told.
    Fell,
}

/// A live filesystem. All methods may be called from any thread.
pub struct Filesystem {
    live: LiveDataset,
}

impl Filesystem {
    /// Opens a dataset that exists.
    pub fn open(state: Arc<DatasetState>) -> Result<Arc<Self>, FsError> {
        let live = LiveDataset::new(state);
        live.lifetimes.free_orphans()?;
        Ok(Arc::new(Self { live }))
    }

    /// Puts the records of an empty filesystem: its root directory.
    pub fn format(batch: &mut VersionedBatch, owner: (u32, u32), now: Time) -> Result<(), FsError> {
        let mut root = InodeRecord::new(FileKind::Directory, 0o755, owner.0, owner.1, now);
        root.links = 2;
        root.parent = ROOT;
        root.body = ROOT;
        batch.put_inode(ROOT, &root, Old::Absent)?;
        batch.count_objects(1);
        Ok(())
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<DatasetState> {
        &self.live.dataset
    }

    /// Makes a regular file, device node, fifo or socket; an existing name is `Exists`.
    pub fn create(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes, FsError> {
        match kind {
            FileKind::Directory | FileKind::SymbolicLink | FileKind::Volume => return Err(FsError::Invalid),
            // A whiteout opens nothing, and anybody may make one.
            FileKind::CharacterDevice if device == 0 => {}
            FileKind::BlockDevice | FileKind::CharacterDevice if !context.trusted && !context.is_root() => {
                return Err(FsError::NotPermitted);
            }
            _ => {}
        }
        self.live.namespace.make(
            context,
            dir,
            name,
            &NewObject {
                kind,
                mode,
                device,
                target: &[],
            },
        )
    }

    /// Makes a directory.
    pub fn make_directory(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Attributes, FsError> {
        let new = NewObject {
            kind: FileKind::Directory,
            mode: mode & 0o1777,
            device: 0,
            target: &[],
        };
        self.live.namespace.make(context, dir, name, &new)
    }

    /// Makes a symbolic link.
    pub fn symbolic_link(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        let new = NewObject {
            kind: FileKind::SymbolicLink,
            mode: 0o777,
            device: 0,
            target,
        };
        self.live.namespace.make(context, dir, name, &new)
    }

    /// Gives `object` another name.
    pub fn link(&self, context: &Context, object: u64, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.live.namespace.make_link(context, object, dir, name)
    }

    /// Removes a name that is not a directory's; returns what it named, as it is afterwards (`links` 0: the last).
    /// For a trusted context such an object is held; see [`Context::trusted`].
    pub fn unlink(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.live.namespace.remove_name(context, dir, name)
    }

    /// Removes an empty directory; returns what it was, held for a trusted context.
    pub fn remove_directory(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.live.namespace.remove_dir(context, dir, name)
    }

    /// Renames; returns what was replaced, as it is afterwards (with `links` 0 held for a trusted context). A whiteout is
    /// the caller's, who needs no right to make devices for it.
    pub fn rename(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<Attributes>, FsError> {
        self.live
            .namespace
            .rename_name(context, (dir, name), (new_dir, new_name), mode)
    }

    /// An unnamed regular file (O_TMPFILE), held once as if by [`open_object`](Self::open_object); `link` may name it.
    pub fn temporary(&self, context: &Context, dir: u64, mode: u32) -> Result<Attributes, FsError> {
        self.live.namespace.make_temporary(context, dir, mode)
    }

    /// Changes attributes by the rules of chmod, chown, truncate and utimensat.
    pub fn set_attributes(
        &self,
        context: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError> {
        self.live.namespace.change_attributes(context, object, change)
    }

    /// Writes all of `data` at `offset`. Takes setuid and setgid away if `kill_privileges`, or if the caller
    /// [strips](Context::strips_set_id) them.
    pub fn write(
        &self,
        context: &Context,
        object: u64,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<usize, FsError> {
        let (_, done) = self.write_at(context, object, Some(offset), data, kill_privileges)?;
        Ok(done.bytes)
    }

    /// The same, and tells what became of the set-id bits. With an error they may have fallen.
    pub fn write_stripping(
        &self,
        context: &Context,
        object: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<WriteDone, FsError> {
        Ok(self.write_at(context, object, Some(offset), data, false)?.1)
    }

    /// Writes at the end of the file; returns the offset at which the data lies, and how many bytes of it were written.
    pub fn append(
        &self,
        context: &Context,
        object: u64,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<(u64, usize), FsError> {
        let (offset, done) = self.write_at(context, object, None, data, kill_privileges)?;
        Ok((offset, done.bytes))
    }

    fn write_at(
        &self,
        context: &Context,
        object: u64,
        offset: Option<u64>,
        data: &[u8],
        kill_privileges: bool,
    ) -> Result<(u64, WriteDone), FsError> {
        let live = &self.live;
        live.dataset.writable()?;
        let object = live.table.object(object)?;
        content(&object)?;
        let _admitted = live.admission.throttle(data.len() as u64)?;
        let flags = object.state().inode.flags;
        if flags & HAS_CAPABILITY != 0 {
            live.xattrs.load_xattrs(&object)?;
        }
        let stripping = kill_privileges.then(|| Context {
            strip: Strip::SetId,
            ..context.clone()
        });
        let context = stripping.as_ref().unwrap_or(context);
        let mut set_id = SetId::Kept;
        let (offset, bytes) = {
            let _inode = object.lock_inode();
            let offset = match offset {
                Some(offset) if !file_flags::is_protected(flags) => offset,
                _ => {
                    let inode = &object.state().inode;
                    let offset = offset.unwrap_or(inode.size);
                    file_flags::may_write_at(inode, offset)?;
                    offset
                }
            };
            let now = live.dataset.now();
            let written = live.writer.write_object(&object, offset, data, &mut |state| {
                if changed(state, now, context) == SetId::Fell {
                    set_id = SetId::Fell;
                }
            });
            (offset, some_written(written)?)
        };
        live.commits.settle()?;
        Ok((offset, WriteDone { bytes, set_id }))
    }

    /// fallocate.
    pub fn allocate(
        &self,
        context: &Context,
        object: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        let live = &self.live;
        live.dataset.writable()?;
        let object = live.table.object(object)?;
        content(&object)?;
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FsError::FileTooBig)?;
        if length == 0 {
            return Err(FsError::Invalid);
        }
        live.xattrs.load_xattrs(&object)?;
        match mode {
            AllocateMode::Punch => {
                let is_young = || live.lifetimes.is_young(&object);
                live.admission
                    .take_metadata_to_remove(1, OfReserve::Removals, &is_young)?;
            }
            // What it promises finds its room by itself.
            _ => live.admission.take_metadata_always(1, OfReserve::Changes)?,
        }
        let mut is_changed = false;
        {
            let _inode = object.lock_inode();
            match mode {
                AllocateMode::Reserve { .. } => file_flags::may_touch(&object.state().inode)?,
                _ => file_flags::may_change(&object.state().inode)?,
            }
            let now = live.dataset.now();
            let mut change = |state: &mut State| {
                changed(state, now, context);
                is_changed = true;
            };
            let keep_size = match mode {
                AllocateMode::Reserve { keep_size } | AllocateMode::Zero { keep_size } => {
                    let (first, last) = (offset / BLOCK_BYTES as u64, end.div_ceil(BLOCK_BYTES as u64));
                    live.writer
                        .preallocate(&object, first, last, &mut |state| state.inode.changed = now)?;
                    keep_size
                }
                AllocateMode::Punch => true,
            };
            let stays_preallocated = mode != AllocateMode::Punch;
            if !matches!(mode, AllocateMode::Reserve { .. }) {
                live.writer.give_back(&object, offset, end, &mut |from, to| {
                    live.writer
                        .punch_object(&object, from, to - from, stays_preallocated, &mut change)
                })?;
            }
            let grows = !keep_size && object.state().inode.size < end;
            if grows {
                live.writer.truncate_object(&object, end, &mut change)?;
            }
            if !is_changed {
                // What reserves alone counts as a change too, as on ext4.
                live.namespace.change_inode(&object, &mut |state| {
                    changed(state, now, context);
                })?;
            }
        }
        live.commits.settle()
    }

    /// copy_file_range: shares chunks where offsets are aligned to blocks, copies the rest; returns the bytes copied.
    pub fn copy_range(
        &self,
        context: &Context,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FsError> {
        let _admitted = self.live.admission.throttle(0)?;
        self.live
            .namespace
            .copy_objects(context, (from, from_offset), (to, to_offset), length)
    }

    /// Sets an extended attribute; POSIX ACLs are checked and change the mode.
    pub fn set_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), FsError> {
        self.live.xattrs.set_xattr(context, object, name, value, mode)
    }

    /// chattr; see [`FileFlags`].
    pub fn set_file_flags(&self, context: &Context, object: u64, flags: FileFlags) -> Result<(), FsError> {
        self.live.namespace.set_file_flags(context, object, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        self.live.xattrs.remove_xattr(context, object, name)
    }

    /// Whether the caller may read this extended attribute.
    pub fn check_extended_attribute(
        &self,
        context: &Context,
        object: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        self.live.xattrs.check_xattr_read(context, object, name)
    }

    /// Keeps the object alive even if its last name goes; once for each open.
    pub fn open_object(&self, object: u64) -> Result<(), FsError> {
        self.live.lifetimes.hold(object)
    }

    /// Undoes one [`open_object`](Self::open_object).
    pub fn release_object(&self, object: u64) {
        self.live.lifetimes.release(object);
    }

    fn note_question(&self) {
        self.live.dataset.environment().foreground.note_question();
    }

    /// Entries with the attributes of those objects that are `wanted` (readdirplus). Of these, a name that goes away meanwhile is
    /// left out.
    pub fn read_directory_attributes(
        &self,
        dir: u64,
        from: u64,
        limit: usize,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<(DirectoryEntry, Option<Attributes>)>, FsError> {
        self.note_question();
        let mut from = from;
        loop {
            let entries = self.live.directories.list(dir, from, limit)?;
            let Some(last) = entries.last() else {
                return Ok(Vec::new());
            };
            from = last.cookie;
            let mut found = Vec::with_capacity(entries.len());
            for entry in entries {
                if !wanted(entry.object) {
                    found.push((entry, None));
                    continue;
                }
                match self.live.directories.attributes_of(entry.object) {
                    Ok(attributes) => found.push((entry, Some(attributes))),
                    Err(FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// Makes everything done so far durable (fsync, syncfs): commit and flush, shared by concurrent callers. What
    /// `durability` says of fsync holds: with `timed` and `ram` it returns at once.
    pub fn sync(&self) -> Result<(), FsError> {
        self.live.commits.sync()
    }

    /// fsync of one object. (The whole dataset is committed: every crash state is a prefix in order.)
    pub fn sync_object(&self, object: u64) -> Result<(), FsError> {
        let _ = object;
        self.live.commits.sync()
    }

    /// Hands everything done so far to the store, without flushing.
    pub fn commit(&self) -> Result<Sequence, FsError> {
        self.live.commits.commit()
    }

    /// Commit and flush whatever `durability` says (a clean stop, an unmount).
    pub fn flush(&self) -> Result<(), FsError> {
        self.live.commits.flush()
    }

    /// Bytes written and not yet committed.
    pub fn dirty_bytes(&self) -> u64 {
        self.live.epoch.dirty_bytes()
    }

    /// Room that is held although nothing is dirty, bytes: none, while no call is on its way.
    pub fn leaked_room_bytes(&self) -> u64 {
        self.live.epoch.leaked_room_bytes()
    }

    /// The chunks that a region (1 MiB) of a file maps as of the newest commit, for `terrace where` and the mover.
    pub fn chunks_of(&self, object: u64, region: u64) -> Result<Vec<ChunkId>, FsError> {
        let object = self.live.table.object(object)?;
        self.live.extents.chunks(&object, region)
    }
}

impl HasLive for Filesystem {
    fn live(&self) -> &LiveDataset {
        &self.live
    }
}

/// Only files have content that can be written.
fn content(object: &Object) -> Result<(), FsError> {
    match object.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

fn changed(state: &mut State, now: Time, context: &Context) -> SetId {
    let mode = permission::after_write(context, &state.inode);
    let before = std::mem::replace(&mut state.inode.mode, mode);
    if context.strip != Strip::Nothing {
        drop_capability(state);
    }
    state.inode.modified = now;
    state.inode.changed = now;
    match mode == before {
        true => SetId::Kept,
        false => SetId::Fell,
    }
}

impl Tree for Filesystem {
    fn lookup(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.note_question();
        self.live.namespace.look_up(context, dir, name)
    }

    fn attributes(&self, object: u64) -> Result<Attributes, FsError> {
        self.note_question();
        self.live.directories.attributes_of(object)
    }

    fn read_link(&self, object: u64) -> Result<Vec<u8>, FsError> {
        self.note_question();
        let object = self.live.table.object(object)?;
        let state = object.state();
        if object.kind == FileKind::SymbolicLink {
            Ok(state.inode.target.clone())
        } else {
            Err(FsError::Invalid)
        }
    }

    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        self.note_question();
        self.live.directories.list(dir, from, limit)
    }

    fn parent(&self, dir: u64) -> Result<u64, FsError> {
        Ok(self.live.table.parent_of(&self.live.table.directory(dir)?))
    }

    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        self.read_for(0, object, offset, buffer)
    }

    fn read_unnoted(
        &self,
        process: u32,
        object: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, FsError> {
        let object = self.live.table.object(object)?;
        content(&object)?;
        self.live
            .reader
            .read_object_for(Some(process), &object, offset, buffer)
    }

    fn read_for(&self, process: u32, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        let object = self.live.table.object(object)?;
        content(&object)?;
        let length = self
            .live
            .reader
            .read_object_for(Some(process), &object, offset, buffer)?;
        if self.live.dataset.settings().access_time {
            self.live.namespace.accessed(&object);
        }
        Ok(length)
    }

    fn extended_attribute(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.note_question();
        self.live.xattrs.get_xattr(object, name)
    }

    fn extended_attributes(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        self.note_question();
        self.live.xattrs.list_xattrs(object)
    }

    fn file_flags(&self, object: u64) -> Result<FileFlags, FsError> {
        self.live.namespace.file_flags(object)
    }

    fn seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        let object = self.live.table.object(object)?;
        content(&object)?;
        self.live.extents.seek_object(&object, offset, target)
    }

    fn access(&self, context: &Context, object: u64, mask: u32) -> Result<(), FsError> {
        if mask & ACCESS_WRITE != 0 && self.live.dataset.settings().readonly {
            return Err(FsError::ReadOnly);
        }
        self.live
            .xattrs
            .check(context, &self.live.table.object(object)?, mask)
    }

    fn statistics(&self) -> Result<FsStatistics, FsError> {
        let space = self.live.dataset.store().space();
        let counters = self.live.dataset.counters();
        let usage = self.live.dataset.usage();
        let used_bytes = self.live.epoch.referenced_bytes() + usage.preallocated_bytes();
        let available = usage.available_bytes(&space);
        let available_bytes = usage
            .quota_left_bytes()
            .map_or(available, |left| left.min(available));
        Ok(FsStatistics {
            // Not what the devices have: second copies, what the pool keeps for itself and what others have written would be
            // called used here, more than half of an empty pool of two copies.
            size_bytes: used_bytes + available_bytes,
            available_bytes,
            used_bytes,
            objects: counters.objects,
        })
    }
}
