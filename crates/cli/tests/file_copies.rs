//! Where `get` writes and what it leaves, and to whom belongs what `put` brings.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
};

use harness::{Machine, must, noise, until};

fn machine() -> Machine {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.run_with(&["put", "tank/data/file"], b"new content");
    machine
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Names in a directory that a copy would leave when cut off.
fn partial(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("terrace-partial")).collect()
}

#[test]
fn special_files_are_written_to_and_nothing_else_is_changed() {
    let machine = machine();
    let looks = || {
        let null = fs::metadata("/dev/null").unwrap();
        (
            null.mode(),
            null.uid(),
            null.gid(),
            null.mtime(),
            null.file_type().is_char_device(),
        )
    };
    let before = looks();
    machine.ok(&["get", "tank/data/file", "/dev/null"]);
    assert_eq!(looks(), before);
    assert_eq!(
        machine.ok(&["get", "tank/data/file", "/dev/stdout"]),
        "new content"
    );
    assert_eq!(machine.ok(&["get", "tank/data/file", "/dev/fd/1"]), "new content");
    let pipe = machine.path("pipe");
    must("mkfifo", &["-m", "600", pipe.to_str().unwrap()]);
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    machine.ok(&["get", "tank/data/file", "pipe"]);
    assert_eq!(reader.join().unwrap(), b"new content");
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(mode(&pipe), 0o600);
    // A link to one is followed as any.
    symlink("/dev/null", machine.path("sink")).unwrap();
    machine.ok(&["get", "tank/data/file", "sink"]);
    assert!(fs::symlink_metadata(machine.path("sink")).unwrap().is_symlink());
    assert_eq!(looks(), before);
}

#[test]
fn a_file_that_is_there_keeps_its_mode_and_its_links() {
    let machine = machine();
    machine.ok(&["get", "tank/data/file", "fresh"]);
    assert_eq!(mode(&machine.path("fresh")), 0o644);
    let old = fs::metadata(machine.path("fresh")).unwrap().mtime();
    fs::write(machine.path("there"), b"old and longer than what comes").unwrap();
    fs::set_permissions(machine.path("there"), fs::Permissions::from_mode(0o6640)).unwrap();
    symlink("there", machine.path("link")).unwrap();
    for to in ["there", "link"] {
        machine.ok(&["get", "tank/data/file", to]);
        assert_eq!(fs::read(machine.path("there")).unwrap(), b"new content");
        assert_eq!(
            mode(&machine.path("there")),
            0o640,
            "its own, but for what writing takes away"
        );
    }
    assert!(fs::metadata(machine.path("there")).unwrap().mtime() >= old);
    assert!(fs::symlink_metadata(machine.path("link")).unwrap().is_symlink());
    fs::write(machine.path("one"), b"old").unwrap();
    fs::hard_link(machine.path("one"), machine.path("other")).unwrap();
    machine.ok(&["get", "tank/data/file", "one"]);
    assert_eq!(
        fs::read(machine.path("other")).unwrap(),
        b"new content",
        "both names are of one file"
    );
    assert_eq!(fs::metadata(machine.path("one")).unwrap().nlink(), 2);
    symlink("nowhere", machine.path("dangling")).unwrap();
    let told = machine.error(&["get", "tank/data/file", "dangling"], 1);
    assert!(told.contains("leads nowhere"), "{told}");
    assert!(!machine.path("nowhere").exists());
    fs::create_dir(machine.path("directory")).unwrap();
    symlink("directory", machine.path("to_directory")).unwrap();
    machine.ok(&["get", "tank/data/file", "to_directory"]);
    assert_eq!(fs::read(machine.path("directory/file")).unwrap(), b"new content");
    machine.error(&["get", "tank/data/file", "absent/"], 1);
    assert!(!machine.path("absent").exists());
    assert_eq!(partial(&machine.path("")), Vec::<String>::new());
}

