//! `Sketch`: about how often each of very many things was read of late: four small counters for each at places that its number
//! names, of which the least counts, and all of them halved now and then (TinyLFU: Einziger, Friedman and Manes, ACM TOS 13(4),
//! 2017; the four lie in one cache line, as in Caffeine).
//!
//! Invariants: all memory is taken when it is made; counting takes no lock, waits for nobody and touches one line, so counts may
//! be lost or too high. One of another size that takes the place of this knows no less of anything than it did.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use super::region_heat::HALF_LIFE_MINUTES;

/// Reads that a counter tells apart at most.
pub(crate) const COUNT_MAX: u8 = 15;
const ROWS: usize = 4;
const LINE_WORDS: usize = 8;
const LINE_COUNTERS: u64 = (LINE_WORDS * 16) as u64;
/// Of all counters after their halving, the lowest bits of which are those of their neighbours.
const HALVED: u64 = 0x7777_7777_7777_7777;
/// Reads between two halvings for each thing for which there is a place on the faster tiers.
pub(crate) const READS_PER_PLACE: u64 = 20;
/// Counters for each of these, so that they seldom share all four.
const COUNTERS_PER_PLACE: u64 = 16;
/// Fewest reads between two halvings.
const WINDOW_MIN: u64 = 256;

#[repr(align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// See the module.
pub(crate) struct Sketch {
    lines: Box<[Line]>,
    /// Reads counted since the last halving, and after how many there is one.
    counted: AtomicU64,
    window: AtomicU64,
    window_most: AtomicU64,
    /// As [`set_places`](Self::set_places) was told.
    wanted_places: AtomicU64,
    halved_minutes: AtomicU32,
}

/// Of each of the counters in two words the higher one.
fn highest(one: u64, other: u64) -> u64 {
    (0..u64::BITS).step_by(4).fold(0, |word, shift| {
        let counter = u64::from(COUNT_MAX) << shift;
        word | (one & counter).max(other & counter)
    })
}

impl Sketch {
    /// Of so many bytes: a power of two.
    pub(crate) fn new(bytes: u64) -> Self {
        let lines = (bytes / size_of::<Line>() as u64).max(1);
        Self {
            lines: (0..lines)
                .map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
            counted: AtomicU64::new(0),
            window: AtomicU64::new(WINDOW_MIN),
            window_most: AtomicU64::new(u64::MAX),
            wanted_places: AtomicU64::new(u64::MAX),
            halved_minutes: AtomicU32::new(0),
        }
    }

    /// One of so many bytes, a power of two, that goes on from here. Where several lines become one, each of its counters is the
    /// highest of theirs; where one becomes several, all of them have what it had, until it halves away.
    pub(crate) fn resized(&self, bytes: u64) -> Self {
        let new = Self::new(bytes);
        let (before, now) = (self.lines.len(), new.lines.len());
        for at in 0..before.max(now) {
            let (from, to) = (&self.lines[at & (before - 1)], &new.lines[at & (now - 1)]);
            for (from, to) in from.0.iter().zip(&to.0) {
                to.store(highest(from.load(Relaxed), to.load(Relaxed)), Relaxed);
            }
        }
        let same = [
            (&self.counted, &new.counted),
            (&self.window_most, &new.window_most),
        ];
        for (from, to) in same {
            to.store(from.load(Relaxed), Relaxed);
        }
        new.halved_minutes
            .store(self.halved_minutes.load(Relaxed), Relaxed);
        new.set_places(self.wanted_places());
        new
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    /// For how many things it has counters enough.
    pub(crate) fn places_most(&self) -> u64 {
        self.lines.len() as u64 * LINE_COUNTERS / COUNTERS_PER_PLACE
    }

    /// There is a place for about so many: the more, the longer counts have to be kept to tell which are worth one.
    pub(crate) fn set_places(&self, places: u64) {
        self.wanted_places.store(places, Relaxed);
        let window = (places.min(self.places_most()) * READS_PER_PLACE).max(WINDOW_MIN);
        self.window
            .store(window.min(self.window_most.load(Relaxed)), Relaxed);
    }

    /// As [`set_places`](Self::set_places) was told.
    pub(crate) fn wanted_places(&self) -> u64 {
        self.wanted_places.load(Relaxed)
    }

    pub(crate) fn limit_window(&self, reads: u64) {
        self.window_most.store(reads.max(2), Relaxed);
        self.window.fetch_min(reads.max(2), Relaxed);
    }

    /// Reads counted since the last halving, and after how many there is one.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.counted.load(Relaxed), self.window.load(Relaxed))
    }

