//! What is said to be freed soon, across an opening: all of it, and never less than nothing.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use fixture::{audit, noise, open_pool, options, piece, settle, small};
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Store};

/// So many that an opening does not count them all.
const CHUNKS: u64 = 20_000;

fn change(store: &ChunkStore, ids: &[ChunkId], blocks: i64) {
    let mut batch = Batch::new();
    ids.iter().for_each(|id| batch.reference(*id, blocks));
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
}

fn pending(store: &ChunkStore) -> u64 {
    store.space().pending_free_bytes
}

#[test]
fn what_is_on_the_list_when_a_store_is_opened_is_counted_before_it_is_freed() {
    let (device, _, store) = small(80);
    let contents: Vec<Vec<u8>> = (0..CHUNKS).map(|number| noise(number, 200)).collect();
    let mut ids = Vec::new();
    for contents in contents.chunks(1000) {
        let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
        let written = store.write_chunks(&pieces).unwrap();
        let new: Vec<ChunkId> = written.iter().map(|chunk| chunk.id).collect();
        change(&store, &new, 1);
        ids.extend(new);
    }
    let (kept, dead) = ids.split_at(1000);
    change(&store, dead, -1);
    let all = pending(&store);
    assert!(all > 2 << 20, "{all}");
    drop(store);
    device.keep_all();

    let store = ChunkStore::open(open_pool(std::slice::from_ref(&device)), options(3)).unwrap();
    let at_first = pending(&store);
    assert!((1..all).contains(&at_first), "{at_first} of {all}");
    let mut most = 0;
    while pending(&store) >= most {
        most = pending(&store);
        store.step().unwrap();
    }
    assert_eq!(most, all);
    settle(&store);
    assert_eq!(pending(&store), 0);
    audit(&store);
    // It was below nothing before, and what came next was not seen.
    change(&store, kept, -1);
    assert!(pending(&store) > 100_000, "{}", pending(&store));
    audit(&store);
    drop(store);
    device.keep_all();

    // A short list is counted at once.
    let store = ChunkStore::open(open_pool(&[device]), options(4)).unwrap();
    assert!(pending(&store) > 100_000, "{}", pending(&store));
    settle(&store);
    assert_eq!(pending(&store), 0);
    audit(&store);
}
