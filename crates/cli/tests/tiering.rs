//! Tiers as users set, watch and lose them: settings that hold, pins without room, heat in figures, copies, missing
//! devices, many of both. Every case compares all content.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::FileExt};

use harness::{Machine, can_mount, noise};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn put(machine: &Machine, name: &str, bytes: usize, seed: u64) {
    fs::write(machine.path("content"), noise(bytes, seed)).unwrap();
    machine.ok(&["put", &format!("tank/data/{name}"), "content"]);
}

#[track_caller]
fn same(machine: &Machine, name: &str, bytes: usize, seed: u64) {
    machine.ok(&["get", &format!("tank/data/{name}"), "back"]);
    assert!(
        fs::read(machine.path("back")).unwrap() == noise(bytes, seed),
        "{name} changed"
    );
    fs::remove_file(machine.path("back")).unwrap();
}

fn tier<'a>(status: &'a Value, name: &str) -> &'a Value {
    let tiers = status["tiers"].as_array().unwrap();
    tiers.iter().find(|tier| tier["name"] == name).unwrap()
}

fn bytes_on(machine: &Machine, name: &str, tier: &str) -> u64 {
    let found = machine.json(&["where", &format!("tank/data/{name}")]);
    found["bytes_by_tier"][tier].as_u64().unwrap()
}

#[test]
fn how_long_a_tier_holds_is_kept() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["tier", "set", "hold=90%", "demote_after=7d", "tank/fast"]);
    let held = |machine: &Machine| machine.json(&["tier", "list", "tank"])[0]["hold"].clone();
    assert_eq!(held(&machine), json!(0.9));
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    assert_eq!(held(&machine), json!(0.9));
    let error = machine.error(&["tier", "set", "hold=10%", "tank/fast"], 1);
    assert!(error.contains("low_water"), "{error}");
    machine.error(&["tier", "set", "hold=often", "tank/fast"], 2);
    machine.ok(&["tier", "set", "hold=off", "tank/fast"]);
    assert_eq!(held(&machine), Value::Null);
}

#[test]
fn a_device_that_leaves_is_not_told_to_leave_again() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:128M,b.img:128M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "f", 64 * MIB, 1);
    // Minutes, of which none is waited for.
    machine.ok(&["tier", "set", "rate_limit=64K", "tank/only"]);
    machine.ok(&["evacuate", "tank", "a.img", "--no-wait"]);
    for words in [
        &["pool", "remove", "tank", "a.img"][..],
        &["pool", "remove", "tank", "a.img", "-n"],
        &["evacuate", "tank", "a.img", "-n"],
    ] {
        let line = machine.error(words, 1);
        assert!(line.contains("it is being emptied already, by job"), "{line}");
    }
}

#[test]
fn an_evacuation_is_given_up_and_the_device_used_again() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:128M,b.img:128M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "f", 64 * MIB, 1);
    // It may be empty before it is told to stop: then it is filled again by what is written next.
    let mut given_up = false;
    for attempt in 0..20 {
        machine.ok(&["evacuate", "tank", "a.img", "--no-wait"]);
        let jobs = machine.json(&["jobs", "tank"]);
        let newest = jobs
            .as_array()
            .unwrap()
            .iter()
            .rfind(|job| job["kind"] == "evacuate");
        let id = newest.unwrap()["id"].to_string();
        given_up = machine.run(&["jobs", "cancel", &id]).status.success();
        if given_up {
            let error = machine.error(&["jobs", "cancel", &id], 1);
            assert!(error.contains("cancelled"), "{error}");
            break;
        }
        machine.run(&["evacuate", "tank", "a.img", "--undo"]);
        put(&machine, "f", 64 * MIB, 2 + attempt);
        put(&machine, "f", 64 * MIB, 1);
    }
    assert!(given_up, "it was always faster");
    // The command that waits for nothing returns before the device is used again: asking for it again shows when.
    let leaving = |machine: &Machine| {
        let status = machine.json(&["status", "tank"]);
        tier(&status, "only")["devices"][0]["leaving"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !leaving(&machine).is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "the device is never used again"
        );
        std::thread::yield_now();
    }
    same(&machine, "f", 64 * MIB, 1);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
    machine.ok(&["start", "tank"]);
    assert_eq!(leaving(&machine), "", "nor does it go on after a restart");
    same(&machine, "f", 64 * MIB, 1);
}

