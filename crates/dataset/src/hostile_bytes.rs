//! Records of this floor, keys and values, from any bytes: see `fuzzing.rs`.

use std::collections::BTreeMap;

use terrace_fuzz::fuzz;
use terrace_store::ChunkId;

use crate::{
    fuzzing,
    records::{
        Counters, DatasetRecord, EntryRecord, FileKind, HeldRecord, InodeRecord, Job, Kind, OrphanRecord,
        Preallocated, PreallocatedTotals, RegionRecord, Time, keys,
    },
    registry::Facts,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Without sums.
fn plain(name: &str, samples: Vec<Vec<u8>>, parse: fn(&[u8])) {
    fuzz(HERE, name, samples, None, &mut |bytes| parse(bytes));
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
    let mut ranges = Preallocated::default().with(3, 700).0.with(1 << 30, 1 << 31).0;
    (ranges.mapped_blocks, ranges.own_blocks, ranges.since) = (600, 500, 70_000);
    preallocated.preallocated = Some(Box::new(ranges));
    plain(
        "inode",
        vec![link.encode(), file.encode(), preallocated.encode()],
        fuzzing::inode,
    );
}

#[test]
fn entries_and_orphans() {
    let entry = EntryRecord {
        object: 300,
        kind: FileKind::Directory,
    };
    plain("entry", vec![entry.encode()], fuzzing::entry);
    let freed = OrphanRecord::Freed {
        object: 7,
        death: 900,
        blocks: 12,
    };
    let samples = vec![freed.encode(), OrphanRecord::Open.encode()];
    plain("orphan", samples, fuzzing::orphan);
}

#[test]
fn regions() {
    let mut scattered = RegionRecord::new();
    for block in (0..256).step_by(3) {
        scattered.overwrite(block, 2, ChunkId(u64::from(block) * 977 % 1000 + 1), block % 20);
    }
    let mut whole = RegionRecord::new();
    whole.overwrite(0, 32, ChunkId(5), 0);
    whole.overwrite(32, 32, ChunkId(6), 0);
    let samples = vec![scattered.encode(), whole.encode()];
    plain("region", samples, fuzzing::region);
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
    plain("dataset", vec![volume.encode()], fuzzing::dataset);
    let held = HeldRecord {
        name: "monday".into(),
        note: "before".into(),
        holds: vec!["tag".into(), "other".into()],
        objects: 9,
        ..HeldRecord::default()
    };
    plain("held", vec![held.encode()], fuzzing::held);
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
    plain(
        "counters",
        vec![counters.encode(), preallocated.encode()],
        fuzzing::counters,
    );
    let facts = Facts {
        checkpoint: 500,
        next_dataset: 9,
        next_sweep: 2,
    };
    plain("facts", vec![facts.encode()], fuzzing::facts);
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
    plain("sweep", samples, fuzzing::sweep);
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
    plain("acl", vec![value], fuzzing::acl);
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
        "compression=zstd-19",
        "chunk_size=64K",
        "quota=1.5T",
        "retention=all:1h hourly:2d",
        "durability=barrier",
        "user:owner=somebody",
    ];
    let samples = samples.iter().map(|text| text.as_bytes().to_vec()).collect();
    plain("words", samples, fuzzing::words);
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
    plain("key", samples, fuzzing::key);
}
