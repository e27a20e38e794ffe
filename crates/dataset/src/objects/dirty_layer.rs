//! `Layer`: what changed in the content of one object since a freeze: dirty pages, blocks mapped to chunks that exist
//! already (shared with another file, or written ahead of the commit), and ranges that were made void.
//!
//! Invariants: a block is dirty, or mapped, or neither, never both; a dirty or mapped block hides a void range under
//! it, a void range hides everything below the layer; a page is zero behind the end of the file. Pages of sequential
//! data lie in buffers of 128 KiB, scattered ones are 4 KiB each; some of both are reused. A buffer that somebody else reads
//! (it is on its way to the store) is never changed: a writer goes on in a copy. A chunk that was written ahead is
//! held by the layer until the commit that refers to it is done, or the layer is dropped.

use std::{collections::BTreeMap, sync::Arc};

use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Written};
use terrace_sync::{Mutex, rank};

use crate::records::{REGION_BLOCKS, RegionRecord};

/// Blocks of a slot: what one chunk holds at most.
pub(crate) const SLOT_BLOCKS: u64 = (CHUNK_BYTES_MAX / BLOCK_BYTES) as u64;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Scattered pages of a slot above which they are joined in one buffer.
const SCATTERED_MAX: usize = 16;

pub(crate) type Page = Box<[u8; BLOCK_BYTES]>;
/// Shared with whoever stores its content at the moment.
pub(crate) type Buffer = Arc<[u8; CHUNK_BYTES_MAX]>;

/// Large buffers and single pages waiting to be used again.
pub(crate) struct Buffers {
    free: Mutex<Vec<Buffer>, rank::Leaf>,
    limit: usize,
    free_pages: Mutex<Vec<Page>, rank::Leaf>,
    pages_limit: usize,
}

impl Buffers {
    /// Keeps at most `limit` buffers, and `pages_limit` pages.
    pub(crate) fn new(limit: usize, pages_limit: usize) -> Self {
        Self {
            free: Mutex::new(Vec::new()),
            limit,
            free_pages: Mutex::new(Vec::new()),
            pages_limit,
        }
    }

    /// A page with whatever content: it is asked for under a lock that all writers of an object share, and the C library's
    /// allocator, with its own lock and the clearing, took longer than all else there.
    fn take_page(&self) -> Page {
        let free = self.free_pages.lock().pop();
        free.unwrap_or_else(|| Box::new([0; BLOCK_BYTES]))
    }

    fn give_pages(&self, mut pages: Vec<Page>) {
        let mut free = self.free_pages.lock();
        let room = self.pages_limit.saturating_sub(free.len());
        let too_many = pages.split_off(room.min(pages.len()));
        free.append(&mut pages);
        drop((free, too_many));
    }

    fn take(&self) -> Buffer {
        // Its content is whatever it was: only blocks whose dirty bit is set are ever looked at.
        let free = self.free.lock().pop();
        free.unwrap_or_else(new_buffer)
    }

    /// One that holds `data`, which is a whole slot: a new one is not cleared first.
    fn filled(&self, data: &[u8]) -> Buffer {
        let free = self.free.lock().pop();
        let Some(mut buffer) = free else {
            let copied: Arc<[u8]> = Arc::from(data);
            return copied.try_into().unwrap_or_else(|_| new_buffer());
        };
        Arc::make_mut(&mut buffer).copy_from_slice(data);
        buffer
    }

    /// Takes a buffer back, if nobody else has it.
    pub(crate) fn give(&self, mut buffer: Buffer) {
        if Arc::get_mut(&mut buffer).is_none() {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < self.limit {
            free.push(buffer);
        }
    }
}

fn new_buffer() -> Buffer {
    let zeroed: Arc<[u8]> = std::iter::repeat_n(0, CHUNK_BYTES_MAX).collect();
    zeroed
        .try_into()
        .unwrap_or_else(|_| Arc::new([0; CHUNK_BYTES_MAX]))
}

enum Pages {
    Scattered(Vec<(u8, Page)>),
    Whole(Buffer),
}

/// The dirty blocks of one aligned 128 KiB.
pub(crate) struct Slot {
    dirty: u32,
    /// It is in the list of what is to be written ahead.
    queued: bool,
    pages: Pages,
}

impl Slot {
    /// All blocks dirty, with the content of `buffer`.
    pub(crate) fn complete(buffer: Buffer) -> Self {
        Self {
            dirty: u32::MAX,
            queued: false,
            pages: Pages::Whole(buffer),
        }
    }

