//! The ladder of `durability` on volumes: what each rung asks of the store, and when. A store that counts is enough: that
//! what was flushed survives is shown below it.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use terrace_cache::Budget;
use terrace_dataset::{BlockDevice, Datasets, Environment, NewDataset, SeekTarget, Volume};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Piece, Sequence, Store, StoreError, Written};

const MIB: u64 = 1 << 20;
/// The whole budget; three eighths of it are for what is dirty.
const MEMORY: u64 = 64 * MIB;

/// A store that knows how much data it was given and what was flushed.
struct Counting {
    memory: MemoryStore,
    data_bytes: AtomicU64,
    flushed: AtomicU64,
}

impl Store for Counting {
    terrace_store::in_memory!(memory: get scan read_chunk chunk_info commit newest reserve_beside reserve_always space rewrite);

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        let bytes: usize = pieces.iter().map(|piece| piece.content.len()).sum();
        self.data_bytes.fetch_add(bytes as u64, SeqCst);
        self.memory.write_chunks(pieces)
    }
    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.flushed.fetch_max(sequence.0, SeqCst);
        self.memory.flush(sequence)
    }
}

struct Rig {
    store: Arc<Counting>,
    budget: Arc<Budget>,
    datasets: Datasets,
    volume: Arc<Volume>,
}

impl Rig {
    fn new(durability: &str) -> Self {
        let store = Arc::new(Counting {
            memory: MemoryStore::new(1 << 30),
            data_bytes: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        });
        let budget = Arc::new(Budget::new(MEMORY).without_delays());
        let datasets = Self::open(&store, &budget);
        let new = NewDataset {
            volume_bytes: Some(256 * MIB),
            sparse: true,
            properties: vec![("durability".into(), durability.into())],
            ..NewDataset::default()
        };
        datasets.create("pool/v", &new).unwrap();
        let volume = datasets.volume("pool/v").unwrap();
        Self {
            store,
            budget,
            datasets,
            volume,
        }
    }

    fn open(store: &Arc<Counting>, budget: &Arc<Budget>) -> Datasets {
        let clock = Arc::new(ManualClock::new(1));
        let as_store: Arc<dyn Store> = store.clone();
        let environment = Environment::with_budget(as_store, clock, budget.clone());
        Datasets::open(Arc::new(environment), "pool").unwrap()
    }

    /// The process dies: what is only in its RAM is gone.
    fn crash(self) -> Self {
        let Self {
            store,
            datasets,
            volume,
            ..
        } = self;
        // Nothing is written by letting go.
        drop((volume, datasets));
        let budget = Arc::new(Budget::new(MEMORY).without_delays());
        let datasets = Self::open(&store, &budget);
        let volume = datasets.volume("pool/v").unwrap();
        Self {
            store,
            budget,
            datasets,
            volume,
        }
    }

    fn data_bytes(&self) -> u64 {
        self.store.data_bytes.load(SeqCst)
    }

    /// Whether all that the store knows is durable.
    fn all_flushed(&self) -> bool {
        self.store.flushed.load(SeqCst) >= self.store.newest().0
    }

    fn write(&self, from: u64, to: u64) {
        for block in from / 4096..to / 4096 {
            let mut data = [0x5a; 4096];
            data[..8].copy_from_slice(&block.to_le_bytes());
            self.volume.write(block * 4096, &data).unwrap();
        }
    }

    /// How many of the blocks of [`write`](Self::write) are there.
    fn found(&self, from: u64, to: u64) -> u64 {
        let mut data = [0; 4096];
        (from / 4096..to / 4096)
            .filter(|block| {
                self.volume.read(block * 4096, &mut data).unwrap();
                data[..8] == block.to_le_bytes() && data[8..].iter().all(|byte| *byte == 0x5a)
            })
            .count() as u64
    }
}

