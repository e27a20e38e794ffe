//! `StoreModel`: what a store must hold, kept as batches in RAM.
//!
//! The rule: after any cut, kill or fault, the records are exactly the result of the first *n* batches, and *n* is at
//! least the number of those acknowledged by a flush; after the loss of a disk that alone may have had the newest of the
//! log, of those that were everywhere. Every batch writes its number under one key, so that *n* is
//! read back rather than guessed. What a record refers to is written in its value, so the references that each chunk
//! must have follow from the records alone.

use std::collections::{BTreeMap, VecDeque};

use terrace_store::{ChunkId, Sequence};

use crate::{
    models::Content,
    violation::{Check, Violation},
};

/// The key that every batch writes its number under.
pub const MARKER_KEY: &[u8] = &[0x20, 0];

/// The number of the newest batch, as its marker says; zero where there is none.
pub(crate) fn marker_number(value: Option<&[u8]>) -> Check<u64> {
    match value {
        None => Ok(0),
        Some(bytes) => bytes
            .get(1..9)
            .and_then(|number| number.try_into().ok())
            .map(u64::from_le_bytes)
            .ok_or_else(|| Violation("the marker has a wrong length".into())),
    }
}

/// A chunk that a record refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkUse {
    /// The chunk.
    pub id: ChunkId,
    /// What is in it.
    pub content: Content,
    /// References, in blocks.
    pub blocks: i64,
}

/// A record's value: chunks, and some bytes to make it longer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Value {
    /// What it refers to.
    pub uses: Vec<ChunkUse>,
    /// Anything.
    pub padding: Vec<u8>,
}

impl Value {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.uses.len() as u8];
        for chunk in &self.uses {
            bytes.extend_from_slice(&chunk.id.0.to_le_bytes());
            chunk.content.encode(&mut bytes);
            bytes.push(chunk.blocks as u8);
        }
        bytes.extend_from_slice(&self.padding);
        bytes
    }
}

type Change = (Vec<u8>, Option<Value>);

#[derive(Clone)]
struct Entry {
    number: u64,
    sequence: Option<Sequence>,
    changes: Vec<Change>,
}

/// The model.
#[derive(Default, Clone)]
pub struct StoreModel {
    /// State after batch `everywhere`.
    base: BTreeMap<Vec<u8>, Value>,
    /// The newest batch that every copy of the log has.
    everywhere: u64,
    durable: u64,
    later: VecDeque<Entry>,
    /// State after the newest batch.
    live: BTreeMap<Vec<u8>, Value>,
    newest: u64,
}

fn apply(state: &mut BTreeMap<Vec<u8>, Value>, changes: &[Change]) {
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

impl StoreModel {
    /// The number that the next batch writes under [`MARKER_KEY`].
    pub fn next_number(&self) -> u64 {
        self.newest + 1
    }

    /// The newest batch.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The newest batch known to be durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// A batch that was committed, with its sequence; `None` if the commit failed and may have happened.
    pub fn committed(&mut self, changes: Vec<Change>, sequence: Option<Sequence>) {
        self.newest += 1;
        apply(&mut self.live, &changes);
        self.later.push_back(Entry {
            number: self.newest,
            sequence,
            changes,
        });
    }

    /// A flush of `sequence` succeeded.
    pub fn flushed(&mut self, sequence: Sequence) {
        let flushed = |entry: &&Entry| entry.sequence.is_some_and(|of_entry| of_entry <= sequence);
        if let Some(entry) = self.later.iter().take_while(flushed).last() {
            self.durable = self.durable.max(entry.number);
        }
    }

    /// Everything that is durable is so in every copy of the log.
    pub fn is_everywhere(&mut self) {
        self.is_everywhere_until(self.durable);
    }

    /// The same up to this batch.
    pub fn is_everywhere_until(&mut self, number: u64) {
        let until = number.min(self.durable);
        while self.later.front().is_some_and(|entry| entry.number <= until) {
            if let Some(entry) = self.later.pop_front() {
                apply(&mut self.base, &entry.changes);
                self.everywhere = entry.number;
            }
        }
    }

    /// From now on what counts is what was everywhere: the copy of the log that had more is lost.
    pub fn lose_the_newest(&mut self) {
        self.durable = self.everywhere;
    }

    /// The store was opened again and holds the first `number` batches, the last of them at `sequence` or before; later
    /// ones are gone.
    pub fn recovered(&mut self, number: u64, sequence: Sequence) -> Check {
        crate::ensure!(
            number >= self.durable,
            "acknowledged batches are lost: batch {} was flushed, the store is at {number}",
            self.durable
        );
        crate::ensure!(
            number <= self.newest,
            "the store is at batch {number}, but only {} were ever committed",
            self.newest
        );
        self.later.retain(|entry| entry.number <= number);
        self.newest = number;
        self.live = self.base.clone();
        for entry in &mut self.later {
            apply(&mut self.live, &entry.changes);
            entry.sequence.get_or_insert(sequence);
        }
        // What an opening shows is durable, everywhere: it does not go back behind that.
        self.flushed(sequence);
        self.is_everywhere();
        Ok(())
    }

    /// What the store must hold now.
    pub fn live(&self) -> &BTreeMap<Vec<u8>, Value> {
        &self.live
    }

    /// References that each chunk must have now.
    pub fn references(&self) -> BTreeMap<ChunkId, i64> {
        let mut references = BTreeMap::new();
        for chunk in self.live.values().flat_map(|value| &value.uses) {
            *references.entry(chunk.id).or_insert(0) += chunk.blocks;
        }
        references
    }
}
