//! A pool of which the end of the log lies only on devices that are missing: refused, with the way on; opened in the last state that can
//! be read when that is asked for.

#![allow(clippy::unwrap_used)]

mod harness;

use std::fs;

use harness::{Machine, noise};

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
            let started = machine.run(&["start", "tank", "--rewind", "--yes"]);
            let error = String::from_utf8_lossy(&started.stderr).into_owned();
            if started.status.success() {
                rewound += 1;
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
    machine.ok(&["start", "tank"]);
    assert!(machine.ok(&["ls", "tank/data"]).contains("file8"));
    machine.ok(&["stop", "tank"]);
}
