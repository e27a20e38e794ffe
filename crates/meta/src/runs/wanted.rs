//! `Wanted`: a key that is looked up among others; and `Answers`, where what was found of all goes.
//!
//! Invariant: what is settled does not change any more, whatever older layers hold.

use crate::{
    Operation, Value,
    entries::{Memtable, filter_hash},
};

/// One key on its way through the layers.
pub(crate) struct Wanted<'a> {
    pub(super) key: &'a [u8],
    /// Its `filter_hash`.
    pub(super) hash: u64,
    /// Where the answer belongs.
    place: usize,
    found: Option<Operation>,
    /// Nothing older can matter.
    is_settled: bool,
}

impl<'a> Wanted<'a> {
    /// `place`: that of its answer.
    pub(crate) fn new(key: &'a [u8], place: usize) -> Self {
        Self {
            key,
            hash: filter_hash(key),
            place,
            found: None,
            is_settled: false,
        }
    }

    pub(crate) fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Looks it up in a memtable that is older than all before.
    pub(crate) fn look_in(&mut self, memtable: &Memtable) {
        if let Some(older) = memtable.get(self.key, self.hash) {
            self.put_under(older);
        }
    }

    /// Whether nothing older can matter.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// What was found.
    pub(crate) fn take(&mut self) -> Option<Operation> {
        self.found.take()
    }

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

/// What is set, by the place of the keys.
pub(crate) struct Answers(Vec<Option<Value>>);

impl Answers {
    /// Nothing yet, for so many keys.
    pub(crate) fn new(keys: usize) -> Self {
        Self(vec![None; keys])
    }

    pub(crate) fn take(&mut self, wanted: &mut Wanted<'_>) {
        self.0[wanted.place] = wanted.take().and_then(Operation::into_set);
    }

    pub(crate) fn all(self) -> Vec<Option<Value>> {
        self.0
    }
}
