//! Rounds under a scheduler that tries orders of threads which a machine seldom takes (the `shuttle` crate; the idea is that of
//! Burckhardt and others, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010).

use std::{sync::Arc, time::Duration};

use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use terrace_sync::{ManualClock, Round, Rounds, rank};

/// What was done before, and what of that a round has made durable.
#[derive(Default)]
struct Log {
    written: AtomicU64,
    durable: AtomicU64,
    leaders: AtomicU64,
}

/// Somebody who wrote this much, and wants it to be durable. As a group commit: `by_count`; as a commit of a dataset: not.
struct Flush<'a> {
    log: &'a Log,
    wants: u64,
    by_count: bool,
}

impl Round for Flush<'_> {
    type Result = u64;
    type Refusal = ();

    fn is_served(&self, is_later: bool) -> bool {
        match self.by_count {
            true => self.log.durable.load(SeqCst) >= self.wants,
            false => is_later,
        }
    }
    fn may_wait(&self, _since: u64, _is_late: bool) -> Result<(), ()> {
        Ok(())
    }
    fn may_lead(&self) -> Result<(), ()> {
        Ok(())
    }
    fn lead(&self) -> u64 {
        assert_eq!(self.log.leaders.fetch_add(1, SeqCst), 0, "two lead at once");
        let written = self.log.written.load(SeqCst);
        shuttle::thread::yield_now();
        self.log.durable.fetch_max(written, SeqCst);
        self.log.leaders.fetch_sub(1, SeqCst);
        written
    }
}

fn all_are_served(by_count: bool) {
    let log: Arc<Log> = Arc::default();
    let rounds: Arc<Rounds<u64, rank::append::Flushes>> = Arc::default();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (log, rounds) = (log.clone(), rounds.clone());
            shuttle::thread::spawn(move || {
                for _ in 0..2 {
                    let wants = log.written.fetch_add(1, SeqCst) + 1;
                    let flush = Flush {
                        log: &log,
                        wants,
                        by_count,
                    };
                    let clock = ManualClock::new(1);
                    rounds.join(&clock, Duration::from_secs(1), &flush).unwrap();
                    assert!(
                        log.durable.load(SeqCst) >= wants,
                        "told to be durable, and is not"
                    );
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn whoever_is_told_that_his_write_is_durable_has_it_durable_in_every_order() {
    shuttle::check_random(|| all_are_served(true), 3000);
    shuttle::check_pct(|| all_are_served(true), 3000, 3);
}

#[test]
fn whoever_is_told_that_all_before_is_committed_has_it_committed_in_every_order() {
    shuttle::check_random(|| all_are_served(false), 3000);
    shuttle::check_pct(|| all_are_served(false), 3000, 3);
}
