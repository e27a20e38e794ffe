//! Tables, blocks and manifests from any bytes: see `fuzzing.rs`.

use std::sync::Arc;

use bytes::Bytes;
use terrace_fuzz::fuzz;

use crate::{
    MemoryExtents, Operation, Options, PREFACE_BYTES, Progress, Tree,
    entries::OperationRef,
    fuzzing,
    table::{BlockBuilder, TableWriter},
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
    fuzz(HERE, "block", vec![sample], None, &mut fuzzing::block);
}

#[test]
fn heads() {
    let (bytes, head) = table();
    let sample = vec![bytes[head..].to_vec()];
    fuzz(HERE, "head", sample, None, &mut |bytes| {
        fuzzing::head_at(bytes, head as u32);
        fuzzing::head(bytes);
    });
}

#[test]
fn prefaces() {
    let sample = table().0[..PREFACE_BYTES].to_vec();
    fuzz(
        HERE,
        "preface",
        vec![sample],
        Some(&fuzzing::seal_preface),
        &mut fuzzing::preface,
    );
}

#[test]
fn tables_found_anywhere() {
    // As a whole: what a rebuilding reads of a table whose sums were forged.
    let (sample, _) = table();
    fuzz(
        HERE,
        "table",
        vec![sample],
        Some(&fuzzing::seal_table),
        &mut fuzzing::table,
    );
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
    fuzz(
        HERE,
        "manifest",
        samples,
        Some(&fuzzing::seal_manifest),
        &mut |bytes| fuzzing::manifest_over(bytes, &storage, options),
    );
}
