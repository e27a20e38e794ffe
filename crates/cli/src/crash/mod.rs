//! How a daemon ends that nobody stopped: its last words, who tells them, and when it is not started again by itself.
//!
//! Invariants: a broken invariant ends the process at once, after its cause was written down; what was written down is told by the next
//! `status` and kept as an event; a pool whose daemon aborted [`ABORTS_MAX`] times within [`ABORTS_WITHIN`] is started by hand only, so
//! that no client can go on killing it with the same request.

mod hook;
mod report;

use std::{fs, io, time::Duration};

use serde::{Deserialize, Serialize};
use terrace_control::Failure;
use terrace_engine::{Unwritten, rfc3339};

use report::{Cause, UnexpectedEnd};

use crate::machine::{KeptEvents, Places, make_private, replace_file};

/// So many aborts end the automatic start…
const ABORTS_MAX: usize = 3;
/// …within this time.
const ABORTS_WITHIN: Duration = Duration::from_secs(300);
/// Most bytes of a file of this module that are read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// When the daemon of a pool aborted, nanoseconds since 1970, since it was started by hand or stopped.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Aborts {
    aborts: Vec<u64>,
}

/// What is known of a pool's crashes.
pub struct Crashes<'a> {
    places: &'a Places,
    pool: &'a str,
}

/// As long as it lives, the end of this process is noted; dropped, it ended as it should.
pub struct Watch<'a> {
    crashes: Crashes<'a>,
}

impl Watch<'_> {
    /// It was stopped, and all is saved.
    pub fn ended_well(self) {
        self.crashes
            .remove(&self.crashes.places.aborts_file(self.crashes.pool));
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        hook::close();
        self.crashes
            .remove(&self.crashes.places.crash_file(self.crashes.pool));
    }
}

impl<'a> Crashes<'a> {
    /// Of a pool.
    pub fn of(places: &'a Places, pool: &'a str) -> Self {
        Self { places, pool }
    }

