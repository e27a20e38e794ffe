//! What scripts rely on: JSON keys, exit statuses, one-line errors, help.

#![allow(clippy::unwrap_used)]

use crate::harness;

use harness::Machine;
use serde_json::{Value, json};

fn keys(value: &Value, wanted: &str) {
    let object = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    for key in wanted.split(' ') {
        assert!(object.contains_key(key), "'{key}' is missing in {value}");
    }
}

#[test]
fn status_has_the_keys_of_the_interface() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "durability=ram"]);
    let status = machine.json(&["status", "tank"]);
    keys(
        &status,
        "pool state daemon_pid checkpoint size_bytes used_bytes logical_bytes unique_bytes stored_bytes dedup_ratio \
         compression_ratio pending_free_bytes reserve_bytes memory tiers jobs datasets",
    );
    keys(&status["memory"], "budget_bytes used_bytes");
    let memory = |field: &str| status["memory"][field].as_u64().unwrap();
    let parts = [
        "dirty_bytes",
        "cache_bytes",
        "record_bytes",
        "table_bytes",
        "append_bytes",
        "object_bytes",
        "heat_bytes",
        "front_end_bytes",
        "ledger_bytes",
    ];
    assert_eq!(parts.map(memory).iter().sum::<u64>(), memory("used_bytes"));
    assert!(memory("resident_bytes") > memory("used_bytes") && memory("record_bytes") > 0);
    keys(
        &status["tiers"][1],
        "name size_bytes used_bytes live_bytes devices",
    );
    keys(
        &status["tiers"][0]["devices"][0],
        "path state size_bytes used_bytes read_errors write_errors checksum_errors",
    );
    assert_eq!(status["pool"], "tank");
    assert_eq!(status["state"], "online");
    assert_eq!(status["daemon_pid"], machine.daemon_pid("tank"));
    assert_eq!(status["memory"]["budget_bytes"], 32 << 20);
    assert_eq!(
        (&status["tiers"][0]["name"], &status["tiers"][1]["name"]),
        (&json!("fast"), &json!("slow"))
    );
    let data = &status["datasets"][1];
    assert_eq!(
        (&data["name"], &data["durability"]),
        (&json!("tank/data"), &json!("ram"))
    );
    assert!(
        data["durability_detail"]
            .as_str()
            .unwrap()
            .contains("lost on a crash")
    );
    // One pool needs no name.
    assert_eq!(machine.json(&["status"])["pool"], "tank");
    assert!(
        machine.ok(&["status"]).contains("durability=ram")
            || machine.ok(&["status"]).contains("lost on a crash")
    );
}

#[test]
fn scrub_where_and_lists_have_their_keys() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.run_with(&["put", "tank/data/file"], &b"abc".repeat(100_000));
    let found = machine.json(&["where", "tank/data/file"]);
    keys(&found, "path bytes_by_tier heat pin reason next_move");
    keys(&found["bytes_by_tier"], "fast slow");
    assert!(found["bytes_by_tier"]["fast"].as_u64().unwrap() > 0);
    keys(
        &machine.json(&["where", "tank/data"]),
        "path bytes_by_tier heat pin reason next_move",
    );
    machine.json(&["scrub", "tank", "--wait"]);
    let jobs = machine.json(&["jobs", "tank"]);
    let scrub = jobs
        .as_array()
        .unwrap()
        .iter()
        .find(|job| job["kind"] == "scrub")
        .unwrap();
    keys(
        scrub,
        "id kind state reason done_bytes total_bytes rate eta_seconds started",
    );
    assert_eq!(scrub["state"], "done");
    assert_eq!(scrub["done_bytes"], scrub["total_bytes"]);
    keys(
        &machine.json(&["list"])[0],
        "name type used_bytes available_bytes referenced_bytes created",
    );
    keys(
        &machine.json(&["iostat", "tank"])[0],
        "pool tier path reads writes read_bytes written_bytes",
    );
    let events = machine.json(&["events", "tank"]);
    keys(&events[0], "pool id time kind text");
    let log = machine.json(&["command-log", "tank"]);
    let logged = log
        .as_array()
        .unwrap()
        .iter()
        .any(|entry| entry["command"] == "terrace fs create tank/data");
    assert!(logged, "{log}");
    let checks = machine.json(&["doctor"]);
    keys(&checks[0], "name state found advice");
}

#[test]
fn properties_are_numbers_where_they_are_numbers() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&[
        "fs",
        "create",
        "tank/a",
        "-o",
        "compression=zstd-5",
        "-o",
        "quota=10M",
    ]);
    machine.ok(&["fs", "create", "tank/a/b"]);
    let value = |property: &str, name: &str| machine.json(&["get", property, name])[0]["value"].clone();
    assert_eq!(value("compression", "tank/a/b"), "zstd-5");
    assert_eq!(
        machine.json(&["get", "compression", "tank/a/b"])[0]["source"],
        "inherited from tank/a"
    );
    assert_eq!(value("quota", "tank/a"), 10 << 20);
    machine.ok(&["set", "compression=off", "user:owner=me", "tank/a/b"]);
    assert_eq!(value("compression", "tank/a/b"), "off");
    assert_eq!(value("user:owner", "tank/a/b"), "me");
    machine.ok(&["inherit", "compression", "tank/a/b"]);
    assert_eq!(value("compression", "tank/a/b"), "zstd-5");
    machine.ok(&["rename", "tank/a", "tank/c"]);
    assert_eq!(value("quota", "tank/c"), 10 << 20);
    assert!(machine.error(&["destroy", "tank/c", "--yes"], 1).contains("-r"));
    let plan = machine.json(&["destroy", "tank/c", "-r", "--dry-run"]);
    assert_eq!(plan["datasets"].as_array().unwrap().len(), 2);
    machine.ok(&["destroy", "tank/c", "-r", "--yes"]);
    assert_eq!(machine.json(&["list"]).as_array().unwrap().len(), 1);
}

