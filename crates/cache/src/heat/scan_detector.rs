//! `Visits`: who reads which files, so that a walk over many files, each read once (a backup, a copy, an indexer), adds no heat:
//! no single file of a tree of small ones is long enough to be known as a scan by itself.
//!
//! A *visit* is what one reader (a process) reads of a file until another one reads there, or it begins anew. A reader that has
//! visited [`WALK`] files *walks*: files that it has not been to before are only passed, and those that it comes back to count
//! like any other's. So do processes that read a file or two each, as long as not so many files are visited for the first time
//! within a minute (`find -exec`). What was counted of a reader before it was known to walk is taken back.
//!
//! Invariants: bounded memory, whatever is read: so many files of each of the last few readers are remembered, in two
//! generations; forgetting one costs the heat of a visit, never more. Who reads a file again, or jumps about in it, makes it hot,
//! also while it walks. No lock is taken for reads that go on with a visit.

use hashbrown::{HashMap, HashSet};
use terrace_sync::{Mutex, rank};

use super::chunk_reads::ChunkRead;

/// Files that a reader visits, each for the first time, until it is known to walk.
pub const WALK: usize = 64;
/// Reads of a visit that do not count when it only passes; who reads more there uses it.
pub const PASSING_READS: u8 = 4;
/// Readers that are remembered.
const READERS_MAX: usize = 16;
/// Files that are remembered of each of them, in each generation, at most and at least; and about what each takes.
const FILES: (u64, u64) = (WALK as u64, 8192);
const FILE_BYTES: u64 = 10;
/// What was counted of visits that may be taken back.
const COUNTED_MAX: usize = 8 * WALK;
/// After so many minutes without a visit the number of a reader may be that of another process.
const IDLE_MINUTES: u32 = 10;

/// How reads of a visit count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Visit {
    /// In full.
    #[default]
    Counts,
    /// In full for now; what is counted is to be [noted](Visits::note), since it may be taken back.
    Undecided,
    /// Not at all, at first.
    Passes,
}

/// What was counted of a visit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Counted {
    /// Reads of a region.
    Region {
        /// Its dataset.
        dataset: u32,
        /// Its body.
        body: u64,
        /// Its number.
        region: u32,
        /// How many.
        amount: f32,
    },
    /// A read of a chunk.
    Chunk(ChunkRead),
}

/// Files that somebody visited, hashed.
#[derive(Default)]
struct Memory {
    newest: HashSet<u32>,
    older: HashSet<u32>,
}

impl Memory {
    /// Remembers a file; whether it was remembered before.
    fn remember(&mut self, file: u32, most: usize) -> bool {
        let known = self.older.contains(&file);
        if self.newest.len() >= most {
            self.older = std::mem::take(&mut self.newest);
        }
        !self.newest.insert(file) || known
    }

    fn forget(&mut self, file: u32) {
        self.newest.remove(&file);
        self.older.remove(&file);
    }
}

#[derive(Default)]
struct Reader {
    files: Memory,
    /// Visited for the first time, up to [`WALK`].
    first_visits: usize,
    last_minutes: u32,
    /// Orders readers by their last visit.
    last: u64,
}

#[derive(Default)]
struct Known {
    readers: HashMap<u32, Reader>,
    visits: u64,
    /// Files of those that do not walk by themselves, and how many of them were visited for the first time in this minute.
    others: Memory,
    first_visits: usize,
    minute: u32,
    /// They walked in the minute before.
    walked_before: bool,
    /// The newest of what may be taken back, and whose it is.
    counted: Vec<(u32, Counted)>,
    /// Files of each that are remembered, in each of two generations.
    most: usize,
}

/// See the module.
pub struct Visits {
    known: Mutex<Known, rank::Leaf>,
}

/// Files that are remembered of each reader, in each of two generations, where all of them take about `memory_bytes`.
fn files_in(memory_bytes: u64) -> usize {
    // A generation more: of those that do not walk.
    let files = memory_bytes / FILE_BYTES / (2 * (READERS_MAX as u64 + 1));
    files.clamp(FILES.0, FILES.1) as usize
}

