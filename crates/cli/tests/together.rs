//! Commands beside one another: starts at once, what is interrupted by `stop`.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    io::Write,
    process::{Child, Command, Output, Stdio},
};

use harness::Machine;

/// Begins a command and does not wait for it.
fn begin(machine: &Machine, words: &[&str], stdin: Stdio) -> Child {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(words)
        .env("TERRACE_STATE_DIR", machine.path("state"))
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn starts_at_once_all_succeed_with_one_daemon() {
    let machine = Machine::new();
    machine.make_pool();
    for _ in 0..4 {
        machine.ok(&["stop", "tank"]);
        let commands = [
            &["start", "tank", "--json"][..],
            &["start", "tank", "--json"],
            &["list", "tank"],
            &["start", "tank", "--json"],
        ];
        let begun = commands.map(|words| begin(&machine, words, Stdio::null()));
        let mut pids = Vec::new();
        for (child, words) in begun.into_iter().zip(commands) {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            if words[0] == "start" {
                let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                pids.push(answer["daemon_pid"].as_i64().unwrap());
            }
        }
        assert!(
            pids.iter()
                .all(|pid| *pid == i64::from(machine.daemon_pid("tank"))),
            "{pids:?}"
        );
    }
}

#[test]
fn starts_and_stops_at_once_leave_one_or_the_other() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    for _ in 0..4 {
        let begun =
            ["stop", "start", "stop", "start"].map(|verb| begin(&machine, &[verb, "tank"], Stdio::null()));
        for child in begun {
            let output = child.wait_with_output().unwrap();
            // Who reached a daemon that another one stopped is told so.
            assert!(
                output.status.success() || said(&output).contains("terrace start tank"),
                "{}",
                said(&output)
            );
        }
        machine.ok(&["put", "tank/f", &machine.text("stdin")]);
        machine.ok(&["status", "tank"]);
    }
}

#[test]
fn what_stop_interrupts_says_so() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    let mut put = begin(&machine, &["put", "tank/endless", "-"], Stdio::piped());
    let mut stdin = put.stdin.take().unwrap();
    // More than pipes and buffers hold, so that the daemon has taken some of it.
    stdin.write_all(&vec![7; 4 << 20]).unwrap();
    let stop = begin(&machine, &["stop", "tank"], Stdio::null());
    // Until it ends: the pipe has no reader then.
    while stdin.write_all(&[7; 65536]).is_ok() {}
    let output = put.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let words = said(&output);
    assert!(
        words.contains("tank/endless")
            && words.contains("being stopped")
            && words.contains("terrace start tank"),
        "{words}"
    );
    let output = stop.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    machine.ok(&["start", "tank"]);
}

#[test]
fn a_lock_that_no_daemon_holds_is_not_waited_for() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    machine.ok(&["stop", "tank"]);
    let path = machine.path("state/run/tank.pid");
    let file = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for words in [["start", "tank"], ["status", "tank"], ["stop", "tank"]] {
        let line = machine.error(&words, 1);
        let holder = format!("process {}, which is none, holds the lock", std::process::id());
        assert!(line.contains(&holder) && line.contains("tank.pid"), "{line}");
    }
    drop(file);
    machine.ok(&["start", "tank"]);
}

/// The number in the lock file tells of a daemon only while the lock is held; it may be that of some other process by now.
#[test]
fn a_number_that_a_daemon_left_behind_is_nobodys() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    let path = machine.path("state/run/tank.pid");
    let daemon = std::fs::read_to_string(&path).unwrap();
    machine.kill_daemon("tank");
    let left = std::fs::read_to_string(&path).unwrap();
    assert_eq!(left, daemon, "what is killed cannot take its number away");
    let reused = format!(r#"{{"pid":{},"start_ticks":1}}"#, std::process::id());
    for stale in [&left, &reused] {
        std::fs::write(&path, stale).unwrap();
        assert!(machine.ok(&["doctor"]).contains("stopped"), "{stale}");
        let list = machine.json(&["pool", "list"]);
        assert_eq!(list[0]["state"], "stopped", "{stale}: {list}");
        machine.ok(&["stop", "tank"]);
        machine.ok(&["start", "tank"]);
        let pid = machine.daemon_pid("tank");
        assert_eq!(machine.json(&["status", "tank"])["daemon_pid"], pid);
        assert!(machine.ok(&["doctor"]).contains(&format!("process {pid}")));
        machine.ok(&["stop", "tank"]);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "",
            "who is told to stop does"
        );
        assert!(machine.ok(&["doctor"]).contains("stopped"));
    }
}
