//! A scrub that a stop, a kill -9 or a power cut interrupts goes on where it was, and its result is that of both parts.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, NewDataset, ROOT};
use terrace_device::{AlignedBuffer, Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, JobStatus, OpenOptions, PoolSpec, TierSpec};
use terrace_pool::Presence;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const SCRUB: u64 = 1;
const SECOND: u64 = 1_000_000_000;

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..bytes / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

struct Rig {
    clock: Arc<ManualClock>,
    devices: Vec<Arc<MemoryDevice>>,
    opened: u64,
}

impl Rig {
    /// A pool with 64 files of 1 MiB.
    fn new(devices: usize) -> (Self, Arc<Engine>) {
        let mut rig = Self {
            clock: Arc::new(ManualClock::new(1_800_000_000_000_000_000)),
            devices: (0..devices)
                .map(|number| Arc::new(MemoryDevice::new(format!("/disk{number}"), 192 * MIB as u64)))
                .collect(),
            opened: 1,
        };
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: vec![TierSpec {
                name: "disk".into(),
                devices: (0..devices)
                    .map(|number| format!("/disk{number}").parse().unwrap())
                    .collect(),
                copies: devices as u8,
            }],
            ..PoolSpec::default()
        };
        let options = rig.options();
        let engine = Engine::create_on(&spec, vec![rig.given(devices)], options).unwrap();
        let made = NewDataset {
            properties: vec![("compression".into(), "off".into())],
            ..NewDataset::default()
        };
        engine.datasets().create("tank/data", &made).unwrap();
        rig.write(&engine, 0..64);
        (rig, engine)
    }

    fn write(&self, engine: &Engine, files: std::ops::Range<u64>) {
        let filesystem = engine.datasets().filesystem("tank/data").unwrap();
        let root = Context::root();
        for number in files {
            let name = format!("file{number}");
            let made = filesystem.create(&root, ROOT, name.as_bytes(), FileKind::File, 0o644, 0);
            let object = made.unwrap().object;
            filesystem
                .write(&root, object, 0, &noise(MIB, number + 1), false)
                .unwrap();
            filesystem.sync().unwrap();
        }
        engine.tick().unwrap();
    }

    fn options(&mut self) -> OpenOptions {
        self.opened += 1;
        OpenOptions {
            degraded: true,
            ..OpenOptions::driven(self.clock.clone(), self.opened)
        }
    }

    fn given(&self, count: usize) -> Vec<Arc<dyn Device>> {
        let devices = self.devices.iter().take(count);
        devices.map(|device| device.clone() as Arc<dyn Device>).collect()
    }

    fn open(&mut self, devices: usize) -> Arc<Engine> {
        let options = self.options();
        Engine::open(self.given(devices), options).unwrap()
    }

    /// The process ends without a word: what was not written is lost.
    fn kill(&mut self, engine: Arc<Engine>) -> Arc<Engine> {
        drop(engine);
        self.open(self.devices.len())
    }

    fn step(&self, engine: &Engine, milliseconds: u64) {
        self.clock.advance(milliseconds * SECOND / 1000);
        engine.step().unwrap();
    }

    fn scrub_beyond(&self, engine: &Engine, bytes: u64) -> JobStatus {
        while job(engine).done_bytes < bytes {
            self.step(engine, 1000);
        }
        job(engine)
    }

    fn to_its_end(&self, engine: &Engine) {
        for _ in 0..10_000 {
            if job(engine).state != "running" {
                return;
            }
            self.step(engine, 100);
        }
        panic!("the scrub has no end");
    }

    /// One bit of the content of a file is wrong from now on.
    fn damage(&self, file: u64) {
        let content = noise(MIB, file + 1);
        let device = &self.devices[0];
        let length = device.size_bytes() as usize;
        let mut bytes = AlignedBuffer::with_capacity(length);
        device.read_at(0, bytes.reuse(length)).unwrap();
        let at = bytes.windows(64).position(|here| here == &content[..64]).unwrap();
        bytes[at] ^= 4;
        let page = at / BLOCK * BLOCK;
        let mut written = AlignedBuffer::with_capacity(BLOCK);
        written.reuse(BLOCK).copy_from_slice(&bytes[page..page + BLOCK]);
        device.write_at(page as u64, &written).unwrap();
    }
}

