//! Devices that missed something while the pool is open, and what may leave a pool whose tier keeps two copies.

#![allow(clippy::unwrap_used)]

use crate::failing_device;

use std::sync::Arc;

use failing_device::FailingDevice;
use terrace_dataset::NewDataset;
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};
use terrace_pool::{DeviceState, Presence};
use terrace_store::Store;

const MIB: u64 = 1 << 20;

fn pool(sizes_mib: &[u64], copies: u8) -> (Vec<Arc<FailingDevice>>, Arc<Engine>) {
    let names: Vec<String> = (0..sizes_mib.len())
        .map(|number| format!("/device{number}"))
        .collect();
    let devices: Vec<Arc<FailingDevice>> = names
        .iter()
        .zip(sizes_mib)
        .map(|(name, mib)| FailingDevice::new(Arc::new(MemoryDevice::new(name.as_str(), mib * MIB))))
        .collect();
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: names.iter().map(|name| name.parse().unwrap()).collect(),
            copies,
        }],
        ..PoolSpec::default()
    };
    let options = OpenOptions::driven(Arc::new(ManualClock::new(1)), 1);
    let opened = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
    let engine = Engine::create_on(&spec, vec![opened.collect()], options).unwrap();
    (devices, engine)
}

fn drive(engine: &Engine, what: &str, mut until: impl FnMut(&Engine) -> bool) {
    for _ in 0..20_000 {
        if until(engine) {
            return;
        }
        engine.step().unwrap();
    }
    panic!(
        "{what} does not come to its end: {}",
        engine.status().state_detail
    );
}

