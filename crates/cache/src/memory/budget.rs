//! `Budget`: one limit for all the RAM that a pool uses, and the slowing of writers before the limit.
//!
//! Invariants: the shares add up to at most the limit; a writer is delayed in proportion to what it wrote, to how long commits
//! take for as much, and to how full the dirty share is above its half, never longer than [`LONGEST_DELAY`] at once; writers are
//! delayed one after the other, however many wait at a time, so that what all of them write comes to what commits take (the
//! write throttle of ZFS, which spaces its waiters in the same way). Who finds the dirty share full commits by itself, so that
//! progress needs no background thread. What is let in counts from then on, not only when it is dirty: many who come at
//! once would else all find room for one. What others leave of their shares readers have meanwhile (`lending.rs`).

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use terrace_sync::Clock;

use super::lending::Lent;

const MIB: u64 = 1 << 20;
/// The longest single delay of a writer.
pub const LONGEST_DELAY: Duration = Duration::from_millis(20);
/// Nobody waits for less: going to sleep and waking up costs a thread as much as a small write.
const SHORTEST_DELAY: Duration = Duration::from_millis(2);
/// How much longer than commits take for a byte its writer is delayed where the dirty share is full, growing evenly from nothing
/// at half of it. Commits follow each other without a pause then, and while one runs as much gathers as it holds: the share is
/// filled from a little less than half to nine tenths in turns, and over these writers are as fast as commits.
const SLOWEST: f64 = 3.0;
/// Of the whole, the part that one commit takes of changes of metadata at most, and what is counted ahead for releases.
const METADATA_PART: u64 = 16;
const OWED_PART: u64 = 64;
/// Of the whole, the part that readers have in any case.
const READERS_LEAST_PART: u64 = 16;
/// What commits are taken to need for a mebibyte before there was one, nanoseconds.
const COMMIT_NANOSECONDS: u64 = 4_000_000;

/// The RAM of a pool.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    /// What is dirty is this much at most, however large its share is.
    dirty_most: AtomicU64,
    dirty: AtomicU64,
    /// What of it changes of metadata take that no commit has begun with.
    metadata: AtomicU64,
    /// What of it is counted for releases of removed objects that are yet to come.
    owed: AtomicU64,
    /// What readers do without, since the process holds more than is counted.
    excess: AtomicU64,
    /// What writers were let in with who are not done.
    admitted: AtomicU64,
    /// When the last of those who are delayed is to be through, monotonic nanoseconds.
    through: AtomicU64,
    /// What commits needed for a mebibyte lately, nanoseconds.
    commit_nanoseconds: AtomicU64,
    delays: AtomicBool,
    pub(crate) lent: Lent,
}

