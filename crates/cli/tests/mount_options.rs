//! Options of mounts: taken, shown, in effect; changed by `remount`, through us and by mount(8) alone; and a mount that
//! another mount namespace still holds.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    process::{Child, Command, Stdio},
};

use crate::harness::{Machine, can_mount, must, until};

/// With the filesystem `tank/data`, not mounted; `None` where mounts cannot be made.
fn machine() -> Option<Machine> {
    if !can_mount() {
        eprintln!("skipped: mounts cannot be made here");
        return None;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("mnt")).unwrap();
    Some(machine)
}

fn mount(machine: &Machine, options: &str) -> String {
    let output = machine.run(&["mount", "tank/data", "mnt", "-o", options]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{options}: {told}");
    told
}

/// What the kernel's table shows of the mount: options of the mount and of the filesystem.
fn shown(machine: &Machine) -> (Vec<String>, Vec<String>) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = machine.text("mnt");
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == Some(&place));
    let line = line.unwrap_or_else(|| panic!("nothing is mounted at {place}"));
    let (mount, whole) = line.split_once(" - ").unwrap();
    let words = |field: Option<&str>| field.unwrap().split(',').map(str::to_owned).collect();
    (words(mount.split(' ').nth(5)), words(whole.split(' ').nth(2)))
}

fn is_shown(machine: &Machine, option: &str) -> bool {
    let (mount, whole) = shown(machine);
    mount.iter().chain(&whole).any(|word| word == option)
}

/// The options that `terrace mount` lists.
fn listed(machine: &Machine) -> Vec<String> {
    let mounts = machine.json(&["mount"]);
    let options = mounts[0]["options"].as_array().cloned().unwrap_or_default();
    let words = options.iter().map(|word| word.as_str().unwrap().to_owned());
    words.collect()
}

fn write(machine: &Machine) -> io::Result<()> {
    fs::write(machine.path("mnt/written"), b"content")
}

fn is_refused(machine: &Machine) -> bool {
    write(machine).is_err_and(|error| error.raw_os_error() == Some(libc::EROFS))
}

#[test]
fn options_of_mount_are_taken_and_shown() {
    let Some(machine) = machine() else { return };
    let told = mount(
        &machine,
        "nodiratime,strictatime,lazytime,sync,dirsync,nosymfollow,noexec,nosuid,nodev,silent,default_permissions,mand,\
         x-systemd.automount,comment=mine,_netdev,noauto",
    );
    assert!(told.contains("'mand' has no effect"), "{told}");
    for option in [
        "nodiratime",
        "lazytime",
        "sync",
        "dirsync",
        "nosymfollow",
        "noexec",
        "nosuid",
        "nodev",
    ] {
        assert!(is_shown(&machine, option), "{option}: {:?}", shown(&machine));
    }
    assert!(
        !is_shown(&machine, "relatime"),
        "strictatime: {:?}",
        shown(&machine)
    );
    std::os::unix::fs::symlink("written", machine.path("mnt/link")).unwrap();
    write(&machine).unwrap();
    let followed = fs::read(machine.path("mnt/link")).unwrap_err();
    assert_eq!(followed.raw_os_error(), Some(libc::ELOOP));
    machine.ok(&["unmount", "mnt"]);
    let line = machine.error(&["mount", "tank/data", "mnt", "-o", "rw,nonsense=1"], 2);
    assert!(
        line.contains("'nonsense=1'") && line.contains("nodiratime") && line.contains("help mount"),
        "{line}"
    );
    assert_eq!(mount(&machine, "noatime"), "");
    assert!(is_shown(&machine, "noatime"));
    machine.ok(&["stop", "tank"]);
}

#[test]
fn noatime_leaves_access_times_alone() {
    let Some(machine) = machine() else { return };
    machine.ok(&["set", "atime=on", "tank/data"]);
    let read = |options: &str| {
        mount(&machine, options);
        let file = machine.path("mnt/file");
        fs::write(&file, b"content").unwrap();
        let before = fs::metadata(&file).unwrap();
        machine.ok(&["unmount", "mnt"]);
        mount(&machine, options);
        fs::read(&file).unwrap();
        let after = fs::metadata(&file).unwrap();
        machine.ok(&["unmount", "mnt"]);
        (before.atime(), before.atime_nsec()) != (after.atime(), after.atime_nsec())
    };
    assert!(!read("noatime"));
    assert!(read("relatime"));
    machine.ok(&["stop", "tank"]);
}

