//! `ClockMap`: a sharded map of decoded things with a bounded number of clean ones.
//!
//! Invariants: what is in use (its `Arc` is shared) or not `evictable` stays; everything else goes when a shard is
//! over its limit and the clock hand finds it untouched. A value loaded from the store is only inserted if nothing
//! was removed from or replaced in its shard meanwhile, so that a slow reader never brings back an old state.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use hashbrown::HashMap;
use parking_lot::Mutex;

const SHARDS: usize = 32;
/// Entries that one insertion looks at to find room.
const TRIES: usize = 8;

/// Something kept in a [`ClockMap`].
pub(crate) trait Cached: Send + Sync {
    /// Whether it may be forgotten. Called with the shard locked: must not block for long.
    fn evictable(&self) -> bool;
}

struct Slot<V> {
    value: Arc<V>,
    touched: AtomicBool,
}

struct Shard<V> {
    values: HashMap<(u64, u64), Slot<V>>,
    queue: VecDeque<(u64, u64)>,
    version: u64,
}

/// See the module.
pub(crate) struct ClockMap<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    limit_per_shard: AtomicUsize,
}

impl<V: Cached> ClockMap<V> {
    pub(crate) fn new(limit: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                values: HashMap::new(),
                queue: VecDeque::new(),
                version: 0,
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            limit_per_shard: AtomicUsize::new((limit / SHARDS).max(1)),
        }
    }

    /// What is too much for the new limit goes as others come.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit_per_shard.store((limit / SHARDS).max(1), Relaxed);
    }

    fn shard(&self, key: (u64, u64)) -> &Mutex<Shard<V>> {
        let hash = (key.0 ^ key.1.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 59) as usize % SHARDS]
    }

    /// The value, or the shard's version to pass to [`insert_loaded`](Self::insert_loaded).
    pub(crate) fn get(&self, key: (u64, u64)) -> Result<Arc<V>, u64> {
        let shard = self.shard(key).lock();
        match shard.values.get(&key) {
            Some(slot) => {
                if !slot.touched.load(Relaxed) {
                    slot.touched.store(true, Relaxed);
                }
                Ok(slot.value.clone())
            }
            None => Err(shard.version),
        }
    }

    /// Inserts what was loaded after `get` returned `version`. `None` if the shard changed: load again.
    pub(crate) fn insert_loaded(&self, key: (u64, u64), version: u64, value: Arc<V>) -> Option<Arc<V>> {
        let mut shard = self.shard(key).lock();
        if let Some(slot) = shard.values.get(&key) {
            return Some(slot.value.clone());
        }
        if shard.version != version {
            return None;
        }
        self.put(&mut shard, key, value.clone());
        Some(value)
    }

    /// Sets the value, whatever was there.
    pub(crate) fn insert(&self, key: (u64, u64), value: Arc<V>) {
        let mut shard = self.shard(key).lock();
        shard.version += 1;
        if let Some(slot) = shard.values.get_mut(&key) {
            slot.value = value;
            return;
        }
        self.put(&mut shard, key, value);
    }

    /// Forgets the value.
    pub(crate) fn remove(&self, key: (u64, u64)) {
        let mut shard = self.shard(key).lock();
        shard.version += 1;
        shard.values.remove(&key);
        // Its place in the queue is dropped when the hand comes by, or here when many have gathered.
        if shard.queue.len() > 64 && shard.queue.len() > shard.values.len() * 2 {
            let Shard { values, queue, .. } = &mut *shard;
            let mut seen = hashbrown::HashSet::with_capacity(values.len());
            queue.retain(|key| values.contains_key(key) && seen.insert(*key));
        }
    }

    fn put(&self, shard: &mut Shard<V>, key: (u64, u64), value: Arc<V>) {
        let limit = self.limit_per_shard.load(Relaxed);
        let mut tries = 0;
        while shard.values.len() >= limit && tries < TRIES {
            tries += 1;
            let Some(oldest) = shard.queue.pop_front() else {
                break;
            };
            let Some(slot) = shard.values.get(&oldest) else {
                continue;
            };
            let stays = slot.touched.swap(false, Relaxed) || Arc::strong_count(&slot.value) > 1;
            if stays || !slot.value.evictable() {
                shard.queue.push_back(oldest);
            } else {
                shard.values.remove(&oldest);
                shard.version += 1;
            }
        }
        shard.values.insert(
            key,
            Slot {
                value,
                touched: AtomicBool::new(false),
            },
        );
        shard.queue.push_back(key);
    }

    /// Visits every value; a shard's values are collected first, so that `visit` may block.
    pub(crate) fn for_each(&self, visit: impl Fn(&V)) {
        for shard in &self.shards {
            let values: Vec<Arc<V>> = shard
                .lock()
                .values
                .values()
                .map(|slot| slot.value.clone())
                .collect();
            values.iter().for_each(|value| visit(value));
        }
    }

    /// How many are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().values.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Value(bool);

    impl Cached for Value {
        fn evictable(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn clean_values_are_bounded_and_dirty_ones_stay() {
        let map = ClockMap::new(256);
        (0..100).for_each(|key| map.insert((key, 0), Arc::new(Value(false))));
        (100..10_000).for_each(|key| map.insert((key, 0), Arc::new(Value(true))));
        assert!((0..100).all(|key| map.get((key, 0)).is_ok()));
        assert!(map.len() < 600, "{}", map.len());
        map.set_limit(128);
        (0..1000).for_each(|key| map.insert((key, 1), Arc::new(Value(true))));
        assert!((0..100).all(|key| map.get((key, 0)).is_ok()));
        assert!(map.len() < 300, "{}", map.len());
    }

    #[test]
    fn a_slow_load_does_not_bring_back_an_old_state() {
        let map = ClockMap::new(256);
        let Err(version) = map.get((1, 1)) else {
            panic!("nothing is in it")
        };
        map.insert((1, 1), Arc::new(Value(true)));
        map.remove((1, 1));
        assert!(
            map.insert_loaded((1, 1), version, Arc::new(Value(true)))
                .is_none()
        );
    }
}
