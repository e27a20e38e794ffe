//! What a tree takes stays within its options: memory, space, work per step, size of a manifest.

use std::sync::Arc;

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use terrace_meta::{
    ExtentStorage, MemoryExtents, MetaError, Operation, Options, Progress, Tree, VALUE_BYTES_MAX,
};

fn put(number: u64, bytes: usize) -> (Bytes, Operation) {
    (
        Bytes::copy_from_slice(&number.to_be_bytes()),
        Operation::Put(vec![number as u8; bytes].into()),
    )
}

#[test]
fn memory_stays_within_the_options() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 1 << 20,
        block_cache_bytes: 256 << 10,
        table_bytes: 64 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    let mut random = SmallRng::seed_from_u64(3);
    for sequence in 1..=800 {
        let batch = (0..100)
            .map(|_| put(random.random_range(0..50_000), 60))
            .collect();
        tree.apply(sequence, batch).expect("applies");
        while tree.pressure() >= 0.8 {
            tree.step(64 << 10).expect("steps");
        }
        let usage = tree.usage();
        assert!(usage.memory_bytes <= options.memory_bytes, "{usage:?}");
        assert!(usage.cache_bytes <= options.block_cache_bytes, "{usage:?}");
        if sequence % 20 == 0 {
            for _ in 0..50 {
                tree.get(&random.random_range(0..50_000u64).to_be_bytes())
                    .expect("gets");
            }
            tree.scan(&random.random_range(0..50_000u64).to_be_bytes(), &[], 200)
                .expect("scans");
            tree.manifest().expect("a manifest");
            storage.release(&tree.take_released());
        }
    }
    assert!(
        storage.held_bytes() > 4 * options.block_cache_bytes as u64,
        "more on the device than in the cache"
    );
    assert!(
        tree.usage().cache_bytes > options.block_cache_bytes / 4,
        "the cache is used"
    );
    // Less of it while it runs.
    tree.set_memory(256 << 10, 64 << 10);
    assert!(tree.usage().cache_bytes <= 64 << 10, "{:?}", tree.usage());
    for sequence in 801..=1000 {
        let batch = (0..100)
            .map(|_| put(random.random_range(0..50_000), 60))
            .collect();
        while tree.pressure() >= 0.8 {
            tree.step(64 << 10).expect("steps");
        }
        tree.apply(sequence, batch).expect("applies");
        tree.get(&random.random_range(0..50_000u64).to_be_bytes())
            .expect("gets");
        let usage = tree.usage();
        assert!(usage.memory_bytes <= 256 << 10, "{usage:?}");
        assert!(usage.cache_bytes <= 64 << 10, "{usage:?}");
    }
}

#[test]
fn a_step_writes_about_its_budget_and_merging_needs_little_room() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 64 << 20,
        block_cache_bytes: 1 << 20,
        table_bytes: 16 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    let mut random = SmallRng::seed_from_u64(4);
    let mut most_held = 0;
    for sequence in 1..=30 {
        // The same 10,000 keys again and again: about 1.1 MB live.
        let batch = (0..4000)
            .map(|_| put(random.random_range(0..10_000), 100))
            .collect();
        tree.apply(sequence, batch).expect("applies");
        tree.seal();
        loop {
            let before = storage.counters();
            let progress = tree.step(64 << 10).expect("steps");
            let after = storage.counters();
            let wrote = after.bytes_written - before.bytes_written;
            assert!(wrote <= 2 * (64 << 10), "a step of 64 KiB wrote {wrote}");
            tree.manifest().expect("a manifest");
            storage.release(&tree.take_released());
            most_held = most_held.max(storage.held_bytes());
            if progress == Progress::Idle {
                break;
            }
        }
    }
    let live = 10_000 * 108u64;
    assert!(
        most_held < 2 * live,
        "{most_held} bytes held at the most for {live} live ones"
    );
}

#[test]
fn deletions_disappear_at_the_bottom() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 8 << 20,
        block_cache_bytes: 1 << 20,
        table_bytes: 16 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    let settle = |sequence| {
        tree.seal();
        while tree.step(1 << 20).expect("steps") == Progress::More {}
        assert_eq!(tree.flushed_sequence(), sequence);
    };
    tree.apply(1, (0..20_000).map(|number| put(number, 20)).collect())
        .expect("applies");
    tree.apply(
        2,
        (0..2_000u64)
            .map(|number| (Bytes::from(format!("count{number}")), Operation::Add(2)))
            .collect(),
    )
    .expect("applies");
    settle(2);
    assert_eq!(tree.usage().entries, 22_000);
    let deletions =
        (0..20_000u64).map(|number| (Bytes::copy_from_slice(&number.to_be_bytes()), Operation::Delete));
    tree.apply(3, deletions.collect()).expect("applies");
    tree.apply(
        4,
        (0..2_000u64)
            .map(|number| (Bytes::from(format!("count{number}")), Operation::Add(-2)))
            .collect(),
    )
    .expect("applies");
    settle(4);
    assert_eq!(tree.usage().entries, 0, "{:?}", tree.usage());
    assert_eq!(tree.scan(&[], &[], 10).expect("scans"), []);
    tree.manifest().expect("a manifest");
    storage.release(&tree.take_released());
    assert_eq!(storage.held_bytes(), 0);
}