#[test]
fn ram_is_written_at_a_clean_stop_alone() {
    let rig = Rig::new("ram");
    // Less than half of the dirty share: 3/16 of the memory. Flushes, the ticker and the flusher leave it alone.
    rig.write(0, 8 * MIB);
    rig.volume.flush().unwrap();
    assert!(
        !rig.datasets.flusher().wants_flush(),
        "the flusher may not write it, so it is not called"
    );
    rig.datasets.commit_all().unwrap();
    assert_eq!(rig.data_bytes(), 0);
    assert!(
        rig.budget.dirty_bytes() >= 8 * MIB,
        "it counts as RAM that is used"
    );
    let rig = rig.crash();
    assert_eq!(rig.found(0, 8 * MIB), 0, "lost, as was said");
    rig.write(0, 2 * MIB);
    rig.datasets.save_all().unwrap();
    assert!(rig.all_flushed());
    let rig = rig.crash();
    assert_eq!(rig.found(0, 2 * MIB), 512, "saved at the clean stop");
}

#[test]
fn what_was_kept_in_ram_is_durable_when_a_higher_rung_is_set() {
    for (low, high) in [("ram", "sync"), ("ram", "barrier"), ("timed", "sync")] {
        let rig = Rig::new(low);
        rig.write(0, MIB);
        rig.volume.flush().unwrap();
        assert_eq!(rig.data_bytes(), 0);
        rig.datasets
            .properties()
            .set("pool/v", "durability", high)
            .unwrap();
        assert!(rig.all_flushed(), "{low} to {high}");
        let rig = rig.crash();
        assert_eq!(rig.found(0, MIB), 256, "{low} to {high}");
    }
}

#[test]
fn what_a_higher_rung_is_inherited_by_is_durable_too() {
    // A name below another dataset, and a value that is taken away: both without 'set'.
    let rig = Rig::new("ram");
    rig.datasets
        .properties()
        .set("pool", "durability", "timed")
        .unwrap();
    rig.datasets.properties().inherit("pool/v", "durability").unwrap();
    let above = NewDataset {
        properties: vec![("durability".into(), "sync".into())],
        ..NewDataset::default()
    };
    rig.datasets.create("pool/high", &above).unwrap();
    rig.write(0, MIB);
    rig.volume.flush().unwrap();
    assert_eq!(rig.data_bytes(), 0, "it inherits a lower one");
    rig.datasets.rename("pool/v", "pool/high/v").unwrap();
    assert!(rig.all_flushed());
    // Back to the name that it is looked for by; what it inherits is lower again.
    rig.datasets.rename("pool/high/v", "pool/v").unwrap();
    let rig = rig.crash();
    assert_eq!(rig.found(0, MIB), 256, "renamed");
    rig.write(MIB, 2 * MIB);
    rig.volume.flush().unwrap();
    rig.datasets.properties().inherit("pool", "durability").unwrap();
    assert!(rig.all_flushed());
    let rig = rig.crash();
    assert_eq!(rig.found(0, 2 * MIB), 512, "inherited");
}

