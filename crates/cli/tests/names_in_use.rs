//! Names that change while somebody begins to use them.

#![allow(clippy::unwrap_used)]

mod harness;

use std::process::{Child, Command, Stdio};

use harness::Machine;

fn begin(machine: &Machine, words: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(words)
        .env("TERRACE_STATE_DIR", machine.path("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Either it is served, and not renamed, or it has its new name, and is served nowhere.
#[test]
fn nothing_is_renamed_while_it_begins_to_be_served() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["volume", "create", "tank/a", "--size", "8M", "--sparse"]);
    let address = format!("unix:{}", machine.text("nbd.sock"));
    let (mut from, mut to) = ("tank/a", "tank/b");
    for round in 0..100 {
        let mut serving = begin(&machine, &["serve", from, "--nbd", &address]);
        let mut renaming = begin(&machine, &["rename", from, to]);
        let served = serving.wait().unwrap().success();
        let renamed = renaming.wait().unwrap().success();
        assert!(!(served && renamed), "both, in round {round}");
        if served {
            machine.ok(&["unserve", from]);
        }
        if renamed {
            (from, to) = (to, from);
        }
    }
}
