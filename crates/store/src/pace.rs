//! `Pace`: how fast content may be moved into and out of a tier (a token bucket).
//!
//! Invariants: from when a rate is set, or something was last moved, no more goes than the rate allows for the time that has passed, an
//! eighth of a second's worth, and one piece; the bucket is empty at first, since who limits a tier wants it to hold from now on.

/// So much of a second's worth may go at once, after a rest or in one step, that is one part in so many.
const BURST_PART: u64 = 8;

/// Lets bytes through at a rate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Bytes that may go at once; negative after a piece went.
    tokens: f64,
    /// When that was so; `None` while there is no rate.
    last_nanoseconds: Option<u64>,
}

impl Pace {
    /// Nanoseconds until something may be moved; 0: now. `limit` is bytes per second, 0 for none.
    pub(crate) fn wait(&mut self, limit: u64, now_nanoseconds: u64) -> u64 {
        if limit == 0 {
            *self = Self::default();
            return 0;
        }
        let last = self.last_nanoseconds.replace(now_nanoseconds);
        let since = now_nanoseconds.saturating_sub(last.unwrap_or(now_nanoseconds));
        let rate = limit as f64;
        self.tokens = (self.tokens + rate * since as f64 / 1e9).min(rate / BURST_PART as f64);
        if self.tokens >= 0.0 {
            return 0;
        }
        (-self.tokens / rate * 1e9).ceil() as u64 + 1
    }

    /// `bytes` were moved.
    pub(crate) fn take(&mut self, limit: u64, bytes: u64) {
        if limit > 0 {
            self.tokens -= bytes as f64;
        }
    }

    /// The same of what could not wait: for that others owe at most so much.
    pub(crate) fn take_in_need(&mut self, limit: u64, bytes: u64, debt_bytes: u64) {
        let least = self.tokens.min(-(debt_bytes as f64));
        self.take(limit, bytes);
        self.tokens = self.tokens.max(least);
    }

    /// Whether something could be moved when time was last looked at.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens >= 0.0
    }

    /// What is to be moved in one step at most, about; one chunk always is.
    pub(crate) fn piece_bytes(limit: u64) -> u64 {
        match limit {
            0 => u64::MAX,
            _ => (limit / BURST_PART).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;

    /// What goes in pieces of so many bytes until then.
    fn moved(pace: &mut Pace, now: &mut u64, until: u64, piece: u64) -> u64 {
        let mut moved = 0;
        while *now < until {
            let wait = pace.wait(RATE, *now);
            if wait == 0 {
                pace.take(RATE, piece);
                moved += piece;
            }
            *now += wait.max(1000);
        }
        moved
    }

    #[test]
    fn the_rate_is_kept_from_the_beginning_and_after_a_rest() {
        for piece in [1000, 300_000] {
            let (mut pace, mut now) = (Pace::default(), 5_000_000_000);
            let begin = now;
            for seconds in 1..100 {
                let bytes = seconds * RATE;
                let until = begin + seconds * 1_000_000_000;
                let before = (seconds - 1) * RATE;
                let moved = before + moved(&mut pace, &mut now, until, piece);
                assert!(
                    moved + 2 * piece >= bytes && moved <= bytes + 2 * piece,
                    "{moved} in {seconds} s"
                );
            }
            now += 3_600_000_000_000;
            let until = now + 1_000_000_000;
            let after_rest = moved(&mut pace, &mut now, until, piece);
            assert!(after_rest <= RATE + RATE / BURST_PART + piece, "{after_rest}");
        }
    }

    #[test]
    fn what_went_without_a_rate_does_not_count() {
        let mut pace = Pace::default();
        assert_eq!((pace.wait(0, 5), Pace::piece_bytes(0)), (0, u64::MAX));
        pace.take(0, 1 << 30);
        assert_eq!(pace.wait(RATE, 10), 0);
        pace.take(RATE, 1 << 30);
        assert!(pace.wait(RATE, 11) > 0);
        // Given up, and set again much later: nothing is owed, and nothing was saved.
        assert_eq!(pace.wait(0, 12), 0);
        assert_eq!(pace.wait(RATE, 13_000_000_000), 0);
        pace.take(RATE, 1);
        assert!(pace.wait(RATE, 13_000_000_000) > 0);
    }
}
