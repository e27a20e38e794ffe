//! History against full copies of a small map, one for each snapshot.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use proptest::{prelude::*, test_runner::RngSeed};
use terrace_dataset::{
    DatasetState, Datasets, Environment, NewDataset, Old, OrphanRecord, Progress, RegionRecord, check, keys,
    read_as_of, scan_as_of,
};
use terrace_device::ManualClock;
use terrace_store::{
    Batch, Compression, Dedup, MemoryStore, Owner, Piece, Placement, Sequence, Store, StoreError, Trial,
    Written,
};

const NAMES: u8 = 8;
const REGIONS: u64 = 3;

#[derive(Debug, Clone)]
enum Change {
    Put {
        name: u8,
        value: u8,
        hint: bool,
    },
    Delete {
        name: u8,
        hint: bool,
    },
    Map {
        region: u64,
        block: u32,
        count: u32,
        content: u8,
    },
    Unmap {
        region: u64,
    },
    /// The body goes to the orphans; a fresh one takes its place.
    DropBody,
    Tick,
    Snapshot,
    Destroy {
        which: usize,
    },
    Sweep {
        steps: u8,
        records: u8,
    },
    Reopen,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (0..NAMES, any::<u8>(), any::<bool>()).prop_map(|(name, value, hint)| Change::Put { name, value, hint }),
        4 => (0..NAMES, any::<bool>()).prop_map(|(name, hint)| Change::Delete { name, hint }),
        6 => (0..REGIONS, 0..250u32, 1..9u32, 0..4u8)
            .prop_map(|(region, block, count, content)| Change::Map { region, block, count, content }),
        2 => (0..REGIONS).prop_map(|region| Change::Unmap { region }),
        1 => Just(Change::DropBody),
        3 => Just(Change::Tick),
        5 => Just(Change::Snapshot),
        4 => any::<usize>().prop_map(|which| Change::Destroy { which }),
        4 => (1..6u8, 1..5u8).prop_map(|(steps, records)| Change::Sweep { steps, records }),
        1 => Just(Change::Reopen),
    ]
}

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

struct World {
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    births: BTreeMap<Vec<u8>, u64>,
    now: Content,
    snapshots: BTreeMap<String, (u64, Content)>,
    taken: u32,
    body: u64,
}

