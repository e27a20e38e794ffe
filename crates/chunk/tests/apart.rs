//! Payloads that are stored as they are and fill whole blocks lie on whole blocks of the device, apart from their headers; they are
//! found by these wherever they go.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::{collections::BTreeSet, sync::Arc};

use fixture::{FaultDevice, Power, audit, make_pool, noise, open_pool, options, piece, settle};
use terrace_chunk::{ChunkStore, Survey};
use terrace_pool::SEGMENT_AREA_OFFSET;
use terrace_store::{Batch, ChunkId, Owner, Piece, Placement, Store};

const BLOCK: usize = 4096;
const TIERS: usize = 2;

fn devices() -> [Arc<FaultDevice>; TIERS] {
    let power = Power::new();
    ["fast", "slow"].map(|name| FaultDevice::new(name, 80 << 20, power.clone()))
}

fn owner(number: usize) -> Owner {
    Owner {
        dataset: 3,
        object: 7,
        block: number as u64 * 32,
        checkpoint: 5,
    }
}

/// Whole blocks, some of them one, one that does not end with a block, and one that compresses.
fn content(number: usize) -> Vec<u8> {
    match number % 6 {
        4 => noise(number as u64, 5000),
        5 => vec![number as u8; 3 * BLOCK],
        kind => noise(number as u64, [1, 4, 32, 2][kind] * BLOCK),
    }
}

fn is_whole(number: usize) -> bool {
    number % 6 < 4
}

fn write(store: &ChunkStore, numbers: std::ops::Range<usize>) -> Vec<ChunkId> {
    let mut ids = Vec::new();
    for number in numbers {
        let content = content(number);
        let piece = Piece {
            owner: owner(number),
            ..piece(&content)
        };
        let written = store.write_chunks(&[piece]).unwrap().remove(0);
        ids.push(written.id);
        let mut batch = Batch::new();
        batch.reference(written.id, 1);
        batch.hold(written);
        let sequence = store.commit(batch).unwrap();
        if number % 50 == 0 {
            store.flush(sequence).unwrap();
        }
    }
    store.flush(store.newest()).unwrap();
    ids
}

fn check(store: &ChunkStore, live: &[(usize, ChunkId)]) {
    for (number, id) in live {
        let content = content(*number);
        assert_eq!(store.read_chunk(*id).unwrap(), content, "{number}");
        let last = content.len() - content.len() % BLOCK.min(content.len() - 1) - 1..content.len();
        let part = store.read_chunk_part(*id, last.start, last.len()).unwrap();
        assert_eq!(part, content[last], "{number}");
    }
}

/// How many of these lie on whole blocks; those whose length is none never do but by chance.
fn on_blocks(store: &ChunkStore, live: &[(usize, ChunkId)]) -> usize {
    let lies = |id: &ChunkId| (store.chunk_info(*id).unwrap().unwrap().offset as usize).is_multiple_of(BLOCK);
    live.iter()
        .filter(|(number, id)| is_whole(*number) && lies(id))
        .count()
}

/// The headers on the devices tell of each, where it is, for whom it was written and what is in it.
fn is_told_of(store: &ChunkStore, live: &[(usize, ChunkId)]) {
    is_told_of_but_owner(store, live, None);
}

/// The same, but for the owner of one.
fn is_told_of_but_owner(store: &ChunkStore, live: &[(usize, ChunkId)], without: Option<usize>) {
    let survey = Survey::new(store.pool(), &mut |_| {});
    for (number, id) in live {
        let info = store.chunk_info(*id).unwrap().unwrap();
        let here = survey.places(*id).iter().find(|place| {
            (place.segment.device, place.segment.index, place.payload)
                == (info.device, info.segment, info.offset)
        });
        let here = here.unwrap_or_else(|| panic!("nothing tells of chunk {id}, number {number}"));
        let is_known = without != Some(*number);
        assert_eq!(
            here.owner,
            if is_known {
                owner(*number)
            } else {
                Owner::default()
            }
        );
        let (hash, found) = ChunkStore::read_found(store.pool(), here).unwrap();
        assert_eq!((hash, found), (info.hash, content(*number)));
    }
}

#[test]
fn whole_blocks_lie_on_whole_blocks_and_their_headers_tell_of_them_wherever_they_go() {
    const CHUNKS: usize = 600;
    let devices = devices();
    let [fast, slow] = devices.clone();
    let pool = make_pool(&[("fast", 1, vec![fast]), ("slow", 1, vec![slow])]);
    let store = ChunkStore::create(pool, options(1)).unwrap();
    let mut live: Vec<(usize, ChunkId)> = write(&store, 0..CHUNKS).into_iter().enumerate().collect();
    let whole = live.iter().filter(|(number, _)| is_whole(*number)).count();
    // What comes between them costs padding, which is bounded: some of the others lie behind their headers.
    assert!(
        on_blocks(&store, &live) > whole / 4,
        "{}",
        on_blocks(&store, &live)
    );
    check(&store, &live);

    // To another tier, and out of segments that are half garbage.
    let slow = Placement::Tier {
        tier: 1,
        strict: true,
    };
    let down: Vec<ChunkId> = live[CHUNKS / 2..].iter().map(|(_, id)| *id).collect();
    assert_eq!(store.rewrite(&down, slow).unwrap().moved, down.len() as u64);
    let places = |live: &[(usize, ChunkId)]| -> BTreeSet<(u16, u32, u32)> {
        let infos = live.iter().map(|(_, id)| store.chunk_info(*id).unwrap().unwrap());
        infos
            .map(|info| (info.device, info.segment, info.offset))
            .collect()
    };
    let mut batch = Batch::new();
    live.iter()
        .filter(|(number, _)| number / 6 % 3 > 0)
        .for_each(|(_, id)| batch.reference(*id, -1));
    store.commit(batch).unwrap();
    live.retain(|(number, _)| number / 6 % 3 == 0);
    let before = places(&live);
    settle(&store);
    let stayed = before.intersection(&places(&live)).count();
    assert!(stayed < live.len() / 2, "{stayed} were not moved");
    check(&store, &live);
    is_told_of(&store, &live);
    assert!(on_blocks(&store, &live) > 0);
    audit(&store);
    store.close().unwrap();
    drop(store);

    let store = ChunkStore::open(open_pool(&devices), options(2)).unwrap();
    check(&store, &live);
    audit(&store);
}

