//! Room that is promised while devices are emptied: what still has to move is counted, so that who was promised room gets it.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use std::sync::Arc;

use full_pool::{MIB, Modelled, Rig};
use terrace_dataset::{NewDataset, Volume};
use terrace_device::MemoryDevice;

/// The largest thick volume that is granted.
fn largest(rig: &Rig, name: &str) -> Option<Arc<Volume>> {
    (1..40).rev().find_map(|size| {
        let new = NewDataset {
            volume_bytes: Some(size * 4 * MIB),
            properties: vec![("compression".into(), "off".into())],
            ..NewDataset::default()
        };
        let datasets = rig.engine.datasets();
        datasets.create(name, &new).ok()?;
        Some(datasets.volume(name).unwrap())
    })
}

fn drive(rig: &Rig, job: u64) {
    for _ in 0..10_000 {
        if !rig.engine.is_leaving(job) {
            return;
        }
        rig.engine.step().unwrap();
    }
    panic!("it does not come to its end");
}

#[test]
fn a_volume_that_is_promised_while_a_device_is_emptied_has_its_room_afterwards() {
    let mut rig = Rig::of(&[(vec![160 * MIB; 3], 1)]);
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 200 * MIB).unwrap();
    rig.tick();
    let job = rig.engine.evacuate_device("/disk1").unwrap();
    let volume = largest(&rig, "tank/v").unwrap();
    assert!(volume.size_bytes() >= 32 * MIB, "{}", volume.size_bytes());
    // Nor does a restart in the middle change that.
    rig.engine.step().unwrap();
    drop((volume, data));
    rig.reopen(false);
    assert!(largest(&rig, "tank/w").is_none_or(|more| more.size_bytes() <= 8 * MIB));
    if rig.engine.datasets().volume("tank/w").is_ok() {
        rig.engine
            .datasets()
            .destroy("tank/w", false, true, false)
            .unwrap();
    }
    drive(&rig, job);
    let mut volume = Modelled::new(rig.engine.datasets().volume("tank/v").unwrap());
    volume.write_all(&mut rig.random);
    volume.verify();
}

/// Found by the simulator: others filled the pool meanwhile, and then log, metadata and the segments that what moved began took
/// what was reserved.
#[test]
fn what_leaves_a_device_that_others_fill_the_pool_beside_takes_nothing_that_is_promised() {
    let mut rig = Rig::of(&[(vec![64 * MIB; 3], 1)]);
    let mut volume = Modelled::new(rig.thick("tank/v", 16 * MIB));
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", MIB).unwrap();
    rig.tick();
    let job = rig.engine.remove_device("/disk0").unwrap();
    rig.fill(&data, "filler");
    drive(&rig, job);
    let space = rig.engine.store().space();
    assert!(space.set_aside_bytes <= space.room_bytes, "{}", rig.figures());
    volume.write_all(&mut rig.random);
    volume.verify();
}

#[test]
fn what_is_set_aside_for_a_device_that_is_emptied_is_given_back() {
    let mut rig = Rig::of(&[(vec![160 * MIB; 3], 1)]);
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 120 * MIB).unwrap();
    rig.tick();
    let aside = |rig: &Rig| rig.engine.store().space().set_aside_bytes;
    let before = aside(&rig);
    for end in ["cancel", "pause", "resume"] {
        let job = rig.engine.evacuate_device("/disk1").unwrap();
        assert!(aside(&rig) > before + 20 * MIB, "{end}");
        rig.engine.step().unwrap();
        if end == "cancel" {
            rig.engine.job_action(job, "cancel").unwrap();
            assert_eq!(aside(&rig), before);
            continue;
        }
        if end == "pause" {
            rig.engine.job_action(job, "pause").unwrap();
            (0..20).for_each(|_| {
                rig.engine.step().unwrap();
            });
            assert!(aside(&rig) > before);
            rig.engine.job_action(job, "cancel").unwrap();
            continue;
        }
        drive(&rig, job);
        assert_eq!(aside(&rig), before);
    }
    // The end of one that is shrunk counts like a device.
    let job = rig.engine.shrink_device("/disk2", 64 * MIB).unwrap();
    assert!(aside(&rig) >= before);
    drive(&rig, job);
    assert_eq!(aside(&rig), before);
}

#[test]
fn a_device_that_leaves_already_is_refused_for_that_and_not_for_the_room_set_aside_for_it() {
    let mut rig = Rig::of(&[(vec![160 * MIB; 3], 1)]);
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 270 * MIB).unwrap();
    rig.tick();
    let job = rig.engine.shrink_device("/disk1", 48 * MIB).unwrap();
    let refusals = [
        rig.engine.evacuate_device("/disk1"),
        rig.engine.remove_device("/disk1"),
        rig.engine
            .replace_opened("/disk1", Arc::new(MemoryDevice::new("/new", 32 * MIB)), false),
    ];
    for refused in refusals {
        let told = refused.unwrap_err().to_string();
        assert!(told.contains(&format!("by job {job}")), "{told}");
    }
}
