//! Mounts through the daemon: they come back after kill -9, refuse to go while in use, and are gone after `stop`.
//! Where mounts cannot be made (no /dev/fuse, not root) the tests say so and check that the error does too.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
};

use harness::{Machine, can_mount, must};
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
fn a_copy_called_mount_terrace_starts_the_pool_and_mounts() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    machine.ok(&["stop", "tank"]);
    // As at boot, from fstab.
    let helper = machine.path("mount.terrace");
    // By a process of its own: one that is begun meanwhile would inherit a file of ours that is open for writing, and none
    // that is can be run.
    must(
        "cp",
        &[env!("CARGO_BIN_EXE_terrace"), &machine.text("mount.terrace")],
    );
    let call = |options: &[&str]| {
        let mut command = Command::new(&helper);
        command
            .args(["tank/data", &machine.text("mnt")])
            .args(options)
            .env("TERRACE_STATE_DIR", machine.path("state"));
        command.output().unwrap()
    };
    let fake = call(&["-f", "-o", "rw"]);
    assert!(fake.status.success() && fake.stdout.is_empty() && !mounted(&machine));
    let made = call(&["-o", "rw,nofail"]);
    let told = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{told}");
    assert!(mounted(&machine));
    machine.ok(&["stop", "tank"]);
}

#[test]
fn without_extended_attributes_nobody_is_asked_for_them() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    let file = machine.path("mnt/file");
    let name = "user.color";
    fs::write(&file, b"content").unwrap();
    let set = || rustix::fs::setxattr(&file, name, b"green", rustix::fs::XattrFlags::empty());
    let get = || rustix::fs::getxattr(&file, name, &mut [0_u8; 16][..]);
    set().unwrap();
    machine.ok(&["set", "xattr=off", "tank/data"]);
    assert_eq!(get(), Ok(5), "the mount that is there keeps them");
    machine.ok(&["unmount", "mnt"]);
    machine.ok(&["mount", "tank/data", "mnt"]);
    assert_eq!(get(), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(set(), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(fs::read(&file).unwrap(), b"content");
    // They are not lost.
    machine.ok(&["inherit", "xattr", "tank/data"]);
    machine.ok(&["unmount", "mnt"]);
    machine.ok(&["mount", "tank/data", "mnt"]);
    assert_eq!(get(), Ok(5));
    machine.ok(&["stop", "tank"]);
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
    for word in ["--yes", "-n"] {
        let line = machine.error(&["pool", "destroy", "tank", word], 1);
        assert!(line.contains("in use") && line.contains("fuser -vm"), "{line}");
    }
    assert!(mounted(&machine));
    drop(file);
    // Looking, however often, takes nothing away.
    for _ in 0..3 {
        machine.ok(&["pool", "destroy", "tank", "-n"]);
        assert!(mounted(&machine));
    }
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

#[test]
fn a_filesystem_is_mounted_once() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    fs::create_dir(machine.path("second")).unwrap();
    let line = machine.error(&["mount", "tank/data", "second"], 1);
    assert!(
        line.contains("already") && line.contains("mount --bind"),
        "{line}"
    );
    let line = machine.error(&["mount", "tank/data", "second", "-o", "ro"], 1);
    assert!(line.contains(&machine.text("mnt")), "{line}");
    machine.ok(&["unmount", "tank/data"]);
    machine.ok(&["mount", "tank/data", "second"]);
    machine.ok(&["stop", "tank"]);
}

#[test]
fn what_is_put_beside_a_mount_shows_in_it() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    let (file, fresh) = (machine.path("mnt/file"), machine.path("mnt/fresh"));
    fs::write(&file, b"old").unwrap();
    let mut open = fs::File::open(&file).unwrap();
    assert!(
        fs::metadata(&fresh).is_err(),
        "the kernel knows now that it is not there"
    );
    assert_eq!(fs::metadata(&file).unwrap().len(), 3);
    fs::write(machine.path("source"), b"newer").unwrap();
    machine.ok(&["put", "tank/data/file", "source"]);
    machine.ok(&["put", "tank/data/fresh", "source"]);
    assert_eq!(fs::read(&file).unwrap(), b"newer");
    assert_eq!(fs::read(&fresh).unwrap(), b"newer");
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "old", "who has it open reads on");
    drop(open);
    machine.ok(&["stop", "tank"]);
}

