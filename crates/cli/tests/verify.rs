//! `terrace verify`: a clean pool stays as it is, damage is found and the file named.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::fs;

use harness::{Machine, noise};

fn pool_with_files(machine: &Machine) -> Vec<u8> {
    machine.make_pool();
    put_files(machine)
}

fn put_files(machine: &Machine) -> Vec<u8> {
    let content = noise(300_000, 5);
    fs::create_dir_all(machine.path("tree/deep")).unwrap();
    fs::write(machine.path("tree/deep/broken"), &content).unwrap();
    fs::write(machine.path("tree/whole"), noise(200_000, 6)).unwrap();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["put", "tank/data", "tree"]);
    content
}

#[test]
fn a_clean_pool_verifies_and_is_not_changed() {
    let machine = Machine::new();
    pool_with_files(&machine);
    assert!(
        machine
            .error(&["verify", "tank"], 1)
            .contains("terrace stop tank")
    );
    // What a killed daemon leaves is replayed in memory only.
    machine.kill_daemon("tank");
    let read = || ["fast.img", "slow.img"].map(|name| image(&machine, name));
    let before = read();
    let report = machine.json(&["verify", "tank"]);
    assert_eq!(report["clean"], true, "{report}");
    assert!(report["copies"].as_u64().unwrap() > 0);
    assert!(read() == before, "verify changed a device");
}

fn image(machine: &Machine, name: &str) -> Vec<u8> {
    fs::read(machine.path(name)).unwrap()
}

#[test]
fn a_flipped_byte_is_found_and_the_file_named() {
    let machine = Machine::new();
    let content = pool_with_files(&machine);
    machine.ok(&["stop", "tank"]);
    // The data lies on the device as it is: find it there by a piece of it.
    let piece = &content[150_000..150_032];
    let mut flipped = 0;
    for name in ["fast.img", "slow.img"] {
        let mut image = fs::read(machine.path(name)).unwrap();
        let places: Vec<usize> = image
            .windows(piece.len())
            .enumerate()
            .filter(|(_, window)| *window == piece)
            .map(|(at, _)| at)
            .collect();
        for at in &places {
            image[*at] ^= 1;
        }
        if !places.is_empty() {
            fs::write(machine.path(name), image).unwrap();
        }
        flipped += places.len();
    }
    assert!(flipped > 0);
    let output = machine.run(&["verify", "tank", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["lost_chunks"], 1, "{report}");
    assert_eq!(
        report["files"][0]["path"], "tank/data/tree/deep/broken",
        "{report}"
    );
    assert_eq!(report["wrong_counts"], 0, "{report}");
    // So does a scrub, and status after it.
    let output = machine.run(&["scrub", "tank", "--wait"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("tank/data/tree/deep/broken"), "{text}");
    let status = machine.ok(&["status", "tank"]);
    assert!(status.contains("tank/data/tree/deep/broken"), "{status}");
}

/// Flips a byte in each block of an image that starts with `magic` and that `choose` takes; returns how many.
fn spoil(machine: &Machine, name: &str, magic: &[u8], at: usize, choose: impl Fn(usize) -> bool) -> usize {
    let mut image = image(machine, name);
    let mut count = 0;
    for (index, block) in image.chunks_mut(4096).enumerate() {
        if block.starts_with(magic) && choose(index) {
            block[at] ^= 1;
            count += 1;
        }
    }
    fs::write(machine.path(name), image).unwrap();
    count
}

#[test]
fn every_copy_of_labels_roots_and_log_is_compared() {
    let machine = Machine::new();
    // On one tier: both copies of the log are waited for, and have the same.
    let devices = format!(
        "disks={}:80M,{}:160M",
        machine.text("fast.img"),
        machine.text("slow.img")
    );
    machine.ok(&["pool", "create", "tank", "--tier", &devices, "-o", "memory=32M"]);
    put_files(&machine);
    // Some of the log is still needed.
    machine.kill_daemon("tank");
    let whole = ["fast.img", "slow.img"].map(|name| (name, image(&machine, name)));
    let restore = || {
        for (name, content) in &whole {
            fs::write(machine.path(name), content).unwrap();
        }
    };
    let wrong = |words: &[&str]| {
        let output = machine.run(words);
        assert_eq!(output.status.code(), Some(1));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["damaged_records"].as_u64().unwrap() > 0, "{report}");
        report["problems"].to_string()
    };
    let verify = ["verify", "tank", "--json"];
    // One label copy of three, on either device.
    for (name, index) in [("fast.img", 16), ("slow.img", 0)] {
        assert_eq!(spoil(&machine, name, b"TERRLABL", 100, |at| at == index), 1);
        let problems = wrong(&verify);
        assert!(
            problems.contains("label copy") && problems.contains(name),
            "{problems}"
        );
        restore();
    }
    // One root slot: the newest root is elsewhere.
    assert_eq!(spoil(&machine, "slow.img", b"TERRROOT", 50, |at| at == 64), 1);
    assert!(wrong(&verify).contains("root slot 0"));
    restore();
    // The second copy of the log.
    assert!(spoil(&machine, "slow.img", b"TerrLog1", 200, |_| true) > 0);
    let problems = wrong(&verify);
    assert!(problems.contains("log entry"), "{problems}");
    restore();
    // By its devices, under another name of the state directory's, it is the same pool, and stays as it is.
    let report = machine.json(&["verify", "--search", &machine.text(".")]);
    assert_eq!(
        (&report["clean"], &report["pool"]),
        (&true.into(), &"tank".into()),
        "{report}"
    );
    for (name, content) in &whole {
        assert!(image(&machine, name) == *content, "verify changed {name}");
    }
    assert!(machine.error(&["verify"], 2).contains("--search"));
    assert!(
        machine
            .error(&["verify", "--search", &machine.text("tree")], 1)
            .contains("no label")
    );
}
