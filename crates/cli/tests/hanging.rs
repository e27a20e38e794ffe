//! A daemon that is stopped: every command says so within two seconds, with its process and the way out, and other pools are shown.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    time::{Duration, Instant},
};

use harness::{Machine, must, noise, until};
use serde_json::Value;

/// The two seconds, and what a machine with more to do than it can may add.
const BOUND: Duration = Duration::from_secs(2);
const LOAD: Duration = Duration::from_secs(3);

/// A daemon under SIGSTOP; it goes on when this is dropped.
struct Stopped(String);

impl Stopped {
    fn of(machine: &Machine, pool: &str) -> Self {
        let pid = machine.daemon_pid(pool).to_string();
        must("kill", &["-STOP", &pid]);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill")
            .args(["-CONT", &self.0])
            .status();
    }
}

fn with_two_pools() -> Machine {
    let machine = Machine::new();
    for pool in ["tank", "lake"] {
        let tier = format!("only={}:64M", machine.text(&format!("{pool}.img")));
        machine.ok(&["pool", "create", pool, "--tier", &tier, "-o", "memory=32M"]);
        machine.ok(&["fs", "create", &format!("{pool}/data")]);
        machine.run_with(&["put", &format!("{pool}/data/file")], b"content");
    }
    machine
}

/// Runs it, must fail within the time; what it printed, and what it said.
fn fails_soon(machine: &Machine, words: &[&str]) -> (String, String) {
    let begun = Instant::now();
    let output = machine.run(words);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(
        begun.elapsed() < BOUND + LOAD,
        "{words:?} took {:?}: {err}",
        begun.elapsed()
    );
    assert_eq!(output.status.code(), Some(1), "{words:?}: {out}{err}");
    (out, err)
}

#[test]
fn every_command_about_it_names_pool_process_and_way_out() {
    let machine = with_two_pools();
    fs::write(machine.path("local"), b"content").unwrap();
    let stopped = Stopped::of(&machine, "tank");
    let commands: &[&[&str]] = &[
        &["status", "tank"],
        &["list", "tank"],
        &["iostat", "tank"],
        &["events", "tank"],
        &["jobs", "tank"],
        &["command-log", "tank"],
        &["top", "tank", "-n", "1"],
        &["pool", "get", "all", "tank"],
        &["pool", "set", "migration=on", "tank"],
        &["tier", "list", "tank"],
        &["tier", "set", "copies=1", "tank/only"],
        &["get", "all", "tank/data"],
        &["set", "dedup=on", "tank/data"],
        &["fs", "create", "tank/more"],
        &["volume", "create", "tank/vm", "--size", "16M"],
        &["snapshot", "tank/data@now"],
        &["destroy", "tank/data", "--yes"],
        &["rename", "tank/data", "tank/other"],
        &["prune", "tank/data", "-n"],
        &["ls", "tank/data"],
        &["cat", "tank/data/file"],
        &["put", "tank/data", "local"],
        &["get", "tank/data/file", "to"],
        &["where", "tank/data/file"],
        &["pin", "tank/data", "only"],
        &["promote", "tank/data", "--wait"],
        &["scrub", "tank", "--wait"],
        &["scrub", "tank"],
        &["compact", "tank"],
        &["pool", "add", "tank", "only=b.img:64M"],
        &["pool", "remove", "tank", "tank.img"],
        &["pool", "replace", "tank", "tank.img", "b.img:64M"],
        &["evacuate", "tank", "tank.img"],
        &["pool", "export", "tank"],
        &["pool", "destroy", "tank", "--yes"],
        &["stop", "tank"],
        &["start", "tank"],
    ];
    for words in commands {
        let (_, said) = fails_soon(&machine, words);
        let last = said.lines().last().unwrap_or_default();
        for part in [
            "'tank'",
            &format!("process {}", stopped.0),
            &format!("'kill -CONT {}'", stopped.0),
            "'terrace stop --force tank'",
        ] {
            assert!(last.contains(part), "{words:?} without {part}: {said}");
        }
    }
    assert!(!machine.path("b.img").exists() && !machine.path("to").exists());
    // It goes on, and nothing is left of it.
    drop(stopped);
    assert_eq!(machine.ok(&["cat", "tank/data/file"]), "content");
    machine.ok(&["scrub", "tank", "--wait"]);
}

