//! `Heat`: how often each region (1 MiB of an object) is read and written, so that the mover knows what to raise and
//! what to sink. The idea is TIER's heat per 1 MiB block, with exponential decay instead of sweeps.
//!
//! Invariants: at most 16 bytes a region, also of files that have but one, and nothing for what is not known to be warm; counts
//! halve every [`HALF_LIFE_MINUTES`] and are brought up to date only when they are touched or asked for; what all of it takes is
//! bounded, as its allocations count, and where there is no more room the coldest goes first.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use terrace_sync::{Mutex, rank};

use super::region_counters::{Counts, HeatPages, Key};

/// Minutes in which a count halves.
pub const HALF_LIFE_MINUTES: u32 = 60;
const SHARDS: usize = 16;
/// Counts are kept in units of 1/16.
const SCALE: f32 = 16.0;
/// Bytes of a region in a record.
pub(crate) const CELL_BYTES: usize = 12;
/// Bytes of a region in RAM at most.
const REGION_MEMORY_BYTES: usize = 16;
/// By so many steps of a quarter of a half-life what goes first is told apart.
const RANKS: usize = 256;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Written.
    Write,
}

/// Heat of one region.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RegionHeat {
    /// Reads, decayed.
    pub reads: f32,
    /// Writes, decayed.
    pub writes: f32,
    /// Minutes (of the caller's clock) at the last touch, as far as that is known: no earlier than when all heat was forgotten.
    pub touched_minutes: u32,
}

impl RegionHeat {
    fn of(counts: &Counts, minutes: u32) -> Self {
        let halvings = minutes.saturating_sub(counts.minutes()) as f32 / HALF_LIFE_MINUTES as f32;
        let factor = match halvings > 0.0 {
            true => 0.5f32.powf(halvings) / SCALE,
            false => 1.0 / SCALE,
        };
        Self {
            reads: f32::from(counts.reads) * factor,
            writes: f32::from(counts.writes) * factor,
            touched_minutes: counts.minutes(),
        }
    }
}

#[derive(Default)]
struct Shard {
    pages: HeatPages,
    /// What it counts for in the whole.
    counted_bytes: usize,
}

/// Heat of all regions.
pub struct Heat {
    shards: Box<[Mutex<Shard, rank::Leaf>]>,
    memory_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
    shrinking: Mutex<(), rank::cache::HeatShrinking>,
    /// Where what changed is looked for first: so what changes again and again keeps nothing else from its turn.
    next_shard: AtomicUsize,
    /// When all heat was forgotten last; 0: never.
    cleared_minutes: AtomicU32,
}

