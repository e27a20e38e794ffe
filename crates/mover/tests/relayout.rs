//! Regions that random writes left in pieces are laid out anew once they rest, as a job, and only then.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, Datasets, Environment, FileKind, NewDataset, Tree, check, read_region};
use terrace_device::ManualClock;
use terrace_mover::{JobInfo, Mover, Step, TierPolicy};
use terrace_store::{MemoryStore, Store};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

struct Pool {
    memory: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    datasets: Arc<Datasets>,
    mover: Arc<Mover>,
    number: u32,
}

fn open(memory: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Arc<Mover>) {
    let environment = Environment::new(memory.clone(), clock.clone());
    let datasets = Arc::new(Datasets::open(Arc::new(environment), "pool").unwrap());
    let mover = Arc::new(Mover::open(datasets.clone()).unwrap());
    (datasets, mover)
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Pool {
    fn new(size_bytes: u64) -> Self {
        let memory = Arc::new(MemoryStore::new(size_bytes));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let (datasets, mover) = open(&memory, &clock);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let number = datasets.info("pool/a").unwrap().number;
        Self {
            memory,
            clock,
            datasets,
            mover,
            number,
        }
    }

    fn scattered(&self) -> (u64, Vec<u8>) {
        self.scattered_of(4)
    }

    /// A file of so many MiB of which every second block was written anew; its content.
    fn scattered_of(&self, mebibytes: u64) -> (u64, Vec<u8>) {
        let filesystem = self.datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        let object = filesystem
            .create(&root, 1, b"f", FileKind::File, 0o644, 0)
            .unwrap();
        let object = object.object;
        let mut content = noise(1, (mebibytes * MIB) as usize);
        filesystem.write(&root, object, 0, &content, false).unwrap();
        self.datasets.commit_all().unwrap();
        for (count, block) in (0..256 * mebibytes as usize).step_by(2).enumerate() {
            let data = noise(100 + block as u64, 4096);
            content[block * 4096..][..4096].copy_from_slice(&data);
            filesystem
                .write(&root, object, block as u64 * 4096, &data, false)
                .unwrap();
            if count % 64 == 63 {
                self.datasets.commit_all().unwrap();
            }
        }
        (object, content)
    }

    fn settle(&self, seconds: u64) {
        for _ in 0..seconds.div_ceil(11) {
            let rests = (0..1000).any(|_| matches!(self.mover.step().unwrap(), Step::Idle { .. }));
            assert!(rests, "the mover does not come to rest");
            self.clock.advance(11 * SECOND);
        }
    }

    fn relayouts(&self) -> Vec<JobInfo> {
        let jobs = self.mover.jobs().into_iter();
        jobs.filter(|job| job.kind == "relayout").collect()
    }

    fn stored_bytes(&self) -> u64 {
        self.memory.references();
        self.memory.space().used_bytes
    }

    fn pieces(&self, object: u64) -> usize {
        let regions = (0..4)
            .filter_map(|region| read_region(self.memory.as_ref(), self.number, object, region).unwrap());
        regions.map(|found| found.record.runs().len()).sum()
    }

    fn audit(&self, object: u64, content: &[u8]) {
        let filesystem = self.datasets.filesystem("pool/a").unwrap();
        let mut buffer = vec![0; content.len()];
        filesystem.read(object, 0, &mut buffer).unwrap();
        assert!(buffer == content, "the content changed");
        let store: Arc<dyn Store> = self.memory.clone();
        let report = check(&store).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(self.memory.references(), report.references);
    }
}

#[test]
fn what_rests_is_laid_out_anew_and_its_dead_blocks_come_back() {
    let pool = Pool::new(100 * MIB);
    let (object, content) = pool.scattered();
    assert_eq!((pool.stored_bytes(), pool.pieces(object)), (6 * MIB, 1024));
    pool.settle(290);
    assert_eq!(pool.stored_bytes(), 6 * MIB, "written a moment ago");
    assert_eq!(pool.relayouts(), []);
    pool.settle(60);
    assert_eq!((pool.stored_bytes(), pool.pieces(object)), (4 * MIB, 32));
    let jobs = pool.relayouts();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!(
        (jobs[0].state, jobs[0].done_bytes, jobs[0].total_bytes),
        ("done", 4 * MIB, 4 * MIB)
    );
    assert!(
        jobs[0].reason.contains("laying out in order") && jobs[0].reason.contains("2097152 dead bytes"),
        "{}",
        jobs[0].reason
    );
    pool.audit(object, &content);
    pool.settle(700);
    assert_eq!(pool.relayouts().len(), 1, "there is nothing left to do");
}

#[test]
fn what_is_being_written_is_left_alone_and_few_pieces_are_no_job() {
    let pool = Pool::new(100 * MIB);
    let (object, mut content) = pool.scattered();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    for at in 0..10u64 {
        pool.settle(200);
        for region in 0..4 {
            let data = noise(7000 + 10 * at + region, 4096);
            let offset = region * MIB + at * 4096;
            content[offset as usize..][..4096].copy_from_slice(&data);
            let root = Context::root();
            filesystem.write(&root, object, offset, &data, false).unwrap();
        }
        pool.datasets.commit_all().unwrap();
    }
    assert!(pool.relayouts().is_empty() && pool.pieces(object) > 1000);
    pool.settle(400);
    assert_eq!(pool.relayouts().len(), 1);
    assert_eq!(pool.pieces(object), 32);
    // A few overwrites are not worth it.
    let root = Context::root();
    filesystem.write(&root, object, 8192, &[7; 4096], false).unwrap();
    content[8192..12_288].fill(7);
    pool.datasets.commit_all().unwrap();
    pool.settle(700);
    assert_eq!(pool.relayouts().len(), 1);
    pool.audit(object, &content);
}

#[test]
fn it_rests_with_migration_off_and_while_it_is_paused_and_ends_when_cancelled() {
    let pool = Pool::new(400 * MIB);
    let (object, content) = pool.scattered_of(8);
    pool.mover.set_enabled(false);
    pool.settle(600);
    assert_eq!(pool.stored_bytes(), 12 * MIB);
    pool.mover.set_enabled(true);
    pool.clock.advance(11 * SECOND);
    while pool.relayouts().is_empty() {
        pool.mover.step().unwrap();
        pool.clock.advance(SECOND / 10);
    }
    let running = pool.relayouts().remove(0);
    assert_eq!(
        (running.state, running.done_bytes, running.total_bytes),
        ("running", 4 * MIB, 8 * MIB)
    );
    pool.mover.pause(running.id).unwrap();
    pool.settle(100);
    assert_eq!(
        (pool.relayouts()[0].state, pool.stored_bytes()),
        ("paused", 10 * MIB)
    );
    pool.mover.resume(running.id).unwrap();
    pool.settle(22);
    assert_eq!(
        (pool.relayouts()[0].state, pool.stored_bytes()),
        ("done", 8 * MIB)
    );
    pool.audit(object, &content);
    let pool = Pool::new(400 * MIB);
    let (object, content) = pool.scattered_of(8);
    // Later it sees that whoever wrote that has gone.
    pool.mover.step().unwrap();
    pool.clock.advance(311 * SECOND);
    while pool.relayouts().is_empty() {
        pool.mover.step().unwrap();
        pool.clock.advance(SECOND / 10);
    }
    pool.mover.cancel(pool.relayouts()[0].id).unwrap();
    pool.settle(600);
    assert_eq!(
        (pool.relayouts()[0].state, pool.stored_bytes()),
        ("cancelled", 10 * MIB)
    );
    pool.audit(object, &content);
}

#[test]
fn content_stays_on_its_tier_and_a_tier_that_rests_is_left_alone() {
    let pool = Pool::new(100 * MIB);
    let policies = |hold: Option<f64>| {
        let fast = TierPolicy {
            hold,
            ..TierPolicy::named("fast")
        };
        let slow = TierPolicy {
            promote_after: 0,
            ..TierPolicy::named("slow")
        };
        pool.mover.set_policies(vec![fast, slow]);
    };
    policies(None);
    let (object, content) = pool.scattered();
    pool.datasets.commit_all().unwrap();
    pool.mover.demote(pool.number, object).unwrap();
    pool.settle(22);
    let live = |tier: usize| {
        pool.memory.references();
        pool.memory.space().tiers[tier].live_bytes
    };
    assert_eq!((live(0), live(1)), (0, 6 * MIB));
    policies(Some(0.9));
    pool.settle(800);
    assert_eq!((live(0), live(1)), (0, 6 * MIB), "the slow tier rests");
    policies(None);
    pool.settle(800);
    assert_eq!((live(0), live(1)), (0, 4 * MIB));
    pool.audit(object, &content);
}

#[test]
fn what_was_noticed_outlasts_a_restart_and_what_moves_is_noticed_too() {
    let mut pool = Pool::new(100 * MIB);
    let (object, content) = pool.scattered();
    pool.settle(200);
    pool.mover.save().unwrap();
    (pool.datasets, pool.mover) = open(&pool.memory, &pool.clock);
    pool.settle(700);
    assert_eq!(pool.stored_bytes(), 6 * MIB, "its dataset is not in use");
    pool.mover.save().unwrap();
    (pool.datasets, pool.mover) = open(&pool.memory, &pool.clock);
    let _in_use = pool.datasets.filesystem("pool/a").unwrap();
    pool.settle(200);
    assert_eq!(pool.stored_bytes(), 6 * MIB, "it rests from the start on");
    pool.settle(200);
    assert_eq!((pool.stored_bytes(), pool.pieces(object)), (4 * MIB, 32));
    pool.audit(object, &content);
    pool.mover.save().unwrap();
    (pool.datasets, pool.mover) = open(&pool.memory, &pool.clock);
    pool.settle(700);
    assert_eq!(pool.relayouts().len(), 1, "it is not noticed any more");

    let mut pool = Pool::new(100 * MIB);
    let (object, content) = pool.scattered();
    (pool.datasets, pool.mover) = open(&pool.memory, &pool.clock);
    let _in_use = pool.datasets.filesystem("pool/a").unwrap();
    pool.settle(700);
    assert_eq!(pool.stored_bytes(), 6 * MIB, "it was not kept");
    pool.mover.demote(pool.number, object).unwrap();
    pool.settle(700);
    pool.memory.references();
    assert_eq!(pool.memory.space().tiers[1].live_bytes, 4 * MIB);
    assert_eq!(pool.relayouts().len(), 1);
    pool.audit(object, &content);
}

#[test]
fn where_a_tier_is_short_of_room_dead_blocks_come_back_at_once_and_order_once_it_rests() {
    let pool = Pool::new(100 * MIB);
    let (object, mut content) = pool.scattered();
    pool.datasets.commit_all().unwrap();
    pool.settle(22);
    assert_eq!(pool.stored_bytes(), 6 * MIB, "there is room");
    // Nothing has to sink yet.
    let fast = TierPolicy {
        high_water: 0.11,
        low_water: 0.03,
        ..TierPolicy::named("fast")
    };
    pool.mover.set_policies(vec![fast, TierPolicy::named("slow")]);
    pool.settle(22);
    assert_eq!(pool.stored_bytes(), 4 * MIB);
    assert!(pool.pieces(object) > 256, "{}", pool.pieces(object));
    let jobs = pool.relayouts();
    assert_eq!((jobs.len(), jobs[0].state), (1, "done"), "{jobs:?}");
    assert!(
        jobs[0].reason.contains("writing anew what is left") && jobs[0].reason.contains("2097152 dead bytes"),
        "{}",
        jobs[0].reason
    );
    // What is written over goes on making none.
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    for block in (0..1024).step_by(3) {
        let data = noise(5000 + block, 4096);
        let offset = block * 4096;
        content[offset as usize..][..4096].copy_from_slice(&data);
        let root = Context::root();
        filesystem.write(&root, object, offset, &data, false).unwrap();
    }
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.stored_bytes(), 4 * MIB);
    pool.settle(44);
    assert_eq!(pool.relayouts().len(), 1, "there was nothing to bring back");
    pool.settle(300);
    assert_eq!((pool.stored_bytes(), pool.pieces(object)), (4 * MIB, 32));
    pool.audit(object, &content);
}

