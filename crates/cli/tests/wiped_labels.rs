//! Labels and roots that somebody wrote zeroes over while the pool was in use: a scrub says so and brings them back.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::FileExt};

use harness::{Machine, noise};

const MIB: usize = 1 << 20;
const LABEL_BYTES: usize = 64 << 10;

#[test]
fn a_scrub_brings_back_the_labels_of_a_device_that_were_wiped() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    machine.ok(&["fs", "create", "tank/data"]);
    let content = noise(4 * MIB, 1);
    fs::write(machine.path("content"), &content).unwrap();
    machine.ok(&["put", "tank/data/file", "content"]);
    let device = fs::File::options()
        .write(true)
        .open(machine.path("a.img"))
        .unwrap();
    device.write_all_at(&vec![0; MIB], 0).unwrap();
    let end = 96 * MIB - LABEL_BYTES;
    device.write_all_at(&[0; LABEL_BYTES], end as u64).unwrap();
    device.sync_all().unwrap();

    let told = machine.ok(&["scrub", "tank", "--wait"]);
    assert!(told.contains("a.img were written anew"), "{told}");
    let status = machine.json(&["status", "tank"]);
    let scrub = &status["scrub"];
    assert!(scrub["errors"].as_u64().unwrap() >= 5, "{scrub}");
    assert_eq!(scrub["errors"], scrub["repaired"], "{scrub}");
    assert_eq!(
        scrub["devices"][0]["path"],
        machine.text("a.img").as_str(),
        "{scrub}"
    );
    let events = machine.ok(&["events", "tank"]);
    assert!(
        events.contains("label copy 0") && events.contains("a.img were written anew"),
        "{events}"
    );
    let again = machine.json(&["scrub", "tank", "--wait"]);
    assert_eq!(again["errors"], 0, "{again}");

    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    machine.ok(&["pool", "export", "tank"]);
    fs::remove_dir_all(machine.path("state")).unwrap();
    machine.ok(&["pool", "import", "--search", "."]);
    machine.ok(&["get", "tank/data/file", "back"]);
    assert!(fs::read(machine.path("back")).unwrap() == content);
}
