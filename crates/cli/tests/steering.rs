//! What users are told of where things lie, and that what they ask for by hand holds: against pins, and against a daemon that is
//! killed right after its answer.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, noise};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn put(machine: &Machine, name: &str, content: &[u8]) {
    fs::write(machine.path("content"), content).unwrap();
    machine.ok(&["put", &format!("tank/data/{name}"), "content"]);
}

fn bytes_on(machine: &Machine, name: &str) -> Value {
    machine.json(&["where", &format!("tank/data/{name}")])["bytes_by_tier"].clone()
}

#[test]
fn a_move_by_hand_of_what_is_pinned_is_refused_and_says_what_to_do() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir_all(machine.path("tree")).unwrap();
    fs::write(machine.path("tree/f"), noise(MIB, 1)).unwrap();
    fs::write(machine.path("tree/own"), noise(MIB, 2)).unwrap();
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["pin", "tank/data/tree/own", "fast", "--wait"]);
    for action in [
        &["demote", "tank/data/tree/own"][..],
        &["demote", "tank/data/tree/own", "-n"],
    ] {
        let error = machine.error(action, 1);
        assert!(error.contains("pinned to tier 'fast'"), "{error}");
        assert!(error.contains("'terrace unpin tank/data/tree/own'"), "{error}");
    }
    machine.ok(&["pin", "tank/data/tree", "slow", "--wait"]);
    let error = machine.error(&["promote", "tank/data/tree/f"], 1);
    assert!(error.contains("by directory 'tank/data/tree'"), "{error}");
    assert!(error.contains("'terrace unpin tank/data/tree'"), "{error}");
    let error = machine.error(&["unpin", "tank/data/tree/f"], 1);
    assert!(
        error.contains("no pin of its own") && error.contains("'terrace unpin tank/data/tree'"),
        "{error}"
    );
    // The whole dataset may go: what is pinned in it stays.
    machine.ok(&["promote", "tank/data", "--wait"]);
    assert_eq!(bytes_on(&machine, "tree/f"), json!({ "fast": 0, "slow": MIB }));
    machine.ok(&["demote", "tank/data", "--wait"]);
    assert_eq!(bytes_on(&machine, "tree/own"), json!({ "fast": MIB, "slow": 0 }));
    machine.ok(&["set", "pin=slow", "tank/data"]);
    let error = machine.error(&["promote", "tank/data"], 1);
    assert!(error.contains("'terrace unpin tank/data'"), "{error}");
    machine.ok(&["unpin", "tank/data"]);
    machine.ok(&["unpin", "tank/data/tree"]);
    let said = machine.ok(&["unpin", "tank/data/tree"]);
    assert!(said.contains("not pinned"), "{said}");
    machine.ok(&["promote", "tank/data/tree/f", "--wait"]);
    assert_eq!(bytes_on(&machine, "tree/f"), json!({ "fast": MIB, "slow": 0 }));
}

#[test]
fn where_and_its_regions_mean_the_same_bytes() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=zstd"]);
    let plain = noise(2 * MIB + 777, 1);
    let mut sparse = noise(3 * MIB + 4097, 2);
    sparse[MIB / 2..2 * MIB].fill(0);
    fs::create_dir_all(machine.path("tree")).unwrap();
    // One twice in itself, one that shares all with another, one that compresses, one shorter than a block, an empty one.
    let files = [
        ("plain", plain.clone(), plain.len()),
        ("twice", plain.repeat(2), 2 * plain.len()),
        ("same", plain.clone(), plain.len()),
        ("sparse", sparse.clone(), sparse.len() - (2 * MIB - MIB / 2)),
        ("text", b"again and again ".repeat(200_000), 3_200_000),
        ("short", b"x".to_vec(), 1),
        ("empty", Vec::new(), 0),
    ];
    let mut all = 0;
    for (name, content, _) in &files {
        fs::write(machine.path(&format!("tree/{name}")), content).unwrap();
    }
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["demote", "tank/data/tree/sparse", "--wait"]);
    let sums = |path: &str, key: &str| {
        let page = machine.json(&["where", path, "--regions", "--limit", "1000"]);
        let rows = page["regions"].as_array().unwrap();
        let sum = |tier: &str| {
            rows.iter()
                .map(|row| row[key][tier].as_u64().unwrap())
                .sum::<u64>()
        };
        json!({ "fast": sum("fast"), "slow": sum("slow") })
    };
    for (name, _, bytes) in &files {
        let path = format!("tank/data/tree/{name}");
        let found = machine.json(&["where", &path]);
        for key in ["bytes_by_tier", "stored_bytes_by_tier"] {
            assert_eq!(found[key], sums(&path, key), "{name} {key}: {found}");
        }
        let tiers = found["bytes_by_tier"].as_object().unwrap().values();
        assert_eq!(
            tiers.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(),
            *bytes as u64,
            "{name}"
        );
        assert_eq!(found["lost_bytes"], 0);
        all += bytes;
    }
    for path in ["tank/data/tree", "tank/data"] {
        let found = machine.json(&["where", path]);
        let tiers = found["bytes_by_tier"].as_object().unwrap().values();
        assert_eq!(
            tiers.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(),
            all as u64,
            "{found}"
        );
        assert_eq!(found["bytes_by_tier"], sums(path, "bytes_by_tier"));
    }
}

