//! Readers compare blocks with their sums whatever a chunk is like: of a compressed one those that they want, unpacked up to
//! there; of what is still being written, and of pools whose records had fewer sums, as of all others.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::sync::Arc;

use fixture::{noise, options, piece, settle};
use terrace_chunk::ChunkStore;
use terrace_device::{Device, MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, OpenOptions, Parallelism, Pool, SegmentId, TierSettings};
use terrace_store::{Batch, ChunkId, ChunkPart, Compression, Piece, Store};

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;
/// Of a root's payload: its version.
const VERSION_AT: usize = 0;

fn pool_on(device: &Arc<dyn Device>) -> Arc<Pool> {
    let create = CreateOptions {
        name: "tank".into(),
        tiers: vec![(TierSettings::named("only"), vec![device.clone()])],
        properties: Default::default(),
        segment_bytes: None,
        created_nanoseconds: 1,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap())
}

fn disk() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new("d0", 80 << 20))
}

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
fn flip(pool: &Pool, store: &ChunkStore, id: ChunkId, at: usize) {
    let info = store.chunk_info(id).unwrap().unwrap();
    let segment = SegmentId {
        device: info.device,
        index: info.segment,
    };
    let at = info.offset as usize + at;
    let start = at / BLOCK * BLOCK;
    let mut page = vec![0; BLOCK];
    pool.read(segment, start as u64, &mut page).unwrap();
    page[at - start] ^= 1;
    pool.write(segment, start as u64, &page).unwrap();
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
    let device = disk();
    let pool = pool_on(&device);
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
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
        flip(
            &pool,
            &store,
            id,
            88 + (stored - 88) / BLOCKS * (BLOCKS - 2) + 900,
        );
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
    let device = disk();
    let pool = pool_on(&device);
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    let contents: Vec<Vec<u8>> = (0..64).map(|seed| noise(seed, BLOCK)).collect();
    let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
    let mut ids = write(&store, &pieces);
    // And these are in memory only.
    let late: Vec<Vec<u8>> = (100..108).map(|seed| noise(seed, BLOCK)).collect();
    let pieces: Vec<_> = late.iter().map(|content| piece(content)).collect();
    let written = store.write_chunks(&pieces).unwrap();
    ids.extend(written.iter().map(|written| written.id));
    let reads = || {
        let devices = pool.devices();
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

/// The record of a chunk as it is stored.
fn record_bytes(store: &ChunkStore, id: ChunkId) -> usize {
    let key = [&[1][..], &id.0.to_be_bytes()].concat();
    store.get(&key).unwrap().unwrap().len()
}

#[test]
fn a_pool_of_before_gets_the_sums_once_its_root_keeps_older_programs_away() {
    let device = disk();
    let pool = pool_on(&device);
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    let lengths = [BLOCK, BLOCKS * BLOCK];
    let contents: Vec<Vec<u8>> = (0..6)
        .map(|seed| half_noise(seed)[..lengths[seed as usize % 2]].to_vec())
        .collect();
    let put = |store: &ChunkStore, at: usize| {
        let pieces: Vec<_> = contents[at..at + 2]
            .iter()
            .map(|content| piece(content))
            .collect();
        write(store, &pieces)
    };
    let newest = put(&store, 0);
    store.close().unwrap();
    drop(store);
    let root = pool.read_root().unwrap().unwrap();
    assert_eq!(root[VERSION_AT], 2);
    let mut older = root.clone();
    older[VERSION_AT] = 1;
    pool.write_root(&older).unwrap();
    drop(pool);

    let pool = Arc::new(Pool::open(vec![device.clone()], OpenOptions::default()).unwrap());
    let store = ChunkStore::open(pool.clone(), options(2)).unwrap();
    let before = put(&store, 2);
    for (new, old) in newest.iter().zip(&before) {
        let (new, old) = (record_bytes(&store, *new), record_bytes(&store, *old));
        assert!(old + 4 <= new, "{old} and {new} bytes");
    }
    while pool.read_root().unwrap().unwrap()[VERSION_AT] == 1 {
        store.checkpoint().unwrap();
        settle(&store);
    }
    let after = put(&store, 4);
    for (new, after) in newest.iter().zip(&after) {
        assert!(record_bytes(&store, *after) >= record_bytes(&store, *new));
    }
    store.close_streams().unwrap();
    for (id, content) in newest.iter().chain(&before).chain(&after).zip(&contents) {
        assert_eq!(store.read_chunk(*id).unwrap(), content);
        let last = content.len() - BLOCK..content.len();
        assert_eq!(
            store.read_chunk_part(*id, last.start, BLOCK).unwrap(),
            content[last]
        );
    }
    // Where there are none the hash tells.
    flip(&pool, &store, before[0], 88 + 300);
    flip(&pool, &store, after[0], 88 + 300);
    for id in [before[0], after[0]] {
        assert!(store.read_chunk(id).is_err());
        assert!(store.read_chunk_part(id, 0, BLOCK).is_err());
    }
}
