//! Several reads of a volume at once give what each of them gives: over what was written in order and at random, over holes
//! and over what is not committed yet, also where they overlap or end outside.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use terrace_cache::{Budget, ReadAhead};
use terrace_dataset::{BlockRead, Datasets, Environment, FsError, NewDataset, Volume};
use terrace_device::ManualClock;
use terrace_store::{ChunkFill, ChunkId, ChunkPart, MemoryStore, Store, StoreError};

const BYTES: usize = 8 << 20;

/// Numbers that only look random (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// A store in RAM that counts how often it is asked for chunks, and how many bytes of them it gave.
struct Counted {
    below: MemoryStore,
    asked: AtomicUsize,
    bytes: AtomicUsize,
    /// Of these, those that it put where they were wanted.
    past: AtomicUsize,
}

impl Counted {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            below: MemoryStore::new(1 << 30),
            asked: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            past: AtomicUsize::new(0),
        })
    }

    fn gave(&self, content: &Result<Bytes, StoreError>) {
        let bytes = content.as_ref().map_or(0, Bytes::len);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl Store for Counted {
    terrace_store::in_memory!(below: get scan write_chunks chunk_info commit flush newest reserve_beside reserve_always space rewrite);

    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        self.asked.fetch_add(1, Relaxed);
        let content = self.below.read_chunk(id);
        self.gave(&content);
        content
    }
    fn read_chunk_parts(&self, parts: &[ChunkPart]) -> Vec<Result<Bytes, StoreError>> {
        self.asked.fetch_add(1, Relaxed);
        let contents = self.below.read_chunk_parts(parts);
        contents.iter().for_each(|content| self.gave(content));
        contents
    }
    fn fill_from_chunks(&self, fills: &mut [ChunkFill<'_>]) {
        self.asked.fetch_add(1, Relaxed);
        self.below.fill_from_chunks(fills);
        let bytes = fills.iter().filter_map(|fill| fill.filled).sum();
        self.bytes.fetch_add(bytes, Relaxed);
        self.past.fetch_add(bytes, Relaxed);
    }
}

fn volume(memory_bytes: u64) -> (Datasets, Arc<Volume>) {
    volume_of("128K", Arc::new(MemoryStore::new(1 << 30)), memory_bytes)
}

fn volume_of(chunk_size: &str, store: Arc<dyn Store>, memory_bytes: u64) -> (Datasets, Arc<Volume>) {
    let (_, datasets, volume) = served_volume(chunk_size, store, memory_bytes);
    (datasets, volume)
}

fn served_volume(
    chunk_size: &str,
    store: Arc<dyn Store>,
    memory_bytes: u64,
) -> (Arc<Environment>, Datasets, Arc<Volume>) {
    let budget = Arc::new(Budget::new(memory_bytes).without_delays());
    let environment = Environment::with_budget(store, Arc::new(ManualClock::new(1)), budget);
    let environment = Arc::new(environment);
    let datasets = Datasets::open(environment.clone(), "pool").unwrap();
    let new = NewDataset {
        volume_bytes: Some(BYTES as u64),
        sparse: true,
        properties: vec![("chunk_size".into(), chunk_size.into())],
        ..NewDataset::default()
    };
    datasets.create("pool/v", &new).unwrap();
    let volume = datasets.volume("pool/v").unwrap();
    (environment, datasets, volume)
}

#[test]
fn reads_at_once_give_what_each_of_them_gives() {
    // With room for everything in RAM, and with much less.
    for memory_bytes in [64 << 20, 4 << 20] {
        let (_datasets, volume) = volume(memory_bytes);
        let mut numbers = Numbers(memory_bytes);
        let mut content = vec![0; BYTES];
        let mut write = |numbers: &mut Numbers, from: usize, length: usize| {
            let fill: Vec<u8> = (0..length).map(|_| numbers.below(256) as u8).collect();
            volume.write(from as u64, &fill).unwrap();
            content[from..from + length].copy_from_slice(&fill);
            content.clone()
        };
        write(&mut numbers, 0, BYTES / 2);
        volume.flush().unwrap();
        let mut expected = Vec::new();
        for round in 0..12 {
            for _ in 0..40 {
                let (from, length) = (numbers.below(BYTES / 4096 * 3 / 4) * 4096, 4096);
                expected = write(&mut numbers, from, length);
            }
            if round % 3 != 2 {
                volume.flush().unwrap();
            }
            let places: Vec<(usize, usize)> = (0..1 + numbers.below(20))
                .map(|at| {
                    let length = match (round + at) % 5 {
                        0 => 4096,
                        1 => 1 + numbers.below(20_000),
                        2 => 128 << 10,
                        3 => 1 << 20,
                        _ => 8192,
                    };
                    let from = numbers.below(BYTES - length);
                    (if at % 2 == 0 { from / 4096 * 4096 } else { from }, length)
                })
                .collect();
            let mut buffers: Vec<Vec<u8>> = places.iter().map(|(_, length)| vec![1; *length]).collect();
            let mut reads: Vec<BlockRead<'_>> = places
                .iter()
                .zip(&mut buffers)
                .map(|((from, _), buffer)| BlockRead::new(*from as u64, buffer))
                .collect();
            volume.read_many(&mut reads);
            assert!(reads.iter().all(|read| read.outcome.is_ok()));
            for ((from, length), buffer) in places.iter().zip(&buffers) {
                assert!(
                    expected[*from..from + length] == buffer[..],
                    "round {round}: {length} bytes at {from}"
                );
            }
        }
    }
}

#[test]
fn one_that_ends_outside_fails_alone() {
    let (_datasets, volume) = volume(64 << 20);
    volume.write(4096, &[7; 4096]).unwrap();
    volume.flush().unwrap();
    let (mut one, mut two, mut three) = ([1; 4096], [1; 4096], [1; 4096]);
    let mut reads = [
        BlockRead::new(4096, &mut one),
        BlockRead::new(BYTES as u64 - 512, &mut two),
        BlockRead::new(u64::MAX, &mut three),
    ];
    volume.read_many(&mut reads);
    assert!(reads[0].outcome.is_ok());
    assert!(matches!(reads[1].outcome, Err(FsError::Invalid)));
    assert!(matches!(reads[2].outcome, Err(FsError::Invalid)));
    assert_eq!(one, [7; 4096]);
}

/// However small its chunks are, a volume that is read in order is fetched in long stretches.
#[test]
fn small_chunks_are_read_ahead_together() {
    for (chunk_size, most) in [("128K", 8), ("16K", 12), ("4K", 36)] {
        let store = Counted::new();
        // In RAM there is room for what was fetched.
        let (_datasets, volume) = volume_of(chunk_size, store.clone(), 64 << 20);
        let mut numbers = Numbers(1);
        let content: Vec<u8> = (0..BYTES).map(|_| numbers.below(256) as u8).collect();
        volume.write(0, &content).unwrap();
        volume.flush().unwrap();
        store.asked.store(0, Relaxed);
        let mut buffer = vec![0; 32 << 10];
        for from in (0..BYTES).step_by(buffer.len()) {
            volume.read(from as u64, &mut buffer).unwrap();
            assert!(
                content[from..from + buffer.len()] == buffer[..],
                "{chunk_size} at {from}"
            );
        }
        let asked = store.asked.load(Relaxed);
        assert!(asked <= most, "chunks of {chunk_size}: asked {asked} times");
    }
}

/// Who reads a little in order here and a little there has not much fetched that he does not come to.
#[test]
fn little_is_fetched_in_vain_for_short_runs() {
    const RUN: usize = 4;
    const STEP: usize = 8192;
    let store = Counted::new();
    // Room for a part only: what was fetched in vain does not serve the next run.
    let (_datasets, volume) = volume_of("16K", store.clone(), 16 << 20);
    let content = filled(&volume);
    store.bytes.store(0, Relaxed);
    let mut numbers = Numbers(3);
    let mut buffer = vec![0; STEP];
    let runs = 100;
    for _ in 0..runs {
        let start = numbers.below(BYTES / STEP - RUN) * STEP;
        for from in (start..start + RUN * STEP).step_by(STEP) {
            volume.read(from as u64, &mut buffer).unwrap();
            assert!(content[from..from + STEP] == buffer[..], "{from}");
        }
    }
    let (bytes, read) = (store.bytes.load(Relaxed), runs * RUN * STEP);
    assert!(bytes <= 4 * read, "{bytes} fetched for {read}");
}

/// Fills a volume with bytes that do not repeat; what it holds.
fn filled(volume: &Volume) -> Vec<u8> {
    let mut numbers = Numbers(7);
    let content: Vec<u8> = (0..BYTES).map(|_| numbers.below(256) as u8).collect();
    volume.write(0, &content).unwrap();
    volume.flush().unwrap();
    content
}

/// With RAM for a part of the volume only, what was read ahead is still there when its reader comes.
#[test]
fn what_is_read_in_order_is_fetched_once_also_when_ram_is_full() {
    for (chunk_size, step) in [("16K", 32 << 10), ("16K", 4096), ("4K", 8192), ("128K", 32 << 10)] {
        let store = Counted::new();
        let (_datasets, volume) = volume_of(chunk_size, store.clone(), 16 << 20);
        let content = filled(&volume);
        let mut buffer = vec![0; step];
        for pass in 0..2 {
            store.bytes.store(0, Relaxed);
            for from in (0..BYTES).step_by(step) {
                volume.read(from as u64, &mut buffer).unwrap();
                assert!(content[from..from + step] == buffer[..], "{step} bytes at {from}");
            }
            let bytes = store.bytes.load(Relaxed);
            assert!(
                bytes <= BYTES + BYTES / 32,
                "pass {pass}, chunks of {chunk_size}, {step} bytes each: {bytes} fetched for {BYTES}"
            );
        }
    }
}

/// Lets the threads end, also when a test fails.
struct Closing<'a>(&'a ReadAhead);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The same with threads that read ahead: the reader waits for what is on its way instead of fetching it again.
#[test]
fn what_others_read_ahead_is_fetched_once() {
    const STEP: usize = 32 << 10;
    let store = Counted::new();
    let (environment, _datasets, volume) = served_volume("16K", store.clone(), 64 << 20);
    let content = filled(&volume);
    environment.cache.set_capacity(|| 8 << 20);
    let read_ahead = &environment.read_ahead;
    read_ahead.open();
    std::thread::scope(|scope| {
        let _closing = Closing(read_ahead);
        for _ in 0..2 {
            scope.spawn(|| read_ahead.serve());
        }
        let mut buffer = vec![0; STEP];
        for pass in 0..20 {
            store.bytes.store(0, Relaxed);
            for from in (0..BYTES).step_by(STEP) {
                volume.read(from as u64, &mut buffer).unwrap();
                assert!(content[from..from + STEP] == buffer[..], "{from}");
            }
            let bytes = store.bytes.load(Relaxed);
            assert!(
                bytes <= BYTES + BYTES / 32,
                "pass {pass}: {bytes} fetched for {BYTES}"
            );
        }
    });
}

