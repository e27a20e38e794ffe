//! `View`: a filesystem as of a held checkpoint, read-only.
//!
//! Invariants: every answer is of exactly that checkpoint; once the checkpoint is not held any more, every call
//! answers `Stale` (checked after reading too, so that nothing half freed is ever returned).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use terrace_cache::Fetched;
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, StoreError};

use crate::{
    live::DatasetState,
    posix::{
        ACCESS_EXECUTE, Attributes, BlockStatus, Context, DirectoryEntry, FileFlags, FsError, FsStatistics,
        ROOT, SeekTarget, Tree, generation, pieces_of,
    },
    records::{EntryRecord, FileKind, InodeRecord, REGION_BLOCKS, REGION_BYTES, RegionRecord, after, keys},
};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const PAGE: usize = 256;
/// A read from this size on fetches its chunks together.
const LARGE_READ_BYTES: usize = 128 * 1024;
/// So many at most.
const LARGE_READ_CHUNKS: usize = 64;
/// How often a record is looked up again when its chunks go away under it.
const RETRIES: usize = 100;

/// A filesystem as of a checkpoint.
pub struct View {
    state: Arc<DatasetState>,
    checkpoint: u64,
    gone: AtomicBool,
}

impl View {
    pub(crate) fn new(state: Arc<DatasetState>, checkpoint: u64) -> Self {
        Self {
            state,
            checkpoint,
            gone: AtomicBool::new(false),
        }
    }

    /// The checkpoint that it shows.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<DatasetState> {
        &self.state
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    fn check<T>(&self, answer: Result<T, FsError>) -> Result<T, FsError> {
        if self.gone.load(Ordering::SeqCst) || self.state.is_gone() {
            Err(FsError::Stale)
        } else {
            answer
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, FsError> {
        let found = self.state.records().get_as_of(key, self.checkpoint)?;
        Ok(found.map(|version| version.record))
    }

    fn inode(&self, object: u64) -> Result<InodeRecord, FsError> {
        let payload = self
            .get(&keys::inode(self.state.number(), object))?
            .ok_or(FsError::NotFound)?;
        Ok(InodeRecord::decode(&payload)?)
    }

    fn directory(&self, object: u64) -> Result<InodeRecord, FsError> {
        let inode = self.inode(object)?;
        if inode.kind == FileKind::Directory {
            Ok(inode)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    fn region(&self, body: u64, region: u64) -> Result<RegionRecord, FsError> {
        match self.get(&keys::region(self.state.number(), body, region))? {
            Some(payload) => Ok(RegionRecord::decode(&payload)?),
            None => Ok(RegionRecord::new()),
        }
    }

    fn do_access(
        &self,
        context: &Context,
        object: u64,
        inode: &InodeRecord,
        mask: u32,
    ) -> Result<(), FsError> {
        let acl = if inode.xattrs > 0 {
            self.get(&keys::xattr(self.state.number(), object, ACCESS_ACL))?
        } else {
            None
        };
        crate::posix::check(context, inode, acl.as_deref(), mask)
    }

    fn do_lookup(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        let inode = self.directory(dir)?;
        self.do_access(context, dir, &inode, ACCESS_EXECUTE)?;
        let object = match name {
            b"." => dir,
            b".." => self.do_parent(dir)?,
            _ if name.len() > keys::NAME_BYTES_MAX => return Err(FsError::NameTooLong),
            _ => {
                let payload = self
                    .get(&keys::entry(self.state.number(), dir, name))?
                    .ok_or(FsError::NotFound)?;
                EntryRecord::decode(&payload)?.object
            }
        };
        Ok(attributes(object, &self.inode(object)?))
    }

    fn do_parent(&self, dir: u64) -> Result<u64, FsError> {
        let inode = self.directory(dir)?;
        Ok(if dir == ROOT || inode.parent == 0 {
            ROOT
        } else {
            inode.parent
        })
    }

    fn do_read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        self.directory(dir)?;
        let number = self.state.number();
        let Some(next) = from.checked_add(1) else {
            return Ok(Vec::new());
        };
        let start = keys::entry_from(number, dir, next);
        let end = keys::entry_end(number, dir);
        let found = self
            .state
            .records()
            .scan_as_of(&start, &end, self.checkpoint, limit.clamp(1, 4096))?;
        let mut list = Vec::with_capacity(found.len());
        for (key, version) in &found {
            let (cookie, name) = keys::parse_entry(key)?;
            let entry = EntryRecord::decode(&version.record)?;
            list.push(DirectoryEntry {
                name: name.to_vec(),
                object: entry.object,
                kind: entry.kind,
                cookie,
            });
        }
        Ok(list)
    }

    fn do_read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        let inode = self.inode(object)?;
        match inode.kind {
            FileKind::File | FileKind::Volume => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid),
        }
        let left = inode.size.saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let within = at % REGION_BYTES;
            let part = (length - done).min((REGION_BYTES - within) as usize);
            let mut attempts = 0;
            loop {
                let record = self.region(inode.body, at / REGION_BYTES)?;
                match self.read_region(&record, within as usize, &mut buffer[done..done + part]) {
                    // Laid out anew meanwhile (or not held any more, which `check` finds).
                    Err(StoreError::NoChunk(_)) if attempts < RETRIES => attempts += 1,
                    read => break read?,
                }
            }
            done += part;
        }
        Ok(length)
    }

