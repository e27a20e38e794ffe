//! Holes on a pool that is almost full: a call that is refused has changed nothing.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use terrace_dataset::{
    AllocateMode, Context, Datasets, Environment, FileKind, FsError, NewDataset, ROOT, Tree,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Piece, Reservation, Store, StoreError, Written};

const BLOCK: usize = 4096;
/// Room for a block that is written in part, and for the records of the call.
const ONE_EDGE: u64 = 4096 + 1024;

/// A store that sets so many bytes aside, and no more.
struct Tight {
    memory: MemoryStore,
    left_bytes: AtomicU64,
}

impl Store for Tight {
    terrace_store::in_memory!(memory: get scan read_chunk chunk_info commit flush newest reserve_always space rewrite);

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.memory.write_chunks(pieces)
    }
    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        let take = |left: u64| left.checked_sub(bytes);
        match self.left_bytes.fetch_update(SeqCst, SeqCst, take) {
            Ok(_) => self.memory.reserve_beside(bytes, own),
            Err(_) => Err(StoreError::NoSpace),
        }
    }
}

#[test]
fn refused_hole_changes_neither_edge() {
    let store = Arc::new(Tight {
        memory: MemoryStore::new(64 << 20),
        left_bytes: AtomicU64::new(u64::MAX),
    });
    let clock = Arc::new(ManualClock::new(1));
    let environment = Arc::new(Environment::new(store.clone(), clock));
    let datasets = Datasets::open(environment, "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    // With a quota nothing is set aside ahead of its use.
    datasets.properties().set("pool/a", "quota", "32M").unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let object = fs
        .create(&root, ROOT, b"a", FileKind::File, 0o644, 0)
        .unwrap()
        .object;
    let data: Vec<u8> = (0..4 * BLOCK).map(|at| (at / 16) as u8 | 1).collect();
    fs.write(&root, object, 0, &data, false).unwrap();
    fs.sync().unwrap();
    let content = || {
        let mut content = vec![0; data.len()];
        fs.read(object, 0, &mut content).unwrap();
        content
    };
    // Both edges lie inside blocks, and there is room for one of them.
    store.left_bytes.store(ONE_EDGE, SeqCst);
    let punched = fs.allocate(&root, object, AllocateMode::Punch, 1000, 2 * BLOCK as u64);
    assert_eq!(punched, Err(FsError::NoSpace));
    assert!(content() == data, "a call that failed is half done");
    // A hole with one such edge is made.
    store.left_bytes.store(ONE_EDGE, SeqCst);
    let end = 2 * BLOCK;
    fs.allocate(&root, object, AllocateMode::Punch, 1000, end as u64 - 1000)
        .unwrap();
    assert!(content()[1000..end].iter().all(|byte| *byte == 0));
    assert!(content()[..1000] == data[..1000] && content()[end..] == data[end..]);
}