fn open(memory: &Arc<MemoryStore>) -> Datasets {
    let store: Arc<dyn Store> = memory.clone();
    Datasets::open(
        Arc::new(Environment::new(store, Arc::new(ManualClock::new(0)))),
        "pool",
    )
    .unwrap()
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::new(1 << 30));
        let datasets = open(&memory);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        Self {
            memory,
            datasets,
            births: BTreeMap::new(),
            now: Content::new(),
            snapshots: BTreeMap::new(),
            taken: 0,
            body: 1000,
        }
    }

    fn state(&self) -> Arc<DatasetState> {
        self.datasets.state("pool/a").unwrap()
    }

    fn name_key(&self, name: u8) -> Vec<u8> {
        keys::xattr(
            self.state().number(),
            keys::ROOT_OBJECT,
            format!("user.{name}").as_bytes(),
        )
    }

    fn region_key(&self, region: u64) -> Vec<u8> {
        keys::region(self.state().number(), self.body, region)
    }

    fn old(&self, key: &[u8], hint: bool) -> Old {
        match (self.births.get(key), hint) {
            (_, false) => Old::Unknown,
            (Some(birth), true) => Old::Born(*birth),
            (None, true) => Old::Absent,
        }
    }

    fn write_chunk(&self, content: u8) -> Written {
        let bytes = vec![content + 1; 32 * 4096];
        let piece = Piece {
            content: &bytes,
            compression: Compression::Off,
            trial: Trial::Untried,
            dedup: Dedup::On,
            placement: Placement::Landing(Default::default()),
            owner: Owner::default(),
            privileged: false,
        };
        self.memory.write_chunks(&[piece]).unwrap().remove(0)
    }

    fn region_now(&self, region: u64) -> Option<RegionRecord> {
        self.now
            .get(&self.region_key(region))
            .map(|payload| RegionRecord::decode(payload).unwrap())
    }

    fn apply(&mut self, change: &Change) {
        let state = self.state();
        match change {
            Change::Put { name, value, hint } => {
                let key = self.name_key(*name);
                let _commit = state.commit_lock();
                let mut batch = state.batch(state.current_checkpoint());
                batch.put(key.clone(), self.old(&key, *hint), &[*value]).unwrap();
                state.commit(batch).unwrap();
                self.births.insert(key.clone(), state.current_checkpoint());
                self.now.insert(key, vec![*value]);
            }
            Change::Delete { name, hint } => {
                let key = self.name_key(*name);
                let _commit = state.commit_lock();
                let mut batch = state.batch(state.current_checkpoint());
                batch.delete(key.clone(), self.old(&key, *hint)).unwrap();
                state.commit(batch).unwrap();
                self.births.remove(&key);
                self.now.remove(&key);
            }
            Change::Map {
                region,
                block,
                count,
                content,
            } => {
                let written = self.write_chunk(*content);
                let mut record = self.region_now(*region).unwrap_or_default();
                record.overwrite(*block, *count, written.id, u32::from(*content));
                self.put_region(*region, record, Some(written));
            }
            Change::Unmap { region } => self.put_region(*region, RegionRecord::new(), None),
            Change::DropBody => {
                let _commit = state.commit_lock();
                let checkpoint = state.current_checkpoint();
                let mut batch = state.batch(checkpoint);
                batch.put_orphan(
                    self.body,
                    OrphanRecord::Freed {
                        object: 0,
                        death: checkpoint,
                        blocks: 0,
                    },
                );
                state.commit(batch).unwrap();
                state.orphans_freed();
                for region in 0..REGIONS {
                    self.now.remove(&self.region_key(region));
                    self.births.remove(&self.region_key(region));
                }
                self.body += 1;
            }
            Change::Tick => drop(self.datasets.commit_all().unwrap()),
            Change::Snapshot => {
                let name = format!("s{}", self.taken);
                self.taken += 1;
                let checkpoint = self
                    .datasets
                    .snapshots()
                    .take(&format!("pool/a@{name}"), false, "")
                    .unwrap();
                self.snapshots.insert(name, (checkpoint, self.now.clone()));
            }
            Change::Destroy { which } => {
                let names: Vec<_> = self.snapshots.keys().cloned().collect();
                if !names.is_empty() {
                    let name = &names[which % names.len()];
                    self.datasets
                        .snapshots()
                        .destroy(&format!("pool/a@{name}"), false, false)
                        .unwrap();
                    self.snapshots.remove(name);
                }
            }
            Change::Sweep { steps, records } => {
                for _ in 0..*steps {
                    self.datasets.sweeper().step(usize::from(*records)).unwrap();
                }
            }
            Change::Reopen => self.datasets = open(&self.memory),
        }
    }

    fn put_region(&mut self, region: u64, record: RegionRecord, written: Option<Written>) {
        let state = self.state();
        let key = self.region_key(region);
        let old = self.region_now(region);
        let _commit = state.commit_lock();
        let mut batch = state.batch(state.current_checkpoint());
        written.into_iter().for_each(|written| batch.hold(written));
        let old = old.as_ref().map(|old| (self.births[&key], old));
        batch.put_region(self.body, region, old, Some(&record));
        state.commit(batch).unwrap();
        if record.is_empty() {
            self.now.remove(&key);
            self.births.remove(&key);
        } else {
            self.now.insert(key.clone(), record.encode());
            self.births.insert(key, state.current_checkpoint());
        }
    }

    fn sweep_all(&self, records: usize) {
        for _ in 0..100_000 {
            if self.datasets.sweeper().step(records).unwrap() == Progress::Idle {
                return;
            }
        }
        panic!("the sweep does not end");
    }

    /// Every snapshot reads as its copy; references are those of a full walk.
    fn check(&self) {
        let store: Arc<dyn Store> = self.memory.clone();
        let number = self.state().number();
        for (name, (checkpoint, content)) in &self.snapshots {
            let info = self.datasets.snapshots().info(&format!("pool/a@{name}"));
            assert_eq!(info.unwrap().checkpoint, *checkpoint);
            for table in [keys::TABLE_XATTR, keys::TABLE_REGION] {
                let (from, to) = keys::dataset_range(table, number);
                let expected: Vec<_> = content.range(from.clone()..to.clone()).collect();
                for limit in [1, 3, 100] {
                    let mut found = Vec::new();
                    let mut at = from.clone();
                    loop {
                        let page = scan_as_of(store.as_ref(), &at, &to, *checkpoint, limit).unwrap();
                        let Some((last, _)) = page.last() else { break };
                        at = last.iter().copied().chain([0]).collect();
                        found.extend(page);
                    }
                    // A body that was dropped before the snapshot may still be waiting for the sweep.
                    found.retain(|(key, _)| table != keys::TABLE_REGION || self.was_alive(key, content));
                    let found: Vec<_> = found
                        .iter()
                        .map(|(key, version)| (key.clone(), version.record.to_vec()))
                        .collect();
                    let expected: Vec<_> = expected
                        .iter()
                        .map(|(k, v)| ((*k).clone(), (*v).clone()))
                        .collect();
                    assert_eq!(found, expected, "{name} as of {checkpoint}");
                }
            }
            for name in 0..NAMES {
                let key = self.name_key(name);
                let found = read_as_of(store.as_ref(), &key, *checkpoint).unwrap();
                assert_eq!(
                    found.map(|version| version.record.to_vec()),
                    content.get(&key).cloned()
                );
            }
        }
        let report = check(&store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        let real: BTreeMap<_, _> = self
            .memory
            .references()
            .into_iter()
            .filter(|(_, blocks)| *blocks != 0)
            .collect();
        assert_eq!(report.references, real);
    }

    fn was_alive(&self, key: &[u8], content: &Content) -> bool {
        content.contains_key(key)
    }

    /// When the sweep is idle, every version in history is held by somebody.
    fn check_tight(&self) {
        let (from, to) = keys::table_range(keys::TABLE_HOLDER);
        let held: BTreeSet<u64> = self
            .snapshots
            .values()
            .map(|(checkpoint, _)| *checkpoint)
            .collect();
        for (key, _) in self.memory.scan(&from, &to, usize::MAX).unwrap() {
            let holding = keys::parse_holder(&key).unwrap();
            assert!(
                held.range(holding.birth..holding.death).next().is_some(),
                "nobody holds {holding:?}: {held:?}"
            );
        }
        let report = check(&(self.memory.clone() as Arc<dyn Store>)).unwrap();
        let counters = self.state().counters();
        let mapped: i64 = report.references.values().sum();
        assert_eq!(
            counters.live_blocks as i64 + counters.history_blocks as i64,
            mapped
        );
        let live: u32 = (0..REGIONS)
            .filter_map(|region| self.region_now(region))
            .map(|r| r.mapped_blocks())
            .sum();
        assert_eq!(counters.live_blocks, u64::from(live));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, rng_seed: RngSeed::Fixed(2026), ..ProptestConfig::default() })]

    #[test]
    fn every_snapshot_reads_as_it_was(changes in proptest::collection::vec(change(), 1..80), records in 1..6usize) {
        let mut world = World::new();
        for (at, change) in changes.iter().enumerate() {
            world.apply(change);
            if at % 5 == 0 {
                world.check();
            }
        }
        world.check();
        world.sweep_all(records);
        world.check();
        world.check_tight();
        let names: Vec<_> = world.snapshots.keys().cloned().collect();
        for (at, name) in names.iter().enumerate() {
            world.datasets.snapshots().destroy(&format!("pool/a@{name}"), false, false).unwrap();
            world.snapshots.remove(name);
            if at % 2 == 0 {
                world.datasets.sweeper().step(records).unwrap();
                world.datasets = open(&world.memory);
            }
        }
        world.sweep_all(records);
        world.check();
        world.check_tight();
        for table in [keys::TABLE_HISTORY, keys::TABLE_HOLDER, keys::TABLE_SWEEP, keys::TABLE_ORPHAN, keys::TABLE_HELD] {
            let (from, to) = keys::table_range(table);
            prop_assert!(world.memory.scan(&from, &to, 1).unwrap().is_empty(), "table {table:#x} is not empty");
        }
    }

    #[test]
    fn a_destroyed_dataset_leaves_nothing(changes in proptest::collection::vec(change(), 1..40), records in 1..9usize) {
        let mut world = World::new();
        changes.iter().for_each(|change| world.apply(change));
        let number = world.state().number();
        world.datasets.destroy("pool/a", true, false, false).unwrap();
        world.datasets.sweeper().step(records).unwrap();
        world.datasets = open(&world.memory);
        world.sweep_all(records);
        for table in keys::TABLE_DATASET..=keys::TABLE_HOLDER {
            let (from, to) = keys::dataset_range(table, number);
            if table != keys::TABLE_SWEEP {
                prop_assert!(world.memory.scan(&from, &to, 1).unwrap().is_empty(), "table {table:#x} is not empty");
            }
        }
        prop_assert!(world.memory.references().values().all(|blocks| *blocks == 0));
        prop_assert_eq!(world.datasets.sweeper().pending_bytes(), 0);
    }
}