#[test]
fn a_pin_without_room_says_so() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "f", 90 * MIB, 1);
    machine.run(&["pin", "tank/data/f", "fast", "--wait"]);
    let found = machine.json(&["where", "tank/data/f"]);
    let reason = found["reason"].as_str().unwrap();
    assert!(
        reason.contains("pinned to tier 'fast', which is full"),
        "{reason}"
    );
    let said = machine.json(&["pin", "tank/data/f", "fast", "--no-wait"]);
    let warning = said["warning"].as_str().unwrap();
    assert!(
        warning.contains("is full: what is not pinned there makes way"),
        "{said}"
    );
    assert!(
        warning.contains("'terrace where tank/data/f'") && !warning.contains("make room"),
        "{said}"
    );
    same(&machine, "f", 90 * MIB, 1);
}

#[test]
fn volumes_and_datasets_are_placed_by_hand() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/vm", "--size", "16T", "--sparse"]);
    let found = machine.json(&["where", "tank/vm"]);
    assert_eq!(found["size_bytes"], json!(16_u64 << 40));
    machine.ok(&["demote", "tank/vm", "--wait"]);
    machine.ok(&["promote", "tank/vm", "--wait"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "f", 2 * MIB, 1);
    machine.ok(&["pin", "tank/data", "slow", "--wait"]);
    let found = machine.json(&["where", "tank/data"]);
    assert_eq!(found["pin"], "slow");
    assert_eq!(found["bytes_by_tier"]["fast"], 0, "{found}");
    assert!(
        found["reason"]
            .as_str()
            .unwrap()
            .contains("pinned to tier 'slow'")
    );
    put(&machine, "g", MIB, 2);
    assert_eq!(
        machine.json(&["where", "tank/data/g"])["bytes_by_tier"]["fast"],
        0
    );
    machine.ok(&["unpin", "tank/data"]);
    assert_eq!(machine.json(&["where", "tank/data"])["pin"], Value::Null);
    same(&machine, "f", 2 * MIB, 1);
}

#[test]
fn what_inherits_the_pin_of_a_dataset_moves_with_it() {
    let machine = Machine::new();
    machine.make_pool();
    for (name, pin) in [
        ("tank/data", "none"),
        ("tank/data/below", "none"),
        ("tank/data/own", "fast"),
    ] {
        machine.ok(&["fs", "create", name, "-o", "compression=off"]);
        if pin != "none" {
            machine.ok(&["pin", name, pin, "--wait"]);
        }
    }
    put(&machine, "below/f", 2 * MIB, 1);
    put(&machine, "own/f", 3 * MIB, 2);
    let plan = machine.json(&["pin", "tank", "slow", "-n"]);
    let bytes = plan["would_move_bytes"].as_u64().unwrap() as usize;
    assert!((2 * MIB..3 * MIB).contains(&bytes), "{plan}");
    machine.ok(&["pin", "tank", "slow", "--wait"]);
    assert_eq!(bytes_on(&machine, "below/f", "fast"), 0);
    assert_eq!(bytes_on(&machine, "own/f", "slow"), 0);
    // What holds above it again is what it goes by when its own pin is gone.
    machine.ok(&["pin", "tank/data", "fast", "--wait"]);
    assert_eq!(bytes_on(&machine, "below/f", "slow"), 0);
    machine.ok(&["unpin", "tank"]);
    same(&machine, "below/f", 2 * MIB, 1);
}

