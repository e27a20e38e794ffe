//! The bytes of docs/format.md: a change here is a change of the format, and pools that were made before must still open.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::collections::BTreeMap;

use media::{MIB, Shelf, create, degraded, open, sequential};
use terrace_device::{AlignedBuffer, Device};
use terrace_pool::{LABEL_BYTES, Label, Landing, Member, Pool, PoolError, PoolState, Presence, TierSettings};

/// The body of a label, by hand from the table in docs/format.md.
fn body() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend([0xAB; 16]);
    body.extend(b"\x04tank");
    body.push(2);
    body.extend(5u64.to_le_bytes());
    body.extend(3u16.to_le_bytes());
    body.extend(4u16.to_le_bytes());
    body.extend((1u32 << 20).to_le_bytes());
    body.extend(1_700_000_000_000_000_000u64.to_le_bytes());
    body.push(1);
    body.extend(b"\x04fast");
    body.extend(0.85f64.to_bits().to_le_bytes());
    body.extend(0.6f64.to_bits().to_le_bytes());
    body.push(1);
    body.extend(3u32.to_le_bytes());
    body.extend(60u64.to_le_bytes());
    body.extend(1_000_000u64.to_le_bytes());
    body.extend(b"\x0b01:00-05:00");
    body.push(2);
    body.extend(1u16.to_le_bytes());
    body.extend(3u16.to_le_bytes());
    body.extend([0xCD; 16]);
    body.push(0);
    body.extend((100u64 << 20).to_le_bytes());
    body.extend(b"\x08/dev/sdb");
    body.extend(1u16.to_le_bytes());
    body.extend(b"\x06memory\x021G");
    // Nothing is said of devices that are away.
    body.extend(0u16.to_le_bytes());
    body
}

/// The whole label.
fn label_of(version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [b"TERRLABL", &version.to_le_bytes()[..]].concat();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes.resize(LABEL_BYTES - 32, 0);
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    bytes
}

fn label() -> Label {
    Label {
        pool_id: [0xAB; 16],
        pool_name: "tank".into(),
        state: PoolState::Exported,
        generation: 5,
        number: 3,
        next_number: 4,
        segment_bytes: 1 << 20,
        created_nanoseconds: 1_700_000_000_000_000_000,
        tiers: vec![TierSettings {
            landing: Landing::SEQUENTIAL,
            demote_after_seconds: 60,
            rate_limit: 1_000_000,
            window: "01:00-05:00".into(),
            copies: 2,
            ..TierSettings::named("fast")
        }],
        members: vec![Member {
            number: 3,
            id: [0xCD; 16],
            tier: 0,
            size_bytes: 100 << 20,
            path: "/dev/sdb".into(),
            presence: Presence::Whole,
            begun: Vec::new(),
        }],
        properties: BTreeMap::from([("memory".into(), "1G".into())]),
    }
}

#[test]
fn a_label_has_the_bytes_that_the_manual_says() {
    let mut wanted = label();
    for (landing, bits) in [(Landing::SEQUENTIAL, 1), (Landing::RANDOM, 2), (Landing::ALL, 3)] {
        wanted.tiers[0].landing = landing;
        let mut body = body();
        body[68] = bits;
        let bytes = label_of(4, &body);
        assert!(wanted.encode().unwrap()[..] == bytes[..]);
        assert_eq!(Label::decode(&bytes).unwrap(), wanted);
    }
}

#[test]
fn a_label_says_of_a_device_that_it_is_away_in_the_bytes_that_the_manual_says() {
    let mut wanted = label();
    for (presence, begun, bytes) in [
        (
            Presence::Absent { since: 3 },
            vec![],
            b"\x01\x03\0\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            Presence::Absent { since: 3 },
            vec![[9; 16]],
            [&b"\x01\x03\0\0\0\0\0\0\0\x01"[..], &[9; 16]].concat(),
        ),
        (Presence::Behind, vec![], b"\x02\0\0\0\0\0\0\0\0\0".to_vec()),
    ] {
        (wanted.members[0].presence, wanted.members[0].begun) = (presence, begun);
        let mut body = body();
        body.truncate(body.len() - 2);
        body.extend([1, 0, 3, 0]);
        body.extend(bytes);
        let bytes = label_of(4, &body);
        assert!(wanted.encode().unwrap()[..] == bytes[..]);
        assert_eq!(Label::decode(&bytes).unwrap(), wanted);
    }
}