    /// For the daemon that holds the pool's lock: files what the last one left, and watches over this one from here on. What cannot be
    /// written stops nothing.
    pub fn watch(self, pool_id: &str) -> Watch<'a> {
        if let Some(end) = self.pending() {
            tracing::warn!("in its last run {}", end.describe());
            self.file(pool_id, &end);
        }
        let path = self.places.crash_file(self.pool);
        let opened = path
            .parent()
            .map_or(Ok(()), make_private)
            .and_then(|()| fs::File::create(&path))
            .and_then(|mut file| {
                io::Write::write_all(&mut file, report::header().as_bytes())?;
                Ok(file)
            });
        let file = opened
            .inspect_err(|error| tracing::warn!(%error, "what ends the daemon could not be told later"))
            .ok();
        hook::install(file);
        Watch { crashes: self }
    }

    /// How the last daemon ended, if it did so unasked and no other has filed it. While one runs this means nothing.
    fn pending(&self) -> Option<UnexpectedEnd> {
        UnexpectedEnd::parse(&self.read(&self.places.crash_file(self.pool))?)
    }

    /// How the last daemon ended, if the pool has not taken that as an event yet.
    pub fn last(&self, pool_id: &str) -> Option<Unwritten> {
        let pending = self.pending().map(|end| end.event());
        pending.or_else(|| self.filed(pool_id))
    }

    /// The same, of what a daemon or a start by hand has filed.
    pub fn filed(&self, pool_id: &str) -> Option<Unwritten> {
        KeptEvents::of(self.places, self.pool).newest(pool_id, &[Cause::CRASH, Cause::KILLED])
    }

    fn file(&self, pool_id: &str, end: &UnexpectedEnd) {
        KeptEvents::of(self.places, self.pool).add(pool_id, end.event());
        if end.cause.is_abort() {
            let mut aborts = self.aborts();
            aborts.push(end.nanoseconds);
            let surplus = aborts.len().saturating_sub(ABORTS_MAX);
            aborts.drain(..surplus);
            self.save(&Aborts { aborts });
        }
    }

    /// Why the pool is not started by itself; `None` if it is.
    pub fn refusal(&self) -> Option<Failure> {
        let mut aborts = self.aborts();
        let pending = self.pending().filter(|end| end.cause.is_abort());
        aborts.extend(pending.as_ref().map(|end| end.nanoseconds));
        let first = *aborts.iter().rev().nth(ABORTS_MAX - 1)?;
        let last = *aborts.last()?;
        if last.saturating_sub(first) > ABORTS_WITHIN.as_nanos() as u64 {
            return None;
        }
        let pool = self.pool;
        let how = match pending {
            Some(end) => format!("at {} {}", rfc3339(last), end.describe()),
            None => format!("the last time at {}", rfc3339(last)),
        };
        Some(Failure::new(
            format!("start pool '{pool}'"),
            format!(
                "its daemon ended on an error of its own {ABORTS_MAX} times within {} minutes, {how}; it is not started by itself any more",
                ABORTS_WITHIN.as_secs() / 60
            ),
            format!(
                "'terrace start {pool}' starts it all the same, 'terrace verify {pool}' reads it and changes nothing; see '{}'",
                self.places.log_file(pool).display()
            ),
        ))
    }

    /// What the last daemon that was started said at its end, if it ended before it was ready.
    pub fn last_words(&self) -> Option<String> {
        self.pending()
            .filter(|end| end.cause.is_abort())
            .map(|end| end.describe())
    }

    /// Somebody starts the pool by hand: what was before counts no more.
    pub fn forgive(&self, pool_id: &str) {
        if let Some(end) = self.pending() {
            self.file(pool_id, &end);
            self.remove(&self.places.crash_file(self.pool));
        }
        self.remove(&self.places.aborts_file(self.pool));
    }

    fn aborts(&self) -> Vec<u64> {
        let text = self.read(&self.places.aborts_file(self.pool));
        let kept: Option<Aborts> = text.and_then(|text| serde_json::from_slice(&text).ok());
        kept.unwrap_or_default().aborts
    }

    fn save(&self, aborts: &Aborts) {
        let saved = serde_json::to_vec(aborts)
            .map_err(io::Error::other)
            .and_then(|text| replace_file(&self.places.aborts_file(self.pool), &text));
        if let Err(error) = saved {
            tracing::warn!(%error, "how often the daemon aborted cannot be kept");
        }
    }

    fn read(&self, path: &std::path::Path) -> Option<Vec<u8>> {
        use io::Read;
        let mut text = Vec::new();
        let file = fs::File::open(path).ok()?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
        Some(text)
    }

    fn remove(&self, path: &std::path::Path) {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn abort(places: &Places, minute: u64) {
        let crashes = Crashes::of(places, "tank");
        let end = UnexpectedEnd {
            nanoseconds: minute * MINUTE,
            cause: Cause::InternalError,
            detail: "at a.rs:1:1: no".into(),
        };
        crashes.file("id", &end);
    }

    #[test]
    fn three_aborts_in_five_minutes_end_the_automatic_start_until_it_is_started_by_hand() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::below(directory.path());
        let refused = || Crashes::of(&places, "tank").refusal();
        for minute in [0, 2, 6] {
            assert!(refused().is_none());
            abort(&places, minute);
        }
        assert!(refused().is_none(), "the first is six minutes before the last");
        abort(&places, 7);
        let failure = refused().unwrap().to_string();
        for words in [
            "3 times within 5 minutes",
            "'terrace start tank'",
            "'terrace verify tank'",
            "tank.log",
        ] {
            assert!(failure.contains(words), "{words}: {failure}");
        }
        Crashes::of(&places, "tank").forgive("id");
        assert!(refused().is_none());
        abort(&places, 8);
        abort(&places, 8);
        assert!(refused().is_none(), "two since then");
    }
}
