//! Files without a mount: put, cat, ls, get; what a killed daemon leaves; snapshots by path.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use harness::Machine;
use serde_json::json;

fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("deep/er")).unwrap();
    fs::write(root.join("deep/er/file"), b"x".repeat(300_000)).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("näme \u{1F980}"), b"utf-8").unwrap();
    fs::write(root.join("script"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("deep/er/file", root.join("link")).unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("dangling")).unwrap();
    let mut noise = Vec::new();
    let mut state = 7u64;
    while noise.len() < 2_500_000 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        noise.extend_from_slice(&state.to_le_bytes());
    }
    fs::write(root.join("noise"), noise).unwrap();
}

fn assert_same(a: &Path, b: &Path) {
    let output = std::process::Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([a, b])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let mode = |path: &Path| fs::metadata(path.join("script")).unwrap().permissions().mode();
    assert_eq!(mode(a), mode(b));
    let time = |path: &Path| fs::metadata(path.join("noise")).unwrap().modified().unwrap();
    assert_eq!(time(a), time(b));
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let machine = Machine::new();
    machine.make_pool();
    make_tree(&machine.path("tree"));
    machine.ok(&["fs", "create", "tank/data"]);
    let copied = machine.json(&["put", "tank/data", "tree"]);
    assert_eq!(copied["files"], 5);
    machine.ok(&["get", "tank/data/tree", "back"]);
    assert_same(&machine.path("tree"), &machine.path("back"));
    // The same tree again is all duplicates.
    machine.ok(&["put", "tank/data/again", "tree"]);
    let status = machine.json(&["status", "tank"]);
    assert!(
        status["dedup_ratio"].as_f64().unwrap() > 1.5,
        "{}",
        status["dedup_ratio"]
    );
    machine.ok(&["get", "tank/data/again", "back2"]);
    assert_same(&machine.path("tree"), &machine.path("back2"));

    let names = machine.ok(&["ls", "tank/data/tree"]);
    assert_eq!(names.lines().next(), Some("dangling"));
    let rows = machine.json(&["ls", "-R", "tank/data/tree"]);
    let found = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "deep/er/file")
        .unwrap();
    assert_eq!(found["size_bytes"], 300_000);
    assert_eq!(machine.ok(&["cat", "tank/data/tree/näme \u{1F980}"]), "utf-8");
    assert_eq!(machine.ok(&["cat", "tank/data/tree/link"]).len(), 300_000);
    let error = machine.error(&["cat", "tank/data/tree"], 1);
    assert!(
        error.contains("'terrace ls tank/data/tree' lists it")
            && error.contains("'terrace get tank/data/tree DIR'"),
        "{error}"
    );
}

#[test]
fn standard_input_and_either_order_of_arguments() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    assert!(
        machine
            .run_with(&["put", "tank/data/in"], b"from a pipe")
            .status
            .success()
    );
    assert_eq!(machine.ok(&["cat", "tank/data/in"]), "from a pipe");
    fs::write(machine.path("local"), b"second").unwrap();
    machine.ok(&["put", "local", "tank/data/in"]);
    assert_eq!(machine.ok(&["cat", "tank/data/in"]), "second");
    machine.ok(&["put", "tank/data", "local"]);
    assert_eq!(machine.ok(&["ls", "tank/data"]), "in\nlocal\n");
    assert_eq!(machine.ok(&["get", "tank/data/in", "-"]), "second");
}

#[test]
fn what_was_put_survives_kill_9() {
    let machine = Machine::new();
    machine.make_pool();
    make_tree(&machine.path("tree"));
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["put", "tank/data", "tree"]);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    machine.ok(&["get", "tank/data/tree", "back"]);
    assert_same(&machine.path("tree"), &machine.path("back"));
    // Again, and the next command starts the daemon by itself.
    machine.kill_daemon("tank");
    let scrub = machine.json(&["scrub", "tank", "--wait"]);
    assert_eq!((&scrub["state"], &scrub["errors"]), (&json!("done"), &json!(0)));
    assert!(scrub["done_bytes"].as_u64().unwrap() > 2 << 20);
}

#[test]
fn snapshots_are_read_by_path() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.run_with(&["put", "tank/data/file"], b"old");
    machine.ok(&["snapshot", "tank/data@first", "-m", "before"]);
    machine.run_with(&["put", "tank/data/file"], b"new");
    assert_eq!(machine.ok(&["cat", "tank/data/file"]), "new");
    assert_eq!(machine.ok(&["cat", "tank/data@first/file"]), "old");
    let list = machine.json(&["list", "-t", "snapshot", "tank/data"]);
    assert_eq!(list[0]["name"], "tank/data@first");
    assert_eq!(list[0]["note"], "before");
    let checkpoint = list[0]["checkpoint"].as_u64().unwrap();
    assert_eq!(
        machine.ok(&["cat", &format!("tank/data/file@@{checkpoint}")]),
        "old"
    );
    machine.ok(&["rename", "tank/data@first", "second"]);
    let line = machine.error(&["put", "tank/data@second/file", "stdin"], 1);
    assert!(line.to_lowercase().contains("read-only"), "{line}");
    machine.ok(&["destroy", "tank/data@second", "--yes"]);
    assert!(
        machine
            .error(&["cat", "tank/data@second/file"], 1)
            .contains("terrace list -t snapshot")
    );
}

#[test]
fn a_full_pool_says_so_and_takes_deletions() {
    let machine = Machine::new();
    let tier = format!("only={}:64M", machine.text("only.img"));
    machine.ok(&["pool", "create", "small", "--tier", &tier, "-o", "memory=32M"]);
    machine.ok(&["fs", "create", "small/data", "-o", "compression=off"]);
    let mut noise = Vec::with_capacity(100 << 20);
    let mut state = 99u64;
    while noise.len() < 100 << 20 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        noise.extend_from_slice(&state.to_le_bytes());
    }
    machine.run_with(&["put", "small/data/kept"], b"kept");
    let output = machine.run_with(&["put", "small/data/large"], &noise);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(
        line.contains("full") || line.to_lowercase().contains("space") || line.contains("room"),
        "{line}"
    );
    assert_eq!(machine.ok(&["cat", "small/data/kept"]), "kept");
    machine.ok(&["destroy", "small/data", "--yes"]);
    machine.ok(&["fs", "create", "small/again"]);
    machine.ok(&["scrub", "small", "--wait"]);
}

/// With no directory to go into, each would have been written over the one before.
#[test]
fn several_sources_go_into_a_directory_alone() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    fs::create_dir(machine.path("dir")).unwrap();
    for name in ["one", "two"] {
        fs::write(machine.path(name), name).unwrap();
    }
    machine.run_with(&["put", "tank/data/file"], b"as it was");
    for target in ["tank/data/new", "tank/data/file"] {
        let line = machine.error(&["put", target, "one", "two"], 1);
        assert!(line.contains("a directory is meant"), "{line}");
    }
    machine.error(&["put", "tank/data/new/", "one"], 1);
    let line = machine.error(&["put", "tank/data", "one", "-"], 2);
    assert!(line.contains("standard input"), "{line}");
    assert_eq!(machine.ok(&["ls", "tank/data"]), "file\n");
    assert_eq!(machine.ok(&["cat", "tank/data/file"]), "as it was");
    machine.ok(&["put", "tank/data/dir/", "dir"]);
    machine.ok(&["put", "tank/data/dir/", "one"]);
    machine.ok(&["put", "tank/data/dir", "one", "two"]);
    assert_eq!(machine.ok(&["ls", "tank/data/dir"]), "one\ntwo\n");
}
