//! What happened in a pool (events) and which commands changed it (the command log): rings of records in the store.
//!
//! Invariants: a ring holds at most [`ENTRIES_MAX`] entries and an entry at most [`TEXT_BYTES_MAX`]; entries are
//! committed with the next flush, never flushed for their own sake; a ring that cannot be written stops nothing, and what it was to
//! hold is told as long as the pool is open, and after that by whoever kept it elsewhere ([`KeepEvents`]): that the pool takes nothing
//! any more is what users look for there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_codec::{KeyWriter, Reader, Writer};
use terrace_device::Clock;
use terrace_store::{Batch, Store, StoreError};
use terrace_sync::{Mutex, rank};

/// Table of the entries: ring, number.
const TABLE_JOURNAL: u8 = 0xf0;
/// Table of the rings' next numbers.
const TABLE_JOURNAL_NEXT: u8 = 0xf1;
/// Most entries of a ring.
pub(crate) const ENTRIES_MAX: u64 = 4096;
/// Longest text of an entry, bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;

/// Longest kind of an entry, bytes.
const KIND_BYTES_MAX: usize = 64;

/// Which ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    /// What happened.
    Events = 0,
    /// Commands that changed the pool.
    Commands = 1,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number, growing by one.
    pub id: u64,
    /// When, RFC 3339.
    pub time: String,
    /// Of an event: `opened`, `scrub`, `device`, …; of a command: the user.
    pub kind: String,
    /// What, in words; of a command: its words.
    pub text: String,
}

/// Most entries of a ring that are kept in memory, as the store does not take them.
const UNWRITTEN_MAX: usize = 256;

/// An entry that the store has not taken yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwritten {
    /// When, nanoseconds since 1970.
    pub nanoseconds: u64,
    /// As [`Entry::kind`].
    pub kind: String,
    /// As [`Entry::text`].
    pub text: String,
}

/// Who keeps events outside of a pool that does not take them, until it does.
pub trait KeepEvents: Send + Sync {
    /// What is kept for the pool with this id.
    fn kept(&self, pool_id: &str) -> Vec<Unwritten>;
    /// Keeps these, and nothing else. What cannot be kept is lost with the process, and stops nothing.
    fn keep(&self, pool_id: &str, events: &[Unwritten]);
}

#[derive(Default)]
struct Next {
    /// Number of the next entry that is written.
    number: u64,
    /// What comes from there on.
    unwritten: Vec<Unwritten>,
}

/// Both rings of a pool.
pub(crate) struct EventLog {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// As [`KeepEvents`] names it.
    pool_id: String,
    keeper: Option<Arc<dyn KeepEvents>>,
    next: Mutex<[Next; 2], rank::engine::Events>,
}

impl EventLog {
    /// The rings of a store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        pool_id: String,
        keeper: Option<Arc<dyn KeepEvents>>,
    ) -> Result<Self, StoreError> {
        let mut next: [Next; 2] = Default::default();
        for (ring, next) in next.iter_mut().enumerate() {
            if let Some(value) = store.get(&KeyWriter::table(TABLE_JOURNAL_NEXT).u8(ring as u8).finish())? {
                // A damaged number starts the ring again: it is a log, not data.
                next.number = Reader::new(&value).varint("next").unwrap_or(0);
            }
        }
        Ok(Self {
            store,
            clock,
            pool_id,
            keeper,
            next: Mutex::new(next),
        })
    }

    /// Notes that something happened.
    pub(crate) fn add(&self, kind: &str, text: &str) {
        self.add_now(Ring::Events, kind, text);
        if let Some(keeper) = &self.keeper {
            let unwritten = self.unwritten();
            if !unwritten.is_empty() {
                keeper.keep(&self.pool_id, &unwritten);
            }
        }
    }

    /// Notes a command that changed the pool.
    pub(crate) fn add_command(&self, user: &str, words: &str) {
        self.add_now(Ring::Commands, user, words);
    }

    /// Takes the events of an earlier run into the pool, that did not take them then.
    pub(crate) fn take_kept(&self) {
        let Some(keeper) = &self.keeper else { return };
        let kept = keeper.kept(&self.pool_id);
        if kept.is_empty() {
            return;
        }
        // Until they are durable they stay where they are.
        let taken = self
            .add_kept(kept)
            .and_then(|()| self.store.flush(self.store.newest()));
        match taken {
            Ok(()) if self.unwritten().is_empty() => keeper.keep(&self.pool_id, &[]),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "events of an earlier run were not taken into the pool"),
        }
    }

    /// Adds what was kept elsewhere, with its own times, but for what the ring has already: it may have taken that after all.
    fn add_kept(&self, kept: Vec<Unwritten>) -> Result<(), StoreError> {
        let known = self.read(Ring::Events, 0, 2 * UNWRITTEN_MAX)?;
        let is_new = |entry: &Unwritten| {
            let time = rfc3339(entry.nanoseconds);
            !known
                .iter()
                .any(|known| known.time == time && known.text == entry.text)
        };
        self.add_all(Ring::Events, kept.into_iter().filter(is_new).collect());
        Ok(())
    }

    /// Events that the store has not taken.
    fn unwritten(&self) -> Vec<Unwritten> {
        self.next.lock()[Ring::Events as usize].unwritten.clone()
    }

    fn add_now(&self, ring: Ring, kind: &str, text: &str) {
        let entry = Unwritten {
            nanoseconds: self.clock.now_nanoseconds(),
            kind: kind.to_owned(),
            text: text.to_owned(),
        };
        self.add_all(ring, vec![entry]);
    }

    /// Adds entries; the oldest go. One that the store does not take is told all the same, and written with the next one that it does.
    fn add_all(&self, ring: Ring, entries: Vec<Unwritten>) {
        if entries.is_empty() {
            return;
        }
        let mut next = self.next.lock();
        let next = &mut next[ring as usize];
        for entry in entries {
            if next.unwritten.len() == UNWRITTEN_MAX {
                next.unwritten.pop();
            }
            next.unwritten.push(Unwritten {
                kind: cut(&entry.kind, KIND_BYTES_MAX).to_owned(),
                text: cut(&entry.text, TEXT_BYTES_MAX).to_owned(),
                ..entry
            });
        }
        let mut batch = Batch::new();
        let mut id = next.number;
        for entry in &next.unwritten {
            let mut value = Writer::new();
            value
                .varint(entry.nanoseconds)
                .string(entry.kind.as_bytes())
                .string(entry.text.as_bytes());
            batch.put(key(ring, id), value.into_bytes());
            if id >= ENTRIES_MAX {
                batch.delete(key(ring, id - ENTRIES_MAX));
            }
            id += 1;
        }
        let mut value = Writer::new();
        value.varint(id);
        batch.put(
            KeyWriter::table(TABLE_JOURNAL_NEXT).u8(ring as u8).finish(),
            value.into_bytes(),
        );
        match self.store.commit(batch) {
            Ok(_) => {
                next.number = id;
                next.unwritten.clear();
            }
            Err(error) => tracing::warn!("the journal could not be written: {error}"),
        }
    }

    /// The newest entries with a number of at least `from`, oldest first, at most `limit`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) fn read(&self, ring: Ring, from: u64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let next = self.next.lock();
        let next = &next[ring as usize];
        let end = next.number + next.unwritten.len() as u64;
        let oldest = end.saturating_sub(ENTRIES_MAX.min(limit as u64)).max(from);
        let mut entries: Vec<Entry> = match oldest < next.number {
            true => {
                let records = self
                    .store
                    .scan(&key(ring, oldest), &key(ring, next.number), limit)?;
                records
                    .iter()
                    .filter_map(|(key, value)| decode(key, value))
                    .collect()
            }
            false => Vec::new(),
        };
        let unwritten = (next.number..).zip(&next.unwritten);
        let unwritten = unwritten.filter(|(id, _)| *id >= oldest);
        entries.extend(unwritten.map(|(id, entry)| Entry {
            id,
            time: rfc3339(entry.nanoseconds),
            kind: entry.kind.clone(),
            text: entry.text.clone(),
        }));
        Ok(entries)
    }
}

