//! `ChunkHeat`: how often single chunks were read of late, and which of those that a read had to fetch from a device may
//! be worth a place on a faster one. Heat by region does not tell apart what is scattered in small blocks.
//!
//! Counts are kept in a sketch: four small counters for each chunk at places that its number names, of which the least
//! counts, and all of them halved now and then (TinyLFU: Einziger, Friedman and Manes, ACM TOS 13(4), 2017; the four lie
//! in one cache line, as in Caffeine).
//!
//! Invariants: all memory is taken when it is made; counting takes no lock, waits for nobody and touches one line of the
//! sketch, so counts may be lost or too high, which costs a move, never content; what is hot is handed on at most as
//! often as the mover asks, in an order that does not depend on chance.

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use parking_lot::Mutex;
use terrace_store::ChunkId;

use crate::heat::HALF_LIFE_MINUTES;

/// Reads that a counter tells apart at most.
const COUNT_MAX: u8 = 15;
const ROWS: usize = 4;
const LINE_WORDS: usize = 8;
const LINE_COUNTERS: u64 = (LINE_WORDS * 16) as u64;
/// Of all counters after their halving, the lowest bits of which are those of their neighbours.
const HALVED: u64 = 0x7777_7777_7777_7777;
/// Reads between two halvings for each chunk for which there is a place on the faster tiers.
const READS_PER_PLACE: u64 = 20;
/// Counters for each of these chunks, so that they seldom share all four.
const COUNTERS_PER_PLACE: u64 = 16;
/// Part of a window after which what was not counted is called cold.
const INFORMED_PART: u64 = 4;
/// Fewest reads between two halvings.
const WINDOW_MIN: u64 = 256;
/// Chunks for which there is a place, for each that the sketch has counters for, up to which it tells cold from warm: with
/// more, what is read now and then has no count.
const RESOLVED_PLACES: u64 = 4;
/// Of so many reads that a device answered, one says which tier that was.
const SAMPLE_READS: u64 = 4;

#[repr(align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// A chunk that may be worth a better place, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotChunk {
    /// Reads of late.
    pub reads: u8,
    /// The chunk.
    pub id: ChunkId,
    /// Dataset of the object that was read.
    pub dataset: u32,
    /// And its body.
    pub body: u64,
}

/// See the module.
pub struct ChunkHeat {
    lines: Box<[Line]>,
    /// Reads counted since the last halving, and after how many there is one.
    counted: AtomicU64,
    window: AtomicU64,
    window_most: AtomicU64,
    /// There are not many more places than there are counters.
    resolves: AtomicBool,
    /// All reads since the start, those of them that a device answered, and samples of these from slower tiers.
    reads: AtomicU64,
    fetched: AtomicU64,
    slow_samples: AtomicU64,
    /// So much was read that what was not counted may be called cold.
    informed: AtomicBool,
    halved_minutes: AtomicU32,
    /// From this many reads on a chunk is wanted; 0: none is.
    least: AtomicU8,
    /// What was wanted since the mover asked last, each at a place that its number names.
    wanted: Mutex<Box<[Option<HotChunk>]>>,
    /// What lies on the fastest tier, as far as the mover has seen: need not be wanted. Hashes, 0: none.
    raised: Box<[AtomicU32]>,
}

