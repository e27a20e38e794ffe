//! A device that is emptied, and a kill -9 at any moment of it: the job is gone on with or has ended, and is listed so.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{MIB, Rig, copy_of};
use terrace_engine::{Engine, OpenOptions};

/// State, and bytes done and to be done.
fn listed(engine: &Engine, job: u64) -> (&'static str, u64, u64) {
    let jobs = engine.mover().jobs();
    let info = jobs.iter().find(|info| info.id == job).unwrap();
    (info.state, info.done_bytes, info.total_bytes)
}

fn drive(engine: &Engine, job: u64) -> bool {
    for _ in 0..10_000 {
        if !engine.is_leaving(job) {
            return true;
        }
        engine.step().unwrap();
    }
    false
}

#[test]
fn an_evacuation_that_ended_is_listed_as_done_whenever_the_process_was_killed() {
    let mut rig = Rig::new(&[64 * MIB, 64 * MIB]);
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 20 * MIB).unwrap();
    let number = rig.engine.datasets().info("tank/data").unwrap().number;
    let moved = rig.engine.mover().move_to(number, 0, "tier1").unwrap();
    for _ in 0..10_000 {
        if listed(&rig.engine, moved).0 == "done" {
            break;
        }
        rig.engine.step().unwrap();
    }
    let job = rig.engine.evacuate_device("/disk1").unwrap();
    let (mut ended, mut opened, mut done) = (0, 1, 0);
    for step in 0..10_000 {
        // As after a kill: the devices keep what was written to them.
        if step % 4 == 0 || ended > 0 {
            opened += 1;
            let devices: Vec<_> = rig.devices.iter().map(|device| copy_of(device) as _).collect();
            let options = OpenOptions::driven(rig.clock.clone(), opened);
            let engine = Engine::open(devices, options).unwrap();
            assert_ne!(listed(&engine, job).0, "cancelled", "step {step}");
            done += u32::from(listed(&engine, job).0 == "done");
            assert!(drive(&engine, job), "step {step}: it does not come to its end");
            for _ in 0..100 {
                engine.step().unwrap();
            }
            let (state, done_bytes, total_bytes) = listed(&engine, job);
            assert_eq!((state, done_bytes), ("done", total_bytes), "step {step}");
        }
        rig.engine.step().unwrap();
        ended += u32::from(!rig.engine.is_leaving(job));
        if ended == 8 {
            break;
        }
    }
    assert!(ended == 8 && done > 0, "it never ended: {ended}, {done}");
}
