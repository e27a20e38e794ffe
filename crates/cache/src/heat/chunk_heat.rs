//! `ChunkHeat`: how often single chunks, and the single blocks of long ones, were read of late, and which of those that a read
//! had to fetch from a device may be worth a place on a faster one. Heat by region does not tell apart what is scattered in
//! small blocks, and a count of a long chunk not, whether all of it is read or one block.
//!
//! Counts are kept in two sketches (`count_min.rs`): of blocks, whatever chunk they are in, and of long chunks as wholes. Each is
//! halved by the number of places that there are for what it counts.
//!
//! Invariants: all memory is taken when it is made, or when it is told to take more or less; counting takes no lock, waits for nobody
//! and touches one line of a sketch for each block, so counts may be lost or too high, which costs a move, never content; what is hot
//! is handed on at most as often as the mover asks, in an order that does not depend on chance.

use std::{
    num::NonZeroU8,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU8, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use arc_swap::ArcSwap;
use terrace_codec::mix;
use terrace_store::ChunkId;
use terrace_sync::{Mutex, rank};

use super::{
    chunk_reads::{BLOCKS_MAX, ChunkRead, HotChunk, LONG_BLOCKS, ReadAt},
    chunk_tables::{Tables, hash_of},
    count_min::COUNT_MAX,
};

/// Part of a window after which what was not counted is called cold.
const INFORMED_PART: u64 = 4;
/// Chunks for which there is a place, for each that the sketch has counters for, up to which it tells cold from warm: with
/// more, what is read now and then has no count.
const RESOLVED_PLACES: u64 = 4;
/// Of so many reads that a device answered, one says which tier that was.
const SAMPLE_READS: u64 = 4;
/// Reads from which it is known whether they go to single blocks, and of which the newest tell; and how many of them go to what was read before, for one
/// that goes to a block beside it.
const SINGLE_READS: u64 = 128;
const SINGLE_WINDOW: u64 = 8192;
const SINGLE_PART: u64 = 2;

/// See the module.
pub struct ChunkHeat {
    tables: ArcSwap<Tables>,
    /// There are not many more places than there are counters.
    resolves: AtomicBool,
    /// All reads since the start, those of them that a device answered, and samples of these from slower tiers.
    reads: AtomicU64,
    fetched: AtomicU64,
    slow_samples: AtomicU64,
    /// So much was read that what was not counted may be called cold.
    informed: AtomicBool,
    /// From this many reads on a chunk is wanted; 0: none is.
    least: AtomicU8,
    /// The same of blocks of long chunks.
    least_of_piece: AtomicU8,
    /// Of late, reads of blocks that were read before, and first reads of blocks of long chunks of which others were: of what does not lie on the
    /// fastest tier as one of many.
    again: AtomicU64,
    beside: AtomicU64,
    /// What was wanted since the mover asked last, each at a place that its number names.
    wanted: Mutex<Box<[Option<HotChunk>]>, rank::Leaf>,
}

/// Bytes of the larger sketch where all of it takes about `memory_bytes`.
fn sketch_bytes(memory_bytes: u64) -> u64 {
    power_of_two_in(memory_bytes.clamp(2 << 10, 64 << 20) / 2)
}

/// Places for what is wanted, empty.
fn places_wanted(sketch_bytes: u64) -> Box<[Option<HotChunk>]> {
    let places = (sketch_bytes / 64).clamp(16, 4096);
    (0..places).map(|_| None).collect()
}

/// From how many reads on a block of a long chunk is wanted, where chunks are from so many on: one sooner, as it asks nothing of the device
/// where it lies.
pub fn reads_of_piece(least: u8) -> u8 {
    least.saturating_sub(1).max(2)
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
        let bytes = sketch_bytes(memory_bytes);
        let sketch = Self {
            tables: ArcSwap::from_pointee(Tables::new(bytes, None)),
            resolves: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            slow_samples: AtomicU64::new(0),
            informed: AtomicBool::new(false),
            least: AtomicU8::new(0),
            least_of_piece: AtomicU8::new(0),
            again: AtomicU64::new(0),
            beside: AtomicU64::new(0),
            wanted: Mutex::new(places_wanted(bytes)),
        };
        sketch.set_places(u64::MAX, u64::MAX);
        sketch
    }

    /// Takes about so much from now on. What is known stays so, as far as there are counters for it.
    pub fn set_memory(&self, memory_bytes: u64) {
        let bytes = sketch_bytes(memory_bytes);
        // Held to the end, so that of two who say so at once one comes after the other.
        let mut wanted = self.wanted.lock();
        let before = self.tables.load_full();
        if before.blocks.memory_bytes() == bytes {
            return;
        }
        self.tables.store(Arc::new(Tables::new(bytes, Some(&before))));
        self.see_resolution();
        let mut places = places_wanted(bytes);
        for hot in wanted.iter().flatten() {
            places[mix(hot.id.0) as usize & (places.len() - 1)] = Some(*hot);
        }
        *wanted = places;
    }

    /// What it takes in all.
    pub fn memory_bytes(&self) -> u64 {
        let wanted = self.wanted.lock().len() * size_of::<Option<HotChunk>>();
        self.tables.load().memory_bytes() + wanted as u64
    }

    /// For about how many chunks there is a place on the faster tiers, and for how many blocks: the more there are, the longer counts have to be
    /// kept to tell which are worth one, as far as the memory goes.
    pub fn set_places(&self, chunks: u64, blocks: u64) {
        let tables = self.tables.load();
        tables.chunks.set_places(chunks);
        tables.blocks.set_places(blocks);
        self.see_resolution();
    }

    fn see_resolution(&self) {
        let tables = self.tables.load();
        let most = tables.blocks.places_most() * RESOLVED_PLACES;
        self.resolves.store(tables.chunks.wanted_places() <= most, SeqCst);
    }

    /// Halves the counts after this many reads at the latest: less lets a simulation see more of it.
    pub fn limit_window(&self, reads: u64) {
        let tables = self.tables.load();
        tables.blocks.limit_window(reads);
        tables.chunks.limit_window(reads);
    }

    /// From how many reads on a chunk that does not lie on the fastest tier is wanted, and a block of a long one; 0: none is.
    pub fn set_least(&self, reads: u8, of_piece: u8) {
        self.least.store(reads.min(COUNT_MAX), Relaxed);
        self.least_of_piece.store(of_piece.min(COUNT_MAX), Relaxed);
    }

    /// See [`set_least`](Self::set_least).
    pub fn least_of_piece(&self) -> u8 {
        self.least_of_piece.load(Relaxed)
    }

    /// Reads of late of a chunk of so many blocks, however many of them each wanted; [`COUNT_MAX`] may be any more.
    pub fn reads(&self, id: ChunkId, blocks: u32) -> u8 {
        match blocks >= LONG_BLOCKS {
            true => self.tables.load().chunks.reads(mix(id.0)),
            false => self.counts(id, blocks.max(1)).max().unwrap_or(0) as u8,
        }
    }

    /// Reads of late of one block of a chunk.
    pub fn reads_of_block(&self, id: ChunkId, block: u32) -> u8 {
        self.tables.load().reads_of_block(id, block)
    }

    fn counts(&self, id: ChunkId, blocks: u32) -> impl Iterator<Item = u32> {
        let tables = self.tables.load();
        (0..blocks.min(BLOCKS_MAX)).map(move |block| u32::from(tables.reads_of_block(id, block)))
    }

    /// Whether the reads of a long chunk go to few of its blocks: they come together in the same ones 1.75 times as often as chance
    /// would bring them there (the squares of the counts tell, as in Simpson's index).
    pub fn is_concentrated(&self, id: ChunkId, blocks: u32) -> bool {
        if blocks < LONG_BLOCKS {
            return false;
        }
        let (reads, squares) = self.counts(id, blocks).fold((0, 0), |(reads, squares), count| {
            (reads + count, squares + count * count)
        });
        reads > 0 && 7 * reads * (blocks + reads) <= 4 * blocks * squares
    }

    /// Whether most blocks of a chunk were read no more often than this.
    pub fn is_mostly_below(&self, id: ChunkId, blocks: u32, reads: u8) -> bool {
        let above = self.counts(id, blocks).filter(|count| *count > u32::from(reads));
        2 * above.count() < blocks as usize
    }

    /// The blocks of a chunk that were read at least so often, as bits.
    pub fn hot_blocks(&self, id: ChunkId, blocks: u32, least: u8) -> u32 {
        let hot = self.counts(id, blocks).enumerate();
        hot.filter(|(_, count)| *count >= u32::from(least))
            .fold(0, |bits, (block, _)| bits | 1 << block)
    }

    /// Whether what is read again is single blocks: most reads go to blocks that were read before, and few to others of the same long chunks. What was
    /// read once is worth a place then, by itself.
    pub fn goes_to_single_blocks(&self) -> bool {
        let (again, beside) = (self.again.load(Relaxed), self.beside.load(Relaxed));
        again >= SINGLE_READS && again >= beside * SINGLE_PART
    }

    /// Counts a read of a chunk, for an object; `fetched`: RAM did not have it. Whether the caller is to say which tier had
    /// it ([`lay_on`](Self::lay_on)).
    pub fn note(&self, read: ChunkRead, at: ReadAt, fetched: bool) -> bool {
        self.reads.store(self.reads.load(Relaxed) + 1, Relaxed);
        let from_device = self.fetched.load(Relaxed) + u64::from(fetched);
        self.fetched.store(from_device, Relaxed);
        self.count(read, at, fetched);
        fetched && from_device.is_multiple_of(SAMPLE_READS)
    }

    /// The same read wants these blocks of the chunk as well.
    pub fn note_more(&self, read: ChunkRead) -> u8 {
        self.tables.load().note(read)
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

    fn count(&self, read: ChunkRead, at: ReadAt, fetched: bool) {
        let hash = mix(read.id.0);
        let tables = self.tables.load();
        let mut reads = tables.note(read);
        tables.blocks.note_read();
        tables.chunks.note_read();
        let least = self.least.load(Relaxed);
        let mut wanted = fetched && reads >= least;
        let (of_block, raised) = (reads, tables.is_raised(hash));
        if read.is_long() {
            // What RAM has rises too, as it costs nothing then, and a restart finds it there; it is told now and then.
            let enough = self.least_of_piece.load(Relaxed);
            wanted = reads >= enough && (fetched || reads == enough || reads.is_power_of_two());
            reads = reads.max(tables.chunks.add(hash));
            wanted |= fetched && reads >= least;
        }
        let kind = match of_block > 1 {
            true => Some(&self.again),
            false => (reads > 1).then_some(&self.beside),
        };
        if let Some(kind) = kind.filter(|_| !read.is_long() || !raised) {
            kind.store(kind.load(Relaxed) + 1, Relaxed);
        }
        if !wanted || least == 0 || raised {
            return;
        }
        // Who finds it taken comes again.
        if let (Some(mut wanted), Some(reads)) = (self.wanted.try_lock(), NonZeroU8::new(reads)) {
            let slot = hash as usize & (wanted.len() - 1);
            wanted[slot] = Some(HotChunk {
                reads,
                id: read.id,
                dataset: at.dataset,
                body: at.body,
                object: at.object,
                region: at.region,
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

    /// The chunk lies on the fastest tier.
    pub fn rose(&self, id: ChunkId) {
        self.tables.load().rose(mix(id.0));
    }

    /// The chunk does not lie there any more.
    pub fn sank(&self, id: ChunkId) {
        self.tables.load().sank(mix(id.0));
    }

    /// Whether so much was read since the pool was opened that a chunk without a count is cold.
    pub fn is_informed(&self) -> bool {
        self.informed.load(SeqCst)
    }

    /// Whether there are counters for most of the chunks that have a place on the faster tiers.
    pub fn resolves(&self) -> bool {
        self.resolves.load(SeqCst)
    }

    /// Whether that holds of what is worth a place as well: there are counters for most of the chunks that have one.
    pub fn is_telling(&self) -> bool {
        self.is_informed() && self.resolves.load(SeqCst)
    }

    /// Halves the counts if it is time: when enough was read, or with the heat of regions. To be called now and then.
    pub fn age(&self, minutes: u32) {
        if self.again.load(Relaxed) + self.beside.load(Relaxed) >= SINGLE_WINDOW {
            for count in [&self.again, &self.beside] {
                count.store(count.load(Relaxed) / 2, Relaxed);
            }
        }
        let tables = self.tables.load();
        let (counted, window) = tables.chunks.counted();
        if counted >= window / INFORMED_PART {
            self.informed.store(true, SeqCst);
        }
        let aged = [tables.chunks.age(minutes), tables.blocks.age(minutes)];
        if aged.contains(&true) {
            // What was moved by others is looked at again.
            tables.forget_raised();
        }
    }

    /// A block of a chunk takes the place of one of another, which was written over, or moved: what is read is the place. `long`: it
    /// is one of many that go together.
    pub fn inherit(&self, (old, old_block): (ChunkId, u32), (new, new_block): (ChunkId, u32), long: bool) {
        let tables = self.tables.load();
        let reads = tables.reads_of_block(old, old_block);
        tables.blocks.raise(hash_of(new, new_block), reads);
        if long {
            let reads = tables.chunks.reads(mix(old.0));
            tables.chunks.raise(mix(new.0), reads);
        }
    }

    /// Takes back one read that was counted. Of others that share its counters one may go with it.
    pub fn take_back(&self, read: ChunkRead) {
        let tables = self.tables.load();
        for block in u32::from(read.index)..u32::from(read.index) + u32::from(read.blocks) {
            tables.blocks.take_back(hash_of(read.id, block));
        }
        if read.is_long() {
            tables.chunks.take_back(mix(read.id.0));
        }
    }

    /// Forgets the reads of a chunk of so many blocks; of others that share its counters, too many may go with them.
    pub fn forget(&self, id: ChunkId, blocks: u32) {
        let tables = self.tables.load();
        (0..blocks.min(BLOCKS_MAX)).for_each(|block| tables.blocks.forget(hash_of(id, block)));
        tables.chunks.forget(mix(id.0));
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.informed.store(false, SeqCst);
        for count in [&self.again, &self.beside] {
            count.store(0, Relaxed);
        }
        let tables = self.tables.load();
        tables.blocks.clear();
        tables.chunks.clear();
        tables.forget_raised();
        self.wanted.lock().fill(None);
    }
}

#[cfg(test)]
mod tests {
    use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX};

    use super::*;
    use crate::heat::{count_min::READS_PER_PLACE, region_heat::HALF_LIFE_MINUTES};

    /// A chunk of one block.
    fn small(id: u64) -> ChunkRead {
        ChunkRead::of(ChunkId(id), 0, BLOCK_BYTES, BLOCK_BYTES)
    }

    /// A block of a chunk of 32.
    fn block(id: u64, at: usize) -> ChunkRead {
        ChunkRead::of(ChunkId(id), at * BLOCK_BYTES, BLOCK_BYTES, CHUNK_BYTES_MAX)
    }

    fn at() -> ReadAt {
        ReadAt {
            dataset: 1,
            body: 2,
            object: 3,
            region: 0,
        }
    }

    fn read(heat: &ChunkHeat, id: u64, times: usize) {
        for _ in 0..times {
            heat.note(small(id), at(), true);
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
                heat.reads(ChunkId(7), 1),
                heat.reads(ChunkId(8), 1),
                heat.reads(ChunkId(9), 1)
            ),
            (9, COUNT_MAX, 0)
        );
        heat.age(1000);
        assert_eq!((heat.reads(ChunkId(7), 1), heat.reads(ChunkId(8), 1)), (4, 7));
        // Not before as much was read again, or as much time has passed in which heat halves.
        read(&heat, 7, 2);
        heat.age(1000 + HALF_LIFE_MINUTES - 1);
        assert_eq!(heat.reads(ChunkId(7), 1), 6);
        heat.age(1000 + HALF_LIFE_MINUTES);
        assert_eq!((heat.reads(ChunkId(7), 1), heat.reads(ChunkId(8), 1)), (3, 3));
        heat.inherit((ChunkId(7), 0), (ChunkId(10), 0), false);
        heat.inherit((ChunkId(9), 0), (ChunkId(8), 0), false);
        assert_eq!((heat.reads(ChunkId(10), 1), heat.reads(ChunkId(8), 1)), (3, 3));
        read(&heat, 8, 3);
        heat.take_back(small(8));
        heat.take_back(small(9));
        assert_eq!((heat.reads(ChunkId(8), 1), heat.reads(ChunkId(9), 1)), (5, 0));
        heat.forget(ChunkId(8), 1);
        assert_eq!((heat.reads(ChunkId(7), 1), heat.reads(ChunkId(8), 1)), (3, 0));
        heat.clear();
        assert_eq!((heat.reads(ChunkId(7), 1), heat.is_informed()), (0, false));
    }

    #[test]
    fn memory_is_bounded_and_what_is_hot_stands_out_of_a_crowd() {
        for bytes in [0, 5 << 10, 512 << 10, 3 << 20] {
            let heat = ChunkHeat::new(bytes);
            assert!(
                heat.memory_bytes() <= (bytes + bytes / 4).max(4 << 10),
                "{} of {bytes}",
                heat.memory_bytes()
            );
        }
        // As much as one window may have: a few thousand chunks that are read often, between ten times as many that are
        // read once.
        let heat = ChunkHeat::new(512 << 10);
        let window = heat.tables.load().blocks.counted().1;
        let hot = window / 20;
        heat.set_least(4, 3);
        for round in 0..10 {
            for id in 0..hot {
                heat.note(small(1 + id), at(), false);
                heat.note(small(1 + hot + round * hot + id), at(), true);
            }
        }
        let too_low = (0..hot).filter(|id| heat.reads(ChunkId(1 + id), 1) < 10).count();
        assert_eq!(too_low, 0);
        let too_high = (hot..11 * hot).filter(|id| heat.reads(ChunkId(1 + id), 1) >= 4);
        let too_high = too_high.count() as u64;
        assert!(too_high < hot / 10, "{too_high} of {} look hot", 10 * hot);
        assert!(heat.take_wanted().len() <= 4096);
    }

    #[test]
    fn memory_follows_what_is_said_and_what_is_known_stays() {
        let of = |bytes| ChunkHeat::new(bytes).memory_bytes();
        let heat = ChunkHeat::new(1 << 20);
        heat.set_places(30_000, 30_000);
        heat.set_least(4, 3);
        for id in 0..200 {
            read(&heat, id, 2 + id as usize % 8);
        }
        for index in 0..32 {
            heat.note(block(1000, index), at(), true);
        }
        heat.rose(ChunkId(7));
        let known = |heat: &ChunkHeat| {
            let of_small: Vec<u8> = (0..200).map(|id| heat.reads(ChunkId(id), 1)).collect();
            (of_small, heat.reads(ChunkId(1000), 32))
        };
        let before = known(&heat);
        assert!(heat.resolves());
        for bytes in [64 << 10, 64 << 10, 4 << 20, 1 << 20, 64 << 10] {
            heat.set_memory(bytes);
            assert_eq!(heat.memory_bytes(), of(bytes));
            assert_eq!(heat.tables.load().blocks.counted().0, 200 * 11 / 2 + 32);
            let now = known(&heat);
            assert!(now.0.iter().zip(&before.0).all(|(now, before)| now >= before));
            let too_high = now.0.iter().zip(&before.0).filter(|(now, before)| now > before);
            assert!(too_high.count() < 20, "{bytes}");
            assert_eq!(now.1, before.1);
            let unknown = (5000..6000).filter(|id| heat.reads(ChunkId(*id), 1) > 1);
            assert!(unknown.count() < 50, "{bytes}");
            // Whether there are counters enough is that of the new size.
            assert_eq!(heat.resolves(), bytes > 64 << 10, "{bytes}");
        }
        // What was wanted is so still, the hottest first.
        let wanted = heat.take_wanted();
        assert!(
            wanted.len() > 50
                && wanted[0].reads.get() == COUNT_MAX
                && wanted.iter().any(|hot| hot.id == ChunkId(5))
        );
        read(&heat, 5, 3);
        assert_eq!(heat.reads(ChunkId(5), 1), before.0[5] + 3);
    }

    #[test]
    fn many_may_count_while_the_memory_changes() {
        let heat = ChunkHeat::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20_000).for_each(|id| read(&heat, id % 97, 1)));
            }
            for turn in 0..100 {
                heat.set_memory([64 << 10, 1 << 20][turn % 2]);
            }
        });
        assert_eq!(heat.memory_bytes(), ChunkHeat::new(1 << 20).memory_bytes());
        // What was counted in tables that went meanwhile may be lost; what is counted from here on is not.
        (0..97).for_each(|id| read(&heat, id, 2));
        assert!((0..97).all(|id| heat.reads(ChunkId(id), 1) > 0));
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
        heat.set_least(3, 2);
        read(&heat, 8, 2);
        assert_eq!(wanted(), []);
        read(&heat, 8, 1);
        read(&heat, 7, 1);
        assert_eq!(wanted(), [7, 8], "the hottest first");
        assert_eq!(wanted(), []);
        // What RAM answers is counted, and needs nothing.
        heat.note(small(8), at(), false);
        assert_eq!((wanted(), heat.reads(ChunkId(8), 1)), (vec![], 4));
        heat.rose(ChunkId(8));
        read(&heat, 8, 1);
        assert_eq!((wanted(), heat.reads(ChunkId(8), 1)), (vec![], 5));
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
        for id in 0..reads {
            assert!(!heat.note(small(id), at(), false), "RAM had it");
            if heat.note(small(id), at(), true) {
                heat.lay_on((asked % 2) as u8);
                asked += 1;
            }
        }
        assert_eq!((asked, heat.answered()), (100, (2 * reads, 50)));
        heat.set_places(100, 100);
        heat.age(1);
        assert!(heat.is_telling());
        heat.set_places(1 << 40, 1 << 40);
        assert!(
            heat.is_informed() && !heat.is_telling(),
            "more places than counters"
        );
    }

    #[test]
    fn what_is_cold_is_known_only_after_enough_was_read() {
        let heat = ChunkHeat::new(1 << 20);
        heat.set_places(100, 100);
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
        assert!((0..97).all(|id| heat.reads(ChunkId(id), 1) <= COUNT_MAX / 2));
        assert!((0..97).all(|id| heat.reads(ChunkId(id), 1) > 0));
    }

    #[test]
    fn whether_all_of_a_long_chunk_is_read_or_a_few_blocks_is_told_apart() {
        let heat = ChunkHeat::new(1 << 20);
        // As of two at random, of which one is read as often in all but in a few places.
        for round in 0..64 {
            heat.note(block(7, round * 5 % 32), at(), false);
            heat.note(block(8, [3, 9, round % 32][round % 3]), at(), false);
        }
        assert!(!heat.is_concentrated(ChunkId(7), 32) && heat.is_concentrated(ChunkId(8), 32));
        assert_eq!(heat.hot_blocks(ChunkId(8), 32, 6), 1 << 3 | 1 << 9);
        assert!(heat.is_mostly_below(ChunkId(8), 32, 1) && !heat.is_mostly_below(ChunkId(7), 32, 1));
        assert_eq!(heat.reads(ChunkId(7), 32), COUNT_MAX);
        // What is known of one read or two says nothing.
        heat.note(block(9, 1), at(), false);
        assert!(!heat.is_concentrated(ChunkId(9), 32));
        // What is moved to a chunk of its own is as hot as it was there.
        let before = heat.reads_of_block(ChunkId(8), 9);
        heat.inherit((ChunkId(8), 9), (ChunkId(20), 0), false);
        assert_eq!(heat.reads(ChunkId(20), 1), before);
        heat.forget(ChunkId(8), 32);
        assert_eq!(
            (heat.reads(ChunkId(8), 32), heat.hot_blocks(ChunkId(8), 32, 1)),
            (0, 0)
        );
        // Beyond the end of what a chunk can be nothing is counted.
        let beyond = ChunkRead::of(ChunkId(1), 2 * CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 1 << 40);
        assert_eq!((beyond.index, beyond.blocks, beyond.chunk_blocks), (31, 1, 32));
    }

    #[test]
    fn whether_single_blocks_are_read_again_or_others_beside_them_is_told_apart() {
        let heat = ChunkHeat::new(1 << 20);
        let all = 32 * 64;
        // All blocks of some chunks, at random and several times.
        for round in 0..2 * all {
            let block_at = round * 1_327 % all;
            heat.note(block(1 + block_at as u64 / 32, block_at % 32), at(), true);
            assert!(!heat.goes_to_single_blocks(), "{round}");
        }
        heat.clear();
        // One block in each of many, and of one in ten of them another.
        for round in 0..1000 {
            heat.note(block(1 + round % 100, 3), at(), true);
            if round % 10 == 0 {
                heat.note(block(1 + round % 100, 4 + (round / 100) as usize), at(), true);
            }
        }
        assert!(heat.goes_to_single_blocks());
        // What lies on the fastest tier as a whole says nothing.
        (1..=100).for_each(|id| heat.rose(ChunkId(id)));
        for round in 0..20_000 {
            heat.note(block(1 + round % 100, (round / 100 % 32) as usize), at(), true);
            heat.note(
                block(200 + round % 1000, (round / 1000 % 32) as usize),
                at(),
                true,
            );
            heat.age(1);
        }
        assert!(!heat.goes_to_single_blocks());
    }

    #[test]
    fn hot_blocks_of_long_chunks_are_wanted_also_while_ram_has_them() {
        let heat = ChunkHeat::new(1 << 20);
        heat.set_least(3, 2);
        let mut wanted = Vec::new();
        for round in 1..40 {
            heat.note(block(7, 3), at(), false);
            heat.note(small(8), at(), false);
            let taken = heat.take_wanted();
            assert!(taken.iter().all(|hot| hot.id == ChunkId(7)));
            wanted.extend(taken.iter().map(|hot| (round, hot.reads.get())));
        }
        assert_eq!(wanted, [(2, 2), (4, 4), (8, 8)], "now and then");
        heat.note(block(7, 3), at(), true);
        assert_eq!(heat.take_wanted().len(), 1);
        heat.rose(ChunkId(7));
        heat.note(block(7, 3), at(), true);
        assert_eq!(heat.take_wanted(), []);
    }
}
