//! `Budget`: one limit for all the RAM that a pool uses, and the slowing of writers before the limit.
//!
//! Invariants: the shares add up to at most the limit; a writer is delayed in proportion to what it wrote and to how
//! full the dirty share is above its half (the idea of ZFS's write throttle: a delay that grows smoothly instead of
//! a stall), never longer than [`LONGEST_DELAY`] at once. Who finds the dirty share full commits by itself, so that
//! progress needs no background thread. What is let in counts from then on, not only when it is dirty: many who come at
//! once would else all find room for one.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The longest single delay of a writer.
pub const LONGEST_DELAY: Duration = Duration::from_millis(20);
/// Delays shorter than this are saved up.
const SHORTEST_DELAY_NANOSECONDS: u64 = 200_000;
/// Delay per byte when the dirty share is full: 10 MB/s.
const NANOSECONDS_PER_BYTE: f64 = 100.0;
/// How late the delay grows from nothing at half of the share to that: at three quarters it still allows 2.5 GB/s, at nine
/// tenths 60 MB/s. Grown sooner it holds writers back while a commit of what a fast device takes in no time is on its way.
const STEEPNESS: i32 = 8;

/// The RAM of a pool.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    dirty: AtomicU64,
    /// What writers were let in with who are not done.
    admitted: AtomicU64,
    debt_nanoseconds: AtomicU64,
    delays: AtomicBool,
}

impl Budget {
    /// `limit_bytes` for everything.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit: AtomicU64::new(limit_bytes),
            dirty: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            debt_nanoseconds: AtomicU64::new(0),
            delays: AtomicBool::new(true),
        }
    }

    /// Never delays (simulation: time does not pass by itself).
    pub fn without_delays(self) -> Self {
        self.delays.store(false, Relaxed);
        self
    }

    /// The whole, bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the whole. Caches sized by their share are to be resized by their owners.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Relaxed);
    }

    /// Share of data written and not yet committed: three eighths.
    pub fn dirty_limit_bytes(&self) -> u64 {
        (self.limit_bytes() / 8 * 3).max(1 << 20)
    }

    /// Share of the read cache: a quarter.
    pub fn read_cache_bytes(&self) -> u64 {
        self.limit_bytes() / 4
    }

    /// Share of decoded objects, directories and region records: an eighth.
    pub fn object_bytes(&self) -> u64 {
        self.limit_bytes() / 8
    }

    /// Share of the store's tables and caches (memtables, block cache, dedup filter): a quarter.
    pub fn store_bytes(&self) -> u64 {
        self.limit_bytes() / 4
    }

    /// Counts dirty bytes.
    pub fn add_dirty(&self, bytes: u64) {
        self.dirty.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that are committed or dropped.
    pub fn sub_dirty(&self, bytes: u64) {
        let result = self
            .dirty
            .fetch_update(Relaxed, Relaxed, |dirty| Some(dirty.saturating_sub(bytes)));
        debug_assert!(result.is_ok());
    }

    /// Dirty bytes now, of all datasets.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    /// Whether the flusher should start: above a quarter of the dirty share, `kept_bytes` not counted, which no flusher
    /// may write. As late as leaves as much again before writers are slowed: each commit writes the record of every
    /// region it touches anew, so that random writes cost the less metadata the more of them a commit gathers.
    pub fn wants_flush(&self, kept_bytes: u64) -> bool {
        self.dirty_bytes().saturating_sub(kept_bytes) > self.dirty_limit_bytes() / 4
    }

    /// Whether what is kept in RAM on purpose (`durability=ram`), `kept_bytes` of one dataset, must be written after all:
    /// from half of the dirty share on, where the delays of all other writers begin, if it is worth a commit.
    pub fn is_kept_full(&self, kept_bytes: u64) -> bool {
        self.dirty_bytes() >= self.dirty_limit_bytes() / 2 && kept_bytes >= self.dirty_limit_bytes() / 8
    }

    /// Lets a writer of `bytes` in, if they have room in the dirty share beside what is dirty and who was let in before; else it
    /// must see to it that less is dirty. `bytes` count until what is returned is dropped.
    pub fn admit(&self, bytes: u64) -> Option<Admitted<'_>> {
        let least = bytes.max(1);
        let room = |admitted: u64| {
            let taken = self.dirty_bytes().saturating_add(admitted);
            let fits = taken.saturating_add(least) <= self.dirty_limit_bytes();
            fits.then(|| admitted + bytes)
        };
        let admitted = self.admitted.fetch_update(Relaxed, Relaxed, room);
        admitted.is_ok().then(|| Admitted { budget: self, bytes })
    }

    /// Lets a writer in that has done what it can for it.
    pub fn admit_always(&self, bytes: u64) -> Admitted<'_> {
        self.admitted.fetch_add(bytes, Relaxed);
        Admitted { budget: self, bytes }
    }

    /// How long a writer of `bytes` should wait now.
    pub fn delay(&self, bytes: u64) -> Duration {
        let fill = self.dirty_bytes() as f64 / self.dirty_limit_bytes() as f64;
        if fill <= 0.5 {
            return Duration::ZERO;
        }
        let above = ((fill - 0.5) * 2.0).min(1.0);
        let nanoseconds = bytes as f64 * NANOSECONDS_PER_BYTE * above.powi(STEEPNESS);
        Duration::from_nanos(nanoseconds as u64).min(LONGEST_DELAY)
    }

    /// Lets a writer of `bytes` pass who may not wait, and saves up his delay; false, and nothing is saved up, if
    /// [`throttle`](Self::throttle) would have him wait now.
    pub fn passes(&self, bytes: u64) -> bool {
        if !self.delays.load(Relaxed) {
            return true;
        }
        let delay = self.delay(bytes).as_nanos() as u64;
        let save = |debt: u64| Some(debt + delay).filter(|debt| *debt < SHORTEST_DELAY_NANOSECONDS);
        delay == 0 || self.debt_nanoseconds.fetch_update(Relaxed, Relaxed, save).is_ok()
    }

    /// Delays the calling writer of `bytes`. To be called with no lock held.
    pub fn throttle(&self, bytes: u64) {
        if !self.delays.load(Relaxed) {
            return;
        }
        let delay = self.delay(bytes);
        if delay.is_zero() {
            return;
        }
        let debt =
            self.debt_nanoseconds.fetch_add(delay.as_nanos() as u64, Relaxed) + delay.as_nanos() as u64;
        if debt >= SHORTEST_DELAY_NANOSECONDS {
            let mine = self.debt_nanoseconds.swap(0, Relaxed);
            std::thread::sleep(Duration::from_nanos(mine).min(LONGEST_DELAY));
        }
    }
}