fn job(engine: &Engine) -> JobStatus {
    engine.jobs().into_iter().find(|job| job.id == SCRUB).unwrap()
}

fn is_listed(engine: &Engine) -> bool {
    engine.jobs().iter().any(|job| job.id == SCRUB)
}

#[test]
fn it_goes_on_after_stops_and_kills_and_tells_of_what_all_parts_found() {
    let (mut rig, engine) = Rig::new(1);
    engine.start_scrub().unwrap();
    rig.to_its_end(&engine);
    let undisturbed = engine.status().scrub.unwrap();
    assert_eq!((undisturbed.errors, undisturbed.state.as_str()), (0, "done"));
    rig.damage(2);
    rig.damage(60);
    engine.start_scrub().unwrap();
    let started = job(&engine).started;
    let stopped = rig.scrub_beyond(&engine, 20 << 20);
    assert!(stopped.done_bytes < 40 << 20, "{stopped:?}");
    engine.close().unwrap();
    drop(engine);
    let engine = rig.open(1);
    let going_on = job(&engine);
    assert_eq!(
        (
            &going_on.state[..],
            going_on.done_bytes,
            going_on.total_bytes,
            &going_on.started
        ),
        ("running", stopped.done_bytes, stopped.total_bytes, &started)
    );
    assert!(going_on.done_bytes < going_on.total_bytes, "{going_on:?}");
    // It is not begun twice.
    assert!(!engine.start_scrub().unwrap());
    rig.clock.advance(20 * SECOND);
    let killed = rig.scrub_beyond(&engine, 40 << 20);
    engine.tick().unwrap();
    let engine = rig.kill(engine);
    let going_on = job(&engine);
    assert!(
        going_on.state == "running" && going_on.done_bytes > stopped.done_bytes,
        "{going_on:?}, {stopped:?}"
    );
    assert!(going_on.done_bytes <= killed.done_bytes);
    rig.to_its_end(&engine);
    let found = engine.status().scrub.unwrap();
    assert_eq!(
        (found.state.as_str(), found.done_bytes),
        ("done", found.total_bytes)
    );
    assert_eq!(
        (found.chunks, found.errors, found.repaired),
        (undisturbed.chunks, 2, 0)
    );
    assert_eq!(found.files, ["tank/data/file2", "tank/data/file60"]);
    assert_eq!(
        found
            .devices
            .iter()
            .map(|device| device.checksum_errors)
            .collect::<Vec<_>>(),
        [2]
    );
    assert!(
        engine.status().state_detail.contains("file2"),
        "{}",
        engine.status().state_detail
    );
    // And it is over, also after a restart.
    engine.tick().unwrap();
    let engine = rig.kill(engine);
    assert!(!is_listed(&engine));
    assert_eq!(engine.status().scrub.unwrap().files, found.files);
    engine.close().unwrap();
}

#[test]
fn a_kill_at_any_step_loses_no_damage_that_it_found() {
    let (mut rig, mut engine) = Rig::new(1);
    rig.damage(9);
    rig.damage(30);
    engine.start_scrub().unwrap();
    let (mut kills, mut naming) = (0, 0);
    while job(&engine).state == "running" {
        // Steps of the engine take turns, and one of the scrub is among some.
        (0..5).for_each(|_| rig.step(&engine, 12_000));
        if job(&engine).state != "running" {
            break;
        }
        engine.tick().unwrap();
        // Looking for the names begins anew.
        let names = job(&engine).done_bytes == job(&engine).total_bytes;
        if names && naming > 3 {
            continue;
        }
        naming += u32::from(names);
        kills += 1;
        assert!(kills < 100, "it does not come on: {:?}", job(&engine));
        engine = rig.kill(engine);
    }
    assert!(kills >= 2 && naming > 0, "{kills}, {naming}");
    let found = engine.status().scrub.unwrap();
    assert_eq!((found.errors, found.files.len()), (2, 2), "{found:?}");
    engine.close().unwrap();
}

