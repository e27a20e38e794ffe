//! Commits and the group commit.
//!
//! Invariants:
//! - A batch gets its number, its place in the pending log payload and its place in the tree under one lock.
//! - A flush is led by one caller: it takes the pending payload, lands the data of every chunk appended before and, beside
//!   that, appends one log entry (a second one if a chunk had to be placed elsewhere), then flushes each touched device
//!   once. Only then the sequence is durable; waiting callers are woken after that, and those whose batch came later
//!   elect the next leader.
//! - The copy of the log on a slower device is waited for when the entry tells of chunks that the loss of the faster one
//!   would leave, or when that copy is far behind; else it is written later. What may be written over is decided by what
//!   is durable in every copy.
//! - A leader that panics leaves its place, and stops the store: what it had taken of the pending batches is not in the log.
//! - A failure that is not made good by another copy stops the store for good: no later flush reports success.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use terrace_log::{Appended, Behind, Log};
use terrace_meta::Tree;
use terrace_pool::Pool;
use terrace_store::StoreError;
use terrace_sync::{Clock, Round, Rounds, rank};

use crate::{
    Handles, append::SegmentWriter, catalog::Catalog, encoding::Format, ledger::Ledger,
    metadata::MetaStorage, space::SpaceView, stop::Stop,
};

/// How far a slower copy of the log may be behind before commits wait for it, bytes.
const BEHIND_BYTES_MAX: u64 = 1 << 20;

/// How often who waits for a leader looks whether that can still come through.
const LEADER_LOOKED_AT: Duration = Duration::from_secs(1);
/// So long after a device was found not to answer a leader who does not hang at it has come on.
const SILENCE_GRACE: Duration = Duration::from_secs(2);
/// How long somebody who began after the device was found silent is waited for.
const INDIRECT_SILENCE: Duration = Duration::from_secs(10);

/// Whether a leader who began at `since` may be waiting for a device that was `found` silent, rather than be slow. Monotonic nanoseconds.
fn may_hang(since: u64, found: u64, now: u64) -> bool {
    // One who began later was refused by the device itself, but may wait for another who asked it before.
    let patience = match since < found {
        true => Duration::ZERO,
        false => INDIRECT_SILENCE,
    };
    let ago = |moment: u64| Duration::from_nanos(now.saturating_sub(moment));
    ago(found) >= SILENCE_GRACE && ago(since) >= patience
}

/// The log, group commits and checkpoints: what makes batches durable.
pub(crate) struct Journal {
    pub(super) pool: Arc<Pool>,
    pub(super) tree: Arc<Tree>,
    pub(super) log: Arc<Log>,
    pub(super) meta: Arc<MetaStorage>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) stop: Arc<Stop>,
    pub(super) space: Arc<SpaceView>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) writer: Arc<SegmentWriter>,
    /// The version of the pool.
    pub(super) format: Format,
    clock: Arc<dyn Clock>,
    /// Everything up to this sequence is durable.
    durable: AtomicU64,
    flushes: Rounds<Result<u64, StoreError>, rank::append::Flushes>,
    pub(super) end: EndOfLog,
}

impl Journal {
    /// Of these parts; everything up to sequence `durable` is so.
    #[expect(clippy::too_many_arguments, reason = "it is put together once")]
    pub(crate) fn new(
        handles: &Handles,
        stop: &Arc<Stop>,
        space: &Arc<SpaceView>,
        catalog: &Arc<Catalog>,
        writer: &Arc<SegmentWriter>,
        durable: u64,
        format: Format,
        end: EndOfLog,
    ) -> Self {
        Self {
            pool: handles.pool.clone(),
            tree: handles.tree.clone(),
            log: handles.log.clone(),
            meta: handles.meta.clone(),
            ledger: handles.ledger.clone(),
            stop: stop.clone(),
            space: space.clone(),
            catalog: catalog.clone(),
            writer: writer.clone(),
            format,
            clock: handles.options.clock.clone(),
            durable: AtomicU64::new(durable),
            flushes: Rounds::default(),
            end,
        }
    }

