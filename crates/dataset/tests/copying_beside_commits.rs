//! copy_file_range while commits end: what is copied is what was written last, never what the records had a moment ago.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use terrace_cache::Budget;
use terrace_dataset::{Context, Datasets, Environment, FileKind, NewDataset, ROOT, Tree, check};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

const LENGTH: usize = 16 << 10;
const ROUNDS: u32 = 4000;

fn content(round: u32) -> Vec<u8> {
    (0..LENGTH as u32 / 4)
        .flat_map(|at| (round.wrapping_mul(0x9e37_79b9) ^ at).to_le_bytes())
        .collect()
}

#[test]
fn a_copy_is_of_what_was_written_before_it_whatever_is_committed_meanwhile() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(256 << 20));
    let budget = Arc::new(Budget::new(64 << 20).without_delays());
    let environment = Environment::with_budget(store.clone(), Arc::new(ManualClock::new(1)), budget);
    let datasets = Arc::new(Datasets::open(Arc::new(environment), "pool").unwrap());
    datasets.create("pool/fs", &NewDataset::default()).unwrap();
    let files = datasets.filesystem("pool/fs").unwrap();
    let root = Context::root();
    let made = |name: &[u8]| {
        let made = files.create(&root, ROOT, name, FileKind::File, 0o600, 0);
        made.unwrap().object
    };
    let (source, target) = (made(b"source"), made(b"target"));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let committing = scope.spawn(|| {
            while !done.load(SeqCst) {
                files.commit().unwrap();
            }
        });
        let mut read = vec![0; LENGTH];
        let mut wrong = Vec::new();
        for round in 0..ROUNDS {
            files.write(&root, source, 0, &content(round), false).unwrap();
            // Somewhere in the commit that takes it up.
            for _ in 0..round % 8 {
                thread::yield_now();
            }
            let copied = files.copy_range(&root, source, 0, target, 0, LENGTH as u64);
            assert_eq!(copied, Ok(LENGTH as u64));
            match files.read(target, 0, &mut read) {
                Ok(LENGTH) if read == content(round) => {}
                other => wrong.push((round, other)),
            }
        }
        done.store(true, SeqCst);
        committing.join().unwrap();
        assert!(
            wrong.is_empty(),
            "{} of {ROUNDS}: {:?}",
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        );
    });
    files.sync().unwrap();
    let mut read = vec![0; LENGTH];
    assert_eq!(files.read(target, 0, &mut read), Ok(LENGTH));
    assert!(read == content(ROUNDS - 1));
    assert_eq!(check(&store).unwrap().problems, Vec::<String>::new());
}