#[test]
fn what_is_mounted_is_not_destroyed() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    machine.ok(&["snapshot", "tank/data@one"]);
    machine.ok(&["snapshot", "tank/data@two"]);
    machine.ok(&["unmount", "mnt"]);
    machine.ok(&["mount", "tank/data@one", "mnt"]);
    for words in [
        &["destroy", "tank/data@one", "--yes"][..],
        &["destroy", "-r", "tank/data", "--yes"],
    ] {
        let line = machine.error(words, 1);
        assert!(
            line.contains("in use") && line.contains("terrace unmount"),
            "{line}"
        );
    }
    machine.ok(&["destroy", "tank/data@two", "--yes"]);
    machine.ok(&["unmount", "mnt"]);
    machine.ok(&["destroy", "tank/data@one", "--yes"]);
    machine.ok(&["stop", "tank"]);
}

#[test]
fn a_pool_that_cannot_stop_keeps_all_its_mounts() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    machine.ok(&["fs", "create", "tank/other"]);
    fs::create_dir(machine.path("other")).unwrap();
    machine.ok(&["mount", "tank/other", "other"]);
    let file = fs::File::create(machine.path("other/open")).unwrap();
    assert!(machine.error(&["stop", "tank"], 1).contains("in use"));
    assert!(mounted(&machine));
    assert_eq!(machine.json(&["mount"]).as_array().unwrap().len(), 2);
    drop(file);
    machine.ok(&["stop", "tank"]);
    assert!(!mounted(&machine));
}

#[test]
fn mounts_in_mounts_go_with_the_pool_and_come_back() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    machine.ok(&["fs", "create", "tank/inner"]);
    fs::create_dir_all(machine.path("mnt/deep/inner")).unwrap();
    machine.ok(&["mount", "tank/inner", "mnt/deep/inner"]);
    fs::write(machine.path("mnt/deep/inner/file"), "inside").unwrap();
    let open = fs::File::open(machine.path("mnt/deep/inner/file")).unwrap();
    for saved in [&open, &fs::File::open(machine.path("mnt/deep")).unwrap()] {
        saved.sync_all().unwrap();
    }
    let line = machine.error(&["pool", "destroy", "tank", "-n"], 1);
    assert!(line.contains(&machine.text("mnt/deep/inner")), "{line}");
    drop(open);
    machine.ok(&["pool", "destroy", "tank", "-n"]);
    let line = machine.error(&["unmount", "mnt"], 1);
    let told = format!("'{}' is mounted in it", machine.text("mnt/deep/inner"));
    assert!(line.contains(&told), "{line}");
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    assert_eq!(fs::read(machine.path("mnt/deep/inner/file")).unwrap(), b"inside");
    machine.ok(&["stop", "tank"]);
    assert!(!mounted(&machine));
    // Those of a dead daemon: with the outer one nothing is left of the place of the inner one.
    machine.ok(&["mount", "tank/data", "mnt"]);
    machine.ok(&["mount", "tank/inner", "mnt/deep/inner"]);
    machine.kill_daemon("tank");
    machine.ok(&["stop", "tank"]);
    assert!(!mounted(&machine));
    machine.ok(&["start", "tank"]);
    assert_eq!(machine.json(&["mount"]), json!([]));
}

#[test]
fn a_mount_that_is_bound_elsewhere_is_not_waited_for() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    fs::create_dir(machine.path("bound")).unwrap();
    let (place, bound) = (machine.text("mnt"), machine.text("bound"));
    let run = |program: &str, words: &[&str]| {
        let status = std::process::Command::new(program).args(words).status().unwrap();
        assert!(status.success(), "{program} {words:?}");
    };
    run("mount", &["--bind", &place, &bound]);
    let line = machine.error(&["unmount", "mnt"], 1);
    run("umount", &[&bound]);
    assert!(line.contains(&bound), "{line}");
    machine.ok(&["stop", "tank"]);
    assert!(!mounted(&machine));
}

#[test]
fn without_a_directory_it_is_mounted_where_its_property_says() {
    let Some(machine) = machine_with_mount() else {
        return;
    };
    machine.ok(&["unmount", "tank/data"]);
    assert!(!mounted(&machine));
    let line = machine.error(&["mount", "tank/data"], 2);
    assert!(line.contains("mountpoint"), "{line}");
    let property = format!("mountpoint={}", machine.text("mnt"));
    machine.ok(&["set", &property, "tank/data"]);
    machine.ok(&["mount", "tank/data"]);
    assert!(mounted(&machine));
}
