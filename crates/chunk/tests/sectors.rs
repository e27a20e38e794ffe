//! What is read of a device: no more sectors than hold what is wanted, alone or with others.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::Arc;

use fixture::{noise, options, piece};
use terrace_chunk::ChunkStore;
use terrace_device::{Device, MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
use terrace_store::{Batch, ChunkId, ChunkPart, Store};

const SECTOR: u64 = 512;

/// A store on one device that is read by sectors, with chunks of all kinds of lengths whose bytes have been written out.
fn store_with(contents: &[Vec<u8>]) -> (Arc<Pool>, Arc<ChunkStore>, Vec<ChunkId>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("d0", 80 << 20));
    let create = CreateOptions {
        name: "tank".into(),
        tiers: vec![(TierSettings::named("only"), vec![device])],
        properties: Default::default(),
        segment_bytes: None,
        created_nanoseconds: 1,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Arc::new(Pool::create(create, &SeededRandomness::new(7)).unwrap());
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
    let written = store.write_chunks(&pieces).unwrap();
    let ids = written.iter().map(|written| written.id).collect();
    let mut batch = Batch::new();
    for written in written {
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    // What is read from memory costs no read.
    store.close_streams().unwrap();
    (pool, store, ids)
}

fn read_bytes(pool: &Pool) -> u64 {
    pool.devices()
        .iter()
        .map(|device| device.counters.read_bytes)
        .sum()
}

#[test]
fn a_block_of_a_chunk_costs_the_sectors_that_hold_it() {
    let contents: Vec<Vec<u8>> = (0..24).map(|seed| noise(seed, 16 << 10)).collect();
    let (pool, store, ids) = store_with(&contents);
    for (id, content) in ids.iter().zip(&contents) {
        for block in 0..4 {
            let before = read_bytes(&pool);
            let range = block * 4096..(block + 1) * 4096;
            let part = store.read_chunk_part(*id, range.start, range.len()).unwrap();
            assert_eq!(part, content[range.clone()]);
            let cost = read_bytes(&pool) - before;
            assert!(cost <= 4096 + SECTOR, "{cost} bytes for a block");
            let before = read_bytes(&pool);
            let parts = [ChunkPart {
                id: *id,
                range: Some(range.clone()),
            }];
            let found = store.read_chunk_parts(&parts);
            assert_eq!(found[0].as_ref().unwrap(), &content[range]);
            let cost = read_bytes(&pool) - before;
            assert!(cost <= 4096 + SECTOR, "{cost} bytes for a block among several");
        }
    }
}

#[test]
fn a_compressed_chunk_costs_the_sectors_that_hold_it() {
    let contents: Vec<Vec<u8>> = (0..24)
        .map(|seed| [noise(seed, 6000), vec![seed as u8; 10_384]].concat())
        .collect();
    let (pool, store, ids) = store_with(&contents);
    for (id, content) in ids.iter().zip(&contents) {
        let stored = u64::from(store.chunk_info(*id).unwrap().unwrap().stored);
        assert!(stored < 8000, "it is compressed");
        let before = read_bytes(&pool);
        assert_eq!(
            store.read_chunk_part(*id, 4096, 4096).unwrap(),
            content[4096..8192]
        );
        let cost = read_bytes(&pool) - before;
        assert!(cost < stored + 2 * SECTOR, "{cost} bytes for one of {stored}");
    }
}

#[test]
fn a_flipped_bit_in_the_sectors_of_a_block_is_seen() {
    let content = noise(1, 16 << 10);
    let (pool, store, ids) = store_with(std::slice::from_ref(&content));
    let info = store.chunk_info(ids[0]).unwrap().unwrap();
    let segment = terrace_pool::SegmentId {
        device: info.device,
        index: info.segment,
    };
    // In the middle of the third block.
    let at = info.offset as u64 + 2 * 4096 + 2000;
    let mut page = vec![0; 4096];
    let start = at / 4096 * 4096;
    pool.read(segment, start, &mut page).unwrap();
    page[(at - start) as usize] ^= 1;
    pool.write(segment, start, &page).unwrap();
    for block in 0..4 {
        let part = store.read_chunk_part(ids[0], block * 4096, 4096);
        assert_eq!(part.is_ok(), block != 2, "block {block}");
    }
}