/// A writer that was let in, until it is done.
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct Admitted<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.budget.admitted.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_fit_into_the_limit() {
        let budget = Budget::new(1 << 30);
        let shares = [
            budget.dirty_limit_bytes(),
            budget.read_cache_bytes(),
            budget.object_bytes(),
            budget.store_bytes(),
        ];
        assert!(shares.iter().sum::<u64>() <= budget.limit_bytes());
    }

    #[test]
    fn many_who_come_at_once_are_let_in_as_far_as_there_is_room() {
        let budget = Budget::new(8 << 20);
        let part = budget.dirty_limit_bytes() / 3;
        let mut inside: Vec<_> = (0..9).filter_map(|_| budget.admit(part)).collect();
        assert_eq!(inside.len(), 3);
        // One becomes dirty, one does not.
        budget.add_dirty(part);
        inside.truncate(1);
        assert!(budget.admit(2 * part).is_none());
        inside.extend(budget.admit(part));
        assert!(inside.len() == 2 && budget.admit(0).is_none());
        let last = budget.admit_always(part);
        drop((last, inside));
        budget.sub_dirty(part);
        assert!(budget.admit(3 * part).is_some() && budget.admit(4 * part).is_none());
    }

    #[test]
    fn who_may_not_wait_passes_until_he_would_have_to() {
        let budget = Budget::new(8 << 20);
        let limit = budget.dirty_limit_bytes();
        budget.add_dirty(limit / 2);
        assert!((0..1000).all(|_| budget.passes(4096)));
        // At nine tenths 4 KiB cost some 69 µs.
        budget.add_dirty(limit / 10 * 4);
        let passed = (0..10).take_while(|_| budget.passes(4096)).count();
        assert!((1..5).contains(&passed), "{passed}");
        // Whoever waits pays for those who passed.
        budget.throttle(4096);
        assert!(budget.passes(4096));
        assert!(budget.without_delays().passes(1 << 30));
    }

    #[test]
    fn the_delay_starts_at_half_and_grows_steadily() {
        let budget = Budget::new(8 << 20).without_delays();
        let limit = budget.dirty_limit_bytes();
        budget.add_dirty(limit / 2);
        assert_eq!(budget.delay(4096), Duration::ZERO);
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            budget.add_dirty(limit / 19);
            assert!(budget.delay(4096) >= last);
            last = budget.delay(4096);
        }
        assert!(last > Duration::ZERO && budget.admit(4096).is_none());
        // A fast device is not waited for while much room is left; a slow one is, before there is none.
        budget.sub_dirty(limit * 2);
        budget.add_dirty(limit / 4 * 3);
        assert!(budget.delay(1 << 20) < Duration::from_millis(1));
        budget.add_dirty(limit / 5);
        assert!(budget.delay(1 << 20) > Duration::from_millis(10));
        assert!(budget.delay(1 << 30) <= LONGEST_DELAY);
        budget.sub_dirty(limit * 2);
        assert_eq!(budget.dirty_bytes(), 0);
    }
}
