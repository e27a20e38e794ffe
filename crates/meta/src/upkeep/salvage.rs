//! Salvage: reading records from tables that were found on devices, without a manifest that says which of them count.
//!
//! What a table says of itself (its preface) is enough to tell what is newer: of two that hold a key, the one with the
//! later sequences wins, and a table that holds everything of some sequences speaks for all tables with sequences within
//! these, also by what it does *not* hold (deletions are dropped in the lowest run). Changes from a log stand among the
//! tables as if each were a table of one record.
//! Invariants: only blocks that match their sums are used; a block that does not is passed over, and older tables
//! speak for its keys; memory is bounded by the block cache and one block for each table that holds the key being read.
//! Additions are left out: counts cannot be trusted when some of their parts may be missing.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use terrace_sync::{Mutex, rank};

use crate::{
    Extent, ExtentStorage, KEY_BYTES_MAX, Preface,
    entries::OperationRef,
    table::{BlockCursor, Head, Released, Table, TableFacts, TableReader},
};

/// Most ranges of lost keys that are kept apart; beyond, the last one is widened.
const LOST_MAX: usize = 10_000;
/// Bytes read at once.
const WINDOW_BYTES: u32 = 256 << 10;

/// What a log says of a key: in which batch, and the value (`None`: deleted).
pub type LoggedChange = (u64, Option<Bytes>);

struct Found {
    table: Arc<Table>,
    /// The first block that can be read.
    first_block: usize,
}

/// Tables and changes from a log, read together.
pub struct Salvage {
    reader: TableReader,
    /// Newest first.
    tables: Vec<Found>,
    log: BTreeMap<Bytes, LoggedChange>,
    unusable: u64,
    lost: Mutex<BTreeMap<Vec<u8>, Vec<u8>>, rank::Leaf>,
}

/// A position in one table.
struct Cursor<'a> {
    found: &'a Found,
    rank: usize,
    head: Arc<Head>,
    block: usize,
    inside: Option<BlockCursor>,
    /// Keys right before the position that were lost: above the one, up to the other.
    hole: Option<(Vec<u8>, Vec<u8>)>,
}

impl Salvage {
    /// Takes tables whose prefaces were found, in any order; `extents` mean something to the storage. Tables whose head
    /// cannot be read are left out, and counted.
    pub fn open(
        storage: Arc<dyn ExtentStorage>,
        found: &[(Preface, Extent)],
        log: BTreeMap<Bytes, LoggedChange>,
        block_cache_bytes: usize,
    ) -> Self {
        let mut salvage = Self {
            reader: TableReader::new(storage, block_cache_bytes, [0; 16]),
            tables: Vec::new(),
            log,
            unusable: 0,
            lost: Mutex::default(),
        };
        let released: Arc<Released> = Arc::default();
        for (preface, extent) in found {
            match salvage.take(preface, *extent, &released) {
                Some(found) => salvage.tables.push(found),
                None => salvage.unusable += 1,
            }
        }
        salvage.tables.sort_by_key(|found| {
            let facts = &found.table.facts;
            (
                std::cmp::Reverse(facts.up_to),
                facts.above,
                std::cmp::Reverse(facts.number),
            )
        });
        salvage
    }

    fn take(&self, preface: &Preface, extent: Extent, released: &Arc<Released>) -> Option<Found> {
        let length = preface.bytes.checked_sub(preface.head_offset)?;
        let bytes = self
            .reader
            .verified(extent, preface.head_offset, length, preface.head_sum)
            .ok()?;
        let head = Head::decode(&bytes, preface.head_offset).ok()?;
        let mut facts = TableFacts {
            number: preface.number,
            extent,
            head_offset: preface.head_offset,
            head_sum: preface.head_sum,
            entries: preface.entries,
            unsettled: 0,
            above: preface.above,
            up_to: preface.up_to,
            first: Box::default(),
            last: head.last_key(head.blocks() - 1).into(),
        };
        // The first key is in no index: it is that of the first block that can be read.
        let probe = Table::new(facts.clone(), released.clone());
        for block in 0..head.blocks() {
            let first = self.reader.block(&probe, &head, block).ok().and_then(|bytes| {
                let mut cursor = BlockCursor::new(bytes).ok()?;
                cursor.advance().ok()?.then(|| cursor.key().to_vec())
            });
            if let Some(first) = first {
                facts.first = first.into_boxed_slice();
                return Some(Found {
                    table: Table::new(facts, released.clone()),
                    first_block: block,
                });
            }
            let last = head.last_key(block);
            let from = if block == 0 {
                &last[..last.len().min(1)]
            } else {
                head.last_key(block - 1)
            };
            self.note_lost(from, last);
        }
        None
    }

