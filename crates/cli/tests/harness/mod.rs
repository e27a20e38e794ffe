//! Runs the real binary in a state directory of its own; whatever a test does, its daemons and mounts end with it.

#![allow(dead_code, clippy::unwrap_used)]

pub mod nbd;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Longest that one command may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// Content that neither compresses nor repeats.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = Vec::with_capacity(bytes + 8);
    let mut state = seed;
    while content.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        content.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// Content that repeats every 251 bytes.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// Asks again until it is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// A machine of its own: state directory, devices, mounts.
pub struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    pub fn new() -> Self {
        Self {
            directory: tempfile::Builder::new().prefix("terrace").tempdir().unwrap(),
        }
    }

    /// With the pool `tank` and the volume `tank/vm`, 64 MiB.
    pub fn with_volume() -> Self {
        let machine = Self::new();
        machine.make_pool();
        machine.ok(&["volume", "create", "tank/vm", "--size", "64M", "--sparse"]);
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Path as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command
            .args(words)
            .env("TERRACE_STATE_DIR", self.path("state"))
            .current_dir(self.directory.path());
        command
    }

    /// Runs it with input, whatever comes out.
    pub fn run_with(&self, words: &[&str], input: &[u8]) -> Output {
        let input_path = self.path("stdin");
        std::fs::write(&input_path, input).unwrap();
        let out = std::fs::File::create(self.path("stdout")).unwrap();
        let err = std::fs::File::create(self.path("stderr")).unwrap();
        let mut child = self
            .command(words)
            .stdin(std::fs::File::open(&input_path).unwrap())
            .stdout(Stdio::from(out))
            .stderr(Stdio::from(err))
            .spawn()
            .unwrap();
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("terrace {} took longer than {DEADLINE:?}", words.join(" "));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let read = |name: &str| std::fs::read(self.path(name)).unwrap();
        Output {
            status,
            stdout: read("stdout"),
            stderr: read("stderr"),
        }
    }

    /// Begins to run it; what it says can be read.
    pub fn spawn(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        let piped = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        piped.spawn().unwrap()
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.run_with(words, b"")
    }

    /// Runs it, must succeed; returns standard output.
    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(
            output.status.success(),
            "terrace {} failed: {}{}",
            words.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs it with --json, must succeed.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        words.push("--json");
        let text = self.ok(&words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Runs it, must fail with this status; returns the one line that it says.
    #[track_caller]
    pub fn error(&self, words: &[&str], status: i32) -> String {
        let output = self.run(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            output.status.code(),
            Some(status),
            "terrace {}: {text}",
            words.join(" ")
        );
        let line = text
            .strip_suffix('\n')
            .unwrap_or_else(|| panic!("no line: {text:?}"));
        assert!(
            line.starts_with("terrace: ") && !line.contains('\n'),
            "not one line: {text:?}"
        );
        line.to_owned()
    }

    /// Runs it, must fail with this status, perhaps after it did something; returns the last line that it says.
    #[track_caller]
    pub fn error_last(&self, words: &[&str], status: i32) -> String {
        let output = self.run(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            output.status.code(),
            Some(status),
            "terrace {}: {text}",
            words.join(" ")
        );
        text.trim_end().rsplit('\n').next().unwrap_or_default().to_owned()
    }

    /// A pool `tank` of two tiers.
    pub fn make_pool(&self) {
        let fast = format!("fast={}:80M", self.text("fast.img"));
        let slow = format!("slow={}:160M", self.text("slow.img"));
        self.ok(&[
            "pool",
            "create",
            "tank",
            "--tier",
            &fast,
            "--tier",
            &slow,
            "-o",
            "memory=32M",
        ]);
    }

    /// The process that holds a pool, from its lock file.
    pub fn daemon_pid(&self, pool: &str) -> i32 {
        let text = std::fs::read(self.path(&format!("state/run/{pool}.pid"))).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        i32::try_from(value["pid"].as_i64().unwrap()).unwrap()
    }

    /// kill -9, and waits until it is gone.
    pub fn kill_daemon(&self, pool: &str) {
        let pid = self.daemon_pid(pool);
        kill_and_wait(pid);
    }
}

/// Whether a program is there.
pub fn runs(program: &str) -> bool {
    Command::new(program)
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Runs a program, must succeed.
#[track_caller]
pub fn must(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {}: {}{}",
        words.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether mounts can be made here.
pub fn can_mount() -> bool {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_ok()
        && std::fs::metadata("/proc/self")
            .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

/// Fields of `/proc/PID/stat` from the third, the state, on; none of a process that is gone. `pid` may be "self".
fn stat_fields(pid: &str) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rfind(')').map_or("", |end| &stat[end + 1..]);
    fields.split_ascii_whitespace().map(str::to_owned).collect()
}

/// A process's group and session. Either is 0 where its leader lives outside this PID namespace, as everything has it
/// that is started in a container from outside; rustix takes that 0 for a mistake of the kernel's.
pub fn group_and_session(pid: &str) -> (i32, i32) {
    let fields = stat_fields(pid);
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}

pub fn is_running(pid: i32) -> bool {
    let fields = stat_fields(&pid.to_string());
    fields.first().is_some_and(|state| state != "Z" && state != "X")
}

fn kill_and_wait(pid: i32) {
    let _ = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    let deadline = Instant::now() + DEADLINE;
    while is_running(pid) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Only daemons of this test: those whose lock file lies in its own state directory and who run this binary.
        for entry in std::fs::read_dir(self.path("state/run"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let Some(pool) = name.to_str().and_then(|name| name.strip_suffix(".pid")) else {
                continue;
            };
            let pid = std::fs::read(entry.path())
                .ok()
                .and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            let Some(pid) = pid.and_then(|value| value["pid"].as_i64()) else {
                continue;
            };
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            if words.contains("terrace") && words.contains(&format!("start\0{pool}\0")) {
                kill_and_wait(i32::try_from(pid).unwrap_or(0));
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let Some(place) = line.split(' ').nth(1) else {
                continue;
            };
            if Path::new(place).starts_with(self.directory.path()) {
                let _ = Command::new("umount").args(["-l", place]).status();
            }
        }
    }
}
