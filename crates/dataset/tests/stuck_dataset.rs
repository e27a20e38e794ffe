//! A dataset whose changes cannot be committed, since what they meet cannot be read: the others keep their word.
#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use terrace_dataset::{
    Context, Datasets, Environment, FileKind, Filesystem, FsError, NewDataset, ROOT, Tree,
};
use terrace_device::ManualClock;
use terrace_store::{Batch, MemoryStore, Sequence, Store, StoreError};

/// A store that refuses what contains this name, and knows what was flushed.
struct Partly {
    memory: MemoryStore,
    fails: AtomicBool,
    /// It has no room for it, instead of that it cannot be read.
    is_full: AtomicBool,
    flushed: AtomicU64,
}

const NAME: &[u8] = b"in the dataset that is stuck";

impl Store for Partly {
    terrace_store::in_memory!(memory: get scan write_chunks read_chunk chunk_info newest reserve_beside reserve_always space rewrite);

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        let holds = |bytes: &[u8]| bytes.windows(NAME.len()).any(|here| here == NAME);
        let mut records = batch.records().iter();
        let named =
            records.any(|(key, value)| holds(key) || value.as_ref().is_some_and(|value| holds(value)));
        match named && self.fails.load(SeqCst) {
            true if self.is_full.load(SeqCst) => Err(StoreError::NoSpace),
            true => Err(StoreError::DamagedMetadata("it cannot be read".into())),
            false => self.memory.commit(batch),
        }
    }
    fn flush(&self, sequence: Sequence) -> Result<(), StoreError> {
        self.flushed.fetch_max(sequence.0, SeqCst);
        self.memory.flush(sequence)
    }
}

fn make(files: &Filesystem, name: &[u8]) -> Result<(), FsError> {
    files
        .create(&Context::root(), ROOT, name, FileKind::File, 0o600, 0)
        .map(drop)
}

#[test]
fn the_others_are_committed_and_flushed_and_it_takes_no_more_changes() {
    let store = Arc::new(Partly {
        memory: MemoryStore::new(1 << 30),
        fails: AtomicBool::new(false),
        is_full: AtomicBool::new(true),
        flushed: AtomicU64::new(0),
    });
    let clock = Arc::new(ManualClock::new(1));
    let as_store: Arc<dyn Store> = store.clone();
    let environment = || Arc::new(Environment::new(as_store.clone(), clock.clone()));
    let datasets = Datasets::open(environment(), "pool").unwrap();
    let [bad, good] = ["pool/bad", "pool/good"].map(|name| {
        datasets.create(name, &NewDataset::default()).unwrap();
        datasets.filesystem(name).unwrap()
    });
    let interval = 5_000_000_000;
    datasets.flusher().commit_due(interval).unwrap();
    store.fails.store(true, SeqCst);
    make(&bad, NAME).unwrap();
    // Merely full, as often as you like, beside others of which something cannot be read.
    for round in 0..4u8 {
        make(&bad, &[b'f', b'0' + round]).unwrap();
        clock.advance(interval);
        let error = datasets.flusher().commit_due(interval).unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        datasets.flusher().keep_stuck_from_changes();
        assert_eq!(datasets.flusher().stuck(), [""; 0]);
    }
    store.is_full.store(false, SeqCst);
    for round in 0..3u8 {
        assert!(make(&bad, &[b'x', b'0' + round]).is_ok(), "round {round}");
        make(&good, &[b'y', b'0' + round]).unwrap();
        clock.advance(interval);
        let error = datasets.flusher().commit_due(interval).unwrap_err();
        assert!(error.to_string().contains("it cannot be read"), "{error}");
        assert_eq!(store.flushed.load(SeqCst), store.newest().0, "round {round}");
        datasets.flusher().keep_stuck_from_changes();
    }
    assert_eq!(datasets.flusher().stuck(), ["pool/bad"]);
    assert_eq!(make(&bad, b"more"), Err(FsError::ReadOnly));
    make(&good, b"more").unwrap();
    clock.advance(interval);
    datasets.flusher().commit_due(interval).unwrap_err();
    // As after a crash: what the sound one acknowledged is there.
    let again = Datasets::open(environment(), "pool").unwrap();
    let good = again.filesystem("pool/good").unwrap();
    for name in [&b"y0"[..], b"y1", b"y2", b"more"] {
        good.lookup(&Context::root(), ROOT, name).unwrap();
    }
    // It can be read again: what waited is committed, and nothing is called stuck.
    store.fails.store(false, SeqCst);
    clock.advance(interval);
    datasets.flusher().commit_due(interval).unwrap();
    assert_eq!(datasets.flusher().stuck(), [""; 0]);
    bad.lookup(&Context::root(), ROOT, NAME).unwrap();
}