impl Heat {
    /// Room for so many regions, at 16 bytes each.
    pub fn new(regions: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            memory_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(regions.saturating_mul(REGION_MEMORY_BYTES)),
            shrinking: Mutex::new(()),
            next_shard: AtomicUsize::new(0),
            cleared_minutes: AtomicU32::new(0),
        }
    }

    /// Room for so many regions from now on; the coldest of what is too much go at once.
    pub fn set_limit(&self, regions: usize) {
        self.limit_bytes
            .store(regions.saturating_mul(REGION_MEMORY_BYTES), Relaxed);
        self.shrink();
    }

    fn is_too_much(&self) -> bool {
        self.memory_bytes() > self.limit_bytes.load(Relaxed)
    }

    fn shard(&self, dataset: u32, object: u64) -> &Mutex<Shard, rank::Leaf> {
        let hash = (object ^ u64::from(dataset) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 60) as usize % SHARDS]
    }

    /// Changes what is known of an object, and forgets what is too much then.
    fn change<R>(&self, dataset: u32, object: u64, change: impl FnOnce(&mut HeatPages) -> R) -> R {
        let mut shard = self.shard(dataset, object).lock();
        let outcome = change(&mut shard.pages);
        self.count(&mut shard);
        drop(shard);
        if self.is_too_much() {
            self.shrink();
        }
        outcome
    }

    fn count(&self, shard: &mut Shard) {
        let bytes = shard.pages.memory_bytes();
        self.memory_bytes.fetch_add(bytes, Relaxed);
        self.memory_bytes.fetch_sub(shard.counted_bytes, Relaxed);
        shard.counted_bytes = bytes;
    }

    /// Counts `amount` accesses (1 for one request; a fraction for a request that covers the region partly).
    pub fn record(&self, dataset: u32, object: u64, region: u32, access: Access, amount: f32, minutes: u32) {
        let count = |before: Option<Counts>| {
            let now = before.map(|counts| RegionHeat::of(&counts, minutes));
            let RegionHeat {
                mut reads,
                mut writes,
                ..
            } = now.unwrap_or_default();
            match access {
                Access::Read => reads += amount,
                Access::Write => writes += amount,
            }
            let pack = |count: f32| (count * SCALE).round().clamp(0.0, f32::from(u16::MAX)) as u16;
            Counts::new(minutes, pack(reads), pack(writes)).changed()
        };
        self.change(dataset, object, |pages| {
            pages.put((dataset, object, region), count);
        });
    }

    /// Takes back reads that were counted, and turned out to be none that count.
    pub fn take_back(&self, dataset: u32, object: u64, region: u32, amount: f32, minutes: u32) {
        let key = (dataset, object, region);
        let mut shard = self.shard(dataset, object).lock();
        if let Some(counts) = shard.pages.get(key) {
            let since = minutes.saturating_sub(counts.minutes()) as f32 / HALF_LIFE_MINUTES as f32;
            // As if it had been taken back when the region was touched last.
            let then = amount * 2f32.powf(since) * SCALE;
            let reads = counts.reads.saturating_sub(then.round() as u16);
            shard.pages.replace(key, counts.with_reads(reads));
        }
    }

    /// Heat of a region at a time; zero if nothing is known.
    pub fn of(&self, dataset: u32, object: u64, region: u32, minutes: u32) -> RegionHeat {
        let counts = self
            .shard(dataset, object)
            .lock()
            .pages
            .get((dataset, object, region));
        let mut heat = counts.map_or_else(RegionHeat::default, |counts| RegionHeat::of(&counts, minutes));
        heat.touched_minutes = heat.touched_minutes.max(self.cleared_minutes.load(Relaxed));
        heat
    }

    /// All heat was forgotten at this minute. When anything was used before is not known since, so that it counts as used
    /// then: it would else be the oldest there is.
    pub fn note_cleared(&self, minutes: u32) {
        self.cleared_minutes.fetch_max(minutes, Relaxed);
    }

    /// Reads of all regions of an object, decayed.
    pub fn reads_of(&self, dataset: u32, object: u64, minutes: u32) -> f32 {
        let mut reads = 0.0;
        let shard = self.shard(dataset, object).lock();
        shard.pages.visit_object(dataset, object, |_, counts| {
            reads += RegionHeat::of(counts, minutes).reads;
        });
        reads
    }

    /// Forgets the reads of a region; returns how many that were, decayed. When it was touched stays known.
    pub fn forget_reads(&self, dataset: u32, object: u64, region: u32, minutes: u32) -> f32 {
        let key = (dataset, object, region);
        let mut shard = self.shard(dataset, object).lock();
        let Some(counts) = shard.pages.get(key) else {
            return 0.0;
        };
        shard.pages.replace(key, counts.with_reads(0));
        RegionHeat::of(&counts, minutes).reads
    }

    /// Calls `visit(dataset, object, region, heat)` for every known region, in an order that does not depend on
    /// chance. One shard is locked at a time.
    pub fn for_each(&self, minutes: u32, mut visit: impl FnMut(u32, u64, u32, RegionHeat)) {
        for shard in &self.shards {
            shard
                .lock()
                .pages
                .visit(|(dataset, object, region): Key, counts| {
                    visit(dataset, object, region, RegionHeat::of(counts, minutes));
                });
        }
    }

    /// Drops what is known of an object (it was deleted).
    pub fn forget(&self, dataset: u32, object: u64) {
        self.change(dataset, object, |pages| pages.remove_object(dataset, object));
    }

    /// Forgets everything; returns the objects that something was known of, so that their records can be dropped.
    pub fn clear(&self) -> Vec<(u32, u64)> {
        let mut known = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard
                .pages
                .visit(|(dataset, object, _), _| known.push((dataset, object)));
            shard.pages.clear();
            self.count(&mut shard);
        }
        known.dedup();
        known
    }

    /// Up to `limit` objects whose heat changed since they were last taken, encoded to be kept as records of at most `most_bytes`:
    /// of those that have more, the hottest regions.
    pub fn take_changed(&self, limit: usize, most_bytes: usize) -> Vec<(u32, u64, Vec<u8>)> {
        let mut taken = Vec::new();
        let first = self.next_shard.load(Relaxed);
        for number in (first..first + SHARDS).map(|number| number % SHARDS) {
            if taken.len() == limit {
                self.next_shard.store(number, Relaxed);
                break;
            }
            let pages = &mut self.shards[number].lock().pages;
            let mut from = (0, 0, 0);
            while taken.len() < limit
                && let Some((dataset, object)) = pages.next_changed(from)
            {
                let mut regions = Vec::new();
                pages.visit_object(dataset, object, |region, counts| regions.push((region, *counts)));
                pages.settle(dataset, object);
                taken.push((dataset, object, encode(hottest(regions, most_bytes / CELL_BYTES))));
                from = (dataset, object, u32::MAX);
            }
        }
        taken
    }

    /// Takes back what [`take_changed`](Self::take_changed) encoded, at a time; damaged bytes are ignored (heat is a hint).
    pub fn load(&self, dataset: u32, object: u64, encoded: &[u8], minutes: u32) {
        let mut before = None;
        self.change(dataset, object, |pages| pages.remove_object(dataset, object));
        for bytes in encoded.as_chunks::<CELL_BYTES>().0 {
            let word =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let region = word(0);
            // Nothing was touched in times to come.
            let counts = Counts::new(word(4).min(minutes), half(8), half(10));
            if before.is_none_or(|before| before < region) {
                before = Some(region);
                self.change(dataset, object, |pages| {
                    pages.put((dataset, object, region), |_| counts);
                });
            }
        }
    }

    /// Regions known.
    pub fn regions(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().pages.len()).sum()
    }

    /// What it takes of RAM now, by what is allocated.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Relaxed)
    }

    /// Forgets a quarter, the coldest, until the rest is within the bounds.
    fn shrink(&self) {
        // Somebody else does.
        let Some(_shrinking) = self.shrinking.try_lock() else {
            return;
        };
        while self.is_too_much() {
            let regions = self.regions();
            self.forget_coldest(regions.div_ceil(4));
            if regions == 0 {
                return;
            }
        }
    }

    /// Forgets so many regions, the coldest; among those that are as cold as each other, evenly.
    fn forget_coldest(&self, regions: usize) {
        let mut highest = 0;
        let visit = |visit: &mut dyn FnMut(&Counts)| {
            for shard in &self.shards {
                shard.lock().pages.visit(|_, counts| visit(counts));
            }
        };
        visit(&mut |counts| highest = highest.max(rank(counts)));
        let below = |counts: &Counts| (highest.saturating_sub(rank(counts)) as usize).min(RANKS - 1);
        let mut by_rank = [0usize; RANKS];
        visit(&mut |counts| by_rank[below(counts)] += 1);
        let (mut left, mut goes_in_part) = (regions, 0);
        for (rank, known) in by_rank.iter().enumerate().rev() {
            goes_in_part = rank;
            if *known >= left {
                break;
            }
            left -= known;
        }
        let known = by_rank[goes_in_part];
        let mut due = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.pages.retain(|counts| {
                let rank = below(counts);
                if rank != goes_in_part {
                    return rank < goes_in_part;
                }
                due += left;
                let goes = due >= known;
                due -= if goes { known } else { 0 };
                !goes
            });
            self.count(&mut shard);
        }
    }
}

