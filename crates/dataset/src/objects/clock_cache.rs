//! `ClockMap`: a sharded map of decoded things, of which clean ones are forgotten as the share of all datasets wants.
//!
//! Invariants: what is in use (its `Arc` is shared) or not `evictable` stays; everything else goes when the [share](CacheShare) is
//! over its limit and the clock hand finds it untouched; what is kept counts there, until it is gone. A value loaded from the store is only inserted if nothing
//! was removed from or replaced in its shard meanwhile, so that a slow reader never brings back an old state.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use hashbrown::HashMap;
use terrace_sync::{Mutex, rank};

use super::cache_share::{CacheShare, Evicts};

const SHARDS: usize = 32;
/// What an entry takes besides its value: its places in the map and in the queue at their usual filling, and its allocation.
const ENTRY_BYTES: u64 = 96;
/// Maps with fewer places do not shrink.
const PLACES_KEPT: usize = 64;

/// Something kept in a [`ClockMap`].
pub(crate) trait Cached: Send + Sync {
    /// Whether it may be forgotten. Called with the shard locked: must not block for long.
    fn evictable(&self) -> bool;

    /// About what it takes in RAM, bytes; does not change.
    fn memory_bytes(&self) -> u64;
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
    shards: Box<[Mutex<Shard<V>, rank::Leaf>]>,
    /// The shard whose entries are looked at next.
    hand: AtomicUsize,
    bytes: AtomicU64,
    share: Arc<CacheShare>,
}

impl<V: Cached + 'static> ClockMap<V> {
    pub(crate) fn new(share: &Arc<CacheShare>) -> Arc<Self> {
        let shard = || {
            Mutex::new(Shard {
                values: HashMap::new(),
                queue: VecDeque::new(),
                version: 0,
            })
        };
        let map = Arc::new(Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hand: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            share: share.clone(),
        });
        let cache: Weak<dyn Evicts> = Arc::downgrade(&(map.clone() as Arc<dyn Evicts>));
        share.join(cache);
        map
    }

    fn shard(&self, key: (u64, u64)) -> &Mutex<Shard<V>, rank::Leaf> {
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
        drop(shard);
        self.share.relieve_for(self);
        Some(value)
    }

    /// Sets the value, whatever was there.
    pub(crate) fn insert(&self, key: (u64, u64), value: Arc<V>) {
        let mut shard = self.shard(key).lock();
        shard.version += 1;
        if let Some(slot) = shard.values.get_mut(&key) {
            self.count(value.memory_bytes(), slot.value.memory_bytes());
            slot.value = value;
            return;
        }
        self.put(&mut shard, key, value);
        drop(shard);
        self.share.relieve_for(self);
    }

    fn count(&self, more: u64, less: u64) {
        self.bytes.fetch_add(more, Relaxed);
        self.bytes.fetch_sub(less, Relaxed);
        self.share.add(more);
        self.share.sub(less);
    }

    /// Forgets the value.
    pub(crate) fn remove(&self, key: (u64, u64)) {
        let mut shard = self.shard(key).lock();
        shard.version += 1;
        if let Some(slot) = shard.values.remove(&key) {
            self.count(0, slot.value.memory_bytes() + ENTRY_BYTES);
        }
        // Its place in the queue is dropped when the hand comes by, or here when many have gathered.
        if shard.queue.len() > 64 && shard.queue.len() > shard.values.len() * 2 {
            let Shard { values, queue, .. } = &mut *shard;
            let mut seen = hashbrown::HashSet::with_capacity(values.len());
            queue.retain(|key| values.contains_key(key) && seen.insert(*key));
        }
    }

    fn put(&self, shard: &mut Shard<V>, key: (u64, u64), value: Arc<V>) {
        self.count(value.memory_bytes() + ENTRY_BYTES, 0);
        let touched = AtomicBool::new(false);
        shard.values.insert(key, Slot { value, touched });
        shard.queue.push_back(key);
    }

    /// Looks at the oldest entries of a shard; how many there were to look at.
    fn evict_of(&self, shard: &mut Shard<V>, tries: usize) -> usize {
        let looks = tries.min(shard.queue.len());
        for _ in 0..looks {
            let Some(oldest) = shard.queue.pop_front() else {
                break;
            };
            let Some(slot) = shard.values.get(&oldest) else {
                continue;
            };
            let stays = slot.touched.swap(false, Relaxed) || Arc::strong_count(&slot.value) > 1;
            if stays || !slot.value.evictable() {
                shard.queue.push_back(oldest);
            } else if let Some(slot) = shard.values.remove(&oldest) {
                self.count(0, slot.value.memory_bytes() + ENTRY_BYTES);
                shard.version += 1;
            }
        }
        let Shard { values, queue, .. } = shard;
        if values.capacity() > PLACES_KEPT && values.len() < values.capacity() / 8 {
            values.shrink_to(values.len() * 2);
            queue.shrink_to(queue.len() * 2);
        }
        looks
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
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().values.len()).sum()
    }
}