#[test]
fn a_pool_with_labels_of_another_version_is_refused_by_that_version_however_it_is_opened() {
    for (version, words) in [(1, "from before the first release"), (5, "by a newer terrace")] {
        let shelf = Shelf::new(&[16]);
        for offset in [0, 64 * 1024] {
            shelf.media[0]
                .memory
                .write_at(offset, &label_of(version, &body()))
                .unwrap();
        }
        for options in [sequential(), degraded()] {
            let error = Pool::open(shelf.all(), options).err().unwrap();
            assert!(matches!(error, PoolError::OtherVersion { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

#[test]
fn roots_and_labels_lie_where_the_manual_says() {
    let shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"first").unwrap();
    pool.write_root(b"second").unwrap();
    let memory = &shelf.media[0].memory;
    for offset in [0, 64 * 1024, 16 * MIB - 64 * 1024] {
        let mut bytes = vec![0; LABEL_BYTES];
        memory.read_at(offset, &mut bytes).unwrap();
        assert_eq!(Label::decode(&bytes).unwrap().pool_id, pool.id());
    }
    for (offset, generation, payload) in [
        (256 * 1024, 1u64, &b"first"[..]),
        (384 * 1024, 2, b"second"),
        (512 * 1024, 1, b"first"),
        (640 * 1024, 2, b"second"),
    ] {
        let mut fields = b"TERRROOT\x01\0\0\0".to_vec();
        fields.extend((payload.len() as u32).to_le_bytes());
        fields.extend(pool.id());
        fields.extend(generation.to_le_bytes());
        let sum = blake3::hash(&[&fields[..], payload].concat());
        let mut slot = fields;
        slot.extend(sum.as_bytes());
        slot.resize(4096, 0);
        slot.extend(payload);
        slot.resize(8192, 0);
        let mut bytes = vec![0; 8192];
        memory.read_at(offset, &mut bytes).unwrap();
        assert!(bytes == slot, "slot at {offset}");
    }
    // The first byte of segment 0 is at 1 MiB.
    let segment = terrace_pool::SegmentId { device: 0, index: 0 };
    pool.claim(segment).unwrap();
    pool.write(segment, 0, &[0xEE; 4096]).unwrap();
    let mut block = vec![0; 4096];
    memory.read_at(MIB, &mut block).unwrap();
    assert_eq!(block, [0xEE; 4096]);
    drop(pool);
    assert_eq!(open(shelf.all()).unwrap().total_segments(), 14);
}

/// Makes the root in a slot one of a newer format version, as docs/format.md has it.
fn make_newer(device: &dyn Device, slot: u64, is_sound: bool) {
    let mut bytes = AlignedBuffer::zeroed(8192);
    device.read_at(slot, &mut bytes).unwrap();
    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    if is_sound {
        let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let summed = [&bytes[..40], &bytes[4096..4096 + length]].concat();
        bytes[40..72].copy_from_slice(blake3::hash(&summed).as_bytes());
    }
    device.write_at(slot, &bytes).unwrap();
}

#[test]
fn a_root_of_a_newer_program_is_told_from_a_damaged_one() {
    let (older, newest) = ([256 << 10, 512 << 10], [384 << 10, 640 << 10]);
    let newer = PoolError::NewerRoot {
        pool: "tank".into(),
        version: 2,
    };
    let refused = Err(newer.clone());
    for (slots, is_sound, found) in [
        (&[newest][..], true, refused.clone()),
        (&[newest, older], true, refused),
        (&[older], true, Ok(Some(b"newest".to_vec()))),
        (&[newest], false, Ok(Some(b"older".to_vec()))),
        (&[newest, older], false, Err(PoolError::NoRoot("tank".into()))),
    ] {
        let shelf = Shelf::new(&[16]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        pool.write_root(b"older").unwrap();
        pool.write_root(b"newest").unwrap();
        drop(pool);
        for slot in slots.iter().flatten() {
            make_newer(shelf.media[0].memory.as_ref(), *slot, is_sound);
        }
        let pool = open(shelf.all()).unwrap();
        assert_eq!(pool.read_root(), found, "{slots:?} {is_sound}");
        // What it has is not written over.
        let _ = pool.settle_roots();
        drop(pool);
        assert_eq!(
            open(shelf.all()).unwrap().read_root(),
            found,
            "{slots:?} {is_sound}"
        );
    }
    let words = newer.to_string();
    assert!(
        words.contains("made by a newer terrace") && words.contains("use the newer terrace"),
        "{words}"
    );
}