#[test]
fn what_was_asked_for_by_hand_holds_after_a_kill_at_once() {
    let (mut rig, engine) = Rig::new(1);
    engine.start_scrub().unwrap();
    let engine = rig.kill(engine);
    assert_eq!(job(&engine).state, "running");
    rig.scrub_beyond(&engine, 1);
    engine.job_action(SCRUB, "pause").unwrap();
    let paused = job(&engine);
    let engine = rig.kill(engine);
    assert_eq!(
        (job(&engine).state.as_str(), job(&engine).done_bytes),
        ("paused", paused.done_bytes)
    );
    (0..50).for_each(|_| rig.step(&engine, 1000));
    assert_eq!(job(&engine).done_bytes, paused.done_bytes);
    engine.job_action(SCRUB, "resume").unwrap();
    let engine = rig.kill(engine);
    assert_eq!(job(&engine).state, "running");
    engine.job_action(SCRUB, "cancel").unwrap();
    let engine = rig.kill(engine);
    assert!(!is_listed(&engine), "{:?}", engine.jobs());
    engine.close().unwrap();
}

#[test]
fn while_a_device_is_away_it_does_not_go_on_by_itself() {
    let (mut rig, engine) = Rig::new(2);
    engine.start_scrub().unwrap();
    let before = rig.scrub_beyond(&engine, 1);
    engine.close().unwrap();
    drop(engine);
    let engine = rig.open(1);
    (0..50).for_each(|_| rig.step(&engine, 1000));
    let rests = job(&engine);
    assert_eq!(
        (rests.state.as_str(), rests.done_bytes),
        ("paused", before.done_bytes)
    );
    assert!(
        rests.reason.contains("'/disk1' is away") && rests.reason.contains("jobs resume 1"),
        "{rests:?}"
    );
    // Content that the other one lacks lies before and behind where the scrub is.
    rig.write(&engine, 100..110);
    engine.close().unwrap();
    drop(engine);
    let engine = rig.open(2);
    assert_eq!(
        (job(&engine).state.as_str(), &job(&engine).started),
        ("running", &before.started)
    );
    // Were the job that brings it up to date given up, this scrub would not do instead: it was beyond some of it.
    let resilver = engine
        .jobs()
        .into_iter()
        .find(|job| job.kind == "resilver")
        .unwrap();
    engine.job_action(resilver.id, "cancel").unwrap();
    rig.to_its_end(&engine);
    let found = engine.status().scrub.unwrap();
    assert_eq!((found.state.as_str(), found.errors), ("done", 0), "{found:?}");
    (0..50).for_each(|_| rig.step(&engine, 1000));
    assert_eq!(engine.pool().devices()[1].presence, Presence::Behind);
    engine.start_scrub().unwrap();
    rig.to_its_end(&engine);
    (0..50).for_each(|_| rig.step(&engine, 1000));
    assert_eq!(engine.pool().devices()[1].presence, Presence::Whole);
    engine.close().unwrap();
}

#[test]
fn copies_that_it_repaired_before_a_kill_are_told_and_stay() {
    let (mut rig, engine) = Rig::new(2);
    rig.damage(1);
    engine.start_scrub().unwrap();
    rig.scrub_beyond(&engine, 30 << 20);
    assert_eq!(engine.status().scrub.unwrap().repaired, 1);
    engine.tick().unwrap();
    let engine = rig.kill(engine);
    rig.to_its_end(&engine);
    let found = engine.status().scrub.unwrap();
    assert_eq!(
        (found.errors, found.repaired, found.files.len()),
        (1, 1, 0),
        "{found:?}"
    );
    engine.start_scrub().unwrap();
    rig.to_its_end(&engine);
    assert_eq!(engine.status().scrub.unwrap().errors, 0);
    engine.close().unwrap();
}