/// Content that neither compresses nor repeats.
fn noise(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..bytes / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

fn fill(engine: &Engine, mib: u64) {
    let new = NewDataset {
        volume_bytes: Some(mib * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    engine.datasets().create("tank/v", &new).unwrap();
    let volume = engine.datasets().volume("tank/v").unwrap();
    for at in 0..mib {
        volume.write(at * MIB, &noise(MIB, at)).unwrap();
    }
    volume.flush().unwrap();
}

fn is_filled(engine: &Engine, mib: u64) -> bool {
    let volume = engine.datasets().volume("tank/v").unwrap();
    (0..mib).all(|at| {
        let mut found = vec![0; MIB as usize];
        volume.read(at * MIB, &mut found).unwrap();
        found == noise(MIB, at)
    })
}

#[test]
fn a_device_that_missed_an_entry_of_the_log_is_brought_up_to_date_while_the_pool_is_open() {
    for copies in [1, 2] {
        let (devices, engine) = pool(&[96, 96], copies);
        fill(&engine, 4);
        devices[1].fail_next(1);
        engine
            .datasets()
            .create("tank/missed", &NewDataset::default())
            .unwrap();
        engine.datasets().commit_all().unwrap();
        assert_eq!(devices[1].left(), 0, "nothing was written to it");
        engine.pool().note_failing().unwrap();
        let second = engine.pool().devices()[1].clone();
        assert!(matches!(second.presence, Presence::Absent { .. }), "{second:?}");
        assert_eq!(second.state, DeviceState::Online);
        // Until then nothing may go that it would have to stand for, and the error says what to do.
        let error = engine.remove_device("/device0").unwrap_err().to_string();
        assert!(error.contains("terrace stop tank"), "{error}");
        assert!(engine.status().state_detail.contains("terrace stop tank"));
        drive(&engine, "bringing it up to date", |engine| {
            engine.pool().devices()[1].presence == Presence::Whole
        });
        engine
            .datasets()
            .create("tank/after", &NewDataset::default())
            .unwrap();
        engine.datasets().commit_all().unwrap();
        engine.chunks().flush(engine.chunks().newest()).unwrap();
        // As if power went and the other one with it.
        let copy = MemoryDevice::new("/device1", 96 * MIB);
        let mut bytes = vec![0; 96 * MIB as usize];
        devices[1].below.read_at(0, &mut bytes).unwrap();
        copy.write_at(0, &bytes).unwrap();
        if copies == 2 {
            let options = OpenOptions {
                degraded: true,
                ..OpenOptions::driven(Arc::new(ManualClock::new(1)), 2)
            };
            let alone = Engine::open(vec![Arc::new(copy)], options).unwrap();
            assert!(alone.datasets().properties().get("tank/after", "type").is_ok());
            assert!(is_filled(&alone, 4));
        }
        if copies == 1 {
            let job = engine.remove_device("/device0").unwrap();
            drive(&engine, "removing", |engine| !engine.is_leaving(job));
            assert_eq!(engine.pool().devices().len(), 1);
            assert!(is_filled(&engine, 4));
        }
        engine.close().unwrap();
    }
}

#[test]
fn metadata_that_lies_on_one_device_only_is_told_until_it_has_its_second_copy() {
    let (_devices, engine) = pool(&[96, 96], 1);
    engine.pool().set_draining(1, true).unwrap();
    fill(&engine, 4);
    engine.chunks().checkpoint().unwrap();
    engine.pool().set_draining(1, false).unwrap();
    let is_told = |engine: &Engine| engine.status().state_detail.contains("lies on one device only");
    assert!(is_told(&engine), "{}", engine.status().state_detail);
    drive(&engine, "its second copy", |engine| !is_told(engine));
    assert!(engine.chunks().is_mirrored());
    engine.close().unwrap();
}

#[test]
fn what_leaves_a_tier_with_two_copies_must_find_two_devices_with_room() {
    // Of the devices that would be left one is too small for a copy of everything.
    let (_, engine) = pool(&[96, 96, 40], 2);
    fill(&engine, 48);
    let error = engine.remove_device("/device1").unwrap_err().to_string();
    assert!(
        error.contains("room for") && error.contains("2 copies"),
        "{error}"
    );
    engine.evacuate_device("/device1").unwrap_err();
    assert!(is_filled(&engine, 48));
    // What the other copies of what moves give back counts.
    let (_, engine) = pool(&[96, 96, 96], 2);
    fill(&engine, 66);
    let job = engine.remove_device("/device1").unwrap();
    drive(&engine, "removing", |engine| !engine.is_leaving(job));
    assert_eq!(engine.pool().devices().len(), 2);
    assert!(is_filled(&engine, 66));
    // One of two that are rather full is replaced by another one of its size.
    let (_, engine) = pool(&[96, 96], 2);
    fill(&engine, 68);
    let new = Arc::new(MemoryDevice::new("/new", 96 * MIB));
    let job = engine.replace_opened("/device1", new, false).unwrap();
    drive(&engine, "replacing", |engine| !engine.is_leaving(job));
    assert_eq!(engine.find_device("/new").unwrap().state, DeviceState::Online);
    assert!(is_filled(&engine, 68));
}

#[test]
fn a_copy_of_the_log_that_the_opening_could_not_complete_is_noted_and_brought_up_to_date() {
    let (devices, engine) = pool(&[96, 96], 2);
    fill(&engine, 40);
    engine.chunks().flush(engine.chunks().newest()).unwrap();
    let copy_of = |device: &FailingDevice| {
        let copy = MemoryDevice::new(device.path(), 96 * MIB);
        let mut bytes = vec![0; 96 * MIB as usize];
        device.below.read_at(0, &mut bytes).unwrap();
        copy.write_at(0, &bytes).unwrap();
        copy
    };
    let lacks_it = copy_of(&devices[1]);
    engine
        .datasets()
        .create("tank/missed", &NewDataset::default())
        .unwrap();
    engine.datasets().commit_all().unwrap();
    // As if power had come between the two copies.
    let left = [copy_of(&devices[0]), lacks_it].map(|below| FailingDevice::new(Arc::new(below)));
    drop(engine);
    left[1].fail_next(1);
    let options = OpenOptions::driven(Arc::new(ManualClock::new(1)), 3);
    let opened = left.iter().map(|device| device.clone() as Arc<dyn Device>);
    let engine = Engine::open(opened.collect(), options).unwrap();
    assert_eq!(left[1].left(), 0, "nothing was written to it");
    assert!(engine.datasets().properties().get("tank/missed", "type").is_ok());
    let room_for_leaving = |engine: &Engine| engine.chunks().room_for_leaving(0, 96 * MIB);
    let with_what_is_freed = room_for_leaving(&engine);
    engine.pool().note_failing().unwrap();
    let second = engine.pool().devices()[1].clone();
    assert!(matches!(second.presence, Presence::Absent { .. }), "{second:?}");
    assert_eq!(second.state, DeviceState::Online);
    // Copies of what lies on it may be alone: it is not counted on that others give some back.
    let counted = room_for_leaving(&engine);
    assert!(
        counted + 20 * MIB < with_what_is_freed,
        "{counted} {with_what_is_freed}"
    );
    drive(&engine, "bringing it up to date", |engine| {
        engine.pool().devices()[1].presence == Presence::Whole
    });
    assert!(room_for_leaving(&engine) > counted + 20 * MIB);
    let alone = OpenOptions {
        degraded: true,
        ..OpenOptions::driven(Arc::new(ManualClock::new(1)), 4)
    };
    let alone = Engine::open(vec![Arc::new(copy_of(&left[1]))], alone).unwrap();
    assert!(alone.datasets().properties().get("tank/missed", "type").is_ok());
    assert!(is_filled(&alone, 40));
    engine.close().unwrap();
}

#[test]
fn what_comes_after_a_device_failed_needs_neither_that_nor_one_more() {
    let (devices, engine) = pool(&[96, 96, 96], 2);
    fill(&engine, 4);
    devices[0].fail();
    let commit = |name: &str| {
        engine.datasets().create(name, &NewDataset::default()).unwrap();
        engine.datasets().commit_all().unwrap();
    };
    commit("tank/missed");
    drive(&engine, "noting it", |engine| {
        matches!(engine.pool().devices()[0].presence, Presence::Absent { .. })
    });
    commit("tank/after");
    engine.chunks().flush(engine.chunks().newest()).unwrap();
    for missing in 0..3 {
        // As if power went, and one of them with it.
        let left = devices
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != missing);
        let left = left.map(|(_, device)| {
            let copy = MemoryDevice::new(device.path(), 96 * MIB);
            let mut bytes = vec![0; 96 * MIB as usize];
            device.below.read_at(0, &mut bytes).unwrap();
            copy.write_at(0, &bytes).unwrap();
            Arc::new(copy) as Arc<dyn Device>
        });
        let options = OpenOptions {
            degraded: true,
            ..OpenOptions::driven(Arc::new(ManualClock::new(1)), 2)
        };
        let opened = Engine::open(left.collect(), options)
            .unwrap_or_else(|error| panic!("without device {missing}: {error}"));
        for name in ["tank/missed", "tank/after"] {
            assert!(
                opened.datasets().properties().get(name, "type").is_ok(),
                "without device {missing}: {name}"
            );
        }
    }
}

/// The end of the first one is cut off once every device has the label that says so; the last one takes none any more.
#[test]
fn a_device_that_fails_leaves_although_the_end_of_another_one_is_not_cut_off_before() {
    let (devices, engine) = pool(&[64, 64, 64], 1);
    let shrunk = engine.shrink_device("/device0", 32 * MIB).unwrap();
    devices[2].fail();
    engine.remove_device("/device2").unwrap();
    let is_there = |engine: &Engine| engine.pool().devices().iter().any(|info| info.path == "/device2");
    let mut failures = 0;
    for _ in 0..20_000 {
        if !is_there(&engine) {
            break;
        }
        if let Err(error) = engine.step() {
            assert!(error.to_string().contains("is not cut off yet"), "{error}");
            failures += 1;
        }
    }
    assert!(!is_there(&engine), "it waits for what waits for it");
    // It is tried now and then only, as each time all labels are written.
    assert_eq!(failures, 1);
    assert!(engine.is_leaving(shrunk));
}
