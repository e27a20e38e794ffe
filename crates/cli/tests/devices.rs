//! Devices that come and go under content: added, emptied, taken out, replaced, refused with figures, resumed after a
//! kill. Every case compares all content and verifies the pool at its end.

#![allow(clippy::unwrap_used)]

mod harness;

use std::fs;

use harness::Machine;
use serde_json::Value;

/// Content that neither compresses nor repeats.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(bytes + 8);
    let mut state = seed;
    while content.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        content.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// A pool of one tier with two devices and some content; returns the content.
fn filled(machine: &Machine) -> Vec<u8> {
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let content = noise(24 << 20, 1);
    fs::write(machine.path("content"), &content).unwrap();
    machine.ok(&["put", "tank/data/content", "content"]);
    content
}

fn unchanged(machine: &Machine, content: &[u8]) {
    machine.ok(&["get", "tank/data/content", "back"]);
    assert!(
        fs::read(machine.path("back")).unwrap() == content,
        "the content changed"
    );
    fs::remove_file(machine.path("back")).unwrap();
    machine.ok(&["scrub", "tank", "--wait"]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
    machine.ok(&["start", "tank"]);
    machine.ok(&["get", "tank/data/content", "back"]);
    assert!(
        fs::read(machine.path("back")).unwrap() == content,
        "the content changed by stop and start"
    );
    fs::remove_file(machine.path("back")).unwrap();
}

fn device_names(machine: &Machine) -> Vec<String> {
    let status = machine.json(&["status", "tank"]);
    let tiers = status["tiers"].as_array().unwrap();
    let devices = tiers.iter().flat_map(|tier| tier["devices"].as_array().unwrap());
    let name = |device: &Value| {
        device["path"]
            .as_str()
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap()
            .to_owned()
    };
    devices.map(name).collect()
}

#[test]
fn a_device_joins_and_another_one_leaves() {
    let machine = Machine::new();
    let content = filled(&machine);
    let said = machine.ok(&["pool", "add", "tank", "only=c.img:96M"]);
    assert!(said.contains("pool remove"), "says how to undo it: {said}");
    assert_eq!(device_names(&machine), ["a.img", "b.img", "c.img"]);
    machine.ok(&["pool", "remove", "tank", "a.img", "--wait"]);
    assert_eq!(device_names(&machine), ["b.img", "c.img"]);
    unchanged(&machine, &content);
    // What left is free for anyone, and does not come back by itself.
    fs::remove_file(machine.path("a.img")).unwrap();
    unchanged(&machine, &content);
}

#[test]
fn an_emptied_device_takes_nothing_until_it_is_used_again() {
    let machine = Machine::new();
    let content = filled(&machine);
    machine.ok(&["evacuate", "tank", "a.img", "--wait"]);
    let live = |machine: &Machine| {
        let plan = machine.json(&["evacuate", "tank", "a.img", "-n"]);
        plan["live_bytes"].as_u64().unwrap()
    };
    assert_eq!(live(&machine), 0);
    fs::write(machine.path("more"), noise(4 << 20, 2)).unwrap();
    machine.ok(&["put", "tank/data/more", "more"]);
    assert_eq!(live(&machine), 0, "nothing new is put on it");
    machine.ok(&["evacuate", "tank", "a.img", "--undo"]);
    machine.error(&["evacuate", "tank", "a.img", "--undo"], 1);
    unchanged(&machine, &content);
}

#[test]
fn a_device_is_replaced() {
    let machine = Machine::new();
    let content = filled(&machine);
    machine.ok(&["pool", "replace", "tank", "b.img", "c.img:128M", "--wait"]);
    assert_eq!(device_names(&machine), ["a.img", "c.img"]);
    unchanged(&machine, &content);
}

#[test]
fn what_the_rest_cannot_hold_is_refused_with_figures() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a.img:64M",
        "--tier",
        "slow=b.img:256M",
    ]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let content = noise(120 << 20, 3);
    fs::write(machine.path("content"), &content).unwrap();
    machine.ok(&["put", "tank/data/content", "content"]);
    let plan = machine.json(&["pool", "remove", "tank", "b.img", "-n"]);
    assert!(plan["live_bytes"].as_u64().unwrap() > plan["room_bytes"].as_u64().unwrap());
    let error = machine.error(&["pool", "remove", "tank", "b.img", "--wait"], 1);
    assert!(
        error.contains("room for") && error.contains("it holds"),
        "{error}"
    );
    machine.error(&["pool", "remove", "tank", "nowhere.img"], 1);
    machine.error(&["pool", "add", "tank", "other=c.img:64M"], 1);
    assert!(
        !machine.path("c.img").exists(),
        "what could not join is not left behind"
    );
    assert_eq!(device_names(&machine), ["a.img", "b.img"]);
    unchanged(&machine, &content);
}

#[test]
fn a_tier_comes_and_goes_with_its_devices() {
    let machine = Machine::new();
    let content = filled(&machine);
    machine.ok(&["pool", "add", "tank", "slow=c.img:96M", "--after", "only"]);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["tiers"][1]["name"], "slow");
    machine.ok(&["pool", "add", "tank", "first=d.img:96M", "--before", "only"]);
    unchanged(&machine, &content);
    machine.ok(&["pool", "remove", "tank", "d.img", "--wait"]);
    machine.ok(&["pool", "remove", "tank", "c.img", "--wait"]);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["tiers"].as_array().unwrap().len(), 1);
    unchanged(&machine, &content);
}

#[test]
fn a_killed_daemon_goes_on_emptying() {
    let machine = Machine::new();
    let content = filled(&machine);
    machine.ok(&["pool", "add", "tank", "only=c.img:96M"]);
    machine.ok(&["pool", "remove", "tank", "a.img", "--no-wait"]);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    // Whether the kill came before or after its end: asking for it again waits for it, or finds it gone.
    let output = machine.run(&["pool", "remove", "tank", "a.img", "--wait"]);
    if !output.status.success() {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while device_names(&machine).contains(&"a.img".to_owned()) {
            assert!(
                std::time::Instant::now() < deadline,
                "the device was never taken out"
            );
            std::thread::yield_now();
        }
    }
    assert_eq!(device_names(&machine), ["b.img", "c.img"]);
    unchanged(&machine, &content);
}
