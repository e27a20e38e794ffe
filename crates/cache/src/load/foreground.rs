//! `Foreground`: what users do at the moment and how long they wait for it, so that background work can step back.
//!
//! Invariants: counting costs a few additions, and nobody ever waits here; a time is told apart by what was asked (a
//! read of a tier, a flush) and by whether background work was under way meanwhile, since a slow device is not slow
//! because of the mover. All times come from the caller's clock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Tiers that are told apart; those behind share the last meter.
const TIERS: usize = 8;
const METERS: usize = TIERS + 1;
/// Four buckets an octave, from 1 µs on.
const BUCKETS: usize = 112;
/// Undisturbed times after which the older ones count half.
const DECAY_SAMPLES: u32 = 2048;
/// Of so many waits one is a sample, and the first one this long after the last sample.
const SAMPLE_OPERATIONS: u64 = 4;
const SAMPLE_NANOSECONDS: u64 = 5_000_000;
/// Who was served longer ago than this does not read at the moment.
const LATELY_NANOSECONDS: u64 = 1_000_000_000;
/// Background work leaves no more than this between two requests.
const SPACING_NANOSECONDS_MAX: u64 = 50_000_000;
/// Undisturbed times without which nothing is known.
const KNOWN_SAMPLES: u32 = 32;

/// What a user waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// A read of content on this tier.
    Read(u8),
    /// A flush.
    Flush,
}

impl Service {
    fn meter(self) -> usize {
        match self {
            Self::Read(tier) => usize::from(tier).min(TIERS - 1),
            Self::Flush => TIERS,
        }
    }
}

/// Something a user waits for, from [`Foreground::begin`] on.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    since_nanoseconds: u64,
    /// Background work begun so far; `None` if some was under way.
    begun: Option<u64>,
}

/// Background work that may slow users down, while it is kept.
pub struct Background<'a>(&'a Foreground);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// Times of one service.
struct Meter {
    /// Of requests beside which no background work was under way.
    calm: [AtomicU32; BUCKETS],
    calm_samples: AtomicU32,
    /// Above this a request was slowed down; 0 while nothing is known.
    bound_nanoseconds: AtomicU64,
    requests: AtomicU64,
    slow: AtomicU64,
    /// When the last one was served.
    served_nanoseconds: AtomicU64,
}

impl Meter {
    fn new() -> Self {
        Self {
            calm: std::array::from_fn(|_| AtomicU32::new(0)),
            calm_samples: AtomicU32::new(0),
            bound_nanoseconds: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            served_nanoseconds: AtomicU64::new(0),
        }
    }

    fn note(&self, nanoseconds: u64, calm: bool) {
        self.requests.fetch_add(1, Relaxed);
        let bound = self.bound_nanoseconds.load(Relaxed);
        if bound > 0 && nanoseconds > bound && !calm {
            self.slow.fetch_add(1, Relaxed);
        }
        if !calm {
            return;
        }
        self.calm[bucket(nanoseconds)].fetch_add(1, Relaxed);
        let samples = self.calm_samples.fetch_add(1, Relaxed) + 1;
        if samples.is_multiple_of(KNOWN_SAMPLES) {
            self.find_bound();
        }
        if samples >= DECAY_SAMPLES {
            self.calm_samples.store(samples / 2, Relaxed);
            for count in &self.calm {
                count.store(count.load(Relaxed) / 2, Relaxed);
            }
        }
    }

    /// A quarter more than what 99 of 100 undisturbed requests take at most, which is known to a fifth: not beyond half more.
    fn find_bound(&self) {
        let counts: Vec<u32> = self.calm.iter().map(|count| count.load(Relaxed)).collect();
        let total: u32 = counts.iter().sum();
        let beyond = total / 100;
        let mut above = 0;
        let slowest = counts.iter().rposition(|count| {
            above += count;
            above > beyond
        });
        if let Some(slowest) = slowest {
            let bound = upper_end(slowest) / 4 * 5;
            self.bound_nanoseconds.store(bound, Relaxed);
        }
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let quarters = (nanoseconds as f64 / 1000.0).max(1.0).log2() * 4.0;
    (quarters as usize).min(BUCKETS - 1)
}

fn upper_end(bucket: usize) -> u64 {
    (1000.0 * 2f64.powf((bucket + 1) as f64 / 4.0)) as u64
}

/// Operations of users, counted and timed.
pub struct Foreground {
    operations: AtomicU64,
    questions: AtomicU64,
    /// Pieces of background work begun so far, and those under way.
    begun: AtomicU64,
    under_way: AtomicU64,
    /// When the last one was to be noted.
    noted_nanoseconds: AtomicU64,
    meters: [Meter; METERS],
}

impl Default for Foreground {
    fn default() -> Self {
        Self {
            operations: AtomicU64::new(0),
            questions: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            noted_nanoseconds: AtomicU64::new(0),
            meters: std::array::from_fn(|_| Meter::new()),
        }
    }
}

impl Foreground {
    /// A user does something.
    pub fn note(&self) {
        self.operations.fetch_add(1, Relaxed);
    }

    /// How often users did something so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Relaxed)
    }

    /// A user asks for something that RAM mostly answers (a name, attributes, a listing). Counted apart from
    /// operations, as such a request costs no device anything; it does cost a processor, and waits for it.
    pub fn note_question(&self) {
        self.questions.fetch_add(1, Relaxed);
    }

    /// Operations and questions so far.
    pub fn requests(&self) -> u64 {
        self.operations() + self.questions.load(Relaxed)
    }

