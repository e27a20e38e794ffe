//! `terrace demo`: the story of a pool on real data of this machine, with checks that fail loudly.
//!
//! Invariants: everything happens in one directory of its own, with a state directory of its own, by the same
//! commands that a user types; daemon, mount and files are gone afterwards, also after a failure or Ctrl-C.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use terrace_control::{Failure, RunLock};
use terrace_device::{format_size, parse_size};

use super::{
    demo_checks::{Sample, compare, gather},
    scratch::Scratch,
};
use crate::machine::output;

/// How long the mover may take to act.
const MOVER_PATIENCE: Duration = Duration::from_secs(60);
/// Records that are synced before the daemon is killed.
const RECORDS_BEFORE_KILL: u64 = 200;
const RECORD_BYTES: usize = 4096;

/// The demo's own machine.
struct Stage {
    scratch: Scratch,
    mount: Option<PathBuf>,
    started: Instant,
}

/// Runs the whole story.
pub fn run(directory: Option<&Path>, size: &str, no_fuse: bool) -> Result<(), Failure> {
    let bytes = parse_size(size).map_err(|error| Failure::new("run the demo", error, "").as_usage())?;
    if bytes < 16 << 20 {
        return Err(Failure::new(
            "run the demo",
            "that is too little to show anything",
            "give at least --size 16M",
        )
        .as_usage());
    }
    let scratch = Scratch::make(directory, "demo", bytes * 3)?;
    let fuse = !no_fuse && terrace_fuse::check_available().is_ok();
    let stage = Stage {
        mount: fuse.then(|| scratch.directory().join("mnt")),
        scratch,
        started: Instant::now(),
    };
    stage.play(bytes)
}

fn fail(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("demo: {what}"), error, "")
}

/// A check that did not hold.
fn check(holds: bool, what: &str, found: impl std::fmt::Display) -> Result<(), Failure> {
    if holds {
        return output::line(&format!("  ok: {what} ({found})"));
    }
    Err(Failure::new(
        format!("demo: {what}"),
        format!("found {found}"),
        "this is a bug; please report it with this output",
    ))
}