    /// The content of a dirty block.
    pub(crate) fn page(&self, index: u32) -> Option<&[u8]> {
        if self.dirty & (1 << index) == 0 {
            return None;
        }
        match &self.pages {
            Pages::Whole(buffer) => {
                let from = index as usize * BLOCK_BYTES;
                Some(&buffer[from..from + BLOCK_BYTES])
            }
            Pages::Scattered(pages) => pages
                .iter()
                .find(|(at, _)| u32::from(*at) == index)
                .map(|(_, page)| &page[..]),
        }
    }

    /// `count` dirty blocks in one piece, if they lie so.
    pub(crate) fn run(&self, index: u32, count: u32) -> Option<&[u8]> {
        match &self.pages {
            Pages::Whole(buffer) => {
                let from = index as usize * BLOCK_BYTES;
                Some(&buffer[from..from + count as usize * BLOCK_BYTES])
            }
            Pages::Scattered(_) if count == 1 => self.page(index),
            Pages::Scattered(_) => None,
        }
    }

    /// The page to write to; made, with whatever content, when it is not dirty yet.
    fn page_mut(&mut self, index: u32, buffers: &Buffers) -> &mut [u8] {
        self.dirty |= 1 << index;
        match &mut self.pages {
            Pages::Whole(buffer) => {
                let from = index as usize * BLOCK_BYTES;
                &mut Arc::make_mut(buffer)[from..from + BLOCK_BYTES]
            }
            Pages::Scattered(pages) => {
                let place = pages
                    .iter()
                    .position(|(at, _)| u32::from(*at) == index)
                    .unwrap_or_else(|| {
                        pages.push((index as u8, buffers.take_page()));
                        pages.len() - 1
                    });
                &mut pages[place].1[..]
            }
        }
    }

    fn make_whole(&mut self, buffers: &Buffers) {
        if let Pages::Scattered(pages) = &mut self.pages {
            let mut buffer = buffers.take();
            let content = Arc::make_mut(&mut buffer);
            for (index, page) in pages.drain(..) {
                let from = usize::from(index) * BLOCK_BYTES;
                content[from..from + BLOCK_BYTES].copy_from_slice(&page[..]);
            }
            self.pages = Pages::Whole(buffer);
        }
    }

    /// Gives the slot a buffer of its own if somebody else reads the one it has.
    fn unshare(&mut self, buffers: &Buffers) {
        if let Pages::Whole(buffer) = &mut self.pages
            && Arc::get_mut(buffer).is_none()
        {
            let mut own = buffers.take();
            Arc::make_mut(&mut own).copy_from_slice(&buffer[..]);
            *buffer = own;
        }
    }

    fn clean(&mut self, mask: u32) {
        self.dirty &= !mask;
        if let Pages::Scattered(pages) = &mut self.pages {
            pages.retain(|(index, _)| mask & (1 << index) == 0);
        }
    }
}

/// What a layer says of a block.
pub(crate) enum Block<'a> {
    /// Its content.
    Dirty(&'a [u8]),
    /// A block of a chunk.
    Mapped(ChunkId, u32),
    /// Zero.
    Void,
    /// Look below.
    Below,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Layer {
    slots: BTreeMap<u64, Slot>,
    mapped: BTreeMap<u64, RegionRecord>,
    void: BTreeMap<u64, u64>,
    dirty_blocks: u64,
    /// Chunks that were written ahead, held.
    ahead: BTreeMap<ChunkId, Written>,
    /// Blocks that were dirty until they were written ahead.
    ahead_blocks: u64,
}

fn mask(from: u64, to: u64) -> u32 {
    let bits = (1 << (to - from).min(32)) - 1_u64;
    (bits << from) as u32
}

impl Layer {
    /// Everything void: a new or emptied file.
    pub(crate) fn all_void() -> Self {
        let mut layer = Self::default();
        layer.void.insert(0, u64::MAX);
        layer
    }

    /// Nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.mapped.is_empty() && self.void.is_empty()
    }

    /// Dirty blocks.
    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks
    }

