//! Moves by hand beside what is hot: what is moved to a tier takes room from what is colder there, and never from what is read.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use emulated::{BLOCK, MIB, Pattern, Pool, SECOND, Shape};
use terrace_dataset::{NewDataset, Volume, read_region};
use terrace_mover::JobInfo;
use terrace_store::{Placement, Store};

const SHAPE: Shape = Shape {
    volume_bytes: 16 * MIB,
    fast_bytes: 32 * MIB,
    memory_bytes: 2 * MIB,
    chunk_size: "128K",
    reads_per_quarter: 250,
    pattern: Pattern::Contiguous,
};

/// A pool of whose volume the first 8 MiB are read without end, and what else is made beside it.
struct Busy {
    pool: Pool,
    state: u64,
}

impl Busy {
    fn new() -> Self {
        let mut busy = Self {
            pool: Pool::new(SHAPE, "compression", "off"),
            state: 1,
        };
        for _ in 0..60 {
            busy.read(1);
        }
        assert_eq!(busy.read(1), 0, "trained");
        busy
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.state >> 33
    }

    /// So many seconds of reads of what is hot; how many of them reached the slow tier.
    fn read(&mut self, seconds: u64) -> u64 {
        let before = self.pool.store.reads[1].load(Relaxed);
        let mut buffer = vec![0; BLOCK as usize];
        for at in 0..seconds * 4 * SHAPE.reads_per_quarter {
            let block = self.next() % (8 * MIB / BLOCK);
            self.pool.volume.read(block * BLOCK, &mut buffer).unwrap();
            if at % SHAPE.reads_per_quarter == 0 {
                self.pool.pass(SECOND / 4);
            }
        }
        self.pool.store.reads[1].load(Relaxed) - before
    }

    /// Another volume, on this tier, that nobody reads.
    fn cold(&mut self, name: &str, bytes: u64, tier: u8) -> (u32, Arc<Volume>) {
        let made = NewDataset {
            volume_bytes: Some(bytes),
            properties: vec![("compression".into(), "off".into())],
            ..NewDataset::default()
        };
        self.pool.datasets.create(name, &made).unwrap();
        let number = self.pool.datasets.info(name).unwrap().number;
        let volume = self.pool.datasets.volume(name).unwrap();
        let mut piece = vec![0; MIB as usize];
        for at in 0..bytes / MIB {
            piece.iter_mut().for_each(|byte| *byte = self.next() as u8);
            volume.write(at * MIB, &piece).unwrap();
            volume.commit().unwrap();
        }
        self.put(number, 0..bytes / MIB, tier);
        (number, volume)
    }

    /// Puts regions of a volume on a tier, as if they had landed there.
    fn put(&self, dataset: u32, regions: std::ops::Range<u64>, tier: u8) {
        for region in regions {
            for chunk in self.chunks(dataset, region) {
                let placement = Placement::Tier { tier, strict: true };
                self.pool.store.rewrite(&[chunk], placement).unwrap();
            }
        }
    }

    fn chunks(&self, dataset: u32, region: u64) -> Vec<terrace_store::ChunkId> {
        let found = read_region(self.pool.store.as_ref(), dataset, 1, region)
            .unwrap()
            .unwrap();
        found.record.runs().iter().map(|run| run.chunk).collect()
    }

    /// What of a volume of so many regions lies on the fast tier, bytes.
    fn fast_bytes(&self, dataset: u32, regions: u64) -> u64 {
        let chunks = (0..regions).flat_map(|region| self.chunks(dataset, region));
        let infos = chunks.map(|chunk| self.pool.store.chunk_info(chunk).unwrap().unwrap());
        let fast = infos.filter(|info| info.tier == 0);
        fast.map(|info| u64::from(info.stored)).sum()
    }

    fn hot(&self) -> u32 {
        self.pool.datasets.info("pool/v").unwrap().number
    }

    /// A move of 28 MiB by hand has ended: what is said of it is so, and all that is not hot is its own.
    fn is_there_as_far_as_it_fits(&self, dataset: u32, id: u64) {
        let job = self.job(id);
        assert_eq!((job.state, job.total_bytes), ("failed", 28 * MIB), "{job:?}");
        let there = self.fast_bytes(dataset, 28);
        assert!(
            there >= 18 * MIB && there.abs_diff(job.done_bytes) < MIB,
            "{there} {job:?}"
        );
        let left = format!("{} bytes", 28 * MIB - job.done_bytes);
        assert!(
            job.reason.contains(&left) && job.reason.contains("read more often"),
            "{job:?}"
        );
        let hot = (0..8).flat_map(|region| self.chunks(self.hot(), region));
        let mut infos = hot.map(|chunk| self.pool.store.chunk_info(chunk).unwrap().unwrap());
        assert!(infos.all(|info| info.tier == 0));
    }

