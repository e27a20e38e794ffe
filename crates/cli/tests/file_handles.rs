//! File handles: good over a remount, a restart and kill -9 of the daemon; of live files and of past states.

#![allow(clippy::unwrap_used)]

#[path = "../../fuse/tests/support/handle.rs"]
mod handle;

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
};

use self::handle::Handle;
use crate::harness::{Machine, can_mount, until};

fn machine() -> Option<Machine> {
    if !can_mount() {
        eprintln!("skipped: mounts cannot be made here");
        return None;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("mnt")).unwrap();
    machine.ok(&["mount", "tank/data", "mnt"]);
    Some(machine)
}

fn text(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn handles_stay_good_over_remount_restart_and_kill() {
    let Some(machine) = machine() else { return };
    fs::create_dir_all(machine.path("mnt/a/b/c")).unwrap();
    fs::write(machine.path("mnt/a/b/c/file"), "old").unwrap();
    machine.ok(&["snapshot", "tank/data@one"]);
    fs::write(machine.path("mnt/a/b/c/file"), "new").unwrap();
    File::open(machine.path("mnt/a/b/c/file"))
        .unwrap()
        .sync_all()
        .unwrap();
    let names = [
        "mnt/a/b/c/file",
        "mnt/.terrace/snapshots/one/a/b/c/file",
        "mnt/a/b/c/file@@@one",
    ];
    let directories = [
        "mnt/a/b/c",
        "mnt/.terrace/snapshots/one/a/b/c",
        "mnt/a/b@@@one",
        "mnt",
    ];
    let of = |name: &&str| {
        let path = machine.path(name);
        (Handle::of(&path).unwrap(), fs::metadata(&path).unwrap().ino())
    };
    let files: Vec<_> = names.iter().map(of).collect();
    let listed: Vec<_> = directories.iter().map(of).collect();
    let check = |when: &str| {
        let root = File::open(machine.path("mnt")).unwrap();
        for ((file, number), content) in files.iter().zip(["new", "old", "old"]) {
            let opened = file
                .open(&root, libc::O_RDONLY)
                .unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_eq!(opened.metadata().unwrap().ino(), *number, "{when}");
            assert_eq!(text(opened), content, "{when}");
            assert_eq!(file.of_another_generation().refusal(&root), Some(libc::ESTALE));
        }
        for ((directory, number), name) in listed.iter().zip(directories) {
            let opened = directory.open(&root, libc::O_RDONLY | libc::O_DIRECTORY);
            let opened = opened.unwrap_or_else(|error| panic!("{when}: {name}: {error}"));
            assert_eq!(opened.metadata().unwrap().ino(), *number, "{when}: {name}");
        }
    };
    check("at once");
    machine.ok(&["unmount", "mnt"]);
    machine.ok(&["mount", "tank/data", "mnt"]);
    check("after a remount");
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    machine.ok(&["mount", "tank/data", "mnt"]);
    check("after a restart");
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    check("after kill -9");
    // A snapshot that is gone takes its handles with it.
    machine.ok(&["destroy", "tank/data@one", "--yes"]);
    let root = File::open(machine.path("mnt")).unwrap();
    until("the kernel has forgotten the snapshot", || {
        fs::write("/proc/sys/vm/drop_caches", "2").is_err() || files[1].0.refusal(&root) == Some(libc::ESTALE)
    });
    drop(root);
    machine.ok(&["stop", "tank"]);
}

#[test]
fn a_number_that_is_used_again_is_not_the_file_that_had_it() {
    let Some(machine) = machine() else { return };
    File::open(machine.path("mnt")).unwrap().sync_all().unwrap();
    let lost = machine.path("mnt/lost");
    fs::write(&lost, "never synced").unwrap();
    let (handle, number) = (Handle::of(&lost).unwrap(), fs::metadata(&lost).unwrap().ino());
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let root = File::open(machine.path("mnt")).unwrap();
    if fs::metadata(&lost).is_ok() {
        eprintln!("it was committed before the daemon was killed; nothing is checked");
    } else {
        assert_eq!(handle.refusal(&root), Some(libc::ESTALE));
        let made = (0..100).map(|at| machine.path(&format!("mnt/made{at}")));
        let again = made.into_iter().find(|path| {
            fs::write(path, "another").unwrap();
            fs::metadata(path).unwrap().ino() == number
        });
        assert!(
            again.is_some(),
            "the number is not used again: another test is needed"
        );
        assert_eq!(handle.refusal(&root), Some(libc::ESTALE));
    }
    drop(root);
    machine.ok(&["stop", "tank"]);
}
