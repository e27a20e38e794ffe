//! Moves that a user asks for, and how policies go on with what was moved.

use terrace_mover::Step;
use terrace_store::Store;

use super::pool::{MIB, Pool, SECOND, record};

#[test]
fn a_move_by_hand_does_not_wait_until_all_that_is_hot_is_up() {
    let pool = Pool::new(400 * MIB);
    let files = pool.files(60);
    pool.mover.move_to(pool.number, 0, "slow").unwrap();
    pool.settle();
    for object in &files[1..] {
        record(pool.environment(), pool.number, *object, 50);
    }
    let id = pool.mover.promote(pool.number, files[0]).unwrap();
    // One for each kind of work; to bring up what is hot takes eight.
    for _ in 0..5 {
        assert_eq!(pool.mover.step().unwrap(), Step::More);
    }
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0]);
    assert!(pool.memory.space().tiers[0].live_bytes < 60 * MIB);
    pool.settle();
    assert_eq!(pool.job(id).state, "done");
    assert_eq!(pool.memory.space().tiers[0].live_bytes, 60 * MIB);
    pool.audit(&files);
}

#[test]
fn what_was_moved_down_by_hand_stays_there_until_it_is_read_about_as_much_again() {
    let pool = Pool::new(100 * MIB);
    let files = pool.files(4);
    let heat = |file: usize, reads| record(pool.environment(), pool.number, files[file], reads);
    heat(0, 60);
    heat(1, 60);
    heat(2, 2);
    for object in &files[..3] {
        pool.mover.demote(pool.number, *object).unwrap();
    }
    pool.steps(1000);
    let some = |seconds| {
        for _ in 0..seconds {
            pool.clock.advance(SECOND);
            assert!(pool.steps(10_000) < 10_000, "the mover does not come to rest");
        }
    };
    heat(0, 20);
    heat(1, 20);
    heat(2, 5);
    some(30);
    assert_eq!(pool.tier_bytes(files[0]), [0, MIB], "20 of 60");
    assert_eq!(pool.tier_bytes(files[2]), [MIB, 0], "hardly read before");
    heat(0, 20);
    some(30);
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "40 of 60");
    assert_eq!(pool.tier_bytes(files[1]), [0, MIB]);
    some(1800);
    assert_eq!(pool.tier_bytes(files[1]), [MIB, 0], "half an hour later");
    // Up by hand: nothing is in the way of anything.
    heat(3, 60);
    pool.mover.demote(pool.number, files[3]).unwrap();
    some(20);
    assert_eq!(
        pool.tier_bytes(files[3]),
        [0, MIB],
        "what it was read before is forgotten"
    );
    pool.mover.promote(pool.number, files[3]).unwrap();
    some(20);
    assert_eq!(pool.tier_bytes(files[3]), [MIB, 0]);
    pool.audit(&files);
}

#[test]
fn what_is_moved_up_by_hand_waits_until_what_is_colder_has_made_way() {
    let pool = Pool::new(20 * MIB);
    pool.mover.set_step_bytes(MIB);
    let files = pool.files(10);
    for object in &files[..6] {
        record(pool.environment(), pool.number, *object, 200);
    }
    for object in &files[6..] {
        pool.mover.demote(pool.number, *object).unwrap();
    }
    pool.steps(1000);
    for seed in 10..20 {
        pool.file(&format!("g{seed}"), seed);
    }
    pool.datasets.commit_all().unwrap();
    let promote = |object: &u64| pool.mover.promote(pool.number, *object).unwrap();
    let _jobs: Vec<u64> = files[6..].iter().map(promote).collect();
    // 16 MiB are there, and 4 are to come: 17 are the mark.
    let mut most = 0;
    for _ in 0..200 {
        while let Step::More = pool.mover.step().unwrap() {
            most = most.max(pool.memory.space().tiers[0].live_bytes);
        }
        pool.clock.advance(SECOND);
    }
    assert!(most <= 18 * MIB + MIB / 2, "{most}");
    assert!(
        pool.mover.jobs().iter().all(|job| job.state == "done"),
        "{:?}",
        pool.mover.jobs()
    );
    for object in &files[..6] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "what is hot stays");
    }
    pool.audit(&files);
}