    fn job(&self, id: u64) -> JobInfo {
        let jobs = self.pool.mover.jobs();
        jobs.into_iter().find(|job| job.id == id).unwrap()
    }
}

#[test]
fn what_is_hot_and_lies_below_comes_up_before_what_is_moved_by_hand() {
    let mut busy = Busy::new();
    let (cold, _volume) = busy.cold("pool/cold", 28 * MIB, 1);
    busy.pool.mover.set_enabled(false);
    busy.put(busy.hot(), 0..4, 1);
    // Each move takes its time beside users.
    busy.pool.store.move_nanoseconds.store(10_000_000, Relaxed);
    let below = busy.read(3);
    assert!(below > 500, "{below}");
    busy.pool.mover.set_enabled(true);
    let id = busy.pool.mover.move_to(cold, 0, "fast").unwrap();
    let slow: Vec<u64> = (0..30).map(|_| busy.read(1)).collect();
    println!("reads of the slow tier, by seconds: {slow:?}");
    // It was [95, 45, 16, 15, 16, 12, 0, …] when it waited for the next look and what was moved by hand took the room.
    assert!(slow[2..].iter().all(|slow| *slow == 0), "{slow:?}");
    busy.is_there_as_far_as_it_fits(cold, id);
}

/// Above the middle of the marks there is room for the one or the other: it is not given to who is quicker.
#[test]
fn a_move_by_hand_leaves_the_room_that_is_awaited_by_what_is_hot_and_lies_below() {
    let mut busy = Busy::new();
    let (_, _other) = busy.cold("pool/other", 22 * MIB, 0);
    let (cold, _volume) = busy.cold("pool/cold", 18 * MIB, 1);
    busy.pool.mover.set_enabled(false);
    busy.put(busy.hot(), 0..4, 1);
    busy.pool.store.move_nanoseconds.store(10_000_000, Relaxed);
    let below = busy.read(3);
    assert!(below > 500, "{below}");
    let waits = |busy: &Busy, id| busy.job(id).reason.contains("read more often has come up");
    busy.pool.mover.set_enabled(true);
    let id = busy.pool.mover.move_to(cold, 0, "fast").unwrap();
    let mut waited = false;
    for _ in 0..400 {
        if matches!(busy.pool.mover.step().unwrap(), terrace_mover::Step::Idle { .. }) {
            break;
        }
        waited |= waits(&busy, id);
    }
    let slow: Vec<u64> = (0..20)
        .map(|_| {
            waited |= waits(&busy, id);
            busy.read(1)
        })
        .collect();
    assert!(waited, "it never waited: {slow:?} {:?}", busy.job(id));
    assert_eq!(slow.last(), Some(&0), "{slow:?}");
}

#[test]
fn what_is_moved_by_hand_takes_the_place_of_what_is_colder_and_of_nothing_else() {
    let mut busy = Busy::new();
    let (other, _other) = busy.cold("pool/other", 18 * MIB, 0);
    let (cold, _volume) = busy.cold("pool/cold", 28 * MIB, 1);
    let id = busy.pool.mover.move_to(cold, 0, "fast").unwrap();
    let slow: Vec<u64> = (0..60).map(|_| busy.read(1)).collect();
    assert_eq!(slow.iter().sum::<u64>(), 0, "{slow:?}");
    assert_eq!(busy.fast_bytes(other, 18), 0, "nobody reads it");
    busy.is_there_as_far_as_it_fits(cold, id);
}

#[test]
fn what_was_moved_down_by_hand_comes_up_as_usual_once_the_heat_is_cleared() {
    let mut busy = Busy::new();
    busy.pool.mover.move_to(busy.hot(), 0, "slow").unwrap();
    busy.pool.pass(SECOND);
    assert_eq!(busy.fast_bytes(busy.hot(), 8), 0);
    let stays = busy.read(15);
    assert!(stays > 5000, "it was read much before the move: {stays}");
    busy.pool.environment().chunk_heat.clear();
    busy.pool.environment().heat.clear();
    busy.pool.mover.forget_hot().unwrap();
    busy.read(14);
    assert_eq!(busy.read(1), 0);
}
