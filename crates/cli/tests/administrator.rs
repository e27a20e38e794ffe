//! What an administrator is told when something is wrong: damage by name and on one screen, what keeps a job from going on,
//! which devices are missing and how to go on without; and that a refused command changed nothing.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{fs, os::unix::fs::FileExt, process::Command};

use harness::{Machine, can_mount, noise, until};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn put(machine: &Machine, name: &str, bytes: usize, seed: u64) {
    fs::write(machine.path("content"), noise(bytes, seed)).unwrap();
    machine.ok(&["put", &format!("tank/data/{name}"), "content"]);
}

fn filesystem(machine: &Machine) {
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
}

#[test]
fn what_a_scrub_found_damaged_is_listed_and_the_status_fits_on_a_screen() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M"]);
    filesystem(&machine);
    let names: Vec<String> = (0..20).map(|at| format!("f{at:02}")).collect();
    for (at, name) in names.iter().enumerate() {
        put(&machine, name, MIB, 1 + at as u64);
    }
    machine.ok(&["stop", "tank"]);
    let image = fs::read(machine.path("a.img")).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(machine.path("a.img"))
        .unwrap();
    for at in 0..names.len() {
        for mark in 0..8 {
            let wanted = &noise(MIB, 1 + at as u64)[mark * MIB / 8..mark * MIB / 8 + 512];
            let place = image.windows(512).position(|window| window == wanted).unwrap();
            file.write_all_at(&[0xa5; 512], place as u64).unwrap();
        }
    }
    machine.ok(&["start", "tank"]);
    // A reader met it: the status says so, and what to do.
    machine.error_last(&["get", "tank/data/f07", "back"], 1);
    let status = machine.json(&["status", "tank"]);
    let detail = status["state_detail"].as_str().unwrap();
    assert!(
        detail.contains("a.img") && detail.contains("checksum errors") && detail.contains("scrub tank"),
        "{detail}"
    );
    machine.error_last(&["scrub", "tank", "--wait"], 1);
    let listed = machine.json(&["status", "tank", "--lost"]);
    let listed: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    let all: Vec<String> = names.iter().map(|name| format!("tank/data/{name}")).collect();
    assert_eq!(listed, all);
    let status = machine.json(&["status", "tank"]);
    assert_eq!(status["state"], "degraded");
    let detail = status["state_detail"].as_str().unwrap();
    assert!(
        detail.contains("tank/data/f00") && detail.contains("and 15 more") && detail.contains("--lost"),
        "{detail}"
    );
    let text = machine.ok(&["status", "tank"]);
    assert!(text.lines().count() < 40, "{text}");
    assert!(
        text.contains("and 12 more: 'terrace status tank --lost'"),
        "{text}"
    );
}

#[test]
fn a_pool_whose_devices_are_gone_says_how_many_and_how_to_go_on() {
    let machine = Machine::new();
    let tiers = [
        "--tier",
        "fast=a.img:96M,b.img:96M",
        "--tier",
        "slow=c.img:96M,d.img:96M",
    ];
    machine.ok(&[
        &["pool", "create", "tank"],
        &tiers[..],
        &["--copies", "fast=2", "--copies", "slow=2"],
    ]
    .concat());
    filesystem(&machine);
    put(&machine, "f", 4 * MIB, 1);
    machine.ok(&["stop", "tank"]);
    for gone in ["b.img", "d.img"] {
        fs::remove_file(machine.path(gone)).unwrap();
    }
    let error = machine.error(&["start", "tank"], 1);
    assert!(
        error.contains("b.img")
            && error.contains("1 more of its devices")
            && error.contains("terrace start tank --degraded"),
        "{error}"
    );
    let error = machine.error(&["verify", "tank"], 1);
    assert!(error.contains("terrace start tank --degraded"), "{error}");
    machine.ok(&["start", "tank", "--degraded"]);
    let status = machine.json(&["status", "tank"]);
    let detail = status["state_detail"].as_str().unwrap();
    assert!(detail.contains("b.img") && detail.contains("d.img"), "{detail}");
    machine.ok(&["stop", "tank"]);
    // What an import would do is said as it is.
    fs::remove_dir_all(machine.path("state")).unwrap();
    let search = machine.text("");
    let words = ["pool", "import", "--search", &search, "--degraded", "-n"];
    let said = machine.ok(&words);
    assert!(
        said.contains("tank: can be imported, although devices are missing"),
        "{said}"
    );
    let rows = machine.json(&words);
    assert_eq!(
        (&rows[0]["imported"], &rows[0]["importable"]),
        (&json!(false), &json!(true))
    );
}

