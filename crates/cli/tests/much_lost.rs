//! Devices that are gone with a great deal on them: everything lost is listed, and what cannot be opened says what to do.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, noise};

const FILES: usize = 1200;

/// A pool of a fast device that holds the content, and a slow one.
fn filled() -> Machine {
    let machine = Machine::new();
    let tiers = ["--tier", "fast=a.img:64M", "--tier", "slow=b.img:64M"];
    machine.ok(&[&["pool", "create", "tank"], &tiers[..]].concat());
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("many")).unwrap();
    for at in 0..FILES {
        fs::write(machine.path(&format!("many/f{at}")), noise(5000, at as u64)).unwrap();
    }
    machine.ok(&["put", "tank/data", "many"]);
    machine.ok(&["stop", "tank"]);
    machine
}

/// The files that `status --lost` names, once they are known.
fn listed(machine: &Machine) -> Vec<String> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while machine.json(&["status", "tank"])["lost"]["state"] != "known" {
        assert!(std::time::Instant::now() < deadline, "it is never known");
    }
    let lines = machine.ok(&["status", "tank", "--lost"]);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn every_lost_file_is_listed_however_many_these_are() {
    let machine = filled();
    fs::rename(machine.path("a.img"), machine.path("away.img")).unwrap();
    machine.ok(&["start", "tank", "--degraded"]);
    let lines = listed(&machine);
    let named = (0..FILES).filter(|at| {
        let name = format!("tank/data/many/f{at} ");
        lines.iter().any(|line| line.starts_with(&name))
    });
    assert_eq!((named.count(), lines.len()), (FILES, FILES));
    let json = machine.json(&["status", "tank", "--lost"]);
    assert_eq!(json.as_array().unwrap().len(), FILES);
    let events = machine.ok(&["events", "tank"]);
    let opened = events.lines().last().unwrap();
    assert!(
        opened.contains("opened without") && opened.contains("a.img"),
        "{events}"
    );
}

#[test]
fn a_pool_of_which_nothing_is_there_says_what_it_lacks() {
    let machine = filled();
    for name in ["a.img", "b.img"] {
        fs::rename(machine.path(name), machine.path(&format!("{name}.away"))).unwrap();
    }
    let error = machine.error_last(&["start", "tank", "--degraded"], 1);
    assert!(
        error.contains("none of its devices can be opened")
            && error.contains("a.img")
            && error.contains("b.img"),
        "{error}"
    );
    assert!(
        error.contains("terrace start tank --degraded") && error.contains("--search"),
        "{error}"
    );
}
