//! Volumes attached as block devices of this machine, with a filesystem on them. Where loop devices cannot be made the test
//! says so and checks that the error does too.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{Machine, can_mount, must, nbd::Client, pattern, runs};
use serde_json::json;

#[test]
fn blocks_of_512_bytes_on_request() {
    let machine = Machine::with_volume();
    machine.error(
        &[
            "volume",
            "create",
            "tank/odd",
            "--size",
            "8M",
            "--block-size",
            "1K",
        ],
        2,
    );
    machine.ok(&[
        "volume",
        "create",
        "tank/small",
        "--size",
        "8M",
        "--block-size",
        "512",
    ]);
    assert!(machine.ok(&["get", "block_size", "tank/small"]).contains("512"));
    let both = ["--block-size", "512", "-o", "block_size=4096"];
    let words = [&["volume", "create", "tank/both", "--size", "64M"][..], &both].concat();
    assert!(machine.error(&words, 2).contains("give one of them"));
    machine.error(&["fs", "create", "tank/fs", "-o", "block_size=512"], 2);
    machine.error(&["set", "block_size=512", "tank"], 1);
    let socket = machine.path("s");
    machine.ok(&["set", "block_size=4K", "tank/small"]);
    machine.ok(&["serve", "tank/small", "--nbd", "unix:s"]);
    assert_eq!(Client::block_bytes(&socket, "tank/small"), 4096);
    // Not under those who count in them.
    for words in [
        &["set", "block_size=512", "tank/small"][..],
        &["inherit", "block_size", "tank/small"],
    ] {
        let line = machine.error(words, 1);
        assert!(
            line.contains("in use: served at") && line.contains("unserve"),
            "{line}"
        );
    }
    machine.ok(&["unserve", "tank/small"]);
    machine.ok(&["set", "block_size=512", "tank/small"]);
    machine.ok(&["serve", "tank/small", "--nbd", "unix:s"]);
    machine.ok(&["serve", "tank/vm", "--nbd", "unix:s"]);
    assert_eq!(Client::block_bytes(&socket, "tank/small"), 512);
    assert_eq!(Client::block_bytes(&socket, "tank/vm"), 4096);

    // Two clients write neighbouring sectors of the same blocks: none undoes what the other wrote.
    std::thread::scope(|scope| {
        for half in 0..2_usize {
            let socket = &socket;
            scope.spawn(move || {
                let mut client = Client::connect(socket, "tank/small");
                for sector in (half..256).step_by(2) {
                    let data = [sector as u8; 512];
                    assert_eq!(client.write(sector as u64 * 512, &data), 0);
                }
                client.flush();
            });
        }
    });
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let mut client = Client::connect(&socket, "tank/small");
    let content = client.read(0, 256 * 512);
    for (sector, data) in content.chunks(512).enumerate() {
        assert!(data.iter().all(|byte| *byte == sector as u8), "sector {sector}");
    }
    machine.ok(&["unserve", "tank/small"]);

    let attached = machine.run(&["attach", "tank/small", "--via", "loop"]);
    if !can_mount() || !attached.status.success() {
        eprintln!("skipped: no loop device can be had");
        return;
    }
    let _devices = Devices(&machine);
    let device = String::from_utf8(attached.stdout).unwrap().trim_end().to_owned();
    let name = Path::new(&device).file_name().unwrap().to_str().unwrap();
    let logical = format!("/sys/block/{name}/queue/logical_block_size");
    assert_eq!(fs::read_to_string(logical).unwrap().trim(), "512");
    machine.ok(&["detach", "tank/small"]);
}

fn backing_file(device: &str) -> Option<PathBuf> {
    let name = Path::new(device).file_name().unwrap();
    let place = Path::new("/sys/block").join(name).join("loop/backing_file");
    fs::read_to_string(place)
        .ok()
        .map(|text| PathBuf::from(text.trim_end()))
}

/// Whatever becomes of the test, no device of it stays.
struct Devices<'a>(&'a Machine);

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let device = Path::new("/dev").join(entry.file_name());
            let ours = backing_file(device.to_str().unwrap_or_default())
                .is_some_and(|file| file.starts_with(self.0.path("state")));
            if ours {
                let _ = Command::new("umount").arg("-l").arg(&device).status();
                let _ = Command::new("losetup").arg("-d").arg(&device).status();
            }
        }
    }
}

