//! `terrace verify --rebuild` with the real binary: a pool whose roots, or whose tables, are gone, saved into a new one.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
};

use harness::{Machine, can_mount, noise};

const BLOCK: usize = 4096;

/// What there is below a directory: `path mode links size content`.
fn listing(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut todo = vec![directory.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap().flatten() {
            let path = entry.path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(directory).unwrap().display().to_string();
            let mode = metadata.permissions().mode();
            if metadata.is_dir() {
                todo.push(path);
                lines.push(format!("{name} {mode:o}"));
            } else if metadata.is_symlink() {
                lines.push(format!("{name} -> {:?}", fs::read_link(&path).unwrap()));
            } else {
                let content = fs::read(&path).unwrap();
                let sum: u64 = content
                    .iter()
                    .enumerate()
                    .map(|(at, byte)| (at as u64 + 1) * u64::from(*byte))
                    .sum();
                lines.push(format!(
                    "{name} {mode:o} {} {} {sum}",
                    metadata.nlink(),
                    metadata.len()
                ));
            }
        }
    }
    lines.sort();
    lines
}

fn tree(machine: &Machine) {
    fs::create_dir_all(machine.path("tree/deep/empty")).unwrap();
    fs::write(machine.path("tree/big"), noise(2_000_003, 1)).unwrap();
    fs::write(machine.path("tree/deep/text"), b"some text\n".repeat(5000)).unwrap();
    for number in 0..40 {
        fs::write(
            machine.path(&format!("tree/deep/{number}")),
            noise(700, number + 10),
        )
        .unwrap();
    }
    std::os::unix::fs::symlink("../big", machine.path("tree/deep/symbolic")).unwrap();
}

/// Overwrites what starts with `magic` on the devices of the pool; returns how often.
fn destroy(machine: &Machine, magic: &[u8]) -> usize {
    let mut count = 0;
    for name in ["fast.img", "slow.img"] {
        let mut image = fs::read(machine.path(name)).unwrap();
        for block in image.chunks_mut(BLOCK).filter(|block| block.starts_with(magic)) {
            block.fill(0);
            count += 1;
        }
        fs::write(machine.path(name), image).unwrap();
    }
    count
}

fn images(machine: &Machine) -> Vec<Vec<u8>> {
    ["fast.img", "slow.img"]
        .map(|name| fs::read(machine.path(name)).unwrap())
        .to_vec()
}

fn new_tiers(machine: &Machine, name: &str) -> [String; 2] {
    [
        format!("one={}:80M", machine.text(&format!("{name}-1.img"))),
        format!("two={}:120M", machine.text(&format!("{name}-2.img"))),
    ]
}

#[test]
fn a_pool_without_roots_comes_back_whole() {
    let machine = Machine::new();
    machine.make_pool();
    tree(&machine);
    machine.ok(&["fs", "create", "tank/data", "-o", "compression=zstd"]);
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["snapshot", "tank/data@one"]);
    fs::write(machine.path("later"), b"later").unwrap();
    machine.ok(&["put", "tank/data/tree/deep/text", "later"]);
    machine.ok(&["volume", "create", "tank/vm", "--size", "16M", "--sparse"]);
    // What a killed daemon leaves in the log comes too.
    machine.kill_daemon("tank");
    assert!(destroy(&machine, b"TERRROOT") >= 2);
    let before = images(&machine);
    for command in ["verify", "start"] {
        let said = machine.error(&[command, "tank"], 1);
        assert!(said.contains("--rebuild NEWPOOL"), "{said}");
    }
    let dry = machine.json(&["verify", "tank", "--rebuild", "fresh", "-n", "--list"]);
    assert_eq!(dry["complete"], true, "{dry}");
    let names: Vec<&str> = dry["saved_files"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|f| f["path"].as_str())
        .collect();
    assert!(
        names.contains(&"data/tree/deep/39") && names.contains(&"vm"),
        "{names:?}"
    );
    assert!(
        machine
            .error(&["verify", "tank", "--rebuild", "fresh"], 1)
            .contains("--tier")
    );
    let own = format!("one={}", machine.text("fast.img"));
    let refused = machine.error(&["verify", "tank", "--rebuild", "fresh", "--tier", &own, "-f"], 2);
    assert!(refused.contains("device of the damaged pool"), "{refused}");
    let [one, two] = new_tiers(&machine, "fresh");
    let report = machine.json(&[
        "verify",
        "tank",
        "--rebuild",
        "fresh",
        "--tier",
        &one,
        "--tier",
        &two,
    ]);
    assert_eq!(report["state"], "whole", "{report}");
    assert_eq!(report["new_pool"], "fresh", "{report}");
    assert!(images(&machine) == before, "the damaged pool was written to");

    machine.ok(&["get", "fresh/data@one/tree", &machine.text("was")]);
    assert_eq!(listing(&machine.path("was")), listing(&machine.path("tree")));
    fs::write(machine.path("tree/deep/text"), b"later").unwrap();
    machine.ok(&["get", "fresh/data/tree", &machine.text("is")]);
    assert_eq!(listing(&machine.path("is")), listing(&machine.path("tree")));
    assert!(machine.ok(&["get", "compression", "fresh/data"]).contains("zstd"));
    assert!(
        machine
            .ok(&["events", "fresh"])
            .contains("rebuilt from pool 'tank'")
    );
    machine.ok(&["stop", "fresh"]);
    assert_eq!(machine.json(&["verify", "fresh"])["clean"], true);
    // A pool that was used is not rebuilt into.
    let refused = machine.error(&["verify", "tank", "--rebuild", "fresh"], 1);
    assert!(refused.contains("never used"), "{refused}");
}