fn count(memory: &MemoryStore, table: u8) -> usize {
    let (from, to) = keys::table_range(table);
    memory.scan(&from, &to, usize::MAX).unwrap().len()
}

#[test]
fn nothing_held_nothing_kept_and_one_version_per_interval() {
    let mut world = World::new();
    let put = |value| Change::Put {
        name: 0,
        value,
        hint: false,
    };
    for value in 0..10 {
        world.apply(&put(value));
        world.apply(&Change::Tick);
    }
    assert_eq!(count(&world.memory, keys::TABLE_HISTORY), 0);
    world.apply(&Change::Snapshot);
    for value in 10..20 {
        world.apply(&put(value));
    }
    assert_eq!(
        count(&world.memory, keys::TABLE_HISTORY),
        1,
        "the version that the snapshot sees, and no other"
    );
    world.apply(&Change::Tick);
    for value in 20..30 {
        world.apply(&put(value));
    }
    assert_eq!(count(&world.memory, keys::TABLE_HISTORY), 1);
    world.check();
}

#[test]
fn a_version_that_dies_late_for_a_snapshot_that_is_gone_is_kept_by_a_later_one() {
    // Destroyed before the version died: the sweep of the first snapshot must not take what a later one holds.
    let mut world = World::new();
    world.apply(&Change::Put {
        name: 0,
        value: 1,
        hint: false,
    });
    world.apply(&Change::Snapshot);
    world.apply(&Change::Destroy { which: 0 });
    world.apply(&Change::Snapshot);
    world.apply(&Change::Put {
        name: 0,
        value: 2,
        hint: false,
    });
    world.sweep_all(100);
    world.check();
    assert_eq!(count(&world.memory, keys::TABLE_HISTORY), 1);
}