#[test]
fn a_filesystem_on_an_attached_volume() {
    let machine = Machine::with_volume();
    let reason = if !can_mount() {
        Some("FUSE cannot be used here")
    } else if fs::metadata("/dev/loop-control").is_err() {
        Some("there are no loop devices here")
    } else {
        None
    };
    let attached = machine.run(&["attach", "tank/vm", "--via", "loop"]);
    if !attached.status.success() || reason.is_some() {
        let text = String::from_utf8_lossy(&attached.stderr).into_owned();
        eprintln!(
            "skipped: {}: {text}",
            reason.unwrap_or("no loop device can be had")
        );
        assert!(text.starts_with("terrace: attach 'tank/vm': "), "{text}");
        assert_eq!(
            machine.json(&["status", "tank"])["datasets"][1]["attached"],
            json!([])
        );
        return;
    }
    let _devices = Devices(&machine);
    let device = String::from_utf8(attached.stdout).unwrap().trim_end().to_owned();
    let size = |device: &str| {
        let name = Path::new(device).file_name().unwrap().to_str().unwrap();
        let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
        sectors.trim().parse::<u64>().unwrap() * 512
    };
    let link = machine.path("state/run/disk/tank/vm");
    assert!(device.starts_with("/dev/loop"), "{device}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&device));
    assert_eq!(
        machine.ok(&["attach", "tank/vm", "--via", "loop"]).trim_end(),
        device
    );
    assert_eq!(size(&device), 64 << 20);
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][1]["attached"],
        json!([device])
    );

    // Written and flushed, then the daemon is killed: the device comes back under its name.
    let mut file = fs::OpenOptions::new().write(true).open(&device).unwrap();
    file.write_all(&pattern(9, 64 << 10)).unwrap();
    file.sync_all().unwrap();
    let line = machine.error(&["detach", &device], 1);
    let me = format!("open in process {}", std::process::id());
    assert!(line.contains("in use") && line.contains(&me), "{line}");
    assert!(machine.error(&["stop", "tank"], 1).contains("in use"));
    drop(file);
    machine.kill_daemon("tank");
    machine.ok(&["start", "tank"]);
    let again = machine
        .ok(&["attach", "tank/vm", "--via", "loop"])
        .trim_end()
        .to_owned();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&again));
    let mut head = vec![0; 64 << 10];
    fs::File::open(&again).unwrap().read_exact(&mut head).unwrap();
    assert_eq!(head, pattern(9, 64 << 10));

    machine.ok(&["volume", "resize", "tank/vm", "96M"]);
    assert_eq!(size(&again), 96 << 20);
    let line = machine.error(&["rename", "tank/vm", "tank/other"], 1);
    assert!(line.contains("detach"), "{line}");

    machine.ok(&["detach", &again]);
    assert!(!link.exists() && backing_file(&again).is_none());
    assert!(machine.error(&["detach", "tank/vm"], 1).contains("not attached"));
    with_ext4(&machine);

    // A snapshot is there for reading alone.
    machine.ok(&["snapshot", "tank/vm@one"]);
    let past = machine
        .ok(&["attach", "tank/vm@one", "--via", "loop"])
        .trim_end()
        .to_owned();
    let flag = Path::new("/sys/block")
        .join(Path::new(&past).file_name().unwrap())
        .join("ro");
    assert_eq!(fs::read_to_string(flag).unwrap().trim(), "1");
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&past)
        .and_then(|mut file| file.write_all(&[1; 4096]));
    assert!(written.is_err(), "a snapshot was written");
    let mut first = [0; 4096];
    fs::File::open(&past).unwrap().read_exact(&mut first).unwrap();
    machine.ok(&["stop", "tank"]);
    // Somebody else may have taken the number meanwhile.
    assert!(backing_file(&past).is_none_or(|file| !file.starts_with(machine.path("state"))));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(&machine.text("state")),
        "a mount is left: {mounts}"
    );
    machine.ok(&["start", "tank"]);
    assert_eq!(
        machine.json(&["status", "tank"])["datasets"][1]["attached"],
        json!([])
    );
    machine.ok(&["stop", "tank"]);
}

fn with_ext4(machine: &Machine) {
    if !runs("mkfs.ext4") || !runs("e2fsck") {
        eprintln!("skipped: there is no mkfs.ext4");
        return;
    }
    let device = machine
        .ok(&["attach", "tank/vm", "--via", "loop"])
        .trim_end()
        .to_owned();
    must("mkfs.ext4", &["-q", "-F", &device]);
    let place = machine.text("mnt");
    fs::create_dir(&place).unwrap();
    must("mount", &["-t", "ext4", &device, &place]);
    let mounted_on = fs::metadata(&place).unwrap().dev();
    assert_ne!(mounted_on, fs::metadata(machine.path("state")).unwrap().dev());
    fs::write(machine.path("mnt/file"), pattern(5, 3 << 20)).unwrap();
    let line = machine.error(&["detach", "tank/vm"], 1);
    assert!(line.contains(&format!("mounted on '{place}'")), "{line}");
    assert!(machine.error(&["stop", "tank"], 1).contains("in use"));
    must("umount", &[&place]);
    machine.ok(&["detach", &device]);
    let device = machine
        .ok(&["attach", "tank/vm", "--via", "loop"])
        .trim_end()
        .to_owned();
    must("e2fsck", &["-f", "-n", &device]);
    must("mount", &["-t", "ext4", "-o", "ro", &device, &place]);
    assert_eq!(fs::read(machine.path("mnt/file")).unwrap(), pattern(5, 3 << 20));
    must("umount", &[&place]);
    machine.ok(&["detach", "tank/vm"]);
}
