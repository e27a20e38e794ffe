//! A pool on emulated devices: counted is which reads reach the slow tier, and what is moved. Time is a clock's that stands
//! still between reads.

#![allow(clippy::unwrap_used, dead_code)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, NewDataset, Volume, check};
use terrace_device::ManualClock;
use terrace_mover::{Mover, Step};
use terrace_store::{
    Batch, ChunkId, MemoryStore, Piece, Placement, RewriteOutcome, Sequence, Space, Store, StoreError,
    Written,
};

pub const MIB: u64 = 1 << 20;
pub const SECOND: u64 = 1_000_000_000;
pub const BLOCK: u64 = 4096;

/// Sizes of a pool, and what is read of its volume.
#[derive(Clone, Copy)]
pub struct Shape {
    pub volume_bytes: u64,
    pub fast_bytes: u64,
    pub memory_bytes: u64,
    pub chunk_size: &'static str,
    /// Reads between two times that the mover is driven by a quarter of a second.
    pub reads_per_quarter: u64,
    pub pattern: Pattern,
}

#[derive(Clone, Copy)]
pub enum Pattern {
    /// Zipf-distributed with exponent 1.2, each block at a rank of chance.
    Scattered,
    /// Nine reads of ten in the first tenth of the volume.
    Contiguous,
}

impl Shape {
    /// How far hot content fills the fast tier: the middle of its marks.
    pub fn filled_bytes(&self) -> u64 {
        self.fast_bytes / 10 * 8
    }
}

/// Counts what is read from each tier, and what is moved.
pub struct Devices {
    below: MemoryStore,
    fast_bytes: u64,
    pub reads: [AtomicU64; 2],
    pub moved_bytes: AtomicU64,
    /// How long a move takes, nanoseconds.
    pub move_nanoseconds: AtomicU64,
    /// How long the slow tier takes for a request, nanoseconds, and the fast one; and requests that moves made of the slow one.
    pub slow_nanoseconds: AtomicU64,
    pub fast_nanoseconds: AtomicU64,
    pub move_requests: AtomicU64,
    clock: Arc<ManualClock>,
    /// What segments take on the fast tier.
    pub taken_bytes: AtomicU64,
    /// Counting it takes long: kept until something changes.
    space: Mutex<Option<Space>>,
}

impl Store for Devices {
    terrace_store::in_memory!(below: get scan chunk_info flush newest reserve_beside reserve_always);

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        *self.space.lock() = None;
        self.below.write_chunks(pieces)
    }
    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        let tier = self.below.chunk_info(id)?.map_or(0, |info| info.tier);
        self.reads[usize::from(tier)].fetch_add(1, Relaxed);
        let took = [&self.fast_nanoseconds, &self.slow_nanoseconds];
        self.clock.advance(took[usize::from(tier)].load(Relaxed));
        self.below.read_chunk(id)
    }
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        *self.space.lock() = None;
        self.below.commit(batch)
    }
    fn space(&self) -> Space {
        let mut kept = self.space.lock();
        let space = kept.get_or_insert_with(|| {
            let mut space = self.below.space();
            space.tiers[0].size_bytes = self.fast_bytes;
            space.tiers[0].floor_bytes = self.fast_bytes / 8;
            space
        });
        let mut space = space.clone();
        space.tiers[0].used_bytes = self.taken_bytes.load(Relaxed);
        space
    }
    fn rewrite(&self, ids: &[ChunkId], placement: Placement) -> Result<RewriteOutcome, StoreError> {
        *self.space.lock() = None;
        let requests = self.slow_requests(ids, &placement)?;
        let outcome = self.below.rewrite(ids, placement)?;
        self.move_requests.fetch_add(requests, Relaxed);
        self.clock.advance(requests * self.slow_nanoseconds.load(Relaxed));
        self.moved_bytes.fetch_add(outcome.moved_bytes, Relaxed);
        self.clock.advance(self.move_nanoseconds.load(Relaxed));
        Ok(outcome)
    }
}

impl Devices {
    /// Requests of the slow tier that a move makes, of half a mebibyte at most: chunks that were written one after the other lie side by side.
    fn slow_requests(&self, ids: &[ChunkId], placement: &Placement) -> Result<u64, StoreError> {
        let (mut requests, mut bytes) = (std::collections::BTreeSet::new(), 0);
        for id in ids {
            let Some(info) = self.below.chunk_info(*id)? else {
                continue;
            };
            if info.tier == 1 {
                requests.insert(id.0 / 4);
            } else if matches!(placement, Placement::Tier { tier: 1, .. }) {
                bytes += u64::from(info.stored);
            }
        }
        Ok(requests.len() as u64 + bytes.div_ceil(512 << 10))
    }

    /// Content on the fast tier, bytes.
    pub fn space_of_fast(&self) -> u64 {
        self.space().tiers[0].live_bytes
    }
}

pub struct Pool {
    pub shape: Shape,
    pub store: Arc<Devices>,
    pub clock: Arc<ManualClock>,
    pub datasets: Arc<Datasets>,
    pub mover: Mover,
    pub volume: Arc<Volume>,
    /// Blocks by how often they are read, and up to each of them the sum of that.
    pub blocks: Vec<u64>,
    pub sums: Vec<f64>,
}

