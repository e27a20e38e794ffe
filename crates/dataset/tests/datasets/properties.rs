//! Properties: inherited, set and reset; quotas, reservations and the sizes of volumes; what heat follows from a use.

use std::sync::Arc;

use terrace_dataset::{Context, DatasetError, FsError, Kind, NewDataset, Source, Tree};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

use super::pool::{Pool, open};

#[test]
fn properties_are_inherited_set_and_reset() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/a/b");
    pool.properties().set("pool/a", "compression", "zstd-7").unwrap();
    pool.properties().set("pool/a", "user:owner", "me").unwrap();
    pool.properties().set("pool", "pin", "slow").unwrap();
    let settings = pool.datasets.state("pool/a/b").unwrap().settings();
    assert_eq!(settings.compression, terrace_store::Compression::Zstd(7));
    assert_eq!(settings.pin_tier, Some(1));
    let all = pool.properties().get("pool/a/b", "all").unwrap();
    assert!(
        all.iter()
            .any(|p| p.name == "user:owner" && p.source == Source::Inherited("pool/a".into()))
    );
    assert!(all.iter().any(|p| p.name == "type" && p.value == "fs"));
    let no_tier = pool.properties().set("pool/a", "pin", "tape");
    assert!(matches!(no_tier, Err(DatasetError::PropertyRefused(_))));
    for (name, value) in [
        ("encryption", "on"),
        ("used", "1"),
        ("nothing", "1"),
        ("quota", "x"),
    ] {
        assert!(
            matches!(
                pool.properties().set("pool/a", name, value),
                Err(DatasetError::InvalidProperty(_))
            ),
            "{name}"
        );
    }
    pool.properties().inherit("pool/a", "compression").unwrap();
    let value = &pool.properties().get("pool/a/b", "compression").unwrap()[0];
    assert_eq!((value.value.as_str(), &value.source), ("lz4", &Source::Default));
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(
        again.properties().get("pool/a/b", "pin").unwrap()[0].value,
        "slow"
    );
}

/// Volumes are made with chunks that go by the content, unless it is said otherwise for them or above them; what was made without a
/// word of it keeps those of 128 KiB.
#[test]
fn volumes_are_made_with_chunks_that_go_by_the_content() {
    let pool = Pool::new();
    let make = |name: &str, chunk_size: Option<&str>| {
        let chunk_size = chunk_size.map(|value| ("chunk_size".to_owned(), value.to_owned()));
        let new = NewDataset {
            volume_bytes: Some(1 << 20),
            sparse: true,
            properties: chunk_size.into_iter().collect(),
            ..NewDataset::default()
        };
        pool.datasets.create(name, &new).unwrap();
    };
    let both = |name: &str| {
        let settings = pool.datasets.state(name).unwrap().settings();
        (settings.chunk_bytes, settings.raw_chunk_bytes)
    };
    let chunk_bytes = |name: &str| {
        let (usual, raw) = both(name);
        assert_eq!(usual, raw);
        usual
    };
    make("pool/v", None);
    assert_eq!(both("pool/v"), (16 << 10, 64 << 10));
    let value = &pool.properties().get("pool/v", "chunk_size").unwrap()[0];
    assert_eq!((value.value.as_str(), &value.source), ("auto", &Source::Local));
    make("pool/w", Some("64K"));
    assert_eq!(chunk_bytes("pool/w"), 64 << 10);
    pool.create("pool/a");
    assert_eq!(chunk_bytes("pool/a"), 128 << 10);
    pool.properties().set("pool/a", "chunk_size", "32K").unwrap();
    make("pool/a/v", None);
    assert_eq!(chunk_bytes("pool/a/v"), 32 << 10);
    let value = &pool.properties().get("pool/a/v", "chunk_size").unwrap()[0];
    assert_eq!(value.source, Source::Inherited("pool/a".into()));
    // Nothing is written down for it then.
    pool.properties().inherit("pool/v", "chunk_size").unwrap();
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(again.state("pool/v").unwrap().settings().chunk_bytes, 128 << 10);
}

