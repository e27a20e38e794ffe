//! Records of this floor, keys and values, from any bytes: never a panic; what decodes encodes to itself.

use std::collections::BTreeMap;

use terrace_codec::DecodeError;
use terrace_fuzz::fuzz;
use terrace_store::ChunkId;

use crate::{
    At, Counters, DatasetRecord, EntryRecord, Facts, FileKind, HeldRecord, InodeRecord, Kind, OrphanRecord,
    Preallocated, PreallocatedTotals, RegionRecord, Retention, Time, acl::Acl, keys, split_value, sweep::Job,
    units::parse_duration,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Decodes, encodes and decodes again.
fn round<T: PartialEq + std::fmt::Debug>(
    name: &str,
    samples: Vec<Vec<u8>>,
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    encode: fn(&T) -> Vec<u8>,
) {
    fuzz(HERE, name, samples, None, &mut |bytes| {
        if let Ok(record) = decode(bytes) {
            assert_eq!(decode(&encode(&record)), Ok(record));
        }
    });
}

#[test]
fn inodes() {
    let mut link = InodeRecord::new(
        FileKind::SymbolicLink,
        0o777,
        1000,
        100,
        Time::from_nanos(1_700_000_000_000_000_001),
    );
    link.target = b"../somewhere/else".to_vec();
    let mut file = InodeRecord::new(FileKind::File, 0o640, 0, 0, Time::from_nanos(-5));
    (file.size, file.blocks, file.links, file.body, file.xattrs) = (123_456, 31, 2, 17, 3);
    let mut preallocated = file.clone();
    let ranges = Preallocated::default().with(3, 700).0.with(1 << 30, 1 << 31).0;
    preallocated.preallocated = Some(Box::new(Preallocated {
        mapped_blocks: 600,
        own_blocks: 500,
        since: 70_000,
        ..ranges
    }));
    round(
        "inode",
        vec![link.encode(), file.encode(), preallocated.encode()],
        InodeRecord::decode,
        InodeRecord::encode,
    );
}

#[test]
fn entries_and_orphans() {
    let entry = EntryRecord {
        object: 300,
        kind: FileKind::Directory,
    };
    round(
        "entry",
        vec![entry.encode()],
        EntryRecord::decode,
        EntryRecord::encode,
    );
    let freed = OrphanRecord::Freed {
        object: 7,
        death: 900,
        blocks: 12,
    };
    let samples = vec![freed.encode(), OrphanRecord::Open.encode()];
    round("orphan", samples, OrphanRecord::decode, OrphanRecord::encode);
}

#[test]
fn regions() {
    let mut scattered = RegionRecord::new();
    for block in (0..256).step_by(3) {
        scattered.overwrite(block, 2, ChunkId(u64::from(block) * 977 % 1000 + 1), block % 20);
    }
    let mut plain = RegionRecord::new();
    plain.overwrite(0, 32, ChunkId(5), 0);
    plain.overwrite(32, 32, ChunkId(6), 0);
    let samples = vec![scattered.encode(), plain.encode()];
    fuzz(HERE, "region", samples, None, &mut |bytes| {
        if let Ok(record) = RegionRecord::decode(bytes) {
            assert_eq!(RegionRecord::decode(&record.encode()), Ok(record.clone()));
            assert!(record.mapped_blocks() <= crate::REGION_BLOCKS && record.runs().len() <= 256);
            let mut changed = record.clone();
            changed.overwrite(100, 9, ChunkId(77), 1);
            changed.punch(7, 103);
            assert_eq!(RegionRecord::decode(&changed.encode()), Ok(changed));
        }
    });
}

#[test]
fn datasets() {
    let volume = DatasetRecord {
        name: "a/b".into(),
        kind: Kind::Volume { size_bytes: 1 << 30 },
        created: Time::from_nanos(77),
        properties: BTreeMap::from([
            ("compression".into(), "zstd".into()),
            ("quota".into(), "5G".into()),
        ]),
    };
    round(
        "dataset",
        vec![volume.encode()],
        DatasetRecord::decode,
        DatasetRecord::encode,
    );
    let held = HeldRecord {
        name: "monday".into(),
        note: "before".into(),
        holds: vec!["tag".into(), "other".into()],
        objects: 9,
        ..HeldRecord::default()
    };
    round(
        "held",
        vec![held.encode()],
        HeldRecord::decode,
        HeldRecord::encode,
    );
    let counters = Counters {
        live_blocks: 9,
        next_object: 300,
        newest_checkpoint: 5000,
        ..Counters::default()
    };
    let preallocated = Counters {
        preallocated: PreallocatedTotals {
            blocks: 300,
            mapped_blocks: 200,
            own_blocks: 100,
            since: 7,
        },
        shared_blocks: Some(0),
        ..counters
    };
    round(
        "counters",
        vec![counters.encode(), preallocated.encode()],
        Counters::decode,
        Counters::encode,
    );
    let facts = Facts {
        checkpoint: 500,
        next_dataset: 9,
        next_sweep: 2,
    };
    round("facts", vec![facts.encode()], Facts::decode, |facts| {
        facts.encode()
    });
}

#[test]
fn jobs_of_the_sweep() {
    let snapshot = Job::Snapshot {
        dataset: 7,
        previous: Some(3),
        snapshot: 5,
        next: 9,
        cursor: keys::holder_from(7, 5, 4),
    };
    let dataset = Job::Dataset {
        dataset: 8,
        cursor: Vec::new(),
        bytes: 1 << 30,
    };
    let samples = vec![snapshot.encode(), dataset.encode()];
    round("sweep", samples, Job::decode, Job::encode);
}

#[test]
fn access_control_lists() {
    // Owner, a user, the group, a mask, others: from anybody who may set an attribute.
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (1u16, 7u16, u32::MAX),
        (2, 6, 10),
        (4, 4, u32::MAX),
        (16, 5, u32::MAX),
        (32, 1, u32::MAX),
    ] {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    fuzz(HERE, "acl", vec![value], None, &mut |bytes| {
        let Ok(mut acl) = Acl::parse(bytes) else { return };
        // Entries without an id are written without one.
        let again = |acl: &Acl| Acl::parse(&acl.encode()).map(|acl| acl.encode());
        assert_eq!(again(&acl), Ok(acl.encode()));
        assert!(acl.mode() <= 0o777);
        let (_, inherited) = acl.inherit(0o754);
        acl.apply_mode(0o640);
        for list in inherited.iter().chain([&acl]) {
            assert_eq!(again(list), Ok(list.encode()));
        }
        assert_eq!(acl.mode(), 0o640);
    });
}

#[test]
fn words_of_users() {
    let samples = [
        "all:1h hourly:2d,90s:5m",
        "2026-11-21T10:00:00",
        "-1h",
        "@monday",
        "1.5G",
        "2w",
    ];
    let samples = samples.iter().map(|text| text.as_bytes().to_vec()).collect();
    fuzz(HERE, "words", samples, None, &mut |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Ok(retention) = Retention::parse(text) {
            assert_eq!(Retention::parse(&retention.to_string()), Ok(retention));
        }
        let now = Time::from_nanos(1_700_000_000_000_000_000);
        if let Ok(at) = At::parse(text, now) {
            let _ = at.to_string();
        }
        let _ = (terrace_device::parse_size(text), parse_duration(text));
    });
}

#[test]
fn keys_of_all_tables() {
    let live = keys::entry(7, 1, b"name");
    let samples = vec![
        keys::history(&live, 9),
        keys::holder(&live, 5, 4, 9),
        keys::region(1, 2, 3),
        keys::xattr(1, 2, b"user.x"),
        keys::orphan(3, 4, true),
        live,
    ];
    fuzz(HERE, "key", samples, None, &mut |bytes| {
        let _ = (
            split_value(bytes),
            keys::dataset_of(bytes),
            keys::parse_pin(bytes),
            keys::parse_orphan(bytes),
        );
        let _ = (
            keys::parse_entry(bytes),
            keys::parse_xattr(bytes),
            keys::history_prefix(bytes),
        );
        if let Ok((dataset, body, region)) = keys::parse_region(bytes) {
            assert_eq!(keys::region(dataset, body, region), bytes);
        }
        if let Ok((live, death)) = keys::parse_history(bytes) {
            assert_eq!(keys::history(&live, death), bytes);
        }
        if let Ok(holding) = keys::parse_holder(bytes) {
            let again = keys::holder(&holding.live, holding.holder, holding.birth, holding.death);
            assert_eq!(again, bytes);
        }
    });
}
