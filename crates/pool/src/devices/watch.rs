//! `Watch`: whether a device answers. What it was asked for and has not answered is counted; who looks now and then ([`Watch::look`])
//! finds out that nothing has come back for too long.
//!
//! Reads, writes and flushes are watched each for itself: a disk may read while its flushes hang, as a frozen filesystem does. One slow
//! request among others that are answered is no silence.
//!
//! Invariants: a request costs two additions and no lock; a silent device is asked for nothing new as long as another one answers, and is
//! asked again once it has answered what it was asked before; the only device of a pool is asked all the same, since nothing is won by
//! errors that waiting spares; time that the looking thread slept through does not count against a device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_sync::{Mutex, rank};

/// How many times as long a flush may take while the device answers other requests.
const FLUSH_PATIENCE: u64 = 4;

/// What is asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reads.
    Read = 0,
    /// Writes, and discards.
    Write = 1,
    /// Flushes.
    Flush = 2,
}

/// Requests of one kind.
#[derive(Default)]
struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// What was seen of one kind when it was looked at last.
#[derive(Default, Clone, Copy)]
struct Seen {
    ended: u64,
    /// Requests of other kinds that had ended when the waiting began.
    others: u64,
    /// How long some have been under way and none has ended since, nanoseconds; `None`: none was under way.
    waited: Option<u64>,
}

#[derive(Default)]
struct Looks {
    kinds: [Seen; 3],
    last_nanoseconds: u64,
    found_silent: Option<u64>,
}

/// Of one device.
#[derive(Default)]
pub(super) struct Watch {
    requests: [Requests; 3],
    is_silent: AtomicBool,
    /// It is silent, and asked for nothing.
    is_refused: AtomicBool,
    /// When it was asked for what it does not answer, about, nanoseconds since 1970.
    silent_since: AtomicU64,
    looks: Mutex<Looks, rank::Leaf>,
}

/// A request that is under way until this is dropped.
pub(super) struct UnderWay<'a>(&'a Requests);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It does not answer any more.
    FellSilent,
    /// It answers again.
    Answered,
}

