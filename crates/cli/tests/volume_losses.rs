//! What would be lost of volumes: told beforehand, asked for, refused with the way out.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{os::unix::net::UnixStream, path::Path};

use harness::{Machine, can_mount, nbd::Client};
use serde_json::json;

fn size_of(machine: &Machine, volume: &str) -> u64 {
    let rows = machine.json(&["get", "size", volume]);
    rows[0]["value"].as_u64().unwrap()
}

#[test]
fn a_dry_run_tells_and_changes_nothing() {
    let machine = Machine::with_volume();
    let told = machine.ok(&["volume", "resize", "tank/vm", "80M", "-n"]);
    assert_eq!(told, "would change the size of 'tank/vm' from 64M to 80M\n");
    let plan = machine.json(&["volume", "resize", "tank/vm", "16M", "--dry-run"]);
    let expected = json!({
        "name": "tank/vm", "before_bytes": 64 << 20, "size_bytes": 16 << 20, "in_use": [], "resized": false, "served": [],
    });
    assert_eq!(plan, expected);
    assert_eq!(size_of(&machine, "tank/vm"), 64 << 20);
    // What would be refused is refused.
    machine.ok(&["volume", "create", "tank/thick", "--size", "16M"]);
    let line = machine.error(&["volume", "resize", "tank/thick", "1T", "-n"], 1);
    assert!(line.contains("set aside"), "{line}");
    machine.error(&["volume", "resize", "tank/none", "1M", "-n"], 1);
    machine.error(&["volume", "resize", "tank/vm", "0", "-n"], 2);
    let done = machine.json(&["volume", "resize", "tank/vm", "80M"]);
    assert_eq!(
        (&done["resized"], &done["size_bytes"]),
        (&json!(true), &json!(80 << 20))
    );
    assert_eq!(size_of(&machine, "tank/vm"), 80 << 20);
}

#[test]
fn who_makes_a_volume_smaller_is_told_who_uses_it() {
    let machine = Machine::with_volume();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    let line = machine.error(&["volume", "resize", "tank/vm", "16M"], 1);
    for part in [
        "from 64M to 16M",
        "is lost",
        "served at unix:",
        "nbd.sock",
        "--yes",
    ] {
        assert!(line.contains(part), "no '{part}': {line}");
    }
    assert_eq!(size_of(&machine, "tank/vm"), 64 << 20);
    machine.ok(&["volume", "resize", "tank/vm", "16M", "--yes"]);
    assert_eq!(size_of(&machine, "tank/vm"), 16 << 20);
}

#[test]
fn a_refusal_says_what_helps() {
    let machine = Machine::with_volume();
    machine.ok(&["volume", "create", "tank/thick", "--size", "16M"]);
    machine.ok(&["set", "readonly=on", "tank/thick"]);
    let available = || machine.json(&["list", "tank/vm"])[0]["available_bytes"].clone();
    let before = available();
    let line = machine.error(&["volume", "resize", "tank/thick", "48M"], 1);
    assert!(line.contains("'terrace set readonly=off tank/thick'"), "{line}");
    assert_eq!(available(), before, "nothing is set aside for what was refused");
    machine.ok(&["snapshot", "tank/vm@one"]);
    let line = machine.error(&["volume", "resize", "tank/vm@one", "1M"], 1);
    assert!(line.contains("'terrace volume resize tank/vm SIZE'"), "{line}");
    for command in [["set", "compression=off"], ["inherit", "compression"]] {
        let line = machine.error(&[command[0], command[1], "tank/vm@one"], 2);
        assert!(
            line.contains("a snapshot") && line.contains("'tank/vm'"),
            "{line}"
        );
    }
    let line = machine.error(&["rename", "tank/vm", "tank/no/vm"], 1);
    assert!(line.contains("'terrace fs create -p tank/no'"), "{line}");
    let line = machine.error(&["rename", "tank/vm", "tank/vm/below"], 1);
    assert!(line.contains("third name, make 'tank/vm' anew"), "{line}");
}

/// What is used of a snapshot alone is told of that snapshot too.
#[test]
fn numbers_and_places_for_programs() {
    let machine = Machine::with_volume();
    let rows = machine.json(&["get", "block_size,chunk_size", "tank/vm"]);
    assert_eq!(
        (&rows[0]["value"], &rows[1]["value"]),
        (&json!(4096), &json!("auto"))
    );
    machine.ok(&["set", "chunk_size=16K", "tank/vm"]);
    let rows = machine.json(&["get", "chunk_size", "tank/vm"]);
    assert_eq!(rows[0]["value"], json!(16384));
    machine.ok(&["snapshot", "tank/vm@one"]);
    machine.ok(&["snapshot", "tank/vm@two"]);
    machine.ok(&["serve", "tank/vm@one", "--nbd", "unix:nbd.sock"]);
    let rows = machine.json(&["list", "-t", "snapshot", "tank/vm"]);
    let address = format!("unix:{}", machine.path("nbd.sock").display());
    assert_eq!(rows[0]["served"], json!([address]));
    assert_eq!(
        (&rows[1]["served"], &rows[1]["attached"], &rows[1]["mounts"]),
        (&json!([]), &json!([]), &json!([]))
    );
}

