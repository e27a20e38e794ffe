//! Tables, blocks and manifests, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Extent, ExtentStorage, MemoryExtents, Options, PREFACE_BYTES, Preface, Salvage, Tree,
    runs::manifest,
    table::{BlockCursor, Head, find},
};

/// Where the head of a table lies, as [`head`] reads it.
pub const HEAD_OFFSET: u32 = 4096;

/// A block: its keys ascend, and it has no more of them than bytes.
pub fn block(bytes: &[u8]) {
    let block = Bytes::copy_from_slice(bytes);
    let _ = find(&block, b"a key/030");
    if let Ok(mut cursor) = BlockCursor::new(block.clone()) {
        let _ = cursor.seek(b"a key/030");
    }
    let Ok(mut cursor) = BlockCursor::new(block) else {
        return;
    };
    let mut last: Option<Vec<u8>> = None;
    let mut entries = 0;
    while let Ok(true) = cursor.advance() {
        assert!(
            last.as_deref().is_none_or(|last| last < cursor.key()),
            "keys ascend"
        );
        last = Some(cursor.key().to_vec());
        let _ = cursor.operation().to_owned();
        entries += 1;
        assert!(entries <= bytes.len(), "each entry takes a byte at least");
    }
}

/// The head of a table: never more memory than a small multiple of its bytes.
pub fn head(bytes: &[u8]) {
    head_at(bytes, HEAD_OFFSET);
}

/// The same, of a table whose head lies at `offset`.
pub fn head_at(bytes: &[u8], offset: u32) {
    if let Ok(head) = Head::decode(bytes, offset) {
        assert!(head.memory_bytes() <= 64 * bytes.len() + 4096);
        let _ = head.seek(b"records/0050");
    }
}

/// A preface: what decodes encodes to itself.
pub fn preface(bytes: &[u8]) {
    if let Ok(preface) = Preface::decode(bytes) {
        assert_eq!(preface.encode(), bytes[..PREFACE_BYTES]);
    }
}

/// Puts the right sum into a preface.
pub fn seal_preface(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(PREFACE_BYTES), 0);
    let sum = xxh3_64(&bytes[..PREFACE_BYTES - 8]);
    bytes[PREFACE_BYTES - 8..PREFACE_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// A whole table as a rebuilding finds it: its records ascend.
pub fn table(bytes: &[u8]) {
    let Ok(preface) = Preface::decode(bytes) else {
        return;
    };
    let storage = Arc::new(MemoryExtents::new());
    let extent = storage.write(bytes).expect("memory");
    let extent = Extent {
        bytes: preface.bytes,
        ..extent
    };
    let salvage = Salvage::open(storage, &[(preface, extent)], Default::default(), 1 << 20);
    let records = salvage.scan(&[], &[], usize::MAX);
    assert!(records.len() <= bytes.len());
    assert!(records.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

/// Puts the right length and the sum of its head into a table's preface.
// The harness hands over vectors: other formats grow in sealing.
#[allow(clippy::ptr_arg)]
pub fn seal_table(bytes: &mut Vec<u8>) {
    let Some(preface) = bytes
        .get(..PREFACE_BYTES)
        .and_then(|bytes| Preface::decode(bytes).ok())
    else {
        return;
    };
    let at = preface.head_offset as usize;
    if let Some(head) = bytes.get(at..) {
        let preface = Preface {
            bytes: bytes.len() as u32,
            head_sum: xxh3_64(head),
            ..preface
        };
        bytes[..PREFACE_BYTES].copy_from_slice(&preface.encode());
    }
}

/// A manifest: what decodes encodes, and no tree opens badly with it.
pub fn manifest(bytes: &[u8]) {
    manifest_over(bytes, &Arc::new(MemoryExtents::new()), Options::default());
}

/// The same, over the tables that it may name.
pub fn manifest_over(bytes: &[u8], storage: &Arc<MemoryExtents>, options: Options) {
    if let Ok(manifest::Manifest::Body(body)) = manifest::decode(bytes)
        && let Ok((version, next)) = manifest::decode_body(&body, &Arc::default())
    {
        let again = manifest::encode_body(&version, next);
        assert!(
            manifest::decode_body(&again, &Arc::default()).is_ok(),
            "what decodes encodes"
        );
    }
    let _ = Tree::open(storage.clone(), Some(bytes), options);
}

/// Puts the right sum into a manifest.
pub fn seal_manifest(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(13), 0);
    let end = bytes.len() - 8;
    let sum = xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}
