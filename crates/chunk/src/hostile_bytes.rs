//! Chunk headers, records, batches, roots and their copies from any bytes: never a panic; what decodes encodes to itself.

use std::sync::Arc;

use terrace_codec::Writer;
use terrace_device::{MemoryDevice, SeededRandomness};
use terrace_fuzz::fuzz;
use terrace_meta::{Key, Operation};
use terrace_pool::{CreateOptions, Parallelism, Pool, SegmentId, TierSettings};
use terrace_store::{ChunkId, Owner, Trial};

use crate::{
    ChunkStore, Options, compress,
    counters::Counters,
    header::{ChunkHeader, HEADER_BYTES, JOINED},
    heads,
    payload::{decode_batches, encode_batch},
    record::{ChunkRecord, Location, candidate_of_key, chunk_of_key, segment_of_key},
    root::{decode_root, replay_start},
    root_copy::{ROOT_COPY_HEADER_BYTES, decode_root_copy, encode_root_copy},
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
        compression: compress::RAW,
        length: 70,
        payload: 70,
        hash: [5; 32],
        distance: JOINED,
    };
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().max(HEADER_BYTES), 0);
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    };
    let apart = ChunkHeader {
        distance: 5000,
        ..header.clone()
    };
    let samples = [&header, &apart].map(|header| header.encode().to_vec()).to_vec();
    fuzz(HERE, "header", samples, Some(&seal), &mut |bytes| {
        if let Ok(header) = ChunkHeader::decode(bytes) {
            assert_eq!(ChunkHeader::decode(&header.encode()), Ok(header));
        }
    });
}

#[test]
fn head_blocks() {
    const SEGMENT_BYTES: usize = 1 << 20;
    let pool = [9; 16];
    let mut block = vec![0; heads::BLOCK];
    heads::begin(&mut block, &pool);
    for number in 0..heads::SLOTS {
        let distance = (1 + number) * heads::BLOCK;
        let header = ChunkHeader::raw(number as u64, 4096, distance as u32);
        block[heads::slot(number)].copy_from_slice(&header.encode());
    }
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(heads::BLOCK, 0);
        for number in 0..heads::SLOTS {
            let slot = &mut bytes[heads::slot(number)];
            let sum = crc32c::crc32c(&slot[..HEADER_BYTES - 4]);
            slot[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        }
    };
    fuzz(HERE, "heads", vec![block], Some(&seal), &mut |bytes| {
        for at in [0, 3 * heads::BLOCK, SEGMENT_BYTES - heads::BLOCK] {
            for (offset, header) in heads::headers_in(bytes, at, SEGMENT_BYTES, &pool).unwrap_or_default() {
                let payload = header.payload_at(offset);
                assert!(offset < at + heads::BLOCK && payload.start >= at + heads::BLOCK);
                assert!(payload.start < payload.end && payload.end <= SEGMENT_BYTES);
            }
        }
    });
}

#[test]
fn records() {
    let segment = SegmentId { device: 1, index: 7 };
    let record = ChunkRecord {
        compression: compress::RAW,
        length: 9000,
        payload: 9000,
        hash: [1; 32],
        locations: vec![Location::joined(segment, 4096); 2],
        sums: vec![1, 2, 3],
    };
    let compressed = ChunkRecord {
        compression: compress::LZ4,
        payload: 500,
        ..record.clone()
    };
    let mut apart = record.clone();
    apart.locations[1].payload += 4096;
    let samples = vec![record.encode(), compressed.encode(), apart.encode()];
    fuzz(HERE, "record", samples, None, &mut |bytes| {
        let _ = (
            chunk_of_key(bytes),
            segment_of_key(bytes),
            candidate_of_key(bytes),
        );
        if let Ok(record) = ChunkRecord::decode(bytes) {
            assert_eq!(ChunkRecord::decode(&record.encode()), Ok(record));
        }
    });
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
    fuzz(HERE, "batches", vec![writer.into_bytes()], None, &mut |bytes| {
        let Ok(batches) = decode_batches(bytes) else {
            return;
        };
        let mut writer = Writer::new();
        for batch in &batches {
            encode_batch(
                &mut writer,
                batch.sequence,
                &batch.change,
                batch.next_chunk,
                &batch.operations,
            );
        }
        assert_eq!(decode_batches(writer.as_bytes()), Ok(batches));
    });
}

#[test]
fn compressed_content() {
    let content = b"a line that comes again and again\n".repeat(300);
    let samples = [
        terrace_store::Compression::Lz4,
        terrace_store::Compression::Zstd(3),
    ]
    .map(|kind| {
        let mut scratch = compress::Scratch::default();
        assert_ne!(
            compress::compress(&content, kind, Trial::Untried, &mut scratch),
            compress::RAW
        );
        scratch.output
    })
    .to_vec();
    fuzz(HERE, "content", samples, None, &mut |bytes| {
        for code in [compress::RAW, compress::LZ4, compress::ZSTD] {
            let _ = compress::decompress(bytes, code, content.len());
            for until in [1, 4096, content.len()] {
                let _ = compress::with_beginning(bytes, code, content.len(), until, |there| {
                    assert!((until..=content.len()).contains(&there.len()));
                    Some(())
                });
            }
        }
    });
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
    let id = pool.id();
    fuzz(HERE, "root", samples.clone(), None, &mut |bytes| {
        let (whole, start) = (decode_root(pool.clone(), bytes), replay_start(bytes));
        if let Ok(root) = whole {
            assert_eq!(start, Ok(root.position.sequence));
        }
    });
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().max(ROOT_COPY_HEADER_BYTES), 0);
        let payload = bytes.split_off(ROOT_COPY_HEADER_BYTES);
        *bytes = encode_root_copy(&id, &payload);
    };
    let copies = samples
        .iter()
        .map(|payload| encode_root_copy(&id, payload))
        .collect();
    fuzz(HERE, "root-copy", copies, Some(&seal), &mut |bytes| {
        if let Ok(payload) = decode_root_copy(bytes, &id) {
            assert!(payload.len() + ROOT_COPY_HEADER_BYTES <= bytes.len());
        }
    });
}
