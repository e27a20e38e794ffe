//! `BlockCache`: blocks and heads of tables in memory, within a fixed number of bytes.
//!
//! Invariants: holds only verified content, each item in a buffer of its own (never a slice that keeps a larger one
//! alive); hashing and sharding do not depend on the machine, so that a simulation reads the same blocks again.

use std::{hash::BuildHasherDefault, sync::Arc};

use bytes::Bytes;
use quick_cache::{
    OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use terrace_codec::NumberHasher;

use super::head::Head;

/// What an item takes besides its content, bytes.
const ITEM_BYTES: usize = 96;
/// Place of a table's head among its blocks.
pub(crate) const HEAD_PLACE: u32 = u32::MAX;

#[derive(Clone)]
pub(crate) enum Item {
    Block(Bytes),
    Head(Arc<Head>),
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<(u64, u32), Item> for ByBytes {
    fn weight(&self, _key: &(u64, u32), item: &Item) -> u64 {
        let content = match item {
            Item::Block(block) => block.len(),
            Item::Head(head) => head.memory_bytes(),
        };
        (content + ITEM_BYTES) as u64
    }
}

pub(crate) struct BlockCache {
    cache: Cache<(u64, u32), Item, ByBytes, BuildHasherDefault<NumberHasher>>,
}

impl BlockCache {
    /// A cache of at most `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: usize) -> Self {
        let estimated_items = (capacity_bytes / 8192).max(16);
        let options = OptionsBuilder::new()
            .shards(8)
            .estimated_items_capacity(estimated_items)
            .weight_capacity(capacity_bytes as u64)
            .build()
            .unwrap_or_else(|_| unreachable!("both required options are given"));
        let cache = Cache::with_options(
            options,
            ByBytes,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        );
        Self { cache }
    }

    pub(crate) fn get(&self, table: u64, place: u32) -> Option<Item> {
        self.cache.get(&(table, place))
    }

    pub(crate) fn insert(&self, table: u64, place: u32, item: Item) {
        self.cache.insert((table, place), item);
    }

    pub(crate) fn remove(&self, table: u64, place: u32) {
        self.cache.remove(&(table, place));
    }

    /// What is too much for the new capacity leaves at once.
    pub(crate) fn set_capacity(&self, capacity_bytes: usize) {
        self.cache.set_capacity(capacity_bytes as u64);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cache.weight() as usize
    }
}