/// What was read in order belongs to the cache: with room for all of it, it is not fetched again.
#[test]
fn what_was_read_in_order_stays_while_there_is_room() {
    for step in [4096, 32 << 10, 1 << 20] {
        let store = Counted::new();
        let (_datasets, volume) = volume_of("16K", store.clone(), 128 << 20);
        let content = filled(&volume);
        let mut buffer = vec![0; step];
        for pass in 0..2 {
            store.bytes.store(0, Relaxed);
            for from in (0..BYTES).step_by(step) {
                volume.read(from as u64, &mut buffer).unwrap();
                assert!(content[from..from + step] == buffer[..], "{step} bytes at {from}");
            }
            let bytes = store.bytes.load(Relaxed);
            let most = if pass == 0 { BYTES + BYTES / 32 } else { 0 };
            assert!(bytes <= most, "pass {pass}, {step} bytes each: {bytes} fetched");
        }
    }
}

/// A large read passes a full cache by: it costs what it reads, and nothing that was kept. What is read again before long goes
/// through the cache; what is read in order, more than there is room for, does not, however often.
#[test]
fn large_reads_pass_a_full_cache_by_unless_they_come_again_soon() {
    const STEP: usize = 1 << 20;
    let store = Counted::new();
    let (_datasets, volume) = volume_of("16K", store.clone(), 10 << 20);
    let mut content = filled(&volume);
    // Here and there something was written over.
    let mut numbers = Numbers(11);
    for _ in 0..300 {
        let (from, fill) = (numbers.below(BYTES / 4096) * 4096, numbers.below(256) as u8);
        volume.write(from as u64, &[fill; 4096]).unwrap();
        content[from..from + 4096].fill(fill);
    }
    volume.flush().unwrap();
    let mut buffer = vec![0; STEP];
    let mut read = |from: usize| {
        store.bytes.store(0, Relaxed);
        store.past.store(0, Relaxed);
        volume.read(from as u64, &mut buffer).unwrap();
        assert!(content[from..from + STEP] == buffer[..], "{from}");
        (store.bytes.load(Relaxed), store.past.load(Relaxed))
    };
    // The first two fill the cache.
    for _ in 0..2 {
        for from in (0..BYTES).step_by(STEP) {
            let _ = read(from);
        }
    }
    for pass in 0..5 {
        let (mut bytes, mut past) = (0, 0);
        for from in (0..BYTES).step_by(STEP) {
            let got = read(from);
            (bytes, past) = (bytes + got.0, past + got.1);
        }
        assert!(bytes <= BYTES, "pass {pass}: {bytes} fetched");
        assert!(bytes > BYTES / 4, "there is no room for so much: {bytes}");
        assert!(past > bytes / 10 * 9, "pass {pass}: {past} of {bytes} went past");
    }
    let _ = read(3 << 20);
    assert_eq!(read(3 << 20).1, 0, "what comes again goes through the cache");
}