#[test]
fn heat_in_figures() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    put(&machine, "f", 5 * MIB + 1, 1);
    put(&machine, "g", 100, 2);
    for _ in 0..3 {
        same(&machine, "f", 5 * MIB + 1, 1);
        same(&machine, "g", 100, 2);
    }
    let page = machine.json(&["where", "tank/data/f", "--regions", "--limit", "4"]);
    assert_eq!((&page["total"], &page["next"]), (&json!(6), &json!(4)));
    let rows = page["regions"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[3]["bytes_by_tier"], json!({ "fast": MIB, "slow": 0 }));
    assert!(
        rows[3]["reads"].as_f64().unwrap() < 1.0,
        "read as a scan does: {rows:?}"
    );
    let page = machine.json(&["where", "tank/data/f", "--regions", "--from", "4"]);
    assert_eq!(
        (page["regions"].as_array().unwrap().len(), &page["next"]),
        (2, &Value::Null)
    );
    // All files of a directory, one after the other, in pages that go on where the last one ended.
    let first = machine.json(&["where", "tank/data", "--regions", "--limit", "6"]);
    assert_eq!((&first["total"], &first["next"]), (&json!(7), &json!(6)));
    let second = machine.json(&["where", "tank/data", "--regions", "--from", "6"]);
    let rows = first["regions"]
        .as_array()
        .unwrap()
        .iter()
        .chain(second["regions"].as_array().unwrap());
    let mut places: Vec<_> = rows
        .map(|row| format!("{}:{}", row["path"].as_str().unwrap(), row["region"]))
        .collect();
    places.sort();
    assert_eq!(places, ["f:0", "f:1", "f:2", "f:3", "f:4", "f:5", "g:0"]);
    let devices = machine.json(&["tier", "devices", "tank"]);
    assert!(devices[0]["warm_regions"].as_u64().unwrap() >= 7, "{devices}");
    assert_eq!(devices[1]["warm_regions"], 0);
    let predicted = machine.json(&["tier", "what-if", "tank", "--fast", "1M", "1G"]);
    let rates = predicted["sizes"].as_array().unwrap();
    assert_eq!(rates.len(), 3, "with the size that it has now");
    assert!(rates[0]["hit_rate"].as_f64() <= rates[2]["hit_rate"].as_f64());
    // Each is filled as far as its marks let what is hot fill it: 5 % below the upper one, or half way to the lower one.
    let hot = |size: &str| {
        let predicted = machine.json(&["tier", "what-if", "tank", "--fast", size]);
        let rows = predicted["sizes"].as_array().unwrap();
        let row = rows.iter().find(|row| row["current"] == false).unwrap().clone();
        (
            row["hot_bytes_max"].as_u64().unwrap(),
            row["hit_rate"].as_f64().unwrap(),
        )
    };
    let marks = |low: &str, high: &str| {
        let (low, high) = (format!("low_water={low}"), format!("high_water={high}"));
        machine.ok(&["tier", "set", &low, &high, "tank/fast"]);
    };
    let whole = 1 << 30;
    let (before, rate) = hot("1G");
    assert!(before < whole / 100 * 80 && before > whole / 100 * 75, "{before}");
    marks("10%", "20%");
    let (after, _) = hot("1G");
    assert!(
        (before - after).abs_diff(whole / 20 * 13) < 32,
        "{before} {after}"
    );
    // The same tier of 40 MiB: all that was read fits up to 80 %, next to nothing up to 15.
    let (least, low) = hot("40M");
    marks("60%", "85%");
    let (most, high) = hot("40M");
    assert!(least < 4 * MIB as u64 && most > 6 * MIB as u64, "{least} {most}");
    assert!(low < high && high == rate, "{low} {high} {rate}");
    let said = machine.ok(&["tier", "what-if", "tank", "--fast", "40M"]);
    assert!(
        said.contains("FOR WHAT IS HOT") && said.contains("up to near its high_water"),
        "{said}"
    );
    let warm = machine.json(&["where", "tank/data/g"])["heat"]["reads"]
        .as_f64()
        .unwrap();
    assert!(warm > 2.0, "{warm}");
    machine.ok(&["scrub", "tank", "--wait"]);
    let after = machine.json(&["where", "tank/data/g"])["heat"]["reads"]
        .as_f64()
        .unwrap();
    assert!(after <= warm, "a scrub is no use of it");
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    let after = machine.json(&["where", "tank/data/g"])["heat"]["reads"]
        .as_f64()
        .unwrap();
    assert!(after > 2.0, "kept over a restart: {after}");
    machine.ok(&["tier", "clear-heat", "tank"]);
    assert_eq!(
        machine.json(&["where", "tank/data/g"])["heat"]["reads"],
        json!(0.0)
    );
    let error = machine.error(&["tier", "what-if", "tank", "--fast", "1G"], 1);
    assert!(error.contains("nothing was read"), "{error}");
}

/// A file of 3 MiB lies there, with the headers of its chunks.
fn all_on(machine: &Machine, name: &str, tier: &str) {
    let on = bytes_on(machine, name, tier);
    let content = 3 * MIB as u64;
    assert!((content..content + 65_536).contains(&on), "{name}: {on}");
}