/// Mixes a chunk's number (splitmix64).
fn mix(id: ChunkId) -> u64 {
    let mut mixed = id.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn power_of_two_in(bytes: u64) -> u64 {
    match bytes.checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}

impl ChunkHeat {
    /// Takes about `memory_bytes`.
    pub fn new(memory_bytes: u64) -> Self {
        let bytes = power_of_two_in(memory_bytes.clamp(2 << 10, 64 << 20) / 2);
        let lines = (bytes / size_of::<Line>() as u64).max(1);
        let raised = (bytes / 8).max(16);
        let wanted = (bytes / 64).clamp(16, 4096);
        let sketch = Self {
            lines: (0..lines)
                .map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
            counted: AtomicU64::new(0),
            window: AtomicU64::new(0),
            window_most: AtomicU64::new(u64::MAX),
            resolves: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            slow_samples: AtomicU64::new(0),
            informed: AtomicBool::new(false),
            halved_minutes: AtomicU32::new(0),
            least: AtomicU8::new(0),
            wanted: Mutex::new((0..wanted).map(|_| None).collect()),
            raised: (0..raised).map(|_| AtomicU32::new(0)).collect(),
        };
        sketch.set_places(u64::MAX);
        sketch
    }

    /// What it takes in all.
    pub fn memory_bytes(&self) -> u64 {
        let wanted = self.wanted.lock().len() * size_of::<Option<HotChunk>>();
        (size_of_val(&*self.lines) + size_of_val(&*self.raised) + wanted) as u64
    }

    /// For about how many chunks there is a place on the faster tiers: the more there are, the longer counts have to be
    /// kept to tell which are worth one, as far as the memory goes.
    pub fn set_places(&self, places: u64) {
        let most = self.lines.len() as u64 * LINE_COUNTERS / COUNTERS_PER_PLACE;
        let window = (places.min(most) * READS_PER_PLACE).max(WINDOW_MIN);
        self.window
            .store(window.min(self.window_most.load(Relaxed)), Relaxed);
        self.resolves.store(places <= most * RESOLVED_PLACES, SeqCst);
    }

    /// Halves the counts after this many reads at the latest: less lets a simulation see more of it.
    pub fn limit_window(&self, reads: u64) {
        self.window_most.store(reads.max(2), Relaxed);
        self.window.fetch_min(reads.max(2), Relaxed);
    }

    /// From how many reads on a chunk that does not lie on the fastest tier is wanted; 0: none is.
    pub fn set_least(&self, reads: u8) {
        self.least.store(reads.min(COUNT_MAX), Relaxed);
    }

    /// The counters of a chunk: word and shift.
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

    /// Reads of a chunk of late; [`COUNT_MAX`] may be any more.
    pub fn reads(&self, id: ChunkId) -> u8 {
        let (line, places) = self.places(mix(id));
        Self::count_at(line, &places)
    }

    /// Counts a read of a chunk, for an object; `fetched`: RAM did not have it. Whether the caller is to say which tier had
    /// it ([`lay_on`](Self::lay_on)).
    pub fn note(&self, id: ChunkId, dataset: u32, body: u64, fetched: bool) -> bool {
        self.reads.store(self.reads.load(Relaxed) + 1, Relaxed);
        let from_device = self.fetched.load(Relaxed) + u64::from(fetched);
        self.fetched.store(from_device, Relaxed);
        self.count(id, dataset, body, fetched);
        fetched && from_device.is_multiple_of(SAMPLE_READS)
    }

    /// A read of which [`note`](Self::note) wanted to know it was answered by this tier.
    pub fn lay_on(&self, tier: u8) {
        if tier > 0 {
            self.slow_samples.fetch_add(1, Relaxed);
        }
    }

    /// Reads since the start, and samples of those that a slower tier than the fastest answered: one in so many of them
    /// (see [`SAMPLE_READS`]), whatever that is.
    pub fn answered(&self) -> (u64, u64) {
        (self.reads.load(Relaxed), self.slow_samples.load(Relaxed))
    }

    fn count(&self, id: ChunkId, dataset: u32, body: u64, fetched: bool) {
        let hash = mix(id);
        let (line, places) = self.places(hash);
        let mut reads = Self::count_at(line, &places);
        if reads < COUNT_MAX {
            // Only the least of them: who shares the others has more already.
            for (word, shift) in places {
                let word = &line.0[word];
                let seen = word.load(Relaxed);
                if (seen >> shift) as u8 & COUNT_MAX == reads {
                    // Somebody else's count may be in the way: then this one is lost.
                    let _ = word.compare_exchange(seen, seen + (1 << shift), Relaxed, Relaxed);
                }
            }
            reads += 1;
        }
        let counted = self.counted.load(Relaxed) + 1;
        self.counted.store(counted, Relaxed);
        let least = self.least.load(Relaxed);
        if !fetched || least == 0 || reads < least || self.is_raised(hash) {
            return;
        }
        // Who finds it taken comes again.
        if let Some(mut wanted) = self.wanted.try_lock() {
            let at = hash as usize & (wanted.len() - 1);
            wanted[at] = Some(HotChunk {
                reads,
                id,
                dataset,
                body,
            });
        }
    }

    /// Takes what was wanted since the last time and is so still, the most read first.
    pub fn take_wanted(&self) -> Vec<HotChunk> {
        let mut taken: Vec<HotChunk> = Vec::new();
        for slot in self.wanted.lock().iter_mut() {
            taken.extend(slot.take());
        }
        taken.sort_unstable_by_key(|hot| (std::cmp::Reverse(hot.reads), hot.id));
        taken
    }

    fn slot_of(&self, hash: u64) -> (&AtomicU32, u32) {
        let slot = &self.raised[hash as usize & (self.raised.len() - 1)];
        (slot, ((hash >> 32) as u32).max(1))
    }

    fn is_raised(&self, hash: u64) -> bool {
        let (slot, tag) = self.slot_of(hash);
        slot.load(Relaxed) == tag
    }

    /// The chunk lies on the fastest tier.
    pub fn rose(&self, id: ChunkId) {
        let (slot, tag) = self.slot_of(mix(id));
        slot.store(tag, Relaxed);
    }

    /// The chunk does not lie there any more.
    pub fn sank(&self, id: ChunkId) {
        let (slot, tag) = self.slot_of(mix(id));
        if slot.load(Relaxed) == tag {
            slot.store(0, Relaxed);
        }
    }

    /// Whether so much was read since the pool was opened that a chunk without a count is cold.
    pub fn is_informed(&self) -> bool {
        self.informed.load(SeqCst)
    }

    /// Whether that holds of what is worth a place as well: there are counters for most of the chunks that have one.
    pub fn is_telling(&self) -> bool {
        self.is_informed() && self.resolves.load(SeqCst)
    }

    /// Halves the counts if it is time: when enough was read, or with the heat of regions. To be called now and then.
    pub fn age(&self, minutes: u32) {
        let (counted, window) = (self.counted.load(Relaxed), self.window.load(Relaxed));
        if counted >= window / INFORMED_PART {
            self.informed.store(true, SeqCst);
        }
        let last = self.halved_minutes.load(Relaxed);
        if last == 0 {
            self.halved_minutes.store(minutes.max(1), Relaxed);
        }
        let late = last > 0 && minutes >= last.saturating_add(HALF_LIFE_MINUTES);
        if counted < window && !late {
            return;
        }
        self.counted.store(0, Relaxed);
        self.halved_minutes.store(minutes.max(1), Relaxed);
        for word in self.lines.iter().flat_map(|line| &line.0) {
            word.store(word.load(Relaxed) >> 1 & HALVED, Relaxed);
        }
        // What was moved by others is looked at again.
        for slot in &self.raised {
            slot.store(0, Relaxed);
        }
    }

    /// A chunk takes the place of another one, which was written over: what is read is the place.
    pub fn inherit(&self, old: ChunkId, new: ChunkId) {
        let reads = self.reads(old);
        let (line, places) = self.places(mix(new));
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
    pub fn take_back(&self, id: ChunkId) {
        let (line, places) = self.places(mix(id));
        for (word, shift) in places {
            let one_less =
                |seen: u64| ((seen >> shift) & u64::from(COUNT_MAX) > 0).then(|| seen - (1 << shift));
            let _ = line.0[word].fetch_update(Relaxed, Relaxed, one_less);
        }
    }

    /// Forgets the reads of a chunk; of others that share its counters, too many may go with them.
    pub fn forget(&self, id: ChunkId) {
        let (line, places) = self.places(mix(id));
        for (word, shift) in places {
            line.0[word].fetch_and(!(u64::from(COUNT_MAX) << shift), Relaxed);
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.informed.store(false, SeqCst);
        self.counted.store(0, Relaxed);
        for word in self.lines.iter().flat_map(|line| &line.0) {
            word.store(0, Relaxed);
        }
        for slot in &self.raised {
            slot.store(0, Relaxed);
        }
        self.wanted.lock().fill(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(heat: &ChunkHeat, id: u64, times: usize) {
        for _ in 0..times {
            heat.note(ChunkId(id), 1, 2, true);
        }
    }

    #[test]
    fn counts_are_bounded_and_halve() {
        let heat = ChunkHeat::new(64 << 10);
        heat.limit_window(100);
        read(&heat, 7, 9);
        read(&heat, 8, 200);
        assert_eq!(
            (
                heat.reads(ChunkId(7)),
                heat.reads(ChunkId(8)),
                heat.reads(ChunkId(9))
            ),
            (9, COUNT_MAX, 0)
        );
        heat.age(1000);
        assert_eq!((heat.reads(ChunkId(7)), heat.reads(ChunkId(8))), (4, 7));
        // Not before as much was read again, or as much time has passed in which heat halves.
        read(&heat, 7, 2);
        heat.age(1000 + HALF_LIFE_MINUTES - 1);
        assert_eq!(heat.reads(ChunkId(7)), 6);
        heat.age(1000 + HALF_LIFE_MINUTES);
        assert_eq!((heat.reads(ChunkId(7)), heat.reads(ChunkId(8))), (3, 3));
        heat.inherit(ChunkId(7), ChunkId(10));
        heat.inherit(ChunkId(9), ChunkId(8));
        assert_eq!((heat.reads(ChunkId(10)), heat.reads(ChunkId(8))), (3, 3));
        read(&heat, 8, 3);
        heat.take_back(ChunkId(8));
        heat.take_back(ChunkId(9));
        assert_eq!((heat.reads(ChunkId(8)), heat.reads(ChunkId(9))), (5, 0));
        heat.forget(ChunkId(8));
        assert_eq!((heat.reads(ChunkId(7)), heat.reads(ChunkId(8))), (3, 0));
        heat.clear();
        assert_eq!((heat.reads(ChunkId(7)), heat.is_informed()), (0, false));
    }

    #[test]
    fn memory_is_bounded_and_what_is_hot_stands_out_of_a_crowd() {
        for bytes in [0, 5 << 10, 512 << 10, 3 << 20] {
            let heat = ChunkHeat::new(bytes);
            assert!(
                heat.memory_bytes() <= bytes.max(4 << 10),
                "{} of {bytes}",
                heat.memory_bytes()
            );
        }
        // As much as one window may have: a few thousand chunks that are read often, between ten times as many that are
        // read once.
        let heat = ChunkHeat::new(512 << 10);
        let window = heat.window.load(Relaxed);
        let hot = window / 20;
        heat.set_least(4);
        for round in 0..10 {
            for id in 0..hot {
                heat.note(ChunkId(1 + id), 1, 2, false);
                heat.note(ChunkId(1 + hot + round * hot + id), 1, 2, true);
            }
        }
        let too_low = (0..hot).filter(|id| heat.reads(ChunkId(1 + id)) < 10).count();
        assert_eq!(too_low, 0);
        let too_high = (hot..11 * hot).filter(|id| heat.reads(ChunkId(1 + id)) >= 4);
        let too_high = too_high.count() as u64;
        assert!(too_high < hot / 10, "{too_high} of {} look hot", 10 * hot);
        assert!(heat.take_wanted().len() <= 4096);
    }

    #[test]
    fn what_had_to_be_fetched_often_is_wanted_until_it_rose() {
        let heat = ChunkHeat::new(64 << 10);
        let wanted = || heat.take_wanted().iter().map(|hot| hot.id.0).collect::<Vec<_>>();
        read(&heat, 7, 9);
        assert_eq!(
            wanted(),
            [],
            "nothing is wanted unless somebody says from when on"
        );
        heat.set_least(3);
        read(&heat, 8, 2);
        assert_eq!(wanted(), []);
        read(&heat, 8, 1);
        read(&heat, 7, 1);
        assert_eq!(wanted(), [7, 8], "the hottest first");
        assert_eq!(wanted(), []);
        // What RAM answers is counted, and needs nothing.
        heat.note(ChunkId(8), 1, 2, false);
        assert_eq!((wanted(), heat.reads(ChunkId(8))), (vec![], 4));
        heat.rose(ChunkId(8));
        read(&heat, 8, 1);
        assert_eq!((wanted(), heat.reads(ChunkId(8))), (vec![], 5));
        heat.sank(ChunkId(8));
        read(&heat, 8, 1);
        assert_eq!(wanted(), [8]);
        // Bounded, whatever is asked for.
        (0..100_000).for_each(|id| read(&heat, id, 3));
        let slots = heat.wanted.lock().len();
        assert!(heat.take_wanted().len() <= slots);
    }

    #[test]
    fn which_reads_slower_tiers_answer_is_sampled() {
        let heat = ChunkHeat::new(64 << 10);
        let (mut asked, reads) = (0, 100 * SAMPLE_READS);
        for at in 0..reads {
            assert!(!heat.note(ChunkId(at), 1, 2, false), "RAM had it");
            if heat.note(ChunkId(at), 1, 2, true) {
                heat.lay_on((asked % 2) as u8);
                asked += 1;
            }
        }
        assert_eq!((asked, heat.answered()), (100, (2 * reads, 50)));
        heat.set_places(100);
        heat.age(1);
        assert!(heat.is_telling());
        heat.set_places(1 << 40);
        assert!(
            heat.is_informed() && !heat.is_telling(),
            "more places than counters"
        );
    }

    #[test]
    fn what_is_cold_is_known_only_after_enough_was_read() {
        let heat = ChunkHeat::new(1 << 20);
        heat.set_places(100);
        let enough = 100 * READS_PER_PLACE / INFORMED_PART;
        (1..enough).for_each(|id| read(&heat, id, 1));
        heat.age(5);
        assert!(!heat.is_informed());
        read(&heat, 1, 1);
        heat.age(5);
        assert!(heat.is_informed());
        heat.age(5 + HALF_LIFE_MINUTES);
        assert!(heat.is_informed());
    }

    #[test]
    fn many_may_count_at_once() {
        let heat = ChunkHeat::new(16 << 10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|id| read(&heat, id % 97, 1)));
            }
        });
        heat.limit_window(2);
        heat.age(1);
        // No count has run over into its neighbour: halved, none is above half of the most.
        assert!((0..97).all(|id| heat.reads(ChunkId(id)) <= COUNT_MAX / 2));
        assert!((0..97).all(|id| heat.reads(ChunkId(id)) > 0));
    }
}