#[test]
fn with_sync_every_change_is_durable_before_it_returns() {
    let Some(machine) = machine() else { return };
    for (options, content) in [("sync", Some(&b"content"[..])), ("dirsync", None)] {
        mount(&machine, options);
        let name = format!("mnt/{options}");
        fs::create_dir(machine.path(&name)).unwrap();
        fs::write(machine.path(&name).join("file"), b"content").unwrap();
        fs::rename(
            machine.path(&name).join("file"),
            machine.path(&name).join("renamed"),
        )
        .unwrap();
        if options == "sync" {
            fs::set_permissions(
                machine.path(&name).join("renamed"),
                std::os::unix::fs::PermissionsExt::from_mode(0o604),
            )
            .unwrap();
        }
        machine.kill_daemon("tank");
        machine.ok(&["start", "tank"]);
        assert!(is_shown(&machine, options), "{:?}", shown(&machine));
        let file = machine.path(&name).join("renamed");
        let found = fs::read(&file).unwrap();
        assert!(
            content.is_none_or(|content| found == content),
            "{options}: {found:?}"
        );
        if options == "sync" {
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o604);
        }
        machine.ok(&["unmount", "mnt"]);
    }
    machine.ok(&["stop", "tank"]);
}

#[test]
fn a_remount_changes_what_it_names_and_stays() {
    let Some(machine) = machine() else { return };
    mount(&machine, "rw,nosuid");
    let mut open = fs::File::create(machine.path("mnt/open")).unwrap();
    let line = machine.error(&["mount", "tank/data", "mnt", "-o", "remount,ro"], 1);
    assert!(line.contains("open for writing"), "{line}");
    open.write_all(b"goes on").unwrap();
    drop(open);
    mount(&machine, "remount,ro");
    assert!(is_refused(&machine) && is_shown(&machine, "ro") && is_shown(&machine, "nosuid"));
    assert_eq!(listed(&machine), ["nosuid", "ro"]);
    // What was written before is durable, and a new daemon knows.
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    assert!(is_refused(&machine) && is_shown(&machine, "ro"));
    assert_eq!(fs::read(machine.path("mnt/open")).unwrap(), b"goes on");
    mount(&machine, "remount,rw,suid,noatime");
    assert!(!is_shown(&machine, "nosuid") && is_shown(&machine, "noatime"));
    write(&machine).unwrap();
    let line = machine.error(&["mount", "tank/data", "mnt", "-o", "remount,at=@one"], 1);
    assert!(line.contains("cannot be changed"), "{line}");
    machine.ok(&["unmount", "mnt"]);
    let line = machine.error(&["mount", "tank/data", "mnt", "-o", "remount,ro"], 1);
    assert!(line.contains("nothing"), "{line}");
    // A past state stays what it is.
    machine.ok(&["snapshot", "tank/data@one"]);
    machine.ok(&["mount", "tank/data@one", "mnt"]);
    let line = machine.error(&["mount", "tank/data@one", "mnt", "-o", "remount,rw"], 1);
    assert!(line.contains("past state"), "{line}");
    mount_past(&machine, "remount,noexec");
    assert!(is_shown(&machine, "noexec") && is_shown(&machine, "ro"));
    machine.ok(&["stop", "tank"]);
}

fn mount_past(machine: &Machine, options: &str) {
    machine.ok(&["mount", "tank/data@one", "mnt", "-o", options]);
}

#[test]
fn the_daemon_follows_what_mount_changes_by_itself() {
    let Some(machine) = machine() else { return };
    mount(&machine, "rw");
    let place = machine.text("mnt");
    // -i: no helper.
    must("mount", &["-i", "-o", "remount,ro", &place]);
    assert!(is_refused(&machine));
    until("the daemon knows that it is read-only", || {
        listed(&machine).contains(&"ro".to_owned())
    });
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    assert!(is_refused(&machine), "it came back otherwise");
    must("mount", &["-i", "-o", "remount,rw,sync", &place]);
    write(&machine).unwrap();
    until("the daemon knows that it is not", || {
        !listed(&machine).contains(&"ro".to_owned())
    });
    assert!(listed(&machine).contains(&"sync".to_owned()));
    // The property counts beside it.
    machine.ok(&["set", "readonly=on", "tank/data"]);
    assert!(is_refused(&machine));
    machine.ok(&["set", "readonly=off", "tank/data"]);
    write(&machine).unwrap();
    machine.ok(&["stop", "tank"]);
}

