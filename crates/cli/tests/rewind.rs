//! A pool of which the end of the log lies only on devices that are missing: refused, with the way on; opened in the last state that can
//! be read when that is asked for.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::FileExt};

use harness::{Machine, noise};

/// Places of the entries of the log on a device, in the order of writing as long as it went on in one segment.
fn log_entries(path: &std::path::Path) -> Vec<usize> {
    let content = fs::read(path).unwrap();
    let pages = content.chunks(4096).enumerate();
    pages
        .filter(|(_, page)| page.starts_with(b"TerrLog1"))
        .map(|(at, _)| at * 4096)
        .collect()
}

#[test]
fn a_log_that_is_damaged_in_the_middle_is_given_up_from_there_after_a_look() {
    let machine = Machine::new();
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        "only=a.img:128M",
        "-o",
        "memory=32M",
    ]);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    let put = |number: u64| {
        fs::write(machine.path("content"), noise(5 << 20, number)).unwrap();
        machine.ok(&["put", &format!("tank/data/file{number}"), "content"]);
    };
    (0..3).for_each(put);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    let before = log_entries(&machine.path("a.img"));
    (3..6).for_each(put);
    machine.kill_daemon("tank");
    let mut entries = log_entries(&machine.path("a.img"));
    entries.retain(|at| !before.contains(at));
    assert!(entries.len() > 1, "{entries:?}");
    let device = fs::OpenOptions::new()
        .write(true)
        .open(machine.path("a.img"))
        .unwrap();
    device.write_all_at(&[0; 4096], entries[0] as u64).unwrap();
    drop(device);
    let damaged = fs::read(machine.path("a.img")).unwrap();
    let error = machine.error(&["start", "tank"], 1);
    assert!(
        error.contains("the log is damaged") && error.contains("terrace start tank --rewind -n"),
        "{error}"
    );
    let outlook = machine.ok(&["start", "tank", "--rewind", "-n"]);
    assert!(
        outlook.contains("would give up") && outlook.contains("the log is damaged"),
        "{outlook}"
    );
    let outlook = machine.json(&["start", "tank", "--rewind", "-n"]);
    assert_eq!(outlook["rewind"]["gives_up"], true);
    let kept = outlook["rewind"]["files"].as_u64().unwrap();
    machine.error(&["start", "tank", "--rewind"], 1);
    assert!(
        fs::read(machine.path("a.img")).unwrap() == damaged,
        "it was only asked for"
    );
    machine.ok(&["start", "tank", "--rewind", "--yes"]);
    let files = machine.ok(&["ls", "tank/data"]);
    // With the root directories.
    let lines = files.lines().count() as u64;
    assert!((lines + 1..lines + 4).contains(&kept), "{kept}: {files}");
    let same = |number: u64| {
        machine.ok(&["get", &format!("tank/data/file{number}"), "back"]);
        assert!(
            fs::read(machine.path("back")).unwrap() == noise(5 << 20, number),
            "{number}"
        );
    };
    let names: Vec<u64> = (0..6)
        .filter(|number| files.contains(&format!("file{number}")))
        .collect();
    assert!(names.len() >= 3 && names.len() < 6, "{files}");
    names.iter().copied().for_each(same);
    // It goes on from there, also after a kill.
    put(9);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    same(9);
    names.iter().copied().for_each(same);
    machine.ok(&["stop", "tank"]);
    machine.ok(&["verify", "tank"]);
}

