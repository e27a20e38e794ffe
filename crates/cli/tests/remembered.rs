//! What a killed daemon had mounted, attached and served: what cannot be brought back is told, can be struck off, and
//! does not come back under a name that means something else by now. And what is no volume.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    os::unix::net::{UnixDatagram, UnixListener, UnixStream},
    process::Command,
};

use harness::{Machine, can_mount};
use serde_json::{Value, json};

fn machine() -> Machine {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/vm", "--size", "16M", "--sparse"]);
    machine
}

/// What `status` says is missing: kind and name of each.
fn missing(machine: &Machine) -> Vec<(String, String)> {
    let status = machine.json(&["status", "tank"]);
    let rows = status["not_restored"].as_array().unwrap().clone();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| (text(row, "kind"), text(row, "name")))
        .collect()
}

fn serves(machine: &Machine, volume: &str) -> Value {
    let status = machine.json(&["status", "tank"]);
    let rows = status["datasets"].as_array().unwrap().clone();
    let row = rows.into_iter().find(|row| row["name"] == volume);
    row.unwrap()["served"].clone()
}

#[test]
fn a_service_that_cannot_come_back_is_told_and_struck_off() {
    let machine = machine();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:one.sock"]);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:two.sock"]);
    machine.kill_daemon("tank");
    fs::remove_file(machine.path("one.sock")).unwrap();
    let other = UnixListener::bind(machine.path("one.sock")).unwrap();
    let line = machine.error(&["start", "tank"], 1);
    let me = format!("process {} listens there already", std::process::id());
    for words in [
        &*me,
        "one.sock",
        "'terrace start tank' tries again",
        "'terrace unserve tank/vm' forgets it",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    assert_eq!(missing(&machine), [("serve".into(), "tank/vm".into())]);
    assert!(
        machine
            .ok(&["status", "tank"])
            .contains("not back: serve 'tank/vm' again")
    );
    assert_eq!(
        serves(&machine, "tank/vm"),
        json!([format!("unix:{}", machine.text("two.sock"))])
    );
    // The cause mended, it comes back when it is asked for.
    drop(other);
    machine.ok(&["start", "tank"]);
    assert_eq!(missing(&machine), []);
    assert_eq!(serves(&machine, "tank/vm").as_array().unwrap().len(), 2);
    // Struck off, it does not.
    machine.kill_daemon("tank");
    fs::remove_file(machine.path("one.sock")).unwrap();
    fs::create_dir(machine.path("one.sock")).unwrap();
    let line = machine.error(&["start", "tank"], 1);
    assert!(line.contains("there is a directory already"), "{line}");
    let gone = machine.json(&["unserve", "tank/vm"]);
    assert_eq!(gone["addresses"].as_array().unwrap().len(), 2, "{gone}");
    assert_eq!(missing(&machine), []);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    assert!(machine.error(&["unserve", "tank/vm"], 1).contains("not served"));
}

