//! Attached devices as whoever comes after finds them.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use harness::{Machine, can_mount};
use terrace_fuse::{LoopDevice, tell_read_only};

/// A loop device that was let go of is the next one that anybody gets, who would be taken for the one before.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_to(device: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(device)?;
    file.write_all_at(&[5; 4096], 0)?;
    file.sync_all()
}

#[test]
fn reading_alone_does_not_outlive_the_attachment() {
    let _alone = alone();
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/disk", "--size", "16M"]);
    let attached = machine.run(&["attach", "tank/disk", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&attached.stderr));
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap();
    let device = Path::new(device.trim());
    let shown = Path::new("/sys/block")
        .join(device.file_name().unwrap())
        .join("ro");
    machine.ok(&["set", "readonly=on", "tank/disk"]);
    assert_eq!(std::fs::read_to_string(&shown).unwrap().trim(), "1");
    machine.ok(&["detach", "tank/disk"]);
    assert_eq!(std::fs::read_to_string(&shown).unwrap().trim(), "0");
}

#[test]
fn readonly_is_given_up_on_whatever_is_attached_whenever_it_was_made() {
    let _alone = alone();
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/disk", "--size", "16M"]);
    machine.ok(&["set", "readonly=on", "tank/disk"]);
    let attached = machine.run(&["attach", "tank/disk", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&attached.stderr));
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap();
    let turn_over = |device: &Path| {
        let shown = Path::new("/sys/block")
            .join(device.file_name().unwrap())
            .join("ro");
        let shown = || std::fs::read_to_string(&shown).unwrap().trim().to_owned();
        assert_eq!(shown(), "1");
        write_to(device).unwrap_err();
        machine.ok(&["set", "readonly=off", "tank/disk"]);
        assert_eq!(shown(), "0");
        write_to(device).unwrap();
        machine.ok(&["set", "readonly=on", "tank/disk"]);
        assert_eq!(shown(), "1");
        write_to(device).unwrap_err();
    };
    turn_over(Path::new(device.trim()));
    // Attached for writing, and brought back while nobody may write.
    machine.ok(&["detach", "tank/disk"]);
    machine.ok(&["set", "readonly=off", "tank/disk"]);
    machine.ok(&["attach", "tank/disk", "--via", "loop"]);
    machine.ok(&["set", "readonly=on", "tank/disk"]);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let device = machine.ok(&["attach", "tank/disk", "--via", "loop"]);
    turn_over(Path::new(device.trim()));
    // What was asked for is not taken back by the property.
    machine.ok(&["set", "readonly=off", "tank/disk"]);
    machine.ok(&["detach", "tank/disk"]);
    let device = machine.ok(&["attach", "tank/disk", "--via", "loop", "--ro"]);
    let device = Path::new(device.trim());
    write_to(device).unwrap_err();
    machine.ok(&["set", "readonly=on", "tank/disk"]);
    machine.ok(&["set", "readonly=off", "tank/disk"]);
    write_to(device).unwrap_err();
    machine.ok(&["detach", "tank/disk"]);
    machine.ok(&["snapshot", "tank/disk@past"]);
    let told = machine.json(&["attach", "tank/disk@past", "--via", "loop"]);
    assert_eq!(told["read_only"], true);
    machine.ok(&["detach", "tank/disk@past"]);
    let told = machine.json(&["serve", "tank/disk@past", "--nbd", "unix:s"]);
    assert_eq!(told["read_only"], true);
}

#[test]
fn a_device_that_somebody_left_for_reading_alone_can_be_written() {
    let _alone = alone();
    let machine = Machine::new();
    let first = machine.path("first.img");
    std::fs::write(&first, vec![0; 1 << 20]).unwrap();
    let device = match LoopDevice::attach(&first, 512, false) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let left = device.path().to_owned();
    write_to(&left).unwrap();
    tell_read_only(&std::fs::File::open(&left).unwrap(), true).unwrap();
    assert!(write_to(&left).is_err());
    // As a daemon that was killed leaves it: detached by another hand.
    let done = std::process::Command::new("losetup")
        .arg("-d")
        .arg(&left)
        .status();
    assert!(done.unwrap().success());
    let second = LoopDevice::attach_as(&first, 512, false, Some(&left)).unwrap();
    let written = write_to(second.path());
    second.detach().unwrap();
    written.unwrap();
}

#[test]
fn a_device_whose_mount_somebody_took_away_is_detached() {
    let _alone = alone();
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/disk", "--size", "16M"]);
    let attached = machine.run(&["attach", "tank/disk", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&attached.stderr));
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap();
    let device = Path::new(device.trim());
    write_to(device).unwrap();
    let sys = Path::new("/sys/block").join(device.file_name().unwrap());
    let backing = sys.join("loop/backing_file");
    let file = std::fs::read_to_string(&backing).unwrap();
    let directory = Path::new(file.trim()).parent().unwrap();
    let done = std::process::Command::new("umount")
        .arg("-l")
        .arg(directory)
        .status();
    assert!(done.unwrap().success());
    machine.ok(&["detach", "tank/disk"]);
    assert!(!backing.exists(), "{:?}", std::fs::read_to_string(&backing));
}

/// Names of datasets may be longer than those of the files that stand for them.
#[test]
fn names_of_any_length_have_devices() {
    let _alone = alone();
    let machine = Machine::new();
    machine.make_pool();
    let long = format!("tank/{}", "v".repeat(249));
    let (one, other) = (format!("{long}1"), format!("{long}2"));
    let past = format!("{one}@{}", "s".repeat(255));
    for volume in [&one, &other] {
        machine.ok(&["volume", "create", volume, "--size", "16M"]);
    }
    machine.ok(&["snapshot", &past]);
    let attach = |volume: &str| machine.run(&["attach", volume, "--json"]);
    let first = attach(&one);
    let said = String::from_utf8_lossy(&first.stderr);
    if !can_mount() || !first.status.success() {
        assert!(!said.contains("too long"), "{said}");
        return eprintln!("skipped: {said}");
    }
    let follow = || {
        let mut devices: Vec<_> = [&one, &other, &past]
            .map(|volume| {
                let told = machine.json(&["attach", volume]);
                let link = Path::new(told["link"].as_str().unwrap());
                assert_eq!(
                    Path::new(told["device"].as_str().unwrap()),
                    link.read_link().unwrap()
                );
                link.read_link().unwrap()
            })
            .into();
        devices.sort();
        devices.dedup();
        assert_eq!(devices.len(), 3);
    };
    follow();
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    follow();
    for volume in [&one, &other, &past] {
        machine.ok(&["detach", volume]);
    }
    for place in ["state/run/volumes/tank", "state/run/disk"] {
        let left: Vec<_> = machine.path(place).read_dir().unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
