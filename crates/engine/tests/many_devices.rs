//! 32 devices in eight tiers, of which several leave at a time while users write: paused, resumed, cancelled, and with the
//! process killed in the middle. Every byte is compared.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{BLOCK, MIB, Modelled, Rig};
use terrace_device::Device;

fn state(rig: &Rig, job: u64) -> &'static str {
    let jobs = rig.engine.mover().jobs();
    jobs.iter().find(|info| info.id == job).unwrap().state
}

fn members(rig: &Rig) -> Vec<String> {
    let tiers = rig.engine.status().tiers.into_iter();
    tiers
        .flat_map(|tier| tier.devices)
        .map(|device| device.path)
        .collect()
}

fn write_one(rig: &mut Rig, volume: &mut Modelled) {
    let block = rig.random.below(volume.model.len() as u64 / BLOCK);
    volume.write(&mut rig.random, block * BLOCK, BLOCK).unwrap();
}

/// Steps, with a write between each two, until none of these devices is being emptied.
fn drive(rig: &mut Rig, volume: &mut Modelled, jobs: &[u64]) {
    for step in 0..20_000 {
        if !jobs.iter().any(|job| rig.engine.is_leaving(*job)) {
            return;
        }
        rig.engine.step().unwrap();
        if step % 8 == 0 {
            write_one(rig, volume);
        }
        if step % 500 == 499 {
            rig.tick();
        }
    }
    panic!("it does not come to its end");
}

/// The volume of the pool that was opened anew.
fn reopen(rig: &mut Rig, volume: Modelled) -> Modelled {
    volume.volume.flush().unwrap();
    let model = volume.model;
    drop(volume.volume);
    // What was taken out has no label.
    let members = members(rig);
    rig.devices.retain(|device| members.contains(&device.path()));
    rig.reopen(false);
    Modelled {
        volume: rig.engine.datasets().volume("tank/v").unwrap(),
        model,
    }
}

#[test]
fn several_of_many_devices_leave_while_users_write() {
    let tiers: Vec<(Vec<u64>, u8)> = (0..8).map(|tier| (vec![(20 + 2 * tier) * MIB; 4], 1)).collect();
    let mut rig = Rig::of(&tiers);
    assert_eq!(members(&rig).len(), 32);
    let mut volume = Modelled::new(rig.thick("tank/v", 160 * MIB));
    volume.write_all(&mut rig.random);
    rig.tick();
    // Three at a time: one is paused, one is cancelled, and the process ends.
    let jobs: Vec<u64> = ["/disk0", "/disk5", "/disk9"]
        .map(|path| rig.engine.remove_device(path).unwrap())
        .into();
    (0..6).for_each(|_| {
        rig.engine.step().unwrap();
    });
    rig.engine.job_action(jobs[0], "pause").unwrap();
    rig.engine.job_action(jobs[1], "cancel").unwrap();
    write_one(&mut rig, &mut volume);
    volume = reopen(&mut rig, volume);
    assert_eq!(
        (state(&rig, jobs[0]), state(&rig, jobs[1])),
        ("paused", "cancelled")
    );
    drive(&mut rig, &mut volume, &jobs[2..]);
    assert_eq!((state(&rig, jobs[0]), state(&rig, jobs[2])), ("paused", "done"));
    rig.engine.job_action(jobs[0], "resume").unwrap();
    drive(&mut rig, &mut volume, &jobs);
    assert_eq!(state(&rig, jobs[0]), "done");
    let left = members(&rig);
    assert_eq!(left.len(), 30);
    assert!(
        left.contains(&"/disk5".into())
            && !left.contains(&"/disk0".into())
            && !left.contains(&"/disk9".into())
    );
    volume.verify();

    // Emptied and shrunk, killed at some steps of it.
    let emptied = rig.engine.evacuate_device("/disk1").unwrap();
    let shrunk = rig.engine.shrink_device("/disk2", 12 * MIB).unwrap();
    for _ in 0..3 {
        (0..5).for_each(|_| {
            rig.engine.step().unwrap();
        });
        write_one(&mut rig, &mut volume);
        volume = reopen(&mut rig, volume);
    }
    drive(&mut rig, &mut volume, &[emptied, shrunk]);
    assert_eq!((state(&rig, emptied), state(&rig, shrunk)), ("done", "done"));
    volume.verify();
    volume = reopen(&mut rig, volume);
    volume.verify();
    let devices = rig.engine.pool().devices();
    let of = |path: &str| devices.iter().find(|device| device.path == path).unwrap();
    assert_eq!(of("/disk1").free_segments, of("/disk1").segments);
    assert!(of("/disk2").size_bytes <= 12 * MIB);
    rig.engine.close().unwrap();
}
