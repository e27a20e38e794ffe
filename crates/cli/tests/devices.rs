//! Devices that come and go under content: added, emptied, taken out, replaced, refused with figures, resumed after a
//! kill. Every case compares all content and verifies the pool at its end.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};

use harness::{Machine, noise};
use serde_json::Value;

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
    for words in [
        &["pool", "add", "tank", "only=c.img", "--force"][..],
        &["pool", "replace", "tank", "a.img", "./c.img"],
        &["pool", "replace", "tank", "a.img", "c.img", "-n"],
    ] {
        let line = machine.error(words, 1);
        assert!(line.contains("c.img' is a device of this pool already"), "{line}");
    }
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
fn a_replacement_that_is_cancelled_leaves_the_pool_as_it_was() {
    let machine = Machine::new();
    let content = filled(&machine);
    machine.ok(&["tier", "set", "rate_limit=64K", "tank/only"]);
    let job = machine.json(&["pool", "replace", "tank", "b.img", "c.img:128M"])["job"].to_string();
    assert_eq!(device_names(&machine), ["a.img", "b.img", "c.img"]);
    let said = machine.ok(&["jobs", "cancel", &job]);
    assert!(said.contains("b.img' is used as before"), "{said}");
    // Nothing lies on it yet, or next to nothing.
    let leaves = |said: &str, name: &str| {
        said.contains(&format!(
            "{name}', which was to take its place, leaves the pool again by job"
        )) || said.contains("what was to take its place is not in the pool")
    };
    assert!(leaves(&said, "c.img"), "{said}");
    machine.ok(&["tier", "set", "rate_limit=none", "tank/only"]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while device_names(&machine).len() > 2 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(device_names(&machine), ["a.img", "b.img"]);
    unchanged(&machine, &content);
    // Whoever waits is told of too little room before, not hours later, and of what is left when somebody cancels it.
    machine.ok(&["tier", "set", "rate_limit=64K", "tank/only"]);
    let words = ["pool", "replace", "tank", "b.img", "d.img:4T", "--wait"];
    let mut waiting = machine.spawn(&words);
    let mut told = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    assert!(first.contains("d.img' may come to take 4"), "{first}");
    let jobs = machine.json(&["jobs", "tank"]);
    let job = jobs.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&job["kind"], &job["state"] == "done"),
        (&"evacuate".into(), false),
        "{job}"
    );
    machine.ok(&["jobs", "cancel", &job["id"].to_string()]);
    // Beside one that is so much larger there may be no room to leave to: the reserve is a part of all.
    let last = told.last().unwrap().unwrap();
    let stays = last.contains("d.img' are both in the pool") && last.contains("goes back");
    assert!(
        last.contains("cancelled") && (leaves(&last, "d.img") || stays),
        "{last}"
    );
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
}

#[test]
fn a_file_that_is_to_take_more_than_its_filesystem_has_is_told_with_figures() {
    let machine = Machine::new();
    filled(&machine);
    let told = |words: &[&str]| {
        let run = machine.run(words);
        assert!(run.status.success(), "{words:?}: {run:?}");
        String::from_utf8_lossy(&run.stderr).into_owned()
    };
    let is_told = |told: &str, name: &str| {
        told.contains(&format!("{name}' may come to take 4")) && told.contains(" free: writes fail when")
    };
    let said = told(&["pool", "replace", "tank", "b.img", "c.img:4T", "-n"]);
    assert!(is_told(&said, "c.img"), "{said}");
    assert!(!machine.path("c.img").exists(), "it was only asked for");
    assert_eq!(told(&["pool", "replace", "tank", "b.img", "c.img:96M", "-n"]), "");
    let said = told(&["pool", "create", "wide", "--tier", "only=d.img:4T"]);
    assert!(is_told(&said, "d.img"), "{said}");
    let said = told(&["pool", "add", "wide", "only=e.img:4T"]);
    assert!(is_told(&said, "e.img"), "{said}");
    let said = told(&["pool", "replace", "wide", "d.img", "f.img:4T", "--wait"]);
    assert!(is_told(&said, "f.img"), "{said}");
    assert_eq!(told(&["pool", "add", "tank", "only=g.img:96M"]), "");
}

