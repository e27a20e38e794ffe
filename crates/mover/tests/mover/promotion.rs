//! What moves up by itself: what is read often, into room that what is colder makes.

use terrace_dataset::{Context, Tree, bytes_of_dataset};

use super::pool::{MIB, Pool, record};

#[test]
fn what_is_read_often_moves_up_and_stays() {
    let pool = Pool::new(100 * MIB);
    let files = pool.files(10);
    let id = pool.mover.move_to(pool.number, 0, "slow").unwrap();
    pool.settle();
    assert_eq!(
        bytes_of_dataset(&pool.store(), pool.number).unwrap().by_tier,
        [0, 10 * MIB]
    );
    assert_eq!((pool.job(id).state, pool.job(id).done_bytes), ("done", 10 * MIB));
    record(pool.environment(), pool.number, files[3], 20);
    record(pool.environment(), pool.number, files[4], 1);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[3]), [MIB, 0]);
    assert_eq!(pool.tier_bytes(files[4]), [0, MIB], "read once is not often");
    let promotions: Vec<_> = pool
        .mover
        .jobs()
        .into_iter()
        .filter(|job| job.kind == "promote")
        .collect();
    assert_eq!(
        promotions.len(),
        1,
        "no job for what lies well already: {promotions:?}"
    );
    assert_eq!((promotions[0].state, promotions[0].done_bytes), ("done", MIB));
    assert_eq!(promotions[0].total_bytes, MIB);
    pool.audit(&files);
}

#[test]
fn a_full_fast_tier_makes_room_for_what_is_hotter() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(17);
    pool.mover.demote(pool.number, files[0]).unwrap();
    pool.steps(1000);
    for object in &files[1..4] {
        record(pool.environment(), pool.number, *object, 200);
    }
    record(pool.environment(), pool.number, files[0], 50);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "{:?}", pool.mover.jobs());
    for object in &files[1..4] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "hotter still");
    }
    let before = pool.mover.jobs().len();
    pool.settle();
    assert_eq!(pool.mover.jobs().len(), before, "it comes to rest");
    pool.audit(&files);
}

#[test]
fn what_is_written_over_is_as_hot_as_what_was_there() {
    let pool = Pool::new(20 * MIB);
    let file = pool.files(1)[0];
    let chunk = || {
        let found = terrace_dataset::read_region(&*pool.store(), pool.number, file, 0).unwrap();
        found.unwrap().record.lookup(40).unwrap().0
    };
    let heat = &pool.environment().chunk_heat;
    let before = chunk();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    for _ in 0..5 {
        filesystem.read(file, 40 * 4096, &mut [0; 4096]).unwrap();
    }
    let block = vec![9; 4096];
    filesystem
        .write(&Context::root(), file, 40 * 4096, &block, false)
        .unwrap();
    pool.datasets.commit_all().unwrap();
    assert_ne!(chunk(), before);
    assert_eq!(heat.reads(chunk(), 1), 5);
}

#[test]
fn room_is_made_for_the_hottest_of_those_that_lack_it() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(18);
    for object in &files[..3] {
        pool.mover.demote(pool.number, *object).unwrap();
    }
    pool.steps(1000);
    // Two that are hardly worth it do not hide the one that is.
    record(pool.environment(), pool.number, files[0], 200);
    record(pool.environment(), pool.number, files[1], 4);
    record(pool.environment(), pool.number, files[2], 4);
    for object in &files[3..] {
        record(pool.environment(), pool.number, *object, 20);
    }
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "{:?}", pool.mover.jobs());
    pool.audit(&files);
}

#[test]
fn what_is_up_already_does_not_hide_what_is_less_hot() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(4);
    pool.mover.demote(pool.number, files[0]).unwrap();
    pool.steps(1000);
    record(pool.environment(), pool.number, files[0], 10);
    // More hot regions than one round looks at, all of them where they should be.
    for body in 0..3000 {
        record(pool.environment(), pool.number, 1_000_000 + body, 50);
    }
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "{:?}", pool.mover.jobs());
}
