//! A flipped bit costs the block that it lies in, and nothing once that block was written over.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, NewDataset, ROOT, Tree};
use terrace_device::{AlignedBuffer, Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// The block that is damaged, of a megabyte.
const BAD: usize = 77;

fn noise() -> Vec<u8> {
    let mut state = 7_u64;
    let words = (0..MIB / 8).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 29)).to_le_bytes()
    });
    words.collect()
}

/// Flips a bit of the one place where these bytes lie.
fn flip(device: &MemoryDevice, content: &[u8]) {
    let length = device.size_bytes() as usize;
    let mut bytes = AlignedBuffer::with_capacity(length);
    device.read_at(0, bytes.reuse(length)).unwrap();
    let places: Vec<usize> = memchr_all(&bytes, &content[..64]);
    let [at] = places[..] else {
        panic!("{} places", places.len())
    };
    let page = (at + 100) / BLOCK * BLOCK;
    bytes[at + 100] ^= 4;
    let mut written = AlignedBuffer::with_capacity(BLOCK);
    written.reuse(BLOCK).copy_from_slice(&bytes[page..page + BLOCK]);
    device.write_at(page as u64, &written).unwrap();
}

fn memchr_all(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let fits = |at: &usize| bytes[*at] == wanted[0] && bytes[*at..].starts_with(wanted);
    (0..bytes.len()).filter(fits).collect()
}

fn scrub_errors(engine: &Engine, clock: &ManualClock) -> u64 {
    assert!(engine.start_scrub().unwrap());
    loop {
        clock.advance(1_000_000_000);
        engine.step().unwrap();
        let scrub = engine.status().scrub.unwrap();
        if scrub.state == "done" && !scrub.ended.is_empty() {
            return scrub.errors;
        }
    }
}

#[test]
fn a_flipped_bit_costs_its_block_alone() {
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: Vec::new(),
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let device = Arc::new(MemoryDevice::new("disk", 96 * MIB as u64));
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![vec![device.clone() as Arc<dyn Device>]], options).unwrap();
    let volume = NewDataset {
        volume_bytes: Some(4 * MIB as u64),
        sparse: true,
        properties: vec![("dedup".into(), "off".into())],
        ..NewDataset::default()
    };
    engine.datasets().create("tank/disk", &volume).unwrap();
    let files = NewDataset {
        properties: vec![("dedup".into(), "off".into())],
        ..NewDataset::default()
    };
    engine.datasets().create("tank/files", &files).unwrap();
    let content = noise();
    let mut of_file = content.clone();
    // Other bytes, so that each is found where it lies.
    of_file.iter_mut().for_each(|byte| *byte ^= 0x55);
    let root = Context::root();
    let volume = engine.datasets().volume("tank/disk").unwrap();
    volume.write(0, &content).unwrap();
    volume.flush().unwrap();
    let filesystem = engine.datasets().filesystem("tank/files").unwrap();
    let file = filesystem
        .create(&root, ROOT, b"file", FileKind::File, 0o644, 0)
        .unwrap();
    filesystem.write(&root, file.object, 0, &of_file, false).unwrap();
    filesystem.sync().unwrap();
    drop((volume, filesystem));
    engine.close().unwrap();
    drop(engine);
    flip(&device, &content[BAD * BLOCK..]);
    flip(&device, &of_file[BAD * BLOCK..]);

    let open = |seed| {
        let options = OpenOptions::driven(clock.clone(), seed);
        Engine::open(vec![device.clone() as Arc<dyn Device>], options).unwrap()
    };
    // In order, backwards, and twice: what is read ahead, whole or in parts must not make a difference.
    let blocks = 0..MIB / BLOCK;
    let orders: [Vec<usize>; 3] = [
        blocks.clone().collect(),
        blocks.clone().rev().collect(),
        blocks.clone().map(|block| (block * 37) % blocks.end).collect(),
    ];
    for (seed, order) in orders.iter().enumerate() {
        let engine = open(seed as u64 + 2);
        let volume = engine.datasets().volume("tank/disk").unwrap();
        let filesystem = engine.datasets().filesystem("tank/files").unwrap();
        let mut block = vec![0; BLOCK];
        for number in order.iter().chain(order) {
            let at = number * BLOCK;
            let outcome = volume.read(at as u64, &mut block);
            assert_eq!(outcome.is_ok(), *number != BAD, "block {number} of the volume");
            assert!(*number == BAD || block == content[at..at + BLOCK]);
            let outcome = filesystem.read(file.object, at as u64, &mut block);
            assert_eq!(outcome.is_ok(), *number != BAD, "block {number} of the file");
            assert!(*number == BAD || block == of_file[at..at + BLOCK]);
        }
        drop((volume, filesystem));
        engine.close().unwrap();
    }

    let engine = open(9);
    assert_eq!(scrub_errors(&engine, &clock), 2);
    let volume = engine.datasets().volume("tank/disk").unwrap();
    let filesystem = engine.datasets().filesystem("tank/files").unwrap();
    volume.write(0, &vec![3; MIB]).unwrap();
    volume.flush().unwrap();
    filesystem.unlink(&root, ROOT, b"file").unwrap();
    filesystem.sync().unwrap();
    assert_eq!(
        scrub_errors(&engine, &clock),
        0,
        "what nobody refers to is nobody's loss"
    );
    drop((volume, filesystem));
    engine.close().unwrap();
}

