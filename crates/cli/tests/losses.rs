//! Devices that fail or are gone: what can be read leaves them, what cannot is named, and nothing is given up unasked.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::FileExt};

use harness::{Machine, noise};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn put(machine: &Machine, name: &str, seed: u64) {
    fs::write(machine.path("content"), noise(8 * MIB, seed)).unwrap();
    machine.ok(&["put", &format!("tank/data/{name}"), "content"]);
}

fn same(machine: &Machine, name: &str, seed: u64) {
    machine.ok(&["get", &format!("tank/data/{name}"), "back"]);
    assert!(
        fs::read(machine.path("back")).unwrap() == noise(8 * MIB, seed),
        "{name} changed"
    );
    fs::remove_file(machine.path("back")).unwrap();
}

/// Makes what a file holds at 1 MiB unreadable on the device.
fn damage(machine: &Machine, device: &str, seed: u64) {
    let image = fs::read(machine.path(device)).unwrap();
    let wanted = &noise(8 * MIB, seed)[MIB..MIB + 512];
    let at = image.windows(512).position(|window| window == wanted).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(machine.path(device))
        .unwrap();
    file.write_all_at(&[0xa5; 512], at as u64).unwrap();
}

/// The status, once no look for losses runs.
fn looked(machine: &Machine) -> Value {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let status = machine.json(&["status", "tank"]);
        if status["lost"]["state"] != "looking" {
            return status;
        }
        assert!(std::time::Instant::now() < deadline, "the look never ends");
    }
}

/// What is lost, once it is known.
fn lost(machine: &Machine) -> Value {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let lost = &machine.json(&["status", "tank"])["lost"];
        if lost["state"] == "known" {
            return lost.clone();
        }
        assert!(std::time::Instant::now() < deadline, "it is never known");
    }
}

#[test]
fn what_cannot_be_read_of_a_failing_device_is_named_and_the_rest_leaves_it() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "good", 1);
    put(&machine, "bad", 2);
    machine.ok(&["snapshot", "tank/data@before"]);
    machine.ok(&["pool", "add", "tank", "only=b.img:96M"]);
    machine.ok(&["stop", "tank"]);
    damage(&machine, "a.img", 2);
    machine.ok(&["start", "tank"]);
    let error = machine.error_last(&["pool", "remove", "tank", "a.img", "--wait"], 1);
    assert!(
        error.contains("tank/data/bad") && !error.contains("tank/data/good") && error.contains("--lost"),
        "{error}"
    );
    let files = machine.json(&["status", "tank", "--lost"]);
    assert_eq!(
        (
            &files[0]["path"],
            &files[0]["snapshots"],
            files.as_array().unwrap().len()
        ),
        (&json!("tank/data/bad"), &json!(["before"]), 1),
        "{files}"
    );
    // Everything else has left it: only what is bad is still there.
    let plan = machine.json(&["pool", "remove", "tank", "a.img", "-n"]);
    assert!(plan["live_bytes"].as_u64().unwrap() < MIB as u64, "{plan}");
    // Nothing is given up unasked.
    machine.error(&["pool", "remove", "tank", "a.img", "--lost"], 1);
    let said = machine.ok(&["pool", "remove", "tank", "a.img", "--lost", "--yes"]);
    assert!(said.contains("lost: tank/data/bad"), "{said}");
    fs::remove_file(machine.path("a.img")).unwrap();
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    same(&machine, "good", 1);
    machine.error_last(&["get", "tank/data/bad", "back"], 1);
    assert_eq!(lost(&machine)["names"], json!(["tank/data/bad"]));
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "degraded");
    // Deleted everywhere, and the pool is whole again.
    machine.ok(&["destroy", "tank/data@before", "--yes"]);
    put(&machine, "bad", 3);
    same(&machine, "bad", 3);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while machine.json(&["status", "tank"])["state"] != "online" {
        assert!(std::time::Instant::now() < deadline, "it stays degraded");
        machine.ok(&["compact", "tank", "--wait"]);
    }
    assert_eq!(machine.json(&["status", "tank", "--lost"]), json!([]));
}