#[test]
fn a_job_is_found_by_its_number_whichever_pool_has_it() {
    let machine = Machine::new();
    for pool in ["tank", "other"] {
        let (fast, slow) = (format!("fast={pool}-f.img:96M"), format!("slow={pool}-s.img:96M"));
        machine.ok(&["pool", "create", pool, "--tier", &fast, "--tier", &slow]);
        machine.ok(&["pool", "set", "migration=off", pool]);
    }
    filesystem(&machine);
    put(&machine, "f", 4 * MIB, 1);
    let job = machine.json(&["demote", "tank/data/f", "--no-wait"])["job"].to_string();
    machine.ok(&["jobs", "pause", &job]);
    let state = |machine: &Machine| machine.json(&["jobs", "tank"])[0]["state"].clone();
    assert_eq!(state(&machine), "paused");
    machine.ok(&["jobs", "resume", &job]);
    assert_eq!(state(&machine), "waiting");
    machine.error(&["jobs", "pause", "4711"], 1);
    // The other pool has one of that number as well: nobody guesses.
    machine.ok(&["fs", "create", "other/data"]);
    machine.ok(&["put", "other/data/f", "content"]);
    let other = machine.json(&["demote", "other/data/f", "--no-wait"])["job"].to_string();
    assert_eq!(other, job);
    let error = machine.error(&["jobs", "pause", &job], 2);
    assert!(
        error.contains("--pool") && error.contains("other, tank"),
        "{error}"
    );
    machine.ok(&["jobs", "cancel", &job, "--pool", "other"]);
    machine.ok(&["jobs", "cancel", &job]);
    assert_eq!(state(&machine), "cancelled");
}

#[test]
fn what_keeps_things_where_they_are_is_said() {
    let machine = Machine::new();
    machine.make_pool();
    filesystem(&machine);
    machine.ok(&["pool", "set", "migration=off", "tank"]);
    let text = machine.ok(&["status", "tank"]);
    assert!(
        text.contains("migration: off") && text.contains("migration=on tank"),
        "{text}"
    );
    for (name, seed) in [("d/f", 1), ("d/e/g", 2)] {
        let directory = std::path::Path::new(name).parent().unwrap();
        fs::create_dir_all(machine.path("tree").join(directory)).unwrap();
        fs::write(machine.path("tree").join(name), noise(2 * MIB, seed)).unwrap();
    }
    machine.ok(&["put", "tank/data", "tree"]);
    let job = machine.json(&["demote", "tank/data/tree/d", "--no-wait"])["job"].to_string();
    for below in ["tank/data/tree/d", "tank/data/tree/d/f", "tank/data/tree/d/e/g"] {
        let found = machine.json(&["where", below]);
        let reason = found["reason"].as_str().unwrap();
        assert!(
            reason.contains(&format!("job {job}")) && reason.contains("migration"),
            "{below}: {reason}"
        );
    }
    machine.ok(&["pool", "set", "migration=on", "tank"]);
    until("it is moved", || {
        machine.json(&["jobs", "tank"])[0]["state"] == "done"
    });
    // What has another pin beneath a pinned directory is no part of what its pin moves.
    machine.ok(&["pin", "tank/data/tree/d/f", "slow", "--wait"]);
    machine.ok(&["pin", "tank/data/tree/d", "fast", "--wait"]);
    let found = machine.json(&["where", "tank/data/tree/d"]);
    assert_eq!(
        found["reason"],
        "it is pinned to tier 'fast'; 2M beneath it have other pins"
    );
    let plan = machine.json(&["pin", "tank/data/tree/d", "fast", "-n"]);
    assert_eq!(plan["would_move_bytes"], json!(0), "{plan}");
}

