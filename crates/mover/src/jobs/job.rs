//! `Job`: one piece of background work: its record, and what users see of it.
//!
//! Invariants: numbers are not used twice; a job that ended shows everything done (100 %) or says why not; a record
//! that does not decode is dropped, since a job is never the only copy of anything.

use serde::Serialize;
use terrace_codec::{DecodeError, KeyWriter, Reader, Writer};
use terrace_dataset::{Time, format_time, keys};
use terrace_store::KEY_BYTES_MAX;

use super::leftovers::Left;
use crate::{mover::BENEATH, policy::Room};

const REASON_BYTES_MAX: usize = 1024;
/// Flags of a move: what it moves is a directory; a pin began it.
const IS_DIRECTORY: u8 = 1;
const IS_FOR_PIN: u8 = 2;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Moves the coldest content of a tier down until it is below its low-water mark.
    Demote,
    /// Moves what is read often up.
    Promote,
    /// Moves an object or dataset to a tier, asked for by hand or by a pin.
    Move,
    /// Work of the store in steps: reading and verifying everything.
    Scrub,
    /// Work of the store in steps: emptying segments that hold little.
    Compact,
    /// Work of the store in steps: emptying a device. Taken up again after a restart.
    Evacuate,
    /// Moves down what was not used for as long as its tier says.
    Age,
    /// Writes content in pieces anew, in order, where it lies.
    Relayout,
    /// Work of the store in steps: bringing a device up to date that was away.
    Resilver,
}

impl JobKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Demote | Self::Age => "demote",
            Self::Promote => "promote",
            Self::Move => "move",
            Self::Scrub => "scrub",
            Self::Compact => "compact",
            Self::Evacuate => "evacuate",
            Self::Relayout => "relayout",
            Self::Resilver => "resilver",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Demote => 1,
            Self::Promote => 2,
            Self::Move => 3,
            Self::Scrub => 4,
            Self::Compact => 5,
            Self::Evacuate => 6,
            Self::Age => 7,
            Self::Relayout => 8,
            Self::Resilver => 9,
        }
    }

    fn from_code(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            1 => Self::Demote,
            2 => Self::Promote,
            3 => Self::Move,
            4 => Self::Scrub,
            5 => Self::Compact,
            6 => Self::Evacuate,
            7 => Self::Age,
            8 => Self::Relayout,
            9 => Self::Resilver,
            _ => return Err(DecodeError::Invalid("kind of job")),
        })
    }

    /// Whether it moves content between tiers, or within one (and rests with `migration=off`, but for what
    /// brings dead blocks back where room is short).
    pub fn migrates(self) -> bool {
        matches!(self, Self::Demote | Self::Move) || self.is_round()
    }

    /// Whether it only shows a round of a policy, which ends with the process and begins anew by itself.
    pub(crate) fn is_round(self) -> bool {
        matches!(self, Self::Promote | Self::Age | Self::Relayout)
    }
}

/// How a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// At work.
    Running,
    /// Stopped by the user.
    Paused,
    /// Finished.
    Done,
    /// Stopped by an error; the reason says which.
    Failed,
    /// Given up by the user.
    Cancelled,
}

impl JobState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it will do nothing more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    fn code(self) -> u8 {
        match self {
            Self::Running => 1,
            Self::Paused => 2,
            Self::Done => 3,
            Self::Failed => 4,
            Self::Cancelled => 5,
        }
    }

    fn from_code(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            1 => Self::Running,
            2 => Self::Paused,
            3 => Self::Done,
            4 => Self::Failed,
            5 => Self::Cancelled,
            _ => return Err(DecodeError::Invalid("state of a job")),
        })
    }
}

/// One job as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    pub(crate) kind: JobKind,
    pub(crate) state: JobState,
    pub(crate) reason: String,
    pub(crate) started: Time,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
    /// Tier that content is moved off (demote).
    pub(crate) source: u8,
    /// Tier that it is moved to.
    pub(crate) target: u8,
    /// What is moved (move): a dataset, 0 for none. The number of the device (evacuate).
    pub(crate) dataset: u32,
    /// And in it the body of one object (move); 0 for all.
    pub(crate) body: u64,
    /// That object is a directory: the files beneath it are meant (move).
    pub(crate) is_directory: bool,
    /// Which pass over the records this is (demote): each takes hotter content.
    pub(crate) pass: u8,
    /// The next record to look at; empty at the start of a pass.
    pub(crate) cursor: Vec<u8>,
    /// What it makes room for (demote); `None`: it goes by marks.
    pub(crate) room: Option<Room>,
    /// A pin began it (move): it ends with that pin.
    pub(crate) for_pin: bool,
    /// What it had to leave where it is (move).
    pub(crate) left: Left,
}