#[test]
fn a_new_volume_of_that_name_is_not_served_in_its_place() {
    let machine = machine();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    machine.ok(&["snapshot", "tank/vm@one"]);
    machine.ok(&["serve", "tank/vm@one", "--nbd", "unix:snap.sock"]);
    machine.kill_daemon("tank");
    // Without its list, so that nothing follows what happens to the volume.
    let list = machine.path("state/blocks/tank.json");
    let remembered = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    machine.ok(&["start", "tank"]);
    machine.ok(&["destroy", "tank/vm", "-r", "--yes"]);
    machine.ok(&["volume", "create", "tank/vm", "--size", "16M", "--sparse"]);
    machine.ok(&["snapshot", "tank/vm@one"]);
    machine.kill_daemon("tank");
    fs::write(&list, remembered).unwrap();
    let output = machine.run(&["start", "tank"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    for words in [
        "'tank/vm' is another dataset",
        "'tank/vm@one' is another snapshot",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert!(UnixStream::connect(machine.path("nbd.sock")).is_err());
    assert_eq!(serves(&machine, "tank/vm"), json!([]));
    // Asked for anew it is this one.
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    assert_eq!(missing(&machine), [("serve".into(), "tank/vm@one".into())]);
    machine.kill_daemon("tank");
    machine.error(&["start", "tank"], 1);
    assert_eq!(serves(&machine, "tank/vm").as_array().unwrap().len(), 1);
}

#[test]
fn names_are_followed_and_what_is_destroyed_is_forgotten() {
    let machine = machine();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    machine.kill_daemon("tank");
    fs::remove_file(machine.path("nbd.sock")).unwrap();
    fs::write(machine.path("nbd.sock"), b"precious").unwrap();
    machine.error(&["start", "tank"], 1);
    // Nothing of it is served now: it may be renamed, and comes back under its new name.
    machine.ok(&["rename", "tank/vm", "tank/new"]);
    assert_eq!(missing(&machine), [("serve".into(), "tank/new".into())]);
    assert_eq!(fs::read(machine.path("nbd.sock")).unwrap(), b"precious");
    fs::remove_file(machine.path("nbd.sock")).unwrap();
    machine.ok(&["start", "tank"]);
    assert_eq!(serves(&machine, "tank/new").as_array().unwrap().len(), 1);
    machine.kill_daemon("tank");
    fs::remove_file(machine.path("nbd.sock")).unwrap();
    fs::write(machine.path("nbd.sock"), b"precious").unwrap();
    machine.error(&["start", "tank"], 1);
    machine.ok(&["destroy", "tank/new", "--yes"]);
    assert_eq!(missing(&machine), []);
    machine.ok(&["volume", "create", "tank/new", "--size", "16M", "--sparse"]);
    machine.kill_daemon("tank");
    fs::remove_file(machine.path("nbd.sock")).unwrap();
    machine.ok(&["start", "tank"]);
    assert_eq!(serves(&machine, "tank/new"), json!([]));
}

#[test]
fn lists_that_cannot_be_read_are_told_and_do_not_keep_a_pool_from_stopping() {
    let machine = machine();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    machine.kill_daemon("tank");
    for list in ["blocks", "mounts"] {
        fs::create_dir_all(machine.path(&format!("state/{list}"))).unwrap();
        fs::write(machine.path(&format!("state/{list}/tank.json")), b"[{\"dataset").unwrap();
    }
    let output = machine.run(&["start", "tank"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), said.lines().count()),
        (Some(1), 2),
        "{said}"
    );
    for words in ["blocks/tank.json", "mounts/tank.json", "remove that file"] {
        assert!(said.contains(words), "{said}");
    }
    machine.error(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"], 1);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
}

#[test]
fn sockets_of_others_stay() {
    let machine = machine();
    let datagram = UnixDatagram::bind(machine.path("datagram")).unwrap();
    let _listener = UnixListener::bind(machine.path("listener")).unwrap();
    drop(UnixListener::bind(machine.path("dead")).unwrap());
    fs::write(machine.path("file"), b"precious").unwrap();
    for (name, why) in [
        ("datagram", "a socket of another kind"),
        ("listener", "listens there already"),
        ("file", "there is a file already"),
    ] {
        for words in [
            ["serve", "tank/vm", "--nbd", &format!("unix:{name}")],
            ["serve", "tank/vm", "--vhost-user", name],
        ] {
            let line = machine.error(&words, 1);
            assert!(
                line.contains(why) && line.contains(name) && line.contains("; give"),
                "{line}"
            );
        }
    }
    assert_eq!(fs::read(machine.path("file")).unwrap(), b"precious");
    drop(datagram);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:dead"]);
    machine.ok(&["unserve", "tank/vm"]);
    machine.ok(&["serve", "tank/vm", "--vhost-user", "dead"]);
    for address in [
        "foo",
        "unix:",
        "tcp:here",
        "tcp::1",
        "tcp:127.0.0.1:99999",
        "tcp:127.0.0.1:x",
    ] {
        let line = machine.error(&["serve", "tank/vm", "--nbd", address], 2);
        assert!(line.contains("write unix:PATH"), "{line}");
    }
    // The daemon's own socket is treated likewise.
    machine.ok(&["stop", "tank"]);
    let socket = machine.path("state/run/tank.sock");
    fs::write(&socket, b"precious").unwrap();
    let line = machine.error(&["start", "tank"], 1);
    assert!(line.contains("tank.sock") && line.contains("a file"), "{line}");
    assert_eq!(fs::read(&socket).unwrap(), b"precious");
    fs::remove_file(&socket).unwrap();
    machine.ok(&["start", "tank"]);
}

#[test]
fn a_mount_that_cannot_come_back_is_told_and_struck_off() {
    if !can_mount() {
        println!("skipped: nothing can be mounted here");
        return;
    }
    let machine = machine();
    for name in ["a", "b", "c"] {
        machine.ok(&["fs", "create", &format!("tank/{name}")]);
        fs::create_dir(machine.path(name)).unwrap();
        machine.ok(&["mount", &format!("tank/{name}"), &machine.text(name)]);
    }
    let unmount = |name: &str| {
        let done = Command::new("umount").args(["-l", &machine.text(name)]).status();
        assert!(done.unwrap().success());
    };
    machine.kill_daemon("tank");
    unmount("a");
    fs::remove_dir(machine.path("a")).unwrap();
    unmount("b");
    let tmpfs = ["-t", "tmpfs", "theirs", &machine.text("b")];
    assert!(Command::new("mount").args(tmpfs).status().unwrap().success());
    let output = machine.run(&["start", "tank"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), said.lines().count()),
        (Some(1), 2),
        "{said}"
    );
    assert!(said.contains("No such file") && said.contains("mkdir"), "{said}");
    assert!(
        said.contains("theirs of type tmpfs") && said.contains("umount"),
        "{said}"
    );
    assert_eq!(
        missing(&machine),
        [
            ("mount".into(), "tank/a".into()),
            ("mount".into(), "tank/b".into())
        ]
    );
    machine.ok(&["put", "tank/c/f", &machine.text("stdin")]);
    assert!(machine.path("c/f").exists(), "the third is there");
    // By its directory and by its name.
    machine.ok(&["unmount", &machine.text("b")]);
    assert_eq!(missing(&machine), [("mount".into(), "tank/a".into())]);
    fs::create_dir(machine.path("a")).unwrap();
    machine.ok(&["start", "tank"]);
    assert_eq!(missing(&machine), []);
    machine.ok(&["put", "tank/a/f", &machine.text("stdin")]);
    assert!(machine.path("a/f").exists(), "tried again");
    machine.kill_daemon("tank");
    unmount("a");
    fs::remove_dir(machine.path("a")).unwrap();
    machine.error(&["start", "tank"], 1);
    machine.ok(&["unmount", "tank/a"]);
    assert!(machine.error(&["unmount", "tank/a"], 1).contains("nothing of"));
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    // What lay underneath from the beginning is covered again.
    machine.ok(&["mount", "tank/b", &machine.text("b")]);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    machine.ok(&["stop", "tank"]);
    unmount("b");
}

#[test]
fn a_device_that_cannot_come_back_is_told_and_struck_off() {
    let machine = machine();
    if !machine.run(&["attach", "tank/vm"]).status.success() {
        println!("skipped: nothing can be attached here");
        return;
    }
    machine.kill_daemon("tank");
    // The volume it was, gone behind the list's back.
    let list = machine.path("state/blocks/tank.json");
    let remembered = fs::read_to_string(&list).unwrap();
    fs::remove_file(&list).unwrap();
    machine.ok(&["start", "tank"]);
    machine.ok(&["destroy", "tank/vm", "--yes"]);
    machine.ok(&["volume", "create", "tank/vm", "--size", "16M", "--sparse"]);
    machine.kill_daemon("tank");
    fs::write(&list, &remembered).unwrap();
    let line = machine.error(&["start", "tank"], 1);
    assert!(
        line.contains("'tank/vm' is another dataset") && line.contains("terrace detach tank/vm"),
        "{line}"
    );
    assert_eq!(missing(&machine), [("attach".into(), "tank/vm".into())]);
    machine.ok(&["detach", "tank/vm"]);
    assert_eq!(missing(&machine), []);
    assert!(machine.error(&["detach", "tank/vm"], 1).contains("not attached"));
    machine.ok(&["attach", "tank/vm"]);
    machine.ok(&["detach", "tank/vm"]);
}

#[test]
fn sizes_and_names_that_cannot_be_are_refused() {
    let machine = machine();
    for size in [
        "0",
        "0K",
        "5P",
        "8E",
        "16E",
        "99999999999999999999",
        "1.5",
        "x",
        "",
        "4503599627370497",
    ] {
        let line = machine.error(&["volume", "create", "tank/no", "--sparse", "--size", size], 2);
        assert!(line.contains("size") && line.contains("; "), "{line}");
    }
    for size in ["0", "5P", "16E"] {
        machine.error(&["volume", "resize", "tank/vm", size], 2);
        machine.error(&["volume", "resize", "tank/vm", size, "--yes"], 2);
    }
    let long = format!("tank/{}", "a".repeat(300));
    for name in [
        "tank/", "tank//a", "tank/a@b", "tank/ä", "tank/a b", "tank/..", "tank/-a", "/tank/a", "", &long,
    ] {
        let line = machine.error(&["volume", "create", "--sparse", "--size", "1M", "--", name], 2);
        assert!(line.contains("; "), "{line}");
        machine.error(&["fs", "create", "--", name], 2);
    }
    let names = machine.json(&["list"]);
    assert_eq!(names.as_array().unwrap().len(), 2, "{names}");
    // The largest there is costs nothing.
    machine.ok(&["volume", "create", "tank/huge", "--sparse", "--size", "4P"]);
    machine.ok(&["destroy", "tank/huge", "--yes"]);
    let output = machine.run(&["volume", "create", "tank/odd", "--sparse", "--size", "5000"]);
    assert!(output.status.success());
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("has 8192 bytes, not 5000")
    );
}