    /// Fills `out` from byte `start` of a region.
    fn read_region(&self, record: &RegionRecord, start: usize, out: &mut [u8]) -> Result<(), StoreError> {
        let environment = self.state.environment();
        let end = start + out.len();
        out.fill(0);
        let (from, to) = (start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let store = self.state.store().as_ref();
        let fetched = if out.len() >= LARGE_READ_BYTES {
            let runs = record.range(from as u32, to as u32);
            let chunks = runs.map(|run| run.chunk).take(LARGE_READ_CHUNKS).collect();
            environment.cache.read_ahead(store, chunks)
        } else {
            Fetched::default()
        };
        for run in record.range(from as u32, to as u32) {
            let run_start = run.block as usize * BLOCK_BYTES;
            let (first, last) = (run_start.max(start), (run.end() as usize * BLOCK_BYTES).min(end));
            let offset = run.index as usize * BLOCK_BYTES + first - run_start;
            // A tail's chunk holds only what lay before the end of the file; the rest is zero.
            let target = &mut out[first - start..last - start];
            if fetched.part(run.chunk, offset, target).is_none() {
                let cache = &environment.cache;
                cache.part(store, run.chunk, offset, CHUNK_BYTES_MAX, target)?;
            }
        }
        Ok(())
    }

    fn do_seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        let inode = self.inode(object)?;
        if offset >= inode.size {
            return Err(FsError::NoData);
        }
        let found = match target {
            SeekTarget::Data => self.next_data(&inode, offset)?.ok_or(FsError::NoData)?,
            SeekTarget::Hole => self.next_hole(&inode, offset)?,
        };
        match target {
            SeekTarget::Data if found >= inode.size => Err(FsError::NoData),
            _ => Ok(found.min(inode.size)),
        }
    }

