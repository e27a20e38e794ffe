//! Many keys at once: what they need is read together, and is as good as what is read one by one.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_meta::{
    Extent, ExtentError, ExtentRead, ExtentStorage, MemoryExtents, MetaError, Operation, Options, Tree,
};

/// Two copies, of which the first is preferred. Counts what is asked for.
struct Counting {
    first: Arc<MemoryExtents>,
    second: Arc<MemoryExtents>,
    asked: Mutex<Asked>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Asked {
    /// Reads by themselves.
    alone: usize,
    /// Calls for several reads, and the reads and bytes of each.
    together: Vec<(usize, u64)>,
    /// Reads of one certain copy.
    copies: usize,
}

impl Counting {
    fn taken(&self) -> Asked {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl ExtentStorage for Counting {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        let extent = self.first.write(bytes)?;
        assert_eq!(extent, self.second.write(bytes)?);
        Ok(extent)
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        self.asked.lock().alone += 1;
        self.first.read(extent, offset, length)
    }

    fn read_many(&self, reads: &[ExtentRead]) -> Vec<Result<Bytes, ExtentError>> {
        let bytes = reads.iter().map(|read| u64::from(read.length)).sum();
        self.asked.lock().together.push((reads.len(), bytes));
        let each = reads.iter();
        each.map(|read| self.first.read(read.extent, read.offset, read.length))
            .collect()
    }

    fn read_copy(
        &self,
        copy: u32,
        extent: Extent,
        offset: u32,
        length: u32,
    ) -> Option<Result<Bytes, ExtentError>> {
        self.asked.lock().copies += 1;
        let copies = [&self.first, &self.second];
        Some(copies.get(copy as usize)?.read(extent, offset, length))
    }

    fn release(&self, extents: &[Extent]) {
        self.first.release(extents);
        self.second.release(extents);
    }

    fn sync(&self) -> Result<(), ExtentError> {
        Ok(())
    }
}

const KEYS: u32 = 6000;
const VALUE_BYTES: usize = 600;

fn key(number: u32) -> Bytes {
    Bytes::from(format!("record/{number:06}"))
}

fn value(number: u32, seed: u32) -> Vec<u8> {
    vec![(number + seed) as u8; VALUE_BYTES]
}

/// A tree of two runs: of every key, and of every third anew. What is asked for is counted from here on; nothing is in the
/// cache, which holds `cache_bytes`.
fn sample(cache_bytes: usize) -> (Arc<Counting>, Tree) {
    let storage = Arc::new(Counting {
        first: Arc::default(),
        second: Arc::default(),
        asked: Mutex::default(),
    });
    let options = Options {
        memory_bytes: 64 << 20,
        block_cache_bytes: cache_bytes,
        table_bytes: 256 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    let put = |number, seed| (key(number), Operation::Put(value(number, seed).into()));
    let first: Vec<_> = (0..KEYS).map(|number| put(number, 1)).collect();
    let second: Vec<_> = (0..KEYS).step_by(3).map(|number| put(number, 2)).collect();
    for (sequence, batch) in [(1, first), (2, second)] {
        tree.apply(sequence, batch).expect("applies");
        tree.seal();
        while tree.flushed_sequence() < sequence {
            tree.step(1 << 20).expect("steps");
        }
    }
    let manifest = tree.manifest().expect("a manifest");
    assert_eq!(tree.usage().runs, 2);
    let tree = Tree::open(storage.clone(), Some(&manifest), options).expect("opens");
    storage.taken();
    (storage, tree)
}

fn expected(number: u32) -> Option<Vec<u8>> {
    (number < KEYS).then(|| value(number, if number.is_multiple_of(3) { 2 } else { 1 }))
}

fn check(tree: &Tree, numbers: impl IntoIterator<Item = u32>) -> Result<(), MetaError> {
    let numbers: Vec<u32> = numbers.into_iter().collect();
    let keys: Vec<Bytes> = numbers.iter().map(|number| key(*number)).collect();
    let found = tree.get_many(&keys)?;
    for (number, found) in numbers.into_iter().zip(found) {
        assert_eq!(
            found.map(|found| found.to_vec()),
            expected(number),
            "key {number}"
        );
    }
    Ok(())
}

#[test]
fn heads_and_blocks_of_a_run_are_read_in_one_call_each() {
    let (storage, tree) = sample(16 << 20);
    // Far apart: some twenty tables of the older run, and seven of the newer one.
    check(&tree, (0..KEYS).step_by(100)).expect("reads");
    let asked = storage.taken();
    assert_eq!((asked.alone, asked.copies), (0, 0), "{asked:?}");
    assert_eq!(asked.together.len(), 4, "heads and blocks of two runs: {asked:?}");
    let reads: usize = asked.together.iter().map(|(reads, _)| reads).sum();
    assert!(reads > 60, "{asked:?}");
    // Everything is in the cache now.
    check(&tree, (0..KEYS).step_by(100)).expect("reads");
    assert_eq!(storage.taken(), Asked::default());
}

#[test]
fn blocks_side_by_side_are_read_in_one_piece() {
    let (storage, tree) = sample(16 << 20);
    check(&tree, 3000..3200).expect("reads");
    let asked = storage.taken();
    let reads = asked.alone + asked.together.iter().map(|(reads, _)| reads).sum::<usize>();
    // Two heads, and some 170 KiB of blocks: each by itself they would be forty reads.
    assert!(reads <= 8, "{asked:?}");
}

#[test]
fn what_is_held_at_a_time_is_bounded() {
    for cache_bytes in [0, 64 << 10, 16 << 20] {
        let (storage, tree) = sample(cache_bytes);
        check(&tree, (0..KEYS + 50).rev()).expect("reads");
        let asked = storage.taken();
        let most = asked.together.iter().map(|(_, bytes)| *bytes).max();
        assert!(most <= Some(3 << 20), "{asked:?}");
        let all: u64 = asked.together.iter().map(|(_, bytes)| *bytes).sum();
        assert!(all > 4 << 20, "in several stretches: {asked:?}");
    }
}

#[test]
fn what_is_damaged_is_read_from_the_other_copy() {
    let (storage, tree) = sample(16 << 20);
    for extent in storage.first.held() {
        for offset in (0..extent.bytes).step_by(97) {
            storage.first.flip(extent, offset, 1);
        }
    }
    check(&tree, (0..KEYS).step_by(7)).expect("the second copy is sound");
    assert!(storage.taken().copies > 0);
    // What is in the cache is sound.
    check(&tree, (0..KEYS).step_by(7)).expect("reads");
    assert_eq!(storage.taken(), Asked::default());
}

#[test]
fn what_cannot_be_read_at_once_is_read_from_the_other_copy() {
    let (storage, tree) = sample(16 << 20);
    storage.first.fail_reads_after(Some(5));
    check(&tree, (0..KEYS).step_by(7)).expect("the second copy can be read");
    assert!(storage.taken().copies > 0);
}

#[test]
fn damage_in_all_copies_is_the_error_of_the_key_alone() {
    let (storage, tree) = sample(0);
    let extent = storage.first.held()[0];
    // Behind the preface: in the first blocks, which hold the first keys.
    for copy in [&storage.first, &storage.second] {
        assert!(copy.flip(extent, 600, 1));
    }
    let alone = tree.get(&key(1)).expect_err("damaged");
    assert!(matches!(alone, MetaError::Damaged { .. }), "{alone}");
    assert_eq!(check(&tree, [5000, 1, 2500]).expect_err("damaged"), alone);
    check(&tree, (100..KEYS).step_by(11)).expect("others are not concerned");

    let lost = |copy: &MemoryExtents| copy.fail_reads_after(Some(0));
    lost(&storage.first);
    lost(&storage.second);
    let alone = tree.get(&key(4000)).expect_err("lost");
    assert!(matches!(alone, MetaError::Unreadable { .. }), "{alone}");
    assert_eq!(check(&tree, [4000]).expect_err("lost"), alone);
}
