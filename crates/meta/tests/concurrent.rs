//! Readers beside a writer and the background steps: whole batches only, one state per scan, no extent pulled away.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use terrace_meta::{
    Extent, ExtentError, ExtentStorage, MemoryExtents, Operation, Options, Progress, Tree, decode_count,
    encode_count,
};

const KEYS: u64 = 1500;
const BATCHES: u64 = 150;

fn key(table: u8, number: u64) -> Bytes {
    let mut key = vec![table];
    key.extend_from_slice(&number.to_be_bytes());
    Bytes::from(key)
}

/// Every batch writes its number to all keys of table 1, moves one unit between two counts of table 2 (their sum
/// stays), and keeps exactly one key in table 3.
fn batch(number: u64) -> Vec<(Bytes, Operation)> {
    let mut operations: Vec<_> = (0..KEYS)
        .map(|key_number| {
            (
                key(1, key_number),
                Operation::Put(encode_count(number as i64).into()),
            )
        })
        .collect();
    operations.push((key(2, number % 7), Operation::Add(-1)));
    operations.push((key(2, number % 5), Operation::Add(1)));
    operations.push((key(3, number - 1), Operation::Delete));
    operations.push((key(3, number), Operation::Put(b"the one"[..].into())));
    operations
}

#[test]
fn readers_see_whole_batches_while_everything_moves() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 512 << 10,
        block_cache_bytes: 64 << 10,
        table_bytes: 8 << 10,
        ..Options::default()
    };
    let tree = Arc::new(Tree::open(storage.clone(), None, options).expect("an empty tree"));
    let mut first = batch(1);
    first.extend((0..7).map(|number| (key(2, number), Operation::Add(1000))));
    tree.apply(1, first).expect("applies");
    let done = AtomicBool::new(false);
    let applied = AtomicU64::new(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 2..=BATCHES {
                tree.apply(number, batch(number)).expect("applies");
                applied.store(number, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                for _ in 0..5 {
                    tree.step(24 << 10).expect("steps");
                }
                tree.manifest().expect("a manifest");
                storage.release(&tree.take_released());
            }
        });
        for reader in 0..2u64 {
            let (tree, done, applied) = (&tree, &done, &applied);
            scope.spawn(move || {
                let mut newest = 0;
                let mut rounds = 0;
                while !done.load(Ordering::SeqCst) || rounds < 3 {
                    rounds += 1;
                    let before = applied.load(Ordering::SeqCst);
                    let records = tree.scan(&[1], &[4], usize::MAX).expect("scans");
                    let (numbers, rest) = records.split_at(KEYS as usize);
                    let seen = decode_count(&numbers[0].1).expect("a count");
                    assert!(seen as u64 >= before, "a scan sees what was applied before it");
                    assert!(
                        numbers.iter().all(|(_, value)| decode_count(value) == Some(seen)),
                        "one batch"
                    );
                    let (sums, ones) = rest.split_at(rest.len() - 1);
                    let sum: i64 = sums
                        .iter()
                        .map(|(_, value)| decode_count(value).expect("a count"))
                        .sum();
                    assert_eq!(sum, 7000);
                    assert_eq!(ones[0].0, key(3, seen as u64));
                    for step in 0..50 {
                        let value = tree
                            .get(&key(1, (step * 31 + reader) % KEYS))
                            .expect("gets")
                            .expect("is there");
                        let value = decode_count(&value).expect("a count");
                        assert!(value >= newest.max(seen), "gets never go back");
                        newest = value;
                    }
                }
            });
        }
    });
    tree.seal();
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    tree.manifest().expect("a manifest");
    storage.release(&tree.take_released());
    let mut named = tree.extents();
    named.sort();
    assert_eq!(named, storage.held(), "nothing leaks when all readers are gone");
    let records = tree.scan(&[], &[], usize::MAX).expect("scans");
    assert_eq!(records.len(), KEYS as usize + 8);
}

/// Extents in memory that do something at the next sync.
#[derive(Default)]
struct AtSync {
    inner: MemoryExtents,
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl ExtentStorage for AtSync {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        self.inner.write(bytes)
    }
    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        self.inner.read(extent, offset, length)
    }
    fn release(&self, extents: &[Extent]) {
        self.inner.release(extents);
    }
    fn sync(&self) -> Result<(), ExtentError> {
        if let Some(hook) = self.hook.lock().expect("nobody panicked").take() {
            hook();
        }
        self.inner.sync()
    }
}

#[test]
fn who_asks_what_there_is_does_not_wait_for_a_manifest() {
    let storage = Arc::new(AtSync::default());
    let tree = Tree::open(storage.clone(), None, Options::default()).expect("an empty tree");
    let tree = Arc::new(tree);
    tree.apply(1, batch(1)).expect("applies");
    tree.seal();
    while tree.step(1 << 20).expect("steps") == Progress::More {}
    let (asked, answers) = (tree.clone(), Arc::new(AtomicU64::new(0)));
    let counted = answers.clone();
    *storage.hook.lock().expect("nobody panicked") = Some(Box::new(move || {
        let (sender, answered) = mpsc::channel();
        std::thread::spawn(move || {
            let named = asked.extents().len() as u64;
            let _ = sender.send((named + asked.usage().tables as u64, asked.described_sequence()));
        });
        // Much longer than it takes; who waits for the manifest waits for this.
        if let Ok((tables, 0)) = answered.recv_timeout(Duration::from_secs(20)) {
            counted.store(tables, Ordering::SeqCst);
        }
    }));
    tree.manifest().expect("a manifest");
    assert!(answers.load(Ordering::SeqCst) >= 2, "nobody was answered");
    assert_eq!(tree.described_sequence(), 1);
}
