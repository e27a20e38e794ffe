//! `Names`: what the names take that a dataset's directories keep in RAM.
//!
//! Invariants: every name in a directory's [`Entries`](super::directory_cache::Entries) counts here as long as it is there, and with it in
//! the [share](CacheShare) of all datasets; names that changed and are not committed stay. A directory forgets all of its clean names
//! at once, since it then no longer knows all of them; so the names of a dataset go together, and only where they are worth the look
//! at all its objects.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    cache_share::{CacheShare, Evicts},
    clock_cache::ClockMap,
    object::Object,
};

/// What a name takes besides itself: its place in the tree at the usual filling, and its allocation.
const NAME_BYTES: u64 = 144;

/// Part of the share that the names of one dataset have in any case, unless nothing else makes room: a directory of which all names
/// are known need not be looked into for each new one.
const KEPT_PART: u64 = 4;

/// So many bytes of names are worth a look at a dataset's objects, for each of these.
const WORTH_PER_OBJECT_BYTES: u64 = 32;

/// About what a name of this length takes in RAM.
pub(crate) fn name_bytes(length: usize) -> u64 {
    NAME_BYTES + length as u64
}

/// What names take, counted for one dataset and for all.
pub(crate) struct NameCount {
    bytes: AtomicU64,
    share: Arc<CacheShare>,
}

impl NameCount {
    pub(crate) fn new(share: Arc<CacheShare>) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicU64::new(0),
            share,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.share.add(bytes);
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.share.sub(bytes);
    }
}

/// See the module.
pub(crate) struct Names {
    pub(crate) count: Arc<NameCount>,
    objects: Arc<ClockMap<Object>>,
}

impl Names {
    /// Of the directories among these objects.
    pub(crate) fn of(objects: &Arc<ClockMap<Object>>, share: &Arc<CacheShare>) -> Arc<Self> {
        let names = Arc::new(Self {
            count: NameCount::new(share.clone()),
            objects: objects.clone(),
        });
        let cache: Weak<dyn Evicts> = Arc::downgrade(&(names.clone() as Arc<dyn Evicts>));
        share.join(cache);
        names
    }
}

impl Evicts for Names {
    fn bytes(&self) -> u64 {
        self.count.bytes()
    }

    fn evict(&self, _tries: usize, is_needed: bool) {
        let bytes = self.count.bytes();
        let is_much = bytes > self.count.share.limit_bytes() / KEPT_PART;
        let is_worth = || is_needed && bytes >= self.objects.len() as u64 * WORTH_PER_OBJECT_BYTES;
        if !is_much && !is_worth() {
            return;
        }
        self.objects.for_each(|object| {
            // One who works on it needs its names.
            if let Some(mut state) = object.try_state()
                && let Some(entries) = &mut state.entries
            {
                entries.shrink();
            }
        });
    }
}
