//! `pool create`, `pool add` and `pool replace` on devices that hold something or are in use: what is said, what `-n` says, what stays.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    os::{fd::AsRawFd, unix::fs::FileExt},
    process::Command,
};

use harness::{Machine, must, runs};
use serde_json::json;

const MIB: u64 = 1 << 20;

fn sparse(machine: &Machine, name: &str, bytes: u64) {
    fs::File::create(machine.path(name))
        .unwrap()
        .set_len(bytes)
        .unwrap();
}

/// What create, add and replace say of a device; with and without `-n` it is the same.
fn refusals(machine: &Machine, device: &str, more: &[&str]) -> Vec<String> {
    let tier = format!("only={device}");
    let commands: [&[&str]; 3] = [
        &["pool", "create", "other", "--tier", &tier],
        &["pool", "add", "tank", &tier],
        &["pool", "replace", "tank", "a.img", device],
    ];
    let mut told = Vec::new();
    for command in commands {
        let line = machine.error(&[command, more].concat(), 1);
        assert_eq!(line, machine.error(&[command, more, &["-n"]].concat(), 1));
        told.push(line);
    }
    told
}

#[test]
fn what_programs_make_is_named_and_kept() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:64M"]);
    let mkfs: [(&str, &[&str], u64, &str); 9] = [
        ("mkfs.ext2", &["-q", "-F"], 64, "an ext2 filesystem"),
        ("mkfs.ext3", &["-q", "-F"], 64, "an ext3 filesystem"),
        (
            "mkfs.ext4",
            &["-q", "-F", "-L", "root"],
            64,
            "an ext4 filesystem ('root', 64M)",
        ),
        (
            "mkfs.xfs",
            &["-q", "-L", "data"],
            320,
            "an XFS filesystem ('data', 320M)",
        ),
        (
            "mkfs.btrfs",
            &["-q", "-L", "tree"],
            256,
            "a Btrfs filesystem ('tree', 256M)",
        ),
        (
            "mkfs.vfat",
            &["-n", "STICK"],
            64,
            "a FAT filesystem ('STICK', 64M)",
        ),
        ("mkswap", &["-L", "pages"], 64, "swap space ('pages'"),
        (
            "mkfs.f2fs",
            &["-q", "-l", "flash"],
            128,
            "an F2FS filesystem ('flash'",
        ),
        ("mkfs.minix", &[], 16, "a minix filesystem"),
    ];
    for (program, options, mib, words) in mkfs {
        if !runs(program) {
            eprintln!("{program} is not here: left out");
            continue;
        }
        sparse(&machine, "image", mib * MIB);
        let image = machine.text("image");
        must(program, &[options, &[&*image]].concat());
        let before = fs::read(machine.path("image")).unwrap();
        for told in refusals(&machine, "image", &[]) {
            assert!(
                told.contains(words) && told.contains("--force"),
                "{program}: {told}"
            );
        }
        assert!(fs::read(machine.path("image")).unwrap() == before, "{program}");
        fs::remove_file(machine.path("image")).unwrap();
    }
    // An archive that is grown to be a device.
    fs::write(machine.path("file"), b"content").unwrap();
    must(
        "tar",
        &["-cf", &machine.text("image"), "-C", &machine.text("."), "file"],
    );
    let before = fs::read(machine.path("image")).unwrap();
    for told in refusals(&machine, "image:64M", &[]) {
        assert!(told.contains("a tar archive"), "{told}");
    }
    assert!(fs::read(machine.path("image")).unwrap() == before);
    assert!(!machine.json(&["pool", "list"]).to_string().contains("other"));
}

#[test]
fn force_overrides_content_and_never_a_use() {
    let machine = Machine::new();
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:64M"]);
    sparse(&machine, "image", 64 * MIB);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(machine.path("image"))
        .unwrap();
    file.write_all_at(b"content", 0).unwrap();
    // As an emulator locks an image.
    // SAFETY: a structure of numbers, for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, and the structure lives through the call.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
    assert_eq!(locked, 0);
    for told in refusals(&machine, "image", &["--force"]) {
        assert!(told.contains("locked by another process"), "{told}");
    }
    drop(file);
    std::os::unix::fs::symlink("image", machine.path("link")).unwrap();
    if harness::can_mount() && runs("losetup") {
        let attached = Command::new("losetup")
            .args(["--find", "--show", &machine.text("image")])
            .output()
            .unwrap();
        if attached.status.success() {
            let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
            let told = refusals(&machine, "link", &["--force"]);
            must("losetup", &["--detach", &device]);
            for told in told {
                assert!(told.contains(&format!("attached as '{device}'")), "{told}");
                assert!(told.contains("--force does not override it"), "{told}");
            }
        } else {
            eprintln!("no loop device is to be had: left out");
        }
    }
    assert_eq!(&fs::read(machine.path("image")).unwrap()[..7], b"content");
    machine.ok(&["pool", "create", "other", "--tier", "only=link", "--force"]);
    assert!(!fs::read(machine.path("image")).unwrap().starts_with(b"content"));
    machine.ok(&["fs", "create", "other/data"]);
    for told in refusals(&machine, "image", &["--force"]) {
        assert!(told.contains("'other', which is open"), "{told}");
    }
}

