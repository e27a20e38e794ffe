//! The store against the in-memory reference: the same random calls give the same answers, also after opening again.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::collections::BTreeMap;

use fixture::{audit, noise, open_pool, options, piece, settle, small};
use proptest::prelude::*;
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, MemoryStore, Store};

#[derive(Debug, Clone)]
enum Call {
    /// Replaces the file `key` by chunks of these seeds and lengths.
    Write {
        key: u8,
        chunks: Vec<(u8, u16)>,
    },
    Remove(u8),
    Flush,
    Step(u8),
    Checkpoint,
    Reopen,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        5 => (0u8..12, prop::collection::vec((0u8..30, 1u16..60_000), 1..6)).prop_map(|(key, chunks)| Call::Write { key, chunks }),
        3 => (0u8..12).prop_map(Call::Remove),
        2 => Just(Call::Flush),
        3 => (1u8..10).prop_map(Call::Step),
        1 => Just(Call::Checkpoint),
        1 => Just(Call::Reopen),
    ]
}

/// Chunk ids differ between the stores, so files remember the ids of both.
type Files = BTreeMap<u8, Vec<(ChunkId, ChunkId)>>;

fn remove(files: &mut Files, key: u8, real: &mut Batch, model: &mut Batch) {
    for (one, other) in files.remove(&key).unwrap_or_default() {
        real.reference(one, -3);
        model.reference(other, -3);
    }
    real.delete(vec![0x40, key]);
    model.delete(vec![0x40, key]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_give_what_the_reference_gives(calls in prop::collection::vec(call(), 1..50)) {
        let (device, _, mut store) = small(80);
        let model = MemoryStore::new(1 << 30);
        let mut files = Files::new();
        for (index, call) in calls.into_iter().enumerate() {
            match call {
                Call::Write { key, chunks } => {
                    let (mut real, mut reference) = (Batch::new(), Batch::new());
                    remove(&mut files, key, &mut real, &mut reference);
                    let contents: Vec<Vec<u8>> =
                        chunks.iter().map(|(seed, length)| noise((*seed).into(), (*length).into())).collect();
                    let pieces: Vec<_> = contents.iter().map(|content| piece(content)).collect();
                    let written = store.write_chunks(&pieces).unwrap();
                    let other = model.write_chunks(&pieces).unwrap();
                    let mut list = Vec::new();
                    for (one, other) in written.into_iter().zip(other) {
                        list.push((one.id, other.id));
                        real.reference(one.id, 3);
                        real.hold(one);
                        reference.reference(other.id, 3);
                        reference.hold(other);
                    }
                    real.put(vec![0x40, key], vec![key; list.len()]);
                    reference.put(vec![0x40, key], vec![key; list.len()]);
                    files.insert(key, list);
                    store.commit(real).unwrap();
                    model.commit(reference).unwrap();
                }
                Call::Remove(key) => {
                    let (mut real, mut reference) = (Batch::new(), Batch::new());
                    remove(&mut files, key, &mut real, &mut reference);
                    store.commit(real).unwrap();
                    model.commit(reference).unwrap();
                }
                Call::Flush => store.flush(store.newest()).unwrap(),
                Call::Step(times) => {
                    for _ in 0..times {
                        store.step().unwrap();
                    }
                }
                Call::Checkpoint => store.checkpoint().unwrap(),
                Call::Reopen => {
                    store.flush(store.newest()).unwrap();
                    drop(store);
                    device.cut(&mut rand::SeedableRng::seed_from_u64(index as u64));
                    store = ChunkStore::open(open_pool(std::slice::from_ref(&device)), options(index as u64 + 10)).unwrap();
                }
            }
        }
        prop_assert_eq!(store.scan(&[0x20], &[], 1000).unwrap(), model.scan(&[0x20], &[], 1000).unwrap());
        for (one, other) in files.values().flatten() {
            prop_assert_eq!(store.read_chunk(*one).unwrap(), model.read_chunk(*other).unwrap());
            let (here, there) = (store.chunk_info(*one).unwrap().unwrap(), model.chunk_info(*other).unwrap().unwrap());
            prop_assert_eq!((here.length, here.hash, here.references), (there.length, there.hash, there.references));
        }
        settle(&store);
        let (space, expected) = (store.space(), model.space());
        prop_assert_eq!(space.chunks, expected.chunks);
        prop_assert_eq!(space.unique_bytes, expected.unique_bytes);
        prop_assert_eq!(space.logical_bytes, expected.logical_bytes);
        audit(&store);
    }
}