#[test]
fn thirty_two_devices_in_eight_tiers() {
    let machine = Machine::new();
    let mut words: Vec<String> = ["pool", "create", "tank"].map(String::from).into();
    for tier in 0..8 {
        let devices: Vec<_> = (0..4).map(|at| format!("d{tier}{at}.img:72M")).collect();
        words.extend(["--tier".into(), format!("t{tier}={}", devices.join(","))]);
    }
    machine.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    for at in 0..8 {
        let (name, tier) = (format!("f{at}"), format!("t{at}"));
        put(&machine, &name, 3 * MIB, at);
        machine.ok(&["pin", &format!("tank/data/{name}"), &tier, "--wait"]);
        all_on(&machine, &name, &tier);
    }
    machine.ok(&["pool", "remove", "tank", "d50.img", "--wait"]);
    machine.ok(&["pool", "replace", "tank", "d21.img", "new.img:72M", "--wait"]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
    machine.ok(&["start", "tank"]);
    let status = machine.json(&["status", "tank"]);
    let tiers = status["tiers"].as_array().unwrap();
    let devices = tiers.iter().map(|tier| tier["devices"].as_array().unwrap().len());
    assert_eq!((tiers.len(), devices.sum::<usize>()), (8, 31));
    for at in 0..8 {
        same(&machine, &format!("f{at}"), 3 * MIB, at);
        all_on(&machine, &format!("f{at}"), &format!("t{at}"));
    }
}

#[test]
fn two_copies_outlive_a_damaged_and_a_replaced_device() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a.img:96M,b.img:96M",
        "--tier",
        "slow=c.img:96M",
        "--copies",
        "fast=2",
    ]);
    machine.ok(&[
        "fs",
        "create",
        "tank/data",
        "-o",
        "compression=off",
        "-o",
        "pin=fast",
    ]);
    put(&machine, "f", 20 * MIB, 1);
    machine.ok(&["stop", "tank"]);
    // Everything on one of them but its labels and roots.
    let device = fs::OpenOptions::new()
        .write(true)
        .open(machine.path("a.img"))
        .unwrap();
    for at in 1..95u64 {
        device.write_all_at(&vec![0xa5; MIB], at * MIB as u64).unwrap();
    }
    drop(device);
    machine.ok(&["start", "tank"]);
    same(&machine, "f", 20 * MIB, 1);
    machine.ok(&["scrub", "tank", "--wait"]);
    machine.ok(&["scrub", "tank", "--wait"]);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(
        (&status["scrub"]["errors"], &status["state"]),
        (&json!(0), &json!("online")),
        "{status}"
    );
    machine.ok(&["pool", "replace", "tank", "b.img", "d.img:96M", "--wait"]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
    // What the new device took over is all there is now.
    fs::rename(machine.path("a.img"), machine.path("gone")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    same(&machine, "f", 20 * MIB, 1);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "degraded");
}