/// Counts the records that are read and written.
struct Counting {
    store: Arc<MemoryStore>,
    records: AtomicUsize,
}

impl Store for Counting {
    terrace_store::in_memory!(store: write_chunks read_chunk chunk_info flush newest reserve_beside reserve_always space rewrite);

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.records.fetch_add(1, Ordering::Relaxed);
        self.store.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let found = self.store.scan(from, to, limit)?;
        self.records.fetch_add(found.len() + 1, Ordering::Relaxed);
        Ok(found)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.records.fetch_add(batch.records().len(), Ordering::Relaxed);
        self.store.commit(batch)
    }
}

#[test]
fn snapshots_cost_what_they_hold_and_not_what_the_dataset_holds() {
    let memory = Arc::new(MemoryStore::new(1 << 30));
    let counting = Arc::new(Counting {
        store: memory.clone(),
        records: AtomicUsize::new(0),
    });
    let environment = Environment::new(counting.clone(), Arc::new(ManualClock::new(0)));
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let state = datasets.state("pool/a").unwrap();
    let change = |names: std::ops::Range<u32>| {
        let _commit = state.commit_lock();
        let mut batch = state.batch(state.current_checkpoint());
        for name in names {
            let key = keys::xattr(state.number(), 7, name.to_string().as_bytes());
            batch.put(key, Old::Unknown, b"value").unwrap();
        }
        state.commit(batch).unwrap();
    };
    change(0..20_000);
    datasets.snapshots().take("pool/a@old", false, "").unwrap();
    change(0..10_000);
    let cost = |work: &dyn Fn()| {
        let before = counting.records.load(Ordering::Relaxed);
        work();
        counting.records.load(Ordering::Relaxed) - before
    };
    let taken = cost(&|| assert!(datasets.snapshots().take("pool/a@new", false, "").unwrap() > 0));
    assert!(taken <= 4, "taking a snapshot touched {taken} records");
    change(0..20);
    let destroyed = cost(&|| drop(datasets.snapshots().destroy("pool/a@new", false, false).unwrap()));
    assert!(
        destroyed <= 4,
        "destroying a snapshot touched {destroyed} records in the foreground"
    );
    let swept = cost(&|| while datasets.sweeper().step(100).unwrap() == Progress::More {});
    assert!(swept <= 150, "20 versions took {swept} records to free");
    assert_eq!(count(&memory, keys::TABLE_HISTORY), 10_000);
}
