//! Heat outlasts a crash: all that changed is kept within a minute, however many objects that were.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_cache::Access;
use terrace_dataset::{Datasets, Environment, NewDataset};
use terrace_device::ManualClock;
use terrace_mover::{Mover, Step};
use terrace_store::{MemoryStore, Store};

const SECOND: u64 = 1_000_000_000;
const OBJECTS: u64 = 3000;
const REGIONS: u32 = 9000;

fn open(memory: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> (Arc<Datasets>, Mover) {
    let store: Arc<dyn Store> = memory.clone();
    let environment = Arc::new(Environment::new(store, clock.clone()));
    let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
    let mover = Mover::open(datasets.clone()).unwrap();
    (datasets, mover)
}

#[test]
fn what_was_read_a_minute_ago_is_known_after_a_crash() {
    let memory = Arc::new(MemoryStore::new(1 << 30));
    let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
    let (datasets, mover) = open(&memory, &clock);
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let number = datasets.info("pool/a").unwrap().number;
    let minutes = 1_800_000_000 / 60;
    for object in 1..=OBJECTS {
        let heat = &datasets.environment().heat;
        heat.record(number, object, 0, Access::Read, 5.0, minutes);
    }
    clock.advance(61 * SECOND);
    // As the thread that drives it does: on and on, as long as there may be more.
    let resting = (0..10_000).find(|_| matches!(mover.step().unwrap(), Step::Idle { .. }));
    assert!(resting.is_some(), "it comes to rest");
    drop((datasets, mover));
    // Nothing was saved at the end.
    let (datasets, _mover) = open(&memory, &clock);
    let heat = &datasets.environment().heat;
    let known = (1..=OBJECTS).filter(|object| heat.of(number, *object, 0, minutes).reads == 5.0);
    assert_eq!(known.count() as u64, OBJECTS);
}

#[test]
fn of_a_large_object_the_hottest_regions_are_known_after_a_restart() {
    let memory = Arc::new(MemoryStore::new(1 << 30));
    let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
    let (datasets, mover) = open(&memory, &clock);
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let number = datasets.info("pool/a").unwrap().number;
    let minutes = 1_800_000_000 / 60;
    // Each third region is hot: more of them are warm than one record has room for.
    let reads_of = |region: u32| if region.is_multiple_of(3) { 7.0 } else { 1.0 };
    for region in 0..REGIONS {
        let heat = &datasets.environment().heat;
        heat.record(number, 1, region, Access::Read, reads_of(region), minutes);
    }
    mover.save().unwrap();
    drop((datasets, mover));
    let (datasets, _mover) = open(&memory, &clock);
    let heat = &datasets.environment().heat;
    let known = |region: &u32| heat.of(number, 1, *region, minutes).reads == reads_of(*region);
    assert!((0..REGIONS).step_by(3).all(|region| known(&region)));
    assert_eq!((0..REGIONS).filter(known).count(), (64 << 10) / 12);
}