#[test]
fn a_lost_tier_takes_only_what_was_on_it() {
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
        put(&machine, name, 8 * MIB, seed);
        machine.ok(&["pin", &format!("tank/data/{name}"), tier, "--wait"]);
    }
    machine.ok(&["pool", "export", "tank"]);
    fs::remove_file(machine.path("c.img")).unwrap();
    let here = machine.text("");
    let error = machine.error_last(&["pool", "import", "--search", &here], 1);
    assert!(error.contains("--degraded") && error.contains("c.img"), "{error}");
    let said = machine.ok(&["pool", "import", "--search", &here, "--degraded"]);
    assert!(
        said.contains("c.img") && said.contains("start tank --degraded"),
        "{said}"
    );
    machine.ok(&["start", "tank", "--degraded"]);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "degraded");
    let detail = status["state_detail"].as_str().unwrap();
    assert!(detail.contains("c.img") && detail.contains("missing"), "{detail}");
    same(&machine, "up", 8 * MIB, 1);
    machine.error_last(&["get", "tank/data/down", "back"], 1);
    // New files land and last; what is lost can be given up, and then the pool is whole again.
    put(&machine, "new", 4 * MIB, 3);
    let output = machine.run(&["scrub", "tank", "--wait"]);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        !output.status.success() && report.contains("down") && !report.contains("/up"),
        "{report}"
    );
    let number = tier(&status, "slow")["devices"][0]["number"].to_string();
    machine.ok(&["pool", "remove", "tank", &number, "--lost", "--yes"]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    same(&machine, "up", 8 * MIB, 1);
    same(&machine, "new", 4 * MIB, 3);
    let tiers = machine.json(&["status", "tank"])["tiers"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(tiers, 1);
}

#[test]
fn a_directory_moves_with_what_lies_beneath_and_a_dry_run_says_how_much() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    fs::create_dir_all(machine.path("tree/sub/deep")).unwrap();
    // More files than one step looks at, in more than one directory, and one of several regions.
    for at in 0..150 {
        fs::write(machine.path(&format!("tree/sub/{at}")), noise(4 * 1024, at)).unwrap();
    }
    fs::write(machine.path("tree/sub/deep/f"), noise(3 * MIB, 1000)).unwrap();
    machine.ok(&["put", "tank/data", "tree"]);
    put(&machine, "other", 2 * MIB, 1001);
    let dry = machine.json(&["demote", "tank/data/tree", "-n"]);
    assert_eq!(dry["tier"], json!("slow"));
    let bytes = dry["would_move_bytes"].as_u64().unwrap();
    assert!(
        (3 * MIB + 150 * 4096..4 * MIB).contains(&(bytes as usize)),
        "{dry}"
    );
    assert!(
        bytes_on(&machine, "tree", "slow") == 0,
        "a dry run changes nothing"
    );
    machine.ok(&["demote", "tank/data/tree", "--wait"]);
    assert_eq!(
        (
            bytes_on(&machine, "tree", "fast"),
            bytes_on(&machine, "tree", "slow")
        ),
        (0, (3 * MIB + 150 * 4096) as u64)
    );
    assert!(
        bytes_on(&machine, "other", "fast") > 0,
        "what lies beside it stays"
    );
    let job = machine.json(&["jobs", "tank"]);
    let job = job.as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&job["state"], &job["done_bytes"]),
        (&json!("done"), &job["total_bytes"]),
        "{job}"
    );
    assert_eq!(job["total_bytes"], json!(3 * MIB + 150 * 4096), "{job}");
    machine.ok(&["promote", "tank/data/tree/sub", "--wait"]);
    assert_eq!(bytes_on(&machine, "tree", "slow"), 0);
    let said = machine.ok(&["pin", "tank/data/tree", "slow", "-n"]);
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(machine.json(&["where", "tank/data/tree"])["pin"], Value::Null);
    // Nothing beneath: there is nothing to do.
    fs::create_dir_all(machine.path("none")).unwrap();
    machine.ok(&["put", "tank/data", "none"]);
    machine.ok(&["promote", "tank/data/none", "--wait"]);
}

#[test]
fn what_has_a_pin_of_its_own_is_no_part_of_what_another_pin_would_move() {
    let machine = Machine::new();
    machine.make_pool();
    for name in ["tank/data", "tank/data/own", "tank/data/below"] {
        machine.ok(&["fs", "create", name, "-o", "compression=off"]);
    }
    fs::create_dir_all(machine.path("tree/sub/deep")).unwrap();
    fs::write(machine.path("tree/f"), noise(MIB, 1)).unwrap();
    fs::write(machine.path("tree/g"), noise(2 * MIB, 2)).unwrap();
    fs::write(machine.path("tree/sub/deep/h"), noise(4 * MIB, 3)).unwrap();
    machine.ok(&["put", "tank/data", "tree"]);
    put(&machine, "own/f", 8 * MIB, 4);
    put(&machine, "below/f", 16 * MIB, 5);
    // Each is pinned to the tier that the outer pin is to be taken from.
    for name in ["tank/data/own", "tank/data/tree/f", "tank/data", "tank/data/tree"] {
        machine.ok(&["pin", name, "fast", "--wait"]);
    }
    let would = |name: &str, tier: &str| {
        let plan = machine.json(&["pin", name, tier, "-n"]);
        plan["would_move_bytes"].as_u64().unwrap() as usize / MIB
    };
    assert_eq!(would("tank/data/tree", "slow"), 2 + 4);
    assert_eq!(would("tank/data", "slow"), 16);
    machine.ok(&["pin", "tank/data/tree/sub", "fast"]);
    // Also before the mover has found what lies beneath.
    assert_eq!(would("tank/data/tree", "slow"), 2);
    machine.ok(&["unpin", "tank/data/tree"]);
    assert_eq!(would("tank/data", "slow"), 2 + 16);
    machine.ok(&["pin", "tank/data", "slow", "--wait"]);
    for (name, on_slow) in [
        ("tree/f", 0),
        ("tree/g", 2),
        ("tree/sub", 0),
        ("own/f", 0),
        ("below/f", 16),
    ] {
        assert_eq!(bytes_on(&machine, name, "slow") as usize / MIB, on_slow, "{name}");
    }
    assert_eq!(would("tank/data", "slow"), 0);
}

