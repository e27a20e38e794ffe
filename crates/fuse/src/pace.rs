//! `Pace`: whether it pays to look for the next request for a moment before sleeping.
//!
//! Looking saves the receiving thread a wake-up. But it takes a core from the caller, and it keeps the kernel from
//! running both on one core, where a request needs no wake-up across cores. Which weighs more depends on the machine
//! and on what else runs there, so it is tried now and then: some short rounds of requests each way, and the way with
//! the fastest round is kept for many.
//!
//! Invariants: decided only from the times that it is told; a round with a pause in it counts for nothing, and a trial
//! that is broken off leaves the thread sleeping.

use std::time::{Duration, Instant};

/// Requests of a round.
const ROUND: u32 = 256;
/// Rounds of a trial, sleeping and looking in turn.
const TRIED: u32 = 6;
/// Rounds for which its outcome is kept.
const KEPT: u32 = 128;
/// Nobody asked for this long: what comes next is something else.
const PAUSE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub struct Pace {
    looks: bool,
    round: u32,
    requests: u32,
    started: Option<Instant>,
    last: Option<Instant>,
    /// The fastest round of this trial, sleeping and looking.
    fastest: [Option<Duration>; 2],
}

impl Pace {
    /// Whether to look before sleeping now.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// A request was received.
    pub fn received(&mut self, now: Instant) {
        let paused = self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) > PAUSE);
        self.last = Some(now);
        let Some(started) = self.started.filter(|_| !paused) else {
            self.started = Some(now);
            self.requests = 0;
            if self.round < TRIED {
                self.start_trial();
            }
            return;
        };
        self.requests += 1;
        if self.requests == ROUND {
            self.requests = 0;
            self.started = Some(now);
            self.round_ended(now.saturating_duration_since(started));
        }
    }

    fn start_trial(&mut self) {
        self.round = 0;
        self.looks = false;
        self.fastest = [None; 2];
    }

    fn round_ended(&mut self, took: Duration) {
        if self.round < TRIED {
            let fastest = &mut self.fastest[usize::from(self.looks)];
            *fastest = Some(fastest.map_or(took, |fastest| fastest.min(took)));
        }
        self.round += 1;
        if self.round < TRIED {
            self.looks = !self.looks;
        } else if self.round == TRIED {
            let [sleeping, looking] = self.fastest;
            self.looks = looking < sleeping;
        } else if self.round == TRIED + KEPT {
            self.start_trial();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that take this long each when the thread sleeps, and when it looks.
    fn drive(pace: &mut Pace, now: &mut Instant, requests: u32, sleeping: u64, looking: u64) -> u32 {
        let mut looked = 0;
        for _ in 0..requests {
            looked += u32::from(pace.looks());
            *now += Duration::from_micros(if pace.looks() { looking } else { sleeping });
            pace.received(*now);
        }
        looked
    }

    #[test]
    fn the_faster_way_is_kept_and_follows_a_change() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let many = 4 * (TRIED + KEPT) * ROUND;
        let looked = drive(&mut pace, &mut now, many, 10, 30);
        assert!(looked < many / 20, "{looked} of {many}");
        let looked = drive(&mut pace, &mut now, 2 * many, 30, 10);
        assert!(looked > many, "{looked} of {many}");
    }

    #[test]
    fn a_trial_that_is_broken_off_leaves_the_thread_sleeping() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        drive(&mut pace, &mut now, ROUND + ROUND / 2, 10, 10);
        assert!(pace.looks());
        now += PAUSE * 2;
        pace.received(now);
        assert!(!pace.looks());
    }
}