/// How warm a region is, in steps of which four are a half-life: comparable at any time, as all decay alike.
fn rank(counts: &Counts) -> u32 {
    let counted = u32::from(counts.reads) + u32::from(counts.writes);
    let halvings = (counted.max(1) as f32).log2();
    counts.minutes() / (HALF_LIFE_MINUTES / 4) + (halvings * 4.0) as u32
}

/// The hottest of an object's regions, so many at most, in order.
fn hottest(mut regions: Vec<(u32, Counts)>, most: usize) -> Vec<(u32, Counts)> {
    if regions.len() <= most {
        return regions;
    }
    let newest = regions
        .iter()
        .map(|(_, counts)| counts.minutes())
        .max()
        .unwrap_or(0);
    let heat = |counts: &Counts| {
        let heat = RegionHeat::of(counts, newest);
        heat.reads + heat.writes
    };
    regions.sort_by(|(_, one), (_, other)| heat(other).total_cmp(&heat(one)));
    regions.truncate(most);
    regions.sort_unstable_by_key(|(region, _)| *region);
    regions
}

fn encode(regions: Vec<(u32, Counts)>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(regions.len() * CELL_BYTES);
    for (region, counts) in regions {
        bytes.extend_from_slice(&region.to_le_bytes());
        bytes.extend_from_slice(&counts.minutes().to_le_bytes());
        bytes.extend_from_slice(&counts.reads.to_le_bytes());
        bytes.extend_from_slice(&counts.writes.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_halves_in_its_half_life() {
        let heat = Heat::new(1000);
        for _ in 0..8 {
            heat.record(1, 2, 3, Access::Read, 1.0, 0);
        }
        assert_eq!(heat.of(1, 2, 3, 0).reads, 8.0);
        assert_eq!(heat.of(1, 2, 3, HALF_LIFE_MINUTES).reads, 4.0);
        assert_eq!(heat.of(1, 2, 4, 0), RegionHeat::default());
        heat.record(1, 2, 5, Access::Read, 6.0, HALF_LIFE_MINUTES);
        heat.record(1, 2, 5, Access::Write, 3.0, HALF_LIFE_MINUTES);
        assert_eq!(heat.reads_of(1, 2, HALF_LIFE_MINUTES), 10.0);
        assert_eq!(heat.forget_reads(1, 2, 5, 2 * HALF_LIFE_MINUTES), 3.0);
        assert_eq!(heat.forget_reads(1, 2, 5, 2 * HALF_LIFE_MINUTES), 0.0);
        assert_eq!(heat.reads_of(1, 2, 2 * HALF_LIFE_MINUTES), 2.0);
        assert_eq!(heat.of(1, 2, 5, HALF_LIFE_MINUTES).writes, 3.0);
    }

    #[test]
    fn what_is_taken_back_leaves_what_others_read() {
        let heat = Heat::new(1000);
        heat.record(1, 2, 3, Access::Read, 5.0, 0);
        heat.record(1, 2, 3, Access::Write, 2.0, 0);
        heat.take_back(1, 2, 3, 1.0, 0);
        assert_eq!(
            (heat.of(1, 2, 3, 0).reads, heat.of(1, 2, 3, 0).writes),
            (4.0, 2.0)
        );
        heat.take_back(1, 2, 3, 9.0, 0);
        assert_eq!(heat.of(1, 2, 3, 0).reads, 0.0);
        heat.take_back(1, 2, 4, 1.0, 0);
        heat.take_back(1, 3, 3, 1.0, 0);
        assert_eq!(heat.regions(), 1);
    }

    /// Bytes of a region, by what is allocated.
    fn each(heat: &Heat) -> f64 {
        heat.memory_bytes() as f64 / heat.regions() as f64
    }

    /// Numbers below a power of two in an order without order.
    fn scattered(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count.next_power_of_two())
    }

    #[test]
    fn sixteen_bytes_a_region_whatever_it_belongs_to() {
        const MANY: u64 = 1 << 16;
        let touch = |heat: &Heat, object: u64, region: u64| {
            heat.record(1, object, region as u32, Access::Read, 1.0, 29_000_000)
        };
        let heat = || Heat::new(4 << 20);
        // Files of one region, in the order in which they were made and in any other.
        let files = heat();
        (0..MANY).for_each(|object| touch(&files, object, 0));
        assert!(each(&files) <= 16.0, "{}", each(&files));
        let files = heat();
        scattered(MANY).for_each(|object| touch(&files, 1000 + 7 * object, 0));
        assert_eq!(files.regions() as u64, MANY);
        assert!(each(&files) <= 16.0, "{}", each(&files));
        // When most of them are gone again.
        (0..MANY).for_each(|object| {
            if object % 8 != 3 {
                files.forget(1, 1000 + 7 * object);
            }
        });
        assert_eq!(files.regions() as u64, MANY / 8);
        assert!(each(&files) <= 16.0, "{}", each(&files));
        // A volume, in order and by chance; large files of which little is warm.
        let volume = heat();
        (0..MANY).for_each(|region| touch(&volume, 5, region));
        assert!(each(&volume) <= 16.0, "{}", each(&volume));
        let volume = heat();
        scattered(MANY).for_each(|region| touch(&volume, 5, region * 3));
        assert!(each(&volume) <= 16.0, "{}", each(&volume));
        let large = heat();
        scattered(MANY).for_each(|object| touch(&large, object, object * 31 % 20_000));
        assert!(each(&large) <= 16.0, "{}", each(&large));
        // A quarter was forgotten, and all of it is counted.
        let full = Heat::new(MANY as usize / 2);
        scattered(MANY).for_each(|object| touch(&full, object, 0));
        assert!(full.memory_bytes() <= MANY as usize * 8);
        assert!(full.regions() as u64 > MANY / 3, "{}", full.regions());
        assert!(each(&full) <= 16.0, "{}", each(&full));
    }

    #[test]
    fn the_bound_counts_what_is_allocated_where_regions_have_nothing_in_common() {
        let heat = Heat::new(4096);
        (0..20_000u64).for_each(|at| {
            heat.record(
                at as u32 % 7000,
                at << 40,
                u32::MAX - at as u32,
                Access::Read,
                1.0,
                5,
            )
        });
        assert!(heat.memory_bytes() <= 4096 * 16 && heat.regions() > 300);
        let mut bytes = 0;
        for shard in &heat.shards {
            shard.lock().pages.check();
            bytes += shard.lock().pages.memory_bytes();
        }
        assert_eq!(bytes, heat.memory_bytes());
    }

    #[test]
    fn what_is_coldest_is_forgotten_first_and_one_object_may_have_all_the_room() {
        let heat = Heat::new(4096);
        for region in 0..2000 {
            heat.record(1, 9, region, Access::Read, 50.0, 600);
            heat.record(2, u64::from(region), 0, Access::Read, 1.0, 400);
        }
        for region in 0..2000 {
            heat.record(1, 9, 2000 + region, Access::Read, 2.0, 600);
        }
        let known = (0..2000).filter(|region| heat.of(1, 9, *region, 600).reads > 40.0);
        assert_eq!(known.count(), 2000);
        let old = (0..2000).filter(|object| heat.of(2, *object, 0, 600).reads > 0.0);
        assert!(old.count() < 1500);
        assert!(heat.memory_bytes() <= 4096 * 16);
    }

    #[test]
    fn it_is_bounded() {
        let heat = Heat::new(320);
        for at in 0..5000 {
            heat.record(1, at % 50, at as u32, Access::Write, 1.0, at as u32);
        }
        assert!(heat.regions() > 100 && heat.memory_bytes() <= 320 * 16);
        let one = Heat::new(320);
        (0..5000).for_each(|at| one.record(1, 1, at, Access::Write, 1.0, 1));
        assert!(one.regions() > 200 && one.memory_bytes() <= 320 * 16);
    }

    #[test]
    fn records_of_any_bytes_are_taken_as_far_as_they_make_sense() {
        let sample = [
            7, 0, 0, 0, 5, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 5, 0, 0, 0, 1, 0, 9, 0,
        ]
        .to_vec();
        terrace_fuzz::fuzz(
            env!("CARGO_MANIFEST_DIR"),
            "heat",
            vec![sample],
            None,
            &mut crate::fuzzing::heat,
        );
    }

    #[test]
    fn what_is_taken_can_be_loaded() {
        let heat = Heat::new(1000);
        heat.record(1, 2, 9, Access::Write, 2.0, 5);
        heat.record(1, 2, 3, Access::Read, 1.0, 5);
        let taken = heat.take_changed(10, usize::MAX);
        assert!(heat.take_changed(10, usize::MAX).is_empty());
        let again = Heat::new(1000);
        again.load(taken[0].0, taken[0].1, &taken[0].2, 5);
        again.load(7, 7, &[1; 13], 5);
        // A record of nothing takes no room.
        (0..1000).for_each(|object| again.load(9, object, &[], 5));
        assert_eq!(again.regions(), 3);
        assert_eq!(again.of(1, 2, 9, 5), heat.of(1, 2, 9, 5));
        heat.forget(1, 2);
        assert_eq!(heat.regions(), 0);
    }

    #[test]
    fn what_was_forgotten_was_used_at_the_latest_then() {
        let heat = Heat::new(100);
        heat.record(1, 2, 3, Access::Read, 1.0, 50);
        heat.clear();
        heat.note_cleared(100);
        assert_eq!(heat.of(1, 2, 3, 200).touched_minutes, 100);
        assert_eq!(heat.of(1, 2, 3, 200).reads, 0.0);
        heat.record(1, 2, 4, Access::Read, 1.0, 150);
        assert_eq!(heat.of(1, 2, 4, 200).touched_minutes, 150);
        // A clock that went back does not make it older.
        heat.note_cleared(90);
        assert_eq!(heat.of(1, 2, 3, 200).touched_minutes, 100);
    }
}
