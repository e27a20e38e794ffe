//! Which tier takes which kind of writes, as users set it: shown by where content lies afterwards.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, noise};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// What `tier list` says of each tier: the setting, and what lands there.
fn landing(machine: &Machine) -> Vec<(Value, Value, Value)> {
    let tiers = machine.json(&["tier", "list", "tank"]);
    let tiers = tiers.as_array().unwrap();
    tiers
        .iter()
        .map(|tier| {
            (
                tier["landing"].clone(),
                tier["landing_writes"].clone(),
                tier["lands"].clone(),
            )
        })
        .collect()
}

/// Writes a stream and a small file under this name, and returns the tiers that hold most of each.
fn written(machine: &Machine, name: &str) -> (String, String) {
    let mut found = Vec::new();
    for (kind, bytes) in [("stream", 12 * MIB), ("small", MIB / 2)] {
        let seed = name.bytes().map(u64::from).sum::<u64>() * 1000 + bytes as u64;
        let content = noise(bytes, seed);
        fs::write(machine.path("content"), &content).unwrap();
        let path = format!("tank/data/{name}-{kind}");
        machine.ok(&["put", &path, "content"]);
        let place = machine.json(&["where", &path]);
        let tiers = place["bytes_by_tier"].as_object().unwrap().iter();
        let bytes = tiers.map(|(tier, bytes)| (bytes.as_u64().unwrap(), tier.clone()));
        let (most, tier) = bytes.max().unwrap();
        // What comes before a stream is known to be one is not part of it.
        assert!(most >= content.len() as u64 / 2, "{path}: {place}");
        found.push(tier);
        machine.ok(&["get", &path, "back"]);
        assert!(fs::read(machine.path("back")).unwrap() == content, "{path}");
        fs::remove_file(machine.path("back")).unwrap();
    }
    let small = found.pop().unwrap();
    (found.pop().unwrap(), small)
}

#[test]
fn each_kind_of_writes_lands_where_it_is_to() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=a.img:256M",
        "--tier",
        "slow=b.img:256M",
    ]);
    machine.ok(&[
        "fs",
        "create",
        "tank/data",
        "-o",
        "compression=off",
        "-o",
        "dedup=off",
    ]);
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    let tiers = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(written(&machine, "none"), tiers("fast", "fast"));
    for (value, stream, small) in [
        ("on", "slow", "fast"),
        ("random", "fast", "slow"),
        ("all", "slow", "slow"),
        ("off", "fast", "fast"),
        ("sequential", "slow", "fast"),
    ] {
        assert_eq!(
            machine.ok(&["tier", "set", &format!("landing={value}"), "tank/slow"]),
            ""
        );
        assert_eq!(written(&machine, value), tiers(stream, small), "{value}");
    }
    assert_eq!(
        landing(&machine),
        [
            (json!(false), json!("off"), json!("random")),
            (json!(true), json!("sequential"), json!("sequential"))
        ]
    );
    let table = machine.ok(&["tier", "list", "tank"]);
    assert!(
        table.contains("(random)") && table.contains(" sequential "),
        "{table}"
    );
    machine.ok(&["tier", "set", "landing=all", "tank/slow"]);
    // Set elsewhere, it moves there, and who asked is told so.
    let said = machine.ok(&["tier", "set", "landing=random", "tank/fast"]);
    assert_eq!(
        said,
        "random writes land on tier 'fast' now, and no more on 'slow'\n"
    );
    machine.ok(&["tier", "set", "landing=off", "tank/fast"]);
    machine.ok(&["tier", "set", "landing=random", "tank/slow"]);
    let said = machine.ok(&["tier", "set", "landing=on", "tank/fast"]);
    assert_eq!(said, "");
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    assert_eq!(
        landing(&machine),
        [
            (json!(true), json!("sequential"), json!("sequential")),
            (json!(false), json!("random"), json!("random"))
        ]
    );
    assert_eq!(written(&machine, "after"), tiers("fast", "slow"));
    let error = machine.error(&["tier", "set", "landing=maybe", "tank/slow"], 2);
    assert!(
        error.contains("sequential") && error.contains("random"),
        "{error}"
    );
}
