//! `Courtesy`: how long the mover rests between two steps, so that users do not notice it.
//!
//! Invariants: it goes by what users were seen to wait (`terrace_cache::Foreground`), never by a fixed pause: while more
//! than two requests in five hundred are slowed down by half, it rests twice as long, and it works more only after many that
//! were not: so fewer than one in a hundred are. Whom it has not seen yet it meets carefully; while nobody uses the pool it does not
//! rest at all. It always gets on: it works at least a hundredth of the
//! time, or four times a second. From the start it leaves so much time between two steps that a user waits for one. A
//! mover that works without end could not learn how fast users are without it, so it always rests a little.

use terrace_cache::Foreground;

/// Rest after each time worked beside users, as a multiple of it: at least so much, since a request that waits for the processor
/// does so before anything here can measure it, and a write into RAM takes no longer than that.
const REST_MIN: f64 = 8.0;
const REST_MAX: f64 = 4000.0;
/// It need not rest longer than this many times as long as it worked, if that is also longer than `PAUSE_ENOUGH`: what
/// a device that counts requests does at once takes no time until there were too many.
const REST_ENOUGH: f64 = 100.0;
const PAUSE_ENOUGH: u64 = 250_000_000;
/// The same, at least, when users come back (what it learns then, they pay for), and as long as it is not known how long they wait
/// without the mover.
const REST_CAREFUL: f64 = 20.0;
/// Requests that make a judgement.
const JUDGED: u64 = 250;
/// One slow request in so many is too much.
const TOO_SLOW_PART: u64 = 250;
/// After this time fewer do.
const JUDGED_NANOSECONDS: u64 = 2_000_000_000;
/// Requests in which no more than one in so many was slow, or time without that, after which it rests less: else it would
/// try every few seconds how much is too much.
const CALM: u64 = 800;
const CALM_PART: u64 = 800;
const CALM_NANOSECONDS: u64 = 10_000_000_000;
/// Slow requests that are too many at once, whatever they are a part of.
const SLOW_ENOUGH: u64 = 3;
/// Without a request for this long nobody is disturbed.
const ALONE_NANOSECONDS: u64 = 1_000_000_000;
/// Longest rest.
const PAUSE_MAX: u64 = 2_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Courtesy {
    rest: f64,
    until: u64,
    /// When the last step ended, and how long it took.
    ended: (u64, u64),
    /// What had been asked and slowed down at the last judgement, and when that was.
    judged: Vec<(u64, u64)>,
    judged_at: u64,
    /// What had been asked when that was last seen to grow, and when.
    requests: u64,
    used_at: Option<u64>,
}

impl Default for Courtesy {
    fn default() -> Self {
        Self {
            rest: REST_CAREFUL,
            until: 0,
            ended: (0, 0),
            judged: Vec::new(),
            judged_at: 0,
            requests: 0,
            used_at: None,
        }
    }
}

impl Courtesy {
    /// Nanoseconds until the next step may begin; 0: now.
    pub(crate) fn wait(&self, now: u64) -> u64 {
        self.until.saturating_sub(now)
    }

    /// The same for who may not rest for longer than he worked, or than `spacing`.
    pub(crate) fn wait_at_most(&self, spacing: u64, now: u64) -> u64 {
        let (ended, worked) = self.ended;
        (ended + worked.max(spacing)).saturating_sub(now)
    }

    /// Whether users were seen lately.
    pub(crate) fn is_watched(&self, now: u64) -> bool {
        self.used_at
            .is_some_and(|at| now.saturating_sub(at) < ALONE_NANOSECONDS)
    }

    /// Looks whether users have asked for anything: before each step, and after it.
    pub(crate) fn look(&mut self, foreground: &Foreground, now: u64) {
        let requests = requests(foreground);
        if self.requests == requests {
            return;
        }
        // Who was there before its last rest has not gone and come back.
        let since = self.used_at.map(|at| now.saturating_sub(at));
        if since.is_none_or(|since| since > ALONE_NANOSECONDS + PAUSE_MAX) {
            self.rest = self.rest.max(REST_CAREFUL);
            // What was before says nothing of now.
            self.judged.clear();
        }
        self.requests = requests;
        self.used_at = Some(now);
    }

