//! Looking many keys up at once: what neighbours share – the head of a table, a block of it – is fetched once for all.
//!
//! Invariants: the answer for a key is what [`Tree::get`] gives for it at some moment during the call; no lock is held
//! across a read of the storage.

use std::sync::Arc;

use bytes::Bytes;

use crate::run::Run;
use crate::table::{Head, Table, TableReader, find_in};
use crate::tree::{State, Tree};
use crate::version::{Layer, Version};
use crate::{MetaError, Operation, decode_count};

/// One key on its way through the layers.
struct Wanted<'a> {
    key: &'a [u8],
    hash: u64,
    /// Where the answer belongs.
    place: usize,
    found: Option<Operation>,
}

impl Wanted<'_> {
    /// Puts what an older layer has under what was found so far; whether nothing older can matter.
    fn put_under(&mut self, older: Operation) -> bool {
        let folded = match self.found.take() {
            Some(newer) => older.then(newer),
            None => older,
        };
        let settled = !matches!(folded, Operation::Add(_));
        self.found = Some(folded);
        settled
    }
}

/// A table that was opened, and the block of it that was looked into last.
struct Opened {
    head: Arc<Head>,
    block: Option<(usize, Bytes)>,
}

/// Looks ascending keys up in one run.
struct RunLookups<'a> {
    reader: &'a TableReader,
    run: &'a Run,
    table: usize,
    opened: Option<Opened>,
}

impl<'a> RunLookups<'a> {
    fn new(reader: &'a TableReader, run: &'a Run) -> Self {
        Self {
            reader,
            run,
            table: 0,
            opened: None,
        }
    }

    /// Looks `key` up; keys must come in ascending order.
    fn get(&mut self, key: &[u8], hash: u64) -> Result<Option<Operation>, MetaError> {
        let tables = &self.run.tables;
        // Most keys lie in the table of the one before.
        if tables
            .get(self.table)
            .is_some_and(|table| &*table.facts.last < key)
        {
            self.table += tables[self.table..].partition_point(|table| &*table.facts.last < key);
            self.opened = None;
        }
        match tables.get(self.table) {
            Some(table) if &*table.facts.first <= key => self.get_in(table, key, hash),
            _ => Ok(None),
        }
    }

    fn get_in(&mut self, table: &Arc<Table>, key: &[u8], hash: u64) -> Result<Option<Operation>, MetaError> {
        let opened = match &mut self.opened {
            Some(opened) => opened,
            none => none.insert(Opened {
                head: self.reader.head(table, true)?,
                block: None,
            }),
        };
        if !opened.head.may_contain(hash) {
            return Ok(None);
        }
        // The block of the key before holds this one too, if it ends behind it: blocks before it end below that key.
        let here = opened
            .block
            .take()
            .filter(|(index, _)| opened.head.last_key(*index) >= key);
        let (index, block) = match here {
            Some(here) => here,
            None => {
                let index = opened.head.seek(key);
                if index == opened.head.blocks() {
                    return Ok(None);
                }
                (index, self.reader.block(table, &opened.head, index)?)
            }
        };
        let found = find_in(table, &opened.head, index, &block, key);
        opened.block = Some((index, block));
        found
    }
}

impl Version {
    /// Takes `wanted`, ascending by key, through the layers.
    fn get_many(
        &self,
        reader: &TableReader,
        wanted: &mut Vec<Wanted<'_>>,
        done: &mut Answers,
    ) -> Result<(), MetaError> {
        for layer in &self.layers {
            match layer {
                Layer::Settled(run) => look(reader, run, wanted, done, |_| true)?,
                Layer::Merging(merge) => {
                    let merged = |key: &[u8]| merge.cursor.as_deref().is_some_and(|cursor| key <= cursor);
                    // Before the others: what is looked up in an input afterwards was not in the output.
                    look(reader, &merge.output, wanted, done, merged)?;
                    for run in &merge.inputs {
                        look(reader, run, wanted, done, |key| !merged(key))?;
                    }
                }
            }
            if wanted.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Looks those of `wanted` that are `there` up in a run; what is settled goes to the answers.
fn look(
    reader: &TableReader,
    run: &Run,
    wanted: &mut Vec<Wanted<'_>>,
    done: &mut Answers,
    there: impl Fn(&[u8]) -> bool,
) -> Result<(), MetaError> {
    let mut lookups = RunLookups::new(reader, run);
    let mut failure = None;
    wanted.retain_mut(|one| {
        if failure.is_some() || !there(one.key) {
            return true;
        }
        match lookups.get(one.key, one.hash) {
            Ok(Some(older)) => {
                let settled = one.put_under(older);
                if settled {
                    done.take(one);
                }
                !settled
            }
            Ok(None) => true,
            Err(error) => {
                failure = Some(error);
                true
            }
        }
    });
    failure.map_or(Ok(()), Err)
}

/// Values by the place of their keys.
struct Answers(Vec<Option<Bytes>>);

impl Answers {
    fn take(&mut self, wanted: &mut Wanted<'_>) {
        self.0[wanted.place] = wanted.found.take().and_then(Operation::into_value);
    }
}

/// What the memtables say of a key; whether nothing older can matter.
fn look_in_memory(state: &State, wanted: &mut Wanted<'_>) -> bool {
    std::iter::once(&state.active)
        .chain(&state.sealed)
        .any(|memtable| {
            memtable
                .get(wanted.key, wanted.hash)
                .is_some_and(|older| wanted.put_under(older))
        })
}

impl Tree {
    /// The newest values of `keys`, in their order; as [`Tree::get`] of each, but what neighbouring keys share is looked
    /// into once. A read that fails fails them all: who can use the others asks for each by itself then.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Bytes>>, MetaError> {
        let mut wanted: Vec<Wanted<'_>> = keys
            .iter()
            .enumerate()
            .map(|(place, key)| Wanted {
                key: key.as_ref(),
                hash: crate::filter::filter_hash(key.as_ref()),
                place,
                found: None,
            })
            .collect();
        wanted.sort_unstable_by_key(|one| one.key);
        let mut done = Answers(vec![None; keys.len()]);
        let state = self.current();
        wanted.retain_mut(|one| {
            let settled = look_in_memory(&state, one);
            if settled {
                done.take(one);
            }
            !settled
        });
        state.version.get_many(&self.reader, &mut wanted, &mut done)?;
        // What only additions were found of stands on nothing.
        wanted.iter_mut().for_each(|one| done.take(one));
        Ok(done.0)
    }

    /// What the memtables say of `key`, without a look into the tables; `None`: nothing, or only additions.
    pub fn recent(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let mut wanted = Wanted {
            key,
            hash: crate::filter::filter_hash(key),
            place: 0,
            found: None,
        };
        look_in_memory(&self.current(), &mut wanted).then(|| wanted.found.and_then(Operation::into_value))
    }

    /// The counts at `keys`, in their order, as [`Tree::get_count`] of each; see [`Tree::get_many`].
    pub fn get_counts<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<i64>, MetaError> {
        let values = self.get_many(keys)?;
        let counts = values
            .into_iter()
            .map(|value| value.and_then(|value| decode_count(&value)));
        Ok(counts.map(|count| count.unwrap_or(0)).collect())
    }
}
