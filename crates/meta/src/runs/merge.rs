//! `MergeCursor`: several sorted sources as one, newest first.
//!
//! Invariant: for each key the operations of all sources are folded from the newest down to the first that is not an
//! addition; a key comes once, keys ascend.

use std::{ops::Bound, sync::Arc};

use super::run::RunCursor;
use crate::{
    MetaError, Operation, Value,
    entries::{Key, Memtable, OperationRef},
};

/// Entries taken from a memtable under one hold of its lock, at first and at most.
const PAGE_FIRST: usize = 16;
const PAGE_MOST: usize = 512;

/// A position in a memtable, as of one sequence. Entries are copied out page by page.
pub(crate) struct MemoryCursor {
    memtable: Arc<Memtable>,
    sequence: u64,
    to: Vec<u8>,
    page: Vec<(Key, Operation)>,
    at: usize,
    more: bool,
    page_limit: usize,
}

impl MemoryCursor {
    /// Stands at the first entry that is not below `from`, as of `sequence` (the caller began a scan at it, or the
    /// memtable is sealed).
    pub(crate) fn new(
        memtable: Arc<Memtable>,
        sequence: u64,
        from: Bound<&[u8]>,
        to: &[u8],
        pages: usize,
    ) -> Self {
        let page_limit = pages.clamp(1, PAGE_FIRST);
        let mut page = Vec::with_capacity(page_limit);
        let more = memtable.page(from, to, sequence, page_limit, &mut page);
        Self {
            memtable,
            sequence,
            to: to.to_vec(),
            page,
            at: 0,
            more,
            page_limit,
        }
    }

    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.page.get(self.at).map(|(key, _)| key.as_slice())
    }

    #[inline]
    pub(crate) fn operation(&self) -> OperationRef<'_> {
        match self.page.get(self.at) {
            Some((_, operation)) => OperationRef::from(operation),
            None => OperationRef::Delete,
        }
    }

    pub(crate) fn advance(&mut self) {
        self.at += 1;
        if self.at < self.page.len() || !self.more {
            return;
        }
        self.page_limit = (self.page_limit * 4).min(PAGE_MOST);
        let last = self.page.pop().map(|(key, _)| key);
        self.page.clear();
        self.at = 0;
        let from = last
            .as_ref()
            .map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
        self.more = self
            .memtable
            .page(from, &self.to, self.sequence, self.page_limit, &mut self.page);
    }
}

/// One sorted source.
pub(crate) enum Source<'a> {
    Memory(MemoryCursor),
    Run(Box<RunCursor<'a>>),
}

impl Source<'_> {
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            Source::Memory(cursor) => cursor.key(),
            Source::Run(cursor) => cursor.key(),
        }
    }

    #[inline]
    fn load(&mut self) -> Result<(), MetaError> {
        match self {
            Source::Memory(_) => Ok(()),
            Source::Run(cursor) => cursor.load(),
        }
    }

    #[inline]
    fn operation(&self) -> OperationRef<'_> {
        match self {
            Source::Memory(cursor) => cursor.operation(),
            Source::Run(cursor) => cursor.operation(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<(), MetaError> {
        match self {
            Source::Memory(cursor) => cursor.advance(),
            Source::Run(cursor) => cursor.advance()?,
        }
        Ok(())
    }
}

/// What a key folds to; a value lies in [`MergeCursor::value`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folded {
    Value,
    Delete,
    Add(i64),
}

