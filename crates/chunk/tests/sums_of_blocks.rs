//! Readers compare blocks with their sums whatever a chunk is like: of a compressed one those that they want, unpacked up to
//! there; of what is still being written as of all others.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use fixture::{noise, piece, small};
use terrace_chunk::ChunkStore;
use terrace_pool::SegmentId;
use terrace_store::{Batch, ChunkId, ChunkPart, Compression, Piece, Store};

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;

fn write(store: &ChunkStore, pieces: &[Piece<'_>]) -> Vec<ChunkId> {
    let written = store.write_chunks(pieces).unwrap();
    let ids = written.iter().map(|written| written.id).collect();
    let mut batch = Batch::new();
    for written in written {
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    ids
}

/// Half of each block is noise, so that what is stored of a block lies where the block is in the whole, about.
fn half_noise(seed: u64) -> Vec<u8> {
    let block = |at: usize| [noise(seed << 8 | at as u64, BLOCK / 2), vec![at as u8; BLOCK / 2]].concat();
    (0..BLOCKS).flat_map(block).collect()
}

/// Flips a bit of a stored chunk, so many bytes behind its header's start.
fn flip(store: &ChunkStore, id: ChunkId, at: usize) {
    let info = store.chunk_info(id).unwrap().unwrap();
    let segment = SegmentId {
        device: info.device,
        index: info.segment,
    };
    let at = info.offset as usize + at;
    let start = at / BLOCK * BLOCK;
    let mut page = vec![0; BLOCK];
    store.pool().read(segment, start as u64, &mut page).unwrap();
    page[at - start] ^= 1;
    store.pool().write(segment, start as u64, &page).unwrap();
}

/// Which blocks of a chunk can be read, by themselves and among several.
fn readable(store: &ChunkStore, id: ChunkId, content: &[u8]) -> Vec<bool> {
    (0..BLOCKS)
        .map(|block| {
            let range = block * BLOCK..(block + 1) * BLOCK;
            let alone = store.read_chunk_part(id, range.start, BLOCK);
            let part = ChunkPart {
                id,
                range: Some(range.clone()),
            };
            let among = store.read_chunk_parts(&[part]).remove(0);
            assert_eq!(alone.is_ok(), among.is_ok(), "block {block}");
            for found in [&alone, &among].into_iter().flatten() {
                assert_eq!(found, &content[range.clone()], "block {block}");
            }
            alone.is_ok()
        })
        .collect()
}

#[test]
fn of_a_compressed_chunk_only_what_is_wanted_has_to_be_sound() {
    let (_, _, store) = small(80);
    for (number, compression) in [Compression::Lz4, Compression::Zstd(3)].into_iter().enumerate() {
        let content = half_noise(number as u64);
        let pieces = [Piece {
            compression,
            ..piece(&content)
        }];
        let id = write(&store, &pieces)[0];
        store.close_streams().unwrap();
        let stored = store.chunk_info(id).unwrap().unwrap().stored as usize;
        assert!(stored < content.len() / 4 * 3, "it is compressed");
        assert_eq!(readable(&store, id, &content), [true; BLOCKS]);
        assert_eq!(store.read_chunk(id).unwrap(), content);
        // A part that begins and ends within blocks.
        assert_eq!(
            store.read_chunk_part(id, 5000, 9000).unwrap(),
            content[5000..14_000]
        );

        // In the noise of the last block but one.
        flip(&store, id, (stored - 88) / BLOCKS * (BLOCKS - 2) + 900);
        let readable = readable(&store, id, &content);
        assert!(!readable[BLOCKS - 2], "{compression:?}: {readable:?}");
        assert!(store.read_chunk(id).is_err());
        if compression == Compression::Lz4 {
            assert_eq!(readable[..BLOCKS - 2], [true; BLOCKS - 2]);
        }
    }
}

#[test]
fn what_is_being_written_beside_is_read_together_as_well() {
    let (_, _, store) = small(80);
    let contents: Vec<Vec<u8>> = (0..64).map(|seed| noise(seed, BLOCK)).collect();
    let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
    let mut ids = write(&store, &pieces);
    // And these are in memory only.
    let late: Vec<Vec<u8>> = (100..108).map(|seed| noise(seed, BLOCK)).collect();
    let pieces: Vec<_> = late.iter().map(|content| piece(content)).collect();
    let written = store.write_chunks(&pieces).unwrap();
    ids.extend(written.iter().map(|written| written.id));
    let reads = || {
        let devices = store.pool().devices();
        devices.iter().map(|device| device.counters.reads).sum::<u64>()
    };
    let before = reads();
    let found = store.read_chunks(&ids);
    for (found, content) in found.iter().zip(contents.iter().chain(&late)) {
        assert_eq!(found.as_ref().unwrap(), content);
    }
    let cost = reads() - before;
    assert!(cost <= 4, "{cost} reads of the device for what lies together");
}