#[test]
fn a_dry_run_says_what_would_be_made_and_makes_nothing() {
    let machine = Machine::new();
    sparse(&machine, "empty", 64 * MIB);
    sparse(&machine, "image", 64 * MIB);
    fs::write(machine.path("tar"), b"SQLite format 3\0").unwrap();
    let create = [
        "pool",
        "create",
        "tank",
        "--tier",
        "fast=new:64M,dir/:64M",
        "--tier",
        "slow=empty,tar:96M",
        "--force",
        "-n",
    ];
    let told = machine.ok(&create);
    for words in [
        "tier 'fast': 128M",
        "tier 'slow': 160M",
        "new (64M) would be made",
        "empty (64M) would be used",
        "tar (96M) would be overwritten (it holds an SQLite database)",
        "nothing was changed",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let plan = machine.json(&create);
    assert_eq!(plan["dry_run"], json!(true));
    assert_eq!(plan["tiers"][1]["devices"][1]["overwrites"], "an SQLite database");
    assert_eq!(plan["tiers"][0]["devices"][0]["made"], json!(true));
    assert!(!machine.path("new").exists() && !machine.path("dir").exists());
    assert_eq!(fs::read(machine.path("tar")).unwrap(), b"SQLite format 3\0");
    assert!(machine.ok(&["pool", "list"]).contains("no pools"));
    machine.ok(&["pool", "create", "tank", "--tier", "only=a.img:64M"]);
    for command in [
        &["pool", "add", "tank", "only=tar:96M", "--force", "-n"][..],
        &["pool", "replace", "tank", "a.img", "tar:96M", "--force", "-n"],
    ] {
        let told = machine.ok(command);
        assert!(
            told.contains("would be overwritten (it holds an SQLite database)"),
            "{told}"
        );
    }
    assert_eq!(fs::read(machine.path("tar")).unwrap(), b"SQLite format 3\0");
    assert_eq!(
        machine.json(&["status", "tank"])["tiers"][0]["devices"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// Item by item: `create` and `status` say it, with what to type, and what was typed ends it.
#[test]
fn what_a_lost_device_of_a_tier_with_one_copy_costs_is_said() {
    let machine = Machine::new();
    let create = |pool: &str, tier: &str, more: &[&str]| {
        let words = [&["pool", "create", pool, "--tier", tier], more].concat();
        let output = machine.run(&words);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let told = create("tank", "only=a.img:64M,b.img:64M,c.img:64M", &[]);
    for words in [
        "tier 'only' keeps one copy, spread over 3 devices",
        "damages nearly every file",
        "'terrace tier set copies=2 tank/only'",
        "--copies only=2",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(told.lines().count(), 1, "{told}");
    assert_eq!(create("one", "only=d.img:64M", &[]), "");
    assert_eq!(
        create("two", "only=e.img:64M,f.img:64M", &["--copies", "only=2"]),
        ""
    );
    let status = machine.ok(&["status", "tank"]);
    assert!(
        status.contains("one copy: tier 'only' keeps one copy"),
        "{status}"
    );
    let tier = machine.json(&["status", "tank"])["tiers"][0].clone();
    assert_eq!(tier["copies"], 1);
    assert!(
        tier["lost_device_detail"]
            .as_str()
            .unwrap()
            .contains("terrace tier set copies=2 tank/only")
    );
    for pool in ["one", "two"] {
        assert_eq!(
            machine.json(&["status", pool])["tiers"][0]["lost_device_detail"],
            ""
        );
    }
    machine.ok(&["tier", "set", "copies=2", "tank/only"]);
    let tier = machine.json(&["status", "tank"])["tiers"][0].clone();
    assert_eq!(
        (&tier["copies"], &tier["lost_device_detail"]),
        (&json!(2), &json!(""))
    );
}