pub(crate) fn key(ring: Ring, id: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_JOURNAL).u8(ring as u8).u64(id).finish()
}

pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Entry> {
    let mut reader = Reader::new(key.get(2..)?);
    let id = reader.key_u64("id").ok()?;
    let mut reader = Reader::new(value);
    let time = reader.varint("time").ok()?;
    let kind = reader.string(KIND_BYTES_MAX, "kind").ok()?;
    let text = reader.string(TEXT_BYTES_MAX, "text").ok()?;
    Some(Entry {
        id,
        time: rfc3339(time),
        kind: String::from_utf8_lossy(kind).into_owned(),
        text: String::from_utf8_lossy(text).into_owned(),
    })
}

pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A time as RFC 3339 in UTC, to the millisecond.
pub fn rfc3339(nanoseconds: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or_default();
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use terrace_device::ManualClock;
    use terrace_store::MemoryStore;

    use super::*;

    #[test]
    fn entries_of_any_bytes_are_entries_or_none() {
        let value = {
            let mut writer = Writer::new();
            writer
                .varint(1_700_000_000_000_000_000)
                .string(b"pool")
                .string("made with 2 devices".as_bytes());
            writer.into_bytes()
        };
        terrace_fuzz::fuzz(
            env!("CARGO_MANIFEST_DIR"),
            "journal",
            vec![value],
            None,
            &mut crate::fuzzing::journal,
        );
    }

    fn open(store: &Arc<MemoryStore>, nanoseconds: u64) -> EventLog {
        let clock = Arc::new(ManualClock::new(nanoseconds));
        EventLog::open(store.clone(), clock, String::new(), None).unwrap()
    }

    #[test]
    fn entries_come_back_in_order_and_survive_reopening() {
        let store = Arc::new(MemoryStore::new(1 << 30));
        let log = open(&store, 1_700_000_000_000_000_000);
        log.add("opened", "the pool was opened");
        log.add_command("root", "terrace fs create tank/a");
        let log = open(&store, 1_700_000_001_000_000_000);
        log.add("scrub", "started");
        let events = log.read(Ring::Events, 0, 100).unwrap();
        assert_eq!(events.iter().map(|entry| entry.id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(events[0].time, "2023-11-14T22:13:20.000Z");
        assert_eq!(log.read(Ring::Events, 1, 100).unwrap().len(), 1);
        assert_eq!(
            log.read(Ring::Commands, 0, 100).unwrap()[0].text,
            "terrace fs create tank/a"
        );
    }

    #[test]
    fn a_ring_is_bounded() {
        let store = Arc::new(MemoryStore::new(1 << 30));
        let log = open(&store, 1);
        let long = "é".repeat(TEXT_BYTES_MAX);
        for number in 0..ENTRIES_MAX + 5 {
            log.add("x", if number % 1000 == 0 { &long } else { "y" });
        }
        let entries = log.read(Ring::Events, 0, usize::MAX).unwrap();
        assert_eq!(entries.len() as u64, ENTRIES_MAX);
        assert_eq!(entries[0].id, 5);
        let all = store
            .scan(&[TABLE_JOURNAL], &[TABLE_JOURNAL + 1], usize::MAX)
            .unwrap();
        assert_eq!(all.len() as u64, ENTRIES_MAX);
    }
}