    /// A user begins to wait for a device.
    pub fn begin(&self, now_nanoseconds: u64) -> Waiting {
        Waiting {
            since_nanoseconds: now_nanoseconds,
            begun: self.calm_since(),
        }
    }

    /// Whether this wait is one of those that are noted where noting costs more than counting: some of many, all of few.
    /// Says nothing of how long it took, or the times would not be those of all.
    pub fn is_sample(&self, waiting: Waiting) -> bool {
        let since = waiting.since_nanoseconds;
        let due = since
            >= self
                .noted_nanoseconds
                .load(Relaxed)
                .saturating_add(SAMPLE_NANOSECONDS);
        let sample = due || self.operations().is_multiple_of(SAMPLE_OPERATIONS);
        if sample {
            self.noted_nanoseconds.store(since, Relaxed);
        }
        sample
    }

    /// The user was served.
    pub fn end(&self, waiting: Waiting, service: Service, now_nanoseconds: u64) {
        let took = now_nanoseconds.saturating_sub(waiting.since_nanoseconds);
        let calm = waiting.begun.is_some() && self.calm_since() == waiting.begun;
        let meter = &self.meters[service.meter()];
        meter.note(took, calm);
        meter.served_nanoseconds.store(now_nanoseconds, Relaxed);
    }

    /// Nanoseconds that background work leaves between two requests to a device of this tier (`None`: of any), so that who
    /// reads there waits for one of them at most, and a device that serves so many a second has some to spare: twice
    /// what nearly all reads take undisturbed; 0 if nobody reads there at the moment, or nothing is known.
    pub fn spacing(&self, tier: Option<u8>, now_nanoseconds: u64) -> u64 {
        let meters = match tier {
            Some(tier) => std::slice::from_ref(&self.meters[Service::Read(tier).meter()]),
            None => &self.meters[..TIERS],
        };
        let used = meters.iter().filter(|meter| {
            let served = meter.served_nanoseconds.load(Relaxed);
            served > 0 && now_nanoseconds.saturating_sub(served) < LATELY_NANOSECONDS
        });
        let slowest = used.map(|meter| meter.bound_nanoseconds.load(Relaxed)).max();
        slowest.map_or(0, |bound| (bound * 2).min(SPACING_NANOSECONDS_MAX))
    }

    /// Background work begins; it ends when the answer is dropped.
    pub fn disturb(&self) -> Background<'_> {
        self.begun.fetch_add(1, Relaxed);
        self.under_way.fetch_add(1, Relaxed);
        Background(self)
    }

    fn calm_since(&self) -> Option<u64> {
        (self.under_way.load(Relaxed) == 0).then(|| self.begun.load(Relaxed))
    }

    /// Requests so far, and those of them that background work has made more than half slower than nearly all are
    /// without it; by service.
    pub fn slowed(&self) -> Vec<(u64, u64)> {
        let meters = self.meters.iter();
        meters
            .map(|meter| (meter.requests.load(Relaxed), meter.slow.load(Relaxed)))
            .collect()
    }

    /// By service, whether it is known how long requests take that nothing disturbs.
    pub fn known(&self) -> Vec<bool> {
        let meters = self.meters.iter();
        meters
            .map(|meter| meter.bound_nanoseconds.load(Relaxed) > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_beside_background_work_is_compared_with_those_without() {
        let foreground = Foreground::default();
        let one = |took: u64, service| {
            let waiting = foreground.begin(1000);
            foreground.end(waiting, service, 1000 + took);
        };
        for at in 0..200 {
            one(100_000 + at * 100, Service::Read(0));
            one(7_000_000, Service::Read(1));
        }
        assert_eq!(foreground.slowed()[0], (200, 0));
        let work = foreground.disturb();
        // As usual on the slow tier; far from it on the fast one.
        one(7_000_000, Service::Read(1));
        one(7_000_000, Service::Read(0));
        one(110_000, Service::Read(0));
        drop(work);
        one(7_000_000, Service::Read(0));
        assert_eq!(foreground.slowed()[0], (203, 1));
        assert_eq!(foreground.slowed()[1], (201, 0));
        // Work that began and ended within the wait disturbed it too.
        let waiting = foreground.begin(0);
        drop(foreground.disturb());
        foreground.end(waiting, Service::Read(0), 1 << 30);
        assert_eq!(foreground.slowed()[0], (204, 2));
        assert!(
            !foreground.known()[2],
            "nothing is known of a tier that nobody read"
        );
    }

    #[test]
    fn background_work_leaves_room_between_requests_where_users_read() {
        let foreground = Foreground::default();
        for at in 1..=100u64 {
            for (tier, took) in [(0, 100_000), (1, 7_000_000)] {
                let waiting = foreground.begin(at * 1_000_000);
                foreground.end(waiting, Service::Read(tier), at * 1_000_000 + took);
            }
        }
        let between = |tier, at| foreground.spacing(tier, at);
        let fast = between(Some(0), 200_000_000);
        assert!((200_000..=300_000).contains(&fast), "{fast}");
        let slow = between(Some(1), 200_000_000);
        assert!((14_000_000..=21_000_000).contains(&slow), "{slow}");
        assert_eq!(
            (between(None, 200_000_000), between(Some(2), 200_000_000)),
            (slow, 0)
        );
        assert_eq!(between(None, 2_000_000_000), 0, "nobody is there any more");
    }

    #[test]
    fn buckets_cover_all_times() {
        for (time, above) in [
            (0, 1),
            (1000, 1001),
            (123_456, 123_457),
            (90_000_000_000, 90_000_000_001),
        ] {
            let end = upper_end(bucket(time));
            assert!(end >= above && end <= time.max(1000) / 2 * 3, "{time}: {end}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
