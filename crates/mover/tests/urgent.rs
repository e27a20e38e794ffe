//! A fast tier that fills up while users write: what is cold leaves it before what they write would land below.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use std::sync::atomic::Ordering::Relaxed;

use emulated::{BLOCK, MIB, Pattern, Pool, SECOND, Shape};

const SHAPE: Shape = Shape {
    volume_bytes: 64 * MIB,
    fast_bytes: 32 * MIB,
    memory_bytes: 4 * MIB,
    chunk_size: "128K",
    reads_per_quarter: 250,
    pattern: Pattern::Contiguous,
};

/// Writes so much anew, which lands on the fast tier.
fn write(pool: &Pool, bytes: u64) {
    for at in 0..bytes / MIB {
        let piece: Vec<u8> = (0..MIB / 8)
            .flat_map(|word| (word << 20 | at << 8 | 7).to_le_bytes())
            .collect();
        pool.volume.write(at * MIB, &piece).unwrap();
        pool.volume.commit().unwrap();
    }
}

#[test]
fn it_is_noticed_within_a_second() {
    let pool = Pool::new(SHAPE, "compression", "off");
    let fast = |pool: &Pool| pool.store.space_of_fast();
    write(&pool, 30 * MIB);
    assert!(fast(&pool) >= 30 * MIB);
    // Segments are free: there is no hurry. (The looks at the policies come every ten seconds.)
    pool.pass(SECOND);
    assert!(fast(&pool) >= 30 * MIB, "{}", fast(&pool));
    // Nothing is hotter than the rest: what was written first does not make way for what was written last.
    // What is free now is left to metadata by what lands.
    pool.store.taken_bytes.store(28 * MIB, Relaxed);
    pool.pass(2 * SECOND);
    assert!(fast(&pool) >= 30 * MIB, "{}", fast(&pool));
    let mut buffer = vec![0; 4096];
    for at in 0..2000 {
        pool.volume.read(at % 250 * 4096, &mut buffer).unwrap();
    }
    pool.pass(2 * SECOND);
    assert!(fast(&pool) <= 26 * MIB, "{}", fast(&pool));
    pool.check();
}

#[test]
fn dead_blocks_come_back_before_anything_sinks() {
    let pool = Pool::new(SHAPE, "compression", "off");
    bring_dead_blocks_back(&pool);
}

#[test]
fn dead_blocks_come_back_also_while_nothing_may_be_moved() {
    let pool = Pool::new(SHAPE, "compression", "off");
    pool.mover.set_enabled(false);
    bring_dead_blocks_back(&pool);
    let jobs = pool.mover.jobs();
    let relayout = jobs.iter().find(|job| job.kind == "relayout").unwrap();
    assert!(!relayout.reason.contains("migration is off"), "{relayout:?}");
}

fn bring_dead_blocks_back(pool: &Pool) {
    let fast = |pool: &Pool| pool.store.space_of_fast();
    write(pool, 20 * MIB);
    let mut block = 0u64;
    while block < 20 * MIB / BLOCK {
        let piece: Vec<u8> = (0..BLOCK / 8)
            .flat_map(|word| (word << 40 | block << 8 | 8).to_le_bytes())
            .collect();
        pool.volume.write(block * BLOCK, &piece).unwrap();
        block += 2;
    }
    pool.volume.commit().unwrap();
    assert!(fast(pool) >= 30 * MIB, "{}", fast(pool));
    // Hardly a segment is free, and users write on: nothing comes to rest.
    pool.store.taken_bytes.store(61 * MIB / 2, Relaxed);
    pool.pass(2 * SECOND);
    assert!(fast(pool) <= 23 * MIB, "{}", fast(pool));
    assert_eq!(pool.moved_bytes(), 0);
    pool.check();
}

/// A fast tier below its mark on which no segment is free, and what is not free holds too little garbage to be worth a compaction.
fn without_free_segments() -> Pool {
    let pool = Pool::new(SHAPE, "compression", "off");
    write(&pool, 25 * MIB);
    pool.store.taken_bytes.store(29 * MIB, Relaxed);
    pool
}

/// Reads so many regions, each as often.
fn read(pool: &Pool, regions: u64) {
    let mut buffer = vec![0; 4096];
    for at in 0..regions * 2000 {
        let place = at % regions * MIB + at * 37 % 250 * BLOCK;
        pool.volume.read(place, &mut buffer).unwrap();
    }
}

#[test]
fn below_the_mark_what_is_cold_makes_way_for_what_is_written() {
    let pool = without_free_segments();
    let fast = || pool.store.space_of_fast();
    pool.pass(2 * SECOND);
    assert_eq!(fast(), 25 * MIB, "all is as cold as the rest");
    read(&pool, 1);
    pool.pass(3 * SECOND);
    assert!((16 * MIB..=19 * MIB).contains(&fast()), "{}", fast());
    pool.check();
}

#[test]
fn below_the_mark_what_is_hot_stays() {
    let pool = without_free_segments();
    let demotions = || {
        let jobs = pool.mover.jobs().into_iter();
        jobs.filter(|job| job.kind == "demote").count()
    };
    let before = demotions();
    read(&pool, 25);
    pool.pass(22 * SECOND);
    assert_eq!(pool.store.space_of_fast(), 25 * MIB, "all is as hot as the rest");
    assert_eq!(demotions() - before, 1, "it is not looked for all the time");
    pool.check();
}
