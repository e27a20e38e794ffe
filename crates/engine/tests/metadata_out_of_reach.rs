//! A pool of which a part of the metadata lies on a missing device alone: what is concerned is named at the opening and by `status`,
//! cannot be changed, and is whole again when the device is back.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, Filesystem, FsError, NewDataset, ROOT, Tree};
use terrace_device::{AlignedBuffer, Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, EngineError, OpenOptions, PoolSpec, TierSpec};

const MIB: u64 = 1 << 20;
const FILES: usize = 16_000;
const DEVICES: usize = 5;

fn copy_of(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let copy = MemoryDevice::new(device.path(), device.size_bytes());
    let mut piece = AlignedBuffer::zeroed(MIB as usize);
    for offset in (0..device.size_bytes()).step_by(MIB as usize) {
        let length = (device.size_bytes() - offset).min(MIB) as usize;
        device.read_at(offset, &mut piece[..length]).unwrap();
        copy.write_at(offset, &piece[..length]).unwrap();
    }
    Arc::new(copy)
}

fn open(
    devices: &[Arc<MemoryDevice>],
    clock: &Arc<ManualClock>,
    seed: u64,
) -> Result<Arc<Engine>, EngineError> {
    let options = OpenOptions {
        degraded: true,
        ..OpenOptions::driven(clock.clone(), seed)
    };
    let devices = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
    Engine::open(devices.collect(), options)
}

/// Long, and unlike one another, so that a few thousand fill several tables.
fn name(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        b"abcdefghijklmnopqrstuvwxyz0123456789"[(state >> 33) as usize % 36]
    };
    (0..250).map(|_| next()).collect()
}

fn fill(files: &Filesystem, from: usize, to: usize) {
    let root = Context::root();
    for number in from..to {
        let file = files
            .create(&root, ROOT, &name(number), FileKind::File, 0o600, 0)
            .unwrap();
        files
            .write(&root, file.object, 0, &number.to_le_bytes(), false)
            .unwrap();
    }
    files.sync().unwrap();
}

/// How many of the files can be read, and how many cannot; none is ever another.
fn readable(files: &Filesystem) -> (usize, usize) {
    let root = Context::root();
    let (mut good, mut bad) = (0, 0);
    for number in 0..FILES {
        let mut content = [0; 8];
        let found = files.lookup(&root, ROOT, &name(number));
        match found.and_then(|file| files.read(file.object, 0, &mut content)) {
            Ok(8) => {
                assert_eq!(usize::from_le_bytes(content), number);
                good += 1;
            }
            // It says that it cannot be read, not that it is not there.
            Err(FsError::Io(_)) => bad += 1,
            other => panic!("{number}: {other:?}"),
        }
    }
    (good, bad)
}

#[test]
fn what_is_out_of_reach_is_named_and_kept_from_changes_until_its_device_is_back() {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let devices: Vec<Arc<MemoryDevice>> = (0..DEVICES)
        .map(|number| Arc::new(MemoryDevice::new(format!("/device{number}"), 66 * MIB)))
        .collect();
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: devices
                .iter()
                .map(|device| device.path().parse().unwrap())
                .collect(),
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let given = devices
        .iter()
        .map(|device| device.clone() as Arc<dyn Device>)
        .collect();
    let engine = Engine::create_on(&spec, vec![given], OpenOptions::driven(clock.clone(), 1)).unwrap();
    for dataset in ["tank/one", "tank/two", "tank/three"] {
        engine.datasets().create(dataset, &NewDataset::default()).unwrap();
        let files = engine.datasets().filesystem(dataset).unwrap();
        fill(&files, 0, FILES);
        engine.chunks().checkpoint().unwrap();
        for _ in 0..10_000 {
            if !engine.step().unwrap() {
                break;
            }
        }
    }
    engine.close().unwrap();
    drop(engine);
    let mut seen = 0;
    let pairs = (0..DEVICES).flat_map(|one| (0..one).map(move |other| [other, one]));
    for missing in pairs {
        let copies: Vec<_> = devices.iter().map(|device| copy_of(device)).collect();
        let there: Vec<_> = (0..DEVICES)
            .filter(|at| !missing.contains(at))
            .map(|at| copies[at].clone())
            .collect();
        let engine = match open(&there, &clock, 10) {
            Ok(engine) => engine,
            Err(error) => {
                let error = error.to_string();
                println!("without {missing:?}: {error}");
                assert!(
                    error.contains("missing") && error.contains("terrace start tank"),
                    "{error}"
                );
                continue;
            }
        };
        let status = engine.status();
        println!(
            "without {missing:?}: {} {:?} {}",
            status.state,
            engine.chunks().metadata_segments(),
            status.state_detail
        );
        assert_eq!(status.state, "degraded");
        if engine.chunks().metadata_out_of_reach() == 0 {
            continue;
        }
        seen += 1;
        assert!(
            status.state_detail.contains("segments of metadata"),
            "{}",
            status.state_detail
        );
        for dataset in ["tank/one", "tank/two", "tank/three"] {
            let files = engine.datasets().filesystem(dataset).unwrap();
            let (good, bad) = readable(&files);
            let is_named = status.state_detail.contains(dataset);
            println!("{dataset}: {good} readable, {bad} not, named {is_named}");
            let made = files.create(&Context::root(), ROOT, b"new", FileKind::File, 0o600, 0);
            match is_named {
                true => assert_eq!(made.unwrap_err(), FsError::ReadOnly),
                false => {
                    made.unwrap();
                    files.sync().unwrap();
                }
            }
        }
        engine.tick().unwrap();
        engine.close().unwrap();
        drop(engine);
        let engine = open(&copies, &clock, 20).unwrap();
        assert_eq!(engine.chunks().metadata_out_of_reach(), 0);
        for dataset in ["tank/one", "tank/two", "tank/three"] {
            let files = engine.datasets().filesystem(dataset).unwrap();
            assert_eq!(readable(&files), (FILES, 0), "{dataset} without {missing:?}");
            let name = b"made again";
            files
                .create(&Context::root(), ROOT, name, FileKind::File, 0o600, 0)
                .unwrap();
            files.sync().unwrap();
        }
        engine.close().unwrap();
    }
    assert!(seen > 0, "no device had metadata alone");
}