#[test]
fn a_refused_change_of_a_tier_or_pool_changed_nothing() {
    let machine = Machine::new();
    machine.make_pool();
    let settings = |machine: &Machine| machine.json(&["tier", "list", "tank"])[0].clone();
    let before = settings(&machine);
    let error = machine.error(&["tier", "set", "promote_after=9", "hold=5%", "tank/fast"], 1);
    assert!(error.contains("low_water"), "{error}");
    assert_eq!(settings(&machine), before);
    // The level of a hold stays above what the tier is emptied to.
    machine.ok(&["tier", "set", "hold=90%", "tank/fast"]);
    machine.error(
        &["tier", "set", "low_water=92%", "high_water=95%", "tank/fast"],
        1,
    );
    assert_eq!(settings(&machine)["low_water"], before["low_water"]);
    machine.ok(&[
        "tier",
        "set",
        "low_water=92%",
        "high_water=95%",
        "hold=94%",
        "tank/fast",
    ]);
    for property in ["promote_after", "demote_after", "rate_limit", "window", "hold"] {
        machine.ok(&["tier", "set", &format!("{property}=off"), "tank/fast"]);
    }
    let now = settings(&machine);
    assert_eq!(
        (&now["promote_after"], &now["hold"], &now["window"]),
        (&json!(0), &Value::Null, &json!(""))
    );
    let listed = machine.ok(&["tier", "list", "tank"]);
    assert!(
        listed.lines().nth(1).unwrap().contains("never  never"),
        "{listed}"
    );
    machine.error(&["pool", "set", "comment=x", "migration=maybe", "tank"], 2);
    assert_eq!(machine.json(&["pool", "get", "comment", "tank"])[0]["value"], "");
}

#[test]
fn a_tier_keeps_as_many_copies_as_it_is_told() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "fast=one:96M"]);
    filesystem(&machine);
    put(&machine, "before", 4 * MIB, 7);
    let refused = machine.error(&["tier", "set", "copies=2", "tank/fast"], 1);
    assert!(
        refused.contains("the tier has 1") && refused.contains("terrace pool add tank fast="),
        "{refused}"
    );
    machine.ok(&["pool", "add", "tank", "fast=two:96M"]);
    machine.error(&["tier", "set", "copies=5", "tank/fast"], 2);
    let told = machine.ok(&["tier", "set", "copies=2", "tank/fast"]);
    assert!(told.contains("terrace scrub tank"), "{told}");
    assert_eq!(machine.json(&["tier", "list", "tank"])[0]["copies"], json!(2));
    machine.ok(&["scrub", "tank", "--wait"]);
    machine.ok(&["stop", "tank"]);
    // Either device is enough for all of it, what was there before too.
    for gone in ["one", "two"] {
        let away = machine.path("away");
        fs::rename(machine.path(gone), &away).unwrap();
        machine.ok(&["start", "tank", "--degraded"]);
        machine.ok(&["get", "tank/data/before", "back"]);
        assert!(
            fs::read(machine.path("back")).unwrap() == noise(4 * MIB, 7),
            "without {gone}"
        );
        fs::remove_file(machine.path("back")).unwrap();
        machine.ok(&["stop", "tank"]);
        fs::rename(&away, machine.path(gone)).unwrap();
        machine.ok(&["start", "tank"]);
        until("both are up to date", || {
            machine.json(&["status", "tank"])["state"] == "online"
        });
        machine.ok(&["stop", "tank"]);
    }
    machine.ok(&["start", "tank"]);
    let told = machine.ok(&["tier", "set", "copies=1", "tank/fast"]);
    assert!(told.contains("until it is written anew"), "{told}");
}

