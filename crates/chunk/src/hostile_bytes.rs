//! Chunk headers, records, batches, roots and their copies from any bytes: see `fuzzing.rs`.

use std::sync::Arc;

use terrace_codec::Writer;
use terrace_device::{MemoryDevice, SeededRandomness};
use terrace_fuzz::fuzz;
use terrace_meta::{Key, Operation};
use terrace_pool::{CreateOptions, Parallelism, Pool, SegmentId, TierSettings};
use terrace_store::{ChunkId, Owner, Trial};

use crate::{
    ChunkStore, Options,
    encoding::{
        ChunkHeader, ChunkRecord, Counters, JOINED, Location, compression, encode_batch, encode_root_copy,
        head_block,
    },
    fuzzing,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn headers() {
    let header = ChunkHeader {
        id: ChunkId(9),
        owner: Owner {
            dataset: 3,
            object: 4,
            block: 5,
            checkpoint: 6,
        },
        compression: compression::RAW,
        length: 70,
        payload: 70,
        hash: [5; 32],
        distance: JOINED,
    };
    let apart = ChunkHeader {
        distance: 5000,
        ..header.clone()
    };
    let samples = [&header, &apart].map(|header| header.encode().to_vec()).to_vec();
    fuzz(
        HERE,
        "header",
        samples,
        Some(&fuzzing::seal_header),
        &mut fuzzing::header,
    );
}

#[test]
fn head_blocks() {
    let mut block = vec![0; head_block::BLOCK];
    head_block::begin(&mut block, &fuzzing::POOL);
    for number in 0..head_block::SLOTS {
        let distance = (1 + number) * head_block::BLOCK;
        let header = ChunkHeader::raw(number as u64, 4096, distance as u32);
        block[head_block::slot(number)].copy_from_slice(&header.encode());
    }
    fuzz(
        HERE,
        "heads",
        vec![block],
        Some(&fuzzing::seal_head_block),
        &mut fuzzing::head_block,
    );
}

#[test]
fn records() {
    let segment = SegmentId { device: 1, index: 7 };
    let record = ChunkRecord {
        compression: compression::RAW,
        length: 9000,
        payload: 9000,
        hash: [1; 32],
        locations: vec![Location::joined(segment, 4096); 2],
        sums: vec![1, 2, 3],
    };
    let compressed = ChunkRecord {
        compression: compression::LZ4,
        payload: 500,
        ..record.clone()
    };
    let mut apart = record.clone();
    apart.locations[1].payload += 4096;
    let samples = vec![record.encode(), compressed.encode(), apart.encode()];
    fuzz(HERE, "record", samples, None, &mut fuzzing::record);
}

#[test]
fn batches() {
    let mut writer = Writer::new();
    let operations = vec![
        (Key::new(b"\x01key"), Operation::Put(b"value"[..].into())),
        (Key::new(b"\x02key"), Operation::Add(-3)),
        (Key::new(b"\x20gone"), Operation::Delete),
    ];
    for sequence in 5..8 {
        encode_batch(&mut writer, sequence, &Counters::default(), 40, &operations);
    }
    let samples = vec![writer.into_bytes()];
    fuzz(HERE, "batches", samples, None, &mut fuzzing::batches);
}

#[test]
fn compressed_content() {
    let content = b"a line that comes again and again\n".repeat(300);
    let samples = [
        terrace_store::Compression::Lz4,
        terrace_store::Compression::Zstd(3),
    ]
    .map(|kind| {
        let mut scratch = compression::Scratch::default();
        assert_ne!(
            compression::compress(&content, kind, Trial::Untried, &mut scratch),
            compression::RAW
        );
        scratch.output
    })
    .to_vec();
    assert_eq!(content.len(), fuzzing::CONTENT_BYTES);
    fuzz(HERE, "content", samples, None, &mut fuzzing::content);
}

#[test]
fn roots() {
    let device: Arc<dyn terrace_device::Device> = Arc::new(MemoryDevice::new("disk", 32 << 20));
    let tier = TierSettings::named("only");
    let options = CreateOptions {
        name: "pool".into(),
        tiers: vec![(tier, vec![device])],
        properties: Default::default(),
        segment_bytes: Some(1 << 20),
        created_nanoseconds: 1,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Arc::new(Pool::create(options, &SeededRandomness::new(1)).expect("a pool"));
    let store = ChunkStore::create(
        pool.clone(),
        Options {
            threads: 0,
            ..Options::default()
        },
    )
    .expect("a store");
    store.close().expect("closes");
    let (samples, _) = pool.root_payloads();
    let copies = samples.iter();
    let copies = copies
        .map(|payload| encode_root_copy(&fuzzing::POOL, payload))
        .collect();
    fuzz(HERE, "root", samples, None, &mut |bytes| {
        fuzzing::root_of(bytes, &pool);
        fuzzing::root(bytes);
    });
    fuzz(
        HERE,
        "root-copy",
        copies,
        Some(&fuzzing::seal_root_copy),
        &mut fuzzing::root_copy,
    );
}