/// What large reads come back to ends up in RAM, though the cache was full of something else: if it is not more than the cache
/// remembers the names of (half as many as it can hold chunks of 64 KiB), so here of large chunks.
#[test]
fn what_large_reads_come_back_to_ends_up_in_ram() {
    const STEP: usize = 1 << 20;
    const HOT_BYTES: usize = 2 << 20;
    let store = Counted::new();
    let (_datasets, volume) = volume_of("128K", store.clone(), 10 << 20);
    let content = filled(&volume);
    let mut buffer = vec![0; STEP];
    let mut read = |start: usize| {
        store.bytes.store(0, Relaxed);
        for from in (start..BYTES).step_by(STEP) {
            volume.read(from as u64, &mut buffer).unwrap();
            assert!(content[from..from + STEP] == buffer[..], "{from}");
        }
        store.bytes.load(Relaxed)
    };
    // What came first has the cache.
    (0..3).for_each(|_| assert!(read(0) > 0));
    let fetched: Vec<usize> = (0..8).map(|_| read(BYTES - HOT_BYTES)).collect();
    assert!(fetched[0] > HOT_BYTES / 2, "it was there before: {fetched:?}");
    let last: usize = fetched[6..].iter().sum();
    assert!(last == 0, "{fetched:?}");
}
