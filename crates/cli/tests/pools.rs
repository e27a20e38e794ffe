//! Pools over their whole life, from the command line: made, listed, refused, stopped, exported, imported elsewhere,
//! destroyed.

#![allow(clippy::unwrap_used)]

use crate::harness;

use harness::{Machine, group_and_session};
use serde_json::json;

#[test]
fn a_pool_lives_its_life() {
    let machine = Machine::new();
    machine.make_pool();
    let pools = machine.json(&["pool", "list"]);
    assert_eq!(pools[0]["name"], "tank");
    assert_eq!(pools[0]["state"], "stopped");
    assert!(pools[0]["size_bytes"].as_u64().unwrap() > 200 << 20);

    machine.ok(&["fs", "create", "tank/data", "-o", "compression=zstd-3"]);
    assert_eq!(machine.json(&["pool", "list"])[0]["state"], "online");
    let started = machine.json(&["start", "tank"]);
    assert_eq!(
        started["daemon_pid"],
        machine.daemon_pid("tank"),
        "a second start finds the first daemon"
    );

    machine.ok(&["stop", "tank"]);
    assert_eq!(machine.json(&["pool", "list"])[0]["daemon_pid"], json!(null));
    let names = machine.json(&["list", "-r", "tank"]);
    let names: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].clone())
        .collect();
    assert_eq!(names, ["tank", "tank/data"]);

    let line = machine.error(&["pool", "destroy", "tank"], 1);
    assert!(
        line.contains("cannot be undone") && line.contains("--yes"),
        "{line}"
    );
    assert!(
        machine
            .ok(&["pool", "destroy", "tank", "--dry-run"])
            .contains("fast.img")
    );
    machine.ok(&["pool", "destroy", "tank", "--yes"]);
    assert_eq!(machine.json(&["pool", "list"]), json!([]));
    let line = machine.error(&["pool", "import", "--search", "."], 1);
    assert!(line.contains("no device of a pool"), "{line}");
    machine.ok(&["pool", "import", "--search", ".", "--destroyed"]);
    assert_eq!(machine.json(&["list", "tank/data"])[0]["name"], "tank/data");
}

#[test]
fn a_wrong_property_of_a_new_pool_leaves_its_devices_as_they_were() {
    let machine = Machine::new();
    let disk = machine.path("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let tier = format!("disk={}", disk.display());
    for wrong in ["nonsense=1", "compression=best", "memory=1", "pin=slow"] {
        machine.error(&["pool", "create", "tank", "--tier", &tier, "-o", wrong], 2);
    }
    // Nor does one that the pool has no room for, whatever was insisted on.
    machine.ok(&["pool", "create", "old", "--tier", &tier]);
    machine.ok(&["stop", "old"]);
    let before = std::fs::read(&disk).unwrap();
    let create = ["pool", "create", "tank", "--tier", &tier, "--force"];
    for wrong in [
        &["-o", "reservation=1G"][..],
        &["-o", "quota=1M", "-o", "reservation=2M"],
    ] {
        let line = machine.error(&[&create[..], wrong].concat(), 1);
        assert!(line.contains("reservation"), "{line}");
        assert!(
            std::fs::read(&disk).unwrap() == before,
            "{wrong:?}: it was written to"
        );
    }
    let made = machine.path("made.img");
    let tier = format!("disk={}:64M", made.display());
    machine.error(
        &["pool", "create", "tank", "--tier", &tier, "-o", "reservation=1G"],
        1,
    );
    assert!(!made.exists());
    machine.ok(&["pool", "destroy", "old", "--yes"]);
    machine.ok(&[
        &create[..],
        &["-o", "reservation=4M", "-o", "quota=8M", "-o", "pin=disk"],
    ]
    .concat());
}

#[test]
fn the_daemon_is_out_of_reach_of_the_terminal_and_in_its_session() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    let daemon = machine.daemon_pid("tank");
    let (group, session) = group_and_session(&daemon.to_string());
    let (own_group, own_session) = group_and_session("self");
    assert_ne!(group, own_group, "an interrupt of the terminal would end it");
    assert_eq!(session, own_session);
    // What a terminal that goes away sends.
    let group = rustix::process::Pid::from_raw(group).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::HUP).unwrap();
    machine.ok(&["list"]);
    assert_eq!(machine.daemon_pid("tank"), daemon);
}

#[test]
fn an_exported_pool_is_found_by_its_labels_alone() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.run_with(&["put", "tank/data/file"], b"kept");
    machine.ok(&["pool", "export", "tank"]);
    assert!(machine.error(&["start", "tank"], 1).contains("import"));
    std::fs::create_dir(machine.path("elsewhere")).unwrap();
    std::fs::rename(machine.path("fast.img"), machine.path("elsewhere/zz")).unwrap();
    std::fs::rename(machine.path("slow.img"), machine.path("elsewhere/aa")).unwrap();
    // Everything this machine knew is lost.
    std::fs::remove_dir_all(machine.path("state")).unwrap();
    let found = machine.json(&["pool", "import", "--search", "elsewhere", "--dry-run"]);
    assert_eq!(found[0]["name"], "tank");
    assert_eq!(machine.json(&["pool", "list"]), json!([]));
    let imported = machine.json(&["pool", "import", "--search", "elsewhere"]);
    assert_eq!(imported[0]["imported"], true);
    assert_eq!(machine.ok(&["cat", "tank/data/file"]), "kept");
}