/// However it ends: the name has what it had, and what is left says what it is.
#[test]
fn an_interrupted_get_leaves_the_name_as_it_was() {
    let machine = machine();
    fs::write(machine.path("large"), noise(24 << 20, 1)).unwrap();
    machine.ok(&["put", "tank/data", "large"]);
    fs::create_dir(machine.path("to")).unwrap();
    fs::write(machine.path("to/large"), b"as it was").unwrap();
    let to = machine.path("to");
    let begun = || {
        let child = machine.spawn(&["get", "tank/data/large", "to/large"]);
        let name = || partial(&to).into_iter().next();
        let has_some =
            || name().is_some_and(|name| fs::metadata(to.join(name)).is_ok_and(|file| file.len() > 0));
        until("it has begun", has_some);
        child
    };
    // The daemon holds still in the middle, so that it is no matter of luck.
    let daemon = machine.daemon_pid("tank").to_string();
    for signal in ["-INT", "-KILL"] {
        let mut child = begun();
        must("kill", &[signal, &child.id().to_string()]);
        let ended = child.wait().unwrap();
        if ended.success() {
            // It was faster than the signal: then the name has all of it.
            assert_eq!(fs::metadata(to.join("large")).unwrap().len(), 24 << 20);
        } else {
            assert_eq!(fs::read(to.join("large")).unwrap(), b"as it was");
            assert_eq!(partial(&to).len(), 1, "a name that says so");
        }
        fs::write(to.join("large"), b"as it was").unwrap();
        partial(&to)
            .iter()
            .for_each(|name| fs::remove_file(to.join(name)).unwrap());
    }
    // The daemon goes away: the command clears up behind itself.
    let mut child = begun();
    must("kill", &["-KILL", &daemon]);
    let ended = child.wait().unwrap();
    if !ended.success() {
        assert_eq!(fs::read(to.join("large")).unwrap(), b"as it was");
    }
    assert_eq!(partial(&to), Vec::<String>::new());
}

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    if !harness::can_mount() {
        eprintln!("no mounts here: left out");
        return;
    }
    let machine = machine();
    fs::write(machine.path("large"), noise(8 << 20, 1)).unwrap();
    machine.ok(&["put", "tank/data", "large"]);
    fs::create_dir(machine.path("small")).unwrap();
    must(
        "mount",
        &["-t", "tmpfs", "-o", "size=2M", "tmpfs", &machine.text("small")],
    );
    fs::write(machine.path("small/large"), b"as it was").unwrap();
    let told = machine.error(&["get", "tank/data/large", "small/large"], 1);
    assert!(
        told.contains("small/large") && told.to_lowercase().contains("space"),
        "{told}"
    );
    assert_eq!(fs::read(machine.path("small/large")).unwrap(), b"as it was");
    assert_eq!(partial(&machine.path("small")), Vec::<String>::new());
}

