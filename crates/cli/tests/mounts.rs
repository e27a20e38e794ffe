//! Mounts through the daemon: they come back after kill -9, refuse to go while in use, and are gone after `stop`.
//! Where mounts cannot be made (no /dev/fuse, not root) the tests say so and check that the error does too.

#![allow(clippy::unwrap_used)]

mod harness;

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use harness::{Machine, can_mount};
use serde_json::json;

fn mounted(machine: &Machine) -> bool {
    let place = machine.text("mnt");
    fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&*place))
}

fn machine_with_mount() -> Option<Machine> {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("mnt")).unwrap();
    if !can_mount() {
        eprintln!("mounts cannot be made here; only the error is checked");
        let line = machine.error(&["mount", "tank/data", "mnt"], 1);
        assert!(line.contains("FUSE") || line.contains("fuse"), "{line}");
        return None;
    }
    machine.ok(&["mount", "tank/data", "mnt"]);
    Some(machine)
}

#[test]
fn a_mount_comes_back_after_kill_9() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    let mut file = fs::File::create(machine.path("mnt/file")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    machine.kill_daemon("tank");
    assert!(fs::read(machine.path("mnt/file")).is_err(), "nobody serves it");
    machine.ok(&["start", "tank"]);
    assert_eq!(fs::read(machine.path("mnt/file")).unwrap(), b"synced");
    assert_eq!(machine.ok(&["cat", "tank/data/file"]), "synced");
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][1]["mounts"],
        json!([machine.text("mnt")])
    );
    assert_eq!(machine.json(&["mount"])[0]["dataset"], "tank/data");
    machine.ok(&["stop", "tank"]);
    assert!(!mounted(&machine));
    machine.ok(&["start", "tank"]);
    assert!(!mounted(&machine), "stop forgets mounts");
}

#[test]
fn the_kernel_reads_ahead_in_large_pieces() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    let device = fs::metadata(machine.path("mnt")).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if fs::OpenOptions::new().write(true).open(&setting).is_err() {
        eprintln!("{setting} cannot be written here; nothing is checked");
        return;
    }
    assert_eq!(fs::read_to_string(&setting).unwrap().trim(), "1024");
}

#[test]
fn a_mount_in_use_is_not_taken_away() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    let file = fs::File::create(machine.path("mnt/open")).unwrap();
    assert!(machine.error(&["unmount", "mnt"], 1).contains("in use"));
    assert!(machine.error(&["stop", "tank"], 1).contains("in use"));
    assert!(
        machine
            .error(&["destroy", "tank/data", "--yes"], 1)
            .contains("in use")
    );
    assert!(mounted(&machine));
    drop(file);
    machine.ok(&["unmount", "mnt"]);
    assert!(!mounted(&machine));
    assert!(machine.error(&["unmount", "mnt"], 1).contains("nothing"));
    machine.ok(&["destroy", "tank/data", "--yes"]);
}

#[test]
fn snapshots_are_mounted_and_browsed() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    fs::write(machine.path("mnt/file"), b"old").unwrap();
    fs::set_permissions(machine.path("mnt/file"), fs::Permissions::from_mode(0o640)).unwrap();
    machine.ok(&["snapshot", "tank/data@one"]);
    fs::write(machine.path("mnt/file"), b"new").unwrap();
    assert_eq!(
        fs::read(machine.path("mnt/.terrace/snapshots/one/file")).unwrap(),
        b"old"
    );
    fs::create_dir(machine.path("past")).unwrap();
    machine.ok(&["mount", "tank/data", "past", "-o", "ro,at=@one"]);
    assert_eq!(fs::read(machine.path("past/file")).unwrap(), b"old");
    assert!(fs::write(machine.path("past/file"), b"x").is_err());
    let found = machine.json(&["where", &machine.text("mnt/file")]);
    assert!(found["bytes_by_tier"].is_object(), "{found}");
    machine.ok(&["unmount", "past"]);
    let line = machine.error(&["mount", "tank/data", "past", "-o", "nonsense"], 2);
    assert!(line.contains("no mount option"), "{line}");
    machine.ok(&["stop", "tank"]);
}
