//! Devices that go away and come back, changes of devices that nobody waited for, and what this machine notes of both.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, time::Duration, time::Instant};

use harness::{Machine, noise};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn put(machine: &Machine, name: &str, seed: u64) {
    fs::write(machine.path("content"), noise(4 * MIB, seed)).unwrap();
    machine.ok(&["put", &format!("tank/data/{name}"), "content"]);
}

fn same(machine: &Machine, name: &str, seed: u64) {
    machine.ok(&["get", &format!("tank/data/{name}"), "back"]);
    assert!(
        fs::read(machine.path("back")).unwrap() == noise(4 * MIB, seed),
        "{name} changed"
    );
    fs::remove_file(machine.path("back")).unwrap();
}

/// Waits until the pool says that all is well with it.
fn well(machine: &Machine) -> Value {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let status = machine.json(&["status", "tank"]);
        if status["state"] == "online" {
            return status;
        }
        assert!(Instant::now() < deadline, "{}", status["state_detail"]);
    }
}

fn mirrored() -> Machine {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "only=a:128M,b:128M",
        "--copies",
        "only=2",
    ]);
    machine.ok(&["fs", "create", "tank/data"]);
    put(&machine, "first", 1);
    machine.ok(&["stop", "tank"]);
    machine
}

fn rename(machine: &Machine, from: &str, to: &str) {
    fs::rename(machine.path(from), machine.path(to)).unwrap();
}

/// Uses the pool without one of its devices.
fn without(machine: &Machine, device: &str, use_it: impl FnOnce()) {
    rename(machine, device, "away");
    machine.ok(&["start", "tank", "--degraded"]);
    use_it();
    machine.ok(&["stop", "tank"]);
    rename(machine, "away", device);
}

#[test]
fn a_device_that_was_away_is_taken_back_and_gets_what_it_missed() {
    let machine = mirrored();
    without(&machine, "b", || put(&machine, "second", 2));
    machine.ok(&["start", "tank"]);
    well(&machine);
    let jobs = machine.json(&["jobs", "tank"]);
    let of_it = |job: &&Value| job["kind"] == "resilver";
    assert_eq!(
        jobs.as_array().unwrap().iter().find(of_it).unwrap()["state"],
        "done"
    );
    machine.ok(&["scrub", "tank", "--wait"]);
    assert_eq!(machine.json(&["status", "tank"])["scrub"]["errors"], 0);
    machine.ok(&["stop", "tank"]);
    // All of it is on the one that was away.
    without(&machine, "a", || {
        same(&machine, "first", 1);
        same(&machine, "second", 2);
    });
    machine.ok(&["start", "tank"]);
    well(&machine);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
}

#[test]
fn devices_that_were_used_apart_are_refused_and_one_takes_the_other_in_again() {
    let machine = mirrored();
    without(&machine, "b", || put(&machine, "on a", 2));
    without(&machine, "a", || put(&machine, "on b", 3));
    for words in [vec!["start", "tank"], vec!["start", "tank", "--degraded"]] {
        let error = machine.error(&words, 1);
        assert!(error.contains("each used without the other"), "{error}");
        assert!(error.contains("pool import --degraded"), "{error}");
    }
    // In another state directory too.
    let base = machine.text("");
    let error = machine.error_last(&["pool", "import", "--search", &base, "--degraded"], 1);
    assert!(error.contains("each used without the other"), "{error}");
    machine.ok(&["pool", "import", "--degraded", "a"]);
    machine.error(&["start", "tank"], 1);
    machine.ok(&["start", "tank", "--degraded"]);
    let known: Value =
        serde_json::from_slice(&fs::read(machine.path("state/pools/tank.json")).unwrap()).unwrap();
    assert_eq!(known["left_out"], json!([machine.text("b")]));
    same(&machine, "on a", 2);
    machine.error(&["cat", "tank/data/on b"], 1);
    machine.ok(&["pool", "replace", "tank", "b", "b", "--force", "--wait"]);
    well(&machine);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    machine.ok(&["stop", "tank"]);
    without(&machine, "a", || {
        same(&machine, "first", 1);
        same(&machine, "on a", 2);
    });
}