impl Job {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer
            .u8(self.kind.code())
            .u8(self.state.code())
            .string(cut(&self.reason).as_bytes());
        self.started.encode(&mut writer);
        writer
            .varint(self.done_bytes)
            .varint(self.total_bytes)
            .u8(self.source)
            .u8(self.target);
        writer
            .u32(self.dataset)
            .u64(self.body)
            .u8(self.pass)
            .string(&self.cursor);
        if let Some(room) = self.room {
            room.encode(&mut writer);
        }
        if self.kind == JobKind::Move {
            let directory = u8::from(self.is_directory) * IS_DIRECTORY;
            writer.u8(directory | (u8::from(self.for_pin) * IS_FOR_PIN));
            self.left.encode(&mut writer);
        }
        writer.into_bytes()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let kind = JobKind::from_code(reader.u8("kind of job")?)?;
        let state = JobState::from_code(reader.u8("state of a job")?)?;
        let reason = reader.string(REASON_BYTES_MAX, "reason")?;
        let mut job = Self {
            kind,
            state,
            reason: String::from_utf8(reason.to_vec()).map_err(|_| DecodeError::Invalid("reason"))?,
            started: Time::decode(&mut reader)?,
            done_bytes: reader.varint("done")?,
            total_bytes: reader.varint("total")?,
            source: reader.u8("source")?,
            target: reader.u8("target")?,
            dataset: reader.u32("dataset")?,
            body: reader.u64("body")?,
            is_directory: false,
            pass: reader.u8("pass")?,
            cursor: reader.string(KEY_BYTES_MAX, "cursor")?.to_vec(),
            room: None,
            for_pin: false,
            left: Left::default(),
        };
        if kind == JobKind::Demote && reader.remaining() > 0 {
            job.room = Some(Room::decode(&mut reader)?);
        }
        if kind == JobKind::Move {
            let flags = reader.u8("flags")?;
            job.is_directory = flags & IS_DIRECTORY != 0;
            job.for_pin = flags & IS_FOR_PIN != 0;
            job.left = Left::decode(&mut reader)?;
        }
        reader.finish()?;
        Ok(job)
    }

    pub(crate) fn key(id: u64) -> Vec<u8> {
        KeyWriter::table(keys::TABLE_JOB).u64(id).finish()
    }

    /// It ends: everything that there was to do is done.
    pub(crate) fn finish(&mut self) {
        self.state = JobState::Done;
        self.total_bytes = if self.done_bytes == 0 {
            self.total_bytes
        } else {
            self.done_bytes
        };
        self.done_bytes = self.total_bytes;
        self.cursor = Vec::new();
    }

    /// Whether it moves what lies beneath pinned directories, since these are pinned.
    pub(crate) fn is_of_directories(&self) -> bool {
        self.kind == JobKind::Move && (self.body == BENEATH || self.is_directory && self.for_pin)
    }

    /// Takes over what a step did to its copy of this job. What was done to the job itself meanwhile holds.
    pub(crate) fn progressed(&mut self, copy: Self) {
        self.done_bytes = copy.done_bytes;
        self.total_bytes = copy.total_bytes;
        self.left = copy.left;
        if self.state == JobState::Running {
            self.state = copy.state;
            self.reason = copy.reason;
        }
        if (self.source, self.target) == (copy.source, copy.target) {
            self.pass = copy.pass;
            self.cursor = copy.cursor;
        }
    }

    /// It is given up, and not by whoever began it.
    pub(crate) fn end_because(&mut self, cause: &str) {
        self.state = JobState::Cancelled;
        if !self.reason.is_empty() {
            self.reason.push_str("; ");
        }
        self.reason.push_str(cause);
    }

    pub(crate) fn fail(&mut self, reason: String) {
        self.state = JobState::Failed;
        self.reason = reason;
        self.cursor = Vec::new();
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What users see of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobInfo {
    /// Its number.
    pub id: u64,
    /// `demote`, `promote`, `move`, `scrub`, `compact`, `evacuate`, `relayout`, `resilver`.
    pub kind: &'static str,
    /// `running`, `waiting` (the reason says for what), `paused`, `done`, `failed`, `cancelled`.
    pub state: &'static str,
    /// Why it runs, waits, or failed.
    pub reason: String,
    /// Done so far, bytes.
    pub done_bytes: u64,
    /// All of it, bytes, as far as is known; equals `done_bytes` at the end.
    pub total_bytes: u64,
    /// Bytes per second over the last while.
    pub rate: f64,
    /// Seconds left at that rate, if one is known.
    pub eta_seconds: Option<f64>,
    /// When it started, RFC 3339.
    pub started: String,
    /// It failed, and waits to be tried again; the reason says why.
    pub fails: bool,
}

impl JobInfo {
    pub(crate) fn of(id: u64, job: &Job, rate: f64, waiting: Option<&str>) -> Self {
        let left = job.total_bytes.saturating_sub(job.done_bytes) as f64;
        let running = job.state == JobState::Running;
        let rate = if running && waiting.is_none() { rate } else { 0.0 };
        Self {
            id,
            kind: job.kind.name(),
            state: if running && waiting.is_some() {
                "waiting"
            } else {
                job.state.name()
            },
            reason: match waiting.filter(|_| running) {
                Some(waiting) => format!("{}; {waiting}", job.reason),
                None => job.reason.clone(),
            },
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes.max(job.done_bytes),
            rate,
            // Before anything is done nobody knows.
            eta_seconds: (rate > 0.0 && job.done_bytes > 0).then(|| left / rate),
            started: format_time(job.started),
            fails: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_read_back_as_written_and_end_at_all() {
        let mut job = Job {
            kind: JobKind::Move,
            state: JobState::Running,
            reason: "ä".repeat(1000),
            started: Time { seconds: 5, nanos: 6 },
            done_bytes: 7,
            total_bytes: 100,
            source: 0,
            target: 1,
            dataset: 3,
            body: 9,
            pass: 2,
            cursor: vec![1, 2, 3],
            is_directory: false,
            room: None,
            for_pin: false,
            left: Left::default(),
        };
        let decoded = Job::decode(&job.encode()).unwrap();
        assert!(decoded.reason.len() <= REASON_BYTES_MAX && job.reason.starts_with(&decoded.reason));
        assert_eq!(
            Job {
                reason: String::new(),
                ..decoded
            },
            Job {
                reason: String::new(),
                ..job.clone()
            }
        );
        for cut in 0..job.encode().len() {
            assert!(Job::decode(&job.encode()[..cut]).is_err());
        }
        for (is_directory, for_pin) in [(true, false), (false, true), (true, true)] {
            (job.is_directory, job.for_pin, job.reason) = (is_directory, for_pin, String::new());
            job.left.unreadable(1, 5);
            assert_eq!(Job::decode(&job.encode()).as_ref(), Ok(&job));
        }
        job.finish();
        assert_eq!((job.done_bytes, job.total_bytes), (7, 7));
    }

    #[test]
    fn no_time_is_told_before_anything_was_done_or_while_nothing_is() {
        let mut job = Job {
            kind: JobKind::Move,
            state: JobState::Running,
            reason: "asked for".into(),
            started: Time { seconds: 5, nanos: 6 },
            done_bytes: 0,
            total_bytes: 100,
            source: 0,
            target: 1,
            dataset: 3,
            body: 9,
            pass: 0,
            cursor: Vec::new(),
            is_directory: false,
            room: None,
            for_pin: false,
            left: Left::default(),
        };
        assert_eq!(JobInfo::of(2, &job, 10.0, None).eta_seconds, None);
        job.done_bytes = 50;
        let info = JobInfo::of(2, &job, 10.0, None);
        assert_eq!((info.rate, info.eta_seconds), (10.0, Some(5.0)));
        let info = JobInfo::of(2, &job, 10.0, Some(crate::jobs::queue::AWAITS_WINDOW));
        assert_eq!((info.state, info.rate, info.eta_seconds), ("waiting", 0.0, None));
        // What it is to do grew less than it did.
        job.done_bytes = 120;
        let info = JobInfo::of(2, &job, 10.0, None);
        assert_eq!((info.done_bytes, info.total_bytes), (120, 120));
    }
}