#[test]
fn other_pools_are_shown_beside_it() {
    let machine = with_two_pools();
    let stopped = Stopped::of(&machine, "tank");
    let json = |words: &[&str]| {
        let (out, said) = fails_soon(&machine, &[words, &["--json"]].concat());
        assert!(
            said.contains("'tank'") && said.contains(&stopped.0),
            "{words:?}: {said}"
        );
        serde_json::from_str::<Value>(&out).unwrap_or_else(|error| panic!("{words:?}: {error}: {out}"))
    };
    for words in [&["status"][..], &["pool", "list"]] {
        let rows = json(words);
        let name = |row: &Value| row["name"].as_str().or(row["pool"].as_str()).map(str::to_owned);
        let rows: Vec<&Value> = rows.as_array().unwrap().iter().collect();
        let of = |pool: &str| {
            rows.iter()
                .find(|row| name(row).as_deref() == Some(pool))
                .unwrap()
        };
        assert_eq!(of("lake")["state"], "online", "{words:?}");
        assert_eq!(of("tank")["state"], "not answering", "{words:?}");
        assert_eq!(of("tank")["daemon_pid"].to_string(), stopped.0);
        let (out, _) = fails_soon(&machine, words);
        assert!(out.contains("not answering") && out.contains("online"), "{out}");
    }
    for words in [&["list"][..], &["iostat"], &["events"], &["jobs"], &["mount"]] {
        let (out, said) = fails_soon(&machine, words);
        assert!(said.contains("'tank'"), "{words:?}: {said}");
        assert!(!out.contains("tank/data"), "{words:?}: {out}");
        if !matches!(words[0], "jobs" | "mount") {
            assert!(out.contains("lake"), "{words:?}: {out}");
        }
        json(words);
    }
    drop(stopped);
    assert!(machine.ok(&["list"]).contains("tank/data"));
}

#[test]
fn stopping_by_force_ends_it_and_keeps_what_was_synced() {
    let machine = with_two_pools();
    let stopped = Stopped::of(&machine, "tank");
    let begun = Instant::now();
    let output = machine.run(&["stop", "--force", "tank"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(&format!("process {}", stopped.0)) && said.contains("was killed"),
        "{said}"
    );
    assert!(begun.elapsed() < Duration::from_secs(30));
    drop(stopped);
    assert_eq!(machine.ok(&["cat", "tank/data/file"]), "content");
}

/// In the middle of a frame, too.
#[test]
fn a_command_under_way_is_told_when_the_daemon_stops() {
    let machine = with_two_pools();
    fs::write(machine.path("large"), noise(24 << 20, 1)).unwrap();
    machine.ok(&["put", "tank/data", "large"]);
    // Nobody reads: it is under way until then.
    let pipe = machine.text("pipe");
    must("mkfifo", &[&pipe]);
    let child = machine.spawn(&["get", "tank/data/large", "pipe"]);
    let mut reader = fs::File::open(&pipe).unwrap();
    let mut some = [0; 4096];
    std::io::Read::read_exact(&mut reader, &mut some).unwrap();
    let stopped = Stopped::of(&machine, "tank");
    let waiting = std::thread::spawn(move || child.wait_with_output().unwrap());
    // What was on its way comes; then nothing.
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut reader, &mut rest);
    let output = waiting.join().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("'tank'") && said.contains(&format!("'kill -CONT {}'", stopped.0)),
        "{said}"
    );
    drop(stopped);
}

