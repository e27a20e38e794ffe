//! `Subtree`: the files beneath a directory that is moved, by hand or for its pin, found by a walk in bounded steps.
//!
//! Invariants: the walk looks at the directory and what is beneath alone, and changes nothing; each directory is looked at once,
//! whatever is renamed meanwhile; memory is in proportion to the files and directories beneath. It is in RAM alone: after a
//! restart it is walked again, and what was moved before is not moved twice. What is to be passed over is neither looked at nor counted.

use std::collections::{BTreeSet, HashSet};

use terrace_dataset::{EntryRecord, FileKind, keys, split_value};
use terrace_store::{Store, StoreError};

use super::pins;
use crate::extent::{Page, reader};

/// Entries that one step looks at.
const STEP_ENTRIES: usize = 128;

/// See the module.
pub(crate) struct Subtree {
    dataset: u32,
    /// Directories to be looked at, each with the key from which on.
    waiting: Vec<(u64, Vec<u8>)>,
    seen: HashSet<u64>,
    passed_over: HashSet<u64>,
    bodies: BTreeSet<u64>,
    bytes: u64,
}

impl Subtree {
    /// `passed_over`: files and directories beneath that are no part of it.
    pub(crate) fn new(dataset: u32, directory: u64, passed_over: HashSet<u64>) -> Self {
        Self {
            dataset,
            waiting: vec![(directory, keys::entry_from(dataset, directory, 0))],
            seen: HashSet::from([directory]),
            passed_over,
            bodies: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Files that are known without a walk, and what they map.
    pub(crate) fn of(dataset: u32, bodies: BTreeSet<u64>, bytes: u64) -> Self {
        Self {
            dataset,
            waiting: Vec::new(),
            seen: HashSet::new(),
            passed_over: HashSet::new(),
            bodies,
            bytes,
        }
    }

    /// Whether all of it was walked.
    pub(crate) fn is_known(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Looks at some entries.
    pub(crate) fn step(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let Some((directory, from)) = self.waiting.last_mut() else {
            return Ok(());
        };
        let end = keys::entry_end(self.dataset, *directory);
        let entries = store.scan(from, &end, STEP_ENTRIES)?;
        match entries.last() {
            Some((last, _)) if entries.len() == STEP_ENTRIES => {
                *from = last.iter().copied().chain([0]).collect();
            }
            _ => drop(self.waiting.pop()),
        }
        for (_, value) in &entries {
            let Ok(entry) = split_value(value).and_then(|(_, payload)| EntryRecord::decode(payload)) else {
                continue;
            };
            match entry.kind {
                _ if self.passed_over.contains(&entry.object) => {}
                FileKind::Directory if self.seen.insert(entry.object) => {
                    let first = keys::entry_from(self.dataset, entry.object, 0);
                    self.waiting.push((entry.object, first));
                }
                FileKind::File => {
                    if let Some(inode) = pins::inode_of(store, self.dataset, entry.object)?
                        && self.bodies.insert(inode.body)
                    {
                        self.bytes = self.bytes.saturating_add(inode.blocks.saturating_mul(4096));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What the files map, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bodies of the files.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = u64> {
        self.bodies.iter().copied()
    }

    /// Whether this is one of the files.
    pub(crate) fn holds(&self, dataset: u32, body: u64) -> bool {
        self.dataset == dataset && self.bodies.contains(&body)
    }

    /// The next region records of the files, of as many files as come to `limit` of them.
    pub(crate) fn next_page(
        &self,
        store: &dyn Store,
        cursor: &[u8],
        limit: usize,
    ) -> Result<Page, StoreError> {
        // It may stand behind a record.
        let key = cursor.get(..keys::region(0, 0, 0).len()).unwrap_or_default();
        let first = keys::parse_region(key).map_or(0, |(_, body, _)| body);
        let mut page = Page {
            found: Vec::new(),
            next: None,
        };
        for body in self.bodies.range(first..) {
            if page.found.len() >= limit {
                page.next = Some(keys::region(self.dataset, *body, 0));
                break;
            }
            let more = reader::next_of_dataset(store, self.dataset, *body, cursor, limit)?;
            page.found.extend(more.found);
            if more.next.is_some() {
                page.next = more.next;
                break;
            }
        }
        Ok(page)
    }
}