impl Watch {
    /// Begins a request; `None` if the device is asked for nothing.
    #[inline]
    pub(super) fn begin(&self, kind: Kind) -> Option<UnderWay<'_>> {
        terrace_sync::about_to_do_io();
        if self.is_refused() {
            return None;
        }
        let requests = &self.requests[kind as usize];
        requests.begun.fetch_add(1, Ordering::Relaxed);
        Some(UnderWay(requests))
    }

    /// Since when it does not answer, nanoseconds since 1970.
    pub(super) fn silent_since(&self) -> Option<u64> {
        let is_silent = self.is_silent.load(Ordering::Acquire);
        is_silent.then(|| self.silent_since.load(Ordering::Relaxed))
    }

    /// When it was found not to answer, monotonic nanoseconds: nothing was asked of it since then.
    pub(super) fn found_silent(&self) -> Option<u64> {
        if !self.is_silent() {
            return None;
        }
        self.looks.lock().found_silent
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }

    /// Whether it is asked for nothing.
    #[inline]
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Asks it for nothing more as long as it is silent, or for everything all the same. Whether that is new.
    pub(super) fn refuse(&self, may: bool) -> bool {
        let refused = may && self.is_silent();
        self.is_refused.swap(refused, Ordering::AcqRel) != refused
    }

    /// To be called several times within `timeout`. `monotonic` and `now`, since 1970, and `timeout`: nanoseconds.
    pub(super) fn look(&self, monotonic: u64, now: u64, timeout: u64) -> Option<Turn> {
        let mut looks = self.looks.lock();
        // Whoever looks again after a long sleep, as of a stopped process, has not waited all that time for the device.
        let step = monotonic.saturating_sub(looks.last_nanoseconds).min(timeout / 2);
        looks.last_nanoseconds = monotonic;
        let (mut longest, mut is_silent) = (0, false);
        let all_ended = self
            .requests
            .each_ref()
            .map(|requests| requests.ended.load(Ordering::Acquire));
        let kinds = [Kind::Read, Kind::Write, Kind::Flush];
        for ((kind, requests), seen) in kinds.into_iter().zip(&self.requests).zip(&mut looks.kinds) {
            let ended = all_ended[kind as usize];
            let others = all_ended.iter().sum::<u64>() - ended;
            let is_under_way = requests.begun.load(Ordering::Relaxed) > ended;
            seen.waited = match seen.waited {
                _ if !is_under_way => None,
                Some(waited) if seen.ended == ended => Some(waited + step),
                _ => Some(0),
            };
            seen.ended = ended;
            let Some(waited @ 1..) = seen.waited else {
                seen.others = others;
                continue;
            };
            // A flush of much may take long; a device that does other things meanwhile is there.
            let patience = match kind {
                Kind::Flush if others != seen.others => timeout.saturating_mul(FLUSH_PATIENCE),
                _ => timeout,
            };
            is_silent |= waited >= patience;
            longest = longest.max(waited);
        }
        if is_silent == self.is_silent() {
            return None;
        }
        looks.found_silent = is_silent.then_some(monotonic);
        if is_silent {
            self.silent_since
                .store(now.saturating_sub(longest), Ordering::Relaxed);
        }
        self.is_silent.store(is_silent, Ordering::Release);
        Some(if is_silent {
            Turn::FellSilent
        } else {
            Turn::Answered
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_700_000_000 * SECOND;

    /// Looks each second of a span; what changed, and when.
    fn looks(watch: &Watch, seconds: std::ops::RangeInclusive<u64>) -> Vec<(u64, Turn)> {
        let look = |second| {
            Some((
                second,
                watch.look(second * SECOND, NOW + second * SECOND, 5 * SECOND)?,
            ))
        };
        seconds.filter_map(look).collect()
    }

    #[test]
    fn a_device_that_answers_nothing_for_the_timeout_is_silent_until_it_answers() {
        let watch = Watch::default();
        assert_eq!(looks(&watch, 0..=20), []);
        let hangs = watch.begin(Kind::Write).unwrap();
        assert_eq!(looks(&watch, 21..=25), []);
        assert_eq!(looks(&watch, 26..=40), [(26, Turn::FellSilent)]);
        assert_eq!(watch.silent_since(), Some(NOW + 21 * SECOND));
        assert!(watch.refuse(true));
        assert!(watch.begin(Kind::Read).is_none(), "it is asked for nothing more");
        drop(hangs);
        assert_eq!(looks(&watch, 41..=50), [(41, Turn::Answered)]);
        assert!(watch.refuse(true) && !watch.refuse(true));
        assert!(watch.begin(Kind::Read).is_some());
    }

    #[test]
    fn one_slow_request_among_others_is_no_silence_and_each_kind_is_watched_for_itself() {
        let watch = Watch::default();
        let slow = watch.begin(Kind::Read).unwrap();
        for second in 0..20 {
            drop(watch.begin(Kind::Read).unwrap());
            assert_eq!(looks(&watch, second..=second), []);
        }
        drop(slow);
        let _flush = watch.begin(Kind::Flush).unwrap();
        let mut turns = Vec::new();
        for second in 20..60 {
            drop(watch.begin(Kind::Read));
            turns.extend(looks(&watch, second..=second));
        }
        assert_eq!(
            turns,
            [(40, Turn::FellSilent)],
            "a flush may take longer beside reads, and not for ever"
        );
    }

    #[test]
    fn a_flush_alone_may_take_no_longer_than_anything_else() {
        let watch = Watch::default();
        drop(watch.begin(Kind::Write));
        assert_eq!(looks(&watch, 0..=9), []);
        let _flush = watch.begin(Kind::Flush).unwrap();
        assert_eq!(looks(&watch, 10..=30), [(15, Turn::FellSilent)]);
    }

    #[test]
    fn time_that_nobody_looked_at_does_not_count() {
        let watch = Watch::default();
        let under_way = watch.begin(Kind::Read).unwrap();
        assert_eq!(looks(&watch, 1..=2), []);
        // The process was stopped for an hour.
        assert_eq!(looks(&watch, 3600..=3600), []);
        drop(under_way);
        assert_eq!(looks(&watch, 3601..=3610), []);
    }
}