/// A tree that was received once may lead anywhere: nothing is written through a link in it.
#[test]
fn links_that_were_received_are_not_followed() {
    let machine = machine();
    fs::create_dir(machine.path("outside")).unwrap();
    fs::write(machine.path("outside/file"), b"precious").unwrap();
    fs::create_dir(machine.path("tree")).unwrap();
    symlink(machine.path("outside"), machine.path("tree/directory")).unwrap();
    symlink(machine.path("outside/file"), machine.path("tree/file")).unwrap();
    machine.ok(&["put", "tank/data/first", "tree"]);
    fs::remove_dir_all(machine.path("tree")).unwrap();
    fs::create_dir_all(machine.path("tree/directory")).unwrap();
    fs::write(machine.path("tree/directory/file"), b"hostile").unwrap();
    fs::write(machine.path("tree/file"), b"hostile").unwrap();
    machine.ok(&["put", "tank/data/second", "tree"]);
    machine.ok(&["get", "tank/data/first", "back"]);
    assert!(
        fs::symlink_metadata(machine.path("back/directory"))
            .unwrap()
            .is_symlink()
    );
    fs::create_dir(machine.path("again")).unwrap();
    for name in ["directory", "file"] {
        let target = fs::read_link(machine.path("back").join(name)).unwrap();
        fs::create_dir_all(machine.path("again/second")).unwrap();
        symlink(target, machine.path("again/second").join(name)).unwrap();
    }
    let told = machine.error(&["get", "tank/data/second", "again"], 1);
    assert!(
        told.contains("again/second/directory") && told.contains("symbolic link"),
        "{told}"
    );
    assert_eq!(fs::read_dir(machine.path("outside")).unwrap().count(), 1);
    fs::remove_file(machine.path("again/second/directory")).unwrap();
    machine.ok(&["get", "tank/data/second", "again"]);
    assert_eq!(fs::read(machine.path("outside/file")).unwrap(), b"precious");
    assert!(
        !fs::symlink_metadata(machine.path("again/second/file"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(fs::read(machine.path("again/second/file")).unwrap(), b"hostile");
    assert_eq!(
        fs::read(machine.path("again/second/directory/file")).unwrap(),
        b"hostile"
    );
    // Links take the place of what is no directory.
    fs::create_dir_all(machine.path("third/first")).unwrap();
    fs::write(machine.path("third/first/file"), b"old").unwrap();
    machine.ok(&["get", "tank/data/first", "third"]);
    assert!(
        fs::symlink_metadata(machine.path("third/first/file"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn directories_that_were_there_keep_their_attributes() {
    let machine = machine();
    fs::create_dir_all(machine.path("tree/sub")).unwrap();
    for directory in ["tree", "tree/sub"] {
        fs::set_permissions(machine.path(directory), fs::Permissions::from_mode(0o750)).unwrap();
    }
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["get", "tank/data/tree", "fresh"]);
    assert_eq!(
        (mode(&machine.path("fresh")), mode(&machine.path("fresh/sub"))),
        (0o750, 0o750)
    );
    fs::create_dir_all(machine.path("to/tree/sub")).unwrap();
    for directory in ["to/tree", "to/tree/sub"] {
        fs::set_permissions(machine.path(directory), fs::Permissions::from_mode(0o700)).unwrap();
    }
    machine.ok(&["get", "tank/data/tree", "to"]);
    assert_eq!(
        (mode(&machine.path("to/tree")), mode(&machine.path("to/tree/sub"))),
        (0o700, 0o700)
    );
}

/// A pool of an ordinary user: what he puts there is his, whoever it belonged to.
#[test]
fn who_is_not_root_owns_what_he_puts() {
    const USER: u32 = 4711;
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can be somebody else: left out");
        return;
    }
    let directory = tempfile::Builder::new().prefix("terrace-user").tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::os::unix::fs::chown(directory.path(), Some(USER), Some(USER)).unwrap();
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/file"), b"of root").unwrap();
    symlink("file", at("tree/link")).unwrap();
    for name in ["tree", "tree/file", "tree/link"] {
        std::os::unix::fs::lchown(at(name), Some(1234), Some(1235)).unwrap();
    }
    // Set-id bits fall with a change of the owner.
    fs::set_permissions(at("tree/file"), fs::Permissions::from_mode(0o4755)).unwrap();
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(words)
            .env("TERRACE_STATE_DIR", at("state"))
            .current_dir(directory.path())
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::null())
            .output();
        output.map(|output| {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{words:?}: {text}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    };
    if run(&["--version"]).is_err() {
        eprintln!("another user may not run this program where it lies: left out");
        return;
    }
    run(&["pool", "create", "tank", "--tier", "only=a.img:64M"]).unwrap();
    run(&["fs", "create", "tank/data"]).unwrap();
    run(&["put", "tank/data", "tree"]).unwrap();
    let listed: serde_json::Value =
        serde_json::from_str(&run(&["ls", "-R", "tank/data", "--json"]).unwrap()).unwrap();
    let rows = listed.as_array().unwrap();
    assert_eq!(rows.len(), 3, "{listed}");
    for row in rows {
        assert_eq!((&row["uid"], &row["gid"]), (&USER.into(), &USER.into()), "{row}");
    }
    let file = rows.iter().find(|row| row["name"] == "tree/file").unwrap();
    assert_eq!(file["mode"], "0755", "nobody else's program runs as him");
    // And back: it is his as well.
    run(&["get", "tank/data/tree", "back"]).unwrap();
    assert_eq!(fs::metadata(at("back/file")).unwrap().uid(), USER);
    // He can remove it, where he can mount.
    fs::create_dir(at("mnt")).unwrap();
    std::os::unix::fs::chown(at("mnt"), Some(USER), Some(USER)).unwrap();
    let mount = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["mount", "tank/data", "mnt"])
        .env("TERRACE_STATE_DIR", at("state"))
        .current_dir(directory.path())
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    if mount.status.success() {
        let removed = Command::new("rm")
            .args(["-r", "mnt/tree"])
            .current_dir(directory.path())
            .uid(USER)
            .gid(USER)
            .output();
        let removed = removed.unwrap();
        assert!(
            removed.status.success(),
            "{}",
            String::from_utf8_lossy(&removed.stderr)
        );
        run(&["unmount", "mnt"]).unwrap();
    } else {
        eprintln!(
            "he may not mount here: {}",
            String::from_utf8_lossy(&mount.stderr)
        );
    }
    run(&["stop", "tank"]).unwrap();
    // Root keeps owners.
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["put", "tank/data", at("tree").to_str().unwrap()]);
    let listed = machine.json(&["ls", "tank/data/tree"]);
    assert_eq!(
        (&listed[0]["uid"], &listed[0]["mode"]),
        (&1234.into(), &"4755".into()),
        "{listed}"
    );
}
