//! `Memtable`: the records that are not yet in tables, sorted, in memory.
//!
//! Invariants: a reader sees whole batches only – a large batch is put in under several short holds of the lock, with
//! a sequence above `visible`, and becomes visible at its last one; a version that a running scan may still need
//! is kept behind the newer one. A version is already folded with all older ones of the same key *in this memtable*.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound,
};

use terrace_sync::{Mutex, RwLock, rank};

use super::{
    filter::{GrowingFilter, filter_hash},
    key::Key,
    operation::Operation,
};

/// Operations put in under one hold of the lock.
const OPERATIONS_PER_HOLD: usize = 512;
/// What an entry takes besides its key and value: the node slots at their usual filling.
const ENTRY_BYTES: usize = 130;
/// What a kept older version takes besides its value.
const OLDER_BYTES: usize = 72;

struct Versioned {
    sequence: u64,
    operation: Operation,
    older: Option<Box<Versioned>>,
}

impl Versioned {
    fn at(&self, sequence: u64) -> Option<&Operation> {
        let mut version = self;
        while version.sequence > sequence {
            version = version.older.as_deref()?;
        }
        Some(&version.operation)
    }
}

struct Entries {
    map: BTreeMap<Key, Versioned>,
    /// Batches up to this sequence are visible.
    visible: u64,
    bytes: usize,
}

/// One generation of records in memory.
pub(crate) struct Memtable {
    /// Of the keys put in: most lookups are for keys that are not here. Asked without the lock.
    filter: GrowingFilter,
    entries: RwLock<Entries, rank::meta::Memtable>,
    /// Sequences that running scans read at.
    scans: Mutex<Vec<u64>, rank::Leaf>,
}

fn value_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Put(value) => value.heap_bytes(),
        Operation::Delete | Operation::Add(_) => 0,
    }
}

impl Memtable {
    /// An empty memtable that starts after `sequence`, for about `most_bytes`.
    pub(crate) fn after(sequence: u64, most_bytes: usize) -> Self {
        let filter = GrowingFilter::with_room(most_bytes / ENTRY_BYTES);
        let entries = Entries {
            visible: sequence,
            bytes: 0,
            map: BTreeMap::new(),
        };
        Self {
            filter,
            entries: RwLock::new(entries),
            scans: Mutex::default(),
        }
    }

    /// Applies one batch; the caller lets in one batch at a time, in order.
    pub(crate) fn apply<K: Into<Key>>(&self, sequence: u64, operations: Vec<(K, Operation)>) {
        let in_parts = operations.len() > OPERATIONS_PER_HOLD;
        let mut operations = operations.into_iter();
        loop {
            let mut entries = self.entries.write();
            // Under the write lock no scan can begin; the oldest reader decides what must be kept.
            let mut floor = self.scans.lock().iter().copied().min();
            if in_parts {
                floor = Some(floor.map_or(entries.visible, |oldest| oldest.min(entries.visible)));
            }
            for (key, operation) in operations.by_ref().take(OPERATIONS_PER_HOLD) {
                let key = key.into();
                self.filter.insert(filter_hash(&key));
                entries.put(sequence, key, operation, floor);
            }
            if operations.len() == 0 {
                entries.visible = sequence;
                return;
            }
        }
    }

    /// The newest visible state of `key`, which has this [`filter_hash`], in this memtable.
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Option<Operation> {
        if !self.filter.may_contain(hash) {
            return None;
        }
        let entries = self.entries.read();
        let version = match Key::is_short(key) {
            true => entries.map.get(&Key::new(key))?,
            false => entries.map.get(key)?,
        };
        if version.sequence <= entries.visible {
            return Some(version.operation.clone());
        }
        version.at(entries.visible).cloned()
    }

    /// Begins a scan: the sequence it reads at. The versions it needs are kept until [`Memtable::end_scan`].
    pub(crate) fn begin_scan(&self) -> u64 {
        let entries = self.entries.read();
        self.scans.lock().push(entries.visible);
        entries.visible
    }

    /// Ends a scan that began at `sequence`.
    pub(crate) fn end_scan(&self, sequence: u64) {
        let mut scans = self.scans.lock();
        if let Some(index) = scans.iter().position(|scan| *scan == sequence) {
            scans.swap_remove(index);
        }
    }

