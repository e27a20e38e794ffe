//! Tables, blocks and manifests from any bytes: never a panic, never more memory than a small multiple of the input.

use std::sync::Arc;

use bytes::Bytes;
use terrace_fuzz::fuzz;
use xxhash_rust::xxh3::xxh3_64;

use crate::block::{BlockBuilder, BlockCursor, find};
use crate::operation::OperationRef;
use crate::table::Head;
use crate::table_writer::TableWriter;
use crate::{
    Extent, ExtentStorage, MemoryExtents, Operation, Options, PREFACE_BYTES, Preface, Progress, Salvage,
    Tree, manifest,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A table of some records, and where its head starts.
fn table() -> (Vec<u8>, usize) {
    let mut writer = TableWriter::new(4096);
    for number in 0..120 {
        let key = format!("records/{number:04}");
        match number % 5 {
            0 => writer.add(key.as_bytes(), OperationRef::Delete),
            1 => writer.add(key.as_bytes(), OperationRef::Add(number - 60)),
            _ => writer.add(key.as_bytes(), OperationRef::Put(&[number as u8; 40])),
        }
    }
    let (bytes, facts) = writer.finish([2; 16], 3, (10, 20));
    (bytes, facts.head_offset as usize)
}

#[test]
fn blocks() {
    let mut builder = BlockBuilder::default();
    for number in 0..60u32 {
        let key = format!("a key/{number:03}");
        builder.add(key.as_bytes(), OperationRef::Put(&number.to_le_bytes()));
    }
    let mut sample = Vec::new();
    builder.finish_into(&mut sample);
    fuzz(HERE, "block", vec![sample], None, &mut |bytes| {
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
    });
}

#[test]
fn heads() {
    let (bytes, head) = table();
    fuzz(HERE, "head", vec![bytes[head..].to_vec()], None, &mut |bytes| {
        if let Ok(head) = Head::decode(bytes, head as u32) {
            assert!(head.memory_bytes() <= 64 * bytes.len() + 4096);
            let _ = head.seek(b"records/0050");
        }
    });
}

#[test]
fn prefaces() {
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().max(PREFACE_BYTES), 0);
        let sum = xxh3_64(&bytes[..PREFACE_BYTES - 8]);
        bytes[PREFACE_BYTES - 8..PREFACE_BYTES].copy_from_slice(&sum.to_le_bytes());
    };
    let sample = table().0[..PREFACE_BYTES].to_vec();
    fuzz(HERE, "preface", vec![sample], Some(&seal), &mut |bytes| {
        if let Ok(preface) = Preface::decode(bytes) {
            assert_eq!(preface.encode(), bytes[..PREFACE_BYTES]);
        }
    });
}

#[test]
fn tables_found_anywhere() {
    // As a whole: what a rebuilding reads of a table whose sums were forged.
    let (sample, _) = table();
    let seal = |bytes: &mut Vec<u8>| {
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
    };
    fuzz(HERE, "table", vec![sample], Some(&seal), &mut |bytes| {
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
    });
}

#[test]
fn manifests() {
    let storage = Arc::new(MemoryExtents::new());
    let options = Options {
        memory_bytes: 32 << 10,
        table_bytes: 4 << 10,
        ..Options::default()
    };
    let tree = Tree::open(storage.clone(), None, options).expect("an empty tree");
    let mut samples = Vec::new();
    for sequence in 1..=40u64 {
        let put = |number: u64| {
            let key = Bytes::from(format!("{:03}/{number}", number * sequence % 97));
            (key, Operation::Put(vec![sequence as u8; 60].into()))
        };
        tree.apply(sequence, (0..20).map(put).collect()).expect("applies");
        tree.seal();
        let _ = tree.step(4 << 10).expect("steps") == Progress::More;
        if sequence % 10 == 0 {
            samples.push(tree.manifest().expect("a manifest"));
        }
    }
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().max(13), 0);
        let end = bytes.len() - 8;
        let sum = xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    };
    fuzz(HERE, "manifest", samples, Some(&seal), &mut |bytes| {
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
    });
}