#[test]
fn a_device_that_somebody_uses_is_refused_also_by_a_dry_run() {
    let machine = Machine::new();
    let content = filled(&machine);
    let file = fs::File::create(machine.path("c.img")).unwrap();
    file.set_len(96 << 20).unwrap();
    file.lock().unwrap();
    let words = ["pool", "replace", "tank", "b.img", "c.img"];
    let dry = machine.error(&[&words[..], &["-n"]].concat(), 1);
    assert!(dry.contains("c.img") && dry.contains("in use"), "{dry}");
    assert_eq!(machine.error(&words, 1), dry);
    assert_eq!(device_names(&machine), ["a.img", "b.img"]);
    drop(file);
    machine.ok(&[&words[..], &["-n"]].concat());
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
    let tried = machine.run(&["pool", "remove", "tank", "b.img", "-n", "--json"]);
    let plan: Value = serde_json::from_slice(&tried.stdout).unwrap();
    assert!(plan["live_bytes"].as_u64().unwrap() > plan["room_bytes"].as_u64().unwrap());
    let refusal = machine.error(&["pool", "remove", "tank", "b.img", "-n"], 1);
    let error = machine.error(&["pool", "remove", "tank", "b.img", "--wait"], 1);
    // What would be refused is refused with -n as well, in the same words but for where the device is.
    let (_, why) = refusal.split_once("': ").unwrap();
    assert!(error.ends_with(why), "{refusal}; {error}");
    assert_eq!(tried.status.code(), Some(1));
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
fn a_device_is_shrunk_and_its_file_cut_off() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:160M,b.img:64M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let content = noise(72 << 20, 5);
    fs::write(machine.path("content"), &content).unwrap();
    machine.ok(&["put", "tank/data/content", "content"]);
    let size = |machine: &Machine| fs::metadata(machine.path("a.img")).unwrap().len();
    let error = machine.error(&["pool", "resize", "tank", "a.img", "20M", "--yes"], 1);
    assert!(
        error.contains("room for") && error.contains("its end holds"),
        "{error}"
    );
    let error = machine.error(&["pool", "resize", "tank", "a.img", "64K", "--yes"], 1);
    assert!(error.contains("at least"), "{error}");
    let error = machine.error(&["pool", "resize", "tank", "a.img", "0", "--yes"], 2);
    assert!(
        error.contains("no bytes") && error.contains("terrace pool remove tank"),
        "{error}"
    );
    for words in [
        &["pool", "resize", "tank", "a.img", "200M"][..],
        &["pool", "resize", "tank", "a.img", "200M", "--yes"],
    ] {
        let error = machine.error(words, 1);
        assert!(error.contains("leave the size out"), "{error}");
    }
    let error = machine.error(&["pool", "resize", "tank", "a.img", "100M"], 1);
    assert!(error.contains("--yes"), "nothing is cut off unasked: {error}");
    let plan = machine.json(&["pool", "resize", "tank", "a.img", "80M", "-n"]);
    assert_eq!((plan["obstacle"].as_str(), size(&machine)), (Some(""), 160 << 20));
    let done = machine.json(&["pool", "resize", "tank", "a.img", "80M", "--yes", "--wait"]);
    assert_eq!(done["size_bytes"].as_u64(), Some(80 << 20));
    assert_eq!(size(&machine), 80 << 20);
    unchanged(&machine, &content);
    // It can be written up to its new end, and grow again.
    fs::write(machine.path("more"), noise(20 << 20, 6)).unwrap();
    machine.ok(&["put", "tank/data/more", "more"]);
    fs::File::options()
        .write(true)
        .open(machine.path("a.img"))
        .unwrap()
        .set_len(128 << 20)
        .unwrap();
    machine.ok(&["pool", "resize", "tank", "a.img"]);
    let status = machine.json(&["status", "tank"]);
    let device = &status["tiers"][0]["devices"][0];
    assert!(device["size_bytes"].as_u64().unwrap() > 120 << 20, "{device}");
    unchanged(&machine, &content);
}