#[test]
fn rounds_that_follow_one_another_are_one_job_that_pauses_and_what_would_sink_waits_for_them() {
    let pool = Pool::new(100 * MIB);
    let fast = TierPolicy {
        high_water: 0.05,
        low_water: 0.041,
        ..TierPolicy::named("fast")
    };
    let (object, mut content) = pool.scattered();
    pool.datasets.commit_all().unwrap();
    // 6 MiB of 100 are above the mark, and 4 will not be.
    pool.mover.set_policies(vec![fast, TierPolicy::named("slow")]);
    pool.settle(22);
    let tiers = || {
        pool.memory.references();
        let tiers = pool.memory.space().tiers;
        (tiers[0].live_bytes, tiers[1].live_bytes)
    };
    assert_eq!(tiers(), (4 * MIB, 0), "nothing has sunk");
    assert_eq!(pool.relayouts().len(), 1, "{:?}", pool.relayouts());
    pool.audit(object, &content);
    // Paused, it holds nothing up.
    let pool = Pool::new(100 * MIB);
    let (object, more) = pool.scattered_of(40);
    pool.datasets.commit_all().unwrap();
    let fast = TierPolicy {
        high_water: 0.5,
        low_water: 0.42,
        ..TierPolicy::named("fast")
    };
    pool.mover.set_policies(vec![fast, TierPolicy::named("slow")]);
    while pool.relayouts().is_empty() {
        pool.mover.step().unwrap();
        pool.clock.advance(SECOND / 10);
    }
    pool.mover.pause(pool.relayouts()[0].id).unwrap();
    pool.settle(22);
    pool.memory.references();
    let live = pool.memory.space().tiers[0].live_bytes;
    assert!(live <= 50 * MIB, "{live}");
    assert_eq!(pool.relayouts()[0].state, "paused");
    content.clear();
    pool.audit(object, &more);
}

