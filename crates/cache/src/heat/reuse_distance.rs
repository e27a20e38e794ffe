//! `ReuseSampler`: how large a fast tier would have to be for which share of reads, from the reads that were made.
//!
//! The share of reads that a cache of a size answers (least recently used goes first) follows from reuse distances: how
//! many bytes of other regions were read since a region was read last. Keeping all of them costs too much, so a sample
//! of regions, chosen by the hash of their names, stands for all (SHARDS: Waldspurger, Park, Garthwaite and Ahmad,
//! "Efficient MRC Construction with SHARDS", FAST 2015, with a sample of fixed size and its correction).
//!
//! A fast tier holds whole regions where all of them is read, and single blocks where only these are: so both are sampled, regions
//! and pieces of them that are read from the same block on, and the better answer counts.
//!
//! Invariants: at most [`SAMPLE`] regions and as many pieces are remembered, whatever is read; a read outside the
//! sample, or of what was read last, costs two hashes and additions, and takes no lock.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use terrace_codec::mix;
use terrace_store::BLOCK_BYTES;
use terrace_sync::{Mutex, rank};

/// Regions in the sample; and pieces.
const SAMPLE: usize = 4096;
/// Of a read, what begins in the same block is the same piece.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Hashes are below this; the sample takes those below its threshold.
const HASHES: u32 = 1 << 24;
/// Moments between two renumberings.
const MOMENTS: usize = 4 * SAMPLE;
/// Distances below this many MiB have a bucket each; above it, sixteen per doubling.
const FINE: u64 = 64;
const PER_DOUBLING: u64 = 16;
const BUCKETS: usize = (FINE + PER_DOUBLING * 40) as usize;
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Seen {
    moment: usize,
    bytes: u64,
}

struct Sample {
    seen: HashMap<u64, Seen>,
    by_hash: BTreeSet<(u32, u64)>,
    /// Fenwick tree: bytes of those last read at each moment.
    sums: Vec<u64>,
    next_moment: usize,
    /// Reads by reuse distance; each stands for as many as the sample stood for when it was made.
    reads: Vec<f64>,
    first_reads: f64,
}

impl Sample {
    fn new() -> Self {
        Self {
            seen: HashMap::new(),
            by_hash: BTreeSet::new(),
            sums: vec![0; MOMENTS + 1],
            next_moment: 0,
            reads: vec![0.0; BUCKETS],
            first_reads: 0.0,
        }
    }

    fn add(&mut self, moment: usize, bytes: u64, remove: bool) {
        let mut at = moment + 1;
        while at <= MOMENTS {
            self.sums[at] = if remove {
                self.sums[at].saturating_sub(bytes)
            } else {
                self.sums[at] + bytes
            };
            at += at & at.wrapping_neg();
        }
    }

    /// Bytes of those last read at this moment or before.
    fn until(&self, moment: usize) -> u64 {
        let (mut at, mut sum) = (moment + 1, 0);
        while at > 0 {
            sum += self.sums[at];
            at &= at - 1;
        }
        sum
    }

    fn moment(&mut self) -> usize {
        if self.next_moment == MOMENTS {
            let mut order: Vec<_> = self.seen.iter().map(|(key, seen)| (seen.moment, *key)).collect();
            order.sort_unstable();
            self.sums.fill(0);
            for (moment, (_, key)) in order.iter().enumerate() {
                if let Some(seen) = self.seen.get_mut(key) {
                    seen.moment = moment;
                    let bytes = seen.bytes;
                    self.add(moment, bytes, false);
                }
            }
            self.next_moment = order.len();
        }
        self.next_moment += 1;
        self.next_moment - 1
    }
}

/// A read of an object.
#[derive(Debug, Clone, Copy)]
pub struct Reuse {
    /// Dataset of the object.
    pub dataset: u32,
    /// Its body.
    pub object: u64,
    /// The region that is read.
    pub region: u32,
    /// What the region holds, bytes.
    pub region_bytes: u64,
    /// Where the read begins in the object, and how long it is, bytes.
    pub offset: u64,
    /// See `offset`.
    pub length: u64,
}