#[test]
fn the_end_of_a_log_that_is_gone_is_given_up_only_by_who_says_so() {
    let machine = Machine::new();
    let devices = ["a", "b", "c"];
    let tier = devices
        .map(|name| format!("{}:64M", machine.text(name)))
        .join(",");
    machine.ok(&[
        "pool",
        "create",
        "tank",
        "--tier",
        &format!("disk={tier}"),
        "-o",
        "memory=32M",
    ]);
    machine.ok(&["fs", "create", "tank/data"]);
    fs::write(machine.path("content"), noise(100_000, 1)).unwrap();
    let put = |number: u32| {
        machine.ok(&[
            "put",
            &format!("tank/data/file{number}"),
            &machine.text("content"),
        ])
    };
    (0..6).for_each(|number| drop(put(number)));
    // What is in the tables by now, and what is in the log alone.
    machine.ok(&["stop", "tank"]);
    machine.ok(&["start", "tank"]);
    (6..9).for_each(|number| drop(put(number)));
    machine.kill_daemon("tank");
    let away = |name: &str| machine.path(&format!("{name}.away"));
    let mut rewound = 0;
    for alone in devices {
        fs::copy(machine.path(alone), machine.path("kept")).unwrap();
        let others: Vec<_> = devices.into_iter().filter(|name| *name != alone).collect();
        for other in &others {
            fs::rename(machine.path(other), away(other)).unwrap();
        }
        let refused = machine.run(&["start", "tank", "--degraded"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        if said.contains("the end of the log") {
            for part in [
                &machine.text(others[0]),
                "terrace start tank --rewind",
                "--rebuild",
                "nothing was changed",
            ] {
                assert!(said.contains(part), "{said}");
            }
            let line = machine.error(&["start", "tank", "--rewind"], 1);
            assert!(
                line.contains("cannot be undone") && line.contains("--yes"),
                "{line}"
            );
            // A look says the same as the deed, and changes nothing.
            let before = fs::read(machine.path(alone)).unwrap();
            let looked = machine.run(&["start", "tank", "--rewind", "-n"]);
            let outlook = String::from_utf8(looked.stdout).unwrap();
            let found = machine.text(alone);
            let import = machine.run(&["pool", "import", &found, "--rewind", "-n", "--json"]);
            assert!(fs::read(machine.path(alone)).unwrap() == before, "a look wrote");
            let rows: serde_json::Value = serde_json::from_slice(&import.stdout).unwrap();
            assert_eq!(
                rows[0]["rewind"]["gives_up"] == serde_json::json!(true),
                looked.status.success(),
                "{rows}"
            );
            let started = machine.run(&["start", "tank", "--rewind", "--yes"]);
            assert_eq!(looked.status.success(), started.status.success(), "{outlook}");
            let error = String::from_utf8_lossy(&started.stderr).into_owned();
            if started.status.success() {
                rewound += 1;
                for part in [
                    "would give up what came to pool 'tank'",
                    " files and directories",
                    "nothing was changed",
                    &machine.text(others[0]),
                ] {
                    assert!(outlook.contains(part), "{part}: {outlook}");
                }
                let running = machine.error(&["start", "tank", "--rewind", "-n"], 1);
                assert!(running.contains("in use by its daemon"), "{running}");
                assert!(error.contains("came after it was given up"), "{error}");
                let files = machine.ok(&["ls", "tank/data"]);
                assert!(files.contains("file0") && !files.contains("file8"), "{files}");
                let status = machine.json(&["status", "tank"]);
                let detail = status["state_detail"].as_str().unwrap();
                assert_eq!(status["state"], "degraded");
                assert!(detail.contains("came after it was given up"), "{detail}");
                // It goes on from there, also after a kill.
                put(100);
                machine.kill_daemon("tank");
                machine.ok(&["start", "tank", "--degraded"]);
                assert!(machine.ok(&["ls", "tank/data"]).contains("file100"));
            } else {
                assert!(
                    error.contains("metadata") && error.contains("terrace start tank"),
                    "{error}"
                );
            }
        }
        let _ = machine.run(&["stop", "tank"]);
        fs::rename(machine.path("kept"), machine.path(alone)).unwrap();
        for other in &others {
            fs::rename(away(other), machine.path(other)).unwrap();
        }
    }
    assert!(rewound > 0, "no device was without the end of the log");
    // All as it was.
    let outlook = machine.ok(&["start", "tank", "--rewind", "-n"]);
    assert!(outlook.contains("would give up nothing ("), "{outlook}");
    machine.error(&["start", "tank", "-n"], 2);
    machine.ok(&["start", "tank"]);
    assert!(machine.ok(&["ls", "tank/data"]).contains("file8"));
    machine.ok(&["stop", "tank"]);
}
