//! The daemon keeps to its memory budget: what it holds at most, and at rest, in a small form of `make bench-memory`.
//! Where mounts cannot be made (no /dev/fuse, not root) the tests say so.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    time::{Duration, Instant},
};

use harness::{Machine, can_mount, noise};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 32 * MIB;
/// What the daemon may hold at its peak.
const PEAK: u64 = BUDGET * 11 / 10 + 48 * MIB;

/// A field of /proc/PID/status, bytes.
fn held(pid: i32, field: &str) -> u64 {
    told(pid, field).unwrap()
}

/// The same; `None` of a process that ends.
fn told(pid: i32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes = line.trim_matches([':', ' ', '\t', 'k', 'B']);
    Some(kibibytes.parse::<u64>().unwrap() << 10)
}

/// What the program takes of itself: a debug build has a large one.
fn program_bytes(pid: i32) -> u64 {
    held(pid, "RssFile")
}

struct Daemon {
    machine: Machine,
    pid: i32,
}

impl Daemon {
    fn new() -> Option<Self> {
        if !can_mount() {
            eprintln!("mounts cannot be made here");
            return None;
        }
        let machine = Machine::new();
        let device = format!("fast={}:2G", machine.text("fast.img"));
        machine.ok(&["pool", "create", "tank", "--tier", &device, "-o", "memory=32M"]);
        machine.ok(&["fs", "create", "tank/data"]);
        fs::create_dir(machine.path("mnt")).unwrap();
        machine.ok(&["mount", "tank/data", "mnt"]);
        let pid = machine.daemon_pid("tank");
        Some(Self { machine, pid })
    }

    /// The peak of what comes, without the program.
    fn peak_of(&self, what: &str, work: impl FnOnce()) {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").unwrap();
        work();
        let peak = held(self.pid, "VmHWM") - program_bytes(self.pid);
        eprintln!("{what}: {} MiB at most", peak / MIB);
        assert!(peak <= PEAK, "{what}: {} MiB of {}", peak / MIB, PEAK / MIB);
    }

    fn end(self) {
        self.machine.ok(&["stop", "tank"]);
    }
}

#[test]
fn names_made_and_removed_below_a_snapshot_stay_within_the_budget_and_it_is_given_back() {
    let Some(daemon) = Daemon::new() else { return };
    let place = daemon.machine.path("mnt/many");
    fs::create_dir(&place).unwrap();
    const FILES: usize = 30_000;
    daemon.peak_of("create", || {
        (0..FILES).for_each(|number| drop(fs::File::create(place.join(format!("f{number}"))).unwrap()));
    });
    daemon.machine.ok(&["snapshot", "tank/data@before"]);
    daemon.peak_of("remove", || fs::remove_dir_all(&place).unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let rest = held(daemon.pid, "VmRSS") - program_bytes(daemon.pid);
        if rest <= BUDGET + 16 * MIB {
            break;
        }
        assert!(Instant::now() < deadline, "{} MiB at rest", rest / MIB);
        std::thread::yield_now();
    }
    daemon.end();
}

#[test]
fn many_large_writes_at_once_stay_within_the_budget() {
    let Some(daemon) = Daemon::new() else { return };
    let place = daemon.machine.path("mnt");
    daemon.peak_of("1 MiB writes at depth 32", || {
        std::thread::scope(|scope| {
            for writer in 0..32 {
                let path = place.join(format!("w{writer}"));
                scope.spawn(move || {
                    let mut file = fs::OpenOptions::new()
                        .write(true)
                        .create(true)
                        .truncate(true)
                        .custom_flags(libc::O_DIRECT)
                        .open(path)
                        .unwrap();
                    let content = noise((MIB + 4096) as usize, writer);
                    let from = content.as_ptr().align_offset(4096);
                    (0..12).for_each(|_| file.write_all(&content[from..from + MIB as usize]).unwrap());
                });
            }
        });
    });
    daemon.end();
}

#[test]
fn verify_stays_within_the_budget() {
    let Some(daemon) = Daemon::new() else { return };
    let place = daemon.machine.path("mnt");
    daemon.machine.ok(&["set", "chunk_size=4K", "tank/data"]);
    let mut file = fs::File::create(place.join("chunks")).unwrap();
    let mut block = vec![0; MIB as usize];
    for region in 0..120_u64 {
        for (at, block) in block.chunks_exact_mut(4096).enumerate() {
            block[..8].copy_from_slice(&(region * 256 + at as u64 + 1).to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    drop(file);
    daemon.machine.ok(&["unmount", "mnt"]);
    daemon.machine.ok(&["stop", "tank"]);
    let mut verify = daemon.machine.spawn(&["verify", "tank"]);
    let pid = verify.id() as i32;
    let mut peak = 0;
    let status = loop {
        if let Some(status) = verify.try_wait().unwrap() {
            break status;
        }
        if let (Some(held), Some(program)) = (told(pid, "VmHWM"), told(pid, "RssFile")) {
            peak = peak.max(held.saturating_sub(program));
        }
        std::thread::yield_now();
    };
    assert!(status.success());
    assert!(peak > 0 && peak <= PEAK, "{} MiB", peak / MIB);
}
