//! What threads do to one another, and what is lost or free, must not touch what is written next.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use fixture::{audit, noise, piece, settle, small};
use terrace_chunk::ChunkStore;
use terrace_pool::SegmentId;
use terrace_store::{Batch, ChunkId, Store, StoreError};

fn put(store: &ChunkStore, content: &[u8]) -> ChunkId {
    let written = store.write_chunks(&[piece(content)]).unwrap().remove(0);
    let id = written.id;
    let mut batch = Batch::new();
    batch.reference(id, 1);
    batch.hold(written);
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    id
}

#[test]
fn a_segment_is_discarded_before_anyone_else_can_have_it() {
    let (device, _, store) = small(64);
    let (discards, too_late) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let told = {
        let (pool, discards, too_late) = (store.pool().clone(), discards.clone(), too_late.clone());
        move |offset: u64| {
            let index = ((offset - (1 << 20)) / u64::from(pool.segment_bytes())) as u32;
            discards.fetch_add(1, Ordering::SeqCst);
            if !pool.is_claimed(SegmentId { device: 0, index }) {
                too_late.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    *device.on_discard.lock() = Some(Box::new(told));
    let ids: Vec<ChunkId> = (0..100).map(|seed| put(&store, &noise(seed, 100_000))).collect();
    let mut batch = Batch::new();
    ids.iter().for_each(|id| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    settle(&store);
    assert!(discards.load(Ordering::SeqCst) > 0, "segments became free");
    assert_eq!(too_late.load(Ordering::SeqCst), 0);
    audit(&store);
}

#[test]
fn a_chunk_can_be_read_all_through_its_commit() {
    let (_, _, store) = small(64);
    for round in 0..40u64 {
        let content = noise(round, 5000);
        let written = store.write_chunks(&[piece(&content)]).unwrap().remove(0);
        let id = written.id;
        let mut batch = Batch::new();
        batch.reference(id, 2);
        batch.hold(written);
        for record in 0..4000u64 {
            batch.put([&[0x20][..], &record.to_be_bytes()].concat(), [0; 8]);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    assert_eq!(store.read_chunk(id).unwrap(), content);
                }
            });
            store.commit(batch).unwrap();
            done.store(true, Ordering::SeqCst);
            reader.join().unwrap();
        });
    }
}

#[test]
fn content_that_was_lost_is_stored_when_it_is_written_again() {
    let (device, _, store) = small(64);
    let content = noise(1, 60_000);
    let lost = put(&store, &content);
    store.close_streams().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(put(&store, &content), lost, "equal content is stored once");
    let info = store.chunk_info(lost).unwrap().unwrap();
    let start = (1 << 20) + u64::from(info.segment) * u64::from(store.pool().segment_bytes());
    assert!(device.flip(start + 20_000));
    assert!(matches!(store.read_chunk(lost), Err(StoreError::Damaged { .. })));
    let again = put(&store, &content);
    assert_ne!(again, lost);
    assert_eq!(store.read_chunk(again).unwrap(), content);
    assert_eq!(
        put(&store, &content),
        again,
        "the new chunk takes part in deduplication"
    );
    audit(&store);
}