/// A path on the mount of such a daemon would keep a command in the kernel for ever.
#[test]
fn paths_on_its_mount_are_not_touched() {
    if !harness::can_mount() {
        eprintln!("no mounts here: left out");
        return;
    }
    let machine = with_two_pools();
    fs::create_dir(machine.path("mnt")).unwrap();
    machine.ok(&["mount", "tank/data", &machine.text("mnt")]);
    let stopped = Stopped::of(&machine, "tank");
    let file = machine.text("mnt/file");
    let directory = machine.text("mnt");
    for words in [
        &["where", &file][..],
        &["pin", &file, "only"],
        &["put", "lake/data", &file],
        &["get", "lake/data/file", &file],
        &["unmount", &directory],
        &["mount", "lake/data", &directory],
    ] {
        let (_, said) = fails_soon(&machine, words);
        assert!(
            said.contains("'tank'") && said.contains(&stopped.0),
            "{words:?}: {said}"
        );
    }
    drop(stopped);
    assert_eq!(fs::read(machine.path("mnt/file")).unwrap(), b"content");
    machine.ok(&["unmount", &directory]);
}

/// A disk that answers nothing, as a FUSE server's file is while the server is stopped: threads that asked it wait in the kernel.
#[test]
fn a_device_that_hangs_makes_no_command_hang() {
    if !harness::can_mount() {
        eprintln!("no mounts here: left out");
        return;
    }
    let machine = Machine::new();
    let below = format!("only={}:256M", machine.text("below.img"));
    machine.ok(&["pool", "create", "below", "--tier", &below, "-o", "memory=32M"]);
    machine.ok(&["fs", "create", "below/data"]);
    let directory = machine.text("mnt");
    fs::create_dir(machine.path("mnt")).unwrap();
    machine.ok(&["mount", "below/data", &directory]);
    let (whole, hangs) = (machine.text("a.img"), machine.text("mnt/b.img"));
    let tier = format!("only={whole}:64M,{hangs}:64M");
    machine.ok(&["pool", "create", "lake", "--tier", &tier, "-o", "memory=32M"]);
    machine.ok(&["tier", "set", "copies=2", "lake/only"]);
    machine.ok(&["pool", "set", "device_timeout=1s", "lake"]);
    machine.ok(&["fs", "create", "lake/data"]);
    let content = noise(8 << 20, 3);
    machine.run_with(&["put", "lake/data/file"], &content);
    let state = || {
        let status = machine.json(&["status", "lake"]);
        let devices = status["tiers"][0]["devices"].as_array().unwrap().clone();
        let device = devices.iter().find(|device| device["path"] == hangs.as_str());
        device.unwrap()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(), "online");

    let stopped = Stopped::of(&machine, "below");
    fs::write(machine.path("other"), noise(24 << 20, 4)).unwrap();
    let mut writer = machine.spawn(&["put", "lake/data/other", "other"]);
    until("the device is called silent", || state() == "not answering");
    for words in [
        &["status", "lake"][..],
        &["list", "lake"],
        &["ls", "lake/data"],
        &["cat", "lake/data/file"],
        &["events", "lake"],
        &["iostat", "lake"],
    ] {
        let begun = Instant::now();
        let output = machine.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            begun.elapsed() < BOUND + LOAD,
            "{words:?} took {:?}: {said}",
            begun.elapsed()
        );
        assert!(output.status.success(), "{words:?}: {said}");
        if words[0] == "cat" {
            assert!(output.stdout == content);
        }
    }
    // What has to become durable may have to wait for who hangs in the kernel: then it says so.
    for words in [
        &["snapshot", "lake/data@while"][..],
        &["fs", "create", "lake/more"],
        &["list", "lake"],
    ] {
        let begun = Instant::now();
        let output = machine.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            begun.elapsed() < 2 * BOUND + LOAD,
            "{words:?} took {:?}: {said}",
            begun.elapsed()
        );
        let names = |part: &str| said.lines().last().unwrap_or_default().contains(part);
        let is_told = names("'lake'") && names(&hangs) && names("'terrace stop --force lake'");
        assert!(
            output.status.success() || is_told || names("cannot flush"),
            "{words:?}: {said}"
        );
    }
    drop(stopped);
    until("the device answers again", || state() != "not answering");
    let _ = writer.wait();
    assert!(machine.run(&["cat", "lake/data/file"]).stdout == content);
    machine.ok(&["scrub", "lake", "--wait"]);
    machine.ok(&["stop", "lake"]);
    machine.ok(&["unmount", &directory]);
}