#[test]
fn mistakes_get_one_line_and_the_right_status() {
    let machine = Machine::new();
    assert!(machine.error(&["nonsense"], 2).contains("terrace help"));
    assert!(machine.error(&["pool", "create", "tank"], 2).contains("--tier"));
    let line = machine.error(&["volume", "create", "tank/v", "64M"], 2);
    assert!(
        line.contains("usage: terrace volume create") && line.contains("--size"),
        "{line}"
    );
    assert!(machine.error(&["status", "tank"], 1).contains("pool create"));
    assert!(machine.error(&["status"], 1).contains("pool create"));
    assert!(
        machine
            .error(&["fs", "create", "../x/y"], 2)
            .contains("no name for a pool")
    );
    assert!(
        machine
            .error(&["pool", "create", "tank", "--tier", "fast=x:1Q"], 2)
            .contains("size")
    );
    assert!(
        machine
            .error(&["pool", "create", "tank", "--tier", "fast=s3://b/x"], 2)
            .contains("bucket")
    );
    machine.make_pool();
    assert!(machine.error(&["fs", "create", "tank"], 2).contains("POOL/NAME"));
    assert!(machine.error(&["fs", "create", "tank/a/b"], 1).contains("tank/a"));
    assert!(
        machine
            .error(&["set", "nonsense=1", "tank"], 2)
            .contains("compression")
    );
    assert!(
        machine
            .error(&["get", "compression", "tank/none"], 1)
            .contains("terrace list")
    );
    assert!(machine.error(&["cat", "tank/none"], 1).contains("terrace ls"));
    assert!(machine.error(&["snapshot", "tank"], 2).contains("DATASET@NAME"));
    assert!(
        machine
            .error(&["destroy", "tank", "--yes"], 1)
            .contains("pool destroy")
    );
    assert!(
        machine
            .error(&["mount", "tank", "no/such/dir"], 1)
            .contains("mkdir")
    );
    // A snapshot has no property that could name the usual one.
    assert!(!machine.error(&["mount", "tank@then"], 2).contains("mountpoint"));
    assert!(
        machine
            .error(&["unmount", "no/such/dir"], 1)
            .contains("terrace mount")
    );
    assert!(
        machine
            .error(&["put", "tank/x", "no/such/file"], 1)
            .contains("no/such/file")
    );
}

#[test]
fn help_completions_and_man_pages_come_from_the_definitions() {
    let machine = Machine::new();
    assert!(machine.ok(&["help"]).contains("snapshot"));
    assert!(machine.ok(&["help", "pool", "create"]).contains("--tier"));
    assert!(machine.ok(&["--version"]).starts_with("terrace "));
    for shell in ["bash", "zsh", "fish"] {
        assert!(machine.ok(&["completions", shell]).contains("terrace"));
    }
    machine.ok(&["man", "man"]);
    let page = std::fs::read_to_string(machine.path("man/terrace-pool-create.1")).unwrap();
    assert!(page.contains("terrace\\-pool\\-create"), "{page}");
    // As it is typed, with what all commands take.
    assert!(
        page.contains("\\fBterrace pool create\\fR") && page.contains("\\fB\\-\\-json\\fR"),
        "{page}"
    );
    assert!(page.contains(env!("CARGO_PKG_VERSION")), "{page}");
    let page = std::fs::read_to_string(machine.path("man/terrace.1")).unwrap();
    assert!(!page.contains("terrace\\-help"), "{page}");
}

#[test]
fn files_are_moved_pinned_and_left_alone() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let content: Vec<u8> = (0..600_000u32)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    machine.run_with(&["put", "tank/data/file"], &content);
    let on = |tier: &str| {
        machine.json(&["where", "tank/data/file"])["bytes_by_tier"][tier]
            .as_u64()
            .unwrap()
    };
    assert!(on("fast") > 2 << 20 && on("slow") == 0);
    machine.ok(&["demote", "tank/data/file", "--wait"]);
    assert!(on("slow") > 0);
    machine.ok(&["promote", "tank/data/file", "--wait"]);
    assert!(on("fast") > 0);
    machine.ok(&["pin", "tank/data/file", "slow", "--wait"]);
    let found = machine.json(&["where", "tank/data/file"]);
    assert_eq!(found["pin"], "slow");
    machine.ok(&["unpin", "tank/data/file"]);
    assert_eq!(machine.json(&["where", "tank/data/file"])["pin"], json!(null));
    let jobs = machine.json(&["jobs"]);
    assert!(
        jobs.as_array().unwrap().iter().all(|job| job["state"] == "done"),
        "{jobs}"
    );
    assert!(
        machine
            .error(&["pin", "tank/data/file", "none"], 1)
            .contains("fast, slow")
    );
    assert!(
        machine
            .error(&["jobs", "cancel", "99"], 1)
            .contains("terrace jobs")
    );
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    assert_eq!(machine.json(&["status"])["migration"], false);
    assert_eq!(machine.run_with(&["cat", "tank/data/file"], b"").stdout, content);
    machine.ok(&["snapshot", "tank/data@kept"]);
    machine.ok(&["hold", "backup", "tank/data@kept"]);
    assert!(
        machine
            .error(&["destroy", "tank/data@kept", "--yes"], 1)
            .contains("terrace release")
    );
    let line = machine.error(&["release", "other", "tank/data@kept"], 1);
    assert!(line.contains("'terrace get holds tank/data@kept'"), "{line}");
    machine.ok(&["release", "backup", "tank/data@kept"]);
    machine.ok(&["destroy", "tank/data@kept", "--yes"]);
}
