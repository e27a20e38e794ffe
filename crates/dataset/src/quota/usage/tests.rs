//! Quotas between datasets that write at a time, and what is promised to files.

#![allow(clippy::unwrap_used)]

use std::sync::Barrier;

use terrace_store::MemoryStore;

use super::*;

const MIB: u64 = 1 << 20;

fn usage(above: Option<&Arc<Usage>>, common: &Arc<WorkingRoom>) -> Arc<Usage> {
    let store = Arc::new(MemoryStore::new(1 << 30));
    Usage::new(store, common.clone(), above.cloned())
}

#[test]
fn of_two_datasets_below_one_quota_only_one_takes_what_it_leaves() {
    let common = Arc::default();
    let above = usage(None, &common);
    above.set_quota(Some(MIB));
    let below = [usage(Some(&above), &common), usage(Some(&above), &common)];
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let taken: Vec<_> = below
            .iter()
            .map(|usage| {
                scope.spawn(|| {
                    let mut taken = Vec::new();
                    for _ in 0..3000 {
                        begin.wait();
                        let charge = Charge::take(usage, MIB);
                        taken.push(charge.is_ok());
                        end.wait();
                        drop(charge);
                    }
                    taken
                })
            })
            .collect();
        let taken: Vec<_> = taken.into_iter().map(|taker| taker.join().unwrap()).collect();
        for (round, both) in taken[0].iter().zip(&taken[1]).enumerate() {
            assert!(both.0 ^ both.1, "round {round}: {both:?}");
        }
    });
}

#[test]
fn what_is_promised_counts_below_the_new_parent_after_a_move() {
    let common = Arc::default();
    let parents = [usage(None, &common), usage(None, &common)];
    for parent in &parents {
        parent.set_quota(Some(10 * MIB));
    }
    let moved = usage(Some(&parents[0]), &common);
    moved.keep_reservation(6 * MIB);
    let charge = Charge::take(&moved, MIB).unwrap();
    moved.give_back();
    let left = |at: usize| parents[at].quota_left_bytes().unwrap() / MIB;
    assert_eq!((left(0), left(1)), (4, 10));
    moved.move_below(Some(parents[1].clone()));
    assert_eq!((left(0), left(1)), (10, 4));
    moved.add_live_blocks(2 * MIB as i64 / BLOCK_BYTES as i64);
    drop(charge);
    assert_eq!((left(0), left(1)), (10, 4));
    moved.keep_reservation(0);
    assert_eq!((left(0), left(1)), (10, 8));
    moved.move_below(None);
    assert_eq!((left(0), left(1)), (10, 10));
}

#[test]
fn what_files_preallocate_is_no_room_for_other_writes() {
    let store = Arc::new(MemoryStore::new(10 * MIB));
    let usage = Usage::new(store, Arc::default(), None);
    let blocks = |bytes: u64| Promised {
        blocks: bytes / BLOCK_BYTES as u64,
        mapped_blocks: 0,
    };
    usage.promise(blocks(2 * MIB)).unwrap();
    let other = |bytes| Usage::reserve(&usage, bytes, Terms::default());
    let taken = other(usage.store.available_bytes()).unwrap();
    assert!(matches!(other(4096), Err(FsError::NoSpace)));
    let preallocated = Terms {
        preallocated: true,
        ..Terms::default()
    };
    drop(Usage::reserve(&usage, 2 * MIB, preallocated).unwrap());
    usage.take_promise_back(blocks(2 * MIB));
    assert_eq!(usage.set_aside_bytes(), 0);
    drop(taken);
}