#[test]
fn a_pin_with_several_jobs_names_and_waits_for_all() {
    let machine = Machine::new();
    machine.make_pool();
    for name in ["tank/data", "tank/data/a", "tank/data/b"] {
        machine.ok(&["fs", "create", name, "-o", "compression=off"]);
    }
    put(&machine, "a/f", 2 * MIB, 1);
    put(&machine, "b/f", 70 * MIB, 2);
    machine.ok(&["pin", "tank/data", "slow", "--wait"]);
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    let done = machine.json(&["pin", "tank/data", "fast", "--no-wait"]);
    let ids: Vec<u64> = serde_json::from_value(done["jobs"].clone()).unwrap();
    assert_eq!((ids.len(), &done["job"]), (3, &done["jobs"][0]), "{done}");
    let said = machine.ok(&["pin", "tank/data", "slow", "--no-wait"]);
    let newest = machine.json(&["jobs", "tank"]);
    let newest = newest.as_array().unwrap().iter().rev().take(3);
    let mut newest: Vec<u64> = newest.map(|job| job["id"].as_u64().unwrap()).collect();
    newest.reverse();
    let words = format!("jobs {}, {} and {} do it", newest[0], newest[1], newest[2]);
    assert!(said.contains(&words), "{words}: {said}");
    machine.ok(&["pool", "set", "migration=on", "tank"]);
    let done = machine.json(&["pin", "tank/data", "slow", "--wait"]);
    assert_eq!(done["jobs"].as_array().unwrap().len(), 3, "{done}");
    for name in ["a/f", "b/f"] {
        assert_eq!(bytes_on(&machine, name, "fast"), 0, "{name}");
    }
    // What has no room is told also where it lies below, and what is behind it in the list has moved.
    let error = machine.error_last(&["pin", "tank/data", "fast", "--wait"], 1);
    assert!(
        error.contains("of 72") && error.contains("found no room"),
        "{error}"
    );
    assert_eq!(bytes_on(&machine, "a/f", "slow"), 0);
    same(&machine, "b/f", 70 * MIB, 2);
}

#[test]
fn a_directory_is_pinned_with_what_lies_beneath() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    fs::create_dir_all(machine.path("tree/sub")).unwrap();
    fs::write(machine.path("tree/sub/f"), noise(4 * MIB, 1)).unwrap();
    machine.ok(&["put", "tank/data", "tree"]);
    put(&machine, "other", 2 * MIB, 2);
    machine.ok(&["pin", "tank/data/tree", "slow", "--wait"]);
    assert_eq!(bytes_on(&machine, "tree/sub/f", "fast"), 0);
    assert!(bytes_on(&machine, "other", "fast") > 0);
    // Another pin in its place, or a nearer one, would move all of it.
    for name in ["tank/data/tree", "tank/data/tree/sub"] {
        let plan = machine.json(&["pin", name, "fast", "-n"]);
        assert!(
            plan["would_move_bytes"].as_u64().unwrap() >= 4 * MIB as u64,
            "{plan}"
        );
    }
    let found = machine.json(&["where", "tank/data/tree/sub/f"]);
    assert_eq!(
        (&found["pin"], &found["pinned_by"]),
        (&json!("slow"), &json!("tank/data/tree")),
        "{found}"
    );
    assert!(
        found["reason"].as_str().unwrap().contains("tank/data/tree"),
        "{found}"
    );
    assert_eq!(machine.json(&["where", "tank/data/other"])["pin"], Value::Null);
    // What is written later lands there too, also after a restart.
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    put(&machine, "tree/sub/later", 2 * MIB, 3);
    assert_eq!(bytes_on(&machine, "tree/sub/later", "fast"), 0);
    // The nearest pin counts, the file's own first.
    machine.ok(&["pin", "tank/data/tree/sub/f", "fast", "--wait"]);
    let found = machine.json(&["where", "tank/data/tree/sub/f"]);
    assert_eq!(
        (&found["pin"], &found["pinned_by"]),
        (&json!("fast"), &Value::Null)
    );
    assert_eq!(found["bytes_by_tier"]["slow"], 0, "{found}");
    machine.ok(&["unpin", "tank/data/tree/sub/f"]);
    machine.ok(&["unpin", "tank/data/tree"]);
    assert_eq!(
        machine.json(&["where", "tank/data/tree/sub/f"])["pin"],
        Value::Null
    );
    same(&machine, "tree/sub/f", 4 * MIB, 1);
}