    fn note_lost(&self, above: &[u8], up_to: &[u8]) {
        let mut lost = self.lost.lock();
        if lost.len() >= LOST_MAX
            && let Some(mut last) = lost.last_entry()
        {
            if last.get().as_slice() < up_to {
                last.insert(up_to.to_vec());
            }
            return;
        }
        let end = lost.entry(above.to_vec()).or_default();
        if end.as_slice() < up_to {
            *end = up_to.to_vec();
        }
    }

    /// The newest batch of which a table or the log has something.
    pub fn newest_sequence(&self) -> u64 {
        let tables = self.tables.first().map_or(0, |found| found.table.facts.up_to);
        let log = self.log.values().map(|(sequence, _)| *sequence).max();
        tables.max(log.unwrap_or(0))
    }

    /// How many tables are read.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Tables whose head is damaged: their keys are not known.
    pub fn unusable(&self) -> u64 {
        self.unusable
    }

    /// Keys whose newest records were lost with damaged blocks that were met so far: above, up to.
    pub fn lost_ranges(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let lost = self.lost.lock();
        lost.iter()
            .map(|(above, up_to)| (above.clone(), up_to.clone()))
            .collect()
    }

    /// The records with `from <= key < to` (an empty `to`: no upper bound), ascending, at most `limit`.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Vec<(Bytes, Bytes)> {
        let mut records = Vec::new();
        let before_end = |key: &[u8]| to.is_empty() || key < to;
        // Tables that reach into the range, in order of their first keys; opened when the walk gets there.
        let mut waiting: Vec<usize> = (0..self.tables.len())
            .filter(|rank| {
                let facts = &self.tables[*rank].table.facts;
                &*facts.last >= from && before_end(&facts.first)
            })
            .collect();
        waiting.sort_by(|a, b| {
            self.tables[*b]
                .table
                .facts
                .first
                .cmp(&self.tables[*a].table.facts.first)
        });
        let mut logged = self
            .log
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        let mut change = logged.next();
        let mut open: Vec<Cursor<'_>> = Vec::new();
        while records.len() < limit {
            let least_open = open.iter().filter_map(Cursor::key).min();
            let least_log = change.as_ref().map(|(key, _)| &***key);
            let least = [least_open, least_log].into_iter().flatten().min();
            // A table that starts at or before the least key has a say.
            if let Some(rank) = waiting.last().copied()
                && least.is_none_or(|least| *self.tables[rank].table.facts.first <= *least)
            {
                waiting.pop();
                if let Some(cursor) = self.open_at(rank, from) {
                    let place = open.partition_point(|other| other.rank < rank);
                    open.insert(place, cursor);
                }
                continue;
            }
            let Some(least) = least.filter(|least| before_end(least)).map(<[u8]>::to_vec) else {
                break;
            };
            let logged_here = change
                .filter(|(key, _)| ***key == *least)
                .map(|(_, change)| change);
            if let Some(value) = resolve(&open, &least, logged_here) {
                records.push((Bytes::from(least.clone()), value));
            }
            if logged_here.is_some() {
                change = logged.next();
            }
            for cursor in &mut open {
                if cursor.key() == Some(&least) {
                    self.advance(cursor);
                }
            }
            open.retain(|cursor| cursor.inside.is_some());
        }
        records
    }

    /// A cursor at the first key of a table that is not below `from`; `None` if there is none.
    fn open_at(&self, rank: usize, from: &[u8]) -> Option<Cursor<'_>> {
        let found = &self.tables[rank];
        let head = self.reader.head(&found.table, true).ok()?;
        let mut cursor = Cursor {
            found,
            rank,
            block: head.seek(from).max(found.first_block),
            head,
            inside: None,
            hole: None,
        };
        self.enter(&mut cursor);
        while cursor.key().is_some_and(|key| key < from) {
            self.advance(&mut cursor);
        }
        cursor.inside.is_some().then_some(cursor)
    }

    /// Enters the block of the cursor, or the next one that can be read.
    fn enter(&self, cursor: &mut Cursor<'_>) {
        cursor.inside = None;
        while cursor.block < cursor.head.blocks() {
            let mut read = Vec::new();
            let got = self.reader.blocks(
                &cursor.found.table,
                &cursor.head,
                cursor.block,
                WINDOW_BYTES.min(cursor.found.table.facts.extent.bytes),
                true,
                &mut read,
            );
            let inside = got.ok().and_then(|()| read.into_iter().next()).and_then(|bytes| {
                let mut inside = BlockCursor::new(bytes).ok()?;
                inside.advance().ok()?.then_some(inside)
            });
            if inside.is_some() {
                cursor.inside = inside;
                return;
            }
            let above = match cursor.block {
                0 => Vec::new(),
                block => cursor.head.last_key(block - 1).to_vec(),
            };
            let up_to = cursor.head.last_key(cursor.block).to_vec();
            self.note_lost(&above, &up_to);
            let above = cursor.hole.take().map_or(above, |(above, _)| above);
            cursor.hole = Some((above, up_to));
            cursor.block += 1;
        }
    }

    fn advance(&self, cursor: &mut Cursor<'_>) {
        let Some(inside) = &mut cursor.inside else { return };
        match inside.advance() {
            Ok(true) => cursor.hole = None,
            // What follows a malformed entry is lost; its sum was right, so it was written so.
            Ok(false) | Err(_) => {
                cursor.hole = None;
                cursor.block += 1;
                self.enter(cursor);
            }
        }
    }
}

