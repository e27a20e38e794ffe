//! Runs seeds: one at a time or many on several threads, each in its own world.
//!
//! Invariants: a panic in a run is a violation of that seed, not the end of the runner; the outcome of a seed does not
//! depend on which other seeds run beside it; a run that does not end is a violation too (the hang limit is far above
//! what any seed takes).

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;

use super::outcome::{Level, Outcome};
use crate::{away_level, damage_level, fs, hardware::Coverage, store, trace::Trace, violation::Check};

/// Seconds after which a run counts as hanging.
const HANG_SECONDS: u64 = 300;

thread_local! {
    static PANIC: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Keeps what panics say, with their place, for the report of the seed, instead of printing it at once.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let words = info.to_string();
        PANIC.with(|kept| *kept.borrow_mut() = Some(words));
    }));
}

/// Runs one seed.
pub fn run_seed(level: Level, seed: u64, print: bool, coverage: &Arc<Coverage>) -> Outcome {
    let level = level.of_seed(seed);
    let trace = Trace::new(print);
    let own = Arc::new(Coverage::default());
    let result = catch_unwind(AssertUnwindSafe(|| -> Check {
        match level {
            Level::Store | Level::All => store::level::run(seed, own.clone(), trace.clone()),
            Level::Fs | Level::Replace => {
                fs::level::run(seed, level == Level::Replace, own.clone(), trace.clone())
            }
            Level::Damage => damage_level::run(seed, own.clone(), trace.clone()),
            Level::Away => away_level::run(seed, own.clone(), trace.clone()),
        }
    }));
    coverage.add(&own);
    let violation = match result {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.0.chars().take(1500).collect()),
        Err(panic) => Some(panic_words(&*panic)),
    };
    Outcome {
        seed,
        level,
        hash: trace.hash(),
        events: trace.events(),
        tail: if violation.is_some() {
            trace.tail()
        } else {
            Vec::new()
        },
        violation,
    }
}

fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(words) = PANIC.with(|kept| kept.borrow_mut().take()) {
        return words;
    }
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| "without words".into())
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// Runs that ended well.
    pub passed: u64,
    /// Those that did not, in the order of their seeds.
    pub failures: Vec<Outcome>,
    /// Events of all runs.
    pub events: u64,
}

/// Runs `jobs` on `threads` threads; every sixteenth is run twice and must do the same again. Stops early once
/// `failures_max` seeds failed, or `until` has passed. Each failure is handed to `found` the moment it is known, one
/// at a time, since a run may be ended before its summary.
pub fn run_many(
    jobs: &[(Level, u64)],
    threads: usize,
    failures_max: usize,
    until: Option<Instant>,
    coverage: &Arc<Coverage>,
    found: &(dyn Fn(&Outcome) + Sync),
) -> Summary {
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let summary = Mutex::new(Summary::default());
    let running: Vec<(AtomicU64, Mutex<Instant>)> = (0..threads)
        .map(|_| (AtomicU64::new(u64::MAX), Mutex::new(Instant::now())))
        .collect();
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (seed_of, since) in &running {
            let (next, failed, summary, finished) = (&next, &failed, &summary, &finished);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    let Some(&(level, seed)) = jobs.get(index) else {
                        break;
                    };
                    if failed.load(Ordering::SeqCst) >= failures_max
                        || until.is_some_and(|at| Instant::now() > at)
                    {
                        break;
                    }
                    *since.lock() = Instant::now();
                    seed_of.store(seed, Ordering::SeqCst);
                    let mut outcome = run_seed(level, seed, false, coverage);
                    if outcome.violation.is_none() && index % 16 == 0 {
                        let again = run_seed(level, seed, false, &Arc::new(Coverage::default()));
                        if again.hash != outcome.hash {
                            outcome.violation = Some(format!(
                                "not deterministic: {} events with hash {:016x}, then {} with {:016x}",
                                outcome.events, outcome.hash, again.events, again.hash
                            ));
                        }
                    }
                    seed_of.store(u64::MAX, Ordering::SeqCst);
                    let mut summary = summary.lock();
                    summary.events += outcome.events;
                    if outcome.violation.is_some() {
                        failed.fetch_add(1, Ordering::SeqCst);
                        found(&outcome);
                        summary.failures.push(outcome);
                    } else {
                        summary.passed += 1;
                    }
                }
                seed_of.store(u64::MAX, Ordering::SeqCst);
                finished.fetch_add(1, Ordering::SeqCst);
            });
        }
        // A thread that hangs cannot be stopped from here; saying which seed it is helps more than waiting for ever.
        while finished.load(Ordering::SeqCst) < threads {
            std::thread::sleep(std::time::Duration::from_millis(20));
            for (seed_of, since) in &running {
                let seed = seed_of.load(Ordering::SeqCst);
                if seed != u64::MAX && since.lock().elapsed().as_secs() > HANG_SECONDS {
                    eprintln!("seed {seed} does not end within {HANG_SECONDS} s");
                    std::process::exit(1);
                }
            }
        }
    });
    let mut summary = summary.into_inner();
    summary.failures.sort_by_key(|outcome| outcome.seed);
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs some seeds of a level twice each.
    fn runs_alike(level: Level, seeds: std::ops::Range<u64>) {
        for seed in seeds {
            let run = || run_seed(level, seed, false, &Arc::new(Coverage::default()));
            let (one, other) = (run(), run());
            assert_eq!((one.events, one.hash), (other.events, other.hash), "seed {seed}");
            assert_eq!(one.violation, other.violation, "seed {seed}");
        }
    }

    #[test]
    fn the_store_level_does_the_same_again() {
        runs_alike(Level::Store, 500..515);
    }

    #[test]
    fn the_fs_level_does_the_same_again() {
        runs_alike(Level::Fs, 500..515);
    }

    #[test]
    fn the_damage_level_does_the_same_again() {
        runs_alike(Level::Damage, 500..530);
    }

    #[test]
    fn the_away_level_does_the_same_again() {
        runs_alike(Level::Away, 500..530);
    }

    #[test]
    fn another_seed_does_something_else() {
        let hash = |seed| run_seed(Level::Damage, seed, false, &Arc::new(Coverage::default())).hash;
        assert_ne!(hash(1), hash(2));
    }
}
