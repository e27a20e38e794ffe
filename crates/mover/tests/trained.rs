//! A fast tier full of what nobody reads any more: what is read now comes up within a minute.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use std::sync::atomic::Ordering::Relaxed;

use terrace_device::Clock;

use emulated::{BLOCK, MIB, Pattern, Pool, SECOND, Shape};
use terrace_mover::TierPolicy;

/// A volume on the slow tier, which is read 38 times each quarter of a second.
fn pool_of(volume_bytes: u64, fast_bytes: u64, chunk_size: &'static str) -> Pool {
    let shape = Shape {
        volume_bytes,
        fast_bytes,
        memory_bytes: 4 * MIB,
        chunk_size,
        reads_per_quarter: 38,
        pattern: Pattern::Contiguous,
    };
    Pool::new(shape, "compression", "off")
}

/// Numbers that look like chance, the same each time.
fn chance() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 33
    }
}

/// Writes over the first so many MiB, which land on the fast tier, and nobody reads them.
fn fill(pool: &Pool, mebibytes: u64, next: &mut impl FnMut() -> u64) {
    let mut piece = vec![0; MIB as usize];
    for at in 0..mebibytes {
        piece.iter_mut().for_each(|byte| *byte = next() as u8);
        pool.volume.write(at * MIB, &piece).unwrap();
        pool.volume.commit().unwrap();
    }
}

/// Reads 12 MiB from this one on at random for a time; the part of the reads that reached the slow tier.
fn read(pool: &Pool, seconds: u64, from_mebibyte: u64, next: &mut impl FnMut() -> u64) -> f64 {
    let (before, mut reads) = (pool.store.reads[1].load(Relaxed), 0);
    let until = pool.clock.monotonic_nanoseconds() + seconds * SECOND;
    let mut buffer = vec![0; BLOCK as usize];
    while pool.clock.monotonic_nanoseconds() < until {
        for _ in 0..pool.shape.reads_per_quarter {
            let block = from_mebibyte * MIB / BLOCK + next() % (12 * MIB / BLOCK);
            pool.volume.read(block * BLOCK, &mut buffer).unwrap();
            reads += 1;
        }
        pool.pass(SECOND / 4);
    }
    (pool.store.reads[1].load(Relaxed) - before) as f64 / f64::from(reads)
}

#[test]
fn what_is_cold_makes_way_within_a_minute() {
    let pool = pool_of(64 * MIB, 24 * MIB, "128K");
    let mut next = chance();
    fill(&pool, 22, &mut next);
    pool.settle();
    let cold = pool.store.space_of_fast();
    assert!(cold > 13 * MIB, "{cold}");
    pool.environment().heat.clear();
    let mut buffer = vec![0; BLOCK as usize];
    // So many seconds, so many reads in each.
    let mut read = |seconds: u64, rate: u64| {
        let before = pool.store.reads[1].load(Relaxed);
        for _ in 0..seconds * 4 {
            for _ in 0..rate / 4 {
                let block = 40 * MIB / BLOCK + next() % (12 * MIB / BLOCK);
                pool.volume.read(block * BLOCK, &mut buffer).unwrap();
            }
            pool.pass(SECOND / 4);
        }
        let slow = pool.store.reads[1].load(Relaxed) - before;
        slow as f64 / (seconds * (rate / 4 * 4)) as f64
    };
    let slow: Vec<f64> = (0..6).map(|_| read(10, 152)).collect();
    println!("reads of the slow tier, by ten seconds: {slow:.3?}");
    // It was 0.5 and 0.4 when each exchange waited for two looks at the tiers.
    assert!(slow[3] < 0.25 && slow[4] < 0.1, "{slow:.3?}");
    pool.settle();
    assert_eq!(read(10, 152), 0.0);
    pool.check();
}

#[test]
fn what_is_forgotten_comes_up_no_more() {
    let pool = Pool::new(
        Shape {
            volume_bytes: 32 * MIB,
            fast_bytes: 24 * MIB,
            memory_bytes: 4 * MIB,
            chunk_size: "128K",
            reads_per_quarter: 1000,
            pattern: Pattern::Contiguous,
        },
        "compression",
        "off",
    );
    // Slowly, so that much is still on its way.
    let policies = ["fast", "slow"].map(|name| TierPolicy {
        rate_limit: MIB,
        ..TierPolicy::named(name)
    });
    pool.mover.set_policies(policies.to_vec());
    pool.read(1, 20_000);
    let promotions = || {
        let jobs = pool.mover.jobs().into_iter();
        jobs.filter(|job| job.kind == "promote").collect::<Vec<_>>()
    };
    assert!(promotions().iter().any(|job| job.state == "running"));
    let up = pool.store.space_of_fast();
    pool.environment().chunk_heat.clear();
    pool.environment().heat.clear();
    pool.mover.forget_hot().unwrap();
    assert!(
        promotions().iter().all(|job| job.state == "done"),
        "{:?}",
        promotions()
    );
    pool.settle();
    assert_eq!(pool.store.space_of_fast(), up);
    pool.check();
}

#[test]
fn what_readers_wait_for_does_not_give_way_to_them() {
    let pool = pool_of(64 * MIB, 24 * MIB, "16K");
    // Each request that moves something waits behind those of users.
    pool.store.move_nanoseconds.store(60_000_000, Relaxed);
    let mut next = chance();
    let slow: Vec<f64> = (0..4).map(|_| read(&pool, 5, 0, &mut next)).collect();
    println!("reads of the slow tier, by five seconds: {slow:.3?}");
    // It was 0.0 when each of them rested twenty times as long as it took.
    assert!(slow[2] < 0.1 && slow[3] == 0.0, "{slow:.3?}");
    pool.check();
}

#[test]
fn room_for_what_readers_wait_for_is_made_in_large_pieces() {
    let pool = pool_of(128 * MIB, 96 * MIB, "16K");
    let mut next = chance();
    fill(&pool, 92, &mut next);
    pool.store.move_nanoseconds.store(60_000_000, Relaxed);
    let slow: Vec<f64> = (0..6).map(|_| read(&pool, 5, 100, &mut next)).collect();
    println!("reads of the slow tier, by five seconds: {slow:.3?}");
    // It was 0.48 and 0.18 when each request brought 128 KiB of the 20 MiB that had to sink first.
    assert!(slow[3] < 0.35 && slow[4] < 0.12, "{slow:.3?}");
    pool.check();
}

#[test]
fn what_was_read_takes_the_place_of_what_was_not_also_when_readers_have_gone() {
    let pool = pool_of(160 * MIB, 64 * MIB, "128K");
    let mut next = chance();
    fill(&pool, 52, &mut next);
    pool.settle();
    pool.environment().heat.clear();
    pool.environment().chunk_heat.clear();
    pool.mover.forget_hot().unwrap();
    let mut buffer = vec![0; BLOCK as usize];
    let slow = || pool.store.reads[1].load(Relaxed);
    for _ in 0..48 {
        for _ in 0..9 {
            let block = 100 * MIB / BLOCK + next() % (32 * MIB / BLOCK);
            pool.volume.read(block * BLOCK, &mut buffer).unwrap();
        }
        pool.pass(SECOND / 4);
    }
    pool.pass(15 * SECOND);
    let before = slow();
    for at in 0..32 {
        pool.volume.read((100 + at) * MIB, &mut buffer).unwrap();
    }
    // A sixteenth of the tier each 20 s came up before, the first after half a minute.
    assert_eq!(slow() - before, 0, "of 32 regions still below");
    pool.check();
}
