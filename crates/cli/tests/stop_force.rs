//! `stop --force` ends a pool whatever became of its mounts meanwhile.
//! Where mounts cannot be made (no /dev/fuse, not root) the test says so and checks nothing.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    process::Command,
};

use harness::{Machine, can_mount, must, runs, until};

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

/// Whether a daemon is no more, or a zombie that nobody has asked about.
fn has_ended(daemon: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Whoever stops a pool that saves nothing any more is told at once what is so, and what to type: with what is mounted still there.
#[test]
fn a_pool_that_refuses_writes_says_how_it_is_ended_and_opened_again() {
    if !can_mount() {
        eprintln!("mounts cannot be made here; nothing is checked");
        return;
    }
    let machine = Machine::new();
    fs::create_dir(machine.path("small")).unwrap();
    let small = machine.text("small");
    must("mount", &["-t", "tmpfs", "-o", "size=48M", "none", &small]);
    machine.ok(&["pool", "create", "tank", "--tier", "only=small/a.img:256M"]);
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("mnt")).unwrap();
    machine.ok(&["mount", "tank/data", "mnt"]);
    let write = |name: &str, bytes: usize| {
        let mut file = fs::File::create(machine.path("mnt").join(name))?;
        file.write_all(&harness::noise(bytes, 7))?;
        file.sync_all()
    };
    write("synced", 1 << 20).unwrap();
    write("more", 64 << 20).unwrap_err();
    must("mount", &["-o", "remount,size=300M", &small]);

    let is_told = |error: &str| {
        for words in [
            "refused after an error",
            "fsync",
            "'terrace stop tank --force'",
            "'terrace start tank'",
        ] {
            assert!(error.contains(words), "{words}: {error}");
        }
    };
    for _ in 0..2 {
        let error = machine.error(&["stop", "tank"], 1);
        is_told(&error);
        assert!(!error.contains("stop again"), "mending helps nothing: {error}");
        is_told(&machine.error(&["start", "tank"], 1));
    }
    assert_eq!(machine.json(&["mount"]).as_array().unwrap().len(), 1);
    assert_eq!(
        fs::read(machine.path("mnt/synced")).unwrap(),
        harness::noise(1 << 20, 7)
    );
    let tells = |text: &str| text.contains("accepts no writes any more") && text.contains("No space");
    until("the event is told", || tells(&machine.ok(&["events", "tank"])));
    let daemon = machine.daemon_pid("tank");
    let stopped = machine.json(&["stop", "tank", "--force"]);
    assert!(
        stopped["lost"].as_str().unwrap().contains("No space"),
        "{stopped}"
    );
    assert!(has_ended(daemon), "it is waited for");
    // What the pool did not take is told while nobody holds it, and is among its events from the next start on, once.
    let status = machine.ok(&["status"]);
    assert!(tells(&status) && status.contains("in its last run"), "{status}");
    machine.ok(&["verify", "tank"]);
    machine.ok(&["start", "tank"]);
    machine.ok(&["stop", "tank"]);
    assert!(!tells(&machine.ok(&["status"])));
    machine.ok(&["start", "tank"]);
    let events = machine.json(&["events", "tank"]);
    let kinds: Vec<&str> = (events.as_array().unwrap().iter())
        .map(|event| event["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds.iter().filter(|kind| **kind == "stopped").count(),
        1,
        "{kinds:?}"
    );
    let (stopped, opened) = ("stopped", "opened");
    let at = |kind: &str| kinds.iter().position(|found| *found == kind).unwrap();
    let last_opened = kinds.iter().rposition(|found| *found == opened).unwrap();
    assert!(at(stopped) < last_opened, "in the order of time: {kinds:?}");
    machine.ok(&["mount", "tank/data", "mnt"]);
    assert_eq!(
        fs::read(machine.path("mnt/synced")).unwrap(),
        harness::noise(1 << 20, 7)
    );
    write("more", 64 << 20).unwrap();
    assert_eq!(machine.json(&["stop", "tank"])["lost"], serde_json::Value::Null);
    must("umount", &[&small]);
}

/// A pool on files that their filesystem has no room for any more accepts no writes: it can be stopped all the same, and goes on when
/// there is room.
#[test]
fn a_pool_that_cannot_be_saved_is_stopped_by_force() {
    if !can_mount() || !runs("losetup") {
        eprintln!("volumes cannot be attached here; nothing is checked");
        return;
    }
    let machine = Machine::new();
    fs::create_dir(machine.path("small")).unwrap();
    let small = machine.text("small");
    must("mount", &["-t", "tmpfs", "-o", "size=48M", "none", &small]);
    machine.ok(&["pool", "create", "tank", "--tier", "only=small/a.img:256M"]);
    machine.ok(&["volume", "create", "tank/v", "--size", "128M", "--sparse"]);
    let device = machine.ok(&["attach", "tank/v"]).trim().to_owned();
    let mut file = fs::OpenOptions::new().write(true).open(&device).unwrap();
    let content = harness::noise(64 << 20, 1);
    let written = file.write_all(&content).and_then(|()| file.sync_all());
    assert!(written.is_err());
    drop(file);
    let daemon = machine.daemon_pid("tank");
    let output = machine.run(&["stop", "tank", "--force"]);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words}");
    assert!(
        words.contains("could not be saved") && words.contains("is lost"),
        "{words}"
    );
    assert!(has_ended(daemon), "it is waited for");
    let way_out = format!(
        "free room on the filesystem that holds '{}'",
        machine.text("small/a.img")
    );
    let error = machine.error_last(&["pool", "destroy", "tank", "--yes"], 1);
    assert!(
        error.contains("No space left") && !error.contains("; ;"),
        "{error}"
    );
    assert!(error.contains(&way_out), "{error}");
    let error = machine.error_last(&["start", "tank"], 1);
    assert!(
        error.contains("No space left") && error.contains(&way_out),
        "{error}"
    );
    must("mount", &["-o", "remount,size=300M", &small]);
    machine.ok(&["pool", "destroy", "tank", "--yes"]);
    assert_eq!(machine.json(&["pool", "list"]).as_array().unwrap().len(), 0);
    must("umount", &[&small]);
}
