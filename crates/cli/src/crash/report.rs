//! The crash report: a small text that a daemon begins when it starts and that is removed when it ends as it should. What it holds when
//! the next daemon starts tells how the last one ended.
//!
//! Invariants: it is written with single writes to a file that is open already, by code that neither allocates nor locks; it is read as
//! the bytes of a stranger: bounded, and nothing of it reaches a terminal but printable characters.

use terrace_engine::{Unwritten, rfc3339};

/// Names the form.
const MAGIC: &str = "terrace-crash 1";
/// Longest detail that is told, bytes.
const DETAIL_BYTES_MAX: usize = 2048;

/// Why a daemon ended unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// An invariant was broken.
    InternalError,
    /// A signal that nobody sent: it used memory that it should not, or aborted for want of memory.
    Signal(i32),
    /// It was gone without a word: SIGKILL.
    Killed,
    /// It was gone with the machine.
    Machine,
}

impl Cause {
    /// Kind of event of what the daemon did to itself.
    pub const CRASH: &str = "crash";
    /// Kind of event of what was done to it.
    pub const KILLED: &str = "killed";

    /// Whether the daemon ended itself.
    pub fn is_abort(&self) -> bool {
        matches!(self, Self::InternalError | Self::Signal(_))
    }

    /// Of the event that tells of it.
    pub fn event_kind(&self) -> &'static str {
        match self.is_abort() {
            true => Self::CRASH,
            false => Self::KILLED,
        }
    }
}

/// How a daemon ended that nobody stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnexpectedEnd {
    /// When, nanoseconds since 1970; of one that was killed: when it was started.
    pub nanoseconds: u64,
    /// Why.
    pub cause: Cause,
    /// Where, what, and what it served.
    pub detail: String,
}

/// What a report begins with.
pub fn header() -> String {
    format!(
        "{MAGIC}\npid {}\nstarted {}\nboot {}\n",
        std::process::id(),
        now_nanoseconds(),
        boot_id()
    )
}

/// Nanoseconds since 1970.
pub fn now_nanoseconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| time.as_nanos() as u64)
}

/// Which run of the machine this is.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

impl UnexpectedEnd {
    /// Of a report; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return None;
        }
        let mut end = Self {
            nanoseconds: 0,
            cause: Cause::Killed,
            detail: String::new(),
        };
        let mut signal = None;
        let mut is_panic = false;
        let (mut thread, mut request, mut place, mut message) = ("", "", "", "");
        for line in lines {
            let Some((key, value)) = line.split_once(' ') else {
                continue;
            };
            match key {
                "started" | "ended" => end.nanoseconds = value.parse().unwrap_or(end.nanoseconds),
                "boot" if value != boot_id() => end.cause = Cause::Machine,
                "signal" => signal = value.parse().ok(),
                "thread" => thread = value,
                "request" => request = value,
                "at" => (place, is_panic) = (value, true),
                "message" => message = value,
                _ => {}
            }
        }
        match (is_panic, signal) {
            (true, _) => end.cause = Cause::InternalError,
            (false, Some(signal)) => end.cause = Cause::Signal(signal),
            (false, None) => return Some(end),
        }
        let mut detail = String::new();
        for (before, value) in [
            (" at ", place),
            (" in thread ", thread),
            (" while it served the ", request),
            (": ", message),
        ] {
            if !value.is_empty() {
                detail += before;
                detail.extend(value.chars().map(|c| if c.is_control() { ' ' } else { c }));
            }
        }
        let mut cut = detail.len().min(DETAIL_BYTES_MAX);
        while !detail.is_char_boundary(cut) {
            cut -= 1;
        }
        detail.truncate(cut);
        end.detail = detail.trim().to_owned();
        Some(end)
    }

    /// As an event. Of one that is gone without a word it is not known when it went.
    pub fn event(&self) -> Unwritten {
        Unwritten {
            nanoseconds: match self.cause.is_abort() {
                true => self.nanoseconds,
                false => now_nanoseconds(),
            },
            kind: self.cause.event_kind().to_owned(),
            text: self.describe(),
        }
    }

    /// As users read it.
    pub fn describe(&self) -> String {
        let space = if self.detail.is_empty() { "" } else { " " };
        let detail = &self.detail;
        match &self.cause {
            Cause::InternalError => format!("the daemon ended on an internal error{space}{detail}"),
            Cause::Signal(signal) => {
                let why = match *signal {
                    libc::SIGABRT => {
                        "SIGABRT, as when memory cannot be had or a library gives up: its log may say more"
                    }
                    libc::SIGSEGV => "SIGSEGV, a use of memory that it does not have",
                    libc::SIGBUS => "SIGBUS, as when a mapped file was cut off or could not be read",
                    libc::SIGILL => "SIGILL",
                    libc::SIGFPE => "SIGFPE",
                    libc::SIGSYS => "SIGSYS, a system call that it may not make",
                    _ => "a signal",
                };
                format!("the daemon ended unexpectedly by signal {signal} ({why}){space}{detail}")
            }
            Cause::Killed => format!(
                "the daemon that was started at {} ended unexpectedly without a word: by SIGKILL, perhaps the kernel's for want of \
                 memory ('dmesg' tells)",
                rfc3339(self.nanoseconds)
            ),
            Cause::Machine => format!(
                "the daemon that was started at {} went down with the machine, and was not stopped before",
                rfc3339(self.nanoseconds)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(rest: &str) -> UnexpectedEnd {
        UnexpectedEnd::parse((header() + rest).as_bytes()).unwrap()
    }

    #[test]
    fn a_report_tells_where_and_what_and_for_whom() {
        let end = parsed(
            "ended 1700000000000000000\nthread 'control'\nrequest control request 'list'\nat a/b.rs:7:9\nmessage no\u{1b}[2J way\n",
        );
        assert_eq!(end.cause, Cause::InternalError);
        assert_eq!(end.nanoseconds, 1_700_000_000_000_000_000);
        assert_eq!(
            end.describe(),
            "the daemon ended on an internal error at a/b.rs:7:9 in thread 'control' while it served the control request 'list': no [2J way"
        );
        let end = parsed("ended 5\nsignal 7\nthread 'x'\n");
        assert_eq!(end.cause, Cause::Signal(7));
        assert!(end.describe().contains("by signal 7 (SIGBUS") && end.describe().contains("in thread 'x'"));
    }

    #[test]
    fn one_that_is_gone_without_a_word_was_killed_or_went_with_the_machine() {
        assert_eq!(parsed("").cause, Cause::Killed);
        let other = header().replace(&boot_id(), "another");
        let end = UnexpectedEnd::parse(other.as_bytes()).unwrap();
        assert_eq!((end.cause.is_abort(), end.cause), (false, Cause::Machine));
    }

    #[test]
    fn reports_of_any_bytes_are_read_and_bounded() {
        let seed = (header() + "ended 5\nat x\nmessage y\n").into_bytes();
        let mut all = vec![
            seed.clone(),
            vec![0xff; 5000],
            Vec::new(),
            [seed.as_slice(), &[b'z'; 60_000]].concat(),
        ];
        for at in 0..seed.len() {
            let mut changed = seed.clone();
            changed[at] ^= 0x55;
            all.push(changed);
            all.push(seed[..at].to_vec());
        }
        for bytes in all {
            if let Some(end) = UnexpectedEnd::parse(&bytes) {
                assert!(end.detail.len() <= DETAIL_BYTES_MAX);
                assert!(!end.describe().contains(char::is_control));
            }
        }
    }
}
