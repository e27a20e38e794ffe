//! Files of devices that are deleted under a pool that is open: `status` says so, and `stop` does not make the loss final unasked.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, noise};

/// With a file in it that was synced.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    machine.ok(&["fs", "create", "tank/data"]);
    fs::write(machine.path("content"), noise(8 << 20, 3)).unwrap();
    machine.ok(&["put", "tank/data/file", "content"]);
    machine
}

fn warnings(machine: &Machine) -> Vec<String> {
    let status = machine.json(&["status", "tank"]);
    let rows = status["warnings"].as_array().unwrap().iter();
    rows.map(|row| format!("{}: {}", row["why"], row["remedy"]))
        .collect()
}

#[test]
fn a_deleted_device_is_told_and_moved_elsewhere_before_the_pool_stops() {
    let machine = machine();
    assert_eq!(warnings(&machine), [""; 0]);
    let a = machine.text("a.img");
    fs::remove_file(&a).unwrap();
    // Whatever is at its path now.
    fs::write(&a, b"other").unwrap();
    let told = warnings(&machine);
    let [warning] = &told[..] else { panic!("{told:?}") };
    let opened = format!("/proc/{}/fd/", machine.daemon_pid("tank"));
    for words in [
        "deleted",
        &opened,
        &format!("'terrace pool replace tank {a} NEW --wait'"),
    ] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
    assert!(machine.ok(&["status", "tank"]).contains("warning"));
    let error = machine.error(&["stop", "tank"], 1);
    assert!(
        error.contains("'terrace pool replace") && error.contains("--force"),
        "{error}"
    );
    machine.error(&["pool", "export", "tank"], 1);

    machine.ok(&["pool", "replace", "tank", &a, "c.img:96M", "--wait"]);
    assert_eq!(warnings(&machine), [""; 0]);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["get", "tank/data/file", "back"]);
    assert_eq!(fs::read(machine.path("back")).unwrap(), noise(8 << 20, 3));
    assert_eq!(fs::read(&a).unwrap(), b"other");
    machine.ok(&["stop", "tank"]);
}

#[test]
fn a_device_that_is_elsewhere_now_is_told_and_loses_nothing() {
    let machine = machine();
    fs::rename(machine.path("a.img"), machine.path("moved.img")).unwrap();
    let told = warnings(&machine);
    assert!(
        told.len() == 1 && told[0].contains(&machine.text("moved.img")),
        "{told:?}"
    );
    machine.ok(&["stop", "tank"]);
    fs::rename(machine.path("moved.img"), machine.path("a.img")).unwrap();
    machine.ok(&["get", "tank/data/file", "back"]);
    fs::remove_file(machine.path("a.img")).unwrap();
    // Who gives it up is not asked again.
    machine.ok(&["stop", "tank", "--force"]);
    machine.error(&["start", "tank"], 1);
}

#[test]
fn a_pool_that_is_to_go_may_have_lost_its_files() {
    let machine = machine();
    fs::remove_file(machine.path("a.img")).unwrap();
    fs::remove_file(machine.path("b.img")).unwrap();
    machine.run(&["pool", "destroy", "tank", "--yes", "--force"]);
    assert_eq!(machine.json(&["pool", "list"]).as_array().unwrap().len(), 0);
}
