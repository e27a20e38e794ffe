//! Parts of chunks that are read by who asked for them are what is read of them otherwise; what is damaged or in memory is not
//! given on, and what did not come counts as an error.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{os::unix::fs::FileExt, sync::Arc};

use fixture::{contents, noise, options, piece};
use terrace_chunk::ChunkStore;
use terrace_device::{FileDevice, SeededRandomness};
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
use terrace_store::{Batch, BegunPart, ChunkId, Compression, Piece, Store};

const BLOCK: usize = 4096;

struct Fixture {
    _dir: tempfile::TempDir,
    pool: Arc<Pool>,
    store: Arc<ChunkStore>,
    contents: Vec<(Vec<u8>, Compression)>,
    ids: Vec<ChunkId>,
}

/// Chunks of many lengths, stored as they are and compressed, in a file; `None` where that has no direct reads.
fn fixture() -> Option<Fixture> {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&dir.path().join("d0"), Some(80 << 20)).unwrap();
    if !device.is_direct() {
        eprintln!("skipped: no direct I/O in {}", dir.path().display());
        return None;
    }
    let create = CreateOptions {
        name: "tank".into(),
        tiers: vec![(TierSettings::named("only"), vec![Arc::new(device)])],
        properties: Default::default(),
        segment_bytes: None,
        created_nanoseconds: 1,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap());
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    let contents = contents();
    let pieces: Vec<Piece<'_>> = contents
        .iter()
        .map(|(content, compression)| Piece {
            compression: *compression,
            ..piece(content)
        })
        .collect();
    let written = store.write_chunks(&pieces).unwrap();
    let ids: Vec<ChunkId> = written.iter().map(|written| written.id).collect();
    let mut batch = Batch::new();
    for written in written {
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    store.flush(store.commit(batch).unwrap()).unwrap();
    Some(Fixture {
        _dir: dir,
        pool,
        store,
        contents,
        ids,
    })
}

fn bytes_of(part: &BegunPart) -> Vec<u8> {
    let mut memory = terrace_device::AlignedBuffer::with_capacity(part.length);
    part.file
        .read_exact_at(memory.reuse(part.length), part.offset)
        .unwrap();
    memory.to_vec()
}

/// Of each chunk its first half, some of the middle, its last byte, and all.
fn parts(length: usize) -> [(usize, usize); 4] {
    let middle = length / 3;
    [
        (0, length / 2),
        (middle, (length - middle).min(9000)),
        (length - 1, 1),
        (0, length),
    ]
}

#[test]
fn parts_are_what_is_read_otherwise_and_count_as_reads() {
    let Some(Fixture {
        _dir,
        pool,
        store,
        contents,
        ids,
    }) = fixture()
    else {
        return;
    };
    let mut begun = 0;
    let reads = || pool.devices()[0].counters.reads;
    for (id, (content, compression)) in ids.iter().zip(&contents) {
        for (offset, length) in parts(content.len()) {
            let Some(part) = store.begin_chunk_part(*id, offset, length) else {
                continue;
            };
            let bytes = bytes_of(&part);
            assert!(part.offset.is_multiple_of(512) && part.length.is_multiple_of(512));
            let before = reads();
            let got = part.end(Some(&bytes)).unwrap();
            assert_eq!(reads(), before + 1);
            assert!(
                got[..] == content[offset..offset + length],
                "{compression:?}, {offset}+{length}"
            );
            begun += 1;
        }
        assert!(
            store.begin_chunk_part(*id, content.len() - 1, 2).is_none(),
            "beyond its end"
        );
        assert!(store.begin_chunk_part(*id, usize::MAX, 2).is_none());
    }
    // What did not come is an error of the device.
    let lost = store.begin_chunk_part(ids[0], 0, BLOCK).unwrap();
    assert!(lost.end(None).is_none());
    assert_eq!(pool.devices()[0].counters.read_errors, 1);
    assert_eq!(
        begun,
        contents.len() * 4,
        "nothing of them is in memory after a flush"
    );
    assert!(
        store.begin_chunk_part(ChunkId(1 << 40), 0, 1).is_none(),
        "there is none"
    );
}

#[test]
fn what_is_not_as_it_was_written_is_not_given_on() {
    let Some(Fixture {
        _dir,
        store,
        contents,
        ids,
        ..
    }) = fixture()
    else {
        return;
    };
    for (id, (content, compression)) in ids.iter().zip(&contents) {
        for (offset, length) in parts(content.len()) {
            let again = || store.begin_chunk_part(*id, offset, length).unwrap();
            let whole = bytes_of(&again());
            // All of another chunk, or of none; and too little.
            assert!(
                again().end(Some(&vec![0; whole.len()])).is_none(),
                "{compression:?}, {offset}+{length}"
            );
            assert!(again().end(Some(&[])).is_none());
        }
    }
}

#[test]
fn what_is_in_memory_is_not_begun() {
    let Some(Fixture { _dir, store, .. }) = fixture() else {
        return;
    };
    let content = noise(77, BLOCK);
    let written = store.write_chunks(&[piece(&content)]).unwrap();
    let id = written[0].id;
    assert!(store.begin_chunk_part(id, 0, BLOCK).is_none());
    assert_eq!(store.read_chunk_part(id, 0, BLOCK).unwrap()[..], content[..]);
}
