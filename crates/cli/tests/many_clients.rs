//! More NBD clients than a shell's limit of open files: the daemon serves them, and can still be asked.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    io::Read,
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

use harness::Machine;

/// The limits of open files of a process: soft, and hard.
fn limits(pid: i32) -> [u64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .unwrap();
    let mut numbers = line
        .split_ascii_whitespace()
        .map(|word| word.parse().unwrap_or(u64::MAX));
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

#[test]
fn clients_do_not_take_the_last_descriptors_of_the_daemon() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/v", "--size", "8M", "--sparse"]);
    machine.ok(&["stop", "tank"]);
    // As a shell with a low limit starts it.
    let started = Command::new("sh")
        .args([
            "-c",
            "ulimit -Sn 256; exec \"$0\" start tank",
            env!("CARGO_BIN_EXE_terrace"),
        ])
        .env("TERRACE_STATE_DIR", machine.path("state"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        started.status.success(),
        "{}",
        String::from_utf8_lossy(&started.stderr)
    );
    let [soft, hard] = limits(machine.daemon_pid("tank"));
    assert_eq!(soft, hard.min(64 << 10));
    let socket = machine.text("nbd.sock");
    machine.ok(&["serve", "tank/v", "--nbd", &format!("unix:{socket}")]);
    let mut clients: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for client in &mut clients {
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).unwrap();
    }
    machine.ok(&["status", "tank"]);
}
