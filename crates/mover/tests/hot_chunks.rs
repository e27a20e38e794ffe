//! A hot set that is scattered in small blocks over a whole volume: which reads still reach the slow tier is counted.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, NewDataset, Volume, check};
use terrace_device::ManualClock;
use terrace_mover::{Mover, Step, TierPolicy};
use terrace_store::{
    Batch, ChunkId, ChunkInfo, MemoryStore, Piece, Placement, Reservation, RewriteOutcome, Sequence, Space,
    Store, StoreError, Written,
};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const BLOCK: u64 = 4096;
/// The volume is eight times as large as the fast tier, and that eight times as large as the read cache.
const VOLUME: u64 = 64 * MIB;
const FAST: u64 = 8 * MIB;
const MEMORY: u64 = 4 * MIB;
/// How far hot content fills the fast tier: the middle of its marks.
const FILLED: u64 = FAST / 10 * 8;

/// Counts what is read from each tier, and what is moved.
struct Devices {
    below: MemoryStore,
    reads: [AtomicU64; 2],
    moved_bytes: AtomicU64,
    /// Counting it takes long: kept until something changes.
    space: Mutex<Option<Space>>,
}

impl Store for Devices {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.below.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.below.scan(from, to, limit)
    }
    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        *self.space.lock() = None;
        self.below.write_chunks(pieces)
    }
    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        let tier = self.below.chunk_info(id)?.map_or(0, |info| info.tier);
        self.reads[usize::from(tier)].fetch_add(1, Relaxed);
        self.below.read_chunk(id)
    }
    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        self.below.chunk_info(id)
    }
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        *self.space.lock() = None;
        self.below.commit(batch)
    }
    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.below.flush(sequence)
    }
    fn newest(&self) -> Sequence {
        self.below.newest()
    }
    fn reserve(&self, bytes: u64) -> Result<Reservation, StoreError> {
        self.below.reserve(bytes)
    }
    fn space(&self) -> Space {
        let mut kept = self.space.lock();
        let space = kept.get_or_insert_with(|| {
            let mut space = self.below.space();
            space.tiers[0].size_bytes = FAST;
            space
        });
        space.clone()
    }
    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        *self.space.lock() = None;
        let outcome = self.below.rewrite(ids, placement)?;
        self.moved_bytes.fetch_add(outcome.moved_bytes, Relaxed);
        Ok(outcome)
    }
}

struct Pool {
    store: Arc<Devices>,
    clock: Arc<ManualClock>,
    datasets: Arc<Datasets>,
    mover: Mover,
    volume: Arc<Volume>,
    /// Blocks by how often they are read, and up to each of them the sum of that.
    blocks: Vec<u64>,
    sums: Vec<f64>,
}

impl Pool {
    /// A volume of chunks of 4 KiB that lies on the slow tier, with this property.
    fn new(property: &str, value: &str) -> Self {
        let store = Arc::new(Devices {
            below: MemoryStore::new(4 * VOLUME),
            reads: Default::default(),
            moved_bytes: AtomicU64::new(0),
            space: Mutex::new(None),
        });
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let (datasets, mover) = open(&store, &clock);
        let made = NewDataset {
            volume_bytes: Some(VOLUME),
            properties: vec![
                ("chunk_size".into(), "4K".into()),
                (property.into(), value.into()),
            ],
            ..NewDataset::default()
        };
        datasets.create("pool/v", &made).unwrap();
        let number = datasets.info("pool/v").unwrap().number;
        let volume = datasets.volume("pool/v").unwrap();
        let mut random = SmallRng::seed_from_u64(4242);
        let mut piece = vec![0; MIB as usize];
        for at in 0..VOLUME / MIB {
            random.fill(&mut piece[..]);
            volume.write(at * MIB, &piece).unwrap();
            volume.commit().unwrap();
        }
        let mut blocks: Vec<u64> = (0..VOLUME / BLOCK).collect();
        blocks.shuffle(&mut random);
        let sums = blocks.iter().enumerate().scan(0.0, |sum, (rank, _)| {
            *sum += ((rank + 1) as f64).powf(-1.2);
            Some(*sum)
        });
        let sums = sums.collect();
        let pool = Self {
            store,
            clock,
            datasets,
            mover,
            volume,
            blocks,
            sums,
        };
        if property != "pin" {
            pool.mover.move_to(number, 0, "slow").unwrap();
            pool.settle();
        }
        assert_eq!(pool.store.space().tiers[0].live_bytes, 0);
        pool.store.moved_bytes.store(0, Relaxed);
        pool
    }

