//! A hot set that is scattered in small blocks over a whole volume: which reads still reach the slow tier is counted.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use emulated::{BLOCK, MIB, Pattern, Pool, SECOND, Shape};
use terrace_mover::TierPolicy;
use terrace_store::Store;

/// The volume is eight times as large as the fast tier, and that eight times as large as the read cache.
const SHAPE: Shape = Shape {
    volume_bytes: 64 * MIB,
    fast_bytes: 8 * MIB,
    memory_bytes: 4 * MIB,
    chunk_size: "4K",
    reads_per_quarter: 250,
    pattern: Pattern::Scattered,
};

/// What of the reads would reach the slow tier if the hottest blocks lay on the fast one, and RAM had nothing.
fn best(pool: &Pool) -> f64 {
    let all = pool.sums.last().unwrap();
    1.0 - pool.sums[(pool.shape.filled_bytes() / BLOCK) as usize - 1] / all
}

const READS: u64 = 20_000;

#[test]
fn scattered_hot_blocks_come_up_and_stay() {
    let mut pool = Pool::new(SHAPE, "compression", "off");
    let best = best(&pool);
    pool.mover.set_enabled(false);
    let before = pool.read(1, READS);
    pool.mover.set_enabled(true);
    let training: Vec<f64> = (2..8).map(|seed| pool.read(seed, READS)).collect();
    let moved = pool.moved_bytes();
    let after = pool.read(1, READS);
    let moved_after = pool.moved_bytes() - moved;
    pool.scan();
    let after_scan = pool.read(1, READS);
    pool.reopen();
    // RAM has nothing then, and is as full as before when the same was read again.
    let restart = pool.read(1, READS);
    let warm = pool.read(1, READS);
    let figures = format!(
        "slow reads a request: {before:.3}; training {training:.3?}; {after:.3}; after a scan {after_scan:.3}, after a \
         restart {restart:.3}, then {warm:.3}; {best:.3} at best without RAM; moved meanwhile {} KiB",
        moved_after >> 10
    );
    println!("{figures}");
    pool.check();
    // By region it was 0.183: all regions are about as warm.
    assert!(before > 0.2, "{figures}");
    assert!(after < 0.11 && after < best * 1.2, "{figures}");
    assert!(after_scan < after * 1.05, "{figures}");
    assert!(restart < best * 1.2 && warm < after * 1.05, "{figures}");
    // Chunks that are as hot as each other do not change places: of what lies there, a fifth in 20,000 reads.
    assert!(moved_after < pool.shape.filled_bytes() / 5, "{figures}");
}

#[test]
fn single_chunks_obey_pins_and_jobs() {
    let pinned = Pool::new(SHAPE, "pin", "slow");
    pinned.read(1, 5000);
    pinned.check();
    assert_eq!(pinned.moved_bytes(), 0, "what is pinned stays");

    let pool = Pool::new(SHAPE, "compression", "off");
    let up = || pool.store.space().tiers[0].live_bytes;
    let policies = |rate_limit| {
        let policy = |name| TierPolicy {
            promote_after: 5,
            rate_limit,
            ..TierPolicy::named(name)
        };
        ["fast", "slow"].map(policy).to_vec()
    };
    pool.mover.set_policies(policies(0));
    // A few hot blocks, and regions that are not.
    let read = |blocks: usize, times: usize| {
        let mut buffer = vec![0; BLOCK as usize];
        for _ in 0..times {
            for block in &pool.blocks[..blocks] {
                pool.volume.read(block * BLOCK, &mut buffer).unwrap();
            }
            // Out of RAM again.
            pool.environment().cache.clear();
            pool.environment().heat.clear();
            pool.pass(SECOND);
        }
    };
    read(20, 4);
    pool.pass(20 * SECOND);
    assert_eq!(up(), 0, "four times is not five");
    pool.mover.set_enabled(false);
    read(20, 1);
    assert_eq!(up(), 0, "migration=off");
    pool.mover.set_enabled(true);
    // Two may share the place where they wait for the mover.
    read(20, 2);
    pool.pass(20 * SECOND);
    assert_eq!(up(), 20 * BLOCK);
    let promotion = || pool.mover.jobs().into_iter().find(|job| job.kind == "promote");
    let done = promotion().unwrap();
    assert_eq!((done.state, done.done_bytes), ("done", done.total_bytes));

    // Slowly, so that there is time to pause it.
    pool.mover.set_policies(policies(32 << 10));
    read(200, 6);
    let begun = up();
    assert!((21 * BLOCK..200 * BLOCK).contains(&begun), "{begun}");
    let running = |job: &terrace_mover::JobInfo| job.state == "running";
    let id = pool.mover.jobs().iter().find(|job| running(job)).unwrap().id;
    pool.mover.pause(id).unwrap();
    pool.pass(60 * SECOND);
    assert_eq!(up(), begun, "paused");
    pool.mover.resume(id).unwrap();
    pool.pass(2 * SECOND);
    let later = up();
    assert!((begun + BLOCK..200 * BLOCK).contains(&later), "{later}");
    pool.mover.cancel(id).unwrap();
    pool.pass(5 * SECOND);
    assert_eq!(up(), later, "cancelled: nothing until the next look at the tiers");
    pool.check();
}