#[test]
fn what_there_was_no_room_for_is_looked_at_again() {
    let pool = Pool::new(8 * MIB + 100_000);
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let made = filesystem.create(&root, 1, b"other", FileKind::File, 0o644, 0);
    let other = made.unwrap().object;
    let other_content = noise(9, 2 * MIB as usize);
    filesystem.write(&root, other, 0, &other_content, false).unwrap();
    let (object, content) = pool.scattered();
    pool.settle(700);
    assert_eq!(pool.stored_bytes(), 8 * MIB);
    filesystem.unlink(&root, 1, b"other").unwrap();
    pool.datasets.commit_all().unwrap();
    while pool.datasets.sweeper().is_pending() {
        pool.datasets.sweeper().step(1000).unwrap();
    }
    pool.settle(700);
    assert_eq!((pool.stored_bytes(), pool.pieces(object)), (4 * MIB, 32));
    pool.audit(object, &content);
}

#[test]
fn a_pool_without_room_ends_it_quietly() {
    let pool = Pool::new(6 * MIB + 100_000);
    let (object, content) = pool.scattered();
    pool.datasets.commit_all().unwrap();
    pool.settle(700);
    assert_eq!(pool.stored_bytes(), 6 * MIB);
    assert!(
        pool.relayouts().iter().all(|job| job.state == "done"),
        "{:?}",
        pool.relayouts()
    );
    pool.audit(object, &content);
}
