//! Commands that are given several datasets or snapshots: each is changed, and the first that fails is named, with what was changed
//! before it.

#![allow(clippy::unwrap_used)]

use crate::harness;

use harness::Machine;
use serde_json::json;

/// With the filesystems `tank/a` and `tank/b` and the volume `tank/v`.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/a"]);
    machine.ok(&["fs", "create", "tank/b"]);
    machine.ok(&["volume", "create", "tank/v", "--size", "16M", "--sparse"]);
    machine
}

/// The value and the source of a property.
#[track_caller]
fn got(machine: &Machine, property: &str, name: &str) -> (String, String) {
    let rows = machine.json(&["get", property, name]);
    let text = |key: &str| rows[0][key].as_str().unwrap_or_default().to_owned();
    (text("value"), text("source"))
}

fn value(machine: &Machine, property: &str, name: &str) -> String {
    got(machine, property, name).0
}

#[test]
fn several_datasets_get_several_properties_until_one_cannot() {
    let machine = machine();
    machine.ok(&[
        "set",
        "compression=off",
        "user:x=a=b",
        "tank/a",
        "tank/b",
        "tank/v",
    ]);
    for name in ["tank/a", "tank/b", "tank/v"] {
        assert_eq!(value(&machine, "compression", name), "off");
        assert_eq!(value(&machine, "user:x", name), "a=b");
    }
    let log = machine.ok(&["command-log", "tank"]);
    assert_eq!(log.matches("user:x=a=b").count(), 1, "{log}");

    let error = machine.error(&["set", "atime=on", "tank/a", "tank/gone", "tank/b"], 1);
    assert!(
        error.contains("'tank/gone'") && error.ends_with("'tank/a' was changed before that, and stays so"),
        "{error}"
    );
    assert_eq!(value(&machine, "atime", "tank/a"), "on");
    assert_eq!(value(&machine, "atime", "tank/b"), "off");
    // What is wrong for one of them alone is no wrong usage once another one was changed.
    let words = ["set", "block_size=512", "tank/v", "tank/a"];
    assert!(machine.error(&words, 1).contains("'tank/v' was changed"));

    // Words that are wrong change nothing.
    for words in [
        &["set", "atime=off", "tank/a", "/tank/b"][..],
        &["set", "atime=off", "tank/a", "dedup=off"],
        &["set", "atime=off", "dedup=off"],
        &["set", "atime", "tank/a"],
        &["set", "atime=maybe", "tank/a", "tank/b"],
    ] {
        machine.error(words, 2);
    }
    assert_eq!(value(&machine, "atime", "tank/a"), "on");
    assert_eq!(value(&machine, "dedup", "tank/a"), "on");
}