impl Cursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.inside.as_ref().map(BlockCursor::key)
    }

    fn sequences(&self) -> (u64, u64) {
        let facts = &self.found.table.facts;
        (facts.above, facts.up_to)
    }

    /// Whether the table can say something about `key`, which its position has not passed.
    fn speaks_for(&self, key: &[u8]) -> bool {
        key.len() <= KEY_BYTES_MAX
            && self
                .hole
                .as_ref()
                .is_none_or(|(above, up_to)| key <= above.as_slice() || key > up_to.as_slice())
    }
}

/// The value of `key` by all that speak for it, newest first; `None`: deleted, or only counted.
fn resolve(open: &[Cursor<'_>], key: &[u8], logged: Option<&LoggedChange>) -> Option<Bytes> {
    let mut spoken: Vec<(u64, u64)> = Vec::new();
    let is_dead = |spoken: &[(u64, u64)], (above, up_to): (u64, u64)| {
        spoken.iter().any(|(from, to)| *from <= above && up_to <= *to)
    };
    let mut logged = logged;
    for cursor in open {
        let sequences = cursor.sequences();
        if let Some((sequence, value)) = logged.filter(|(sequence, _)| *sequence > sequences.1) {
            if !is_dead(&spoken, (sequence - 1, *sequence)) {
                return value.clone();
            }
            logged = None;
        }
        if is_dead(&spoken, sequences) || !cursor.speaks_for(key) {
            continue;
        }
        if cursor.key() == Some(key)
            && let Some(inside) = &cursor.inside
        {
            match inside.operation() {
                OperationRef::Put(value) => return Some(Bytes::copy_from_slice(value)),
                OperationRef::Delete => return None,
                OperationRef::Add(_) => continue,
            }
        }
        spoken.push(sequences);
    }
    let (sequence, value) = logged?;
    if is_dead(&spoken, (sequence.saturating_sub(1), *sequence)) {
        None
    } else {
        value.clone()
    }
}