#[test]
fn what_a_scrub_found_is_told_after_a_restart_until_one_finds_nothing() {
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: Vec::new(),
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let device = Arc::new(MemoryDevice::new("disk", 96 * MIB as u64));
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![vec![device.clone() as Arc<dyn Device>]], options).unwrap();
    engine
        .datasets()
        .create("tank/files", &NewDataset::default())
        .unwrap();
    let content = noise();
    let root = Context::root();
    let filesystem = engine.datasets().filesystem("tank/files").unwrap();
    let file = filesystem
        .create(&root, ROOT, b"file", FileKind::File, 0o644, 0)
        .unwrap();
    filesystem.write(&root, file.object, 0, &content, false).unwrap();
    filesystem.sync().unwrap();
    assert_eq!(engine.status().scrub, None);
    drop(filesystem);
    engine.close().unwrap();
    flip(&device, &content[BAD * BLOCK..]);

    let open = |seed| {
        let options = OpenOptions::driven(clock.clone(), seed);
        Engine::open(vec![device.clone() as Arc<dyn Device>], options).unwrap()
    };
    let engine = open(2);
    assert_eq!(scrub_errors(&engine, &clock), 1);
    let found = engine.status().scrub.unwrap();
    assert_eq!(found.files, ["tank/files/file"]);
    assert_eq!(found.devices.len(), 1, "{found:?}");
    assert!(found.devices[0].path == "disk" && found.devices[0].checksum_errors > 0);
    let named = engine.lost_files(0, 10);
    engine.close().unwrap();

    // One that is begun since and does not end goes on instead: `scrub_restart.rs`.
    for seed in 3..5 {
        let engine = open(seed);
        let status = engine.status();
        let told = status.scrub.clone().unwrap();
        let counts = |scrub: &terrace_engine::ScrubStatus| (scrub.errors, scrub.repaired, scrub.done_bytes);
        assert_eq!(counts(&told), counts(&found));
        assert_eq!((&told.started, &told.ended), (&found.started, &found.ended));
        assert_eq!((&told.files, &told.damage), (&found.files, &found.damage));
        assert_eq!(told.devices, found.devices);
        assert_eq!(engine.lost_files(0, 10), named);
        assert!(status.state == "degraded" && status.state_detail.contains("tank/files/file"));
        assert_eq!(engine.jobs(), [], "it is no job of this opening");
        engine.close().unwrap();
    }

    let engine = open(5);
    let filesystem = engine.datasets().filesystem("tank/files").unwrap();
    filesystem.write(&root, file.object, 0, &content, false).unwrap();
    filesystem.sync().unwrap();
    filesystem.unlink(&root, ROOT, b"file").unwrap();
    filesystem.sync().unwrap();
    assert_eq!(scrub_errors(&engine, &clock), 0);
    drop(filesystem);
    engine.close().unwrap();
    let engine = open(6);
    let status = engine.status();
    let told = status.scrub.unwrap();
    assert_eq!((told.errors, told.files.len(), told.devices.len()), (0, 0, 0));
    assert_eq!(status.state, "online");
    engine.close().unwrap();
}

#[test]
fn what_readers_meet_after_a_scrub_is_told_until_the_next_one() {
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: Vec::new(),
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let device = Arc::new(MemoryDevice::new("disk", 96 * MIB as u64));
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![vec![device.clone() as Arc<dyn Device>]], options).unwrap();
    engine
        .datasets()
        .create("tank/files", &NewDataset::default())
        .unwrap();
    let (content, root) = (noise(), Context::root());
    let filesystem = engine.datasets().filesystem("tank/files").unwrap();
    let file = filesystem
        .create(&root, ROOT, b"file", FileKind::File, 0o644, 0)
        .unwrap();
    filesystem.write(&root, file.object, 0, &content, false).unwrap();
    filesystem.sync().unwrap();
    drop(filesystem);
    assert_eq!(scrub_errors(&engine, &clock), 0);
    engine.close().unwrap();
    drop(engine);
    flip(&device, &content[BAD * BLOCK..]);

    let options = OpenOptions::driven(clock.clone(), 2);
    let engine = Engine::open(vec![device.clone() as Arc<dyn Device>], options).unwrap();
    let status = engine.status();
    assert_eq!(
        (status.state.as_str(), status.scrub.unwrap().errors_since),
        ("online", 0)
    );
    let filesystem = engine.datasets().filesystem("tank/files").unwrap();
    let mut block = vec![0; BLOCK];
    filesystem
        .read(file.object, (BAD * BLOCK) as u64, &mut block)
        .unwrap_err();
    drop(filesystem);
    let status = engine.status();
    assert!(status.scrub.unwrap().errors_since > 0);
    assert_eq!(status.state, "degraded");
    assert_eq!(status.lost.unwrap().state, "looking");
    for words in ["since the last scrub", "'terrace scrub tank --wait'"] {
        assert!(status.state_detail.contains(words), "{}", status.state_detail);
    }
    for _ in 0..1000 {
        clock.advance(100_000_000);
        engine.step().unwrap();
    }
    let lost = engine.status().lost.unwrap();
    assert_eq!((lost.state.as_str(), lost.complete), ("known", true));
    assert_eq!(lost.names, ["tank/files/file"]);
    assert_eq!(engine.lost_files(0, 10).0[0].path, "tank/files/file");

    // From then on the scrub tells of it.
    assert_eq!(scrub_errors(&engine, &clock), 1);
    let status = engine.status();
    assert_eq!((status.scrub.unwrap().errors_since, status.lost), (0, None));
    assert!(
        status
            .state_detail
            .contains("the last scrub found 1 damaged chunk without a good copy"),
        "{}",
        status.state_detail
    );
    assert_eq!(engine.lost_files(0, 10).0.len(), 1);
    engine.close().unwrap();
}