    fn reopen(&mut self) {
        self.mover.save().unwrap();
        (self.datasets, self.mover) = open(&self.store, &self.clock);
        self.volume = self.datasets.volume("pool/v").unwrap();
    }

    /// Lets a time pass, in which the mover does what it may.
    fn pass(&self, nanoseconds: u64) {
        let mut left = nanoseconds;
        for _ in 0..100_000 {
            match self.mover.step().unwrap() {
                Step::More => {}
                Step::Idle { .. } if left == 0 => return,
                Step::Idle { wait } => {
                    let some = wait.clamp(1, left);
                    self.clock.advance(some);
                    left -= some;
                }
            }
        }
        panic!("the mover does not come to rest");
    }

    fn settle(&self) {
        self.pass(60 * SECOND);
        let jobs = self.mover.jobs();
        assert!(jobs.iter().all(|job| job.state != "running"), "{jobs:?}");
    }

    /// Zipf-distributed reads of single blocks, a thousand a second; the part of them that reached the slow tier.
    fn read(&self, seed: u64, reads: u64) -> f64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let before = self.store.reads[1].load(Relaxed);
        let mut buffer = vec![0; BLOCK as usize];
        for at in 1..=reads {
            let sought = random.random_range(0.0..*self.sums.last().unwrap());
            let rank = self.sums.partition_point(|sum| *sum <= sought);
            self.volume.read(self.blocks[rank] * BLOCK, &mut buffer).unwrap();
            if at % 250 == 0 {
                self.pass(SECOND / 4);
            }
        }
        (self.store.reads[1].load(Relaxed) - before) as f64 / reads as f64
    }

    /// Reads all of it in order.
    fn scan(&self) {
        let mut buffer = vec![0; 256 << 10];
        for at in (0..VOLUME).step_by(buffer.len()) {
            self.volume.read(at, &mut buffer).unwrap();
            self.pass(SECOND / 100);
        }
    }

    fn environment(&self) -> &Environment {
        self.datasets.environment()
    }

    fn moved_bytes(&self) -> u64 {
        self.store.moved_bytes.load(Relaxed)
    }

    fn check(&self) {
        let store: Arc<dyn Store> = self.store.clone();
        assert_eq!(check(&store).unwrap().problems, Vec::<String>::new());
        let filled = self.store.space().tiers[0].live_bytes;
        assert!(filled <= FILLED + MIB, "{filled} on the fast tier");
    }
}

fn open(store: &Arc<Devices>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Mover) {
    let budget = Arc::new(Budget::new(MEMORY).without_delays());
    let environment = Environment::with_budget(store.clone(), clock.clone(), budget);
    let datasets = Arc::new(Datasets::open(Arc::new(environment), "pool").unwrap());
    let mover = Mover::open(datasets.clone()).unwrap();
    (datasets, mover)
}

/// What of the reads would reach the slow tier if the hottest blocks lay on the fast one, and RAM had nothing.
fn best(pool: &Pool) -> f64 {
    let all = pool.sums.last().unwrap();
    1.0 - pool.sums[(FILLED / BLOCK) as usize - 1] / all
}

const READS: u64 = 20_000;

