//! `Table`: one immutable sorted extent – blocks, then a head (index and filter) – and how it is read.
//!
//! Layout of an extent: the preface, the blocks one after another, then the head: magic, number of blocks, for each block its
//! length, sum (XXH3, 64 bits) and last key (what it shares with the one before, rest), then the filter's lines. The
//! manifest holds where the head starts and its sum.
//! Invariants: nothing of a table is used before it matched the sum held one step nearer to the manifest; a table
//! that was replaced gives its extent back when the last reader lets go of it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use terrace_sync::{Mutex, rank};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    block::{BlockCursor, Malformed, find},
    block_cache::{BlockCache, HEAD_PLACE, Item},
    head::Head,
    unreadable::Unreadable,
};
use crate::{
    Extent, ExtentError, ExtentRead, ExtentStorage, MetaError, Operation, Preface, Value,
    entries::{OperationRef, filter_hash},
};

/// How often each copy is read again when what was read first is not right: once may be chance.
const READ_ATTEMPTS: usize = 2;
static NEXT_CACHE_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Extents that no state refers to any more.
pub(crate) type Released = Mutex<Vec<Extent>, rank::Leaf>;

/// What the manifest holds of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableFacts {
    /// Numbers the tables of a tree in the order of writing.
    pub(crate) number: u64,
    pub(crate) extent: Extent,
    /// Where the head starts in the extent; it goes to the end.
    pub(crate) head_offset: u32,
    pub(crate) head_sum: u64,
    pub(crate) entries: u64,
    /// How many of the entries are deletions or additions: what must not reach the bottom unchanged.
    pub(crate) unsettled: u64,
    /// Batches above the one and up to the other are in it (see `preface`).
    pub(crate) above: u64,
    pub(crate) up_to: u64,
    pub(crate) first: Box<[u8]>,
    pub(crate) last: Box<[u8]>,
}

impl TableFacts {
    /// What the table itself says of this.
    pub(crate) fn preface(&self, identity: [u8; 16]) -> Preface {
        Preface {
            identity,
            number: self.number,
            above: self.above,
            up_to: self.up_to,
            bytes: self.extent.bytes,
            head_offset: self.head_offset,
            head_sum: self.head_sum,
            entries: self.entries,
        }
    }
}

/// A table in use.
pub(crate) struct Table {
    pub(crate) facts: TableFacts,
    /// Names it in the cache; never used twice in a process.
    cache_number: u64,
    replaced: AtomicBool,
    released: Arc<Released>,
}

impl Table {
    pub(crate) fn new(facts: TableFacts, released: Arc<Released>) -> Arc<Self> {
        let cache_number = NEXT_CACHE_NUMBER.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            facts,
            cache_number,
            replaced: AtomicBool::new(false),
            released,
        })
    }

    /// Where its head lies.
    pub(crate) fn head_place(&self) -> ExtentRead {
        let TableFacts {
            extent, head_offset, ..
        } = self.facts;
        ExtentRead {
            extent,
            offset: head_offset,
            length: extent.bytes - head_offset,
        }
    }

    /// Marks that the current state does not refer to it: its extent is given back when the last reader is gone.
    pub(crate) fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.replaced.load(Ordering::Acquire) {
            self.released.lock().push(self.facts.extent);
        }
    }
}

/// Reads tables: verified, from another copy where one is damaged, through the cache.
pub(crate) struct TableReader {
    storage: Arc<dyn ExtentStorage>,
    cache: BlockCache,
    /// Stands in the preface of each table.
    identity: [u8; 16],
    /// What no copy gave.
    unreadable: Unreadable,
}

/// The error of a table whose content passes its sum but is no table (written by a faulty or hostile program).
pub(crate) fn malformed(table: &Table, offset: u32, detail: impl Into<String>) -> MetaError {
    MetaError::Damaged {
        extent: table.facts.extent,
        offset,
        detail: detail.into(),
    }
}

impl TableReader {
    /// Tables of `storage`, of the tree of this identity, through a cache of so many bytes.
    pub(crate) fn new(storage: Arc<dyn ExtentStorage>, cache_bytes: usize, identity: [u8; 16]) -> Self {
        Self {
            storage,
            cache: BlockCache::new(cache_bytes),
            identity,
            unreadable: Unreadable::default(),
        }
    }