#[test]
fn a_large_manifest_goes_into_extents() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 64 << 20,
        block_cache_bytes: 1 << 20,
        table_bytes: 4 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    for sequence in 1..=90 {
        let batch = (0..100)
            .map(|number| put(sequence * 1000 + number, 1000))
            .collect();
        tree.apply(sequence, batch).expect("applies");
    }
    tree.seal();
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    assert!(tree.usage().tables > 2000, "{:?}", tree.usage());
    let manifest = tree.manifest().expect("a manifest");
    assert!(manifest.len() < 1000, "{} bytes", manifest.len());
    assert!(tree.extents().len() > tree.usage().tables);
    assert_eq!(tree.take_released(), []);
    let mut named = tree.extents();
    named.sort();
    assert_eq!(named, storage.held());

    // The next one replaces it; a failed one in between loses nothing.
    storage.fail_writes_after(Some(0));
    assert!(matches!(tree.manifest(), Err(MetaError::Storage { .. })));
    storage.fail_writes_after(None);
    let reopened = Tree::open(storage.clone(), Some(&manifest), options).expect("opens");
    assert_eq!(reopened.scan(&[], &[], usize::MAX).expect("scans").len(), 9000);
    tree.apply(91, vec![put(0, 10)]).expect("applies");
    tree.seal();
    tree.step(1 << 20).expect("steps");
    let next = tree.manifest().expect("a manifest");
    assert!(!tree.take_released().is_empty());
    let reopened = Tree::open(storage.clone(), Some(&next), options).expect("opens");
    assert_eq!(reopened.scan(&[], &[], usize::MAX).expect("scans").len(), 9001);
    assert_eq!(reopened.flushed_sequence(), 91);

    // Its pieces are verified like tables.
    let piece = *reopened.extents().last().expect("a piece");
    storage.flip(piece, 7, 1);
    assert!(matches!(
        Tree::open(storage.clone(), Some(&next), options),
        Err(MetaError::Damaged { extent, .. }) if extent == piece
    ));
    let report = reopened
        .verify_step(&mut Default::default(), 1)
        .expect("verifies");
    assert_eq!(report.damaged.len(), 1);
}

#[test]
fn batches_out_of_order_and_long_keys_are_refused() {
    let storage = Arc::new(MemoryExtents::new());
    let tree = Tree::open(storage, None, Options::default()).expect("an empty tree");
    tree.apply(5, vec![put(1, 1)]).expect("applies");
    assert_eq!(
        tree.apply(5, vec![put(2, 1)]),
        Err(MetaError::OutOfOrder {
            sequence: 5,
            newest: 5
        })
    );
    let long = (Bytes::from(vec![0; 1025]), Operation::Delete);
    assert!(matches!(
        tree.apply(6, vec![put(2, 1), long]),
        Err(MetaError::TooLong { .. })
    ));
    assert!(matches!(
        tree.apply(6, vec![put(2, VALUE_BYTES_MAX + 1)]),
        Err(MetaError::TooLong { .. })
    ));
    assert_eq!(
        tree.get(&2u64.to_be_bytes()),
        Ok(None),
        "a refused batch changes nothing"
    );
    tree.apply(
        6,
        vec![
            put(2, VALUE_BYTES_MAX),
            (Bytes::from(vec![0; 1024]), Operation::Add(1)),
        ],
    )
    .expect("applies");
    tree.apply::<Bytes>(7, Vec::new()).expect("an empty batch");
    assert_eq!(tree.seal(), 7);
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    assert_eq!(tree.flushed_sequence(), 7);
    tree.apply::<Bytes>(8, Vec::new()).expect("an empty batch");
    assert_eq!(tree.seal(), 8);
    tree.step(1 << 20).expect("steps");
    assert_eq!(tree.flushed_sequence(), 8);
    assert_eq!(
        tree.get(&2u64.to_be_bytes())
            .expect("gets")
            .map(|value| value.len()),
        Some(VALUE_BYTES_MAX)
    );
    assert_eq!(tree.get_count(&[0; 1024]), Ok(1));
}

#[test]
fn a_full_storage_delays_and_loses_nothing() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 8 << 20,
        block_cache_bytes: 1 << 20,
        table_bytes: 16 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    tree.apply(1, (0..5000).map(|number| put(number, 100)).collect())
        .expect("applies");
    tree.seal();
    storage.limit(Some(200 << 10));
    let failure = loop {
        match tree.step(32 << 10) {
            Ok(progress) => assert_eq!(progress, Progress::More),
            Err(cause) => break cause,
        }
    };
    assert!(failure.to_string().contains("no room"), "{failure}");
    assert_eq!(tree.flushed_sequence(), 0);
    assert_eq!(tree.scan(&[], &[], usize::MAX).expect("scans").len(), 5000);
    let written = storage.counters().writes;
    storage.limit(None);
    while tree.step(32 << 10).expect("steps") == Progress::More {}
    assert_eq!(tree.flushed_sequence(), 1);
    assert_eq!(tree.scan(&[], &[], usize::MAX).expect("scans").len(), 5000);
    // What was written before the failure was not written again.
    assert!(
        storage.counters().writes < written + 30,
        "{:?} after {written}",
        storage.counters()
    );
    tree.manifest().expect("a manifest");
    storage.release(&tree.take_released());
    let mut named = tree.extents();
    named.sort();
    assert_eq!(named, storage.held());
}
