//! `Held`: the checkpoints of one dataset that must stay readable: snapshots (with names) and retained ones (without).
//!
//! Invariants: ascending by checkpoint; a name stands for one checkpoint; a checkpoint has at most one name.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use terrace_codec::{DecodeError, Reader, Writer};

use super::inode::Time;

/// Longest name, note or tag, bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
const TAGS_MAX: u64 = 1024;

/// One held checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldRecord {
    /// Snapshot name; empty for a checkpoint that retention holds.
    pub name: String,
    /// When it was taken.
    pub time: Time,
    /// What the user said of it.
    pub note: String,
    /// Tags that forbid destroying it.
    pub holds: Vec<String>,
    /// Content that the dataset mapped then, bytes.
    pub referenced_bytes: u64,
    /// Objects that the dataset had then.
    pub objects: u64,
}

impl HeldRecord {
    /// The value of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.string(self.name.as_bytes());
        self.time.encode(&mut writer);
        writer
            .string(self.note.as_bytes())
            .varint(self.holds.len() as u64);
        for tag in &self.holds {
            writer.string(tag.as_bytes());
        }
        writer.varint(self.referenced_bytes).varint(self.objects);
        writer.into_bytes()
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let name = text(&mut reader, "name of a snapshot")?;
        let time = Time::decode(&mut reader)?;
        let note = text(&mut reader, "note")?;
        let count = reader.varint("number of holds")?;
        if count > TAGS_MAX {
            return Err(DecodeError::Invalid("number of holds"));
        }
        let holds = (0..count)
            .map(|_| text(&mut reader, "hold"))
            .collect::<Result<_, _>>()?;
        let referenced_bytes = reader.varint("referenced bytes")?;
        let objects = reader.varint("objects")?;
        reader.finish()?;
        Ok(Self {
            name,
            time,
            note,
            holds,
            referenced_bytes,
            objects,
        })
    }
}

pub(crate) fn text(reader: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
    let bytes = reader.string(TEXT_BYTES_MAX, field)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Invalid(field))
}

/// The held checkpoints of a dataset.
#[derive(Debug, Clone, Default)]
pub struct Held {
    checkpoints: BTreeMap<u64, HeldRecord>,
    names: HashMap<String, u64>,
}

impl Held {
    /// Adds or replaces one.
    pub fn insert(&mut self, checkpoint: u64, record: HeldRecord) {
        self.remove(checkpoint);
        if !record.name.is_empty() {
            self.names.insert(record.name.clone(), checkpoint);
        }
        self.checkpoints.insert(checkpoint, record);
    }

    /// Takes one out.
    pub fn remove(&mut self, checkpoint: u64) -> Option<HeldRecord> {
        let record = self.checkpoints.remove(&checkpoint)?;
        self.names.remove(&record.name);
        Some(record)
    }

    /// The checkpoint of a snapshot.
    pub fn by_name(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// What is known of a held checkpoint.
    pub fn get(&self, checkpoint: u64) -> Option<&HeldRecord> {
        self.checkpoints.get(&checkpoint)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.checkpoints.is_empty()
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.checkpoints.len()
    }

    /// All, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &HeldRecord)> {
        self.checkpoints
            .iter()
            .map(|(checkpoint, record)| (*checkpoint, record))
    }

    /// The newest below `checkpoint`.
    pub fn newest_before(&self, checkpoint: u64) -> Option<u64> {
        self.checkpoints
            .range(..checkpoint)
            .next_back()
            .map(|(held, _)| *held)
    }

    /// The newest not above `checkpoint`.
    pub fn newest_until(&self, checkpoint: u64) -> Option<u64> {
        self.checkpoints
            .range(..=checkpoint)
            .next_back()
            .map(|(held, _)| *held)
    }

    /// The oldest above `checkpoint`.
    pub fn oldest_after(&self, checkpoint: u64) -> Option<u64> {
        self.checkpoints
            .range(checkpoint.checked_add(1)?..)
            .next()
            .map(|(held, _)| *held)
    }

    /// The newest taken at or before `time`.
    pub fn newest_at(&self, time: Time) -> Option<u64> {
        self.checkpoints
            .iter()
            .rev()
            .find(|(_, record)| record.time <= time)
            .map(|(held, _)| *held)
    }
}

/// The pool-wide checkpoint counter.
#[derive(Debug, Default)]
pub struct Checkpoints {
    current: AtomicU64,
}

impl Checkpoints {
    /// Starts in `current`.
    pub fn new(current: u64) -> Self {
        Self {
            current: AtomicU64::new(current),
        }
    }

    /// Goes up to at least `least`.
    pub(crate) fn raise(&self, least: u64) {
        self.current.fetch_max(least, Ordering::SeqCst);
    }

    /// The checkpoint in which changes are made now; not closed yet.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Closes the current checkpoint and returns its number; what is frozen later belongs to the next.
    pub fn close(&self) -> u64 {
        self.current.fetch_add(1, Ordering::SeqCst)
    }
}