#[test]
fn ram_that_does_not_fit_is_written_and_hinders_nobody() {
    let rig = Rig::new("ram");
    let new = NewDataset {
        volume_bytes: Some(64 * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    rig.datasets.create("pool/other", &new).unwrap();
    let half = rig.budget.dirty_limit_bytes() / 2;
    for at in (0..48 * MIB).step_by(1 << 20) {
        rig.write(at, at + MIB);
        assert!(rig.budget.dirty_bytes() <= half, "others are never delayed by it");
    }
    assert!(rig.data_bytes() > 0, "48 MiB do not fit into 12");
    assert_eq!(rig.found(0, 48 * MIB), 48 * 256);
    // Another volume is written and flushed as if the first were not there.
    let other = rig.datasets.volume("pool/other").unwrap();
    let before = rig.data_bytes();
    other.write(0, &[7; 4096]).unwrap();
    other.flush().unwrap();
    assert_eq!(rig.data_bytes(), before + 4096, "nothing but its own block");
    // What was written over is one state, in order: a prefix of what was done.
    drop(other);
    let rig = rig.crash();
    let found = rig.found(0, 48 * MIB);
    assert!(
        found > 0 && rig.found(0, found * 4096) == found,
        "a prefix: {found} blocks"
    );
}

#[test]
fn what_others_are_writing_takes_room_before_it_is_dirty() {
    let rig = Rig::new("barrier");
    rig.write(0, 4096);
    let others = rig.budget.admit_always(rig.budget.dirty_limit_bytes());
    assert_eq!(rig.data_bytes(), 0);
    rig.write(4096, 8192);
    assert_eq!(rig.data_bytes(), 4096, "what was dirty made room");
    drop(others);
    rig.write(8192, 12288);
    assert_eq!(rig.data_bytes(), 4096);
    assert!(
        rig.budget.admit(rig.budget.dirty_limit_bytes() - 8192).is_some(),
        "nothing counts twice"
    );
}

#[test]
fn timed_is_committed_by_the_ticker() {
    let rig = Rig::new("timed");
    rig.write(0, MIB);
    rig.volume.flush().unwrap();
    assert_eq!(rig.data_bytes(), 0, "a flush returns at once");
    rig.datasets.commit_all().unwrap();
    let rig = rig.crash();
    assert_eq!(rig.found(0, MIB), 256);
    // And by the flusher, when much is dirty.
    rig.write(0, 8 * MIB);
    assert!(rig.datasets.flusher().wants_flush());
}

#[test]
fn barrier_is_durable_when_a_flush_returns() {
    let rig = Rig::new("barrier");
    rig.volume.flush().unwrap();
    rig.write(0, MIB);
    assert_eq!(rig.data_bytes(), 0, "a write alone waits for nothing");
    rig.volume.flush().unwrap();
    assert!(rig.all_flushed());
    let rig = rig.crash();
    assert_eq!(rig.found(0, MIB), 256);
}

#[test]
fn a_new_size_is_durable_on_every_rung() {
    for durability in ["ram", "timed", "barrier", "sync"] {
        let rig = Rig::new(durability);
        rig.datasets.resize_volume("pool/v", 100 * MIB).unwrap();
        assert!(
            rig.store.flushed.load(SeqCst) >= rig.store.newest().0,
            "{durability}"
        );
        let rig = rig.crash();
        assert_eq!(rig.volume.size_bytes(), 100 * MIB, "{durability}");
        let stated = rig.datasets.info("pool/v").unwrap().kind;
        assert_eq!(
            stated,
            terrace_dataset::Kind::Volume {
                size_bytes: 100 * MIB
            },
            "{durability}"
        );
    }
}

#[test]
fn sync_is_durable_when_a_write_returns() {
    let rig = Rig::new("sync");
    for block in 0..8 {
        rig.write(block * 4096, (block + 1) * 4096);
        assert!(rig.all_flushed() && rig.data_bytes() > 0);
    }
    rig.volume.discard(0, 4096).unwrap();
    assert!(rig.all_flushed());
    let rig = rig.crash();
    assert_eq!(rig.found(4096, 8 * 4096), 7);
    assert_eq!(rig.found(0, 4096), 0);
}

#[test]
fn data_and_holes_are_found() {
    let rig = Rig::new("barrier");
    rig.write(4 * MIB, 5 * MIB);
    rig.write(100 * MIB, 100 * MIB + 4096);
    for durable in [false, true] {
        if durable {
            rig.volume.flush().unwrap();
        }
        let seek = |offset, target| rig.volume.seek(offset, target).unwrap();
        assert_eq!(seek(0, SeekTarget::Data), 4 * MIB);
        assert_eq!(seek(4 * MIB + 512, SeekTarget::Data), 4 * MIB + 512);
        assert_eq!(seek(4 * MIB, SeekTarget::Hole), 5 * MIB);
        assert_eq!(seek(5 * MIB, SeekTarget::Data), 100 * MIB);
        assert_eq!(seek(100 * MIB, SeekTarget::Hole), 100 * MIB + 4096);
        assert!(rig.volume.seek(100 * MIB + 4096, SeekTarget::Data).is_err());
        let device: &dyn BlockDevice = &*rig.volume;
        let status = device.block_status(0, 256 * MIB, 100).unwrap();
        let told: Vec<_> = status
            .iter()
            .map(|range| (range.offset, range.length, range.data))
            .collect();
        let expected = [
            (0, 4 * MIB, false),
            (4 * MIB, MIB, true),
            (5 * MIB, 95 * MIB, false),
            (100 * MIB, 4096, true),
            (100 * MIB + 4096, 156 * MIB - 4096, false),
        ];
        assert_eq!(told, expected);
    }
}