#[test]
fn a_killed_daemon_goes_on_shrinking() {
    let machine = Machine::new();
    let content = filled(&machine);
    let done = machine.json(&["pool", "resize", "tank", "a.img", "40M", "--yes", "--no-wait"]);
    assert!(done["job"].is_u64());
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while fs::metadata(machine.path("a.img")).unwrap().len() > 40 << 20 {
        assert!(std::time::Instant::now() < deadline, "it was never cut off");
        machine.ok(&["jobs", "tank"]);
    }
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
fn a_tier_with_fewer_devices_than_copies_is_told() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=f.img:96M",
        "--tier",
        "pair=a.img:96M,b.img:96M",
        "--copies",
        "pair=2",
    ]);
    let state = || {
        let status = machine.json(&["status", "tank"]);
        let word = |key: &str| status[key].as_str().unwrap().to_owned();
        (word("state"), word("state_detail"))
    };
    assert_eq!(state().0, "online");
    let plan = machine.json(&["pool", "remove", "tank", "a.img", "-n"]);
    assert_eq!(plan["obstacle"], "");
    let warning = plan["warning"].as_str().unwrap();
    assert!(
        warning.contains("keeps 2 copies and has 1 device")
            && warning.contains("'terrace pool add tank pair=DEVICE'"),
        "{warning}"
    );
    let removed = machine.run(&["pool", "remove", "tank", "a.img", "--wait"]);
    let told = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(removed.status.success() && told.contains(warning), "{told}");
    assert_eq!(state(), ("degraded".to_owned(), warning.to_owned()));
    // How many copies a tier keeps is not changed by what joins it.
    let line = machine.error(&["pool", "add", "tank", "pair=c.img:96M", "--copies", "3"], 1);
    assert!(line.contains("'pair' keeps 2 copies"), "{line}");
    assert!(!machine.path("c.img").exists());
    // What came meanwhile gets its second copy.
    machine.ok(&["fs", "create", "tank/data", "-o", "pin=pair"]);
    fs::write(machine.path("more"), noise(4 << 20, 2)).unwrap();
    machine.ok(&["put", "tank/data/more", "more"]);
    machine.ok(&["pool", "add", "tank", "pair=c.img:96M"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while state().0 != "online" {
        assert!(std::time::Instant::now() < deadline, "{:?}", state());
        std::thread::yield_now();
    }
    let refused = machine.error(&["pool", "remove", "tank", "b.img"], 1);
    assert!(refused.contains("only 1 device(s) would be left"), "{refused}");
    // Emptied, it is taken apart device by device.
    machine.ok(&["pin", "tank/data", "fast", "--wait"]);
    for device in ["b.img", "c.img"] {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while !machine
            .run(&["pool", "remove", "tank", device, "--wait"])
            .status
            .success()
        {
            assert!(std::time::Instant::now() < deadline, "{device} was never empty");
        }
    }
    assert_eq!(device_names(&machine), ["f.img"]);
    assert_eq!(state().0, "online");
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

/// The machine's note of a pool is older than a job that ended while nobody waited for it.
#[test]
fn a_device_that_has_left_is_no_longer_shown() {
    let machine = Machine::new();
    let content = filled(&machine);
    machine.ok(&["pool", "remove", "tank", "a.img"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while device_names(&machine) != ["b.img"] {
        assert!(Instant::now() < deadline, "{}", machine.ok(&["jobs", "tank"]));
    }
    let (a, b) = (machine.text("a.img"), machine.text("b.img"));
    let told = machine.ok(&["pool", "destroy", "tank", "-n"]);
    assert!(told.contains(&b) && !told.contains(&a), "{told}");
    assert_eq!(
        machine.json(&["pool", "list"])[0]["devices"],
        serde_json::json!([b])
    );
    unchanged(&machine, &content);
}