#[test]
fn scattered_hot_blocks_come_up_and_stay() {
    let mut pool = Pool::new("compression", "off");
    let best = best(&pool);
    pool.mover.set_enabled(false);
    let before = pool.read(1, READS);
    pool.mover.set_enabled(true);
    let training: Vec<f64> = (2..8).map(|seed| pool.read(seed, READS)).collect();
    let moved = pool.moved_bytes();
    let after = pool.read(1, READS);
    let moved_after = pool.moved_bytes() - moved;
    pool.scan();
    let after_scan = pool.read(1, READS);
    pool.reopen();
    let restart = pool.read(1, READS);
    let figures = format!(
        "slow reads a request: {before:.3}; training {training:.3?}; {after:.3}; after a scan {after_scan:.3}, after a \
         restart {restart:.3}; {best:.3} at best without RAM; moved meanwhile {} KiB",
        moved_after >> 10
    );
    println!("{figures}");
    pool.check();
    // By region it was 0.183: all regions are about as warm.
    assert!(before > 0.2, "{figures}");
    assert!(after < 0.11 && after < best * 1.2, "{figures}");
    assert!(after_scan < after * 1.05, "{figures}");
    assert!(restart < after * 1.05, "{figures}");
    // Chunks that are as hot as each other do not change places: of what lies there, a fifth in 20,000 reads.
    assert!(moved_after < FILLED / 5, "{figures}");
}

#[test]
fn single_chunks_obey_pins_and_jobs() {
    let pinned = Pool::new("pin", "slow");
    pinned.read(1, 5000);
    pinned.check();
    assert_eq!(pinned.moved_bytes(), 0, "what is pinned stays");

    let pool = Pool::new("compression", "off");
    let up = || pool.store.space().tiers[0].live_bytes;
    let policies = |rate_limit| {
        let policy = |name| TierPolicy {
            promote_after: 5,
            rate_limit,
            ..TierPolicy::named(name)
        };
        ["fast", "slow"].map(policy).to_vec()
    };
    pool.mover.set_policies(policies(0));
    // A few hot blocks, and regions that are not.
    let read = |blocks: usize, times: usize| {
        let mut buffer = vec![0; BLOCK as usize];
        for _ in 0..times {
            for block in &pool.blocks[..blocks] {
                pool.volume.read(block * BLOCK, &mut buffer).unwrap();
            }
            // Out of RAM again.
            pool.environment().cache.set_capacity(0);
            pool.environment().cache.set_capacity(1 << 20);
            pool.environment().heat.clear();
            pool.pass(SECOND);
        }
    };
    read(20, 4);
    pool.pass(20 * SECOND);
    assert_eq!(up(), 0, "four times is not five");
    pool.mover.set_enabled(false);
    read(20, 1);
    assert_eq!(up(), 0, "migration=off");
    pool.mover.set_enabled(true);
    // Two may share the place where they wait for the mover.
    read(20, 2);
    pool.pass(20 * SECOND);
    assert_eq!(up(), 20 * BLOCK);
    let promotion = || pool.mover.jobs().into_iter().find(|job| job.kind == "promote");
    let done = promotion().unwrap();
    assert_eq!((done.state, done.done_bytes), ("done", done.total_bytes));

    // Slowly, so that there is time to pause it.
    pool.mover.set_policies(policies(64 << 10));
    read(200, 6);
    let begun = up();
    assert!((21 * BLOCK..200 * BLOCK).contains(&begun), "{begun}");
    let running = |job: &terrace_mover::JobInfo| job.state == "running";
    let id = pool.mover.jobs().iter().find(|job| running(job)).unwrap().id;
    pool.mover.pause(id).unwrap();
    pool.pass(60 * SECOND);
    assert_eq!(up(), begun, "paused");
    pool.mover.resume(id).unwrap();
    pool.pass(2 * SECOND);
    let later = up();
    assert!((begun + BLOCK..200 * BLOCK).contains(&later), "{later}");
    pool.mover.cancel(id).unwrap();
    pool.pass(5 * SECOND);
    assert_eq!(up(), later, "cancelled: nothing until the next look at the tiers");
    pool.check();
}
