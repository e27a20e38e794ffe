//! Looking many keys up at once: what neighbours share – the head of a table, a block of it – is fetched once for all, and
//! what they need of one run is read together (`batch_lookup.rs`).
//!
//! Invariants: the answer for a key is what [`Tree::get`] gives for it at some moment during the call; no lock is held
//! across a read of the storage.

use bytes::Bytes;

use super::{
    batch_lookup::Stretch,
    run::Run,
    version::{Layer, Version},
};
use crate::{
    MetaError, Operation, Value, decode_count,
    table::TableReader,
    tree::{State, Tree},
};

/// One key on its way through the layers.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a [u8],
    /// Its `filter_hash`.
    pub(crate) hash: u64,
    /// Where the answer belongs.
    place: usize,
    found: Option<Operation>,
    /// Nothing older can matter.
    is_settled: bool,
}

impl Wanted<'_> {
    /// Puts what an older layer has under what was found so far.
    pub(crate) fn put_under(&mut self, older: Operation) {
        let folded = match self.found.take() {
            Some(newer) => older.then(newer),
            None => older,
        };
        self.is_settled = !matches!(folded, Operation::Add(_));
        self.found = Some(folded);
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
    let mut rest = wanted.as_mut_slice();
    while !rest.is_empty() {
        let stretch = Stretch::read(reader, run, rest, &there)?;
        stretch.answer(rest)?;
        rest = rest.split_at_mut(stretch.keys()).1;
    }
    wanted.retain_mut(|one| {
        if one.is_settled {
            done.take(one);
        }
        !one.is_settled
    });
    Ok(())
}

/// What is set, by the place of the keys.
struct Answers(Vec<Option<Value>>);

impl Answers {
    fn take(&mut self, wanted: &mut Wanted<'_>) {
        self.0[wanted.place] = wanted.found.take().and_then(Operation::into_set);
    }
}

/// What the memtables say of a key; whether nothing older can matter.
fn look_in_memory(state: &State, wanted: &mut Wanted<'_>) -> bool {
    for memtable in std::iter::once(&state.active).chain(&state.sealed) {
        if let Some(older) = memtable.get(wanted.key, wanted.hash) {
            wanted.put_under(older);
        }
        if wanted.is_settled {
            break;
        }
    }
    wanted.is_settled
}

fn recent_of(state: &State, key: &[u8]) -> Option<Option<Bytes>> {
    let mut wanted = Wanted {
        key,
        hash: crate::table::filter_hash(key),
        place: 0,
        found: None,
        is_settled: false,
    };
    look_in_memory(state, &mut wanted).then(|| wanted.found.and_then(Operation::into_value))
}

impl Tree {
    /// The newest values of `keys`, in their order; as [`Tree::get`] of each, but what neighbouring keys share is looked
    /// into once. A read that fails fails them all: who can use the others asks for each by itself then.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, MetaError> {
        let mut wanted: Vec<Wanted<'_>> = keys
            .iter()
            .enumerate()
            .map(|(place, key)| Wanted {
                key: key.as_ref(),
                hash: crate::table::filter_hash(key.as_ref()),
                place,
                found: None,
                is_settled: false,
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
        recent_of(&self.current(), key)
    }

    /// What `key` was set to since [`Tree::flushed_sequence`] was `flushed`, without a look into the tables; in it `None` if it
    /// was deleted or not set. `None` if memory does not tell, since newer records went to tables meanwhile.
    pub fn recent_since(&self, key: &[u8], flushed: u64) -> Option<Option<Bytes>> {
        let state = self.current();
        recent_of(&state, key).or_else(|| (state.version.flushed_sequence == flushed).then_some(None))
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
