//! Reads whose distribution does not change: the moves come to rest, at whatever rate, and the fast tier answers no less for it.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use emulated::{MIB, Pattern, Pool, Shape};

/// Reads in windows; the part of each that reached the slow tier, and the bytes moved meanwhile for each read.
fn windows(pool: &Pool, seed: u64, count: u64, reads: u64) -> Vec<(f64, f64)> {
    let window = |at| {
        let before = pool.moved_bytes();
        let slow = pool.read(seed + at, reads);
        (slow, (pool.moved_bytes() - before) as f64 / reads as f64)
    };
    (0..count).map(window).collect()
}

/// Reads until the moves should have come to rest, and on: the means of the last third.
fn after_long(shape: Shape) -> (f64, f64) {
    let pool = Pool::new(shape, "compression", "off");
    let seen = windows(&pool, 1, 24, 60_000);
    println!("slow reads and bytes moved for each read, by 60,000 of them: {seen:.3?}");
    pool.check();
    let last = &seen[16..];
    let mean = |of: fn(&(f64, f64)) -> f64| last.iter().map(of).sum::<f64>() / last.len() as f64;
    (mean(|seen| seen.0), mean(|seen| seen.1))
}

#[test]
fn scattered_reads_at_a_high_rate() {
    let (slow, moved) = after_long(Shape {
        volume_bytes: 64 * MIB,
        fast_bytes: 24 * MIB,
        memory_bytes: 8 * MIB,
        chunk_size: "4K",
        reads_per_quarter: 5250,
        pattern: Pattern::Scattered,
    });
    // It was 0.058, and 26 bytes a read for ever.
    assert!(slow < 0.058 && moved < 6.0, "{slow} {moved}");
}

#[test]
fn a_contiguous_hot_set_with_a_tenth_of_cold_reads() {
    for (reads_per_quarter, most) in [(375, 1.0), (5250, 6.0)] {
        let (slow, moved) = after_long(Shape {
            volume_bytes: 64 * MIB,
            fast_bytes: 16 * MIB,
            memory_bytes: 4 * MIB,
            chunk_size: "128K",
            reads_per_quarter,
            pattern: Pattern::Contiguous,
        });
        // It was 26 bytes a read for ever: one region up and one down, the one as cold as the other.
        assert!(slow < 0.091 && moved < most, "{slow} {moved}");
    }
}

#[test]
fn a_hot_set_that_moves_is_followed() {
    let mut pool = Pool::new(
        Shape {
            volume_bytes: 64 * MIB,
            fast_bytes: 8 * MIB,
            memory_bytes: 4 * MIB,
            chunk_size: "4K",
            reads_per_quarter: 250,
            pattern: Pattern::Scattered,
        },
        "compression",
        "off",
    );
    let before = windows(&pool, 1, 20, 20_000);
    pool.blocks.rotate_left(4321);
    let after = windows(&pool, 100, 14, 20_000);
    let figures = format!("{before:.3?} then {after:.3?}");
    println!("{figures}");
    assert!(before[19].0 < 0.1, "{figures}");
    // It was 0.167 and 0.148. How soon depends on chance: by what the exchanges in between were judged.
    assert!(after[6].0 < 0.15 && after[13].0 < 0.12, "{figures}");
}