#[test]
fn of_a_file_with_several_names_the_directory_is_named_whose_pin_holds() {
    if !can_mount() {
        eprintln!("skipped: no FUSE here");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    fs::create_dir(machine.path("mount")).unwrap();
    machine.ok(&["mount", "tank/data", &machine.text("mount")]);
    for directory in ["mount/other/near", "mount/top/slow"] {
        fs::create_dir_all(machine.path(directory)).unwrap();
    }
    fs::write(machine.path("mount/top/slow/f"), noise(MIB, 1)).unwrap();
    for name in ["outside", "other/near/f"] {
        let name = machine.path("mount").join(name);
        fs::hard_link(machine.path("mount/top/slow/f"), name).unwrap();
    }
    machine.ok(&["pin", "tank/data/top/slow", "slow", "--wait"]);
    let pin = |name: &str| {
        let found = machine.json(&["where", &format!("tank/data/{name}")]);
        (found["pin"].clone(), found["pinned_by"].clone())
    };
    for name in ["outside", "other/near/f", "top/slow/f"] {
        assert_eq!(pin(name), (json!("slow"), json!("tank/data/top/slow")), "{name}");
    }
    let error = machine.error(&["unpin", "tank/data/outside"], 1);
    assert!(error.contains("'terrace unpin tank/data/top/slow'"), "{error}");
    // Of two, the faster tier counts, whichever name is asked for.
    machine.ok(&["pin", "tank/data/other/near", "fast", "--wait"]);
    for name in ["outside", "other/near/f", "top/slow/f"] {
        assert_eq!(
            pin(name),
            (json!("fast"), json!("tank/data/other/near")),
            "{name}"
        );
    }
    machine.ok(&["unmount", "tank/data"]);
}

#[test]
fn what_is_pinned_to_a_full_tier_in_the_middle_takes_the_room_of_what_is_colder() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "ram=a.img:96M",
        "--tier",
        "ssd=b.img:96M",
        "--tier",
        "hdd=c.img:256M",
    ]);
    for tier in ["tank/ssd", "tank/hdd"] {
        machine.ok(&["tier", "set", "promote_after=off", tier]);
    }
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    // Filled as demotions fill it: up to its mark.
    let mut cold = Vec::new();
    put(&machine, "warm", MIB, 50);
    machine.ok(&["demote", "tank/data/warm", "--wait"]);
    // Warm from the beginning: where the tier passes its mark while it is filled, what is coldest sinks by itself.
    let warm_up = || {
        for _ in 0..8 {
            same(&machine, "warm", MIB, 50);
        }
    };
    warm_up();
    for at in 0..12 {
        let name = format!("cold{at}");
        put(&machine, &name, 8 * MIB, at);
        let moved = machine.run(&["demote", &format!("tank/data/{name}"), "--wait"]);
        cold.push(name);
        if !moved.status.success() {
            break;
        }
    }
    warm_up();
    fs::create_dir_all(machine.path("tree")).unwrap();
    for at in 0..3 {
        fs::write(machine.path(&format!("tree/{at}")), noise(8 * MIB, 100 + at)).unwrap();
    }
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["pin", "tank/data/tree", "ssd", "--wait"]);
    assert_eq!(bytes_on(&machine, "tree", "ssd"), 24 * MIB as u64);
    let left = |name: &String| bytes_on(&machine, name, "hdd") > 0;
    assert!(cold.iter().any(left), "something made way");
    assert_eq!(bytes_on(&machine, "warm", "ssd"), MIB as u64, "it makes way last");
    // More than the tier holds: all that is not pinned makes way, and then it is said how much has no room.
    let error = machine.error_last(&["pin", "tank/data", "ssd", "--wait"], 1);
    assert!(
        error.contains("found no room on tier 'ssd'") && error.contains("the pin holds"),
        "{error}"
    );
    for (at, name) in cold.iter().enumerate() {
        same(&machine, name, 8 * MIB, at as u64);
    }
    for at in 0..3 {
        same(&machine, &format!("tree/{at}"), 8 * MIB, 100 + at);
    }
    assert_eq!(bytes_on(&machine, "tree", "ssd"), 24 * MIB as u64);
}