    /// Everything up to this sequence is durable.
    fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    /// Everything up to this sequence is durable in every copy of the log: no opening goes back behind it, whichever
    /// device is lost. Segments that were given up later may still be needed.
    pub(crate) fn durable_everywhere(&self) -> u64 {
        self.log.everywhere(self.durable())
    }

    /// Whether the end of the log may have gone with a device that was not there when the store was opened.
    pub(crate) fn end_without(&self) -> Option<terrace_log::EndWithout> {
        self.end.without
    }

    /// Why the end of the log was given up when the store was opened, if it was ([`Options::rewind`](crate::Options::rewind)).
    pub(crate) fn given_up(&self) -> Option<&str> {
        self.end.given_up.as_deref()
    }

    /// Bytes of the log that its copy on a slower device does not have yet.
    pub(crate) fn behind_bytes(&self) -> u64 {
        self.log.due_bytes()
    }

    /// Brings the copy of the log on a slower device up to date.
    pub(crate) fn catch_up(&self) {
        self.log.catch_up();
    }

    /// Makes everything up to this sequence durable, together with whoever asks at the same time.
    pub(crate) fn flush_until(&self, sequence: u64) -> Result<(), StoreError> {
        let flush = Flush {
            journal: self,
            sequence,
        };
        match self.flushes.join(&*self.clock, LEADER_LOOKED_AT, &flush)? {
            _ if self.durable() >= sequence => Ok(()),
            Some(Ok(_)) => Err(StoreError::Invalid(format!(
                "sequence {sequence} was never committed"
            ))),
            Some(Err(error)) => Err(error),
            None => Err(self.stop.latch("a flush was interrupted by an internal error")),
        }
    }

    /// Nobody waits for somebody who may wait for a device that does not answer: it may be so for good. What is to become durable stays
    /// with him, and is so once he has come through.
    pub(crate) fn refuse_to_wait_for(&self, since: u64) -> Result<(), StoreError> {
        let found = self.pool.first_found_silent();
        let hangs = found.is_some_and(|found| may_hang(since, found, self.clock.monotonic_nanoseconds()));
        match self.pool.silent().first().filter(|_| hangs) {
            Some((_, path, _)) => Err(StoreError::Device(
                format!("cannot flush {path}: the device does not answer").into(),
            )),
            None => Ok(()),
        }
    }

    /// Makes everything committed so far durable; returns up to which sequence.
    fn lead(&self, durable: u64) -> Result<u64, StoreError> {
        let mut places = BTreeSet::new();
        let mut entries: Option<Appended> = None;
        let last = loop {
            // Looked at before the batches are taken: of a chunk that is placed elsewhere from here on these may not know.
            let before = self.writer.relocations();
            let (first, last, payload, more_places) = self.catalog.take_pending();
            places.extend(more_places);
            if first == 0 {
                self.writer.land_data()?;
            } else {
                let appended = self.writer.land_data_beside(|data| {
                    self.log
                        .append_beside(first, last, durable, &payload, data)
                        .map_err(|error| StoreError::Device(error.to_string().into()))
                })?;
                match &mut entries {
                    Some(entries) => entries.join(appended),
                    None => entries = Some(appended),
                }
            }
            if self.writer.relocations() == before {
                break last;
            }
            // Chunks had to be placed elsewhere: the batches that say so follow before anything is flushed.
        };
        let Some(appended) = entries else {
            return Ok(last);
        };
        self.landed_in_log();
        let data = self.writer.take_dirty();
        let apart = |place: &u16| !appended.groups.iter().all(|group| group.contains(place));
        let wait = places.iter().any(apart) || self.log.due_bytes() > BEHIND_BYTES_MAX;
        self.flush_appended(&data, &appended, wait)?;
        Ok(last)
    }

