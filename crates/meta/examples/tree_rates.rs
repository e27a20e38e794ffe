//! Prints what the tree does per second on this machine, with its extents in memory: the cost of the tree itself, per second of
//! processor time.
//!
//! `cargo run --release -p terrace-meta --example tree_rates -- [THOUSAND_RECORDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use terrace_meta::{MemoryExtents, MetaError, Operation, Options, Progress, Tree};

const BATCH: u64 = 200;

fn key(number: u64) -> [u8; 21] {
    let mut key = [0x21; 21];
    key[1..5].copy_from_slice(&1u32.to_be_bytes());
    key[5..13].copy_from_slice(&(number / 64).to_be_bytes());
    key[13..21].copy_from_slice(&(number % 64).to_be_bytes());
    key
}

fn report(what: &str, count: u64, start: Timer) {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what:<44} {:>9.0} k/s   {:>7.2} us each",
        count as f64 / seconds / 1e3,
        seconds * 1e6 / count as f64
    );
}

/// Processor time of the main thread where the system tells it, so that other load does not count; else time.
struct Timer(Instant, Option<Duration>);

impl Timer {
    fn start() -> Self {
        Self(Instant::now(), Self::processor())
    }

    fn processor() -> Option<Duration> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
    }

    fn elapsed(&self) -> Duration {
        match (self.1, Self::processor()) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => self.0.elapsed(),
        }
    }
}

/// Applies `count` operations in batches, doing a step whenever the tree asks for it.
fn load(
    tree: &Tree,
    sequence: &mut u64,
    count: u64,
    mut operation: impl FnMut(u64) -> (Bytes, Operation),
) -> Result<(), MetaError> {
    for batch in 0..count / BATCH {
        let operations = (0..BATCH).map(|nth| operation(batch * BATCH + nth)).collect();
        *sequence += 1;
        tree.apply(*sequence, operations)?;
        if batch % 16 == 0 && tree.pressure() > 0.5 {
            while tree.pressure() > 0.4 && tree.step(4 << 20)? == Progress::More {}
        }
    }
    Ok(())
}

fn settle(tree: &Tree) -> Result<(), MetaError> {
    tree.seal();
    while tree.step(4 << 20)? == Progress::More {}
    Ok(())
}

fn reads(tree: &Tree, records: u64, random: &mut SmallRng) -> Result<(), MetaError> {
    let start = Timer::start();
    for _ in 0..500_000 {
        let _ = tree.get(&key(random.random_range(0..records)))?;
    }
    report("gets of scattered keys, cached", 500_000, start);
    let start = Timer::start();
    for number in 0..500_000u64 {
        let mut absent = key(random.random_range(0..records));
        absent[20] ^= 0x40 | (number as u8 & 0x80);
        let _ = tree.get(&absent)?;
    }
    report("gets of absent keys", 500_000, start);

    let start = Timer::start();
    let mut seen = 0;
    let mut from = Vec::new();
    loop {
        let page = tree.scan(&from, &[], 1000)?;
        let Some((last, _)) = page.last() else { break };
        from = [last, &[0][..]].concat();
        seen += page.len() as u64;
    }
    report("scan of everything, 1000 at a time", seen, start);
    let start = Timer::start();
    for _ in 0..100_000 {
        let number = random.random_range(0..records);
        let _ = tree.scan(&key(number), &key(number + 16), 16)?;
    }
    report("short scans of 16", 100_000, start);
    Ok(())
}

fn main() -> Result<(), MetaError> {
    let thousand: u64 = std::env::args()
        .nth(1)
        .and_then(|argument| argument.parse().ok())
        .unwrap_or(2000);
    let records = thousand * 1000;
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 128 << 20,
        block_cache_bytes: 256 << 20,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options)?;
    let mut random = SmallRng::seed_from_u64(1);
    let mut sequence = 0;
    let value = Bytes::from(vec![7; 40]);

    let start = Timer::start();
    load(&tree, &mut sequence, 200_000, |number| {
        (
            Bytes::copy_from_slice(&key(number)),
            Operation::Put(value.clone().into()),
        )
    })?;
    report("puts in order, memory only", 200_000, start);
    let start = Timer::start();
    for _ in 0..500_000 {
        let _ = tree.get(&key(random.random_range(0..200_000)))?;
    }
    report("gets that hit memory (200 k records)", 500_000, start);

    let start = Timer::start();
    load(&tree, &mut sequence, records, |number| {
        (
            Bytes::copy_from_slice(&key(number)),
            Operation::Put(value.clone().into()),
        )
    })?;
    settle(&tree)?;
    report("puts in order, with flush and merges", records, start);

    let before = storage.counters().bytes_written;
    let start = Timer::start();
    load(&tree, &mut sequence, 2 * records, |_| {
        let number = random.random_range(0..records);
        (
            Bytes::copy_from_slice(&key(number)),
            Operation::Put(value.clone().into()),
        )
    })?;
    report("scattered overwrites, with flush and merges", 2 * records, start);
    println!(
        "    {} bytes written each",
        (storage.counters().bytes_written - before) / (2 * records)
    );
    println!("    {:?}", tree.usage());

    reads(&tree, records, &mut random)?;

    let start = Timer::start();
    settle(&tree)?;
    println!(
        "settling took {:.2} s; {:?}",
        start.elapsed().as_secs_f64(),
        tree.usage()
    );

    reads(&tree, records, &mut random)?;

    let start = Timer::start();
    load(&tree, &mut sequence, records, |_| {
        let mut key = [0x02; 9];
        key[1..].copy_from_slice(&random.random_range(0..records).to_be_bytes());
        (Bytes::copy_from_slice(&key), Operation::Add(1))
    })?;
    report("additions to scattered counts", records, start);
    let start = Timer::start();
    load(&tree, &mut sequence, records, |_| {
        let mut key = [0x03; 17];
        key[1..9].copy_from_slice(&random.random::<u64>().to_be_bytes());
        (
            Bytes::copy_from_slice(&key),
            Operation::Put(value.slice(..8).into()),
        )
    })?;
    report("puts of random hashes", records, start);
    let start = Timer::start();
    let manifest = tree.manifest()?;
    println!(
        "a manifest took {:.2} ms, {} bytes",
        start.elapsed().as_secs_f64() * 1e3,
        manifest.len()
    );
    Ok(())
}
