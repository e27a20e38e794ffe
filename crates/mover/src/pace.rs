//! `Pace`: how fast a tier may be written to (a token bucket that holds one second's worth).

/// Lets bytes through at a rate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Bytes that may go at once; negative after a large piece went.
    tokens: f64,
    last_nanoseconds: Option<u64>,
}

impl Pace {
    /// Nanoseconds until something may be moved; 0: now. `limit` is bytes per second, 0 for none.
    pub(crate) fn wait(&mut self, limit: u64, now_nanoseconds: u64) -> u64 {
        if limit == 0 {
            return 0;
        }
        let limit = limit as f64;
        let since = self
            .last_nanoseconds
            .map_or(1e9, |last| now_nanoseconds.saturating_sub(last) as f64);
        self.tokens = (self.tokens + limit * since / 1e9).min(limit);
        self.last_nanoseconds = Some(now_nanoseconds);
        if self.tokens > 0.0 {
            0
        } else {
            (-self.tokens / limit * 1e9).ceil() as u64 + 1
        }
    }

    /// `bytes` were moved.
    pub(crate) fn take(&mut self, limit: u64, bytes: u64) {
        if limit > 0 {
            self.tokens -= bytes as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_time() {
        let mut pace = Pace::default();
        let (mut now, mut moved) = (0u64, 0u64);
        while now < 100_000_000_000 {
            let wait = pace.wait(1_000_000, now);
            if wait == 0 {
                pace.take(1_000_000, 300_000);
                moved += 300_000;
            }
            now += wait.max(1000);
        }
        assert!((99_000_000..=102_000_000).contains(&moved), "{moved}");
        assert_eq!(Pace::default().wait(0, 5), 0);
    }
}
