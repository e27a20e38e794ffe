//! The plain cases: what is written comes back, at once and after opening again.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use fixture::{audit, make_pool, noise, open_pool, options, piece, settle, small};
use terrace_chunk::ChunkStore;
use terrace_store::{Batch, ChunkId, Compression, Dedup, Piece, Sequence, Store, StoreError, Trial};

fn put(store: &ChunkStore, key: &[u8], contents: &[&[u8]]) -> (Vec<ChunkId>, Sequence) {
    let pieces: Vec<Piece<'_>> = contents.iter().map(|content| piece(content)).collect();
    let written = store.write_chunks(&pieces).unwrap();
    let ids: Vec<ChunkId> = written.iter().map(|written| written.id).collect();
    let mut batch = Batch::new();
    let mut value = Vec::new();
    for written in written {
        value.extend_from_slice(&written.id.0.to_le_bytes());
        batch.reference(written.id, 1);
        batch.hold(written);
    }
    batch.put([b"\x30", key].concat(), value);
    let sequence = store.commit(batch).unwrap();
    (ids, sequence)
}

#[test]
fn chunks_come_back_before_and_after_the_flush_and_after_opening_again() {
    let (device, _, store) = small(80);
    let text = b"all work and no play ".repeat(5000);
    let contents: Vec<Vec<u8>> = vec![
        vec![1; 1],
        noise(1, 4096),
        noise(2, 100_000),
        text,
        noise(3, 131_072),
    ];
    let refs: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let (ids, sequence) = put(&store, b"a", &refs);
    let check = |store: &ChunkStore| {
        for (id, content) in ids.iter().zip(&contents) {
            assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
            let (from, to) = (content.len() / 3, content.len());
            assert_eq!(
                store.read_chunk_part(*id, from, to - from).unwrap(),
                content[from..]
            );
            assert!(store.read_chunk_part(*id, 1, to).is_err());
            let info = store.chunk_info(*id).unwrap().unwrap();
            assert_eq!((info.length as usize, info.references), (content.len(), 1));
        }
    };
    check(&store);
    store.flush(sequence).unwrap();
    check(&store);
    drop(store);
    device.keep_all();
    let store = ChunkStore::open(open_pool(std::slice::from_ref(&device)), options(2)).unwrap();
    check(&store);
    audit(&store);
    store.checkpoint().unwrap();
    settle(&store);
    check(&store);
    audit(&store);
    drop(store);
    let store = ChunkStore::open(open_pool(&[device]), options(3)).unwrap();
    check(&store);
    audit(&store);
    assert!(store.newest() >= sequence);
}

#[test]
fn equal_content_is_stored_once_also_before_it_is_committed() {
    let (_, _, store) = small(80);
    let content = noise(1, 50_000);
    let first = store.write_chunks(&[piece(&content), piece(&content)]).unwrap();
    assert_eq!(first[0].id, first[1].id);
    assert!(first[1].deduplicated && !first[0].deduplicated);
    drop(first);
    // Nobody held it: the next one is new.
    let again = store.write_chunks(&[piece(&content)]).unwrap();
    assert!(!again[0].deduplicated);
    let (ids, _) = put(&store, b"a", &[&content]);
    assert_eq!(ids[0], again[0].id);
    drop(again);
    let more = store.write_chunks(&[piece(&content)]).unwrap();
    assert!(more[0].deduplicated);
    assert_eq!(store.space().chunks, 1);
    let none = store
        .write_chunks(&[Piece {
            dedup: Dedup::Off,
            ..piece(&content)
        }])
        .unwrap();
    assert!(!none[0].deduplicated);
}

#[test]
fn a_hint_goes_with_its_chunk_unless_it_lately_leads_to_another() {
    let (_, _, store) = small(80);
    let content = noise(1, 50_000);
    let (ids, _) = put(&store, b"a", &[&content]);
    let other = Piece {
        dedup: Dedup::Off,
        ..piece(&content)
    };
    let other = store.write_chunks(&[other]).unwrap().remove(0);
    let (first, second) = (ids[0], other.id);
    assert_ne!(first, second);
    let mut batch = Batch::new();
    batch.reference(second, 1);
    batch.hold(other);
    store.commit(batch).unwrap();
    let free = |id| {
        let mut batch = Batch::new();
        batch.reference(id, -1);
        store.commit(batch).unwrap();
        settle(&store);
    };
    free(first);
    assert_eq!(store.space().chunks, 1);
    let equal = store.write_chunks(&[piece(&content)]).unwrap().remove(0);
    assert_eq!((equal.id, equal.deduplicated), (second, true));
    drop(equal);
    free(second);
    assert_eq!(store.space().chunks, 0);
    let none = store.write_chunks(&[piece(&content)]).unwrap().remove(0);
    assert!(!none.deduplicated);
}

