//! What an administrator meets at the command line: `top`, stopped pools, dry runs, exit statuses, progress, `readonly`.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::process::Command;

use harness::{Machine, can_mount, noise};
use serde_json::{Value, json};

fn keys(value: &Value, wanted: &str) {
    let object = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    for key in wanted.split(' ') {
        assert!(object.contains_key(key), "'{key}' is missing in {value}");
    }
}

#[test]
fn top_reports_once_where_there_is_no_terminal() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    machine.run_with(&["put", "tank/data/file"], &noise(4 << 20, 1));
    machine.ok(&["demote", "tank/data/file", "--wait"]);
    let found = machine.json(&["top", "-i", "100ms"]);
    assert!(found["interval_seconds"].as_f64().unwrap() >= 0.1);
    let pool = &found["pools"][0];
    keys(
        pool,
        "pool state daemon_pid size_bytes used_bytes available_bytes memory cache_hits cache_misses cache_hit_rate tiers \
         datasets jobs",
    );
    assert_eq!(
        (&pool["pool"], &pool["state"]),
        (&json!("tank"), &json!("online"))
    );
    keys(
        &pool["tiers"][1],
        "name size_bytes used_bytes fill written_bytes_per_second devices",
    );
    keys(
        &pool["tiers"][1]["devices"][0],
        "path state reads_per_second writes_per_second read_bytes_per_second written_bytes_per_second \
         read_latency_seconds write_latency_seconds read_errors write_errors checksum_errors",
    );
    assert_eq!(pool["datasets"][0]["name"], "tank/data");
    assert!(
        pool["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|job| job["kind"] == "move")
    );
    let text = machine.ok(&["top", "-n", "2", "-i", "50ms", "tank"]);
    assert_eq!(text.matches("TIER / DEVICE").count(), 2, "{text}");
    assert!(
        text.contains("tank/data") && text.contains("slow.img") && !text.contains('\x1b'),
        "{text}"
    );
    let reports = machine.ok(&["top", "-n", "2", "-i", "50ms", "--json"]);
    assert_eq!(reports.lines().count(), 2);
    reports
        .lines()
        .for_each(|line| keys(&serde_json::from_str(line).unwrap(), "pools"));
    assert!(
        machine
            .error(&["top", "-i", "soon"], 2)
            .contains("terrace top -i 2s")
    );
    assert!(machine.error(&["top", "-i", "1ms"], 2).contains("10ms"));
    machine.error(&["top", "-n", "0"], 2);
    // The time that devices took is known to 'iostat' as well.
    let writes = machine.json(&["iostat", "tank"])[0].clone();
    assert!(
        writes["write_latency_seconds"].as_f64().unwrap() > 0.0,
        "{writes}"
    );
}

#[test]
fn top_on_a_terminal_draws_until_q_and_leaves_the_terminal_as_it_was() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: there is no script(1) to make a terminal");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["start", "tank"]);
    let typed = machine.path("typed");
    std::fs::write(&typed, "q").unwrap();
    let program = env!("CARGO_BIN_EXE_terrace");
    let output = Command::new("script")
        .args(["-qec", &format!("stty -a; {program} top; stty -a"), "/dev/null"])
        .env("TERRACE_STATE_DIR", machine.path("state"))
        .env("TERM", "xterm")
        .stdin(std::fs::File::open(&typed).unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let (before, rest) = text.split_once("\x1b[?1049h").unwrap_or_else(|| panic!("{text}"));
    let (_, after) = rest
        .split_once("\x1b[?25h\x1b[?1049l")
        .unwrap_or_else(|| panic!("{text}"));
    assert!(before.contains(" icanon"), "{before}");
    assert!(
        after.contains(" icanon") && after.contains(" echo ") && !after.contains("-isig"),
        "{after}"
    );
}

