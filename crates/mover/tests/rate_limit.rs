//! A tier's `rate_limit` holds from the moment when it is set, into it and out of it: by counts of the bytes that come to lie elsewhere, on a
//! simulated clock.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use emulated::{MIB, Pattern, Pool, SECOND, Shape};
use terrace_device::Clock;
use terrace_mover::TierPolicy;

/// All that is hot has room on the fast tier, so that nothing moves down for it.
const SHAPE: Shape = Shape {
    volume_bytes: 64 * MIB,
    fast_bytes: 64 * MIB,
    memory_bytes: 8 * MIB,
    chunk_size: "128K",
    reads_per_quarter: u64::MAX,
    pattern: Pattern::Contiguous,
};
const CHUNK: u64 = 128 << 10;
const TICK: u64 = SECOND / 10;

impl Pool {
    fn limit(&self, fast: u64, slow: u64) {
        let policy = |name, rate_limit| TierPolicy {
            rate_limit,
            ..TierPolicy::named(name)
        };
        self.mover
            .set_policies(vec![policy("fast", fast), policy("slow", slow)]);
    }

    /// `bytes` counts what lies where this rate was set just now. How many moved until nothing more did.
    fn check_rate(&self, rate: u64, bytes: impl Fn(&Self) -> u64) -> u64 {
        let before = bytes(self);
        let (mut moved, mut quiet) = (0, 0);
        let began = self.clock.monotonic_nanoseconds();
        let burst = 2 * (rate / 8) + CHUNK;
        while quiet < 20 {
            self.pass(TICK);
            // A step that began in time may have ended later.
            let time = self.clock.monotonic_nanoseconds() - began;
            let now = bytes(self).abs_diff(before);
            let allowed = (rate as u128 * u128::from(time) / u128::from(SECOND)) as u64;
            assert!(
                now <= allowed + burst,
                "{now} bytes in {time} ns, at {rate} a second"
            );
            quiet = if now == moved { quiet + 1 } else { 0 };
            // It is made use of, too: but for looks, which come each second.
            assert!(
                quiet < 20 || now + rate * 3 + burst >= allowed,
                "{now} of {allowed} bytes"
            );
            moved = now;
        }
        moved
    }

    fn reason_of(&self, job: u64) -> String {
        let shown = self.mover.jobs().into_iter().find(|shown| shown.id == job);
        shown.unwrap().reason
    }

    /// Reads while nothing is moved, then for as long as it takes moves what was read often.
    fn rises_at(&self, rate: u64, limits: (u64, u64), least: u64) {
        self.mover.set_enabled(false);
        (1..4).for_each(|seed| {
            self.read(seed, 20_000);
        });
        // Readers are gone, and long since anything was written there.
        self.pass(10 * SECOND);
        self.limit(limits.0, limits.1);
        self.mover.set_enabled(true);
        let moved = self.check_rate(rate, |pool| pool.store.space_of_fast());
        assert!(moved >= least, "{moved} came up");
        self.check();
    }
}

#[test]
fn what_is_moved_by_hand() {
    for rate in [MIB / 2, 2 * MIB, 30 * MIB] {
        let pool = Pool::new(SHAPE, "compression", "off");
        let number = pool.datasets.info("pool/v").unwrap().number;
        // Long since the tier was last written to.
        pool.pass(3600 * SECOND);
        pool.limit(rate, 0);
        let job = pool.mover.move_to(number, 0, "fast").unwrap();
        let reason = pool.reason_of(job);
        assert!(
            reason.ends_with("a second by rate_limit of tier 'fast'"),
            "{reason}"
        );
        let up = pool.check_rate(rate, |pool| pool.store.space_of_fast());
        // What lies at the marks is moved no further.
        assert!(up > SHAPE.fast_bytes / 2, "{up}");
        pool.limit(0, rate);
        pool.mover.move_to(number, 0, "slow").unwrap();
        let down = pool.check_rate(rate, |pool| pool.store.space_of_fast());
        assert_eq!(down, up);
        // The other way round: out of a tier with a rate.
        pool.limit(0, rate);
        pool.mover.move_to(number, 0, "fast").unwrap();
        assert!(pool.check_rate(rate, |pool| pool.store.space_of_fast()) > SHAPE.fast_bytes / 2);
        pool.limit(rate, 0);
        pool.mover.move_to(number, 0, "slow").unwrap();
        assert!(pool.check_rate(rate, |pool| pool.store.space_of_fast()) > SHAPE.fast_bytes / 2);
    }
}

#[test]
fn hot_regions() {
    for rate in [MIB / 2, 30 * MIB] {
        for limits in [(rate, 0), (0, rate)] {
            let pool = Pool::new(SHAPE, "compression", "off");
            pool.rises_at(rate, limits, 5 * MIB);
        }
    }
}

#[test]
fn hot_chunks_and_blocks() {
    for (chunk_size, least) in [("4K", MIB), ("128K", MIB)] {
        let pattern = Pattern::Scattered;
        let shape = Shape {
            chunk_size,
            pattern,
            ..SHAPE
        };
        for limits in [(MIB / 2, 0), (0, MIB / 2)] {
            let pool = Pool::new(shape, "compression", "off");
            pool.rises_at(MIB / 2, limits, least);
        }
    }
}
