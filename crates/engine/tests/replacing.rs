//! A replacement that is given up, at any time and over a kill: the pool is as it was before, and what is in it is said.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use std::sync::Arc;

use full_pool::{MIB, Modelled, Rig};
use terrace_device::{Device, MemoryDevice};
use terrace_engine::Engine;

fn paths(engine: &Engine) -> Vec<String> {
    engine
        .pool()
        .devices()
        .into_iter()
        .map(|info| info.path)
        .collect()
}

fn drive(engine: &Engine, is_over: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_over() {
            return;
        }
        engine.step().unwrap();
    }
    panic!("it does not come to its end: {:?}", engine.jobs());
}

/// A pool of two devices, of which the second one is being replaced and a part of it has moved already.
fn half_replaced(new_bytes: u64) -> (Rig, Modelled, u64) {
    let mut rig = Rig::of(&[(vec![128 * MIB; 2], 1)]);
    let mut volume = Modelled::new(rig.thick("tank/v", 48 * MIB));
    volume.write_all(&mut rig.random);
    rig.tick();
    let new = Arc::new(MemoryDevice::new("/new", new_bytes));
    rig.devices.push(new.clone());
    let job = rig
        .engine
        .replace_opened("/disk1", new as Arc<dyn Device>, false)
        .unwrap();
    let moved = || {
        let jobs = rig.engine.jobs();
        jobs.iter().find(|other| other.id == job).unwrap().done_bytes
    };
    drive(&rig.engine, || moved() > 4 * MIB);
    assert!(rig.engine.is_leaving(job), "it was over at once");
    (rig, volume, job)
}

#[test]
fn the_new_device_leaves_again() {
    let (rig, volume, job) = half_replaced(128 * MIB);
    let engine = &rig.engine;
    let (old, new) = engine.replacement_of(job).unwrap();
    engine.job_action(job, "cancel").unwrap();
    let said = engine.after_replacing(old, new);
    assert!(
        said.contains("'/disk1' is used as before; '/new'") && said.contains("leaves the pool again by job"),
        "{said}"
    );
    assert!(!engine.pool().devices()[1].draining);
    drive(engine, || paths(engine).len() == 2);
    assert_eq!(paths(engine), ["/disk0", "/disk1"]);
    assert!(engine.after_replacing(old, new).contains("is not in the pool"));
    volume.verify();
}

#[test]
fn it_does_so_after_a_kill_too() {
    let (mut rig, volume, job) = half_replaced(128 * MIB);
    // The command is kept, and nothing followed from it yet.
    rig.engine.mover().cancel(job).unwrap();
    drop(volume.volume);
    rig.reopen(false);
    let engine = &rig.engine;
    drive(engine, || paths(engine).len() == 2);
    assert_eq!(paths(engine), ["/disk0", "/disk1"]);
    assert!(!engine.pool().devices()[1].draining);
    let volume = Modelled {
        volume: engine.datasets().volume("tank/v").unwrap(),
        model: volume.model,
    };
    volume.verify();
}

#[test]
fn a_replacement_that_is_not_given_up_goes_on_after_a_kill() {
    let (mut rig, volume, job) = half_replaced(128 * MIB);
    drop(volume.volume);
    rig.reopen(false);
    assert!(rig.engine.replacement_of(job).is_some());
    drive(&rig.engine, || paths(&rig.engine).len() == 2);
    assert_eq!(paths(&rig.engine), ["/disk0", "/new"]);
}

#[test]
fn what_gives_up_the_old_device_keeps_the_new_one() {
    let (rig, volume, _) = half_replaced(128 * MIB);
    let engine = &rig.engine;
    let job = engine.give_up_device("/disk1").unwrap().unwrap();
    drive(engine, || !engine.is_leaving(job));
    assert_eq!(paths(engine), ["/disk0", "/new"]);
    volume.verify();
}

#[test]
fn where_it_cannot_leave_both_are_named() {
    let (rig, volume, job) = half_replaced(1024 * MIB);
    let engine = &rig.engine;
    let (old, new) = engine.replacement_of(job).unwrap();
    // What came since has room only with the new one.
    let more = rig.engine.store().available_bytes();
    let thick = rig.thick("tank/more", more / 10 * 9);
    engine.job_action(job, "cancel").unwrap();
    let said = engine.after_replacing(old, new);
    assert!(
        said.contains("'/disk1' and '/new' are both in the pool"),
        "{said}"
    );
    assert!(
        said.contains("'terrace pool remove tank /disk1' goes on")
            && said.contains("'terrace pool remove tank /new' goes back"),
        "{said}"
    );
    assert!(engine.pool().devices().iter().all(|info| !info.draining));
    drop(thick);
    volume.verify();
}
