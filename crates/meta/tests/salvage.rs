//! Salvage without a manifest: from all tables ever written the newest state comes back exactly; from some of them, only
//! values that a key once had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_meta::{
    Extent, ExtentError, ExtentStorage, MemoryExtents, Operation, Options, Preface, Progress, Salvage, Tree,
};

/// Keeps what is released, as a device does until it is written over.
struct Keeping {
    extents: MemoryExtents,
    all: Mutex<Vec<Extent>>,
}

impl ExtentStorage for Keeping {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        let extent = self.extents.write(bytes)?;
        self.all.lock().push(extent);
        Ok(extent)
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        self.extents.read(extent, offset, length)
    }

    fn release(&self, _: &[Extent]) {}

    fn sync(&self) -> Result<(), ExtentError> {
        Ok(())
    }
}

impl Keeping {
    fn found(&self) -> Vec<(Preface, Extent)> {
        let all = self.all.lock();
        let preface = |extent: &Extent| {
            let bytes = self.extents.content(*extent).expect("held");
            Preface::decode(&bytes).ok().map(|preface| (preface, *extent))
        };
        all.iter().filter_map(preface).collect()
    }
}

type Model = BTreeMap<Vec<u8>, Bytes>;
type Seen = BTreeMap<Vec<u8>, BTreeSet<Bytes>>;

/// Runs changes through a tree that merges meanwhile.
fn history(seed: u64) -> (Arc<Keeping>, Model, Seen) {
    let storage = Arc::new(Keeping {
        extents: MemoryExtents::new(),
        all: Mutex::default(),
    });
    let options = Options {
        memory_bytes: 16 << 10,
        block_cache_bytes: 64 << 10,
        table_bytes: 4 << 10,
        identity: [3; 16],
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut model, mut seen) = (Model::new(), Seen::new());
    for sequence in 1..=600u64 {
        let mut batch = Vec::new();
        for _ in 0..random.random_range(1..12) {
            let key = format!("key/{:04}", random.random_range(0..700)).into_bytes();
            let operation = if random.random_bool(0.3) {
                model.remove(&key);
                Operation::Delete
            } else {
                let value = Bytes::from(format!("{sequence}/{}", random.random::<u32>()));
                model.insert(key.clone(), value.clone());
                seen.entry(key.clone()).or_default().insert(value.clone());
                Operation::Put(value.into())
            };
            batch.push((Bytes::from(key), operation));
        }
        tree.apply(sequence, batch).expect("applies");
        if random.random_bool(0.1) {
            tree.seal();
        }
        tree.step(4 << 10).expect("steps");
    }
    tree.seal();
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    (storage, model, seen)
}

fn everything(salvage: &Salvage, limit: usize) -> Model {
    let (mut from, mut all) = (Vec::new(), Model::new());
    loop {
        let records = salvage.scan(&from, b"l", limit);
        let Some((last, _)) = records.last() else {
            return all;
        };
        from = last.to_vec();
        from.push(0);
        for (key, value) in records {
            assert!(all.insert(key.to_vec(), value).is_none(), "a key twice");
        }
    }
}

#[test]
fn all_tables_ever_written_give_the_newest_state() {
    for seed in 0..12 {
        let (storage, model, _) = history(seed);
        let mut found = storage.found();
        assert!(found.len() > 20, "{} tables", found.len());
        // The order in which they are found means nothing.
        let middle = found.len() / 2;
        found.rotate_left(middle);
        let salvage = Salvage::open(storage.clone(), &found, BTreeMap::new(), 1 << 20);
        let all = everything(&salvage, 1 + seed as usize * 7);
        // Deletions at the very edge between two tables are the one thing that tables do not tell.
        let ghosts: Vec<_> = all.keys().filter(|key| !model.contains_key(*key)).collect();
        assert!(ghosts.len() <= 8, "seed {seed}: {ghosts:?}");
        for (key, value) in &model {
            assert_eq!(all.get(key), Some(value), "seed {seed}");
        }
        assert!(salvage.lost_ranges().is_empty());
        assert_eq!(salvage.newest_sequence(), 600);
    }
}

#[test]
fn some_tables_give_values_that_once_were_and_the_log_is_newer() {
    for seed in 20..32 {
        let (storage, model, seen) = history(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut found = storage.found();
        found.retain(|_| random.random_bool(0.6));
        for (preface, extent) in &found {
            if random.random_bool(0.3) {
                let offset = random.random_range(0..preface.bytes);
                storage.extents.flip(*extent, offset, 1);
            }
        }
        let mut log = BTreeMap::new();
        log.insert(Bytes::from_static(b"key/0001"), (601, None));
        log.insert(
            Bytes::from_static(b"key/0002"),
            (602, Some(Bytes::from_static(b"new"))),
        );
        log.insert(
            Bytes::from_static(b"key/9999"),
            (603, Some(Bytes::from_static(b"last"))),
        );
        let salvage = Salvage::open(storage.clone(), &found, log, 1 << 20);
        let all = everything(&salvage, 50);
        assert_eq!(all.get(b"key/0001".as_slice()), None);
        assert_eq!(all.get(b"key/0002".as_slice()), Some(&Bytes::from_static(b"new")));
        assert_eq!(
            all.get(b"key/9999".as_slice()),
            Some(&Bytes::from_static(b"last"))
        );
        for (key, value) in &all {
            let known = seen.get(key).is_some_and(|seen| seen.contains(value));
            assert!(
                known || key.ends_with(b"0002") || key.ends_with(b"9999"),
                "seed {seed}: {key:?}"
            );
        }
        assert!(
            all.len() * 3 > model.len(),
            "seed {seed}: {} of {}",
            all.len(),
            model.len()
        );
    }
}
