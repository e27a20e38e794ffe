//! Measures the store on a file: bulk writes, reads, small fsyncs. `cargo run --release -p terrace-chunk --example store_rates [DIR]`.

use std::{sync::Arc, time::Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use terrace_chunk::{ChunkStore, Options};
use terrace_device::{Device, FileDevice, SystemRandomness};
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
use terrace_store::{Batch, ChunkId, Compression, Dedup, Flow, Owner, Piece, Placement, Store, Trial};

type Failure = Box<dyn std::error::Error>;

fn piece(content: &[u8]) -> Piece<'_> {
    Piece {
        content,
        compression: Compression::Lz4,
        trial: Trial::Untried,
        dedup: Dedup::On,
        placement: Placement::Landing(Flow::Random),
        owner: Owner::default(),
        privileged: false,
    }
}

fn rate(what: &str, bytes: usize, operations: usize, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!(
        "{what:28} {:8.1} MB/s {:10.0} /s {:8.1} µs each",
        bytes as f64 / seconds / 1e6,
        operations as f64 / seconds,
        seconds * 1e6 / operations as f64
    );
}

fn write_all(store: &ChunkStore, data: &[u8], chunk: usize) -> Result<Vec<ChunkId>, Failure> {
    let mut ids = Vec::new();
    for part in data.chunks(4 << 20) {
        let pieces: Vec<_> = part.chunks(chunk).map(piece).collect();
        let mut batch = Batch::new();
        for written in store.write_chunks(&pieces)? {
            ids.push(written.id);
            batch.reference(written.id, 32);
            batch.hold(written);
        }
        store.commit(batch)?;
    }
    store.flush(store.newest())?;
    Ok(ids)
}

fn main() -> Result<(), Failure> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "/tmp".into());
    let path = std::path::Path::new(&directory).join(format!("rates-{}.img", std::process::id()));
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(&path, Some(4 << 30))?);
    let options = CreateOptions {
        name: "rates".into(),
        tiers: vec![(TierSettings::named("only"), vec![device])],
        properties: Default::default(),
        segment_bytes: None,
        created_nanoseconds: 0,
        force: false,
        parallelism: Parallelism::Threads,
    };
    let pool = Arc::new(Pool::create(options, &SystemRandomness)?);
    let store = ChunkStore::create(pool, Options::default())?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut data = vec![0u8; 512 << 20];
    rng.fill(&mut data[..]);

    let start = Instant::now();
    let ids = write_all(&store, &data, 128 << 10)?;
    rate("write 128 KiB chunks", data.len(), ids.len(), start);

    let start = Instant::now();
    write_all(&store, &data, 128 << 10)?;
    rate("write them again (dedup)", data.len(), ids.len(), start);

    let start = Instant::now();
    for id in &ids {
        store.read_chunk(*id)?;
    }
    rate("read 128 KiB chunks", data.len(), ids.len(), start);

    let start = Instant::now();
    for run in ids.chunks(8) {
        for result in store.read_chunks(run) {
            result?;
        }
    }
    rate("read 8 chunks at once", data.len(), ids.len(), start);

    let start = Instant::now();
    for _ in 0..20_000 {
        let id = ids[rng.random_range(0..ids.len())];
        store.read_chunk_part(id, rng.random_range(0..32) * 4096, 4096)?;
    }
    rate("random 4 KiB reads", 20_000 * 4096, 20_000, start);

    let small = &data[..64 << 20];
    let mut changed = small.to_vec();
    changed.iter_mut().for_each(|byte| *byte ^= 0x55);
    let start = Instant::now();
    let few = write_all(&store, &changed, 4096)?;
    rate("write 4 KiB chunks", changed.len(), few.len(), start);

    let start = Instant::now();
    let mut times = Vec::new();
    for n in 0..5000u64 {
        let one = Instant::now();
        let mut content = [0u8; 4096];
        rng.fill(&mut content[..]);
        let mut batch = Batch::new();
        for written in store.write_chunks(&[piece(&content)])? {
            batch.reference(written.id, 1);
            batch.hold(written);
        }
        batch.put([&[0x30][..], &n.to_be_bytes()].concat(), vec![0; 40]);
        let sequence = store.commit(batch)?;
        store.flush(sequence)?;
        times.push(one.elapsed());
    }
    rate("4 KiB write + fsync", 5000 * 4096, 5000, start);
    times.sort_unstable();
    println!("  p50 {:?}, p99 {:?}", times[2500], times[4950]);

    let start = Instant::now();
    store.checkpoint()?;
    println!("checkpoint {:?}", start.elapsed());
    drop(store);
    std::fs::remove_file(path)?;
    Ok(())
}
