//! Stretches of chunks that are read into memory of whoever asks are what is read of them otherwise: of whole and compressed
//! chunks, committed or not, on the device or still in memory; what is damaged is left out, and nothing else is.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::Arc;

use fixture::{contents, noise, options, piece};
use terrace_chunk::ChunkStore;
use terrace_device::{MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, Parallelism, Pool, SegmentId, TierSettings};
use terrace_store::{Batch, ChunkFill, ChunkId, Compression, Piece, Store, Written};

const BLOCK: usize = 4096;

fn store() -> (Arc<Pool>, Arc<ChunkStore>) {
    let create = CreateOptions {
        name: "tank".into(),
        tiers: vec![(
            TierSettings::named("only"),
            vec![Arc::new(MemoryDevice::new("d0", 80 << 20))],
        )],
        properties: Default::default(),
        segment_bytes: None,
        created_nanoseconds: 1,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap());
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    (pool, store)
}

fn commit(store: &ChunkStore, written: Vec<Written>) {
    let mut batch = Batch::new();
    for written in written {
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
}

/// Asks for these stretches at once; what was filled of each.
fn read(store: &ChunkStore, wanted: &[(ChunkId, usize, usize)]) -> Vec<Option<Vec<u8>>> {
    let mut memory: Vec<Vec<u8>> = wanted.iter().map(|(.., length)| vec![0xee; *length]).collect();
    let mut fills: Vec<ChunkFill<'_>> = wanted
        .iter()
        .zip(&mut memory)
        .map(|((id, offset, _), target)| ChunkFill::new(*id, *offset, target))
        .collect();
    store.fill_from_chunks(&mut fills);
    let filled: Vec<Option<usize>> = fills.iter().map(|fill| fill.filled).collect();
    let memory = memory.into_iter().zip(filled);
    memory
        .map(|(mut bytes, filled)| {
            bytes.truncate(filled?);
            Some(bytes)
        })
        .collect()
}

/// Stretches of all the chunks, in no order, whole and in pieces.
fn stretches(ids: &[ChunkId], contents: &[(Vec<u8>, Compression)]) -> Vec<(usize, ChunkId, usize, usize)> {
    let mut wanted = Vec::new();
    for (number, (id, (content, _))) in ids.iter().zip(contents).enumerate().rev() {
        let length = content.len();
        let half = length / 2;
        for (offset, bytes) in [
            (half, length - half),
            (0, half),
            (0, length),
            (0, length + 3000),
            (length / 3 + 1, half.min(9000)),
            (length - 1, 1),
            (length - 1, 2),
        ] {
            wanted.push((number, *id, offset, bytes));
        }
    }
    wanted
}

#[test]
fn stretches_are_what_chunks_hold() {
    let (_pool, store) = store();
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
    let check = |when: &str| {
        let wanted = stretches(&ids, &contents);
        let asked: Vec<_> = wanted
            .iter()
            .map(|(_, id, offset, bytes)| (*id, *offset, *bytes))
            .collect();
        for ((number, _, offset, bytes), got) in wanted.iter().zip(read(&store, &asked)) {
            let content = &contents[*number].0;
            let end = (offset + bytes).min(content.len());
            assert_eq!(
                got.as_deref(),
                Some(&content[*offset..end]),
                "{when}: {bytes} bytes at {offset} of chunk {number}"
            );
        }
    };
    check("not committed");
    commit(&store, written);
    check("committed");
    store.close_streams().unwrap();
    check("on the device");
}

#[test]
fn what_is_damaged_or_not_there_is_left_out_and_nothing_else_is() {
    let (pool, store) = store();
    let raw = noise(1, 16 * BLOCK);
    let packed = [noise(2, 4 * BLOCK), vec![7; 12 * BLOCK]].concat();
    let other = noise(3, 16 * BLOCK);
    let pieces = [
        piece(&raw),
        Piece {
            compression: Compression::Lz4,
            ..piece(&packed)
        },
        piece(&other),
    ];
    let written = store.write_chunks(&pieces).unwrap();
    let ids: Vec<ChunkId> = written.iter().map(|written| written.id).collect();
    commit(&store, written);
    store.close_streams().unwrap();
    // In the raw one's sixth block, and in the noise of the compressed one.
    for (id, at) in [(ids[0], 5 * BLOCK + 9), (ids[1], BLOCK)] {
        let info = store.chunk_info(id).unwrap().unwrap();
        let segment = SegmentId {
            device: info.device,
            index: info.segment,
        };
        let at = info.offset as usize + at;
        let mut page = vec![0; BLOCK];
        let start = (at / BLOCK * BLOCK) as u64;
        pool.read(segment, start, &mut page).unwrap();
        page[at % BLOCK] ^= 1;
        pool.write(segment, start, &page).unwrap();
    }
    let nobody = ChunkId(1 << 40);
    let wanted = [
        (ids[0], 0, 5 * BLOCK),
        (ids[0], 5 * BLOCK, BLOCK),
        (ids[0], 6 * BLOCK, 10 * BLOCK),
        (ids[0], 4 * BLOCK, 2 * BLOCK),
        (ids[1], 0, 16 * BLOCK),
        (nobody, 0, BLOCK),
        (ids[2], 0, 16 * BLOCK),
        (ids[2], 16 * BLOCK, BLOCK),
        (ids[2], usize::MAX - 10, BLOCK),
    ];
    let got = read(&store, &wanted);
    let got: Vec<Option<&[u8]>> = got.iter().map(Option::as_deref).collect();
    assert_eq!(got[0], Some(&raw[..5 * BLOCK]));
    assert_eq!((got[1], got[3]), (None, None), "the block that was damaged");
    assert_eq!(got[2], Some(&raw[6 * BLOCK..]));
    assert_eq!((got[4], got[5]), (None, None));
    assert_eq!(got[6], Some(&other[..]));
    // Of what is behind the end there is nothing, or it is for others to say so.
    assert!(got[7..].iter().all(|got| got.is_none_or(<[u8]>::is_empty)));
}
