//! `Rig`: a simulated machine with a pool on it, its shape chosen by the seed; made, opened and reopened.

use std::{collections::BTreeMap, sync::Arc};

use terrace_chunk::{ChunkStore, Options};
use terrace_device::Clock;
use terrace_pool::{CreateOptions, OpenOptions, Parallelism, Pool, TierSettings};

use crate::{
    hardware::{Coverage, Machine, Random, SharedRandom},
    trace::Trace,
};

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// What a pool is made of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Disk sizes in bytes per tier, fastest first; `true`: a directory of slot files.
    pub tiers: Vec<Vec<(u64, bool)>>,
    /// Copies per tier.
    pub copies: Vec<u8>,
    /// Memory of the metadata tree, bytes: small, so that runs and merges happen.
    pub memtable_bytes: usize,
    /// Log between checkpoints, bytes.
    pub checkpoint_log_bytes: u64,
    /// What the dedup index keeps of a hash, bytes: so little in some runs that other content meets under one hint.
    pub hint_bytes: usize,
}

impl Shape {
    /// A shape: one to three disks in one or two tiers.
    pub fn choose(random: &mut Random) -> Self {
        let size = |random: &mut Random| {
            (
                random.between(16, 36) * MIB + random.below(200) * 4096,
                random.chance(1, 6),
            )
        };
        let (tiers, copies) = match random.below(5) {
            0 => (vec![vec![size(random)]], vec![1]),
            1 => (vec![vec![size(random)], vec![size(random)]], vec![1, 1]),
            2 => (
                vec![vec![size(random), size(random)]],
                vec![if random.chance(1, 2) { 2 } else { 1 }],
            ),
            3 => (
                vec![vec![size(random)], vec![size(random), size(random)]],
                vec![1, 2],
            ),
            _ => (
                vec![vec![size(random), size(random)], vec![size(random)]],
                vec![2, 1],
            ),
        };
        Self {
            tiers,
            copies,
            memtable_bytes: *random.pick(&[8 << 10, 32 << 10, 128 << 10]),
            checkpoint_log_bytes: *random.pick(&[32 << 10, 128 << 10, 512 << 10]),
            hint_bytes: *random.pick(&[16, 16, 1, 2]),
        }
    }

    /// All disks in the order in which the machine has them.
    pub fn disks(&self) -> Vec<(u64, bool)> {
        self.tiers.concat()
    }

    /// Bytes of all disks that content can lie on: where a tier keeps two copies, a disk is of no use beyond what all
    /// others of its tier have (store 780001365: 16 beside 32 MiB, of which half is for log and metadata).
    pub fn usable_bytes(&self) -> u64 {
        let tiers = self.tiers.iter().zip(&self.copies);
        let usable = tiers.map(|(disks, copies)| {
            let all: u64 = disks.iter().map(|(size, _)| size).sum();
            let matched = |(size, _): &(u64, bool)| match *copies > 1 && disks.len() > 1 {
                true => (*size).min(all - size),
                false => *size,
            };
            disks.iter().map(matched).sum::<u64>()
        });
        usable.sum()
    }
}

/// A machine with a pool for a chunk store.
pub struct Rig {
    /// The machine.
    pub machine: Arc<Machine>,
    /// The pool's shape.
    pub shape: Shape,
    /// The format version that its pool is made with.
    pub format_version: u8,
    random: Random,
}

impl Rig {
    /// A machine with empty disks.
    pub fn new(shape: Shape, mut random: Random, coverage: Arc<Coverage>, trace: Trace) -> Self {
        let machine = Machine::new(&shape.disks(), random.fork(1), coverage, trace);
        Self {
            machine,
            shape,
            format_version: terrace_chunk::FORMAT_NEWEST,
            random: random.fork(2),
        }
    }

    fn options(&mut self) -> Options {
        Options {
            memtable_bytes: self.shape.memtable_bytes,
            block_cache_bytes: 256 << 10,
            threads: 0,
            nonce: self.random.next(),
            checkpoint_log_bytes: self.shape.checkpoint_log_bytes,
            hint_bytes: self.shape.hint_bytes,
            clock: self.machine.clock.clone(),
            format_version: self.format_version,
            rewind: false,
        }
    }

    /// Does something by way of trial: afterwards disks and chance are as before.
    pub fn try_out<T>(&mut self, trial: impl FnOnce(&mut Self) -> T) -> T {
        let (frozen, random) = (self.machine.freeze(), self.random.clone());
        let outcome = trial(self);
        self.machine.thaw(frozen);
        self.random = random;
        outcome
    }

    /// Makes the pool and an empty store on it.
    pub fn create(&mut self) -> Result<Arc<ChunkStore>, String> {
        let mut devices = self.machine.plug_in().into_iter();
        let mut tiers = Vec::new();
        for (number, disks) in self.shape.tiers.iter().enumerate() {
            let mut settings = TierSettings::named(format!("tier{number}"));
            settings.copies = self.shape.copies[number];
            tiers.push((settings, devices.by_ref().take(disks.len()).collect()));
        }
        let options = CreateOptions {
            name: "pool".into(),
            tiers,
            properties: BTreeMap::new(),
            segment_bytes: Some(MIB as u32),
            created_nanoseconds: self.machine.clock.now_nanoseconds(),
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let randomness = SharedRandom::new(self.random.fork(3));
        let pool = Pool::create(options, &randomness).map_err(|error| error.to_string())?;
        ChunkStore::create(Arc::new(pool), self.options()).map_err(|error| error.to_string())
    }

    /// Opens the pool from the disks as they are, in an order of chance.
    pub fn open(&mut self, degraded: bool) -> Result<Arc<ChunkStore>, String> {
        self.open_with(OpenOptions {
            degraded,
            ..OpenOptions::default()
        })
    }

    /// The same in another way.
    pub fn open_with(&mut self, options: OpenOptions) -> Result<Arc<ChunkStore>, String> {
        let mut devices = self.machine.plug_in();
        let turn = self.random.index(devices.len());
        devices.rotate_left(turn);
        let options = OpenOptions {
            parallelism: Parallelism::Sequential,
            ..options
        };
        let pool = Pool::open(devices, options).map_err(|error| error.to_string())?;
        ChunkStore::open(Arc::new(pool), self.options()).map_err(|error| error.to_string())
    }
}
