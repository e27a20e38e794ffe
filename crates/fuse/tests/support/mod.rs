//! Mounts for tests. The server is another process (this test program again, asked by an environment variable to run
//! the test named `serve`), so that no test can wait for a thread of its own; each test runs under a watchdog that
//! kills that process, which makes every system call stuck in the mount return.

pub mod actor;
pub mod aio;
pub mod ext4;
pub mod failing;
pub mod handle;
pub mod library;
pub mod memory;

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use terrace_fuse::{
    FuseError, MountOptions, Session, UnmountMode, check_available, clear_stale, ring_switch,
};

const DIRECTORY: &str = "TERRACE_FUSE_TEST_DIRECTORY";
const CONTENT: &str = "TERRACE_FUSE_TEST_CONTENT";
const TRANSPORT: &str = "TERRACE_FUSE_TEST_TRANSPORT";
/// In front of what the server says, among what the test harness prints.
const MARK: &str = "@@";
const DEADLINE: Duration = Duration::from_secs(120);

/// The kernel's caches are the machine's: held for reading by a test that relies on them, for writing by one that drops
/// them.
pub static CACHES: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

/// The server's side: to be called by a test named `serve`, which does nothing when run as a test.
pub fn serve(mount: impl Fn(&str, &Path) -> Result<Session, FuseError>) {
    let (Some(directory), Ok(content)) = (std::env::var_os(DIRECTORY), std::env::var(CONTENT)) else {
        return;
    };
    let session = match check_available().and_then(|()| mount(&content, Path::new(&directory))) {
        Ok(session) => session,
        Err(error @ FuseError::Unavailable { .. }) => return say(&format!("unavailable {error}")),
        Err(error @ FuseError::Mount { .. }) if error.to_string().contains("not permitted") => {
            return say(&format!("unavailable {error}"));
        }
        Err(error) => return say(&format!("failed {error}")),
    };
    say("serving");
    for line in std::io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "unmount" => outcome(session.unmount(UnmountMode::IfUnused)),
            "unmount lazily" => outcome(session.unmount(UnmountMode::Lazy)),
            "ended" => session.wait_for(Duration::from_secs(60)).to_string(),
            "known" => session.known_objects().to_string(),
            "memory" => session.memory_bytes().to_string(),
            "requests" => session.awaited_requests().to_string(),
            "open the gate" => {
                memory::set_gate(true);
                "ok".into()
            }
            "close the gate" => {
                memory::set_gate(false);
                "ok".into()
            }
            "held" => memory::held_writes().to_string(),
            "transport" if session.uses_rings() => "rings".into(),
            "transport" => "device".into(),
            "connection" => session.connection_number().to_string(),
            "invalidate all" => outcome(session.invalidate_all()),
            other => match other.split_once(' ') {
                Some(("invalidate", object)) => {
                    outcome(session.invalidate_object(object.parse().unwrap(), true))
                }
                Some(("fail", what)) => {
                    failing::fail(what);
                    "ok".into()
                }
                _ => panic!("the test asks for '{other}'"),
            },
        };
        say(&answer);
    }
    let _ = session.unmount(UnmountMode::Lazy);
    std::process::exit(0);
}

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By reading `/dev/fuse`.
    Device,
    /// Through io_uring, where the kernel offers it.
    Rings,
}

/// The options for the server's mount, with the transport that the test wants.
pub fn options(source: &str) -> MountOptions {
    MountOptions {
        ring: std::env::var(TRANSPORT).is_ok_and(|wanted| wanted == "rings"),
        ..MountOptions::of(source)
    }
}

fn outcome(result: Result<(), FuseError>) -> String {
    result.map_or_else(|error| format!("error: {error}"), |()| "ok".into())
}

fn say(line: &str) {
    println!("{MARK}{line}");
    std::io::stdout().flush().unwrap();
}

/// A mount in another process.
pub struct Mounted {
    directory: tempfile::TempDir,
    server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Mounted {
    /// Starts it; `None`, with the reason printed, where mounting is not possible.
    pub fn start(content: &str, transport: Transport) -> Option<Self> {
        Self::start_at(content, transport, tempfile::tempdir().unwrap())
    }

    /// The same at a directory that exists.
    pub fn start_at(content: &str, transport: Transport, directory: tempfile::TempDir) -> Option<Self> {
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .env(CONTENT, content)
            .env(
                TRANSPORT,
                match transport {
                    Transport::Device => "device",
                    Transport::Rings => "rings",
                },
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = server.stdin.take();
        let output = BufReader::new(server.stdout.take().unwrap());
        let mut mounted = Self {
            directory,
            server,
            input,
            output,
        };
        let answer = mounted.answer();
        if let Some(reason) = answer.strip_prefix("unavailable ") {
            println!("skipped: {reason}");
            return None;
        }
        assert_eq!(answer, "serving");
        Some(mounted)
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Asks the server something.
    pub fn ask(&mut self, question: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{question}").unwrap();
        self.answer()
    }

    /// Unmounts. Tries again while it is in use: a process that another test is just starting holds, for a moment,
    /// copies of all our open files.
    pub fn unmount(&mut self) {
        loop {
            let answer = self.ask("unmount");
            if !answer.contains("in use") {
                assert_eq!(answer, "ok");
                return;
            }
            std::thread::yield_now();
        }
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the server ended");
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_string();
            }
        }
    }

    /// Kills the server as `kill -9` does; the directory stays, with what is mounted on it.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        let empty = tempfile::tempdir().unwrap();
        std::mem::replace(&mut self.directory, empty)
    }

    pub fn server_process(&self) -> u32 {
        self.server.id()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The end of its input makes the server unmount and exit; what is stuck is killed.
        drop(self.input.take());
        for _ in 0..200 {
            if matches!(self.server.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = clear_stale(self.directory.path());
    }
}

/// Runs `body` on a mount of `content`, in a thread of its own under a watchdog; once with requests through the device
/// and, where the kernel offers that, once with requests through rings.
pub fn with_mount(content: &'static str, body: fn(&mut Mounted)) {
    with_mount_over(Transport::Device, content, body);
    with_mount_over(Transport::Rings, content, body);
}

/// The same with requests coming one way.
pub fn with_mount_over(transport: Transport, content: &'static str, body: fn(&mut Mounted)) {
    let Some(mut mounted) = Mounted::start(content, transport) else {
        return;
    };
    if transport == Transport::Rings && mounted.ask("transport") != "rings" {
        println!("skipped: no requests through io_uring here ({:?})", ring_switch());
        return;
    }
    let server = mounted.server_process();
    let directory = mounted.path("");
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body(&mut mounted);
        drop(mounted);
        let _ = done.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = finished.recv_timeout(DEADLINE) {
        // SAFETY: a plain system call; the process is a child that `mounted` has not waited for.
        unsafe { libc::kill(server as i32, libc::SIGKILL) };
        eprintln!("the test did not end within {DEADLINE:?}: its server at {directory:?} was killed");
        let _ = finished.recv_timeout(Duration::from_secs(10));
        std::process::abort();
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