#[test]
fn a_look_at_all_pools_starts_none() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["stop", "tank"]);
    let stopped = |words: &[&str]| {
        let status = machine.json(words);
        assert!(
            !machine.path("state/run/tank.sock").exists(),
            "{words:?} started it"
        );
        status
    };
    let status = stopped(&["status"]);
    keys(
        &status,
        "pool state daemon_pid checkpoint size_bytes used_bytes logical_bytes unique_bytes stored_bytes dedup_ratio \
         compression_ratio pending_free_bytes reserve_bytes memory tiers jobs datasets",
    );
    assert_eq!(
        (&status["state"], &status["daemon_pid"]),
        (&json!("stopped"), &json!(0))
    );
    assert!(status["size_bytes"].as_u64().unwrap() > 0);
    let top = stopped(&["top", "-i", "10ms"]);
    assert_eq!(top["pools"][0]["state"], "stopped");
    let text = machine.ok(&["status"]);
    assert!(
        text.contains("stopped") && text.contains("terrace start tank"),
        "{text}"
    );
    assert_eq!(machine.json(&["pool", "list"])[0]["state"], "stopped");
    // Who names it wants it.
    assert_eq!(machine.json(&["status", "tank"])["state"], "online");
    assert_eq!(
        machine.json(&["status"])["daemon_pid"],
        machine.daemon_pid("tank")
    );
}

#[test]
fn dry_runs_of_compact_and_clear_heat_change_nothing() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=off"]);
    machine.run_with(&["put", "tank/data/file"], &noise(8 << 20, 2));
    let plan = machine.json(&["tier", "clear-heat", "tank", "-n"]);
    assert_eq!(plan["cleared"], false);
    let objects = plan["objects"].as_u64().unwrap();
    assert!(objects > 0, "{plan}");
    assert!(
        machine
            .ok(&["tier", "clear-heat", "tank", "--dry-run"])
            .contains("would forget")
    );
    assert_eq!(machine.json(&["tier", "clear-heat", "tank"])["objects"], objects);
    assert_eq!(machine.json(&["tier", "clear-heat", "tank", "-n"])["objects"], 0);
    let plan = machine.json(&["compact", "tank", "-n"]);
    keys(&plan, "used_bytes pending_free_bytes garbage_bytes_max");
    assert_eq!(plan["compacted"], false);
    assert!(
        machine
            .ok(&["compact", "tank", "-n"])
            .contains("would give back at most")
    );
    let log = machine.json(&["command-log", "tank"]).to_string();
    assert!(!log.contains("compact") && !log.contains("-n"), "{log}");
    assert_eq!(machine.json(&["compact", "tank", "--wait"])["compacted"], true);
}

#[test]
fn wrong_properties_are_wrong_usage_everywhere() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    for words in [
        &["set", "nonsense=1", "tank/data"][..],
        &["set", "compression=best", "tank/data"],
        &["set", "quota=lots", "tank/data"],
        &["set", "used=1", "tank/data"],
        &["set", "compression", "tank/data"],
        &["set", "pin=", "tank/data"],
        &["hold", "no good", "tank/data@one"],
        &["release", "keep", "tank/data"],
        &["get", "nonsense", "tank/data"],
        &["inherit", "nonsense", "tank/data"],
        &["fs", "create", "tank/other", "-o", "compression=best"],
        &["volume", "create", "tank/v", "--size", "8M", "-o", "dedup=maybe"],
        &["pool", "set", "nonsense=1", "tank"],
        &["pool", "set", "memory=1", "tank"],
        &["pool", "get", "nonsense", "tank"],
        &["tier", "set", "nonsense=1", "tank/fast"],
        &["tier", "set", "high_water=lots", "tank/fast"],
    ] {
        machine.error(words, 2);
    }
    // What is right elsewhere is refused here and now.
    for words in [
        &["set", "compression=lz4", "tank/none"][..],
        &["set", "block_size=512", "tank/data"],
        &["tier", "set", "low_water=99%", "tank/fast"],
        &["tier", "set", "landing=on", "tank/none"],
        &["set", "pin=none-such", "tank/data"],
        &["fs", "create", "tank/other", "-o", "pin=none-such"],
        &["pin", "tank/data", "none-such"],
        &["pin", "tank/data", "none-such", "-n"],
    ] {
        machine.error(words, 1);
    }
    // All of them or none.
    machine.error(&["set", "atime=off", "compression=best", "tank/data"], 2);
    assert_ne!(machine.json(&["get", "atime", "tank/data"])[0]["source"], "local");
}

