//! `CacheShare`: the one limit, in bytes, of all that the datasets of a pool keep decoded: objects, region records, names.
//!
//! Limits for each dataset would add up: a thousand of them are open on some machines. So each cache counts what it keeps here, and
//! whoever brings the sum over the limit has the caches forget something in turn, its own among them. Which it is the clock in each
//! decides: what was used since its hand came by stays.
//!
//! Invariants: what is in use or not committed stays, also over the limit; one insertion looks at a bounded number of entries; no
//! lock is waited for but those of the caches' shards, which are held briefly and under which nothing else is locked.

use std::sync::{
    Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use terrace_sync::{Mutex, rank};

/// Entries that a cache looks at when its turn comes.
const TRIES: usize = 8;

/// The same where all is looked at; rounds after which that ends if none of them brought anything: the first finds what was used.
const TRIES_OF_ALL: usize = 256;

const ROUNDS_IN_VAIN: u32 = 2;

/// By this part of the limit more than that is much more.
const MUCH_PART: u64 = 8;

/// Caches with something in them whose turn it is at once, and those that are looked at for that.
const TURNS: usize = 4;

const LOOKS: usize = 64;

/// A cache that counts what it keeps in a share.
pub(crate) trait Evicts: Send + Sync {
    /// What it keeps, bytes.
    fn bytes(&self) -> u64;

    /// Looks at up to `tries` entries and forgets those that nobody needs. `is_needed`: nothing else brought enough.
    fn evict(&self, tries: usize, is_needed: bool);
}

#[derive(Default)]
struct Members {
    caches: Vec<Weak<dyn Evicts>>,
    hand: usize,
}

/// See the module.
#[derive(Default)]
pub struct CacheShare {
    limit: AtomicU64,
    used: AtomicU64,
    members: Mutex<Members, rank::Leaf>,
}

impl CacheShare {
    /// Of at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let share = Self::default();
        share.limit.store(limit_bytes, Relaxed);
        share
    }

    /// What all caches keep, bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// The share is this much from now on; what is too much is forgotten.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Relaxed);
        self.relieve_all();
    }

    /// Has the caches forget what is too much, as far as they can; for who has just let go of much.
    pub fn relieve_all(&self) {
        let mut in_vain = 0;
        while self.is_over() && in_vain < ROUNDS_IN_VAIN {
            let before = self.used_bytes();
            let caches = self.members.lock().caches.len();
            (0..=caches / TURNS).for_each(|_| self.take_turns(TRIES_OF_ALL, in_vain > 0));
            in_vain = if self.used_bytes() < before {
                0
            } else {
                in_vain + 1
            };
        }
    }

    /// A cache counts here from now on, as long as it lives.
    pub(crate) fn join(&self, cache: Weak<dyn Evicts>) {
        let mut members = self.members.lock();
        members.caches.push(cache);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    fn is_over(&self) -> bool {
        self.used.load(Relaxed) > self.limit.load(Relaxed)
    }

    /// Where more is kept than is to be, some caches forget something. No lock of a cache is held.
    pub(crate) fn relieve(&self) {
        let limit = self.limit_bytes();
        self.take_turns(TRIES, self.used_bytes() > limit + limit / MUCH_PART);
    }

    /// The same after `own` took more: where many caches have nothing, their turns alone come too seldom.
    pub(crate) fn relieve_for(&self, own: &dyn Evicts) {
        self.relieve();
        let limit = self.limit_bytes();
        if self.used_bytes() > limit + limit / MUCH_PART {
            own.evict(TRIES, true);
        }
    }

    fn take_turns(&self, tries: usize, is_needed: bool) {
        if !self.is_over() {
            return;
        }
        // Somebody else is at it.
        let Some(mut members) = self.members.try_lock() else {
            return;
        };
        let mut turns = Vec::with_capacity(TURNS);
        for _ in 0..LOOKS.min(members.caches.len()) {
            let at = members.hand % members.caches.len().max(1);
            members.hand = at + 1;
            match members.caches.get(at).and_then(Weak::upgrade) {
                Some(cache) if cache.bytes() > 0 => turns.push(cache),
                Some(_) => {}
                None => drop(members.caches.swap_remove(at)),
            }
            if turns.len() == TURNS {
                break;
            }
        }
        drop(members);
        for cache in turns {
            if self.is_over() {
                cache.evict(tries, is_needed);
            }
        }
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        debug_assert!(
            self.used_bytes() == 0 || std::thread::panicking(),
            "what was counted was not given back"
        );
    }
}