#[test]
fn background_work_rests_the_less_the_more_garbage_there_is() {
    let (_, _, store) = small(80);
    let mut courtesies = vec![store.throttle_share()];
    for round in 0..2u64 {
        let contents: Vec<Vec<u8>> = (0..160).map(|n| noise(round * 1000 + n, 131_072)).collect();
        let refs: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        let (ids, _) = put(&store, b"a", &refs);
        let mut batch = Batch::new();
        ids.iter().for_each(|id| batch.reference(*id, -1));
        let sequence = store.commit(batch).unwrap();
        store.flush(sequence).unwrap();
        courtesies.push(store.throttle_share());
    }
    // 20 MiB of garbage beside some 55 that are free, then 40 beside 35.
    assert!(courtesies[0] > 0.9, "{courtesies:?}");
    assert!((0.3..0.8).contains(&courtesies[1]), "{courtesies:?}");
    assert_eq!(courtesies[2], 0.0);
    settle(&store);
    assert!(store.throttle_share() > 0.9, "{}", store.throttle_share());
}

#[test]
fn what_nothing_refers_to_is_freed_and_its_segments_are_used_again() {
    let (device, _, store) = small(80);
    let at_first = store.space();
    for round in 0..4u64 {
        let contents: Vec<Vec<u8>> = (0..160).map(|n| noise(round * 1000 + n, 131_072)).collect();
        let refs: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        let (ids, sequence) = put(&store, b"a", &refs);
        store.flush(sequence).unwrap();
        assert_eq!(store.space().chunks, 160);
        let mut batch = Batch::new();
        ids.iter().for_each(|id| batch.reference(*id, -1));
        batch.delete(b"\x30a".to_vec());
        let sequence = store.commit(batch).unwrap();
        assert!(store.space().pending_free_bytes > 10 << 20);
        store.flush(sequence).unwrap();
        settle(&store);
        assert!(store.throttle_share() > 0.9, "{}", store.throttle_share());
        assert_eq!(store.space().chunks, 0);
        assert_eq!(store.space().pending_free_bytes, 0);
        assert!(matches!(store.read_chunk(ids[0]), Err(StoreError::NoChunk(_))));
        audit(&store);
    }
    assert!(store.space().used_bytes < at_first.used_bytes + (8 << 20));
    drop(store);
    device.keep_all();
    audit(&ChunkStore::open(open_pool(&[device]), options(3)).unwrap());
}

#[test]
fn a_held_chunk_outlives_its_references() {
    let (_, _, store) = small(80);
    let content = noise(1, 30_000);
    let (ids, _) = put(&store, b"a", &[&content]);
    let held = store.write_chunks(&[piece(&content)]).unwrap();
    assert!(held[0].deduplicated);
    let mut batch = Batch::new();
    batch.reference(ids[0], -1);
    store.commit(batch).unwrap();
    settle(&store);
    assert_eq!(store.read_chunk(ids[0]).unwrap(), content[..]);
    drop(held);
    settle(&store);
    assert!(store.read_chunk(ids[0]).is_err());
    audit(&store);
}