/// See the module.
#[derive(Default)]
pub struct ReuseSampler {
    regions: Sampler,
    pieces: Sampler,
}

impl ReuseSampler {
    /// Somebody reads.
    pub fn record(&self, read: Reuse) {
        let region = mix(mix(u64::from(read.dataset) << 32 | u64::from(read.region)) ^ read.object);
        self.regions.record(region, read.region_bytes);
        let block = read.offset / BLOCK;
        let blocks = read.offset.saturating_add(read.length.max(1)).div_ceil(BLOCK) - block;
        self.pieces.record(mix(region ^ block), blocks * BLOCK);
    }

    /// Reads seen so far.
    pub fn reads(&self) -> u64 {
        self.regions.all.load(Relaxed)
    }

    /// The share of reads (0–1) that a fast tier of this size would have answered; `None` before the first read.
    pub fn hit_rate(&self, size_bytes: u64) -> Option<f64> {
        let pieces = self.pieces.hit_rate(size_bytes)?;
        let most = self.regions.hit_rate(size_bytes)?.max(pieces);
        // What every size answers, none does not.
        Some(if size_bytes == 0 { 0.0 } else { most })
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.regions.clear();
        self.pieces.clear();
    }
}

/// Of one kind of what is read.
struct Sampler {
    threshold: AtomicU32,
    /// All reads, those outside the sample too.
    all: AtomicU64,
    /// What was read last.
    last: AtomicU64,
    sample: Mutex<Sample, rank::Leaf>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            threshold: AtomicU32::new(HASHES),
            all: AtomicU64::new(0),
            last: AtomicU64::new(0),
            sample: Mutex::new(Sample::new()),
        }
    }
}

impl Sampler {
    /// A read of what is called so, and holds `bytes`.
    fn record(&self, key: u64, bytes: u64) {
        self.all.fetch_add(1, Relaxed);
        let hash = (key >> 40) as u32;
        // A read of the same again is answered by every size, and counted so by the correction.
        if hash >= self.threshold.load(Relaxed) || self.last.swap(key, Relaxed) == key {
            return;
        }
        let mut sample = self.sample.lock();
        let threshold = self.threshold.load(Relaxed);
        if hash >= threshold {
            return;
        }
        let rate = f64::from(threshold) / f64::from(HASHES);
        let bytes = bytes.clamp(1, MIB);
        match sample.seen.get(&key).copied() {
            Some(seen) => {
                let newest = sample.next_moment.saturating_sub(1);
                let since = sample.until(newest).saturating_sub(sample.until(seen.moment));
                // It must fit itself too.
                let distance = (since as f64 / rate) as u64 + bytes;
                sample.reads[bucket(distance)] += 1.0 / rate;
                sample.add(seen.moment, seen.bytes, true);
            }
            None => {
                sample.first_reads += 1.0 / rate;
                sample.by_hash.insert((hash, key));
            }
        }
        // Taken out first, so that a renumbering does not count it.
        sample.seen.remove(&key);
        let moment = sample.moment();
        sample.add(moment, bytes, false);
        sample.seen.insert(key, Seen { moment, bytes });
        while sample.seen.len() > SAMPLE {
            let Some((largest, key)) = sample.by_hash.pop_last() else {
                break;
            };
            if let Some(seen) = sample.seen.remove(&key) {
                sample.add(seen.moment, seen.bytes, true);
            }
            self.threshold.store(largest, Relaxed);
        }
    }