#[test]
fn what_cannot_be_written_where_it_should_lies_on_whole_blocks_elsewhere() {
    let devices = devices();
    let [first, second] = devices.clone();
    let pool = make_pool(&[("only", 1, vec![first, second])]);
    let store = ChunkStore::create(pool, options(1)).unwrap();
    for device in &devices {
        device.refuse_chunks(true);
        let ids = write(&store, 0..60);
        device.refuse_chunks(false);
        let live: Vec<(usize, ChunkId)> = ids.into_iter().enumerate().collect();
        check(&store, &live);
        is_told_of(&store, &live);
        audit(&store);
    }
}

/// A pool on a volume of another one, say: what was taken out of a segment is the content of chunks.
#[test]
fn what_chunks_hold_is_not_taken_for_what_tells_of_chunks() {
    let devices = devices();
    let [fast, slow] = devices.clone();
    let pool = make_pool(&[("fast", 1, vec![fast]), ("slow", 1, vec![slow])]);
    let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
    let put = |content: &[u8]| {
        let written = store.write_chunks(&[piece(content)]).unwrap().remove(0);
        let id = written.id;
        let mut batch = Batch::new();
        batch.reference(id, 1);
        batch.hold(written);
        store.flush(store.commit(batch).unwrap()).unwrap();
        id
    };
    let first = put(&noise(1, BLOCK));
    let info = store.chunk_info(first).unwrap().unwrap();
    let segment = terrace_pool::SegmentId {
        device: info.device,
        index: info.segment,
    };
    let mut written = vec![0; 2 * BLOCK];
    let from = u64::from(info.offset) - BLOCK as u64;
    pool.read(segment, from, &mut written).unwrap();
    assert_eq!(written[BLOCK..], noise(1, BLOCK));
    // The block that tells of it, in front of noise so that it does not compress, and behind a block of it.
    let copy = [&written[..], &noise(2, 14 * BLOCK)].concat();
    let behind = [&noise(3, BLOCK), &copy[..]].concat();
    let (second, third) = (put(&copy), put(&behind));
    store.close_streams().unwrap();
    let survey = Survey::new(&pool, &mut |_| {});
    for id in [first, second, third] {
        assert_eq!(survey.places(id).len(), 1, "{:?}", survey.places(id));
    }
    assert_eq!(store.read_chunk(third).unwrap(), behind);
}

/// The power goes while a buffer is written: what a device has kept of it may be the payloads and not the block that tells of them.
/// What they hold is kept, and told of again.
#[test]
fn content_of_which_nothing_tells_after_a_power_cut_is_told_of_again() {
    for lost in [None, Some(6), Some(8), Some(12)] {
        let device = FaultDevice::new("only", 80 << 20, Power::new());
        let pool = make_pool(&[("only", 1, vec![device.clone()])]);
        let store = ChunkStore::create(pool.clone(), options(1)).unwrap();
        let mut live: Vec<(usize, ChunkId)> = (0..6).zip(write(&store, 0..6)).collect();
        let contents: Vec<Vec<u8>> = (6..18).map(content).collect();
        let mut batch = Batch::new();
        for (number, content) in (6..).zip(&contents) {
            let piece = Piece {
                owner: owner(number),
                ..piece(content)
            };
            let written = store.write_chunks(&[piece]).unwrap().remove(0);
            live.push((number, written.id));
            batch.reference(written.id, 1);
            batch.hold(written);
        }
        // No later entry says that this one was durable.
        store.flush(store.commit(batch).unwrap()).unwrap();
        if let Some(number) = lost {
            let (_, id) = live[number];
            let survey = Survey::new(&pool, &mut |_| {});
            let place = survey.places(id)[0];
            assert!(place.payload - place.offset > 88, "it lies apart");
            let segment = u64::from(place.segment.index) * u64::from(pool.segment_bytes());
            assert!(device.flip(SEGMENT_AREA_OFFSET + segment + u64::from(place.offset) + 20));
        }
        drop((store, pool));
        let store = ChunkStore::open(open_pool(std::slice::from_ref(&device)), options(2)).unwrap();
        check(&store, &live);
        settle(&store);
        store.close_streams().unwrap();
        check(&store, &live);
        is_told_of_but_owner(&store, &live, lost);
    }
}