    /// Appends to `page` up to `limit` entries as of `sequence`, from `from` to `to` (exclusive; empty: no bound).
    /// Whether there may be more.
    pub(crate) fn page(
        &self,
        from: Bound<&[u8]>,
        to: &[u8],
        sequence: u64,
        limit: usize,
        page: &mut Vec<(Key, Operation)>,
    ) -> bool {
        let end = if to.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(to)
        };
        if let (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end)) = (from, end)
            && start >= end
        {
            return false;
        }
        let entries = self.entries.read();
        // Entries newer than the scan are passed over, but count as visited so that the lock is held briefly.
        for (visited, (key, version)) in entries.map.range::<[u8], _>((from, end)).enumerate() {
            if page.len() >= limit || (visited >= 4 * limit && !page.is_empty()) {
                return true;
            }
            if let Some(operation) = version.at(sequence) {
                page.push((key.clone(), operation.clone()));
            }
        }
        false
    }

    /// The sequence up to which batches are visible.
    pub(crate) fn sequence(&self) -> u64 {
        self.entries.read().visible
    }

    /// Memory taken, bytes (estimated).
    pub(crate) fn bytes(&self) -> usize {
        self.entries.read().bytes + self.filter.bytes()
    }

    /// Whether nothing was put in.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.read().map.is_empty()
    }
}

impl Entries {
    fn put(&mut self, sequence: u64, key: Key, operation: Operation, floor: Option<u64>) {
        let newest = match self.map.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.bytes += ENTRY_BYTES + entry.key().heap_bytes() + value_bytes(&operation);
                entry.insert(Versioned {
                    sequence,
                    operation,
                    older: None,
                });
                return;
            }
        };
        let before = value_bytes(&newest.operation);
        if floor.is_none() || newest.sequence == sequence {
            // Nobody needs the older state apart from what is already kept behind it.
            let base = std::mem::replace(&mut newest.operation, Operation::Delete);
            newest.operation = base.then(operation);
            newest.sequence = sequence;
            let mut freed = before;
            if floor.is_none() {
                let mut older = newest.older.take();
                while let Some(version) = older {
                    freed += OLDER_BYTES + value_bytes(&version.operation);
                    older = version.older;
                }
            }
            self.bytes = (self.bytes + value_bytes(&newest.operation)).saturating_sub(freed);
            return;
        }
        let folded = newest.operation.clone().then(operation);
        self.bytes += OLDER_BYTES + value_bytes(&folded);
        let mut kept = std::mem::replace(
            newest,
            Versioned {
                sequence,
                operation: folded,
                older: None,
            },
        );
        // Below the oldest reader only the first version can still be asked for.
        let mut version = &mut kept;
        while version.sequence > floor.unwrap_or(0) {
            match version.older {
                Some(ref mut older) => version = older,
                None => break,
            }
        }
        let mut dropped = version.older.take();
        while let Some(old) = dropped {
            self.bytes = self
                .bytes
                .saturating_sub(OLDER_BYTES + value_bytes(&old.operation));
            dropped = old.older;
        }
        newest.older = Some(Box::new(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &'static str) -> Vec<(Key, Operation)> {
        vec![(Key::new(b"key"), Operation::Put(value.as_bytes().into()))]
    }

    fn seen(memtable: &Memtable, sequence: u64) -> Option<Operation> {
        let mut page = Vec::new();
        memtable.page(Bound::Unbounded, &[], sequence, 10, &mut page);
        page.pop().map(|(_, operation)| operation)
    }

    #[test]
    fn a_scan_keeps_what_it_began_with_and_no_longer() {
        let memtable = Memtable::after(0, 4096);
        memtable.apply(1, put("one"));
        let alone = memtable.bytes();
        let (first, mut sequence) = (memtable.begin_scan(), 1);
        for value in ["two", "six", "ten"] {
            sequence += 1;
            memtable.apply(sequence, put(value));
        }
        let second = memtable.begin_scan();
        memtable.apply(5, vec![(Key::new(b"key"), Operation::Delete)]);
        assert_eq!(seen(&memtable, first), Some(Operation::Put(b"one"[..].into())));
        assert_eq!(seen(&memtable, second), Some(Operation::Put(b"ten"[..].into())));
        assert_eq!(memtable.get(b"key", filter_hash(b"key")), Some(Operation::Delete));
        memtable.end_scan(first);
        memtable.apply(6, put("sun"));
        assert_eq!(seen(&memtable, second), Some(Operation::Put(b"ten"[..].into())));
        memtable.end_scan(second);
        memtable.apply(7, put("end"));
        assert_eq!(memtable.bytes(), alone, "nothing is kept that nobody reads");
    }
}