#[test]
fn what_is_no_name_of_a_dataset_is_told_as_what_it_is() {
    let machine = Machine::with_volume();
    machine.ok(&["snapshot", "tank/vm@one"]);
    let missing = machine.text("no/such/directory/device");
    let tier = format!("fast={missing}:64M");
    for (words, status, told) in [
        (&["rename", "tank", "pond"][..], 2, "a pool keeps the name"),
        (&["rename", "tank/vm", "disk"], 2, "write 'tank/disk'"),
        (&["rename", "tank/vm", "pond/disk"], 1, "different pools"),
        (&["attach", "/dev/sda"], 2, "a path of this machine"),
        (&["prune", "tank/vm@one"], 2, "name its dataset, 'tank/vm'"),
        (
            &["pool", "create", "pond", "--tier", &tier],
            1,
            "make the directory",
        ),
    ] {
        let line = machine.error(words, status);
        assert!(line.contains(told), "{words:?}: {line}");
    }
    machine.ok(&["rename", "tank/vm@one", "two"]);
    let rows = machine.json(&["list", "tank/vm", "tank/vm@two", "tank"]);
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["tank/vm", "tank/vm@two", "tank"]);
    let told = machine.ok(&["prune", "tank/vm", "-n"]);
    assert!(told.contains("nothing of 'tank/vm'"), "{told}");
    let told = machine.ok(&["volume", "resize", "tank/vm", "64M", "-n"]);
    assert_eq!(told, "would change nothing: 'tank/vm' has 64M\n");
}

#[test]
fn a_mistake_is_told_with_what_may_have_been_meant_beside_it() {
    let machine = Machine::new();
    let told = |words: &[&str]| {
        let output = machine.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let id = told(&["jobs", "cancel", "scrub"]);
    assert!(
        id.contains("'terrace jobs' shows") && !id.contains("digit"),
        "{id}"
    );
    let sign = told(&["tier", "what-if", "tank", "--fast", "-1"]);
    assert!(sign.contains("found; tip: "), "{sign}");
    let size = told(&["tier", "what-if", "tank", "--fast", "huge"]);
    assert_eq!(size.matches("1.5T").count(), 1, "{size}");
}

#[test]
fn work_that_finds_nothing_to_do_ends_at_a_hundred_percent() {
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    for words in [
        &["promote", "tank/data", "--wait"][..],
        &["demote", "tank/data", "--wait"],
        &["pin", "tank/data", "slow", "--wait"],
        &["scrub", "tank", "--wait"],
        &["compact", "tank", "--wait"],
        &["evacuate", "tank", &machine.text("slow.img"), "--wait"],
    ] {
        let output = machine.run(words);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{words:?}: {told}");
        if words[0] == "pin" && told.is_empty() {
            continue;
        }
        let last = told.lines().last().unwrap_or_default();
        assert!(last.contains(": 100% ("), "{words:?}: {told:?}");
        assert_eq!(told.matches("100%").count(), 1, "{words:?}: {told:?}");
    }
}

#[test]
fn readonly_takes_effect_under_whoever_writes() {
    if !can_mount() {
        eprintln!("skipped: there is no FUSE for this user");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    let directory = machine.path("mounted");
    std::fs::create_dir(&directory).unwrap();
    machine.ok(&["mount", "tank/data", &machine.text("mounted")]);
    let mut open = std::fs::File::create(directory.join("file")).unwrap();
    std::io::Write::write_all(&mut open, b"before").unwrap();
    let told = |words: &[&str]| {
        let output = machine.run(words);
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let note = told(&["set", "readonly=on", "tank"]);
    let place = format!("'tank/data' is mounted at '{}'", directory.display());
    assert!(note.starts_with(&place) && note.contains("refused"), "{note}");
    // It is so already.
    assert_eq!(told(&["set", "readonly=on", "tank/data"]), "");
    assert_eq!(told(&["inherit", "readonly", "tank"]), "");
    let refused = std::io::Write::write_all(&mut open, b" and after").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(std::fs::write(directory.join("other"), b"x").is_err());
    open.sync_all().unwrap();
    assert_eq!(std::fs::read(directory.join("file")).unwrap(), b"before");
    machine.ok(&["set", "readonly=off", "tank/data"]);
    std::io::Write::write_all(&mut open, b" and after").unwrap();
    drop(open);
    assert_eq!(
        std::fs::read(directory.join("file")).unwrap(),
        b"before and after"
    );
    // Once nobody has a file open for writing the kernel says so of the mount too; it was mounted so or not.
    let is_shown = || {
        let flags = rustix::fs::statvfs(&directory).unwrap().f_flag;
        flags.contains(rustix::fs::StatVfsMountFlags::RDONLY)
    };
    let turn_over = || {
        assert!(is_shown());
        std::fs::write(directory.join("other"), b"x").unwrap_err();
        machine.ok(&["set", "readonly=off", "tank/data"]);
        assert!(!is_shown());
        std::fs::write(directory.join("other"), b"x").unwrap();
        machine.ok(&["set", "readonly=on", "tank/data"]);
    };
    machine.ok(&["set", "readonly=on", "tank/data"]);
    turn_over();
    machine.ok(&["unmount", &machine.text("mounted")]);
    machine.ok(&["mount", "tank/data", &machine.text("mounted")]);
    turn_over();
    machine.ok(&["unmount", &machine.text("mounted")]);
    // What was asked for is not taken back by the property.
    machine.ok(&["mount", "tank/data", &machine.text("mounted"), "-o", "ro"]);
    machine.ok(&["set", "readonly=off", "tank/data"]);
    assert!(is_shown());
    assert_eq!(told(&["set", "readonly=on", "tank/data"]), "");
    machine.ok(&["unmount", &machine.text("mounted")]);

    machine.ok(&["volume", "create", "tank/disk", "--size", "16M"]);
    let attached = machine.run(&["attach", "tank/disk", "--via", "loop"]);
    if !attached.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&attached.stderr));
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let number = device.trim_start_matches("/dev/").to_owned();
    let shown = || {
        let text = std::fs::read_to_string(format!("/sys/block/{number}/ro")).unwrap();
        text.trim().to_owned()
    };
    let writer = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&device)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&writer, &[7; 4096], 0).unwrap();
    writer.sync_all().unwrap();
    let note = told(&["set", "readonly=on", "tank/disk"]);
    assert!(note.contains(&device) && note.contains("refused"), "{note}");
    assert_eq!(shown(), "1");
    let written =
        std::os::unix::fs::FileExt::write_all_at(&writer, &[8; 4096], 0).and_then(|()| writer.sync_all());
    assert!(written.is_err(), "a write was taken");
    drop(writer);
    // The kernel refuses who comes later before anything is sent.
    let later = std::fs::OpenOptions::new().write(true).open(&device).unwrap();
    let refused = std::os::unix::fs::FileExt::write_all_at(&later, &[9; 4096], 0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    drop(later);
    machine.ok(&["inherit", "readonly", "tank/disk"]);
    assert_eq!(shown(), "0");
    machine.ok(&["detach", "tank/disk"]);
    machine.ok(&["attach", "tank/disk", "--via", "loop"]);
    let found = machine.run(&["ls", "tank"]);
    assert!(found.status.success());
    let mut block = [0; 4096];
    let reader = std::fs::File::open(machine.path("state/run/disk/tank/disk")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&reader, &mut block, 0).unwrap();
    assert_eq!(block, [7; 4096]);
    drop(reader);
    machine.ok(&["detach", "tank/disk"]);
}

