//! How far a scrub is, as a record of the pool: one that a restart interrupted goes on where it was, with what it had found.
//!
//! Invariants: one record, of at most about [`RUNS_END_BYTES`] bytes whatever was found, written at most every
//! [`KEEP_INTERVAL_NANOSECONDS`] and when something was found; it is committed after what the scrub repaired, so that nothing is
//! passed over that a crash undid; it goes in the same batch that keeps what the scrub found at its end; bytes that are no
//! record of a version known here are as none.

use std::collections::{BTreeMap, BTreeSet};

use terrace_chunk::ScrubCursor;
use terrace_codec::{DecodeError, Reader, Writer};
use terrace_store::ChunkId;

use super::scrub_record::{Outcome, count, list};
use crate::ScrubStatus;

/// Key of the record: a table of its own, with nothing else in it.
pub(super) const KEY: [u8; 1] = [0xf3];
/// How often the progress is kept where nothing is found, nanoseconds: what is read again after a crash.
pub(super) const KEEP_INTERVAL_NANOSECONDS: u64 = 10_000_000_000;
/// Damaged chunks whose files are looked for, at most.
pub(super) const LOST_CHUNKS_MAX: usize = 100_000;
/// Version of the record.
const VERSION: u8 = 1;
/// Longest report in it, bytes.
const REPORT_BYTES_MAX: usize = 100 << 10;
/// Beyond this no more damaged chunks are added, bytes.
const RUNS_END_BYTES: usize = 96 << 10;
const IS_PAUSED: u8 = 1;
const LOST_ARE_ALL: u8 = 2;

/// A scrub that is under way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Progress {
    pub(super) is_paused: bool,
    pub(super) cursor: ScrubCursor,
    pub(super) status: ScrubStatus,
    /// Damaged chunks of which the files are to be named, and whether these are all.
    pub(super) lost: BTreeSet<ChunkId>,
    pub(super) lost_are_all: bool,
    /// Failed reads and checksum errors of each device, by its number, while it ran.
    pub(super) errors: BTreeMap<u16, (u64, u64)>,
}