    /// A step took from `began` to `now`.
    pub(crate) fn worked(&mut self, foreground: &Foreground, began: u64, now: u64) {
        self.ended = (now, now.saturating_sub(began));
        let seen = foreground.slowed();
        self.look(foreground, now);
        if !self.is_watched(now) {
            self.until = 0;
            (self.judged, self.judged_at) = (seen, now);
            return;
        }
        self.judge(foreground, seen, now);
        let worked = now.saturating_sub(began) as f64;
        let most = ((worked * REST_ENOUGH) as u64).clamp(PAUSE_ENOUGH, PAUSE_MAX);
        let pause = ((worked * self.rest) as u64).min(most);
        self.until = now + pause.max(foreground.spacing(None, now));
    }

    /// It rests until then at least: what was done meanwhile in haste, and took hardly any time, shortens no rest that other work owes.
    pub(crate) fn owe(&mut self, until: u64) {
        self.until = self.until.max(until);
    }

    fn judge(&mut self, foreground: &Foreground, seen: Vec<(u64, u64)>, now: u64) {
        if self.judged.len() != seen.len() {
            (self.judged, self.judged_at) = (seen, now);
            return;
        }
        let known = foreground.known();
        let since = now.saturating_sub(self.judged_at);
        let (mut too_slow, mut calm, mut judged, mut unknown) = (false, true, false, false);
        for (((requests, slow), before), known) in seen.iter().zip(&self.judged).zip(known) {
            let requests = requests.saturating_sub(before.0);
            let slow = slow.saturating_sub(before.1);
            if requests == 0 {
                continue;
            }
            if !known {
                unknown = true;
                continue;
            }
            let enough = requests >= JUDGED || since >= JUDGED_NANOSECONDS || slow >= SLOW_ENOUGH;
            too_slow |= enough && slow * TOO_SLOW_PART > requests;
            calm &= slow * CALM_PART <= requests && (requests >= CALM || since >= CALM_NANOSECONDS);
            judged = true;
        }
        if judged && too_slow {
            self.rest = (self.rest * 2.0).clamp(REST_CAREFUL / 4.0, REST_MAX);
            (self.judged, self.judged_at) = (seen, now);
        } else if judged && calm || since >= CALM_NANOSECONDS {
            if judged && calm {
                self.rest = (self.rest * 0.7).max(REST_MIN);
            }
            (self.judged, self.judged_at) = (seen, now);
        } else if unknown {
            self.rest = self.rest.max(REST_CAREFUL);
        }
    }
}

