//! `Throttle`: how long background work rests after a step, so that users hardly notice it while there is no hurry.
//!
//! Users who make or look at many small files lose more to a thread that works beside them than the time it takes: on few
//! processors every request waits for it. Freeing what was deleted can wait meanwhile, as long as free room lasts.
//!
//! Invariants: nobody rests while nobody uses the pool, nor while users would have to wait for what is to be done (room is short, or
//! records come faster than they are written into tables); rests are long only while many requests come and what is free lasts
//! for minutes at the rate at which it was used last; no rest is longer than some 0.3 s, after which it is looked again.

use std::time::Duration;

/// How many times as long as it worked a worker rests beside users.
const RATIO: f64 = 3.0;
/// The same when there is no hurry and many requests come.
const RATIO_MOST: f64 = 40.0;
/// Requests in a second that are many.
const MANY: f64 = 1000.0;
/// Free room that lasts so long is no reason to hurry, and so long is one, seconds.
const LASTS: f64 = 60.0;
const LASTS_NOT: f64 = 10.0;
/// Longest rest at the first of the ratios; in proportion at others.
const REST: Duration = Duration::from_millis(20);
/// Over so long the use of room is measured, nanoseconds.
const WINDOW_NANOSECONDS: u64 = 1_000_000_000;

/// How the pool stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// The monotonic clock.
    pub(super) now_nanoseconds: u64,
    /// Requests of users so far.
    pub(super) requests: u64,
    /// Free room for what is written.
    pub(super) free_bytes: u64,
    /// Users would have to wait for background work soon.
    pub(super) is_pressed: bool,
    /// What `ChunkStore::courtesy` says: 1 down to 0, the more garbage there is beside what is free.
    pub(super) courtesy: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    seen: Option<Standing>,
    /// Where the window began that measures the use of room.
    window: Option<Standing>,
    used_per_second: f64,
}

impl Throttle {
    /// How long to rest after a step that took `worked`.
    pub(super) fn rest(&mut self, worked: Duration, standing: Standing) -> Duration {
        let before = self.seen.replace(standing);
        self.measure(standing);
        let requests = before.map_or(0, |before| {
            standing.requests - before.requests.min(standing.requests)
        });
        if requests == 0 || standing.is_pressed {
            return Duration::ZERO;
        }
        let since = before.map_or(0, |before| nanoseconds_between(before, standing));
        let per_second = requests as f64 * 1e9 / since.max(1) as f64;
        let slack = self.slack(standing);
        let ratio = RATIO + (RATIO_MOST - RATIO) * (per_second / MANY).min(1.0) * slack;
        let most = REST.mul_f64(ratio / RATIO);
        worked
            .mul_f64(ratio)
            .min(most)
            .mul_f64(standing.courtesy.max(slack))
    }

    fn measure(&mut self, standing: Standing) {
        let Some(began) = self.window else {
            self.window = Some(standing);
            return;
        };
        let window = nanoseconds_between(began, standing);
        if window >= WINDOW_NANOSECONDS {
            let used = began.free_bytes.saturating_sub(standing.free_bytes);
            let used_per_second = used as f64 * 1e9 / window as f64;
            // What was brought back meanwhile hides what was used: nobody stops from one second to the next.
            self.used_per_second = used_per_second.max(self.used_per_second / 2.0);
            self.window = Some(standing);
        }
    }

    /// 1: free room lasts; 0: it does not.
    fn slack(&self, standing: Standing) -> f64 {
        let lasts = standing.free_bytes as f64 / self.used_per_second.max(1.0);
        ((lasts - LASTS_NOT) / (LASTS - LASTS_NOT)).clamp(0.0, 1.0)
    }
}

fn nanoseconds_between(before: Standing, after: Standing) -> u64 {
    after.now_nanoseconds.saturating_sub(before.now_nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const WORKED: Duration = Duration::from_millis(5);

    fn standing(now_nanoseconds: u64, requests: u64) -> Standing {
        Standing {
            now_nanoseconds,
            requests,
            free_bytes: 4 << 30,
            is_pressed: false,
            courtesy: 0.8,
        }
    }

    /// The rest after a step at which so many requests a second had come and so many bytes of room been used, for three seconds.
    fn rest(requests: u64, used_bytes: u64, change: impl Fn(&mut Standing)) -> Duration {
        let mut throttle = Throttle::default();
        let mut rest = Duration::ZERO;
        for second in 0..4 {
            let mut standing = standing(second * SECOND, second * requests);
            standing.free_bytes -= second * used_bytes;
            change(&mut standing);
            rest = throttle.rest(WORKED, standing);
        }
        rest
    }

    #[test]
    fn who_makes_small_files_is_left_alone_while_room_lasts() {
        assert!(rest(10_000, 0, |_| {}) >= WORKED * 39);
        // Also beside much garbage.
        assert!(rest(10_000, 8 << 20, |standing| standing.courtesy = 0.0) >= WORKED * 39);
    }

    #[test]
    fn with_few_requests_it_goes_on_as_beside_anybody() {
        assert!(rest(10, 0, |_| {}) <= WORKED * 4);
        assert_eq!(rest(0, 0, |_| {}), Duration::ZERO, "nobody is there");
    }

    #[test]
    fn it_hurries_when_room_is_used_fast_or_short() {
        let fast = rest(10_000, 512 << 20, |_| {});
        assert!(fast > Duration::ZERO && fast <= WORKED * 3, "{fast:?}");
        let garbage = rest(10_000, 512 << 20, |standing| standing.courtesy = 0.0);
        assert_eq!(garbage, Duration::ZERO);
        assert_eq!(
            rest(10_000, 0, |standing| standing.is_pressed = true),
            Duration::ZERO
        );
    }

    #[test]
    fn room_that_was_brought_back_does_not_hide_how_fast_it_is_used() {
        let mut throttle = Throttle::default();
        let mut rest = Duration::ZERO;
        for (second, free_bytes) in [2 << 30, 1 << 30, 3 << 30].into_iter().enumerate() {
            let second = second as u64;
            let mut standing = standing(second * SECOND, second * 10_000);
            standing.free_bytes = free_bytes;
            rest = throttle.rest(WORKED, standing);
        }
        assert!(rest <= WORKED * 3, "{rest:?}");
    }

    #[test]
    fn no_rest_is_so_long_that_a_change_goes_unseen() {
        let mut throttle = Throttle::default();
        throttle.rest(WORKED, standing(0, 0));
        let rest = throttle.rest(Duration::from_secs(10), standing(SECOND, 100_000));
        assert!(rest < Duration::from_millis(300), "{rest:?}");
    }
}