impl<V: Cached + 'static> Evicts for ClockMap<V> {
    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn evict(&self, tries: usize, _is_needed: bool) {
        let mut looks = 0;
        for _ in 0..SHARDS {
            let at = self.hand.fetch_add(1, Relaxed) % SHARDS;
            looks += self.evict_of(&mut self.shards[at].lock(), tries - looks);
            if looks >= tries {
                break;
            }
        }
    }
}

impl<V> Drop for ClockMap<V> {
    fn drop(&mut self) {
        self.share.sub(self.bytes.load(Relaxed));
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

        fn memory_bytes(&self) -> u64 {
            1024
        }
    }

    fn map(share: &Arc<CacheShare>) -> Arc<ClockMap<Value>> {
        ClockMap::new(share)
    }

    #[test]
    fn clean_values_are_bounded_and_dirty_ones_stay() {
        let share = Arc::new(CacheShare::new(256 << 10));
        let map = map(&share);
        (0..100).for_each(|key| map.insert((key, 0), Arc::new(Value(false))));
        (100..10_000).for_each(|key| map.insert((key, 0), Arc::new(Value(true))));
        assert!((0..100).all(|key| map.get((key, 0)).is_ok()));
        assert!(map.len() < 260, "{}", map.len());
        assert_eq!(share.used_bytes(), map.len() as u64 * (1024 + ENTRY_BYTES));
        share.set_limit(128 << 10);
        assert!((0..100).all(|key| map.get((key, 0)).is_ok()));
        assert!(map.len() < 130, "{}", map.len());
        (0..1000).for_each(|key| map.remove((key, 0)));
        drop(map);
        assert_eq!(share.used_bytes(), 0);
    }

    #[test]
    fn many_maps_keep_together_what_one_may_and_idle_ones_make_room() {
        let share = Arc::new(CacheShare::new(256 << 10));
        // A turn may find empty maps alone, so that a little more is kept until the next.
        let most = (256 + 32) << 10;
        let maps: Vec<_> = (0..1000).map(|_| map(&share)).collect();
        for map in &maps {
            (0..40).for_each(|key| map.insert((key, 0), Arc::new(Value(true))));
        }
        assert!(share.used_bytes() <= most, "{}", share.used_bytes());
        let last = &maps[999];
        for round in 0..20 {
            (0..200).for_each(|key| match last.get((key, round / 10)) {
                Ok(_) => {}
                Err(version) => {
                    last.insert_loaded((key, round / 10), version, Arc::new(Value(true)));
                }
            });
        }
        assert!(share.used_bytes() <= most, "{}", share.used_bytes());
        assert!(last.len() > 150, "{}: others have more", last.len());
    }

    #[test]
    fn a_slow_load_does_not_bring_back_an_old_state() {
        let map = map(&Arc::new(CacheShare::new(256 << 10)));
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