impl Stage {
    fn play(&self, bytes: u64) -> Result<(), Failure> {
        let source = self.path("source");
        let sample = self.act_1_make(&source, bytes)?;
        self.act_2_copy_twice(&source)?;
        self.act_3_tiers(&sample)?;
        self.act_4_snapshot(&source, &sample)?;
        self.act_5_kill()?;
        self.act_6_compare(&source, &sample)?;
        self.act_7_scrub()?;
        self.say(&format!(
            "done in {:.0} seconds; everything is removed again",
            self.started.elapsed().as_secs_f64()
        ))
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        output::line(&format!("\n== {text}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        self.scratch.command(words)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.directory().join(name)
    }

    /// Runs a command as the user would, and shows it.
    fn terrace(&self, words: &[&str]) -> Result<(), Failure> {
        output::line(&format!("$ terrace {}", words.join(" ")))?;
        let status = self.command(words).stdin(Stdio::null()).status();
        self.check_status(words, status.map_err(|error| fail("run terrace", &error))?)
    }

    fn check_status(&self, words: &[&str], status: std::process::ExitStatus) -> Result<(), Failure> {
        if status.success() {
            return Ok(());
        }
        let log = fs::read_to_string(self.path("state/log/demo.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        tail.iter().rev().for_each(|line| eprintln!("  daemon: {line}"));
        Err(fail(
            &format!("terrace {}", words.join(" ")),
            &format!("it ended with {status}"),
        ))
    }

    /// Runs a query and takes its JSON.
    fn query(&self, words: &[&str]) -> Result<Value, Failure> {
        let output = self
            .command(words)
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let output = output.map_err(|error| fail("run terrace", &error))?;
        self.check_status(words, output.status)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| fail(&format!("read {}", words.join(" ")), &error))
    }

    /// The content of a file in the pool, past the kernel's cache.
    fn content(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let output = self
            .command(&["cat", path])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let output = output.map_err(|error| fail("run terrace", &error))?;
        self.check_status(&["cat", path], output.status)?;
        Ok(output.stdout)
    }

    fn act_1_make(&self, source: &Path, bytes: u64) -> Result<Sample, Failure> {
        self.say("a pool of a fast and a slow tier (two files here; disks work the same)")?;
        let sample = gather(source, &[Path::new("/usr/share"), Path::new("/usr/lib")], bytes)?;
        let fast = format!("fast={}:{}", self.path("fast.img").display(), bytes / 2);
        let slow = format!("slow={}:{}", self.path("slow.img").display(), bytes * 4);
        self.terrace(&[
            "pool",
            "create",
            "demo",
            "--tier",
            &fast,
            "--tier",
            &slow,
            "-o",
            "memory=256M",
        ])?;
        self.terrace(&["fs", "create", "demo/data", "-o", "compression=zstd"])?;
        match &self.mount {
            Some(mount) => {
                fs::create_dir(mount).map_err(|error| fail("make the mount point", &error))?;
                self.terrace(&["mount", "demo/data", &mount.display().to_string()])?;
            }
            None => output::line("(no FUSE here: the same by 'terrace put' and 'terrace get')")?,
        }
        Ok(sample)
    }

    fn act_2_copy_twice(&self, source: &Path) -> Result<(), Failure> {
        let total = tree_bytes(source);
        self.say(&format!(
            "{} of /usr/share and /usr/lib, copied in twice",
            format_size(total)
        ))?;
        for name in ["first", "second"] {
            let began = Instant::now();
            self.copy_in(source, name)?;
            let rate = total as f64 / began.elapsed().as_secs_f64().max(0.001);
            output::line(&format!(
                "  {name} copy: {:.1} s, {}/s",
                began.elapsed().as_secs_f64(),
                format_size(rate as u64)
            ))?;
        }
        let status = self.query(&["status", "demo"])?;
        let number = |key: &str| status[key].as_f64().unwrap_or(0.0);
        check(
            number("dedup_ratio") > 1.8,
            "the second copy costs next to nothing",
            format!("dedup {:.2}x", number("dedup_ratio")),
        )?;
        check(
            number("compression_ratio") > 1.05,
            "the first is compressed",
            format!("compression {:.2}x", number("compression_ratio")),
        )?;
        let stored = status["stored_bytes"].as_u64().unwrap_or(u64::MAX);
        check(
            stored < total * 2,
            "less is stored than was written",
            format!("{} stored", format_size(stored)),
        )
    }

    fn copy_in(&self, source: &Path, name: &str) -> Result<(), Failure> {
        match &self.mount {
            Some(mount) => {
                let to = mount.join(name);
                output::line(&format!("$ cp -a source {}", to.display()))?;
                let status = Command::new("cp").arg("-a").arg(source).arg(&to).status();
                let status = status.map_err(|error| fail("run cp", &error))?;
                check(status.success(), "cp ended well", status)?;
                let directory = fs::File::open(&to).map_err(|error| fail("open the copy", &error))?;
                directory
                    .sync_all()
                    .map_err(|error| fail("sync the copy", &error))
            }
            None => self.terrace(&["put", &format!("demo/data/{name}"), &source.display().to_string()]),
        }
    }

    fn act_3_tiers(&self, sample: &Sample) -> Result<(), Failure> {
        self.say("cold data sinks to the slow tier, what is read rises to the fast one")?;
        let live = |tier: usize| -> Result<f64, Failure> {
            let status = self.query(&["status", "demo"])?;
            let tier = &status["tiers"][tier];
            Ok(tier["live_bytes"].as_f64().unwrap_or(0.0) / tier["size_bytes"].as_f64().unwrap_or(1.0))
        };
        let before = live(0)?;
        output::line(&format!(
            "  the fast tier holds data for {:.0}% of its size",
            before * 100.0
        ))?;
        // Lower marks than one would choose, so that the mover has to work although the data is not much.
        let (high, low) = (before * 60.0, before * 40.0);
        let (high_word, low_word) = (format!("high_water={high:.0}%"), format!("low_water={low:.0}%"));
        self.terrace(&["tier", "set", &high_word, &low_word, "demo/fast"])?;
        let began = Instant::now();
        let mut now = live(0)?;
        while now * 100.0 > high && began.elapsed() < MOVER_PATIENCE {
            std::thread::sleep(Duration::from_millis(250));
            now = live(0)?;
        }
        check(
            now * 100.0 <= high,
            "the coldest of it has sunk",
            format!("{:.0}% after {:.1} s", now * 100.0, began.elapsed().as_secs_f64()),
        )?;
        self.terrace(&["jobs", "demo"])?;
        let status = self.query(&["status", "demo"])?;
        let slow = status["tiers"][1]["live_bytes"].as_u64().unwrap_or(0);
        check(slow > 0, "it lies on the slow tier", format_size(slow))?;
        // Room to rise into.
        self.terrace(&["tier", "set", "high_water=85%", "low_water=60%", "demo/fast"])?;

        let on_fast = |path: &str| -> Result<(u64, u64), Failure> {
            let found = self.query(&["where", path])?;
            let bytes = |tier: &str| found["bytes_by_tier"][tier].as_u64().unwrap_or(0);
            Ok((bytes("fast"), bytes("slow")))
        };
        let mut working_set = Vec::new();
        for file in &sample.files {
            let path = format!("demo/data/first/{file}");
            let (fast, slow) = on_fast(&path)?;
            if slow > fast {
                working_set.push(path);
            }
            if working_set.len() == 8 {
                break;
            }
        }
        check(
            !working_set.is_empty(),
            "there are files on the slow tier to work with",
            output::count(working_set.len(), "file"),
        )?;
        let shown = working_set.first().cloned().unwrap_or_default();
        self.terrace(&["where", &shown])?;
        output::line(&format!(
            "  … and now they ({}) are read again and again",
            output::count(working_set.len(), "file")
        ))?;
        let sum = |paths: &[String]| -> Result<(u64, u64), Failure> {
            let mut sum = (0, 0);
            for path in paths {
                let (fast, slow) = on_fast(path)?;
                sum = (sum.0 + fast, sum.1 + slow);
            }
            Ok(sum)
        };
        let began = Instant::now();
        let mut now = sum(&working_set)?;
        while now.0 < now.1 * 4 && began.elapsed() < MOVER_PATIENCE {
            for path in &working_set {
                self.content(path)?;
            }
            std::thread::sleep(Duration::from_millis(250));
            now = sum(&working_set)?;
        }
        self.terrace(&["where", &shown])?;
        let found = format!("{} on fast, {} on slow", format_size(now.0), format_size(now.1));
        check(now.0 >= now.1 * 4, "what is read often has risen", found)
    }

    fn act_4_snapshot(&self, source: &Path, sample: &Sample) -> Result<(), Failure> {
        self.say("a snapshot, then files are lost and read back from it")?;
        self.terrace(&["snapshot", "demo/data@before", "-m", "the demo's"])?;
        self.terrace(&["list", "-t", "snapshot", "demo"])?;
        let lost = &sample.files[..sample.files.len().min(5)];
        for file in lost {
            match &self.mount {
                Some(mount) => fs::remove_file(mount.join("second").join(file))
                    .map_err(|error| fail("remove a file", &error))?,
                None => {
                    // Without a mount there is no rm: the file is overwritten, which loses it as well.
                    let path = format!("demo/data/second/{file}");
                    self.put_text(&path, b"lost\n")?;
                }
            }
        }
        for file in lost {
            let before = fs::read(source.join(file)).map_err(|error| fail("read the source", &error))?;
            let kept = match &self.mount {
                Some(mount) => fs::read(mount.join(".terrace/snapshots/before/second").join(file))
                    .map_err(|error| fail("read from the snapshot", &error))?,
                None => self.content(&format!("demo/data@before/second/{file}"))?,
            };
            check(kept == before, "the snapshot still has it, byte for byte", file)?;
        }
        Ok(())
    }

    fn put_text(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        let mut child = self
            .command(&["put", path])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| fail("run terrace", &error))?;
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(text);
        }
        let status = child.wait().map_err(|error| fail("run terrace", &error))?;
        self.check_status(&["put", path], status)
    }

    fn daemon_pid(&self) -> Option<u32> {
        RunLock::holder(&self.path("state/run/demo.pid")).map(|holder| holder.pid)
    }

    fn kill_daemon(&self) -> Result<(), Failure> {
        let pid = self
            .daemon_pid()
            .ok_or_else(|| fail("find the daemon", &"it does not run"))?;
        output::line(&format!("$ kill -9 {pid}"))?;
        let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = raw.ok_or_else(|| fail("kill the daemon", &"its number makes no sense"))?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
            .map_err(|error| fail("kill the daemon", &error))
    }

    fn act_5_kill(&self) -> Result<(), Failure> {
        self.say("the daemon is killed with -9 in the middle of writes with fsync")?;
        let synced = Arc::new(AtomicU64::new(0));
        let writer = match &self.mount {
            Some(mount) => {
                let (path, synced) = (mount.join("log"), synced.clone());
                std::thread::spawn(move || -> std::io::Result<()> {
                    let mut file = fs::File::create(path)?;
                    for number in 1.. {
                        file.write_all(&record(number))?;
                        file.sync_all()?;
                        synced.store(number, Ordering::SeqCst);
                    }
                    Ok(())
                })
            }
            None => {
                let (place, synced) = (self.scratch.place(), synced.clone());
                std::thread::spawn(move || -> std::io::Result<()> {
                    for number in 1..=RECORDS_BEFORE_KILL * 2 {
                        let local = place.directory().join("record");
                        fs::write(&local, record(number))?;
                        let done = place
                            .command(&[
                                "put",
                                &format!("demo/data/log-{number}"),
                                &local.display().to_string(),
                            ])
                            .stderr(Stdio::null())
                            .status()?;
                        if !done.success() {
                            break;
                        }
                        synced.store(number, Ordering::SeqCst);
                        if number > RECORDS_BEFORE_KILL {
                            break;
                        }
                    }
                    Ok(())
                })
            }
        };
        let enough = if self.mount.is_some() {
            RECORDS_BEFORE_KILL
        } else {
            20
        };
        let began = Instant::now();
        while synced.load(Ordering::SeqCst) < enough
            && began.elapsed() < Duration::from_secs(60)
            && !writer.is_finished()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill_daemon()?;
        let _ = writer.join();
        let acknowledged = synced.load(Ordering::SeqCst);
        let began = Instant::now();
        self.terrace(&["start", "demo"])?;
        output::line(&format!(
            "  usable again after {:.2} s",
            began.elapsed().as_secs_f64()
        ))?;
        let mut found = 0;
        match &self.mount {
            Some(mount) => {
                let log = fs::read(mount.join("log")).map_err(|error| fail("read the log", &error))?;
                for number in 1..=acknowledged {
                    let at = (number as usize - 1) * RECORD_BYTES;
                    found += u64::from(log.get(at..at + RECORD_BYTES) == Some(&record(number)[..]));
                }
            }
            None => {
                for number in 1..=acknowledged {
                    found += u64::from(self.content(&format!("demo/data/log-{number}"))? == record(number));
                }
            }
        }
        check(
            acknowledged > 0 && found == acknowledged,
            "every record that fsync acknowledged is there",
            format!("{found} of {acknowledged}"),
        )
    }

    fn act_6_compare(&self, source: &Path, sample: &Sample) -> Result<(), Failure> {
        self.say("everything is compared with the original, and the snapshot too")?;
        let lost = &sample.files[..sample.files.len().min(5)];
        let copies: Vec<(&str, PathBuf, &[String])> = match &self.mount {
            Some(mount) => vec![
                ("first copy", mount.join("first"), &[]),
                ("second copy", mount.join("second"), lost),
                ("snapshot", mount.join(".terrace/snapshots/before/second"), &[]),
            ],
            None => {
                for (name, path) in [("out1", "demo/data/first"), ("out2", "demo/data@before/second")] {
                    self.terrace(&["get", path, name])?;
                }
                vec![
                    ("first copy", self.path("out1"), &[]),
                    ("snapshot", self.path("out2"), &[]),
                ]
            }
        };
        for (what, copy, missing) in copies {
            let compared = compare(source, &copy, missing)?;
            let found = format!(
                "{}, {}",
                output::count(compared.files, "file"),
                format_size(compared.bytes)
            );
            match compared.differences.first() {
                None => check(true, &format!("the {what} is the same"), found)?,
                Some(difference) => check(false, &format!("the {what} is the same"), difference)?,
            }
        }
        Ok(())
    }

    fn act_7_scrub(&self) -> Result<(), Failure> {
        self.say("a scrub reads and verifies all of it")?;
        self.terrace(&["scrub", "demo", "--wait"])?;
        let status = self.query(&["status", "demo"])?;
        check(
            status["scrub"]["errors"] == 0,
            "the scrub found nothing wrong",
            &status["scrub"]["state"],
        )?;
        check(status["state"] == "online", "the pool is well", &status["state"])?;
        self.terrace(&["status", "demo"])
    }
}

/// A record that knows its number.
fn record(number: u64) -> Vec<u8> {
    let mut bytes = format!("record {number}\n").into_bytes();
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < RECORD_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(RECORD_BYTES);
    bytes
}

fn tree_bytes(root: &Path) -> u64 {
    let mut total = 0;
    let mut stack = vec![root.to_owned()];
    while let Some(directory) = stack.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => stack.push(entry.path()),
                Ok(metadata) => total += metadata.len(),
                Err(_) => {}
            }
        }
    }
    total
}