    /// Blocks that were dirty until they were written ahead; those overwritten or dropped since then count as well.
    pub(crate) fn ahead_blocks(&self) -> u64 {
        self.ahead_blocks
    }

    /// The chunks that were written ahead.
    pub(crate) fn ahead(&self) -> &BTreeMap<ChunkId, Written> {
        &self.ahead
    }

    /// Notes that a complete slot waits to be written ahead; `false` if it is not complete, or waits already.
    pub(crate) fn queue(&mut self, number: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else {
            return false;
        };
        if slot.dirty != u32::MAX || slot.queued || !matches!(slot.pages, Pages::Whole(_)) {
            return false;
        }
        slot.queued = true;
        true
    }

    /// The content of a slot that was queued, if it is still complete.
    pub(crate) fn take_queued(&mut self, number: u64) -> Option<Buffer> {
        let slot = self.slots.get_mut(&number).filter(|slot| slot.queued)?;
        slot.queued = false;
        match &slot.pages {
            Pages::Whole(buffer) if slot.dirty == u32::MAX => Some(buffer.clone()),
            _ => None,
        }
    }

    /// Whether the slot still is what [`take_queued`](Self::take_queued) returned.
    pub(crate) fn is_unchanged(&self, number: u64, content: &Buffer) -> bool {
        self.slots.get(&number).is_some_and(|slot| {
            slot.dirty == u32::MAX
                && matches!(&slot.pages, Pages::Whole(buffer) if Arc::ptr_eq(buffer, content))
        })
    }

    /// Puts what the blocks `from..to` were stored as in the place of what was there: runs of blocks that cover them, each with
    /// its chunk or (none) zero. Returns how many dirty blocks went; room for the others was taken as for dirty ones.
    pub(crate) fn written_ahead(
        &mut self,
        from: u64,
        to: u64,
        runs: Vec<(u64, u32, Option<Written>)>,
        buffers: &Buffers,
    ) -> u64 {
        let gone = self.drop_pages(from, to, buffers);
        self.ahead_blocks += to - from;
        for (block, count, written) in runs {
            match written {
                Some(written) => {
                    self.map(block, count, written.id, 0, buffers);
                    self.ahead.insert(written.id, written);
                }
                None => {
                    self.punch(block, block + u64::from(count), buffers);
                }
            }
        }
        gone
    }