impl Progress {
    /// As a record. Of very many damaged chunks in very many places not all fit: then they are not said to be all.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let report = Outcome {
            status: self.status.clone(),
            damaged: Vec::new(),
            all_named: false,
        };
        let mut runs: Vec<(u64, u64)> = Vec::new();
        // Of the next chunk that would go on with the last run.
        let mut next = 0;
        for ChunkId(id) in &self.lost {
            match runs.last_mut().filter(|_| *id == next) {
                Some((_, length)) => *length += 1,
                None => runs.push((id.saturating_sub(next), 1)),
            }
            next = id.saturating_add(1);
        }
        let errors: Vec<_> = self.errors.iter().collect();
        let mut tail = Writer::new();
        let written = list(&mut tail, &runs, RUNS_END_BYTES, |entry, (gap, length)| {
            entry.varint(*gap).varint(*length);
        });
        let lost_are_all = self.lost_are_all && written == runs.len();
        let mut writer = Writer::new();
        writer
            .u8(VERSION)
            .u8((u8::from(self.is_paused) * IS_PAUSED) | (u8::from(lost_are_all) * LOST_ARE_ALL));
        self.cursor.encode(&mut writer);
        writer.varint(self.status.total_bytes).varint(self.status.short);
        list(&mut writer, &errors, RUNS_END_BYTES, |entry, (number, errors)| {
            entry
                .varint(u64::from(**number))
                .varint(errors.0)
                .varint(errors.1);
        });
        writer.string(&report.encode()).bytes(tail.as_bytes());
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8("version")? != VERSION {
            return Err(DecodeError::Invalid("version of the scrub's progress"));
        }
        let flags = reader.u8("flags")?;
        let cursor = ScrubCursor::decode(&mut reader)?;
        let total_bytes = reader.varint("all bytes")?;
        let short = reader.varint("short")?;
        let mut errors = BTreeMap::new();
        for _ in 0..count(&mut reader)? {
            let number = u16::try_from(reader.varint("device")?);
            let number = number.map_err(|_| DecodeError::Invalid("device"))?;
            errors.insert(
                number,
                (reader.varint("read errors")?, reader.varint("checksum errors")?),
            );
        }
        let status = Outcome::decode(reader.string(REPORT_BYTES_MAX, "report")?)?.status;
        let mut lost = BTreeSet::new();
        let mut next = 0u64;
        for _ in 0..count(&mut reader)? {
            let (gap, length) = (reader.varint("gap")?, reader.varint("length")?);
            let run = next.checked_add(gap).and_then(|first| {
                let room = LOST_CHUNKS_MAX.saturating_sub(lost.len()) as u64;
                Some((first, first.checked_add(length).filter(|_| length <= room)?))
            });
            let (first, end) = run.ok_or(DecodeError::Invalid("damaged chunks"))?;
            lost.extend((first..end).map(ChunkId));
            next = end;
        }
        reader.finish()?;
        let is_paused = flags & IS_PAUSED != 0;
        Ok(Self {
            is_paused,
            cursor,
            status: ScrubStatus {
                state: if is_paused { "paused" } else { "running" }.into(),
                total_bytes: total_bytes.max(status.done_bytes),
                ended: String::new(),
                eta_seconds: None,
                short,
                ..status
            },
            lost,
            lost_are_all: flags & LOST_ARE_ALL != 0,
            errors,
        })
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Progress {
    /// Whether there are no more damaged chunks than are looked for.
    pub(crate) fn is_bounded(&self) -> bool {
        self.lost.len() <= LOST_CHUNKS_MAX
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn progress(lost: impl IntoIterator<Item = u64>) -> Progress {
        let mut writer = Writer::new();
        writer.varint(70_001).u8(1).varint(3).varint(9).varint(1 << 33);
        let bytes = writer.into_bytes();
        let status = ScrubStatus {
            state: "paused".into(),
            started: "2026-11-25T08:00:00.000Z".into(),
            chunks: 70_000,
            done_bytes: 1 << 33,
            total_bytes: 1 << 34,
            errors: 5,
            repaired: 2,
            unmended: 1,
            short: 4,
            damage: vec!["chunk 7: gone".into()],
            ..ScrubStatus::default()
        };
        Progress {
            is_paused: true,
            cursor: ScrubCursor::decode(&mut Reader::new(&bytes)).unwrap(),
            status,
            lost: lost.into_iter().map(ChunkId).collect(),
            lost_are_all: true,
            errors: BTreeMap::from([(0, (1, 2)), (31, (0, 7))]),
        }
    }

    #[test]
    fn what_is_kept_comes_back() {
        for lost in [vec![], vec![0, 1, 2, 9, 1 << 40], vec![u64::MAX - 1]] {
            let kept = progress(lost);
            assert_eq!(Progress::decode(&kept.encode()).as_ref(), Ok(&kept));
        }
    }

    #[test]
    fn a_record_is_bounded_and_says_that_chunks_are_left_out() {
        let mut many = progress((0..100_000).map(|number| number * 1_000_000_007));
        many.status.damage = (0..100).map(|_| "l".repeat(1000)).collect();
        let bytes = many.encode();
        assert!(bytes.len() <= 120 << 10, "{}", bytes.len());
        let back = Progress::decode(&bytes).unwrap();
        assert!(!back.lost_are_all);
        assert!(back.lost.len() > 1000 && back.lost.is_subset(&many.lost));
        // Those of a device lie together.
        let together = progress((5..5 + 90_000).chain(1 << 30..(1 << 30) + 10_000));
        let bytes = together.encode();
        assert!(bytes.len() < 1000);
        assert_eq!(Progress::decode(&bytes).as_ref(), Ok(&together));
    }

    #[test]
    fn a_record_of_any_bytes_is_one_or_none() {
        let known = vec![progress([1, 2, 3, 90]).encode(), progress([]).encode()];
        terrace_fuzz::fuzz(
            env!("CARGO_MANIFEST_DIR"),
            "scrub_progress",
            known,
            None,
            &mut crate::fuzzing::scrub_progress,
        );
    }
}