#[test]
fn compaction_gives_the_space_of_half_empty_segments_back() {
    let (_, _, store) = small(80);
    let contents: Vec<Vec<u8>> = (0..240).map(|n| noise(n, 131_072)).collect();
    let refs: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let (ids, sequence) = put(&store, b"a", &refs);
    store.flush(sequence).unwrap();
    let full = store.space().used_bytes;
    let mut batch = Batch::new();
    ids.iter().step_by(2).for_each(|id| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    settle(&store);
    let half = store.space();
    assert!(
        half.used_bytes < full - (10 << 20),
        "{} of {full}",
        half.used_bytes
    );
    for (id, content) in ids.iter().zip(&contents).skip(1).step_by(2) {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    audit(&store);
}

#[test]
fn a_full_pool_says_so_and_takes_data_again_after_deleting() {
    let (_, _, store) = small(80);
    let mut ids = Vec::new();
    let error = 'full: loop {
        for n in 0..10_000u64 {
            let content = noise(n, 131_072);
            let written = match store.write_chunks(&[piece(&content)]) {
                Ok(written) => written,
                Err(error) => break 'full error,
            };
            let mut batch = Batch::new();
            for written in written {
                ids.push((written.id, n));
                batch.reference(written.id, 32);
                batch.hold(written);
            }
            store.commit(batch).unwrap();
        }
    };
    assert!(matches!(error, StoreError::NoSpace), "{error}");
    assert!(ids.len() > 350, "only {} chunks fit", ids.len());
    assert!(matches!(store.reserve(4 << 20), Err(StoreError::NoSpace)));
    let newest = store.newest();
    store.flush(newest).unwrap();
    for (id, n) in &ids {
        assert_eq!(store.read_chunk(*id).unwrap(), noise(*n, 131_072)[..]);
    }
    // Every other chunk goes: compaction must find the room.
    let mut batch = Batch::new();
    batch.privileged();
    ids.iter()
        .step_by(2)
        .for_each(|(id, _)| batch.reference(*id, -32));
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
    let reservation = store.reserve(8 << 20).unwrap();
    for n in 0..64u64 {
        let content = noise(50_000 + n, 131_072);
        let written = store.write_chunks(&[piece(&content)]).unwrap();
        let mut batch = Batch::new();
        for written in written {
            batch.reference(written.id, 1);
            batch.hold(written);
        }
        store.commit(batch).unwrap();
    }
    drop(reservation);
    settle(&store);
    audit(&store);
}

#[test]
fn garbage_of_a_tier_comes_back_although_the_pool_has_little_of_it() {
    let power = fixture::Power::new();
    let devices = ["fast", "slow"].map(|name| fixture::FaultDevice::new(name, 160 << 20, power.clone()));
    let pool = make_pool(&[
        ("fast", 1, vec![devices[0].clone()]),
        ("slow", 1, vec![devices[1].clone()]),
    ]);
    let store = ChunkStore::create(pool, options(1)).unwrap();
    let contents: Vec<Vec<u8>> = (0..600).map(|n| noise(n, 131_072)).collect();
    let refs: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let (ids, sequence) = put(&store, b"a", &refs);
    store.flush(sequence).unwrap();
    let (up, down) = ids.split_at(300);
    let slow = terrace_store::Placement::Tier {
        tier: 1,
        strict: true,
    };
    store.rewrite(down, slow).unwrap();
    settle(&store);
    let before = store.space().tiers[0].used_bytes;
    // A third of the fast tier, a sixth of the pool.
    let mut batch = Batch::new();
    up.iter().step_by(3).for_each(|id| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    settle(&store);
    let tier = &store.space().tiers[0];
    assert!(
        tier.used_bytes + (4 << 20) < before,
        "{} of {before}",
        tier.used_bytes
    );
    assert!(tier.live_bytes + tier.metadata_bytes <= tier.used_bytes);
    for (at, (id, content)) in ids.iter().zip(&contents).enumerate() {
        if at >= 300 || at % 3 > 0 {
            assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
            let tier = store.chunk_info(*id).unwrap().unwrap().tier;
            assert_eq!(
                tier,
                u8::from(at >= 300),
                "compaction moves nothing to another tier"
            );
            assert_eq!(store.chunk_tier(*id).unwrap(), Some(tier));
        }
    }
    audit(&store);
}

#[test]
fn moving_between_tiers_keeps_the_content_and_frees_the_old_place() {
    let power = fixture::Power::new();
    let devices = ["fast", "slow"].map(|name| fixture::FaultDevice::new(name, 80 << 20, power.clone()));
    let pool = make_pool(&[
        ("fast", 1, vec![devices[0].clone()]),
        ("slow", 1, vec![devices[1].clone()]),
    ]);
    let store = ChunkStore::create(pool, options(1)).unwrap();
    let contents: Vec<Vec<u8>> = (0..100).map(|n| noise(n, 100_000)).collect();
    let refs: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let (ids, sequence) = put(&store, b"a", &refs);
    store.flush(sequence).unwrap();
    let place = terrace_store::Placement::Tier {
        tier: 1,
        strict: true,
    };
    let outcome = store.rewrite(&ids, place).unwrap();
    assert!(outcome.moved >= 80, "{outcome:?}");
    let newest = store.newest();
    store.flush(newest).unwrap();
    settle(&store);
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    assert!(store.space().tiers[1].live_bytes > 8_000_000);
    audit(&store);
    drop(store);
    devices.iter().for_each(|device| device.keep_all());
    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(store.read_chunk(*id).unwrap(), content[..]);
    }
    audit(&store);
}

#[test]
fn bounds_of_the_contract_are_kept() {
    let (_, _, store) = small(80);
    let mut batch = Batch::new();
    batch.put(vec![0x01, 2], vec![1]);
    assert!(matches!(store.commit(batch), Err(StoreError::Invalid(_))));
    let mut batch = Batch::new();
    batch.reference(ChunkId(77), 1);
    assert!(matches!(
        store.commit(batch),
        Err(StoreError::NoChunk(ChunkId(77)))
    ));
    assert!(store.write_chunks(&[piece(&[])]).is_err());
    assert!(store.write_chunks(&[piece(&vec![1; 131_073])]).is_err());
    assert!(matches!(
        store.read_chunk(ChunkId(5)),
        Err(StoreError::NoChunk(_))
    ));
    let zstd = Piece {
        compression: Compression::Zstd(3),
        trial: Trial::Untried,
        ..piece(&[7; 100_000])
    };
    let written = store.write_chunks(&[zstd]).unwrap();
    assert_eq!(store.read_chunk(written[0].id).unwrap(), vec![7; 100_000]);
    assert!(store.chunk_info(written[0].id).unwrap().unwrap().stored < 1000);
}