/// Every command below one, with the words that lead to it.
fn commands_of(machine: &Machine, words: &[String], found: &mut Vec<Vec<String>>) {
    let mut ask: Vec<&str> = vec!["help"];
    ask.extend(words.iter().map(String::as_str));
    let help = machine.ok(&ask);
    let Some((_, listed)) = help.split_once("Commands:\n") else {
        found.push(words.to_vec());
        return;
    };
    for line in listed.lines().take_while(|line| !line.is_empty()) {
        let named = line.strip_prefix("  ").filter(|line| !line.starts_with(' '));
        let Some(name) = named.and_then(|line| line.split_whitespace().next()) else {
            continue;
        };
        if name == "help" {
            continue;
        }
        let mut below = words.to_vec();
        below.push(name.to_owned());
        commands_of(machine, &below, found);
    }
}

#[test]
fn every_command_has_help_a_page_and_a_completion() {
    let machine = Machine::new();
    let mut found = Vec::new();
    commands_of(&machine, &[], &mut found);
    assert!(found.len() > 50, "{found:?}");
    machine.ok(&["man", "man"]);
    let script = machine.ok(&["completions", "bash"]);
    for words in found {
        let mut ask: Vec<&str> = words.iter().map(String::as_str).collect();
        ask.push("--help");
        assert!(machine.ok(&ask).contains("Usage:"), "{words:?}");
        let page = machine.path(&format!("man/terrace-{}.1", words.join("-")));
        assert!(page.exists(), "{} is missing", page.display());
        let (last, above) = words.split_last().unwrap();
        let above = above
            .iter()
            .map(|word| format!("__subcmd__{word}"))
            .collect::<String>();
        assert!(
            script.contains(&format!("terrace{above},{last})")),
            "{words:?} does not complete"
        );
    }
}