    fn next_data(&self, inode: &InodeRecord, offset: u64) -> Result<Option<u64>, FsError> {
        let (number, records) = (self.state.number(), self.state.records());
        let mut from = keys::region(number, inode.body, offset / REGION_BYTES);
        let end = keys::region_end(number, inode.body);
        loop {
            let page = records.scan_as_of(&from, &end, self.checkpoint, PAGE)?;
            for (key, version) in &page {
                let (_, _, region) = keys::parse_region(key)?;
                let start = region.saturating_mul(REGION_BYTES);
                let block = offset.saturating_sub(start) / BLOCK_BYTES as u64;
                if let Some(mapped) = RegionRecord::decode(&version.record)?.next_mapped(block as u32) {
                    return Ok(Some((start + u64::from(mapped) * BLOCK_BYTES as u64).max(offset)));
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = after(last),
                _ => return Ok(None),
            }
        }
    }

    fn next_hole(&self, inode: &InodeRecord, offset: u64) -> Result<u64, FsError> {
        let mut region = offset / REGION_BYTES;
        let mut block = (offset % REGION_BYTES / BLOCK_BYTES as u64) as u32;
        while region.saturating_mul(REGION_BYTES) < inode.size {
            let record = self.region(inode.body, region)?;
            if let Some(hole) = record.next_hole(block).filter(|hole| *hole < REGION_BLOCKS) {
                return Ok((region * REGION_BYTES + u64::from(hole) * BLOCK_BYTES as u64).max(offset));
            }
            (region, block) = (region + 1, 0);
        }
        Ok(inode.size)
    }

    /// Data and holes of an object from `offset` to `end`, at most `limit` pieces; of much data only the first part.
    pub(crate) fn block_status(
        &self,
        object: u64,
        offset: u64,
        end: u64,
        limit: usize,
    ) -> Result<Vec<BlockStatus>, FsError> {
        let answer = self.inode(object).and_then(|inode| {
            let (number, records, body) = (self.state.number(), self.state.records(), inode.body);
            let next_region = |from, to| {
                let (from, to) = (keys::region(number, body, from), keys::region(number, body, to));
                let next = records.first_key_of_any_time(&from, &to)?;
                Ok(next
                    .map(|key| keys::parse_region(&key))
                    .transpose()?
                    .map(|(.., region)| region))
            };
            let mapped = |region| {
                let record = self.region(body, region)?;
                let mut mapped = [false; REGION_BLOCKS as usize];
                for run in record.runs() {
                    mapped[run.block as usize..run.end() as usize].fill(true);
                }
                Ok(mapped)
            };
            pieces_of(offset, end, limit, next_region, mapped)
        });
        self.check(answer)
    }

    fn do_attribute_names(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        if self.inode(object)?.xattrs == 0 {
            return Ok(Vec::new());
        }
        let (mut from, to) = keys::xattr_range(self.state.number(), object);
        let mut names = Vec::new();
        loop {
            let page = self
                .state
                .records()
                .scan_as_of(&from, &to, self.checkpoint, PAGE)?;
            for (key, _) in &page {
                names.push(keys::parse_xattr(key)?.to_vec());
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = after(last),
                _ => return Ok(names),
            }
        }
    }
}

/// What `stat` shows of a stored inode.
pub(crate) fn attributes(object: u64, inode: &InodeRecord) -> Attributes {
    Attributes {
        object,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        links: inode.links,
        size: inode.size,
        blocks512: inode.blocks.saturating_mul(8),
        accessed: inode.accessed,
        modified: inode.modified,
        changed: inode.changed,
        created: inode.created,
        device: inode.device,
        generation: generation(inode.created),
    }
}

impl Tree for View {
    fn lookup(&self, context: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.check(self.do_lookup(context, dir, name))
    }

    fn attributes(&self, object: u64) -> Result<Attributes, FsError> {
        self.check(self.inode(object).map(|inode| attributes(object, &inode)))
    }

    fn file_flags(&self, object: u64) -> Result<FileFlags, FsError> {
        self.check(self.inode(object).map(|inode| FileFlags::of(&inode)))
    }

    fn read_link(&self, object: u64) -> Result<Vec<u8>, FsError> {
        let inode = self.check(self.inode(object))?;
        if inode.kind == FileKind::SymbolicLink {
            Ok(inode.target)
        } else {
            Err(FsError::Invalid)
        }
    }

    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        self.check(self.do_read_directory(dir, from, limit))
    }

    fn parent(&self, dir: u64) -> Result<u64, FsError> {
        self.check(self.do_parent(dir))
    }

    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        self.check(self.do_read(object, offset, buffer))
    }

    fn extended_attribute(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let found = self.inode(object).and_then(|inode| match inode.xattrs {
            0 => Ok(None),
            _ => self.get(&keys::xattr(self.state.number(), object, name)),
        });
        self.check(found)?
            .map(|value| value.to_vec())
            .ok_or(FsError::NoAttribute)
    }

    fn extended_attributes(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        self.check(self.do_attribute_names(object))
    }

    fn seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        self.check(self.do_seek(object, offset, target))
    }

    fn access(&self, context: &Context, object: u64, mask: u32) -> Result<(), FsError> {
        let answer = self
            .inode(object)
            .and_then(|inode| self.do_access(context, object, &inode, mask));
        self.check(answer)
    }

    fn statistics(&self) -> Result<FsStatistics, FsError> {
        let held = self.state.held();
        let record = held.get(self.checkpoint).ok_or(FsError::Stale)?;
        // Nothing can be written here: what it maps is all the room that there is.
        Ok(FsStatistics {
            size_bytes: record.referenced_bytes,
            available_bytes: 0,
            used_bytes: record.referenced_bytes,
            objects: record.objects,
        })
    }
}