impl Budget {
    /// `limit_bytes` for everything.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit: AtomicU64::new(limit_bytes),
            dirty_most: AtomicU64::new(u64::MAX),
            dirty: AtomicU64::new(0),
            metadata: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            excess: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            through: AtomicU64::new(0),
            commit_nanoseconds: AtomicU64::new(COMMIT_NANOSECONDS),
            delays: AtomicBool::new(true),
            lent: Lent::default(),
        }
    }

    /// See [`set_delays`](Self::set_delays).
    pub fn without_delays(self) -> Self {
        self.set_delays(false);
        self
    }

    /// Whether writers are ever delayed; if not, they always do themselves what commits would have to do for them.
    pub fn set_delays(&self, delays: bool) {
        self.delays.store(delays, Relaxed);
    }

    /// The whole, bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the whole; nothing is lent then. Caches sized by their share are to be resized by their owners.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Relaxed);
        self.lent.end();
    }

    /// Share of data written and not yet committed: three eighths, or what [`set_dirty_most`](Self::set_dirty_most) leaves of it.
    pub fn dirty_limit_bytes(&self) -> u64 {
        self.dirty_share_bytes().min(self.dirty_most.load(Relaxed))
    }

    fn dirty_share_bytes(&self) -> u64 {
        (self.limit_bytes() / 8 * 3).max(1 << 20)
    }

    /// At most so much is to be dirty at a time, 1 MiB at least: more could not land at once where there is room for it.
    pub fn set_dirty_most(&self, bytes: u64) {
        self.dirty_most.store(bytes.max(1 << 20), Relaxed);
    }

    /// What readers do without for what the process holds and nobody counts, bytes.
    pub fn excess_bytes(&self) -> u64 {
        self.excess.load(Relaxed)
    }

    /// They do without so much from now on. The caller resizes the cache.
    pub fn set_excess(&self, bytes: u64) {
        self.excess.store(bytes, Relaxed);
    }

    /// Share of the read cache: a quarter, what is not to be dirty, and what it is lent, less what it does without.
    pub fn read_cache_bytes(&self) -> u64 {
        // The limit may change between the two.
        let never_dirty = self.dirty_share_bytes().saturating_sub(self.dirty_limit_bytes());
        let full = self.limit_bytes() / 4 + never_dirty + self.lent.bytes();
        full.saturating_sub(self.excess_bytes())
            .max(self.limit_bytes() / READERS_LEAST_PART)
    }

    /// What caches of metadata, with this share, may keep while readers do without: from all of it down to a quarter, where they do
    /// without half of the whole. What the process holds and nobody counts is not the readers' alone to make up for: their caches
    /// may be empty.
    pub fn less_excess(&self, share_bytes: u64) -> u64 {
        let half = (self.limit_bytes() / 2).max(1);
        let excess = u128::from(self.excess_bytes().min(half));
        share_bytes - (u128::from(share_bytes / 4 * 3) * excess / u128::from(half)) as u64
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

    /// A commit of so many dirty bytes took so long. Small ones do not count: most of what they need any commit does.
    pub fn committed(&self, bytes: u64, nanoseconds: u64) {
        if bytes < self.flush_bytes() / 4 {
            return;
        }
        let each = (u128::from(nanoseconds) * u128::from(MIB) / u128::from(bytes.max(1))) as u64;
        let follow = |before: u64| Some(before / 2 + each / 2);
        let result = self.commit_nanoseconds.fetch_update(Relaxed, Relaxed, follow);
        debug_assert!(result.is_ok());
    }

    /// Dirty bytes now, of all datasets.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    /// Whether the flusher should start: above a quarter of the dirty share, `kept_bytes` not counted, which no flusher
    /// may write. As late as leaves as much again before writers are slowed: each commit writes the record of every
    /// region it touches anew, so that random writes cost the less metadata the more of them a commit gathers. Of metadata, of
    /// which `kept_metadata_bytes` are kept so, before any dataset has to wait with [`metadata_most_bytes`](Self::metadata_most_bytes).
    pub fn wants_flush(&self, kept_bytes: u64, kept_metadata_bytes: u64) -> bool {
        let metadata = self.metadata.load(Relaxed).saturating_sub(kept_metadata_bytes);
        self.dirty_bytes().saturating_sub(kept_bytes) > self.flush_bytes()
            || metadata > self.metadata_most_bytes() / 4 * 3
    }

    /// What one commit takes of changes of metadata at most, bytes: a sixteenth of the whole. What it builds of them, and what the
    /// store makes of that, takes as much again and more for as long as it runs.
    pub fn metadata_most_bytes(&self) -> u64 {
        self.limit_bytes() / METADATA_PART
    }

    /// Counts bytes that are dirty, by changes of metadata.
    pub fn add_metadata(&self, bytes: u64) {
        self.metadata.fetch_add(bytes, Relaxed);
    }

    /// A commit has begun with so many of them.
    pub fn metadata_frozen(&self, bytes: u64) {
        let less = |metadata: u64| Some(metadata.saturating_sub(bytes));
        let result = self.metadata.fetch_update(Relaxed, Relaxed, less);
        debug_assert!(result.is_ok());
    }

    /// Counts what a release that is yet to come will make dirty, beside what is; false where these are too many: what is never
    /// released would keep all others from being dirty.
    pub fn owe(&self, bytes: u64) -> bool {
        let most = self.limit_bytes() / OWED_PART;
        let more = |owed: u64| (owed + bytes <= most).then_some(owed + bytes);
        self.owed.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// The release has come.
    pub fn paid(&self, bytes: u64) {
        let less = |owed: u64| Some(owed.saturating_sub(bytes));
        let result = self.owed.fetch_update(Relaxed, Relaxed, less);
        debug_assert!(result.is_ok());
    }

    fn flush_bytes(&self) -> u64 {
        self.dirty_limit_bytes() / 4
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

    /// What writers have of their share, with those who were let in and are not done.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.dirty_bytes().saturating_add(self.admitted.load(Relaxed))
    }

    /// By how much a writer of `bytes` is delayed now, beside others.
    fn delay(&self, bytes: u64) -> Duration {
        let fill = self.dirty_bytes() as f64 / self.dirty_limit_bytes() as f64;
        let above = ((fill - 0.5) * 2.0).clamp(0.0, 1.0);
        let each = self.commit_nanoseconds.load(Relaxed) as f64 / MIB as f64;
        let nanoseconds = bytes as f64 * each * SLOWEST * above;
        Duration::from_nanos(nanoseconds as u64).min(LONGEST_DELAY)
    }

    /// Lines a writer up behind the others; how long it waits.
    fn line_up(&self, delay: Duration, now: Duration) -> Duration {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let (now, delay) = (nanoseconds(now), nanoseconds(delay));
        let end = |through: u64| (through.max(now) + delay).min(now + nanoseconds(LONGEST_DELAY));
        let before = self
            .through
            .fetch_update(Relaxed, Relaxed, |through| Some(end(through)));
        Duration::from_nanos(end(before.unwrap_or_else(|through| through)) - now)
    }

    /// Whether writers are slowed: who can do himself what commits would have to do for him does better. Always where time does not
    /// pass.
    pub fn is_slowing(&self) -> bool {
        !self.delays.load(Relaxed) || self.dirty_bytes() > self.dirty_limit_bytes() / 2
    }

    /// Delays the calling writer of `bytes`. To be called with no lock held.
    pub fn throttle(&self, clock: &dyn Clock, bytes: u64) {
        let delay = self.delay(bytes);
        if !self.delays.load(Relaxed) || delay.is_zero() {
            return;
        }
        let wait = self.line_up(delay, Duration::from_nanos(clock.monotonic_nanoseconds()));
        if wait >= SHORTEST_DELAY {
            clock.rest(wait);
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
    fn what_is_not_to_be_dirty_is_for_readers() {
        let budget = Budget::new(1 << 30);
        budget.set_dirty_most(100 << 20);
        assert_eq!(budget.dirty_limit_bytes(), 100 << 20);
        assert_eq!(budget.read_cache_bytes(), (256 + 384 - 100) << 20);
        assert!(budget.admit(101 << 20).is_none() && budget.admit(100 << 20).is_some());
        budget.set_dirty_most(1 << 30);
        assert_eq!(budget.dirty_limit_bytes(), 384 << 20);
        assert_eq!(budget.read_cache_bytes(), 256 << 20);
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
    fn writers_wait_one_after_the_other() {
        let budget = Budget::new(8 << 20);
        let millis = Duration::from_millis;
        let (now, delay) = (millis(500), Duration::from_micros(300));
        let line_up = |now| budget.line_up(delay, now);
        let waits: Vec<_> = (0..8).map(|_| line_up(now)).collect();
        assert_eq!(waits[0], delay);
        assert_eq!(waits[7], 8 * delay);
        // A millisecond later there is that much less to wait for; long after nothing.
        assert_eq!(line_up(now + millis(1)), Duration::from_micros(1700));
        assert_eq!(line_up(now + millis(90)), delay);
        // The line is never longer than the longest delay.
        (0..1000).for_each(|_| {
            line_up(now + millis(90));
        });
        assert_eq!(line_up(now + millis(90)), LONGEST_DELAY);
        assert_eq!(line_up(now + millis(91)), millis(19) + delay);
    }

    #[test]
    fn nobody_is_delayed_below_half_or_where_time_does_not_pass() {
        let budget = Budget::new(8 << 20);
        budget.add_dirty(budget.dirty_limit_bytes() / 2);
        assert!(budget.delay(1 << 20).is_zero() && !budget.is_slowing());
        budget.add_dirty(budget.dirty_limit_bytes() / 2);
        assert!(!budget.delay(1 << 20).is_zero() && budget.is_slowing());
        budget.sub_dirty(u64::MAX);
        assert!(budget.without_delays().is_slowing());
    }

    #[test]
    fn the_delay_starts_at_half_and_grows_steadily() {
        let budget = Budget::new(8 << 20);
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
        assert_eq!(budget.delay(1 << 30), LONGEST_DELAY);
        budget.sub_dirty(limit * 2);
        assert_eq!(budget.dirty_bytes(), 0);
    }

    #[test]
    fn writers_are_slowed_to_what_commits_take() {
        let budget = Budget::new(64 << 20);
        let (limit, mib) = (budget.dirty_limit_bytes(), Duration::from_millis(1));
        // Large commits at a gigabyte a second.
        for _ in 0..20 {
            budget.committed(limit / 2, limit / 2 / MIB * 1_000_000);
        }
        budget.add_dirty(limit * 2 / 3);
        let (least, most) = (mib * 99 / 100, mib * 101 / 100);
        assert!((least..most).contains(&budget.delay(1 << 20)));
        (0..1000).for_each(|_| budget.committed(4096, 50_000_000));
        assert!((least..most).contains(&budget.delay(1 << 20)));
        // A device that became slow is heeded soon.
        (0..3).for_each(|_| budget.committed(limit / 2, limit / 2 / MIB * 10_000_000));
        assert!(budget.delay(1 << 20) > 8 * mib);
    }
}