    /// Flushes what was appended and the data before it, with the slower copies of the log if they are waited for; or if
    /// the faster ones fail.
    fn flush_appended(
        &self,
        data: &BTreeSet<Vec<u16>>,
        appended: &Appended,
        wait: bool,
    ) -> Result<(), StoreError> {
        let is_behind = appended.behind.iter().any(Option::is_some);
        let behind = (wait && is_behind).then(|| self.log.write_behind());
        let slower = behind.as_ref().map(Behind::devices).unwrap_or_default();
        let mut groups = data.clone();
        for (group, later) in appended.groups.iter().zip(&appended.behind) {
            let later = later.filter(|device| slower.contains(device));
            groups.insert(group.iter().copied().chain(later).collect());
            // Those that hold what was due before.
            groups.extend(slower.iter().map(|device| [&group[..], &[*device]].concat()));
        }
        match self.flush_groups(&groups) {
            Ok(failed) => {
                if let Some(behind) = behind {
                    behind.finish(&failed);
                }
                Ok(())
            }
            Err(_) if behind.is_none() && is_behind => self.flush_appended(data, appended, true),
            Err(error) => Err(error),
        }
    }

    /// Flushes all devices of `groups`; of each group at least one must succeed. Returns those that did not.
    fn flush_groups(&self, groups: &BTreeSet<Vec<u16>>) -> Result<Vec<u16>, StoreError> {
        let mut devices: Vec<u16> = groups.iter().flatten().copied().collect();
        devices.sort_unstable();
        devices.dedup();
        let Err(error) = self.pool.flush(&devices) else {
            return Ok(Vec::new());
        };
        // Which one was it? A device whose flush failed goes on failing, so asking again tells.
        let failed: Vec<u16> = devices
            .into_iter()
            .filter(|device| self.pool.flush(&[*device]).is_err())
            .collect();
        tracing::error!(?failed, %error, "a flush failed");
        if failed.is_empty()
            || groups
                .iter()
                .any(|group| group.iter().all(|device| failed.contains(device)))
        {
            return Err(StoreError::Device(error.to_string().into()));
        }
        Ok(failed)
    }
}

/// What an opening found of the end of the log.
#[derive(Debug, Default)]
pub(crate) struct EndOfLog {
    /// It may have gone with a device that was not there.
    pub(crate) without: Option<terrace_log::EndWithout>,
    /// Why it was given up, if it was.
    pub(crate) given_up: Option<String>,
}

/// What somebody wants to be durable.
struct Flush<'a> {
    journal: &'a Journal,
    sequence: u64,
}

impl Round for Flush<'_> {
    type Result = Result<u64, StoreError>;
    type Refusal = StoreError;

    fn is_served(&self, _is_later: bool) -> bool {
        self.journal.durable() >= self.sequence
    }

    fn may_wait(&self, since: u64, is_late: bool) -> Result<(), StoreError> {
        match is_late {
            true => self.journal.refuse_to_wait_for(since),
            false => self.journal.stop.check_running(),
        }
    }

    fn may_lead(&self) -> Result<(), StoreError> {
        self.journal.stop.check_running()?;
        // To lead would be to wait in the kernel, with what is pending.
        match self.journal.pool.is_silent() {
            true => Err(StoreError::Device(
                "cannot flush: no device of the pool answers".into(),
            )),
            false => Ok(()),
        }
    }

    fn lead(&self) -> Result<u64, StoreError> {
        let journal = self.journal;
        match journal.lead(journal.durable()) {
            Ok(now) => {
                journal.durable.fetch_max(now, Release);
                Ok(now)
            }
            Err(StoreError::Stopped(cause)) => Err(StoreError::Stopped(cause)),
            Err(error) => Err(journal.stop.latch(&error.to_string())),
        }
    }

    fn interrupted(&self) {
        self.journal
            .stop
            .latch("a flush was interrupted by an internal error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_given_up_only_once_he_may_hang_at_the_silent_device() {
        let at = |seconds: u64| seconds * 1_000_000_000;
        // He began before it was found silent: he may have asked it. For a moment he may still come through.
        assert!(!may_hang(at(0), at(30), at(31)));
        assert!(may_hang(at(0), at(30), at(32)));
        // He began after, so that the device refused him: he can hang only behind another.
        assert!(!may_hang(at(40), at(30), at(49)));
        assert!(may_hang(at(40), at(30), at(50)));
        assert!(!may_hang(at(31), at(30), at(31)));
    }
}
