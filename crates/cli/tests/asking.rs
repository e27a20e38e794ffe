//! What users are told when they ask: where content is that cannot be read, what a pin had no room for, and which pools are
//! stopped. Asking starts nothing.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, nbd::Client, noise, until};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn put(machine: &Machine, name: &str, bytes: usize, seed: u64) {
    fs::write(machine.path("content"), noise(bytes, seed)).unwrap();
    machine.ok(&["put", &format!("tank/data/{name}"), "content"]);
}

#[test]
fn who_waits_for_a_pin_without_room_gets_an_error_with_figures() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "large", 90 * MIB, 1);
    let error = machine.error_last(&["pin", "tank/data/large", "fast", "--wait"], 1);
    for words in [
        "tier 'fast'",
        "found no room",
        "of 90",
        "the pin holds",
        "terrace pool add",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    let found = machine.json(&["where", "tank/data/large"]);
    assert_eq!(found["pin"], "fast");
    assert!(
        found["bytes_by_tier"]["fast"].as_u64().unwrap() > 40 * MIB as u64,
        "{found}"
    );
    // Where all of it is there, a tier that is nearly full is no reason to fail.
    machine.ok(&["unpin", "tank/data/large"]);
    put(&machine, "small", MIB, 2);
    machine.ok(&["pin", "tank/data/small", "fast"]);
    let place = machine.json(&["where", "tank/data/small"]);
    if place["bytes_by_tier"]["fast"] == json!(MIB) {
        machine.ok(&["pin", "tank/data/small", "fast", "--wait"]);
    }
}

#[test]
fn a_pool_that_gets_full_says_so_and_what_to_do() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:160M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(
        (&status["room"], &status["room_detail"]),
        (&json!("enough"), &json!(""))
    );
    assert!(!machine.ok(&["status", "tank"]).contains("full"));
    let mut rooms = Vec::new();
    for at in 0..200 {
        fs::write(machine.path("content"), noise(MIB, 1 + at)).unwrap();
        let written = machine.run(&["put", &format!("tank/data/f{at}"), "content"]);
        let status = machine.json(&["status", "tank"]);
        rooms.push(status["room"].as_str().unwrap().to_owned());
        if !written.status.success() {
            break;
        }
    }
    rooms.dedup();
    assert_eq!(rooms[..2], ["enough", "low"], "{rooms:?}");
    assert_ne!(rooms.last().unwrap(), "enough");
    let text = machine.ok(&["status", "tank"]);
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("room: "))
        .unwrap();
    for words in [
        "full",
        "delete files",
        "list -t snapshot -r tank",
        "terrace pool add tank",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    // What it says helps.
    machine.ok(&["pool", "add", "tank", "only=b.img:160M"]);
    assert_eq!(machine.json(&["status", "tank"])["room"], "enough");
    // What is reserved is taken for others, and is said.
    machine.ok(&["volume", "create", "tank/thick", "--size", "120M"]);
    let status = machine.json(&["status", "tank"]);
    assert_ne!(status["room"], "enough", "{status}");
    let detail = status["room_detail"].as_str().unwrap();
    assert!(detail.contains("get -r reservation tank"), "{detail}");
}

/// What retention keeps is in no list of files or snapshots: the errors and `status` say that it is there, and how it is let go of.
#[test]
fn a_pool_that_is_full_of_retained_history_names_prune() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:160M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    machine.ok(&["set", "retention=all:1d", "commit_interval=1s", "tank/data"]);
    let retained = || {
        let rows = machine.json(&["list", "tank/data"]);
        rows[0]["retained"].as_u64().unwrap()
    };
    let put = |seed: u64| {
        fs::write(machine.path("content"), noise(20 * MIB, seed)).unwrap();
        machine.run(&["put", "tank/data/f", "content"])
    };
    // Each is written over the one before, after a checkpoint that holds that one.
    let refused = (1..20).find_map(|seed| {
        let before = retained();
        let written = put(seed);
        if written.status.success() {
            until("a checkpoint is held", || retained() > before);
        }
        (!written.status.success()).then(|| String::from_utf8(written.stderr).unwrap())
    });
    let refused = refused.expect("a pool of 160M takes no 380M");
    let detail = machine.json(&["status", "tank"])["room_detail"].to_string();
    for words in [
        "kept by the retention of 'tank/data'",
        "terrace set retention=",
        "terrace prune tank/data",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
        assert!(detail.contains(words), "{words}: {detail}");
    }
    // What they say helps, and is said no more.
    machine.ok(&["set", "retention=none", "tank/data"]);
    machine.ok(&["prune", "tank/data"]);
    until("there is room", || put(100).status.success());
    let status = machine.json(&["status", "tank"]);
    assert!(
        !status["room_detail"].to_string().contains("retention of"),
        "{status}"
    );
}

#[test]
fn what_was_written_over_is_no_sharing_that_is_less_than_none() {
    let machine = Machine::with_volume();
    let address = format!("unix:{}", machine.text("nbd.sock"));
    machine.ok(&["serve", "tank/vm", "--nbd", &address]);
    let mut client = Client::connect(&machine.path("nbd.sock"), "tank/vm");
    assert_eq!(client.write(0, &noise(16 * MIB, 1)), 0);
    client.flush();
    let before = machine.json(&["status", "tank"]);
    assert_eq!(
        (&before["dedup_ratio"], &before["overwritten_bytes"]),
        (&json!(1.0), &json!(0))
    );
    // A block of each chunk, so that all live.
    for at in 0..256 {
        assert_eq!(client.write(at * 65536, &noise(4096, 1000 + at)), 0);
    }
    client.flush();
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["logical_bytes"], before["logical_bytes"]);
    assert_eq!(status["dedup_ratio"], 1.0, "{status}");
    let (unique, over) = (&status["unique_bytes"], &status["overwritten_bytes"]);
    assert_eq!(over, &json!(MIB), "{unique}");
    assert_eq!(
        unique.as_u64().unwrap() - MIB as u64,
        status["logical_bytes"].as_u64().unwrap()
    );
    let text = machine.ok(&["status", "tank"]);
    assert!(
        text.contains("16M written, 16M unique (dedup 1.00x), 1M overwritten and not free yet"),
        "{text}"
    );
}