    pub(crate) fn storage(&self) -> &dyn ExtentStorage {
        &*self.storage
    }

    pub(crate) fn identity(&self) -> [u8; 16] {
        self.identity
    }

    pub(crate) fn set_cache_bytes(&self, bytes: usize) {
        self.cache.set_capacity(bytes);
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// What no copy gave.
    pub(crate) fn unreadable(&self) -> &Unreadable {
        &self.unreadable
    }

    /// Reads bytes that must have the sum `sum`, from any copy that does, if need be again.
    pub(crate) fn verified(
        &self,
        extent: Extent,
        offset: u32,
        length: u32,
        sum: u64,
    ) -> Result<Bytes, MetaError> {
        let first = self.storage.read(extent, offset, length);
        self.verified_after(first, extent, offset, length, sum)
    }

    /// As [`verified`](Self::verified), when `first` is what a read gave already.
    fn verified_after(
        &self,
        first: Result<Bytes, ExtentError>,
        extent: Extent,
        offset: u32,
        length: u32,
        sum: u64,
    ) -> Result<Bytes, MetaError> {
        if let Ok(bytes) = &first
            && bytes.len() == length as usize
            && xxh3_64(bytes) == sum
        {
            self.unreadable.forget(extent, offset);
            return Ok(bytes.clone());
        }
        let mut failure: Option<ExtentError> = None;
        let mut mismatched = first.is_ok();
        if let Err(cause) = first {
            failure = Some(cause);
        }
        for attempt in 1..=READ_ATTEMPTS {
            // A storage has a handful of copies; the bound only guards against one that never says `None`.
            for copy in 0..16 {
                match self.storage.read_copy(copy, extent, offset, length) {
                    None => break,
                    Some(Ok(bytes)) if bytes.len() == length as usize && xxh3_64(&bytes) == sum => {
                        tracing::warn!(%extent, offset, copy, attempt, "metadata was read again");
                        self.unreadable.forget(extent, offset);
                        return Ok(bytes);
                    }
                    Some(Ok(_)) => mismatched = true,
                    Some(Err(cause)) => failure = Some(cause),
                }
            }
        }
        let error = match failure {
            Some(cause) if !mismatched => MetaError::Unreadable { extent, cause },
            _ => MetaError::Damaged {
                extent,
                offset,
                detail: format!("{length} bytes do not match their sum"),
            },
        };
        let cause = match &error {
            MetaError::Unreadable { cause, .. } => cause.to_string(),
            _ => "its bytes do not match their sum".into(),
        };
        self.unreadable.note(extent, offset, cause);
        Err(error)
    }

    /// Reads of any tables, at once where the storage can: not verified.
    pub(crate) fn read_many(&self, reads: &[ExtentRead]) -> Vec<Result<Bytes, ExtentError>> {
        match reads {
            [] => Vec::new(),
            [only] => vec![self.storage.read(only.extent, only.offset, only.length)],
            reads => self.storage.read_many(reads),
        }
    }

    /// The head of a table.
    pub(crate) fn head(&self, table: &Table, keep: bool) -> Result<Arc<Head>, MetaError> {
        if let Some(head) = self.cached_head(table) {
            return Ok(head);
        }
        let ExtentRead {
            extent,
            offset,
            length,
        } = table.head_place();
        self.head_after(self.storage.read(extent, offset, length), table, keep)
    }

    /// The head of a table from the cache, if it is there.
    pub(crate) fn cached_head(&self, table: &Table) -> Option<Arc<Head>> {
        match self.cache.get(table.cache_number, HEAD_PLACE) {
            Some(Item::Head(head)) => Some(head),
            _ => None,
        }
    }

    /// The head of a table, when `first` is what a read gave of it already.
    pub(crate) fn head_after(
        &self,
        first: Result<Bytes, ExtentError>,
        table: &Table,
        keep: bool,
    ) -> Result<Arc<Head>, MetaError> {
        let facts = &table.facts;
        let place = table.head_place();
        let bytes = self.verified_after(first, place.extent, place.offset, place.length, facts.head_sum)?;
        let head = Head::decode(&bytes, facts.head_offset)
            .map_err(|cause| malformed(table, facts.head_offset, cause.to_string()))?;
        if head.last_key(head.blocks() - 1) != &*facts.last {
            return Err(malformed(
                table,
                facts.head_offset,
                "the last key is not the manifest's",
            ));
        }
        let head = Arc::new(head);
        if keep {
            self.cache
                .insert(table.cache_number, HEAD_PLACE, Item::Head(head.clone()));
        }
        Ok(head)
    }

    /// One block of a table, kept in the cache.
    pub(crate) fn block(&self, table: &Table, head: &Head, index: usize) -> Result<Bytes, MetaError> {
        if let Some(block) = self.cached_block(table, head, index) {
            return Ok(block);
        }
        let place = &head.blocks[index];
        let first = self.storage.read(table.facts.extent, place.offset, place.length);
        self.block_after(first, table, head, index)
    }

    /// As [`block`](Self::block), when `first` is what a read gave of it already.
    pub(crate) fn block_after(
        &self,
        first: Result<Bytes, ExtentError>,
        table: &Table,
        head: &Head,
        index: usize,
    ) -> Result<Bytes, MetaError> {
        let place = &head.blocks[index];
        let read = self.verified_after(first, table.facts.extent, place.offset, place.length, place.sum)?;
        Ok(self.keep(table, place.offset, &read))
    }

    fn keep(&self, table: &Table, offset: u32, block: &[u8]) -> Bytes {
        // A copy of its own: what the storage gave may be part of a larger buffer.
        let own = Bytes::copy_from_slice(block);
        self.cache
            .insert(table.cache_number, offset, Item::Block(own.clone()));
        own
    }

    /// A block from the cache, if it is there.
    pub(crate) fn cached_block(&self, table: &Table, head: &Head, index: usize) -> Option<Bytes> {
        match self.cache.get(table.cache_number, head.blocks[index].offset) {
            Some(Item::Block(block)) => Some(block),
            _ => None,
        }
    }

    /// Reads the blocks from `index` on that lie within `window_bytes` (at least one) at once. Each is verified;
    /// one that does not match is read again by itself, from other copies. With `keep`, all go to the cache.
    pub(crate) fn blocks(
        &self,
        table: &Table,
        head: &Head,
        index: usize,
        window_bytes: u32,
        keep: bool,
        found: &mut Vec<Bytes>,
    ) -> Result<(), MetaError> {
        let start = head.blocks[index].offset;
        let mut end = index + 1;
        while end < head.blocks.len()
            && head.blocks[end].offset + head.blocks[end].length - start <= window_bytes
        {
            end += 1;
        }
        let last = &head.blocks[end - 1];
        let extent = table.facts.extent;
        let length = last.offset + last.length - start;
        let window = self
            .storage
            .read(extent, start, length)
            .ok()
            .filter(|window| window.len() == length as usize);
        for place in &head.blocks[index..end] {
            let at = (place.offset - start) as usize;
            let part = window
                .as_ref()
                .map(|window| window.slice(at..at + place.length as usize));
            let block = match part.filter(|part| xxh3_64(part) == place.sum) {
                Some(block) => block,
                None if found.is_empty() => self.verified(extent, place.offset, place.length, place.sum)?,
                // What comes later is asked for again when it is needed.
                None => break,
            };
            found.push(if keep {
                self.keep(table, place.offset, &block)
            } else {
                block
            });
        }
        Ok(())
    }

    /// Looks `key` up in a table.
    pub(crate) fn get(&self, table: &Table, key: &[u8], hash: u64) -> Result<Option<Operation>, MetaError> {
        let head = self.head(table, true)?;
        if !head.filter.may_contain(hash) {
            return Ok(None);
        }
        let index = head.seek(key);
        if index == head.blocks() {
            return Ok(None);
        }
        let block = self.block(table, &head, index)?;
        find_in(table, &head, index, &block, key)
    }

    /// Verifies all of one copy: every sum, the order and number of its entries, and that the filter knows each.
    /// `None`: there is no such copy.
    pub(crate) fn verify_copy(&self, table: &Table, copy: u32) -> Option<Result<(), MetaError>> {
        let content = self.read_whole_copy(table.facts.extent, copy)?;
        Some(content.and_then(|content| verify_content(table, &content, self.identity)))
    }

    /// Compares all of one copy of an extent with the sum of its bytes. `None`: there is no such copy.
    pub(crate) fn verify_extent(&self, extent: Extent, sum: u64, copy: u32) -> Option<Result<(), MetaError>> {
        let content = self.read_whole_copy(extent, copy)?;
        Some(content.and_then(|content| match xxh3_64(&content) == sum {
            true => Ok(()),
            false => Err(MetaError::Damaged {
                extent,
                offset: 0,
                detail: "its bytes do not match their sum".into(),
            }),
        }))
    }

    fn read_whole_copy(&self, extent: Extent, copy: u32) -> Option<Result<Bytes, MetaError>> {
        Some(match self.storage.read_copy(copy, extent, 0, extent.bytes)? {
            Ok(content) if content.len() == extent.bytes as usize => Ok(content),
            Ok(_) => Err(MetaError::Damaged {
                extent,
                offset: 0,
                detail: "the read is short".into(),
            }),
            Err(cause) => Err(MetaError::Unreadable { extent, cause }),
        })
    }

    /// Forgets the head of a table that is no longer in use.
    pub(crate) fn forget(&self, table: &Table) {
        self.cache.remove(table.cache_number, HEAD_PLACE);
    }
}

/// Looks `key` up in block `index` of a table.
pub(crate) fn find_in(
    table: &Table,
    head: &Head,
    index: usize,
    block: &Bytes,
    key: &[u8],
) -> Result<Option<Operation>, MetaError> {
    match find(block, key) {
        // Large values share the block; small ones must not keep it alive.
        Ok(Some(OperationRef::Put(value))) if value.len() >= 2048 => {
            Ok(Some(Operation::Put(Value::part_of(block.slice_ref(value)))))
        }
        Ok(found) => Ok(found.map(OperationRef::to_owned)),
        Err(Malformed) => Err(malformed(table, head.blocks[index].offset, "not a block")),
    }
}

fn verify_content(table: &Table, content: &Bytes, identity: [u8; 16]) -> Result<(), MetaError> {
    let facts = &table.facts;
    if !content.starts_with(&facts.preface(identity).encode()) {
        return Err(malformed(table, 0, "the preface is not the manifest's"));
    }
    let head_bytes = &content[facts.head_offset as usize..];
    if xxh3_64(head_bytes) != facts.head_sum {
        return Err(malformed(
            table,
            facts.head_offset,
            "the head does not match its sum",
        ));
    }
    let head = Head::decode(head_bytes, facts.head_offset)
        .map_err(|cause| malformed(table, facts.head_offset, cause.to_string()))?;
    let mut entries = 0;
    for (index, place) in head.blocks.iter().enumerate() {
        let block = content.slice(place.offset as usize..(place.offset + place.length) as usize);
        if xxh3_64(&block) != place.sum {
            return Err(malformed(table, place.offset, "a block does not match its sum"));
        }
        let broken = |Malformed| malformed(table, place.offset, "not a block");
        let mut cursor = BlockCursor::new(block).map_err(broken)?;
        let mut first = true;
        while cursor.advance().map_err(broken)? {
            if first && index > 0 && cursor.key() <= head.last_key(index - 1) {
                return Err(malformed(table, place.offset, "blocks overlap"));
            }
            if !head.filter.may_contain(filter_hash(cursor.key())) {
                return Err(malformed(table, place.offset, "the filter does not know a key"));
            }
            first = false;
            entries += 1;
        }
        if cursor.key() != head.last_key(index) {
            return Err(malformed(table, place.offset, "the last key is not the index's"));
        }
    }
    if entries != facts.entries {
        return Err(malformed(
            table,
            0,
            format!("{entries} entries instead of {}", facts.entries),
        ));
    }
    Ok(())
}