#[test]
fn a_quota_bounds_the_dataset_and_those_below() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/a/b");
    pool.properties().set("pool/a", "quota", "1M").unwrap();
    let state = pool.datasets.state("pool/a/b").unwrap();
    let room = state.reserve(600 << 10).unwrap();
    assert_eq!(state.reserve(600 << 10).unwrap_err(), FsError::QuotaExceeded);
    drop(room);
    let mut room = state.reserve(1 << 20).unwrap();
    assert_eq!(state.reserve(1).unwrap_err(), FsError::QuotaExceeded);
    room.shrink_by(512 << 10);
    let other = state.reserve(512 << 10).unwrap();
    room.join(other);
    assert_eq!(state.reserve(4096).unwrap_err(), FsError::QuotaExceeded);
    drop(room);
    assert_eq!(state.usage().quota_left_bytes(), Some(1 << 20));
    pool.datasets.rename("pool/a/b", "pool/b").unwrap();
    assert_eq!(state.usage().quota_left_bytes(), None);
}

#[test]
fn a_quota_that_reservations_below_do_not_fit_into_is_refused() {
    let pool = Pool::new();
    pool.create("pool/a");
    let thick = NewDataset {
        volume_bytes: Some(4 << 20),
        ..NewDataset::default()
    };
    pool.datasets.create("pool/a/v", &thick).unwrap();
    pool.datasets.create("pool/a/w", &thick).unwrap();
    let refused = pool
        .properties()
        .set("pool/a", "quota", "5M")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("8M"), "{refused}");
    pool.properties().set("pool/a", "quota", "8M").unwrap();
    // Both can be written in full.
    for name in ["pool/a/v", "pool/a/w"] {
        let volume = pool.datasets.volume(name).unwrap();
        volume.write(0, &vec![7; 4 << 20]).unwrap();
        volume.flush_always().unwrap();
    }
    // Who needs no more has no need of the quota either; and more of it is always welcome.
    pool.properties().set("pool/a", "quota", "6M").unwrap();
    pool.properties().set("pool/a", "quota", "7M").unwrap();
}

#[test]
fn what_is_renamed_below_a_quota_fits_into_it() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/b");
    let thick = NewDataset {
        volume_bytes: Some(4 << 20),
        ..NewDataset::default()
    };
    pool.datasets.create("pool/a/v", &thick).unwrap();
    pool.datasets.create("pool/b/w", &thick).unwrap();
    pool.properties().set("pool/a", "quota", "6M").unwrap();
    for (from, to) in [("pool/b/w", "pool/a/w"), ("pool/b", "pool/a/b")] {
        let refused = pool.datasets.rename(from, to).unwrap_err().to_string();
        assert!(
            refused.contains("takes 4M") && refused.contains("leaves 2M"),
            "{refused}"
        );
    }
    // Its own quota, and one that counts it already, take nothing more.
    pool.datasets.rename("pool/a", "pool/c").unwrap();
    pool.datasets.rename("pool/c/v", "pool/c/x").unwrap();
    pool.properties().set("pool/c", "quota", "8M").unwrap();
    pool.datasets.rename("pool/b/w", "pool/c/w").unwrap();
    let usage = pool.datasets.state("pool/c").unwrap();
    assert_eq!(usage.usage().quota_left_bytes(), Some(0));
}

#[test]
fn a_reservation_keeps_room_for_its_dataset() {
    const WORKING: u64 = (6 << 20) / 32;
    let memory = Arc::new(MemoryStore::new(10 << 20));
    let clock = Arc::new(ManualClock::new(0));
    let datasets = open(&memory, &clock);
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    datasets.create("pool/b", &NewDataset::default()).unwrap();
    datasets.properties().set("pool/a", "reservation", "6M").unwrap();
    let too_much = datasets
        .properties()
        .set("pool/b", "reservation", "6M")
        .unwrap_err()
        .to_string();
    assert!(
        too_much.contains("6.19M would have to be set aside, working room included, and 3.81M are free"),
        "{too_much}"
    );
    let thick = NewDataset {
        volume_bytes: Some(6 << 20),
        ..NewDataset::default()
    };
    let error = datasets.create("pool/v", &thick).unwrap_err();
    assert!(matches!(
        error,
        DatasetError::NoRoom { wanted_bytes, available_bytes }
            if (wanted_bytes, available_bytes) == ((6 << 20) + WORKING, (4 << 20) - WORKING)
    ));
    assert!(datasets.state("pool/v").is_err());
    let (a, b) = (
        datasets.state("pool/a").unwrap(),
        datasets.state("pool/b").unwrap(),
    );
    assert_eq!(b.reserve(4 << 20).unwrap_err(), FsError::NoSpace);
    let taken = b.reserve((4 << 20) - WORKING).unwrap();
    let own = a.reserve(6 << 20).unwrap();
    // What it gives back is its own again at once.
    drop(own);
    assert_eq!(b.reserve(4096).unwrap_err(), FsError::NoSpace);
    let own = a.reserve((6 << 20) + WORKING).unwrap();
    assert_eq!(a.reserve(4096).unwrap_err(), FsError::NoSpace);
    drop((taken, own));
    datasets.properties().inherit("pool/a", "reservation").unwrap();
    drop(b.reserve(9 << 20).unwrap());
}