#[test]
fn the_labels_count_and_not_what_this_machine_noted() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a:96M,b:96M,c:96M"]);
    machine.ok(&["fs", "create", "tank/data"]);
    put(&machine, "first", 1);
    let note = machine.path("state/pools/tank.json");
    let before = fs::read(&note).unwrap();
    machine.ok(&["pool", "remove", "tank", "c", "--wait"]);
    machine.ok(&["pool", "add", "tank", "only=d:96M"]);
    put(&machine, "second", 2);
    machine.ok(&["snapshot", "tank/data@now"]);
    machine.kill_daemon("tank");
    // As if it had been killed before it could write that down.
    fs::write(&note, &before).unwrap();
    machine.ok(&["start", "tank"]);
    same(&machine, "first", 1);
    same(&machine, "second", 2);
    let known: Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    assert_eq!(
        known["devices"],
        json!([machine.text("a"), machine.text("b"), machine.text("d")])
    );
    machine.ok(&["stop", "tank"]);
    fs::write(&note, &before).unwrap();
    machine.ok(&["verify", "tank"]);
    machine.ok(&["pool", "destroy", "tank", "--yes"]);
    let left: Vec<_> = fs::read_dir(machine.path("state/run"))
        .unwrap()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_emptied_device_is_put_to_use_again_by_what_errors_name_and_by_no_dry_run() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a:96M",
        "--tier",
        "slow=b:96M",
    ]);
    machine.ok(&["fs", "create", "tank/data"]);
    put(&machine, "first", 1);
    machine.ok(&["evacuate", "tank", "b", "--wait"]);
    let said = machine.ok(&["evacuate", "tank", "b", "--undo", "-n"]);
    assert!(said.contains("nothing was changed"), "{said}");
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["tiers"][1]["devices"][0]["leaving"], "empty");
    let way_out = format!("terrace evacuate tank {} --undo", machine.text("b"));
    assert!(
        status["state_detail"].as_str().unwrap().contains(&way_out),
        "{status}"
    );
    for words in [
        vec!["demote", "tank/data/first", "--wait"],
        vec!["evacuate", "tank", "a"],
        vec!["pool", "remove", "tank", "a"],
    ] {
        let error = machine.error_last(&words, 1);
        assert!(error.contains(&way_out), "{error}");
    }
    machine.ok(&["evacuate", "tank", "b", "--undo"]);
    machine.ok(&["demote", "tank/data/first", "--wait"]);
    let before = machine.json(&["status", "tank"])["checkpoint"].as_u64();
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    let after = machine.json(&["status", "tank"])["checkpoint"].as_u64();
    assert!(
        after >= before,
        "{before:?} before a clean stop, {after:?} after it"
    );
}

#[test]
fn each_tier_counts_with_its_own_copies() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a:96M,b:96M",
        "--tier",
        "slow=c:256M",
        "--copies",
        "fast=2",
    ]);
    let status = machine.json(&["status", "tank"]);
    let available = status["available_bytes"].as_u64().unwrap() as usize / MIB;
    assert!((280..350).contains(&available), "{available} MiB");
}

#[test]
fn content_that_lies_on_an_out_of_date_device_alone_is_kept() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a:64M",
        "--tier",
        "slow=b:64M,c:64M",
    ]);
    machine.ok(&["fs", "create", "tank/data"]);
    (1..=4).for_each(|number| put(&machine, &format!("f{number}"), number));
    machine.ok(&["demote", "tank/data", "--wait"]);
    machine.ok(&["stop", "tank"]);
    fs::copy(machine.path("c"), machine.path("copy")).unwrap();
    machine.ok(&["start", "tank"]);
    put(&machine, "later", 9);
    machine.ok(&["stop", "tank"]);
    fs::copy(machine.path("copy"), machine.path("c")).unwrap();
    let error = machine.error(&["start", "tank"], 1);
    assert!(error.contains("out of date"), "{error}");
    assert!(
        error.contains("'terrace start tank --degraded' takes this one in"),
        "{error}"
    );
    // Somebody puts it in anew all the same.
    rename(&machine, "c", "away");
    machine.ok(&["start", "tank", "--degraded"]);
    rename(&machine, "away", "c");
    let c = machine.text("c");
    for words in [vec!["-n"], vec![]] {
        let replace = ["pool", "replace", "tank", &c, &c, "--force", "--wait"];
        let said = machine.run(&[&replace[..], &words].concat());
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("is device 2 of this pool"), "{said}");
        assert!(said.contains("no other copy is lost for good"), "{said}");
    }
    machine.error(&["pool", "replace", "tank", &c, &c, "--force"], 1);
    machine.ok(&["stop", "tank"]);
    // As if it had never been opened without it.
    machine.ok(&["start", "tank", "--degraded"]);
    (1..=4).for_each(|number| same(&machine, &format!("f{number}"), number));
    same(&machine, "later", 9);
    well(&machine);
    machine.ok(&["scrub", "tank", "--wait"]);
    assert_eq!(machine.json(&["status", "tank"])["scrub"]["errors"], 0);
    machine.ok(&["stop", "tank"]);
    // Refused, and then taken as it is by the command that was named.
    fs::copy(machine.path("copy"), machine.path("c")).unwrap();
    machine.error(&["start", "tank"], 1);
    let said = machine.run(&["start", "tank", "--degraded"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(
        said.matches("is older than").count(),
        1,
        "once, whatever it is: {said}"
    );
    (1..=4).for_each(|number| same(&machine, &format!("f{number}"), number));
    same(&machine, "later", 9);
    well(&machine);
    machine.ok(&["scrub", "tank", "--wait"]);
    assert_eq!(machine.json(&["status", "tank"])["scrub"]["errors"], 0);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    well(&machine);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
}

#[test]
fn an_old_copy_made_in_the_same_run_gets_what_it_missed() {
    let machine = mirrored();
    machine.ok(&["start", "tank"]);
    put(&machine, "second", 2);
    fs::copy(machine.path("b"), machine.path("copy")).unwrap();
    put(&machine, "third", 3);
    machine.ok(&["stop", "tank"]);
    fs::rename(machine.path("copy"), machine.path("b")).unwrap();
    let said = machine.run(&["start", "tank"]);
    assert!(said.status.success());
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("is older than pool 'tank'"), "{said}");
    assert!(machine.ok(&["events", "tank"]).contains("is older than the pool"));
    well(&machine);
    machine.ok(&["stop", "tank"]);
    // All of it is on the one that was old.
    without(&machine, "a", || {
        same(&machine, "first", 1);
        same(&machine, "second", 2);
        same(&machine, "third", 3);
    });
    // Which is no older than the other one from then on.
    let said = machine.run(&["start", "tank"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.contains("is older"), "{said}");
    well(&machine);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
}