    /// The counters of a hash: words and shifts.
    fn places(&self, hash: u64) -> (&Line, [(usize, u32); ROWS]) {
        let line = &self.lines[(hash >> 32) as usize & (self.lines.len() - 1)];
        let places = std::array::from_fn(|row| {
            let bits = hash >> (row * 5) & 31;
            (row * 2 + (bits >> 4) as usize, (bits as u32 & 15) * 4)
        });
        (line, places)
    }

    fn count_at(line: &Line, places: &[(usize, u32); ROWS]) -> u8 {
        let counts = places
            .iter()
            .map(|(word, shift)| (line.0[*word].load(Relaxed) >> shift) as u8 & COUNT_MAX);
        counts.min().unwrap_or(0)
    }

    /// Reads of late; [`COUNT_MAX`] may be any more.
    pub(crate) fn reads(&self, hash: u64) -> u8 {
        let (line, places) = self.places(hash);
        Self::count_at(line, &places)
    }

    /// A read: what the window is measured in.
    pub(crate) fn note_read(&self) {
        self.counted.store(self.counted.load(Relaxed) + 1, Relaxed);
    }

    /// One more of this; how many there are then.
    pub(crate) fn add(&self, hash: u64) -> u8 {
        let (line, places) = self.places(hash);
        let reads = Self::count_at(line, &places);
        if reads >= COUNT_MAX {
            return reads;
        }
        // Only the least of them: who shares the others has more already.
        for (word, shift) in places {
            let word = &line.0[word];
            let seen = word.load(Relaxed);
            if (seen >> shift) as u8 & COUNT_MAX == reads {
                // Somebody else's count may be in the way: then this one is lost.
                let _ = word.compare_exchange(seen, seen + (1 << shift), Relaxed, Relaxed);
            }
        }
        reads + 1
    }

    /// This was read no less often than that.
    pub(crate) fn raise(&self, hash: u64, reads: u8) {
        if reads == 0 {
            return;
        }
        let (line, places) = self.places(hash);
        for (word, shift) in places {
            let counter = u64::from(COUNT_MAX) << shift;
            let raise = |seen: u64| {
                let count = (seen >> shift) as u8 & COUNT_MAX;
                (count < reads).then_some(seen & !counter | u64::from(reads) << shift)
            };
            let _ = line.0[word].fetch_update(Relaxed, Relaxed, raise);
        }
    }

    /// Takes back one read that was counted. Of others that share its counters one may go with it.
    pub(crate) fn take_back(&self, hash: u64) {
        let (line, places) = self.places(hash);
        for (word, shift) in places {
            let one_less =
                |seen: u64| ((seen >> shift) & u64::from(COUNT_MAX) > 0).then(|| seen - (1 << shift));
            let _ = line.0[word].fetch_update(Relaxed, Relaxed, one_less);
        }
    }

    /// Forgets the reads of this; of others that share its counters, too many may go with them.
    pub(crate) fn forget(&self, hash: u64) {
        let (line, places) = self.places(hash);
        for (word, shift) in places {
            line.0[word].fetch_and(!(u64::from(COUNT_MAX) << shift), Relaxed);
        }
    }

    /// Halves the counts if it is time: when enough was read, or with the heat of regions; whether it did.
    pub(crate) fn age(&self, minutes: u32) -> bool {
        let (counted, window) = self.counted();
        let last = self.halved_minutes.load(Relaxed);
        if last == 0 {
            self.halved_minutes.store(minutes.max(1), Relaxed);
        }
        let late = last > 0 && minutes >= last.saturating_add(HALF_LIFE_MINUTES);
        if counted < window && !late {
            return false;
        }
        self.counted.store(0, Relaxed);
        self.halved_minutes.store(minutes.max(1), Relaxed);
        for word in self.lines.iter().flat_map(|line| &line.0) {
            word.store(word.load(Relaxed) >> 1 & HALVED, Relaxed);
        }
        true
    }

    pub(crate) fn clear(&self) {
        self.counted.store(0, SeqCst);
        for word in self.lines.iter().flat_map(|line| &line.0) {
            word.store(0, Relaxed);
        }
    }
}