/// A machine may be running from it: like a mount in use it is not pulled away by a word that asks for no more.
#[test]
fn a_pool_is_not_destroyed_under_its_clients() {
    let machine = Machine::with_volume();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    let client = UnixStream::connect(machine.path("nbd.sock")).unwrap();
    for words in [
        ["pool", "destroy", "tank", "--yes"],
        ["pool", "destroy", "tank", "-n"],
    ] {
        let line = machine.error(&words, 1);
        for part in ["tank/vm", "clients are connected at unix:", "--force"] {
            assert!(line.contains(part), "no '{part}': {line}");
        }
    }
    assert_eq!(size_of(&machine, "tank/vm"), 64 << 20);
    drop(client);
    machine.ok(&["pool", "destroy", "tank", "--yes"]);
    machine.error(&["list", "tank"], 1);
}

/// An image of a whole disk, as they are made everywhere, on a volume with the sectors that volumes have by default.
#[test]
fn a_partition_table_for_other_sectors_is_told() {
    let machine = Machine::with_volume();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    // Where the header of a GPT is.
    let mut client = Client::connect(&machine.path("nbd.sock"), "tank/vm");
    assert_eq!(client.write(512, b"EFI PART"), 0);
    machine.ok(&["unserve", "tank/vm"]);
    let serve = ["serve", "tank/vm", "--vhost-user", "disk.sock"];
    let output = machine.run(&serve);
    assert!(output.status.success());
    let note = String::from_utf8(output.stderr).unwrap();
    let remedy = "terrace set block_size=512 tank/vm";
    assert!(note.contains(remedy) && note.lines().count() == 1, "{note}");
    machine.ok(&["unserve", "tank/vm"]);
    let words: Vec<_> = remedy.split(' ').skip(1).collect();
    machine.ok(&words);
    let answer = machine.json(&serve);
    assert_eq!(answer["note"], json!(null));
}

#[test]
fn status_tells_how_much_time_a_crash_may_cost() {
    let machine = Machine::with_volume();
    for (name, options) in [
        ("ram", &["durability=ram"][..]),
        ("timed", &["durability=timed", "commit_interval=20s"]),
        ("pools", &["durability=timed"]),
        ("sync", &["durability=sync"]),
    ] {
        let volume = format!("tank/{name}");
        let mut words = vec!["volume", "create", &volume, "--size", "1M", "--sparse"];
        options.iter().for_each(|option| words.extend(["-o", *option]));
        machine.ok(&words);
    }
    machine.ok(&["pool", "set", "commit_interval=3s", "tank"]);
    let status = machine.json(&["status", "tank"]);
    let window = |name: &str| {
        let rows = status["datasets"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        row["loss_window_seconds"].clone()
    };
    assert_eq!(window("tank/ram"), json!(null));
    assert_eq!(window("tank/timed"), json!(20.0));
    assert_eq!(window("tank/pools"), json!(3.0));
    assert_eq!(window("tank/vm"), json!(3.0));
    assert_eq!(window("tank/sync"), json!(0.0));
    let told = machine.ok(&["status", "tank"]);
    assert!(
        told.contains("tank/timed: fsync returns at once: a crash loses at most the last 20s"),
        "{told}"
    );
}

/// The kernel is asked to; which tables it reads is its own affair.
#[test]
fn partitions_of_an_attached_volume_are_looked_for() {
    let machine = Machine::with_volume();
    let attached = machine.run(&["attach", "tank/vm", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: no loop device can be had");
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap();
    let name = device.trim_end().strip_prefix("/dev/").unwrap();
    let asked = Path::new("/sys/block").join(name).join("loop/partscan");
    let asked = std::fs::read_to_string(asked);
    machine.ok(&["detach", "tank/vm"]);
    assert_eq!(asked.unwrap().trim(), "1");
}

#[test]
fn a_device_that_was_taken_away_by_force_is_forgotten_with_its_last_user() {
    let machine = Machine::with_volume();
    let attached = machine.run(&["attach", "tank/vm", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: no loop device can be had");
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap();
    let open = std::fs::File::open(device.trim_end()).unwrap();
    machine.ok(&["detach", "tank/vm", "--force"]);
    // Whoever would pull it from its users is refused, and whoever asks is told that there are some.
    let shrink = ["volume", "resize", "tank/vm", "16M"];
    for command in [&["destroy", "tank/vm", "--yes"][..], &["stop", "tank"], &shrink] {
        let line = machine.error(command, 1);
        assert!(
            line.contains("taken away by force") && line.contains(device.trim_end()),
            "{line}"
        );
    }
    let status = machine.json(&["status"]);
    let why = status["warnings"][0]["why"].as_str().unwrap();
    assert!(
        why.contains("taken away by force") && why.contains(device.trim_end()),
        "{why}"
    );
    // Another one can be had at once, and who gets it learns of the first.
    for (read_only, is_told) in [(true, false), (false, true)] {
        let mut attach = vec!["attach", "tank/vm"];
        attach.extend(read_only.then_some("--ro"));
        let attached = machine.run(&attach);
        let said = String::from_utf8(attached.stderr).unwrap();
        assert!(attached.status.success(), "{said}");
        assert_eq!(said.contains("taken away by force"), is_told, "{said}");
        assert_eq!(said.contains(device.trim_end()), is_told, "{said}");
        machine.ok(&["detach", "tank/vm"]);
    }
    drop(open);
    machine.ok(&["destroy", "tank/vm", "--yes"]);
    assert_eq!(machine.json(&["status"])["warnings"], json!([]));
}
