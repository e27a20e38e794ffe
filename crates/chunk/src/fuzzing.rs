//! Chunk headers, records, batches, roots and their copies, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use std::sync::{Arc, OnceLock};

use terrace_codec::Writer;
use terrace_device::{MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};

use crate::{
    encoding::{
        ChunkHeader, ChunkRecord, HEADER_BYTES, ROOT_COPY_HEADER_BYTES, candidate_of_key, chunk_of_key,
        compression, decode_batches, decode_root_copy, encode_batch, encode_root_copy, head_block as heads,
        segment_of_key,
    },
    metadata::{decode_root, replay_start},
};

/// The pool that head blocks are of.
pub const POOL: [u8; 16] = [9; 16];
/// The length of what was compressed, bytes.
pub const CONTENT_BYTES: usize = 10_200;

/// A chunk's header: what decodes encodes to itself.
pub fn header(bytes: &[u8]) {
    if let Ok(header) = ChunkHeader::decode(bytes) {
        assert_eq!(ChunkHeader::decode(&header.encode()), Ok(header));
    }
}

/// Puts the right sum into a header.
pub fn seal_header(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(HEADER_BYTES), 0);
    let sum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// A block of headers: each leads to a payload behind it, in the segment.
pub fn head_block(bytes: &[u8]) {
    const SEGMENT_BYTES: usize = 1 << 20;
    for at in [0, 3 * heads::BLOCK, SEGMENT_BYTES - heads::BLOCK] {
        for (offset, header) in heads::headers_in(bytes, at, SEGMENT_BYTES, &POOL).unwrap_or_default() {
            let payload = header.payload_at(offset);
            assert!(offset < at + heads::BLOCK && payload.start >= at + heads::BLOCK);
            assert!(payload.start < payload.end && payload.end <= SEGMENT_BYTES);
        }
    }
}

/// Puts the right sums into a block of headers.
pub fn seal_head_block(bytes: &mut Vec<u8>) {
    bytes.resize(heads::BLOCK, 0);
    for number in 0..heads::SLOTS {
        let slot = &mut bytes[heads::slot(number)];
        let sum = crc32c::crc32c(&slot[..HEADER_BYTES - 4]);
        slot[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A chunk's record, or a key: what decodes encodes to itself.
pub fn record(bytes: &[u8]) {
    let _ = (
        chunk_of_key(bytes),
        segment_of_key(bytes),
        candidate_of_key(bytes),
    );
    if let Ok(record) = ChunkRecord::decode(bytes) {
        assert_eq!(ChunkRecord::decode(&record.encode()), Ok(record));
    }
}

/// The payload of a log entry: what decodes encodes to itself.
pub fn batches(bytes: &[u8]) {
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
}

/// Compressed content: never more than was promised.
pub fn content(bytes: &[u8]) {
    for code in [compression::RAW, compression::LZ4, compression::ZSTD] {
        let _ = compression::decompress(bytes, code, CONTENT_BYTES);
        for until in [1, 4096, CONTENT_BYTES] {
            let _ = compression::with_beginning(bytes, code, CONTENT_BYTES, until, |there| {
                assert!((until..=CONTENT_BYTES).contains(&there.len()));
                Some(())
            });
        }
    }
}

/// A pool in RAM, without a store.
fn pool() -> Arc<Pool> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    let make = || {
        let device: Arc<dyn terrace_device::Device> = Arc::new(MemoryDevice::new("disk", 32 << 20));
        let options = CreateOptions {
            name: "pool".into(),
            tiers: vec![(TierSettings::named("only"), vec![device])],
            properties: Default::default(),
            segment_bytes: Some(1 << 20),
            created_nanoseconds: 1,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        Arc::new(Pool::create(options, &SeededRandomness::new(1)).expect("a pool"))
    };
    POOL.get_or_init(make).clone()
}

/// The store's root: read alike as a whole and in part.
pub fn root(bytes: &[u8]) {
    root_of(bytes, &pool());
}

/// The same, of a pool with what it leads to.
pub fn root_of(bytes: &[u8], pool: &Arc<Pool>) {
    let (whole, start) = (decode_root(pool.clone(), bytes), replay_start(bytes));
    if let Ok(root) = whole {
        assert_eq!(start, Ok(root.position.sequence));
    }
}

/// A copy of a root among the metadata: it lies in its bytes.
pub fn root_copy(bytes: &[u8]) {
    if let Ok(payload) = decode_root_copy(bytes, &POOL) {
        assert!(payload.len() + ROOT_COPY_HEADER_BYTES <= bytes.len());
    }
}

/// Puts the right sum into a copy of a root.
pub fn seal_root_copy(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(ROOT_COPY_HEADER_BYTES), 0);
    let payload = bytes.split_off(ROOT_COPY_HEADER_BYTES);
    *bytes = encode_root_copy(&POOL, &payload);
}