fn mix(dataset: u32, body: u64) -> u32 {
    let mixed = (body ^ (u64::from(dataset) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

impl Visits {
    /// Takes about `memory_bytes` at most, and none before anything is read.
    pub fn new(memory_bytes: u64) -> Self {
        let known = Known {
            most: files_in(memory_bytes),
            ..Known::default()
        };
        Self {
            known: Mutex::new(known),
        }
    }

    /// Takes about so much at most from now on. Who has more than its part of that begins anew.
    pub fn set_memory(&self, memory_bytes: u64) {
        let known = &mut *self.known.lock();
        known.most = files_in(memory_bytes);
        let most = known.most;
        let all = known.readers.values_mut().map(|reader| &mut reader.files);
        for files in all.chain([&mut known.others]) {
            if files.newest.len().max(files.older.len()) > most {
                *files = Memory::default();
            }
        }
    }

    /// What it takes at most, about.
    #[cfg(test)]
    fn memory_bytes(&self) -> u64 {
        let counted = COUNTED_MAX * size_of::<(u32, Counted)>();
        (self.known.lock().most as u64 * FILE_BYTES) * 2 * (READERS_MAX as u64 + 1) + counted as u64
    }

    /// A reader begins to read a file; how that counts, and what is to be taken back since it turns out to walk.
    pub fn begin(&self, reader: u32, dataset: u32, body: u64, minutes: u32) -> (Visit, Vec<Counted>) {
        let file = mix(dataset, body);
        let known = &mut *self.known.lock();
        known.visits += 1;
        if known.readers.len() >= READERS_MAX && !known.readers.contains_key(&reader) {
            let oldest = known.readers.iter().min_by_key(|(_, reader)| reader.last);
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                known.readers.remove(&oldest);
            }
        }
        let own = known.readers.entry(reader).or_default();
        if minutes > own.last_minutes.saturating_add(IDLE_MINUTES) {
            *own = Reader::default();
        }
        (own.last, own.last_minutes) = (known.visits, minutes);
        if own.files.remember(file, known.most) {
            return (Visit::Counts, Vec::new());
        }
        if own.first_visits >= WALK {
            return (Visit::Passes, Vec::new());
        }
        own.first_visits += 1;
        if own.first_visits >= WALK {
            // It was no use of any of them.
            let passed = own.files.newest.iter().chain(&own.files.older);
            passed.for_each(|file| known.others.forget(*file));
            return (Visit::Passes, known.take_back(Some(reader)));
        }
        // Who reads so few files may be one of many that walk together.
        if minutes != known.minute {
            known.walked_before = minutes == known.minute + 1 && known.first_visits >= WALK;
            (known.minute, known.first_visits) = (minutes, 0);
        }
        if known.others.remember(file, known.most) {
            return (Visit::Undecided, Vec::new());
        }
        known.first_visits = known.first_visits.saturating_add(1);
        match known.first_visits.cmp(&WALK) {
            std::cmp::Ordering::Less if !known.walked_before => (Visit::Undecided, Vec::new()),
            std::cmp::Ordering::Equal => (Visit::Passes, known.take_back(None)),
            _ => (Visit::Passes, Vec::new()),
        }
    }

    /// This was counted of a visit of which it is not known yet whether it only passes.
    pub fn note(&self, reader: u32, counted: Counted) {
        let known = &mut *self.known.lock();
        if known.counted.len() >= COUNTED_MAX {
            known.counted.drain(..COUNTED_MAX / 2);
        }
        known.counted.push((reader, counted));
    }
}

impl Known {
    /// What was counted of a reader, or of all.
    fn take_back(&mut self, reader: Option<u32>) -> Vec<Counted> {
        let mut taken = Vec::new();
        self.counted.retain(|(whose, counted)| {
            let is_taken = reader.is_none_or(|reader| reader == *whose);
            if is_taken {
                taken.push(*counted);
            }
            !is_taken
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(
        visits: &Visits,
        reader: u32,
        files: impl Iterator<Item = u64>,
        minutes: u32,
    ) -> (usize, usize) {
        let (mut counted, mut taken) = (0, 0);
        for body in files {
            let (visit, back) = visits.begin(reader, 1, body, minutes);
            taken += back.len();
            if visit == Visit::Undecided {
                visits.note(
                    reader,
                    Counted::Region {
                        dataset: 1,
                        body,
                        region: 0,
                        amount: 1.0,
                    },
                );
            }
            counted += usize::from(visit != Visit::Passes);
        }
        (counted, taken)
    }

    #[test]
    fn a_walk_over_many_files_leaves_nothing_and_who_comes_back_counts() {
        let visits = Visits::new(1 << 20);
        for reader in 1..6 {
            // Minutes apart, so that none is taken for part of another one.
            let (counted, taken) = amounts(&visits, reader, 0..5000, 10 * reader);
            assert_eq!(counted, taken, "reader {reader}");
        }
        // Also of the one that walks: what it comes back to is used.
        assert_eq!(amounts(&visits, 5, 4990..5000, 51), (10, 0));
        // And others that read a few of the same.
        assert_eq!(amounts(&visits, 9, 100..110, 60), (10, 0));
    }

    #[test]
    fn who_reads_few_files_often_never_walks() {
        let visits = Visits::new(1 << 20);
        for minute in 0..100 {
            assert_eq!(amounts(&visits, 1, 0..50, minute).1, 0);
        }
        assert_eq!(amounts(&visits, 1, 0..50, 100), (50, 0));
        // Nor do many processes that read the same files.
        for process in 2..1000 {
            assert_eq!(amounts(&visits, process, 0..20, 100), (20, 0), "{process}");
        }
    }

    #[test]
    fn processes_that_read_a_file_each_walk_together() {
        let visits = Visits::new(1 << 20);
        // What one that walks by itself has passed tells nothing.
        amounts(&visits, 1, 0..1000, 4);
        let (mut counted, mut taken) = (0, 0);
        for process in 0..1000 {
            // Minutes pass meanwhile.
            let minutes = 5 + process / 300;
            let (more, back) = amounts(&visits, 100 + process, [u64::from(process)].into_iter(), minutes);
            (counted, taken) = (counted + more, taken + back);
        }
        assert_eq!((counted, taken), (WALK - 1, WALK - 1));
        // Also right behind others of which not all was noted, since many files were visited in that minute.
        let visits = Visits::new(1 << 20);
        amounts(&visits, 1, 0..1000, 4);
        amounts(&visits, 2, (0..1000).rev(), 4);
        let one_each = (0..1000).map(|at| amounts(&visits, 100 + at, [u64::from(at)].into_iter(), 4).0);
        assert_eq!(one_each.sum::<usize>(), 0);
        // In ten minutes they would not have.
        let visits = Visits::new(1 << 20);
        for process in 0..1000u32 {
            let (more, back) = amounts(
                &visits,
                100 + process,
                [u64::from(process)].into_iter(),
                process / 50,
            );
            assert_eq!((more, back), (1, 0));
        }
    }

    #[test]
    fn memory_is_bounded() {
        for bytes in [0, 1 << 20, 1 << 30] {
            let visits = Visits::new(bytes);
            (0..200_000u64).for_each(|at| drop(visits.begin(at as u32 % 40, 1, at, 1)));
            // Also when it is told to take less.
            let most = match bytes {
                0 => visits.known.lock().most,
                _ => {
                    visits.set_memory(bytes / 16);
                    files_in(bytes / 16)
                }
            };
            let known = visits.known.lock();
            assert_eq!(known.most, most);
            assert!(known.readers.len() <= READERS_MAX);
            let all = known
                .readers
                .values()
                .map(|reader| &reader.files)
                .chain([&known.others]);
            for files in all {
                assert!(files.newest.len() <= most && files.older.len() <= most);
            }
            assert!(known.counted.len() <= COUNTED_MAX);
        }
        assert!(Visits::new(1 << 20).memory_bytes() <= (1 << 20) + (64 << 10));
    }

    #[test]
    fn the_number_of_a_process_is_used_again() {
        let visits = Visits::new(1 << 20);
        amounts(&visits, 1, 0..100, 1);
        assert_eq!(visits.begin(1, 1, 1000, 2).0, Visit::Passes);
        assert_eq!(visits.begin(1, 1, 1001, 3 + IDLE_MINUTES).0, Visit::Undecided);
    }
}