impl Pool {
    /// A volume that lies on the slow tier, with this property.
    pub fn new(shape: Shape, property: &str, value: &str) -> Self {
        let volume_bytes = shape.volume_bytes;
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let store = Arc::new(Devices {
            below: MemoryStore::new(4 * volume_bytes),
            fast_bytes: shape.fast_bytes,
            reads: Default::default(),
            moved_bytes: AtomicU64::new(0),
            move_nanoseconds: AtomicU64::new(0),
            slow_nanoseconds: AtomicU64::new(0),
            fast_nanoseconds: AtomicU64::new(0),
            move_requests: AtomicU64::new(0),
            clock: clock.clone(),
            taken_bytes: AtomicU64::new(0),
            space: Mutex::new(None),
        });
        let (datasets, mover) = open(&shape, &store, &clock);
        let made = NewDataset {
            volume_bytes: Some(volume_bytes),
            properties: vec![
                ("chunk_size".into(), shape.chunk_size.into()),
                (property.into(), value.into()),
            ],
            ..NewDataset::default()
        };
        datasets.create("pool/v", &made).unwrap();
        let number = datasets.info("pool/v").unwrap().number;
        let volume = datasets.volume("pool/v").unwrap();
        let mut random = SmallRng::seed_from_u64(4242);
        let mut piece = vec![0; MIB as usize];
        for at in 0..volume_bytes / MIB {
            random.fill(&mut piece[..]);
            volume.write(at * MIB, &piece).unwrap();
            volume.commit().unwrap();
        }
        let mut blocks: Vec<u64> = (0..volume_bytes / BLOCK).collect();
        blocks.shuffle(&mut random);
        if matches!(shape.pattern, Pattern::Contiguous) {
            blocks.sort_unstable();
        }
        let tenth = blocks.len() / 10;
        let sums = blocks.iter().enumerate().scan(0.0, |sum, (rank, _)| {
            *sum += match shape.pattern {
                Pattern::Scattered => ((rank + 1) as f64).powf(-1.2),
                Pattern::Contiguous if rank < tenth => 81.0,
                Pattern::Contiguous => 1.0,
            };
            Some(*sum)
        });
        let sums = sums.collect();
        let pool = Self {
            shape,
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

    pub fn reopen(&mut self) {
        self.mover.save().unwrap();
        (self.datasets, self.mover) = open(&self.shape, &self.store, &self.clock);
        self.volume = self.datasets.volume("pool/v").unwrap();
    }

    /// Lets a time pass, in which the mover does what it may.
    pub fn pass(&self, nanoseconds: u64) {
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
        panic!("the mover does not come to rest: {:?}", self.mover.jobs());
    }

    pub fn settle(&self) {
        self.pass(60 * SECOND);
        let jobs = self.mover.jobs();
        assert!(jobs.iter().all(|job| job.state != "running"), "{jobs:?}");
    }

    /// Reads of single blocks; the part of them that reached the slow tier.
    pub fn read(&self, seed: u64, reads: u64) -> f64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let before = self.store.reads[1].load(Relaxed);
        let mut buffer = vec![0; BLOCK as usize];
        for at in 1..=reads {
            let sought = random.random_range(0.0..*self.sums.last().unwrap());
            let rank = self.sums.partition_point(|sum| *sum <= sought);
            self.volume.read(self.blocks[rank] * BLOCK, &mut buffer).unwrap();
            if at % self.shape.reads_per_quarter == 0 {
                self.pass(SECOND / 4);
            }
        }
        (self.store.reads[1].load(Relaxed) - before) as f64 / reads as f64
    }

    /// Reads all of it in order.
    pub fn scan(&self) {
        let mut buffer = vec![0; 256 << 10];
        for at in (0..self.shape.volume_bytes).step_by(buffer.len()) {
            self.volume.read(at, &mut buffer).unwrap();
            self.pass(SECOND / 100);
        }
    }

    pub fn environment(&self) -> &Environment {
        self.datasets.environment()
    }

    pub fn moved_bytes(&self) -> u64 {
        self.store.moved_bytes.load(Relaxed)
    }

    pub fn check(&self) {
        let store: Arc<dyn Store> = self.store.clone();
        assert_eq!(check(&store).unwrap().problems, Vec::<String>::new());
        let filled = self.store.space().tiers[0].live_bytes;
        assert!(
            filled <= self.shape.filled_bytes() + MIB,
            "{filled} on the fast tier"
        );
    }
}

fn open(shape: &Shape, store: &Arc<Devices>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Mover) {
    let budget = Arc::new(Budget::new(shape.memory_bytes).without_delays());
    let environment = Environment::with_budget(store.clone(), clock.clone(), budget);
    let datasets = Arc::new(Datasets::open(Arc::new(environment), "pool").unwrap());
    let mover = Mover::open(datasets.clone()).unwrap();
    (datasets, mover)
}