#[test]
fn a_pool_with_a_device_missing_is_not_imported() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["pool", "export", "tank"]);
    std::fs::create_dir(machine.path("half")).unwrap();
    std::fs::rename(machine.path("fast.img"), machine.path("half/fast.img")).unwrap();
    let line = machine.error(&["pool", "import", "--search", "half"], 1);
    assert!(line.contains("missing") && line.contains("slow.img"), "{line}");
    machine.ok(&["pool", "import", "half/fast.img", "slow.img"]);
}

#[test]
fn devices_of_a_pool_are_not_taken_for_another() {
    let machine = Machine::new();
    machine.make_pool();
    let tier = format!("only={}", machine.text("fast.img"));
    let line = machine.error(&["pool", "create", "other", "--tier", &tier], 1);
    assert!(line.contains("tank") && line.contains("--force"), "{line}");
    let tier = format!("only={}:80M", machine.text("new.img"));
    let line = machine.error(&["pool", "create", "tank", "--tier", &tier], 1);
    assert!(line.contains("already"), "{line}");
    machine.ok(&["list"]);
}

#[test]
fn a_running_pool_s_devices_are_held() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    let tier = format!("only={}", machine.text("fast.img"));
    let line = machine.error(&["pool", "create", "other", "--tier", &tier, "--force"], 1);
    assert!(line.contains("fast.img"), "{line}");
    let line = machine.error(&["start", "tank", "--foreground"], 1);
    assert!(line.contains("holds it already"), "{line}");
}

#[test]
fn properties_of_pools_are_checked_and_kept() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["pool", "set", "migration=off", "commit_interval=2s", "tank"]);
    machine.ok(&["stop", "tank"]);
    let row = machine.json(&["pool", "get", "migration,memory", "tank"]);
    assert_eq!(row[0]["value"], "off");
    assert_eq!(row[0]["source"], "local");
    assert_eq!(row[1]["value"], "32M");
    assert!(
        machine
            .error(&["pool", "set", "migration=maybe", "tank"], 2)
            .contains("on or off")
    );
    assert!(
        machine
            .error(&["pool", "set", "nonsense=1", "tank"], 2)
            .contains("commit_interval")
    );
    assert!(
        machine
            .error(&["pool", "get", "nonsense", "tank"], 2)
            .contains("memory")
    );
    assert!(
        machine
            .error(&["pool", "set", "memory", "tank"], 2)
            .contains("PROPERTY=VALUE")
    );
    machine.ok(&[
        "tier",
        "set",
        "high_water=90%",
        "low_water=50%",
        "landing=on",
        "tank/slow",
    ]);
    let tiers = machine.json(&["tier", "list", "tank"]);
    assert_eq!(
        (&tiers[1]["high_water"], &tiers[1]["landing"]),
        (&json!(0.9), &json!(true))
    );
    assert!(
        machine
            .error(&["tier", "set", "high_water=2", "tank/slow"], 2)
            .contains("fill level")
    );
    assert!(
        machine
            .error(&["tier", "set", "high_water=90%", "tank/none"], 1)
            .contains("slow")
    );
}

/// A pool that was destroyed from elsewhere, or whose devices are gone, does not stay in the list for ever.
#[test]
fn what_is_left_of_a_pool_can_be_forgotten() {
    let machine = Machine::new();
    let other = Machine::new();
    machine.make_pool();
    machine.ok(&["stop", "tank"]);
    let (fast, slow) = (machine.text("fast.img"), machine.text("slow.img"));
    other.ok(&["pool", "import", &fast, &slow]);
    other.ok(&["pool", "destroy", "tank", "--yes"]);
    let line = machine.error(&["list", "tank"], 1);
    assert!(line.contains("'terrace pool import --destroyed'"), "{line}");
    machine.ok(&["pool", "destroy", "tank", "--yes"]);
    assert_eq!(machine.json(&["pool", "list"]), json!([]));

    machine.ok(&["pool", "import", "--destroyed", &fast, &slow]);
    machine.ok(&["stop", "tank"]);
    std::fs::remove_file(&fast).unwrap();
    std::fs::remove_file(&slow).unwrap();
    let line = machine.error(&["pool", "destroy", "tank", "--yes"], 1);
    assert!(line.contains("--force"), "{line}");
    machine.ok(&["pool", "destroy", "tank", "--yes", "--force"]);
    assert_eq!(machine.json(&["pool", "list"]), json!([]));
}

#[test]
fn a_device_that_is_in_use_elsewhere_is_told_with_how_to_find_its_user() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    machine.ok(&["stop", "tank"]);
    let held = terrace_device::open_path(&machine.path("b.img")).unwrap();
    let error = machine.error(&["start", "tank"], 1);
    let asks = format!("'fuser -v {}'", machine.text("b.img"));
    assert!(
        error.contains(&asks) && error.contains("another state directory"),
        "{error}"
    );
    drop(held);
    machine.ok(&["start", "tank"]);
    machine.ok(&["stop", "tank"]);
}