#[test]
fn the_helper_remounts() {
    let Some(machine) = machine() else { return };
    mount(&machine, "rw");
    must(
        "cp",
        &[env!("CARGO_BIN_EXE_terrace"), &machine.text("mount.terrace")],
    );
    let call = |program: &str, options: &str| {
        let output = Command::new(program)
            .args(["tank/data", &machine.text("mnt"), "-o", options])
            .env("TERRACE_STATE_DIR", machine.path("state"))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {told}");
    };
    // With what the table shows, as mount(8) does.
    call(
        &machine.text("mount.terrace"),
        "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro",
    );
    assert!(is_refused(&machine));
    // As mount.fuse calls what has the type fuse.terrace.
    call(env!("CARGO_BIN_EXE_terrace"), "ro,relatime,user_id=0,remount,rw");
    write(&machine).unwrap();
    machine.ok(&["stop", "tank"]);
}

/// A process that holds the mounts of this moment in a mount namespace of its own; killed when dropped.
struct Holder(Child);

impl Holder {
    fn start(machine: &Machine) -> Option<Self> {
        let child = Command::new("unshare")
            .args([
                "-m",
                "--propagation",
                "private",
                "sh",
                "-c",
                "echo held; exec sleep 1000",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let holder = Self(child);
        let place = machine.text("mnt");
        let own = fs::read_link("/proc/self/ns/mnt").unwrap();
        until("another mount namespace holds the mount", || {
            let its = fs::read_link(format!("/proc/{}/ns/mnt", holder.0.id()));
            let table = fs::read_to_string(format!("/proc/{}/mountinfo", holder.0.id()));
            its.is_ok_and(|its| its != own) && table.is_ok_and(|table| table.contains(&place))
        });
        Some(holder)
    }

    /// What it sees of the mount.
    fn read(&self, machine: &Machine, name: &str) -> io::Result<Vec<u8>> {
        fs::read(format!("/proc/{}/root{}", self.0.id(), machine.text(name)))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_that_another_mount_namespace_holds_does_not_block_the_next() {
    let Some(machine) = machine() else { return };
    mount(&machine, "rw");
    write(&machine).unwrap();
    let Some(holder) = Holder::start(&machine) else {
        eprintln!("skipped: no unshare");
        return;
    };
    let output = machine.run(&["unmount", "mnt"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("another mount namespace"),
        "{told}"
    );
    assert!(machine.json(&["mount"]).as_array().unwrap().is_empty());
    // It goes on there, and a new daemon would not bring it back here.
    assert_eq!(holder.read(&machine, "mnt/written").unwrap(), b"content");
    assert!(machine.error(&["unmount", "mnt"], 1).contains("nothing"));
    machine.ok(&["start", "tank"]);
    assert!(machine.json(&["mount"]).as_array().unwrap().is_empty());
    // The next mount is the only one: two would not know of each other's changes.
    mount(&machine, "rw");
    fs::write(machine.path("mnt/written"), b"changed").unwrap();
    let lost = holder.read(&machine, "mnt/other").unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(libc::ENOTCONN));
    drop(holder);
    assert_eq!(fs::read(machine.path("mnt/written")).unwrap(), b"changed");
    // Taken away by others than us.
    let holder = Holder::start(&machine).unwrap();
    must("umount", &[&machine.text("mnt")]);
    mount(&machine, "rw");
    assert_eq!(fs::read(machine.path("mnt/written")).unwrap(), b"changed");
    drop(holder);
    // One of a daemon that is dead.
    let holder = Holder::start(&machine).unwrap();
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    write(&machine).unwrap();
    drop(holder);
    write(&machine).unwrap();
    machine.ok(&["stop", "tank"]);
}