#[test]
fn several_datasets_inherit_and_are_asked() {
    let machine = machine();
    machine.ok(&["set", "compression=off", "tank/a", "tank/b"]);
    machine.ok(&["inherit", "compression", "tank/a", "tank/b"]);
    for name in ["tank/a", "tank/b"] {
        assert_eq!(
            got(&machine, "compression", name),
            ("lz4".into(), "default".into())
        );
    }
    let rows = machine.json(&["get", "dedup,atime", "tank/a", "tank/v"]);
    assert_eq!(rows.as_array().unwrap().len(), 4);
    // One that is not there takes nothing away of what the others say.
    let output = machine.run(&["get", "dedup", "tank/a", "tank/gone"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("tank/a"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tank/gone"));
}

#[test]
fn several_snapshots_are_held_and_released() {
    let machine = machine();
    for name in ["tank/a@one", "tank/a@two", "tank/b@one"] {
        machine.ok(&["snapshot", name]);
    }
    machine.ok(&["hold", "keep", "tank/a@one", "tank/a@two", "tank/b@one"]);
    machine.error(&["destroy", "tank/a@two", "--yes"], 1);
    assert_eq!(value(&machine, "holds", "tank/b@one"), "keep");
    let words = ["release", "keep", "tank/a@one", "tank/a@gone", "tank/b@one"];
    let error = machine.error(&words, 1);
    assert!(
        error.contains("tank/a@gone") && error.contains("'tank/a@one' was changed before that"),
        "{error}"
    );
    assert_eq!(value(&machine, "holds", "tank/a@one"), "");
    assert_eq!(value(&machine, "holds", "tank/b@one"), "keep");
    machine.ok(&["release", "keep", "tank/a@two", "tank/b@one"]);
    machine.ok(&["destroy", "tank/a@two", "--yes"]);
}

#[test]
fn what_is_below_inherits_too() {
    let machine = machine();
    machine.ok(&["fs", "create", "tank/a/deep"]);
    machine.ok(&["set", "compression=zstd", "tank/a"]);
    machine.ok(&["set", "compression=off", "tank/a/deep", "tank/b"]);
    machine.ok(&["inherit", "compression", "tank/a"]);
    assert_eq!(value(&machine, "compression", "tank/a/deep"), "off");
    machine.ok(&["inherit", "-r", "compression", "tank/a"]);
    let rows = machine.json(&["get", "-r", "compression", "tank/a"]);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().all(|row| row["value"] == "lz4"), "{rows:?}");
    assert_eq!(value(&machine, "compression", "tank/b"), "off");

    // Those below count for what a property does at once, too.
    machine.ok(&["set", "readonly=on", "tank/a/deep", "tank/v"]);
    machine.ok(&["inherit", "-r", "readonly", "tank"]);
    machine.run_with(&["put", "tank/a/deep/file", "-"], b"x");
    assert_eq!(machine.ok(&["cat", "tank/a/deep/file"]), "x");
    let error = machine.error(&["inherit", "-r", "nonsense", "tank"], 2);
    assert!(error.contains("no property 'nonsense'"), "{error}");

    // Sectors stay under who counts in them; a volume with the usual ones is no obstacle.
    machine.ok(&[
        "volume",
        "create",
        "tank/w",
        "--size",
        "16M",
        "--block-size",
        "512",
    ]);
    let address = format!("unix:{}", machine.text("nbd.sock"));
    machine.ok(&["serve", "tank/v", "--nbd", &address]);
    machine.ok(&["serve", "tank/w", "--nbd", &address]);
    let error = machine.error(&["inherit", "-r", "block_size", "tank"], 1);
    assert!(error.contains("tank/w") && !error.contains("tank/v"), "{error}");
    assert_eq!(machine.json(&["get", "block_size", "tank/w"])[0]["value"], 512);
    machine.ok(&["unserve", "tank/w"]);
    machine.ok(&["inherit", "-r", "block_size", "tank"]);
    assert_eq!(machine.json(&["get", "block_size", "tank/w"])[0]["value"], 4096);
}

/// Users of zfs ask for `volsize`; here it is `size`.
#[test]
fn the_size_of_a_volume_is_read_by_both_names_and_set_by_neither() {
    let machine = machine();
    for name in ["size", "volsize"] {
        let rows = machine.json(&["get", name, "tank/v"]);
        assert_eq!(
            (&rows[0]["property"], &rows[0]["value"], &rows[0]["source"]),
            (&json!(name), &json!(16 << 20), &json!("-"))
        );
        assert!(machine.ok(&["get", name, "tank/v"]).contains("16M"));
        // Of many, some are no volumes.
        let rows = machine.json(&["get", "-r", name, "tank"]);
        let rows: Vec<_> = rows.as_array().unwrap().iter().collect();
        assert_eq!(rows.len(), 4, "{rows:?}");
        let filesystems = rows.iter().filter(|row| row["value"] == "-");
        assert_eq!(filesystems.count(), 3, "{rows:?}");
        let error = machine.error(&["set", &format!("{name}=32M"), "tank/v"], 2);
        assert!(error.ends_with("; 'terrace volume resize tank/v 32M'"), "{error}");
        let error = machine.error(&["set", &format!("{name}=32M"), "tank/a"], 2);
        assert!(error.contains("'terrace set quota=32M tank/a'"), "{error}");
        let option = format!("{name}=32M");
        let error = machine.error(&["volume", "create", "tank/w", "--size", "8M", "-o", &option], 2);
        assert!(error.contains("volume create --size"), "{error}");
    }
    // A snapshot has the size that the volume had, whatever became of that.
    machine.ok(&["snapshot", "-r", "tank@before"]);
    machine.ok(&["volume", "resize", "tank/v", "32M"]);
    let value = |name: &str, of: &str| machine.json(&["get", name, of])[0]["value"].clone();
    for name in ["size", "volsize"] {
        assert_eq!(value(name, "tank/v@before"), json!(16 << 20));
        assert_eq!(value(name, "tank/v"), json!(32 << 20));
        assert_eq!(value(name, "tank/a@before"), "-");
        assert!(machine.ok(&["get", name, "tank/v@before"]).contains("16M"));
    }
    let all = machine.json(&["get", "all", "tank/v@before"]);
    let of_size = |row: &&serde_json::Value| row["property"] == "size" && row["value"] == json!(16 << 20);
    assert_eq!(all.as_array().unwrap().iter().filter(of_size).count(), 1, "{all}");
    // What only datasets have can be asked of many; what nothing has is a mistake.
    assert_eq!(value("compression", "tank/v@before"), "-");
    assert_eq!(value("available", "tank/v@before"), "-");
    machine.error(&["get", "nonsense", "tank/v@before"], 2);
    let all = machine.json(&["get", "all", "tank/v"]);
    let named = |name: &str| {
        all.as_array()
            .unwrap()
            .iter()
            .filter(|row| row["property"] == name)
            .count()
    };
    assert_eq!((named("size"), named("volsize")), (1, 0));
    let error = machine.error(&["get", "nonsense", "tank/v"], 2);
    assert!(
        error.contains("user:KEY") && error.contains("referenced"),
        "{error}"
    );
}
