//! Where content lies, asked while others write: what was replaced meanwhile is not lost.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_dataset::{
    Context, Datasets, Environment, FileKind, NewDataset, Progress, ROOT, bytes_of_object,
};
use terrace_device::ManualClock;
use terrace_store::{Batch, ChunkId, ChunkInfo, MemoryStore, Store, StoreError};

const MIB: u64 = 1 << 20;

/// A store that does something of its own between the look at a region and that at its first chunk.
struct Hooked {
    memory: MemoryStore,
    before_look: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Store for Hooked {
    terrace_store::in_memory!(memory: get scan write_chunks read_chunk commit flush newest reserve_beside reserve_always space rewrite);

    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        let hook = self.before_look.lock().take();
        if let Some(hook) = hook {
            terrace_sync::as_another_thread(hook);
        }
        self.memory.chunk_info(id)
    }
}

struct Pool {
    store: Arc<Hooked>,
    datasets: Arc<Datasets>,
    number: u32,
    object: u64,
}

impl Pool {
    fn new() -> Self {
        let store = Arc::new(Hooked {
            memory: MemoryStore::new(64 * MIB),
            before_look: Mutex::default(),
        });
        let as_store: Arc<dyn Store> = store.clone();
        let environment = Arc::new(Environment::new(as_store, Arc::new(ManualClock::new(1))));
        let datasets = Arc::new(Datasets::open(environment, "pool").unwrap());
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let number = datasets.info("pool/a").unwrap().number;
        let fs = datasets.filesystem("pool/a").unwrap();
        let made = fs.create(&Context::root(), ROOT, b"file", FileKind::File, 0o644, 0);
        let object = made.unwrap().object;
        let pool = Self {
            store,
            datasets,
            number,
            object,
        };
        write(&pool.datasets, object, 1);
        pool
    }

    fn chunks(&self) -> Vec<ChunkId> {
        let mut ids = (0..1000).map(ChunkId);
        ids.by_ref()
            .filter(|id| self.store.memory.chunk_info(*id).unwrap().is_some())
            .collect()
    }
}

/// Writes all of the file anew, and lets what it replaces go.
fn write(datasets: &Datasets, object: u64, seed: u64) {
    let fs = datasets.filesystem("pool/a").unwrap();
    for at in 0..MIB / 4096 {
        let block = [(seed << 32 | at).to_le_bytes(); 512].concat();
        fs.write(&Context::root(), object, at * 4096, &block, false)
            .unwrap();
    }
    datasets.commit_all().unwrap();
    while datasets.sweeper().step(1000).unwrap() == Progress::More {}
}

#[test]
fn what_was_written_between_the_looks_at_a_region_and_its_chunks_is_not_lost() {
    let pool = Pool::new();
    let before = pool.chunks();
    let (datasets, object) = (pool.datasets.clone(), pool.object);
    *pool.store.before_look.lock() = Some(Box::new(move || write(&datasets, object, 2)));
    let store: Arc<dyn Store> = pool.store.clone();
    let bytes = bytes_of_object(&store, pool.number, pool.object).unwrap();
    let after = pool.chunks();
    assert!(
        before.iter().all(|id| !after.contains(id)),
        "what was seen first is gone"
    );
    assert_eq!((bytes.missing, bytes.missing_bytes), (0, 0));
    assert_eq!(bytes.by_tier, [MIB]);
}

#[test]
fn what_the_region_still_names_is_lost() {
    let pool = Pool::new();
    let ids = pool.chunks();
    let lost = ids[0];
    let length = u64::from(pool.store.memory.chunk_info(lost).unwrap().unwrap().length);
    let references = pool.store.memory.chunk_info(lost).unwrap().unwrap().references;
    let mut batch = Batch::new();
    batch.reference(lost, -references);
    pool.store.memory.commit(batch).unwrap();
    let store: Arc<dyn Store> = pool.store.clone();
    let bytes = bytes_of_object(&store, pool.number, pool.object).unwrap();
    assert_eq!((bytes.missing, bytes.missing_bytes), (1, length));
    assert_eq!(bytes.by_tier, [MIB - length]);
}