/// Several sources as one.
pub(crate) struct MergeCursor<'a> {
    /// Newest first.
    sources: Vec<Source<'a>>,
    /// The sources that stand at the smallest key, newest first.
    least: Vec<usize>,
    /// The source that stands at the smallest key above that, as far as is known: as long as the only one of `least` stays
    /// below it, it goes on to be the only one, which in tables whose keys ascend as they are made is nearly always so.
    next: Option<usize>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> MergeCursor<'a> {
    /// `sources` newest first.
    pub(crate) fn new(sources: Vec<Source<'a>>) -> Self {
        let least = Vec::with_capacity(sources.len());
        Self {
            sources,
            least,
            next: None,
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// The key that [`MergeCursor::next`] gave last.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value that [`MergeCursor::next`] gave last, if it said `Value`.
    pub(crate) fn value(&self) -> &[u8] {
        &self.value
    }

    /// Finds which sources stand at the smallest key. False at the end of all.
    pub(crate) fn find_least(&mut self) -> bool {
        if let ([one], Some(next)) = (&self.least[..], self.next)
            && let (Some(key), Some(next)) = (self.sources[*one].key(), self.sources[next].key())
            && key < next
        {
            return true;
        }
        self.least.clear();
        self.next = None;
        let mut smallest: Option<&[u8]> = None;
        let mut above: Option<&[u8]> = None;
        for (index, source) in self.sources.iter().enumerate() {
            let Some(key) = source.key() else { continue };
            let order = smallest.map_or(std::cmp::Ordering::Less, |smallest| key.cmp(smallest));
            match order {
                std::cmp::Ordering::Less => {
                    (above, self.next) = (smallest, self.least.first().copied());
                    smallest = Some(key);
                    self.least.clear();
                    self.least.push(index);
                }
                std::cmp::Ordering::Equal => self.least.push(index),
                std::cmp::Ordering::Greater => {
                    if above.is_none_or(|above| key < above) {
                        (above, self.next) = (Some(key), Some(index));
                    }
                }
            }
        }
        !self.least.is_empty()
    }

    /// After [`MergeCursor::find_least`]: if one source alone stands at an unopened table that no other source
    /// reaches into, that source's cursor.
    pub(crate) fn lone_table(&mut self) -> Option<&mut RunCursor<'a>> {
        let [index] = self.least[..] else { return None };
        let Source::Run(cursor) = &self.sources[index] else {
            return None;
        };
        let last = &cursor.unopened_table()?.facts.last;
        let reached = |(other, source): (usize, &Source<'_>)| {
            other != index && source.key().is_some_and(|key| key <= &**last)
        };
        if self.sources.iter().enumerate().any(reached) {
            return None;
        }
        match &mut self.sources[index] {
            Source::Run(cursor) => Some(cursor),
            Source::Memory(_) => None,
        }
    }

    /// How many sources stand at the smallest key.
    pub(crate) fn least(&self) -> usize {
        self.least.len()
    }

    /// Goes to the next key; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Folded>, MetaError> {
        if !self.find_least() {
            Ok(None)
        } else {
            self.take_least().map(Some)
        }
    }

    /// After [`MergeCursor::find_least`]: folds the smallest key and passes over it.
    pub(crate) fn take_least(&mut self) -> Result<Folded, MetaError> {
        let mut added: Option<i64> = None;
        let mut folded: Option<Folded> = None;
        for (nth, index) in self.least.iter().enumerate() {
            let source = &mut self.sources[*index];
            if folded.is_none() {
                source.load()?;
            }
            if nth == 0 {
                self.key.clear();
                self.key.extend_from_slice(source.key().unwrap_or_default());
            }
            if folded.is_none() {
                match (source.operation(), added) {
                    (OperationRef::Add(delta), _) => added = Some(added.unwrap_or(0).wrapping_add(delta)),
                    (OperationRef::Put(value), None) => {
                        self.value.clear();
                        self.value.extend_from_slice(value);
                        folded = Some(Folded::Value);
                    }
                    (OperationRef::Delete, None) => folded = Some(Folded::Delete),
                    (base, Some(delta)) => {
                        let sum = match base {
                            OperationRef::Put(value) => crate::decode_count(value).unwrap_or(0),
                            _ => 0,
                        };
                        folded = Some(match sum.wrapping_add(delta) {
                            0 => Folded::Delete,
                            sum => {
                                self.value.clear();
                                self.value.extend_from_slice(&Value::of_count(sum));
                                Folded::Value
                            }
                        });
                    }
                }
            }
        }
        for index in &self.least {
            self.sources[*index].advance()?;
        }
        Ok(folded.unwrap_or(Folded::Add(added.unwrap_or(0))))
    }
}