/// What users have asked for so far. Writes wait for no device, and are counted all the same.
fn requests(foreground: &Foreground) -> u64 {
    let served = foreground.slowed().into_iter().map(|(requests, _)| requests);
    foreground.operations() + served.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use terrace_cache::Service;

    use super::*;

    /// A device that serves one request at a time, a user who reads all the time, and the mover: on a clock of their
    /// own. Returns the share of the time that the mover worked in the second half, and the user's p99.
    fn simulate(
        step_nanoseconds: u64,
        read_nanoseconds: u64,
        between_nanoseconds: u64,
        moving: bool,
    ) -> (f64, u64) {
        let foreground = Foreground::default();
        let mut courtesy = Courtesy::default();
        let (mut now, mut worked, mut waits) = (0u64, 0u64, Vec::new());
        const END: u64 = 400_000_000_000;
        let mut step_ends = None;
        let mut began = 0;
        while now < END {
            // The mover begins when it may; the user's next read waits for what the device has begun.
            let mut work = None;
            if moving && courtesy.wait(now) == 0 {
                work = Some(foreground.disturb());
                began = now;
                step_ends = Some(now + step_nanoseconds);
            }
            // The user asks some time after that.
            let asked = now + between_nanoseconds;
            let waiting = foreground.begin(asked);
            let free = step_ends.unwrap_or(0).max(asked);
            let done = free + read_nanoseconds;
            if let Some(end) = step_ends.take() {
                if now > END / 2 {
                    worked += end - began;
                }
                courtesy.worked(&foreground, began, end);
            }
            foreground.end(waiting, Service::Read(0), done);
            drop(work);
            if now > END / 2 {
                waits.push(done - asked);
            }
            now = done;
        }
        waits.sort_unstable();
        (worked as f64 / (END / 2) as f64, waits[waits.len() * 99 / 100])
    }

    #[test]
    fn users_do_not_notice_the_mover() {
        for (step, read, between) in [
            (20_000_000, 100_000, 900_000),
            (5_000_000, 1_000_000, 1_000_000),
            (100_000_000, 7_000_000, 1_000_000),
        ] {
            let (_, alone) = simulate(step, read, between, false);
            let (share, beside) = simulate(step, read, between, true);
            assert!(
                beside <= alone / 2 * 3 + 1,
                "{step} {read}: p99 {alone} alone, {beside} beside"
            );
            assert!(share > 0.005, "{step} {read}: it works {share} of the time");
        }
    }

    #[test]
    fn where_that_disturbs_nobody_it_rests_no_longer_than_users_need_between_two_steps() {
        // Steps of 1 ms beside reads of 7: not slowed down by half. Between two steps lies twice what nearly all reads
        // take, as far as that is known (7 ms and a little less than half more): 1 ms of at most 22 is work.
        let (share, _) = simulate(1_000_000, 7_000_000, 100_000, true);
        assert!(share > 1.0 / 23.0, "{share}");
        // What is not to be seen in the times of users gets on as well beside fast ones.
        let (share, _) = simulate(20_000, 100_000, 100_000, true);
        assert!(share > 0.02, "{share}");
        // Nobody is there: no rest at all.
        let (foreground, mut courtesy) = (Foreground::default(), Courtesy::default());
        for at in 0..100u64 {
            assert_eq!(courtesy.wait(at * 1_000_000), 0);
            courtesy.worked(&foreground, at * 1_000_000, (at + 1) * 1_000_000);
        }
        // Somebody was there, and went: it rests no longer than until it notices.
        let waiting = foreground.begin(0);
        foreground.end(waiting, Service::Flush, 1000);
        courtesy.worked(&foreground, 100_000_000, 200_000_000);
        assert!(courtesy.wait(200_000_000) > 0);
        courtesy.worked(&foreground, 2_000_000_000, 2_100_000_000);
        assert_eq!(courtesy.wait(2_100_000_000), 0);
    }

    #[test]
    fn who_is_pressed_rests_no_longer_than_he_worked_or_a_reader_needs() {
        const MILLISECOND: u64 = 1_000_000;
        let (foreground, mut courtesy) = (Foreground::default(), Courtesy::default());
        let read = |at: u64, took: u64| {
            let waiting = foreground.begin(at);
            foreground.end(waiting, Service::Read(1), at + took);
        };
        let mut now = MILLISECOND;
        (0..100).for_each(|at| read(now + at * MILLISECOND, MILLISECOND));
        // All that users do is slowed down: it rests ever longer.
        for _ in 0..12 {
            let work = foreground.disturb();
            (0..10).for_each(|_| read(now, 20 * MILLISECOND));
            courtesy.worked(&foreground, now, now + 5 * MILLISECOND);
            drop(work);
            now += 5 * MILLISECOND;
        }
        assert!(courtesy.wait(now) >= 200 * MILLISECOND, "{}", courtesy.wait(now));
        let at_most = |spacing, after| courtesy.wait_at_most(spacing, now + after) / MILLISECOND;
        assert_eq!((at_most(0, 0), at_most(2 * MILLISECOND, 0)), (5, 5));
        assert_eq!((at_most(7 * MILLISECOND, 0), at_most(0, 3 * MILLISECOND)), (7, 2));
        assert_eq!(at_most(7 * MILLISECOND, 7 * MILLISECOND), 0);
    }

    #[test]
    fn who_comes_back_is_met_carefully_and_who_writes_is_seen() {
        const MILLISECOND: u64 = 1_000_000;
        let (foreground, mut courtesy) = (Foreground::default(), Courtesy::default());
        // Readers whom it does not disturb: it rests ever less.
        let mut now = MILLISECOND;
        for _ in 0..3000 {
            for _ in 0..10 {
                let waiting = foreground.begin(now);
                foreground.end(waiting, Service::Read(0), now + MILLISECOND / 10);
            }
            courtesy.worked(&foreground, now, now + MILLISECOND);
            now += 2 * MILLISECOND;
        }
        let rest = |courtesy: &Courtesy, now| courtesy.wait(now + MILLISECOND) / MILLISECOND;
        courtesy.worked(&foreground, now, now + MILLISECOND);
        assert_eq!(rest(&courtesy, now), REST_MIN as u64);
        // They go, and it works as it likes; then somebody writes.
        now += 60_000 * MILLISECOND;
        courtesy.look(&foreground, now);
        assert!(!courtesy.is_watched(now));
        foreground.note();
        courtesy.look(&foreground, now);
        assert!(courtesy.is_watched(now), "before the first step");
        courtesy.worked(&foreground, now, now + MILLISECOND);
        assert_eq!(rest(&courtesy, now), REST_CAREFUL as u64);
    }
}
