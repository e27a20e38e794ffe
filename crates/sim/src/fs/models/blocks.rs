//! `BlocksModel`: what a file or a volume must hold: blocks that are not all zero, and a size.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a block of content.
pub const BLOCK: usize = 4096;
/// Sparse content: blocks that are not all zero, and a size.
#[derive(Clone, Default)]
pub struct BlocksModel {
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
    /// Blocks for which room is set aside; no content.
    pub(super) preallocated: Arc<BTreeSet<u64>>,
    /// Blocks that a dump says the file takes; in a model none.
    pub(super) shown_taken: Option<u64>,
    /// More room may be set aside than is known: a call that sets some aside, or gives some back, failed on the way.
    pub(super) may_take_more: bool,
    /// Bytes.
    pub size: u64,
    /// Sum over the blocks of a hash of each with its number: equal content has equal sums.
    pub sum: u64,
}

/// The part of [`BlocksModel::sum`] that one block makes; 0 for zeroes.
pub fn block_sum(number: u64, block: &[u8]) -> u64 {
    if block.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let mut padded = [0; BLOCK];
    padded[..block.len()].copy_from_slice(block);
    xxh3_64_with_seed(&padded, number)
}

impl BlocksModel {
    /// Zeroes, that many bytes.
    pub fn sized(size: u64) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    fn set_block(&mut self, number: u64, block: &[u8; BLOCK]) {
        if let Some(old) = self.blocks.remove(&number) {
            self.sum = self.sum.wrapping_sub(block_sum(number, &old[..]));
        }
        let sum = block_sum(number, block);
        if sum != 0 {
            self.blocks.insert(number, Arc::new(*block));
            self.sum = self.sum.wrapping_add(sum);
        }
    }

    /// Overwrites a range; the size grows when it must.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = at / BLOCK as u64;
            let within = (at % BLOCK as u64) as usize;
            let take = rest.len().min(BLOCK - within);
            let mut block = self.blocks.get(&number).map_or([0; BLOCK], |block| **block);
            block[within..within + take].copy_from_slice(&rest[..take]);
            self.set_block(number, &block);
            rest = &rest[take..];
            at += take as u64;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Makes a range read as zero; the size stays.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let first = offset / BLOCK as u64;
        let numbers: Vec<u64> = self
            .blocks
            .range(first..=end.div_ceil(BLOCK as u64))
            .map(|(n, _)| *n)
            .collect();
        for number in numbers {
            let start = number * BLOCK as u64;
            let from = offset.max(start) - start;
            let to = end.min(start + BLOCK as u64).saturating_sub(start);
            if from < to {
                let mut block = self.blocks.get(&number).map_or([0; BLOCK], |block| **block);
                block[from as usize..to as usize].fill(0);
                self.set_block(number, &block);
            }
        }
    }

    /// Changes the size; what was behind a smaller one is gone for good.
    pub fn resize(&mut self, size: u64) {
        if size <= self.size {
            self.release(size, u64::MAX);
        }
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Sets room aside for the blocks of a range.
    pub fn preallocate(&mut self, offset: u64, length: u64) {
        let blocks = offset / BLOCK as u64..(offset + length).div_ceil(BLOCK as u64);
        Arc::make_mut(&mut self.preallocated).extend(blocks);
    }

    /// Gives the room of the whole blocks in a range back.
    pub fn release(&mut self, offset: u64, length: u64) {
        if self.preallocated.is_empty() {
            return;
        }
        let (first, end) = (
            offset.div_ceil(BLOCK as u64),
            offset.saturating_add(length) / BLOCK as u64,
        );
        Arc::make_mut(&mut self.preallocated).retain(|block| *block < first || *block >= end);
    }

    /// Whether a write there must find room.
    pub fn is_promised(&self, offset: u64, length: u64) -> bool {
        let mut blocks = offset / BLOCK as u64..(offset + length).div_ceil(BLOCK as u64);
        length > 0 && blocks.all(|block| self.preallocated.contains(&block))
    }

    /// Blocks for which room is set aside.
    pub fn promised(&self) -> &BTreeSet<u64> {
        &self.preallocated
    }

    /// Reads; short at the end.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(length as u64));
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        if bytes.is_empty() {
            return bytes;
        }
        for (number, block) in self.blocks.range(offset / BLOCK as u64..=end / BLOCK as u64) {
            let start = number * BLOCK as u64;
            let from = start.max(offset);
            let to = (start + BLOCK as u64).min(end);
            if from < to {
                bytes[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
            }
        }
        bytes
    }

    /// Blocks that hold something, or for which room is set aside.
    pub fn taken_blocks(&self) -> usize {
        let promised = self.preallocated.iter();
        self.blocks.len() + promised.filter(|block| !self.blocks.contains_key(block)).count()
    }

    /// Whether so many blocks are what the file takes.
    pub fn is_taken(&self, blocks: u64) -> bool {
        let taken = self.taken_blocks() as u64;
        blocks == taken || self.may_take_more && blocks > taken
    }

    /// Of a dump: the file says that it takes so many blocks.
    pub fn shows_taken(&mut self, blocks: u64) {
        self.shown_taken = Some(blocks);
    }

    /// Blocks that hold something.
    pub fn used_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Numbers of the blocks that hold something.
    pub fn block_numbers(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }
}

impl PartialEq for BlocksModel {
    fn eq(&self, other: &Self) -> bool {
        self.size == other.size && self.sum == other.sum
    }
}

impl std::fmt::Debug for BlocksModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, sum {:016x}", self.size, self.sum)
    }
}
