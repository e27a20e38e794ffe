//! What is set of a tier holds after a stop and a kill -9; nonsense is refused with what to type, and changes nothing; `none`
//! in the place of a tier takes the pin of a dataset away.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, noise};
use serde_json::{Value, json};

fn settings(machine: &Machine) -> Value {
    let mut rows = machine.json(&["tier", "list", "tank"]);
    for row in rows.as_array_mut().unwrap() {
        let row = row.as_object_mut().unwrap();
        row.retain(|key, _| !key.ends_with("_bytes"));
    }
    rows
}

#[test]
fn settings_outlast_stop_and_kill_and_nonsense_changes_nothing() {
    let machine = Machine::new();
    machine.make_pool();
    for word in [
        "promote_after=7",
        "demote_after=2h",
        "low_water=41%",
        "high_water=62%",
        "landing=random",
        "rate_limit=5M",
        "window=22:00-06:00",
        "hold=55%",
    ] {
        machine.ok(&["tier", "set", word, "tank/fast"]);
    }
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    // They are settings of the tier that content leaves.
    for (word, tier, said) in [
        ("promote_after=7", "tank/fast", "no effect on the fastest tier"),
        ("promote_after=3", "tank/slow", ""),
        ("demote_after=2h", "tank/slow", "no effect on the slowest tier"),
        ("demote_after=never", "tank/slow", ""),
    ] {
        let line = machine.ok(&["tier", "set", word, tier]);
        assert!(
            line.contains(said) && line.is_empty() == said.is_empty(),
            "{word}: {line}"
        );
    }
    let set = settings(&machine);
    assert_eq!(
        (
            &set[0]["promote_after"],
            &set[0]["demote_after"],
            &set[0]["rate_limit"]
        ),
        (&json!(7), &json!(7200), &json!(5 << 20))
    );
    assert_eq!(
        (&set[0]["high_water"], &set[0]["low_water"], &set[0]["hold"]),
        (&json!(0.62), &json!(0.41), &json!(0.55))
    );
    assert_eq!(
        (&set[0]["landing_writes"], &set[0]["window"]),
        (&json!("random"), &json!("22:00-06:00"))
    );
    for (word, advice) in [
        ("promote_after=0", "never"),
        ("promote_after=-1", "never"),
        ("demote_after=0s", "never"),
        ("demote_after=-3d", "never"),
        ("high_water=0", "85%"),
        ("high_water=101%", "85%"),
        ("low_water=abc", "75%"),
        ("landing=maybe", "sequential"),
        // It would be no limit at all.
        ("rate_limit=0", "migration=off"),
        ("rate_limit=50", "64K"),
        ("window=22:00-22:00", "always"),
        ("window=+5:00-06:00", "always"),
        ("hold=101%", "off"),
        ("foo=1", "promote_after"),
    ] {
        let error = machine.error(&["tier", "set", word, "tank/fast"], 2);
        assert!(error.contains(advice), "{word}: {error}");
    }
    // Nothing moves down from the slowest.
    let error = machine.error(&["tier", "set", "promote_after=9", "hold=90%", "tank/slow"], 1);
    assert!(
        error.contains("'slow' is the slowest") && error.contains("tank/fast"),
        "{error}"
    );
    machine.ok(&["tier", "set", "hold=off", "tank/slow"]);
    let error = machine.error(&["tier", "set", "low_water=90%", "tank/fast"], 1);
    assert!(error.contains("90%, above high_water, 62%"), "{error}");
    assert_eq!(settings(&machine), set);
    let is_off = || machine.ok(&["pool", "get", "migration", "tank"]).contains("off");
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    assert_eq!(settings(&machine), set);
    assert!(is_off());
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    assert_eq!(settings(&machine), set);
    assert!(is_off());
    machine.ok(&["pool", "set", "migration=on", "tank"]);
    machine.kill_daemon("tank");
    assert!(!is_off());
    machine.ok(&["stop", "tank"]);
}

#[test]
fn none_in_the_place_of_a_tier_takes_the_pin_of_a_dataset_away() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::write(machine.path("content"), noise(100_000, 1)).unwrap();
    machine.ok(&["put", "tank/data/file", "content"]);
    let pin = |path: &str| machine.json(&["where", path])["pin"].clone();
    for path in ["tank/data", "tank/data/file"] {
        machine.ok(&["pin", path, "slow"]);
        assert_eq!(pin(path), "slow");
        if path == "tank/data" {
            let said = machine.ok(&["pin", path, "none"]);
            assert!(!said.contains("'none'"), "{said}");
        } else {
            machine.ok(&["unpin", path]);
        }
        assert_eq!(pin(path), Value::Null, "{path}");
        let error = machine.error(&["pin", path, "nix"], 1);
        assert!(error.contains("no tier 'nix'"), "{error}");
    }
    let error = machine.error(&["pin", "tank/data/file", "none", "-n"], 1);
    assert!(error.contains("terrace unpin tank/data/file"), "{error}");
    machine.ok(&["stop", "tank"]);
}
