//! Pools that accept no writes: what `status` says of them, and that `pool destroy --force` ends them whatever does not work.
//! Where small filesystems cannot be mounted (not root) the tests say so and check nothing.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, path::Path};

use harness::{Machine, can_mount, must, noise};

/// A filesystem in memory that goes with the test.
struct Small(String);

impl Small {
    fn of(machine: &Machine, options: &str) -> Self {
        let at = machine.text("small");
        fs::create_dir(&at).unwrap();
        must("mount", &["-t", "tmpfs", "-o", options, "none", &at]);
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["-l", &self.0])
            .status();
    }
}

/// What an import would find there.
#[track_caller]
fn found(machine: &Machine, directory: &str) -> String {
    let rows = machine.json(&[
        "pool",
        "import",
        "--search",
        directory,
        "--destroyed",
        "--degraded",
        "-n",
    ]);
    rows[0]["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_pool_whose_log_cannot_be_written_is_destroyed_by_force() {
    if !can_mount() {
        eprintln!("nothing can be mounted here; nothing is checked");
        return;
    }
    let machine = Machine::new();
    let small = Small::of(&machine, "size=48M");
    machine.run(&["pool", "create", "tank", "--tier", "only=small/a.img:256M"]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    fs::write(machine.path("content"), noise(64 << 20, 1)).unwrap();
    machine.error_last(&["put", "tank/data/file", "content"], 1);

    // It is no pool without a daemon, and says so.
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "stopped");
    assert_ne!(status["daemon_pid"], 0);
    let text = machine.ok(&["status", "tank"]);
    for words in [
        "refuses writes (its daemon runs)",
        "'terrace stop tank --force'",
        "'terrace start tank'",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("room:"), "deleting files does not help: {text}");
    for words in [
        &["pool", "list"][..],
        &["top", "tank", "-n", "1", "--interval", "100ms"],
    ] {
        let text = machine.ok(words);
        assert!(text.contains("refuses writes"), "{text}");
    }

    machine.ok(&["pool", "destroy", "tank", "--yes", "--force"]);
    assert_eq!(machine.json(&["pool", "list"]).as_array().unwrap().len(), 0);
    assert!(
        !machine.path("state/run/tank.pid").exists(),
        "its daemon has ended"
    );
    assert_eq!(found(&machine, "small"), "destroyed");
    machine.error(&["pool", "import", "--search", "small"], 1);
    drop(small);
}

#[test]
fn a_device_that_refuses_its_label_keeps_no_pool_from_being_destroyed() {
    if !can_mount() {
        eprintln!("nothing can be mounted here; nothing is checked");
        return;
    }
    let machine = Machine::new();
    let small = Small::of(&machine, "size=300M");
    fs::create_dir(machine.path("beside")).unwrap();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "only=small/a.img:128M,beside/b.img:128M",
    ]);
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["stop", "tank"]);
    must("mount", &["-o", "remount,ro", &small.0]);
    let error = machine.error_last(&["pool", "destroy", "tank", "--yes"], 1);
    assert!(error.contains("--force"), "{error}");
    let error = machine.error_last(&["pool", "destroy", "tank", "--yes", "--force"], 1);
    assert!(
        error.contains("small/a.img") && error.contains("Read-only") && !error.contains("b.img"),
        "{error}"
    );
    assert!(error.contains("pool create --force"), "{error}");
    assert_eq!(machine.json(&["pool", "list"]).as_array().unwrap().len(), 0);
    assert_eq!(found(&machine, "beside"), "destroyed");
    assert_eq!(found(&machine, "small"), "active");
    must("mount", &["-o", "remount,rw", &small.0]);
    assert!(Path::new(&machine.path("small/a.img")).exists());
    drop(small);
}