    fn hit_rate(&self, size_bytes: u64) -> Option<f64> {
        let all = self.all.load(Relaxed) as f64;
        if all == 0.0 {
            return None;
        }
        let sample = self.sample.lock();
        let counted = sample.first_reads + sample.reads.iter().sum::<f64>();
        // What the sample has too few or too many of is the most popular, which every size answers.
        let mut hits = all - counted;
        for (at, reads) in sample.reads.iter().enumerate() {
            if end_of(at) <= size_bytes {
                hits += reads;
            } else {
                break;
            }
        }
        Some((hits / all).clamp(0.0, 1.0))
    }

    fn clear(&self) {
        let mut sample = self.sample.lock();
        *sample = Sample::new();
        self.threshold.store(HASHES, Relaxed);
        self.all.store(0, Relaxed);
    }

    #[cfg(test)]
    fn sampled(&self) -> usize {
        self.sample.lock().seen.len()
    }
}

/// The bucket of a distance.
fn bucket(distance_bytes: u64) -> usize {
    let mib = distance_bytes.div_ceil(MIB);
    if mib <= FINE {
        return mib.saturating_sub(1) as usize;
    }
    // Doublings above FINE, in sixteenths.
    let doubling = u64::from((mib - 1).ilog2() - FINE.ilog2());
    let start = FINE << doubling;
    let step = (start / PER_DOUBLING).max(1);
    ((FINE + doubling * PER_DOUBLING + (mib - 1 - start) / step) as usize).min(BUCKETS - 1)
}

