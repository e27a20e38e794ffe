//! Readers compare blocks with their sums whatever a chunk is like: of a compressed one those that they want, unpacked up to
//! there; of what is still being written, and of pools of the first format version, whose records have fewer sums, as of all others.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::Arc;

use fixture::{noise, options, piece};
use terrace_chunk::{ChunkStore, FORMAT_NEWEST, Options};
use terrace_device::{AlignedBuffer, Device, MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, OpenOptions, Parallelism, Pool, SegmentId, TierSettings};
use terrace_store::{Batch, ChunkId, ChunkPart, Compression, Piece, Store, StoreError};

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;
/// Of a root's payload: its version.
const VERSION_AT: usize = 0;
/// Where the two slots of a device start, bytes.
const SLOTS: [u64; 2] = [256 << 10, 384 << 10];

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
        flip(&pool, &store, id, (stored - 88) / BLOCKS * (BLOCKS - 2) + 900);
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

/// Two chunks, of one block and of several, each with half of noise.
fn put(store: &ChunkStore, contents: &[Vec<u8>]) -> Vec<ChunkId> {
    let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
    write(store, &pieces)
}

/// Of the root in a slot of a device.
fn version_in(device: &dyn Device, slot: u64) -> u8 {
    let mut payload = AlignedBuffer::zeroed(BLOCK);
    device.read_at(slot + BLOCK as u64, &mut payload).unwrap();
    payload[VERSION_AT]
}

fn root_version(pool: &Pool) -> u8 {
    pool.read_root().unwrap().unwrap()[VERSION_AT]
}

#[test]
fn a_pool_of_the_first_version_stays_so_until_it_is_upgraded_and_has_the_sums_then() {
    let device = disk();
    let pool = pool_on(&device);
    let first = Options {
        format_version: 1,
        ..options(1)
    };
    let store = ChunkStore::create(pool.clone(), first).unwrap();
    let lengths = [BLOCK, BLOCKS * BLOCK];
    let contents: Vec<Vec<u8>> = (0..8)
        .map(|seed| half_noise(seed)[..lengths[seed as usize % 2]].to_vec())
        .collect();
    let mut ids = put(&store, &contents[..2]);
    store.checkpoint().unwrap();
    ids.extend(put(&store, &contents[2..4]));
    store.close().unwrap();
    drop((store, pool));

    let pool = Arc::new(Pool::open(vec![device.clone()], OpenOptions::default()).unwrap());
    let store = ChunkStore::open(pool.clone(), options(2)).unwrap();
    ids.extend(put(&store, &contents[4..6]));
    store.checkpoint().unwrap();
    assert_eq!((store.format_version(), root_version(&pool)), (1, 1));
    assert_eq!(store.audit(None).unwrap().discrepancies, Vec::<String>::new());
    let before = ids.clone();

    store.upgrade_format().unwrap();
    let newest = FORMAT_NEWEST;
    assert_eq!((store.format_version(), root_version(&pool)), (newest, newest));
    // Should the newest root go bad, what an older program finds is not of its version either.
    assert_eq!(SLOTS.map(|slot| version_in(&*device, slot)), [newest, newest]);
    let after = put(&store, &contents[6..8]);
    for (before, after) in before.iter().zip(after.iter().cycle()) {
        let (before, after) = (record_bytes(&store, *before), record_bytes(&store, *after));
        assert!(before + 4 <= after, "{before} and {after} bytes");
    }
    ids.extend(&after);
    store.close().unwrap();
    drop((store, pool));

    let pool = Arc::new(Pool::open(vec![device.clone()], OpenOptions::default()).unwrap());
    let store = ChunkStore::open(pool.clone(), options(3)).unwrap();
    assert_eq!(store.format_version(), newest);
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(store.read_chunk(*id).unwrap(), content);
        let last = content.len() - BLOCK..content.len();
        assert_eq!(
            store.read_chunk_part(*id, last.start, BLOCK).unwrap(),
            content[last]
        );
    }
    // Where there are none the hash tells.
    for id in [before[0], after[0]] {
        flip(&pool, &store, id, 300);
        assert!(store.read_chunk(id).is_err());
        assert!(store.read_chunk_part(id, 0, BLOCK).is_err());
    }
}

#[test]
fn a_pool_of_a_version_that_is_too_new_is_not_called_damaged() {
    let device = disk();
    let pool = pool_on(&device);
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    store.close().unwrap();
    drop(store);
    let mut root = pool.read_root().unwrap().unwrap();
    root[VERSION_AT] = FORMAT_NEWEST + 1;
    pool.write_root(&root).unwrap();
    drop(pool);
    let pool = Arc::new(Pool::open(vec![device], OpenOptions::default()).unwrap());
    let error = ChunkStore::open(pool, options(2)).err().unwrap();
    let known = u32::from(FORMAT_NEWEST);
    let wanted = StoreError::Newer {
        version: known + 1,
        known,
    };
    assert_eq!(error.to_string(), wanted.to_string());
    assert!(!error.to_string().contains("damaged"), "{error}");
}