#[test]
fn a_next_move_is_promised_only_if_the_settings_allow_it() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let found = |name: &str| {
        let found = machine.json(&["where", &format!("tank/data/{name}")]);
        let reason = found["reason"].as_str().unwrap().to_owned();
        (found["next_move"].as_str().map(str::to_owned), reason)
    };
    put(&machine, "f", &noise(2 * MIB, 1));
    machine.ok(&["tier", "set", "demote_after=1s", "tank/fast"]);
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    machine.ok(&["demote", "tank/data/f", "--no-wait"]);
    let (next, reason) = found("f");
    assert_eq!(next, None, "{reason}");
    assert!(reason.contains("migration is off"), "{reason}");
    let jobs = machine.json(&["jobs", "tank"]);
    let job = jobs.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&job["state"], &job["rate"], &job["eta_seconds"]),
        (&json!("waiting"), &json!(0.0), &Value::Null)
    );
    let id = job["id"].to_string();
    machine.ok(&["jobs", "pause", &id, "--pool", "tank"]);
    machine.ok(&["pool", "set", "migration=on", "tank"]);
    let (next, reason) = found("f");
    assert_eq!(next, None, "{reason}");
    assert!(reason.contains(&format!("jobs resume {id}")), "{reason}");
    machine.ok(&["jobs", "cancel", &id, "--pool", "tank"]);
    // Cold content of a tier with room stays.
    machine.ok(&["tier", "set", "demote_after=never", "tank/fast"]);
    let (next, reason) = found("f");
    assert_eq!(next, None, "{reason}");
    assert!(reason.contains("has room below its high-water mark"), "{reason}");
    machine.ok(&[
        "tier",
        "set",
        "low_water=1%",
        "high_water=1%",
        "hold=100%",
        "tank/fast",
    ]);
    let (next, reason) = found("f");
    assert_eq!(next, None, "{reason}");
    assert!(reason.contains("holds what is written"), "{reason}");
}

#[test]
fn what_was_asked_for_by_hand_goes_on_after_a_kill_right_behind_the_answer() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let content = noise(2 * MIB, 1);
    put(&machine, "f", &content);
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    let listed = |machine: &Machine| {
        let jobs = machine.json(&["jobs", "tank"]);
        let jobs = jobs.as_array().unwrap().iter();
        jobs.map(|job| (job["id"].clone(), job["kind"].clone(), job["state"].clone()))
            .collect::<Vec<_>>()
    };
    for action in [
        &["demote", "tank/data/f", "--no-wait"][..],
        &["pin", "tank/data/f", "slow"],
        &["demote", "tank/data", "--no-wait"],
    ] {
        machine.ok(action);
        machine.kill_daemon("tank");
        machine.ok(&["start", "tank"]);
        let last = listed(&machine).last().unwrap().clone();
        assert_eq!(
            (&last.1, &last.2),
            (&json!("move"), &json!("waiting")),
            "{action:?}"
        );
    }
    let before = listed(&machine);
    assert_eq!(before.len(), 3);
    let first = before[0].0.to_string();
    machine.ok(&["jobs", "cancel", &first, "--pool", "tank"]);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    assert_eq!(listed(&machine)[0].2, "cancelled");
    machine.ok(&["pool", "set", "migration=on", "tank"]);
    machine.ok(&["pin", "tank/data/f", "slow", "--wait"]);
    assert_eq!(bytes_on(&machine, "f"), json!({ "fast": 0, "slow": 2 * MIB }));
    machine.ok(&["get", "tank/data/f", "back"]);
    assert!(fs::read(machine.path("back")).unwrap() == content);
}

#[test]
fn of_three_tiers_each_step_is_the_next_one() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "ram=a.img:64M",
        "--tier",
        "ssd=b.img:96M",
        "--tier",
        "hdd=c.img:128M",
    ]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let content = noise(2 * MIB, 1);
    put(&machine, "f", &content);
    let on = |tier: &str| {
        let mut expected = json!({ "ram": 0, "ssd": 0, "hdd": 0 });
        expected[tier] = json!(2 * MIB);
        expected
    };
    for (action, tier) in [
        ("demote", "ssd"),
        ("demote", "hdd"),
        ("promote", "ssd"),
        ("promote", "ram"),
    ] {
        machine.ok(&[action, "tank/data/f", "--wait"]);
        assert_eq!(bytes_on(&machine, "f"), on(tier), "{action}");
    }
    machine.error(&["promote", "tank/data/f"], 1);
    // Two at once, and to the one between them.
    for tier in ["hdd", "ram", "ssd"] {
        machine.ok(&["pin", "tank/data/f", tier, "--wait"]);
        assert_eq!(bytes_on(&machine, "f"), on(tier));
    }
    machine.ok(&["unpin", "tank/data/f"]);
    machine.error(&["pin", "tank/data/f", "tape"], 1);
    machine.ok(&["demote", "tank/data/f", "--wait"]);
    // A tier that is added between them is the next one.
    machine.ok(&["pool", "add", "tank", "nvme=d.img:96M", "--before", "ssd"]);
    machine.ok(&["promote", "tank/data/f", "--wait"]);
    let found = bytes_on(&machine, "f");
    assert!(
        found["hdd"] == 0 && (found["ssd"] == json!(2 * MIB) || found["nvme"] == json!(2 * MIB)),
        "{found}"
    );
    machine.ok(&["get", "tank/data/f", "back"]);
    assert!(fs::read(machine.path("back")).unwrap() == content);
}