/// The largest distance in a bucket, bytes.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < FINE {
        return (bucket + 1) * MIB;
    }
    let (doubling, part) = ((bucket - FINE) / PER_DOUBLING, (bucket - FINE) % PER_DOUBLING);
    let start = FINE << doubling;
    (start + (part + 1) * (start / PER_DOUBLING).max(1)).saturating_mul(MIB)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a cache that forgets the least recently used region answers of a trace: the replay that is compared with.
    fn replay(trace: &[(u32, u64)], size_bytes: u64) -> f64 {
        let (mut order, mut places) = (BTreeMap::new(), HashMap::new());
        let (mut used, mut hits) = (0, 0);
        for (moment, (region, bytes)) in trace.iter().enumerate() {
            if let Some(before) = places.insert(*region, moment) {
                order.remove(&before);
                hits += 1;
            } else {
                used += bytes;
            }
            order.insert(moment, (*region, *bytes));
            while used > size_bytes {
                let Some((_, (oldest, bytes))) = order.pop_first() else {
                    break;
                };
                places.remove(&oldest);
                used -= bytes;
            }
        }
        f64::from(hits) / trace.len() as f64
    }

    /// Reads by Zipf's law over `regions`, with a slow drift of what is popular.
    fn zipf(regions: u32, reads: u32, seed: u64) -> Vec<(u32, u64)> {
        let weights: Vec<f64> = (1..=regions)
            .map(|rank| 1.0 / f64::from(rank).powf(0.9))
            .collect();
        let mut sums = Vec::with_capacity(weights.len());
        let mut sum = 0.0;
        for weight in &weights {
            sum += weight;
            sums.push(sum);
        }
        let mut state = seed;
        let draw = |at: u32| {
            state = mix(state.wrapping_add(1));
            let point = (state >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let rank = sums.partition_point(|sum| *sum < point) as u32;
            let region = (rank.wrapping_mul(2_654_435_761) ^ (at / 100_000)) % regions;
            (region, if region.is_multiple_of(3) { 64 << 10 } else { MIB })
        };
        (0..reads).map(draw).collect()
    }

    #[test]
    fn predictions_agree_with_a_replay_of_that_size() {
        let trace = zipf(40_000, 400_000, 7);
        let sampler = Sampler::default();
        for (region, bytes) in &trace {
            sampler.record(mix(u64::from(*region)), *bytes);
        }
        assert!(sampler.sampled() <= SAMPLE && sampler.sampled() > SAMPLE / 2);
        assert_eq!(sampler.all.load(Relaxed), 400_000);
        let mut last = 0.0;
        for mebibytes in [64, 512, 2048, 8192, 16_384, 65_536] {
            let (predicted, measured) = (
                sampler.hit_rate(mebibytes * MIB).unwrap(),
                replay(&trace, mebibytes * MIB),
            );
            assert!(
                (predicted - measured).abs() < 0.04,
                "{mebibytes} MiB: predicted {predicted}, measured {measured}"
            );
            assert!(predicted >= last);
            last = predicted;
        }
        assert!(last > 0.8, "{last}");
        sampler.clear();
        assert_eq!((sampler.hit_rate(MIB), sampler.sampled()), (None, 0));
    }

    /// Reads of single blocks of a body of 512 MiB, of which these are read so often.
    fn single_blocks(places: &[(u32, u64)]) -> ReuseSampler {
        let sampler = ReuseSampler::default();
        for (block, length) in places {
            let offset = u64::from(*block) * BLOCK;
            sampler.record(Reuse {
                dataset: 1,
                object: 2,
                region: (offset / MIB) as u32,
                region_bytes: MIB,
                offset,
                length: *length,
            });
        }
        sampler
    }

    #[test]
    fn hot_blocks_that_are_scattered_over_regions_need_no_more_than_their_own_room() {
        let blocks = 512 * 256;
        let trace: Vec<_> = zipf(blocks, 400_000, 11)
            .into_iter()
            .map(|(block, _)| (block, BLOCK))
            .collect();
        let sampler = single_blocks(&trace);
        for mebibytes in [16, 64, 128, 256] {
            let predicted = sampler.hit_rate(mebibytes * MIB).unwrap();
            let measured = replay(&trace, mebibytes * MIB);
            let by_region = sampler.regions.hit_rate(mebibytes * MIB).unwrap();
            assert!(
                (predicted - measured).abs() < 0.04 && by_region < measured - 0.1,
                "{mebibytes} MiB: predicted {predicted}, by regions alone {by_region}, measured {measured}"
            );
        }
        // Each block of regions that are hot as wholes was read once or twice: with its region, the others are there too.
        let trace: Vec<_> = (0..16_384)
            .map(|at: u32| (mix(u64::from(at)) as u32 % (64 * 256), BLOCK))
            .collect();
        let sampler = single_blocks(&trace);
        let (whole, pieces) = (
            sampler.hit_rate(64 * MIB).unwrap(),
            sampler.pieces.hit_rate(64 * MIB).unwrap(),
        );
        assert!(whole > 0.97 && pieces < 0.5, "{whole} {pieces}");
        assert_eq!(sampler.reads(), 16_384);
        sampler.clear();
        assert_eq!(sampler.hit_rate(MIB), None);
    }

    #[test]
    fn no_tier_answers_nothing_though_one_block_is_read_over_and_over() {
        let sampler = single_blocks(&[(7, BLOCK); 100]);
        assert_eq!(sampler.hit_rate(0), Some(0.0));
        assert!(sampler.hit_rate(MIB).unwrap() > 0.98);
    }

    #[test]
    fn few_regions_are_counted_exactly() {
        let sampler = Sampler::default();
        for _ in 0..10_000 {
            (0..100).for_each(|region| sampler.record(mix(region), MIB));
        }
        assert!(
            sampler.hit_rate(99 * MIB).unwrap() < 0.01,
            "each is gone before it is read again"
        );
        assert!(sampler.hit_rate(112 * MIB).unwrap() > 0.99);
    }

    #[test]
    fn buckets_cover_all_distances() {
        for distance in (0..5000).map(|at| at * 700_001).chain([u64::MAX / 4]) {
            let at = bucket(distance);
            assert!(at < BUCKETS);
            assert!(at == BUCKETS - 1 || end_of(at) >= distance, "{distance} in {at}");
            assert!(at == 0 || end_of(at - 1) < distance.max(1) || at == BUCKETS - 1);
        }
    }
}