#[test]
fn heat_that_was_cleared_stays_away_after_a_crash() {
    let machine = Machine::new();
    machine.make_pool();
    filesystem(&machine);
    put(&machine, "f", 8 * MIB, 1);
    // A clean stop keeps it.
    machine.ok(&["stop", "tank"]);
    let warm = |machine: &Machine| {
        let devices = machine.json(&["tier", "devices", "tank"]);
        let regions = devices.as_array().unwrap().iter();
        regions
            .map(|device| device["warm_regions"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(warm(&machine), 8);
    machine.ok(&["tier", "clear-heat", "tank"]);
    machine.kill_daemon("tank");
    assert_eq!(warm(&machine), 0);
}

#[test]
fn what_a_replacement_would_come_to_is_said_beforehand() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M"]);
    filesystem(&machine);
    put(&machine, "f", 32 * MIB, 1);
    let plan = machine.json(&["pool", "replace", "tank", "a.img", "b.img:96M", "-n"]);
    assert_eq!(plan["obstacle"], "");
    assert!(plan["live_bytes"].as_u64().unwrap() >= 32 << 20, "{plan}");
    let error = machine.error(&["pool", "replace", "tank", "a.img", "b.img:24M", "-n"], 1);
    assert!(error.contains("replace device"), "{error}");
    let error = machine.error(&["pool", "replace", "tank", "a.img", "a.img", "-n"], 1);
    assert!(error.contains("is a device of this pool already"), "{error}");
    assert!(!machine.path("b.img").exists(), "a dry run made it");
    let devices = machine.json(&["status", "tank"])["tiers"][0]["devices"].clone();
    assert_eq!(devices.as_array().unwrap().len(), 1);
}

#[test]
fn one_is_said_to_be_one_and_what_is_at_the_top_to_stay_there() {
    let machine = Machine::new();
    machine.make_pool();
    filesystem(&machine);
    for (name, said) in [("f", "tank/data: 1 file, "), ("g", "tank/data: 2 files, ")] {
        put(&machine, name, MIB, 1);
        let found = machine.ok(&["where", "tank/data"]);
        assert!(found.starts_with(said), "{found}");
    }
    for more in [&[][..], &["-n"]] {
        let command = [&["promote", "tank/data/f"][..], more].concat();
        let error = machine.error(&command, 1);
        assert!(
            error.contains("no faster tier") && error.contains("'terrace tier list'"),
            "{error}"
        );
    }
}

#[test]
fn a_replacement_that_is_refused_is_refused_with_a_dry_run_in_the_same_words() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    filesystem(&machine);
    put(&machine, "f", MIB, 1);
    let large = std::fs::File::create(machine.path("large.img")).unwrap();
    large.set_len(200 * MIB as u64).unwrap();
    let mut front = vec![0; 200 * MIB];
    front[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(machine.path("ext.img"), &front).unwrap();
    std::fs::create_dir_all(machine.path("full/of")).unwrap();
    for (new, words) in [
        ("small.img:1M", "this pool needs devices of at least"),
        ("small.img:2M", "this pool needs devices of at least"),
        ("small.img", "give a size to have it made"),
        ("large.img:100M", "more than the"),
        ("ext.img", "an ext2, ext3 or ext4 filesystem"),
        ("full/", "the directory is not empty"),
        ("/dev/terrace-no-such-device:96M", "there is no such device"),
        ("b.img", "is a device of this pool already"),
    ] {
        let refused = |more: &[&str]| {
            let command = [&["pool", "replace", "tank", "a.img", new][..], more].concat();
            machine.error(&command, 1)
        };
        let tried = refused(&["-n"]);
        assert!(tried.contains(words), "{new}: {tried}");
        assert_eq!(tried, refused(&[]), "{new}");
        assert!(!machine.path("small.img").exists(), "{new}");
    }
    // What is not refused makes nothing either.
    for new in ["large.img", "new/:96M", "ext.img --force"] {
        let words: Vec<&str> = new.split(' ').collect();
        let command = [&["pool", "replace", "tank", "a.img", "-n"][..], &words].concat();
        assert_eq!(machine.json(&command)["obstacle"], "", "{new}");
    }
    assert!(!machine.path("new").exists(), "a dry run made it");
    let devices = machine.json(&["status", "tank"])["tiers"][0]["devices"].clone();
    assert_eq!(devices.as_array().unwrap().len(), 2);
}

#[test]
fn what_adding_devices_would_come_to_is_said_and_what_would_be_refused_is_refused() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:96M,b.img:96M"]);
    let large = std::fs::File::create(machine.path("large.img")).unwrap();
    large.set_len(200 * MIB as u64).unwrap();
    let mut front = vec![0; 200 * MIB];
    front[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(machine.path("ext.img"), &front).unwrap();
    std::fs::create_dir_all(machine.path("full/of")).unwrap();
    for (more, words) in [
        (&["only=small.img:2M"][..], "this pool needs devices of at least"),
        (&["only=small.img"], "give a size to have it made"),
        (&["only=large.img:100M"], "more than the"),
        (&["only=ext.img"], "an ext2, ext3 or ext4 filesystem"),
        (&["only=full/"], "the directory is not empty"),
        (
            &["only=/dev/terrace-no-such-device:96M"],
            "there is no such device",
        ),
        (&["only=b.img"], "is a device of this pool already"),
        (&["other=small.img:96M"], "say where it goes"),
        (&["only=small.img:96M", "--after", "only"], "exists already"),
        (
            &["other=small.img:96M", "--after", "none"],
            "there is no tier 'none'",
        ),
        (
            &["other=small.img:96M", "--after", "only", "--copies", "2"],
            "give it that many devices",
        ),
        (&["only=small.img:96M", "--copies", "2"], "keeps 1 copies"),
    ] {
        let refused = |dry: &[&str]| machine.error(&[&["pool", "add", "tank"], more, dry].concat(), 1);
        let tried = refused(&["-n"]);
        assert!(tried.contains(words), "{more:?}: {tried}");
        assert_eq!(tried, refused(&[]), "{more:?}");
        assert!(!machine.path("small.img").exists(), "{more:?}");
    }
    let twice = machine.error(&["pool", "add", "tank", "only=c.img:96M,c.img:96M", "-n"], 1);
    assert!(twice.contains("is a device of this pool already"), "{twice}");
    // What is not refused makes nothing either.
    let status = machine.json(&["status", "tank"])["tiers"].clone();
    for (more, made) in [
        (&["only=large.img"][..], [false].as_slice()),
        (&["only=ext.img", "--force"], &[false]),
        (
            &["new=c.img:96M,new/:96M", "--before", "only", "--copies", "2"],
            &[true, true],
        ),
    ] {
        let command = [&["pool", "add", "tank", "-n"], more].concat();
        let plan = machine.json(&command);
        let plan = plan.as_array().unwrap();
        assert!(
            plan.iter().map(|device| &device["made"]).eq(made),
            "{more:?}: {plan:?}"
        );
        assert!(plan[0]["size_bytes"].as_u64().unwrap() > 90 * MIB as u64);
        assert!(machine.ok(&command).contains("nothing was changed"));
    }
    assert!(!machine.path("c.img").exists() && !machine.path("new").exists());
    assert_eq!(machine.json(&["status", "tank"])["tiers"], status);
    let log = machine.ok(&["command-log", "tank"]);
    assert!(!log.contains("-n"), "{log}");
}

#[test]
fn a_mount_that_somebody_took_away_does_not_keep_the_pool_from_stopping() {
    if !can_mount() {
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    filesystem(&machine);
    let place = machine.text("m");
    fs::create_dir(&place).unwrap();
    machine.ok(&["mount", "tank/data", &place]);
    // Another namespace keeps it alive, as a service or a container does.
    let other = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "echo; exec sleep 600",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut other) = other else { return };
    let mut line = [0; 1];
    let begun = std::io::Read::read(other.stdout.as_mut().unwrap(), &mut line).unwrap() == 1;
    let taken = begun.then(|| Command::new("umount").arg(&place).status().unwrap().success());
    let stopped = begun.then(|| machine.run(&["stop", "tank", "--force"]));
    other.kill().unwrap();
    other.wait().unwrap();
    if let Some(stopped) = stopped {
        assert_eq!(taken, Some(true));
        let said = String::from_utf8_lossy(&stopped.stderr);
        assert!(stopped.status.success(), "{said}");
    }
}