#[test]
fn a_pool_without_roots_and_tables_gives_what_is_left() {
    let machine = Machine::new();
    machine.make_pool();
    tree(&machine);
    machine.ok(&["fs", "create", "tank/data"]);
    machine.ok(&["put", "tank/data", "tree"]);
    machine.ok(&["stop", "tank"]);
    let whole = images(&machine);
    // Without any root the tables tell.
    assert!(destroy(&machine, b"TERRROOT") + destroy(&machine, b"TerrRtCp") > 2);
    let [one, two] = new_tiers(&machine, "first");
    let search = machine.path("").display().to_string();
    let words = ["verify", "--search", &search, "tank", "--json", "--rebuild"];
    let run = |new: &str, one: &str, two: &str| {
        let words: Vec<&str> = words
            .iter()
            .copied()
            .chain([new, "--tier", one, "--tier", two])
            .collect();
        let output = machine.run(&words);
        assert_eq!(
            output.status.code(),
            Some(1),
            "something is always said to be missing"
        );
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let report = run("first", &one, &two);
    assert_eq!(report["state"], "tables", "{report}");
    assert_eq!(report["damaged"].as_array().unwrap().len(), 0, "{report}");
    machine.ok(&["get", "first/data/tree", &machine.text("first")]);
    assert_eq!(listing(&machine.path("first")), listing(&machine.path("tree")));
    // Without tables and log, the chunks do.
    assert!(destroy(&machine, b"TMT2") > 0);
    destroy(&machine, b"TerrLog1");
    let [one, two] = new_tiers(&machine, "second");
    let report = run("second", &one, &two);
    assert_eq!(report["state"], "chunks", "{report}");
    let found = report["found"].as_array().unwrap();
    assert!(found.len() >= 42, "{report}");
    let dataset = report["datasets"]
        .as_array()
        .unwrap()
        .iter()
        .find(|d| d["made_up"] == true && d["name"] != "");
    let name = format!("second/{}", dataset.unwrap()["name"].as_str().unwrap());
    machine.ok(&["get", &format!("{name}/lost+found"), &machine.text("second")]);
    let contents: Vec<Vec<u8>> = fs::read_dir(machine.path("second"))
        .unwrap()
        .flatten()
        .map(|file| fs::read(file.path()).unwrap())
        .collect();
    assert!(contents.contains(&noise(2_000_003, 1)));
    assert!(contents.contains(&noise(700, 15)));
    // The devices alone do as well as a known pool, and nothing is written to them.
    for (name, image) in ["fast.img", "slow.img"].iter().zip(&whole) {
        fs::write(machine.path(name), image).unwrap();
    }
    let (fast, slow) = (machine.text("fast.img"), machine.text("slow.img"));
    assert_eq!(machine.json(&["verify", &fast, &slow])["clean"], true);
    assert!(images(&machine) == whole);
}

#[test]
fn hard_links_and_attributes_of_a_mounted_pool_come_back() {
    if !can_mount() {
        eprintln!("skipped: no FUSE here");
        return;
    }
    let machine = Machine::new();
    machine.make_pool();
    machine.ok(&["fs", "create", "tank/data"]);
    for name in ["old", "new"] {
        fs::create_dir(machine.path(name)).unwrap();
    }
    machine.ok(&["mount", "tank/data", &machine.text("old")]);
    fs::create_dir_all(machine.path("old/a/b")).unwrap();
    fs::write(machine.path("old/a/file"), noise(400_000, 3)).unwrap();
    fs::hard_link(machine.path("old/a/file"), machine.path("old/a/b/link")).unwrap();
    fs::set_permissions(machine.path("old/a/b"), fs::Permissions::from_mode(0o711)).unwrap();
    let named = machine.text("old/a/file");
    let set = rustix::fs::setxattr(&*named, "user.note", b"kept", rustix::fs::XattrFlags::empty());
    assert!(set.is_ok(), "{set:?}");
    fs::File::open(machine.path("old/a/file"))
        .unwrap()
        .sync_all()
        .unwrap();
    let wanted = listing(&machine.path("old"));
    machine.kill_daemon("tank");
    let _ = Command::new("umount").args(["-l", &machine.text("old")]).status();
    destroy(&machine, b"TERRROOT");
    let [one, two] = new_tiers(&machine, "fresh");
    let report = machine.json(&[
        "verify",
        "tank",
        "--rebuild",
        "fresh",
        "--tier",
        &one,
        "--tier",
        &two,
    ]);
    assert_eq!(report["complete"], true, "{report}");
    machine.ok(&["mount", "fresh/data", &machine.text("new")]);
    assert_eq!(listing(&machine.path("new")), wanted);
    let inode = |path: &str| fs::metadata(machine.path(path)).unwrap().ino();
    assert_eq!(inode("new/a/file"), inode("new/a/b/link"));
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(&*machine.text("new/a/b/link"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"kept");
    machine.ok(&["stop", "fresh"]);
}