#[test]
fn volumes_grow_and_report_their_size() {
    let pool = Pool::new();
    let new = NewDataset {
        volume_bytes: Some(1 << 20),
        ..NewDataset::default()
    };
    pool.datasets.create("pool/v", &new).unwrap();
    assert_eq!(
        pool.properties().get("pool/v", "reservation").unwrap()[0].value,
        "1M"
    );
    let volume = pool.datasets.volume("pool/v").unwrap();
    volume.write(4096, &[9; 4096]).unwrap();
    pool.datasets.resize_volume("pool/v", 2 << 20).unwrap();
    assert_eq!(volume.size_bytes(), 2 << 20);
    assert_eq!(
        pool.properties().get("pool/v", "reservation").unwrap()[0].value,
        "2M"
    );
    let again = open(&pool.memory, &pool.clock);
    let volume = again.volume("pool/v").unwrap();
    assert_eq!(volume.size_bytes(), 2 << 20);
    let mut block = [0; 4096];
    volume.read(4096, &mut block).unwrap();
    assert_eq!(block, [9; 4096]);
    pool.audit();
}

/// A crash can come between any two batches: the size in the volume's inode and that in the dataset's record must not be
/// in different ones.
#[test]
fn a_resize_is_one_batch() {
    let pool = Pool::new();
    let new = NewDataset {
        volume_bytes: Some(4 << 20),
        ..NewDataset::default()
    };
    pool.datasets.create("pool/v", &new).unwrap();
    let volume = pool.datasets.volume("pool/v").unwrap();
    for size in [8 << 20, 1 << 20, 3 << 20] {
        volume.write(0, &[size as u8 | 1; 8192]).unwrap();
        volume.write((1 << 20) - 4096, &[7; 4096]).unwrap();
        let before = pool.memory.newest();
        pool.datasets.resize_volume("pool/v", size).unwrap();
        assert_eq!(pool.memory.newest().0, before.0 + 1);
        let again = open(&pool.memory, &pool.clock);
        assert_eq!(again.volume("pool/v").unwrap().size_bytes(), size);
        let listed = again.list(Some("pool/v")).unwrap();
        assert_eq!(listed[0].kind, Kind::Volume { size_bytes: size });
    }
    pool.audit();
}

#[test]
fn scans_add_no_heat_and_what_ram_answers_does() {
    let pool = Pool::new();
    pool.create("pool/a");
    const REGION: usize = 1 << 20;
    pool.write("pool/a", b"scanned", &vec![7; 8 * REGION]);
    pool.write("pool/a", b"used", &vec![8; REGION]);
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let object = |name: &[u8]| filesystem.lookup(&root, 1, name).unwrap().object;
    let number = pool.datasets.info("pool/a").unwrap().number;
    let minutes = 1_800_000_000 / 60;
    let heat = |object: u64, region: u32| {
        let heat = &pool.datasets.environment().heat;
        heat.of(number, object, region, minutes).reads
    };
    // Not committed: every read is answered from dirty pages.
    let mut small = vec![0; 4096];
    for at in [9, 3, 200, 77, 5] {
        filesystem.read(object(b"used"), at * 4096, &mut small).unwrap();
    }
    assert_eq!(heat(object(b"used"), 0), 5.0);
    pool.datasets.commit_all().unwrap();
    for at in [9, 3, 200, 77, 5] {
        filesystem.read(object(b"used"), at * 4096, &mut small).unwrap();
    }
    assert_eq!(heat(object(b"used"), 0), 10.0);
    // Thrice from end to end, the last time as the kernel's readahead arrives.
    let mut large = vec![0; 128 << 10];
    let in_order: Vec<u64> = (0..64).collect();
    let swapped: Vec<u64> = in_order.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    for order in [&in_order, &in_order, &swapped] {
        for at in order {
            filesystem
                .read(object(b"scanned"), at * (128 << 10), &mut large)
                .unwrap();
        }
    }
    for region in 1..8 {
        assert!(heat(object(b"scanned"), region) < 1.0, "region {region}");
    }
    assert!(heat(object(b"scanned"), 0) < 3.0);
}