    /// What is known of a block.
    pub(crate) fn block(&self, block: u64) -> Block<'_> {
        if let Some(page) = self
            .slots
            .get(&(block / SLOT_BLOCKS))
            .and_then(|slot| slot.page((block % SLOT_BLOCKS) as u32))
        {
            return Block::Dirty(page);
        }
        let region = u64::from(REGION_BLOCKS);
        if !self.mapped.is_empty()
            && let Some((chunk, index)) = self
                .mapped
                .get(&(block / region))
                .and_then(|record| record.lookup((block % region) as u32))
        {
            return Block::Mapped(chunk, index);
        }
        if self.is_void(block) {
            Block::Void
        } else {
            Block::Below
        }
    }

    pub(crate) fn is_dirty(&self, block: u64) -> bool {
        self.slots
            .get(&(block / SLOT_BLOCKS))
            .is_some_and(|slot| slot.dirty & (1 << (block % SLOT_BLOCKS)) != 0)
    }

    fn is_void(&self, block: u64) -> bool {
        self.void
            .range(..=block)
            .next_back()
            .is_some_and(|(_, end)| *end > block)
    }

    /// Whether some of these blocks are mapped to chunks.
    pub(crate) fn maps(&self, from: u64, to: u64) -> bool {
        let blocks = u64::from(REGION_BLOCKS);
        let is_mapped = |(region, record): (&u64, &RegionRecord)| {
            let first = region * blocks;
            let (from, to) = (from.max(first) - first, to.min(first + blocks) - first);
            record.range(from as u32, to as u32).next().is_some()
        };
        let mut mapped = self.mapped.range(from / blocks..to.div_ceil(blocks));
        mapped.any(is_mapped)
    }

    /// Whether none of these blocks was written since the layer began.
    pub(crate) fn is_untouched(&self, from: u64, to: u64) -> bool {
        self.clean_blocks(from, to) == to - from && !self.maps(from, to)
    }

    /// How many of these blocks are not dirty yet.
    pub(crate) fn clean_blocks(&self, from: u64, to: u64) -> u64 {
        let mut clean = to - from;
        if self.slots.is_empty() {
            return clean;
        }
        for (number, slot) in self.slots.range(from / SLOT_BLOCKS..=(to - 1) / SLOT_BLOCKS) {
            let first = from.max(number * SLOT_BLOCKS) - number * SLOT_BLOCKS;
            let last = to.min((number + 1) * SLOT_BLOCKS) - number * SLOT_BLOCKS;
            clean -= u64::from((slot.dirty & mask(first, last)).count_ones());
        }
        clean
    }

    /// Writes `data` at byte `offset`. A block that is written in part and is not dirty yet starts from `base`
    /// (`None`: zero). Returns how many blocks became dirty. `sequential`: the data is part of a stream.
    pub(crate) fn write<'b>(
        &mut self,
        offset: u64,
        data: &[u8],
        sequential: bool,
        buffers: &Buffers,
        base: impl Fn(u64) -> Option<&'b [u8]>,
    ) -> u64 {
        let before = self.dirty_blocks;
        let mut done = 0usize;
        while done < data.len() {
            let at = offset + done as u64;
            let number = at / CHUNK_BYTES_MAX as u64;
            let within = (at % CHUNK_BYTES_MAX as u64) as usize;
            let length = (CHUNK_BYTES_MAX - within).min(data.len() - done);
            self.write_slot(
                number,
                within,
                &data[done..done + length],
                sequential,
                buffers,
                &base,
            );
            done += length;
        }
        if !self.mapped.is_empty() && !data.is_empty() {
            self.unmap(offset / BLOCK, (offset + data.len() as u64).div_ceil(BLOCK));
        }
        self.dirty_blocks - before
    }

    fn write_slot<'b>(
        &mut self,
        number: u64,
        within: usize,
        data: &[u8],
        sequential: bool,
        buffers: &Buffers,
        base: &impl Fn(u64) -> Option<&'b [u8]>,
    ) {
        if data.len() == CHUNK_BYTES_MAX {
            self.write_whole_slot(number, data, buffers);
            return;
        }
        let whole = data.len() >= CHUNK_BYTES_MAX / 2
            || (sequential && within.is_multiple_of(BLOCK_BYTES) && data.len() >= BLOCK_BYTES);
        let slot = self.slots.entry(number).or_insert_with(|| Slot {
            dirty: 0,
            queued: false,
            pages: if whole {
                Pages::Whole(buffers.take())
            } else {
                Pages::Scattered(Vec::new())
            },
        });
        if let Pages::Scattered(pages) = &slot.pages
            && (whole || pages.len() >= SCATTERED_MAX)
        {
            slot.make_whole(buffers);
        }
        slot.unshare(buffers);
        let before = slot.dirty.count_ones();
        let (first, last) = (within / BLOCK_BYTES, (within + data.len()).div_ceil(BLOCK_BYTES));
        if let Pages::Whole(_) = &slot.pages {
            // Only the first and the last block can be partial: give them their base, then copy in one go.
            for index in [first, last - 1] {
                let (from, to) = (index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES);
                let covered = within <= from && within + data.len() >= to;
                if !covered && slot.dirty & (1 << index) == 0 {
                    let page = slot.page_mut(index as u32, buffers);
                    match base(number * SLOT_BLOCKS + index as u64) {
                        Some(content) => page.copy_from_slice(content),
                        None => page.fill(0),
                    }
                }
            }
            slot.dirty |= mask(first as u64, last as u64);
            if let Pages::Whole(buffer) = &mut slot.pages {
                Arc::make_mut(buffer)[within..within + data.len()].copy_from_slice(data);
            }
        } else {
            for index in first..last {
                let from = (index * BLOCK_BYTES).max(within);
                let to = ((index + 1) * BLOCK_BYTES).min(within + data.len());
                let fresh = slot.dirty & (1 << index) == 0;
                let page = slot.page_mut(index as u32, buffers);
                if fresh && to - from < BLOCK_BYTES {
                    match base(number * SLOT_BLOCKS + index as u64) {
                        Some(content) => page.copy_from_slice(content),
                        None => page.fill(0),
                    }
                }
                let start = from - index * BLOCK_BYTES;
                page[start..start + to - from].copy_from_slice(&data[from - within..to - within]);
            }
        }
        self.dirty_blocks += u64::from(slot.dirty.count_ones() - before);
    }

    /// Nothing of what was there is kept, so nothing of it is copied or cleared.
    fn write_whole_slot(&mut self, number: u64, data: &[u8], buffers: &Buffers) {
        let slot = self.slots.entry(number).or_insert_with(|| Slot {
            dirty: 0,
            queued: false,
            pages: Pages::Scattered(Vec::new()),
        });
        self.dirty_blocks += u64::from(slot.dirty.count_zeros());
        slot.dirty = u32::MAX;
        if let Pages::Whole(buffer) = &mut slot.pages
            && let Some(own) = Arc::get_mut(buffer)
        {
            own.copy_from_slice(data);
        } else {
            slot.pages = Pages::Whole(buffers.filled(data));
        }
    }

    /// Makes `from..to` (blocks) zero. Returns how many dirty blocks went.
    pub(crate) fn punch(&mut self, from: u64, to: u64, buffers: &Buffers) -> u64 {
        if from >= to {
            return 0;
        }
        let gone = self.drop_pages(from, to, buffers);
        self.unmap(from, to);
        // Joins the range with those that it touches.
        let (mut start, mut end) = (from, to);
        if let Some((first, last)) = self
            .void
            .range(..=from)
            .next_back()
            .map(|(first, last)| (*first, *last))
            && last >= from
        {
            start = first;
            end = end.max(last);
        }
        while let Some((first, last)) = self
            .void
            .range(start..=end)
            .next()
            .map(|(first, last)| (*first, *last))
        {
            end = end.max(last);
            self.void.remove(&first);
        }
        self.void.insert(start, end);
        gone
    }

    /// Maps `count` blocks from `block` on (within one region) to a chunk that exists. Returns how many dirty blocks
    /// went.
    pub(crate) fn map(
        &mut self,
        block: u64,
        count: u32,
        chunk: ChunkId,
        index: u32,
        buffers: &Buffers,
    ) -> u64 {
        let gone = self.drop_pages(block, block + u64::from(count), buffers);
        let region = u64::from(REGION_BLOCKS);
        self.mapped.entry(block / region).or_default().overwrite(
            (block % region) as u32,
            count,
            chunk,
            index,
        );
        gone
    }

    fn drop_pages(&mut self, from: u64, to: u64, buffers: &Buffers) -> u64 {
        let mut gone = 0;
        let mut empty = Vec::new();
        if !self.slots.is_empty() {
            for (number, slot) in self.slots.range_mut(from / SLOT_BLOCKS..=(to - 1) / SLOT_BLOCKS) {
                let first = from.max(number * SLOT_BLOCKS) - number * SLOT_BLOCKS;
                let last = to.min((number + 1) * SLOT_BLOCKS) - number * SLOT_BLOCKS;
                let bits = mask(first, last);
                gone += u64::from((slot.dirty & bits).count_ones());
                slot.clean(bits);
                if slot.dirty == 0 {
                    empty.push(*number);
                }
            }
        }
        for number in empty {
            if let Some(Slot {
                pages: Pages::Whole(buffer),
                ..
            }) = self.slots.remove(&number)
            {
                buffers.give(buffer);
            }
        }
        self.dirty_blocks -= gone;
        gone
    }

    fn unmap(&mut self, from: u64, to: u64) {
        if self.mapped.is_empty() {
            return;
        }
        let region = u64::from(REGION_BLOCKS);
        let numbers: Vec<u64> = self
            .mapped
            .range(from / region..=(to - 1) / region)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            if let Some(record) = self.mapped.get_mut(&number) {
                let first = from.max(number * region) - number * region;
                let last = to.min((number + 1) * region) - number * region;
                record.punch(first as u32, last as u32);
                if record.is_empty() {
                    self.mapped.remove(&number);
                }
            }
        }
    }

    /// The slots with dirty blocks, ascending.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.slots.iter().map(|(number, slot)| (*number, slot))
    }

    /// The regions with mapped blocks, ascending.
    pub(crate) fn mapped(&self) -> &BTreeMap<u64, RegionRecord> {
        &self.mapped
    }

    /// The void ranges in blocks, ascending.
    pub(crate) fn void(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.void.iter().map(|(from, to)| (*from, *to))
    }

    /// The first region at or behind `region` that has dirty or mapped blocks.
    pub(crate) fn next_region(&self, region: u64) -> Option<u64> {
        let per_region = u64::from(REGION_BLOCKS) / SLOT_BLOCKS;
        let slot = self
            .slots
            .range(region * per_region..)
            .next()
            .map(|(number, _)| number / per_region);
        let mapped = self.mapped.range(region..).next().map(|(number, _)| *number);
        match (slot, mapped) {
            (Some(slot), Some(mapped)) => Some(slot.min(mapped)),
            (slot, mapped) => slot.or(mapped),
        }
    }

    /// Gives the buffers back.
    pub(crate) fn recycle(layer: Arc<Layer>, buffers: &Buffers) {
        if let Some(layer) = Arc::into_inner(layer) {
            layer.drop_into(buffers);
        }
    }

    /// Gives the buffers back.
    pub(crate) fn drop_into(self, buffers: &Buffers) {
        let mut scattered = Vec::new();
        for slot in self.slots.into_values() {
            match slot.pages {
                Pages::Whole(buffer) => buffers.give(buffer),
                Pages::Scattered(pages) => scattered.extend(pages.into_iter().map(|(_, page)| page)),
            }
        }
        if !scattered.is_empty() {
            buffers.give_pages(scattered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(layer: &Layer, block: u64) -> Option<u8> {
        match layer.block(block) {
            Block::Dirty(page) => Some(page[0]),
            _ => None,
        }
    }

    #[test]
    fn masks_cover_their_range() {
        assert_eq!(mask(0, 32), u32::MAX);
        assert_eq!(mask(0, 1), 1);
        assert_eq!(mask(31, 32), 1 << 31);
        assert_eq!(mask(4, 8), 0xf0);
        for at in 0..=32 {
            assert_eq!(mask(at, at), 0, "nothing from {at} on");
        }
    }

    #[test]
    fn scattered_pages_become_a_buffer_and_keep_their_content() {
        let buffers = Buffers::new(4, 64);
        let mut layer = Layer::default();
        for block in 0..32u64 {
            assert_eq!(
                layer.write(block * 4096, &[block as u8 + 1; 4096], false, &buffers, |_| None),
                1
            );
            assert_eq!(
                layer.write(block * 4096, &[block as u8 + 1; 10], false, &buffers, |_| None),
                0
            );
        }
        assert!((0..32u64).all(|block| content(&layer, block) == Some(block as u8 + 1)));
        assert_eq!(layer.dirty_blocks(), 32);
        assert_eq!(layer.clean_blocks(30, 40), 8);
    }

    #[test]
    fn partial_blocks_start_from_their_base_and_reused_buffers_do_not_show() {
        let buffers = Buffers::new(4, 64);
        buffers.give(Arc::new([9; CHUNK_BYTES_MAX]));
        let mut layer = Layer::default();
        let base = [7u8; 4096];
        layer.write(100, &vec![1; 40_000], true, &buffers, |block| {
            (block == 0).then_some(&base[..])
        });
        let Block::Dirty(first) = layer.block(0) else {
            panic!()
        };
        assert_eq!((first[99], first[100]), (7, 1));
        let Block::Dirty(last) = layer.block(9) else {
            panic!()
        };
        assert_eq!((last[40_100 % 4096 - 1], last[40_100 % 4096]), (1, 0));
        assert!(matches!(layer.block(10), Block::Below));
    }

    #[test]
    fn pages_are_used_again_and_nothing_of_what_they_held_shows() {
        let buffers = Buffers::new(4, 3);
        let mut layer = Layer::default();
        for block in 0..5 {
            layer.write(block * 4096, &[9; 4096], false, &buffers, |_| None);
        }
        layer.drop_into(&buffers);
        assert_eq!(buffers.free_pages.lock().len(), 3, "no more are kept");
        let mut layer = Layer::default();
        layer.write(100, &[1; 10], false, &buffers, |_| None);
        layer.write(4096, &[2; 4096], false, &buffers, |_| None);
        assert_eq!(buffers.free_pages.lock().len(), 1);
        let Block::Dirty(page) = layer.block(0) else {
            panic!()
        };
        assert!(page[..100].iter().chain(&page[110..]).all(|byte| *byte == 0));
        assert!(matches!(layer.block(1), Block::Dirty(page) if *page == [2; 4096]));
    }

    #[test]
    fn a_slot_written_as_a_whole_is_the_new_content_alone() {
        let buffers = Buffers::new(4, 64);
        buffers.give(Arc::new([9; CHUNK_BYTES_MAX]));
        let mut layer = Layer::default();
        layer.write(5 * 4096, &[1; 100], false, &buffers, |_| None);
        let write =
            |layer: &mut Layer, fill: u8| layer.write(0, &[fill; CHUNK_BYTES_MAX], true, &buffers, |_| None);
        let is_all = |layer: &Layer, fill: u8| {
            (0..32).all(|block| matches!(layer.block(block), Block::Dirty(page) if *page == [fill; 4096]))
        };
        // Over a page of its own, in place, beside somebody who reads what was there, and with no buffer to be used again.
        assert_eq!((write(&mut layer, 2), is_all(&layer, 2)), (31, true));
        assert_eq!((write(&mut layer, 3), is_all(&layer, 3)), (0, true));
        assert!(layer.queue(0));
        let read = layer.take_queued(0).unwrap();
        assert!(layer.is_unchanged(0, &read));
        assert_eq!((write(&mut layer, 4), is_all(&layer, 4)), (0, true));
        assert!(read.iter().all(|byte| *byte == 3) && !layer.is_unchanged(0, &read));
        let other = CHUNK_BYTES_MAX as u64 * 7;
        assert_eq!(
            layer.write(other, &[5; CHUNK_BYTES_MAX], true, &buffers, |_| None),
            32
        );
        assert_eq!(
            (content(&layer, 7 * 32 + 31), layer.dirty_blocks()),
            (Some(5), 64)
        );
    }

    #[test]
    fn holes_join_and_hide() {
        let buffers = Buffers::new(4, 64);
        let mut layer = Layer::default();
        layer.write(0, &[1; 64 * 4096], false, &buffers, |_| None);
        assert_eq!(layer.punch(10, 20, &buffers), 10);
        assert_eq!(layer.punch(30, 40, &buffers), 10);
        assert_eq!(layer.punch(20, 30, &buffers), 10);
        assert_eq!(layer.void().collect::<Vec<_>>(), [(10, 40)]);
        layer.map(12, 2, ChunkId(5), 0, &buffers);
        assert!(matches!(layer.block(13), Block::Mapped(ChunkId(5), 1)));
        layer.write(12 * 4096, &[2; 4096], false, &buffers, |_| None);
        assert_eq!(content(&layer, 12), Some(2));
        assert!(matches!(layer.block(13), Block::Mapped(ChunkId(5), 1)));
        assert!(matches!(layer.block(14), Block::Void));
        layer.punch(0, u64::MAX, &buffers);
        assert_eq!((layer.dirty_blocks(), layer.void().count()), (0, 1));
    }
}
