//! Resident memory: what the process holds beyond what is counted (the program, stacks, buffers of requests, what lies free between
//! used memory in the allocator's arenas), kept within the budget too.
//!
//! Invariants: looked at once a second, and only where the process serves one pool alone; what is held beyond the budget comes out of
//! what readers have and what is kept of metadata, bit by bit, and goes back bit by bit; writers and removals never wait for it. Free memory
//! is given back to the kernel while the process holds more than its budget and at the end of a load, not more often than every few
//! seconds: others wait for the allocator meanwhile.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_cache::Budget;

/// The least time between two times that free memory is given back, nanoseconds.
const TRIM_NANOSECONDS: u64 = 5_000_000_000;
/// So long after the last request a load has ended.
const REST_NANOSECONDS: u64 = 5_000_000_000;
/// Of the budget, the part by which what is kept from readers changes at a time, and the part of the budget that it is at most.
const STEP_PART: u64 = 32;
const MOST_PART: u64 = 2;

/// See the module.
#[derive(Default)]
pub(super) struct Resident {
    trimmed_nanoseconds: AtomicU64,
    requests: AtomicU64,
    used_nanoseconds: AtomicU64,
    /// Whether free memory was given back since the last request.
    rested: AtomicU64,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// What readers do without, bytes.
    pub(super) excess_bytes: u64,
    /// Whether free memory is to be given back.
    pub(super) trims: bool,
}

impl Resident {
    /// The process holds so much; readers do without `excess_bytes` so far, and `requests` were served in all.
    pub(super) fn judge(&self, budget: &Budget, held_bytes: u64, requests: u64, now: u64) -> Verdict {
        let limit = budget.limit_bytes();
        let step = limit / STEP_PART;
        let excess = budget.excess_bytes();
        let over = held_bytes.saturating_sub(limit);
        let excess_bytes = match over {
            // Enough is free that a step back does not bring it over again.
            0 if held_bytes + 2 * step < limit => excess.saturating_sub(step),
            0 => excess,
            over => (excess + over.clamp(step, 4 * step)).min(limit / MOST_PART),
        };
        if self.requests.swap(requests, Relaxed) != requests {
            self.used_nanoseconds.store(now, Relaxed);
            self.rested.store(0, Relaxed);
        }
        let is_idle = now.saturating_sub(self.used_nanoseconds.load(Relaxed)) >= REST_NANOSECONDS;
        let is_due = now.saturating_sub(self.trimmed_nanoseconds.load(Relaxed)) >= TRIM_NANOSECONDS;
        let trims = is_due && (over > 0 || is_idle && self.rested.swap(1, Relaxed) == 0);
        if trims {
            self.trimmed_nanoseconds.store(now, Relaxed);
        }
        Verdict { excess_bytes, trims }
    }
}

/// What this process holds in memory, bytes; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn readers_give_way_to_what_is_not_counted_and_have_it_back() {
        let (resident, budget) = (Resident::default(), Budget::new(128 * MIB));
        let full = budget.read_cache_bytes();
        let mut now = 100 * SECOND;
        let mut look = |held: u64, requests: u64| {
            now += SECOND;
            let verdict = resident.judge(&budget, held, requests, now);
            budget.set_excess(verdict.excess_bytes);
            verdict.trims
        };
        let trims = (1..=10).filter(|second| look(160 * MIB, *second)).count();
        assert_eq!(trims, 2, "every five seconds");
        assert!(budget.read_cache_bytes() < full / 2 && budget.excess_bytes() <= 64 * MIB);
        let kept = budget.less_excess(16 * MIB);
        assert!(
            (4 * MIB..=10 * MIB).contains(&kept),
            "metadata makes up for it too: {kept}"
        );
        // Where it fits again it stays so, and where much is free it goes back.
        look(127 * MIB, 11);
        assert!(budget.read_cache_bytes() < full / 2);
        (0..20).for_each(|_| {
            look(90 * MIB, 11);
        });
        assert_eq!(budget.read_cache_bytes(), full);
        assert_eq!(budget.less_excess(16 * MIB), 16 * MIB);
    }

    #[test]
    fn at_the_end_of_a_load_free_memory_is_given_back_once() {
        let (resident, budget) = (Resident::default(), Budget::new(128 * MIB));
        let trims = |from: u64, requests: u64| {
            let look = |second: &u64| {
                resident
                    .judge(&budget, 100 * MIB, requests, *second * SECOND)
                    .trims
            };
            (from..from + 60).filter(look).count()
        };
        assert_eq!(trims(100, 1), 1);
        assert_eq!(trims(200, 1), 0);
        assert_eq!(trims(300, 2), 1);
    }
}