#[test]
fn content_on_a_device_that_is_gone_is_told_with_the_device() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a.img:128M,b.img:128M",
        "--tier",
        "slow=c.img:128M",
    ]);
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "part", 40 * MIB, 1);
    let whole = machine.json(&["where", "tank/data/part"]);
    assert_eq!(
        (&whole["lost_bytes"], &whole["lost_on"], &whole["failing_bytes"]),
        (&json!(0), &json!([]), &json!(0))
    );
    assert!(!machine.ok(&["where", "tank/data/part"]).contains("lost"));
    machine.ok(&["stop", "tank"]);
    fs::rename(machine.path("b.img"), machine.path("b.away")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    let found = machine.json(&["where", "tank/data/part"]);
    let lost = found["lost_bytes"].as_u64().unwrap();
    assert!(lost > MIB as u64 && lost < 40 * MIB as u64, "{found}");
    // What is lost is no part of any tier's.
    let tiers = found["bytes_by_tier"].as_object().unwrap().values();
    let there: u64 = tiers.map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(there + lost, 40 * MIB as u64, "{found}");
    let device = &found["lost_on"][0];
    assert_eq!(
        (&device["bytes"], &device["state"]),
        (&json!(lost), &json!("missing"))
    );
    assert!(device["device"].as_str().unwrap().ends_with("b.img"), "{found}");
    let said = machine.ok(&["where", "tank/data/part"]);
    assert!(
        said.contains("b.img', which is missing") && said.contains("cannot be read"),
        "{said}"
    );
    // Region by region it comes to the same.
    let rows = machine.json(&["where", "tank/data/part", "--regions"]);
    let regions = rows["regions"].as_array().unwrap().iter();
    let sum: u64 = regions.map(|row| row["lost_bytes"].as_u64().unwrap()).sum();
    assert_eq!((sum, &rows["lost_on"]), (lost, &found["lost_on"]));
    assert!(
        machine
            .ok(&["where", "tank/data/part", "--regions"])
            .contains("lost ")
    );
    // The device leaves for good, and the loss is still told.
    machine.ok(&["pool", "remove", "tank", "b.img", "--lost", "--yes"]);
    let found = machine.json(&["where", "tank/data/part"]);
    assert_eq!(
        (&found["lost_bytes"], &found["lost_on"][0]["state"]),
        (&json!(lost), &json!("removed")),
        "{found}"
    );
}

#[test]
fn asking_about_all_pools_starts_none_and_names_those_that_are_stopped() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:64M"]);
    machine.ok(&["pool", "create", "lake", "--tier", "only=b.img:64M"]);
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["stop", "lake"]);
    let is_stopped = |pool: &str| {
        let status = machine.json(&["status"]);
        let rows = status.as_array().unwrap();
        rows.iter()
            .any(|row| row["pool"] == pool && row["state"] == "stopped")
    };
    for words in [
        &["jobs"][..],
        &["iostat"],
        &["events"],
        &["list"],
        &["status", "--lost"],
    ] {
        let output = machine.run(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success() && said.contains("'lake' is stopped") && !said.contains("tank"),
            "{words:?}: {said}"
        );
        assert!(is_stopped("lake") && !is_stopped("tank"), "{words:?}");
    }
    let pools = |rows: Value| -> Vec<String> {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["pool"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(pools(machine.json(&["iostat"])), ["tank"]);
    // Who names a pool wants it.
    assert_eq!(pools(machine.json(&["iostat", "lake"])), ["lake"]);
    assert!(!is_stopped("lake"));
    machine.ok(&["stop", "lake"]);
    machine.ok(&["stop", "tank"]);
    assert_eq!(machine.json(&["list"]), json!([]));
    let error = machine.error_last(&["events", "-f"], 1);
    assert!(error.contains("no pool is running"), "{error}");
    assert!(is_stopped("lake") && is_stopped("tank"));
}

#[test]
fn a_job_that_is_named_without_its_pool_starts_none() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:64M"]);
    machine.ok(&["stop", "tank"]);
    let is_stopped = || machine.json(&["status"])["state"] == "stopped";
    for action in ["pause", "resume", "cancel"] {
        let error = machine.error(&["jobs", action, "1"], 1);
        assert!(
            error.contains("pool 'tank' is stopped")
                && error.contains(&format!("jobs {action} 1 --pool POOL")),
            "{error}"
        );
        assert!(is_stopped(), "{action}");
    }
    // Who names the pool wants it.
    let error = machine.error(&["jobs", "pause", "1", "--pool", "tank"], 1);
    assert!(error.contains("no scrub is running"), "{error}");
    assert!(!is_stopped());
    // Of one that runs the job is found.
    let error = machine.error(&["jobs", "pause", "77"], 1);
    assert!(error.contains("no pool has a job 77"), "{error}");
    machine.ok(&["stop", "tank"]);
}
