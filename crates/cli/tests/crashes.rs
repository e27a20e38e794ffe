//! A broken invariant ends the daemon: at once, with its cause told by the next `status` and kept as an event, and everything comes back as
//! after kill -9; one that does so again and again is started by hand only.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    process::Command,
    time::{Duration, Instant},
};

use harness::{Machine, can_mount, nbd::Client, until};
use serde_json::Value;

/// Ends the daemon by a panic; it must be gone soon.
fn panic(machine: &Machine) {
    let pid = machine.daemon_pid("tank");
    let output = machine.run(&["debug", "panic", "tank"]);
    assert_eq!(output.status.code(), Some(1), "nobody answers");
    let begun = Instant::now();
    until("the daemon is gone", || !harness::is_running(pid));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        begun.elapsed()
    );
}

fn signal(machine: &Machine, signal: &str) {
    let pid = machine.daemon_pid("tank");
    harness::must("kill", &[signal, &pid.to_string()]);
    until("the daemon is gone", || !harness::is_running(pid));
}

fn last_run(machine: &Machine) -> Value {
    machine.json(&["status", "tank"])["last_run"].clone()
}

#[test]
fn a_panic_ends_the_daemon_and_the_next_start_tells_why_and_brings_everything_back() {
    let machine = Machine::with_volume();
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:nbd.sock"]);
    machine.ok(&["fs", "create", "tank/data"]);
    let attached = machine
        .run(&["attach", "tank/vm", "--via", "loop"])
        .status
        .success();
    if can_mount() {
        fs::create_dir(machine.path("mnt")).unwrap();
        machine.ok(&["mount", "tank/data", "mnt"]);
        let mut file = fs::File::create(machine.path("mnt/file")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
    } else {
        eprintln!("mounts cannot be made here");
    }
    let socket = machine.path("nbd.sock");
    let mut client = Client::connect(&socket, "tank/vm");
    assert_eq!(client.ask(1, 4096, 4096, &[7; 4096]), 0);
    assert_eq!(client.ask(3, 0, 0, &[]), 0, "flushed");
    drop(client);
    assert_eq!(last_run(&machine), Value::Null, "nothing happened yet");

    panic(&machine);
    let log = fs::read_to_string(machine.path("state/log/tank.log")).unwrap();
    assert!(log.contains("asked for by 'terrace debug panic'"), "{log}");
    // A look at all pools starts none, and tells it all the same.
    let stopped = machine.ok(&["status"]);
    assert!(
        stopped.contains("ended on an internal error at crates/cli/src/daemon"),
        "{stopped}"
    );

    // The first command that needs it starts it.
    let last = last_run(&machine);
    let text = last["text"].as_str().unwrap();
    for words in [
        "the daemon ended on an internal error at crates/cli/src/daemon/mod.rs:",
        "in thread 'control'",
        "while it served the control request 'debug_panic'",
        "asked for by 'terrace debug panic'",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(last["kind"], "crash");
    assert!(
        machine
            .ok(&["status", "tank"])
            .contains(&format!("told at {}: {text}", last["time"].as_str().unwrap()))
    );
    let events = machine.json(&["events", "tank"]);
    let told: Vec<&Value> = events
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["kind"] == "crash")
        .collect();
    assert_eq!(told.len(), 1, "{events}");
    assert_eq!(
        (&told[0]["text"], &told[0]["time"]),
        (&last["text"], &last["time"])
    );

    if can_mount() {
        assert_eq!(fs::read(machine.path("mnt/file")).unwrap(), b"synced");
    }
    let mut client = Client::connect(&socket, "tank/vm");
    let content = client.read(4096, 4096);
    assert!(content.iter().all(|byte| *byte == 7));
    let status = machine.json(&["status", "tank"]);
    let row = status["datasets"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "tank/vm")
        .unwrap();
    assert_eq!(
        row["attached"].as_array().unwrap().len(),
        usize::from(attached),
        "{row}"
    );
    assert_eq!(status["not_restored"].as_array().unwrap().len(), 0);

    // A run that ended as it should has nothing to tell.
    drop(client);
    machine.ok(&["stop", "tank"]);
    assert_eq!(last_run(&machine), Value::Null);
}

#[test]
fn writers_and_fsyncs_under_way_do_not_hang_when_the_daemon_panics() {
    if !can_mount() {
        eprintln!("mounts cannot be made here");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("mnt")).unwrap();
    machine.ok(&["mount", "tank/data", "mnt"]);
    let synced = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (path, synced) = (machine.path(&format!("mnt/{writer}")), &synced);
            scope.spawn(move || {
                let mut file = fs::File::create(path).unwrap();
                // Until the daemon is gone: then each call fails.
                while file
                    .write_all(&[writer; 4096])
                    .and_then(|()| file.sync_all())
                    .is_ok()
                {
                    synced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        until("they write", || {
            synced.load(std::sync::atomic::Ordering::Relaxed) > 8
        });
        panic(&machine);
    });
    // The scope ended: nobody waits for a leader that is gone.
    machine.ok(&["start", "tank"]);
    let bytes: u64 = (0..4)
        .map(|writer| {
            fs::metadata(machine.path(&format!("mnt/{writer}")))
                .unwrap()
                .len()
        })
        .sum();
    assert!(bytes >= u64::from(synced.load(std::sync::atomic::Ordering::Relaxed)) * 4096);
}

#[test]
fn three_aborts_in_five_minutes_end_the_automatic_start() {
    let machine = Machine::new();
    machine.make_pool();
    for _ in 0..3 {
        machine.ok(&["status", "tank"]);
        panic(&machine);
    }
    let line = machine.error(&["list", "tank"], 1);
    for words in [
        "start pool 'tank': its daemon ended on an error of its own 3 times within 5 minutes",
        "internal error at crates/cli/src/daemon",
        "'terrace start tank' starts it all the same",
        "'terrace verify tank' reads it and changes nothing",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    // Still so, and said by the status of the pool, which starts nothing.
    let status = machine.json(&["status", "tank"]);
    assert_eq!(
        (&status["state"], &status["daemon_pid"]),
        (&"stopped".into(), &0.into())
    );
    let detail = status["state_detail"].as_str().unwrap();
    assert!(
        detail.contains("3 times within 5 minutes") && detail.contains("'terrace start tank'"),
        "{detail}"
    );
    assert!(
        machine.run(&["verify", "tank"]).status.success(),
        "it can be read"
    );
    machine.error(&["list", "tank"], 1);
    // By hand it starts, and counts anew.
    machine.ok(&["start", "tank"]);
    let events = machine.json(&["events", "tank"]);
    assert_eq!(
        events
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["kind"] == "crash")
            .count(),
        3
    );
    panic(&machine);
    machine.ok(&["list", "tank"]);
}

#[test]
fn signals_that_end_the_daemon_are_told_and_kill_9_counts_as_no_abort() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["status", "tank"]);
    signal(&machine, "-SEGV");
    let text = last_run(&machine)["text"].as_str().unwrap().to_owned();
    assert!(
        text.starts_with("the daemon ended unexpectedly by signal 11 (SIGSEGV"),
        "{text}"
    );
    signal(&machine, "-ABRT");
    let text = last_run(&machine)["text"].as_str().unwrap().to_owned();
    assert!(
        text.starts_with("the daemon ended unexpectedly by signal 6 (SIGABRT"),
        "{text}"
    );
    for _ in 0..3 {
        machine.kill_daemon("tank");
        let last = last_run(&machine);
        assert_eq!(last["kind"], "killed");
        assert!(last["text"].as_str().unwrap().contains("SIGKILL"), "{last}");
    }
}

#[test]
fn a_daemon_whose_log_is_closed_ends_on_a_panic_all_the_same() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["stop", "tank"]);
    // A pipe that nobody reads.
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["start", "tank", "--foreground"])
        .env("TERRACE_STATE_DIR", machine.path("state"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(daemon.stderr.take());
    until("it serves", || {
        machine.json(&["pool", "list"])[0]["state"] == "online"
    });
    panic_of(&machine, &mut daemon);
    assert!(
        last_run(&machine)["text"]
            .as_str()
            .unwrap()
            .contains("debug panic")
    );
}

fn panic_of(machine: &Machine, daemon: &mut std::process::Child) {
    machine.run(&["debug", "panic", "tank"]);
    let status = daemon.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(6),
        "{status}"
    );
    let mut nothing = Vec::new();
    assert!(
        daemon
            .stderr
            .as_mut()
            .is_none_or(|stderr| stderr.read_to_end(&mut nothing).is_ok())
    );
}
