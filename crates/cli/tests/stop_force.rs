//! `stop --force` ends a pool whatever became of its mounts meanwhile.
//! Where mounts cannot be made (no /dev/fuse, not root) the test says so and checks nothing.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    process::Command,
};

use harness::{Machine, can_mount};

#[test]
fn a_mount_that_somebody_took_away_while_a_file_is_open_holds_up_nobody() {
    if !can_mount() {
        eprintln!("mounts cannot be made here; nothing is checked");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("mnt")).unwrap();
    machine.ok(&["mount", "tank/data", "mnt"]);
    let mut file = fs::File::create(machine.path("mnt/file")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    let mut reader = fs::File::open(machine.path("mnt/file")).unwrap();
    // The kernel keeps it for who has files open; at its place it is no more.
    let taken = Command::new("umount").args(["-l", &machine.text("mnt")]).status();
    assert!(taken.unwrap().success());
    let daemon = machine.daemon_pid("tank");
    machine.ok(&["stop", "tank", "--force"]);
    let mut content = Vec::new();
    assert!(reader.read_to_end(&mut content).is_err() || content == b"synced");
    drop((file, reader));
    machine.ok(&["start", "tank"]);
    assert_ne!(machine.daemon_pid("tank"), daemon, "the daemon went on");
    assert_eq!(machine.json(&["mount"]).as_array().unwrap().len(), 0);
    machine.ok(&["mount", "tank/data", "mnt"]);
    assert_eq!(fs::read(machine.path("mnt/file")).unwrap(), b"synced");
    machine.ok(&["stop", "tank"]);
}