#[test]
fn the_second_copy_of_what_was_on_a_missing_device_is_made_anew() {
    let machine = Machine::new();
    let tier = "pair=a.img:96M,b.img:96M";
    machine.ok(&["pool", "create", "tank", "--tier", tier, "--copies", "pair=2"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "f", 1);
    machine.ok(&["stop", "tank"]);
    // A blank disk is in its place.
    fs::File::create(machine.path("a.img"))
        .unwrap()
        .set_len(96 << 20)
        .unwrap();
    let error = machine.error(&["start", "tank"], 1);
    assert!(error.contains("a.img") && error.contains("--degraded"), "{error}");
    machine.ok(&["start", "tank", "--degraded"]);
    let status = looked(&machine);
    assert_eq!(
        (&status["state"], &status["lost"]),
        (&json!("degraded"), &Value::Null)
    );
    let devices = status["tiers"][0]["devices"].as_array().unwrap();
    let gone = devices
        .iter()
        .find(|device| device["state"] == "missing")
        .unwrap();
    let number = gone["number"].to_string();
    // Two copies need two devices: what is advised is what works.
    let detail = status["state_detail"].as_str().unwrap();
    assert!(
        detail.contains(&format!("'terrace pool replace tank {number} NEW'"))
            && !detail.contains("pool remove"),
        "{detail}"
    );
    let error = machine.error(&["pool", "remove", "tank", &number, "--wait"], 1);
    assert!(error.contains("2 copies"), "{error}");
    machine.ok(&["pool", "replace", "tank", &number, "c.img:96M", "--wait"]);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "online", "{status}");
    machine.ok(&["scrub", "tank", "--wait"]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
    fs::remove_file(machine.path("b.img")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    same(&machine, "f", 1);
}

#[test]
fn whoever_waits_for_a_replacement_waits_for_its_copies() {
    let machine = Machine::new();
    let tier = "pair=a.img:96M,b.img:96M";
    machine.ok(&["pool", "create", "tank", "--tier", tier, "--copies", "pair=2"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    (0..3).for_each(|number| put(&machine, &format!("f{number}"), number));
    machine.ok(&["tier", "set", "rate_limit=64K", "tank/pair"]);
    machine.ok(&["stop", "tank"]);
    fs::remove_file(machine.path("a.img")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    let mut waiting = machine.spawn(&["pool", "replace", "tank", "0", "c.img:96M", "--wait"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    let job = loop {
        let jobs = machine.json(&["jobs", "tank"]);
        let mut of_copies = jobs.as_array().unwrap().iter();
        if let Some(job) = of_copies.find(|job| job["kind"] == "resilver") {
            break job["id"].to_string();
        }
        assert!(std::time::Instant::now() < deadline, "no job: {jobs}");
    };
    machine.ok(&["jobs", "pause", &job, "--pool", "tank"]);
    machine.ok(&["tier", "set", "rate_limit=none", "tank/pair"]);
    // The other device leaves meanwhile.
    let is_there = || {
        let status = machine.json(&["status", "tank"]);
        let devices = status["tiers"][0]["devices"].as_array().unwrap().clone();
        devices.iter().any(|device| device["state"] == "missing")
    };
    while is_there() {
        assert!(std::time::Instant::now() < deadline, "it never leaves");
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none(), "its copies are not made");
    machine.ok(&["jobs", "resume", &job, "--pool", "tank"]);
    assert!(waiting.wait().unwrap().success());
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "online", "{status}");
}

#[test]
fn a_missing_device_may_be_taken_out_where_the_others_can_hold_its_copies() {
    let machine = Machine::new();
    let tier = "three=a.img:96M,b.img:96M,c.img:96M";
    machine.ok(&["pool", "create", "tank", "--tier", tier, "--copies", "three=2"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    (0..3).for_each(|number| put(&machine, &format!("f{number}"), number));
    machine.ok(&["stop", "tank"]);
    fs::remove_file(machine.path("a.img")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    let status = looked(&machine);
    let detail = status["state_detail"].as_str().unwrap();
    let advice = "'terrace pool replace tank 0 NEW', or 'terrace pool remove tank 0',";
    assert!(detail.contains(advice), "{detail}");
    machine.ok(&["pool", "remove", "tank", "0", "--wait"]);
    assert_eq!(machine.json(&["status", "tank"])["state"], "online");
    (0..3).for_each(|number| same(&machine, &format!("f{number}"), number));
}

#[test]
fn files_on_a_lost_tier_are_listed() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a.img:96M,b.img:96M",
        "--tier",
        "slow=c.img:96M",
    ]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    for (name, tier, seed) in [("up", "fast", 1), ("down", "slow", 2)] {
        put(&machine, name, seed);
        machine.ok(&["pin", &format!("tank/data/{name}"), tier, "--wait"]);
    }
    machine.ok(&["stop", "tank"]);
    fs::remove_file(machine.path("c.img")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    let found = lost(&machine);
    assert_eq!(
        (&found["names"], &found["files"], &found["complete"]),
        (&json!(["tank/data/down"]), &json!(1), &json!(true))
    );
    let detail = machine.json(&["status", "tank"])["state_detail"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        detail.contains("tank/data/down") && detail.contains("--lost"),
        "{detail}"
    );
    let listed = machine.ok(&["status", "tank", "--lost"]);
    assert!(listed.contains("tank/data/down (2048 blocks"), "{listed}");
    assert!(detail.contains("1 file cannot be read whole"), "{detail}");
    // No scrub brings a device back.
    let error = machine.error(&["cat", "tank/data/down"], 1);
    assert!(
        error.contains("no good copy: device 2 of the pool is missing") && !error.contains("scrub"),
        "{error}"
    );
    same(&machine, "up", 1);
}

#[test]
fn asking_whether_a_missing_device_can_leave_says_what_doing_it_would() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    (0..3).for_each(|number| put(&machine, &format!("f{number}"), number));
    machine.ok(&["stop", "tank"]);
    fs::remove_file(machine.path("b.img")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    for words in [
        &["pool", "remove", "tank", "1", "-n"][..],
        &["evacuate", "tank", "1", "-n"],
        &["pool", "replace", "tank", "1", "c.img:96M", "-n"],
    ] {
        let error = machine.error(words, 1);
        assert!(
            error.contains("no other copy") && error.contains("--lost"),
            "{error}"
        );
    }
    machine.error_last(&["pool", "remove", "tank", "1", "--wait"], 1);
    // Given up it can.
    let plan = machine.json(&["pool", "remove", "tank", "1", "--lost", "-n"]);
    assert_eq!(plan["obstacle"], "");
    machine.ok(&["pool", "remove", "tank", "1", "--lost", "--yes"]);
}

#[test]
fn a_device_that_was_cut_short_is_used_as_far_as_it_goes() {
    let machine = Machine::new();
    let tiers = ["--tier", "fast=a.img:96M", "--tier", "slow=c.img:96M"];
    machine.ok(&[&["pool", "create", "tank"], &tiers[..]].concat());
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    for (name, tier, seed) in [("up", "fast", 1), ("x", "slow", 2), ("y", "slow", 3)] {
        put(&machine, name, seed);
        machine.ok(&["pin", &format!("tank/data/{name}"), tier, "--wait"]);
    }
    machine.ok(&["stop", "tank"]);
    // Cut where the last of what is on it lies: one of the two files is whole.
    let image = fs::read(machine.path("c.img")).unwrap();
    let last = |seed| {
        let content = noise(8 * MIB, seed);
        let marks = (0..8).map(|mark| &content[mark * MIB..mark * MIB + 512]);
        let places = marks.map(|mark| image.windows(512).rposition(|window| window == mark).unwrap());
        places.max().unwrap()
    };
    let (cut, whole, lost_name) = match (last(2), last(3)) {
        (x, y) if x > y => (x, ("y", 3), "x"),
        (_, y) => (y, ("x", 2), "y"),
    };
    let file = fs::File::options()
        .write(true)
        .open(machine.path("c.img"))
        .unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len((cut / 4096 * 4096) as u64).unwrap();
    let error = machine.error(&["start", "tank"], 1);
    assert!(
        error.contains("c.img") && error.contains("cut short") && error.contains("--degraded"),
        "{error}"
    );
    machine.ok(&["start", "tank", "--degraded"]);
    assert_eq!(lost(&machine)["names"], json!([format!("tank/data/{lost_name}")]));
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "degraded");
    let detail = status["state_detail"].as_str().unwrap();
    assert!(
        detail.contains("c.img") && detail.contains("cut short"),
        "{detail}"
    );
    same(&machine, "up", 1);
    same(&machine, whole.0, whole.1);
    machine.error_last(&["get", &format!("tank/data/{lost_name}"), "back"], 1);
    // What is written now lies elsewhere, and is there when the device is as it was; what was cut off is not.
    put(&machine, "new", 4);
    machine.ok(&["stop", "tank"]);
    file.set_len(size).unwrap();
    machine.ok(&["start", "tank"]);
    for (name, seed) in [("up", 1), ("new", 4), whole] {
        same(&machine, name, seed);
    }
    machine.error_last(&["get", &format!("tank/data/{lost_name}"), "back"], 1);
}

#[test]
fn devices_that_share_a_path_are_named_by_number() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a:64M",
        "--tier",
        "slow=b:96M,c:96M",
    ]);
    machine.ok(&["fs", "create", "tank/data"]);
    (1..=3).for_each(|number| put(&machine, &format!("f{number}"), number));
    machine.ok(&["demote", "tank/data", "--wait"]);
    machine.ok(&["stop", "tank"]);
    fs::rename(machine.path("b"), machine.path("away")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    // What has no other copy keeps the missing one in the pool, and the new one is where it was.
    let error = machine.error_last(&["pool", "replace", "tank", "b", "b:96M", "--wait"], 1);
    for words in [
        "'device:1' and 'device:3' are both in the pool",
        "'terrace pool remove tank device:1' goes on",
        "'terrace pool remove tank device:3' goes back",
    ] {
        assert!(error.contains(words), "{error}");
    }
    let shown = machine.ok(&["status", "tank"]);
    for number in [1, 3] {
        assert!(shown.contains(&format!("/b (device:{number})")), "{shown}");
    }
    assert!(!shown.contains("/c (device"), "{shown}");
    for command in [
        &["pool", "remove", "tank", "b", "-n"][..],
        &["pool", "replace", "tank", "b", "b", "--force"],
        &["pool", "resize", "tank", "b"],
        &["evacuate", "tank", "b"],
    ] {
        let error = machine.error(command, 1);
        assert!(
            error.contains("'device:1' (missing) or 'device:3' (online)"),
            "{error}"
        );
    }
    let error = machine.error(&["pool", "replace", "tank", "device:1", "b", "--force"], 1);
    assert!(
        error.contains("is a device of this pool already, in use by its own daemon"),
        "{error}"
    );
    machine.ok(&["pool", "remove", "tank", "device:3", "--wait"]);
    machine.ok(&["stop", "tank"]);
    fs::rename(machine.path("away"), machine.path("b")).unwrap();
    machine.ok(&["start", "tank"]);
    (1..=3).for_each(|number| same(&machine, &format!("f{number}"), number));
    machine.ok(&["stop", "tank"]);
}
