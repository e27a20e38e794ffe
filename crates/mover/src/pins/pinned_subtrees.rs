//! What lies beneath pinned directories: found by a look through the entries of their datasets, in bounded steps.
//!
//! Invariants: while a look is under way, what lies on any tier of such a dataset stays there; a look never changes
//! anything; it is begun at open, when a pin changes, and soon after a name moved: what moved is committed first, and a
//! look that takes long is not begun again for a hundred times as long; memory is in proportion to the files beneath
//! pinned directories.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use terrace_codec::Reader;
use terrace_dataset::{DirectoryPin, EntryRecord, FileKind, keys, split_value};
use terrace_store::{BLOCK_BYTES, Store, StoreError};
use terrace_sync::MutexGuard;

use super::pins;
use crate::{
    jobs::waiting_move,
    mover::{BENEATH, Guard, Inner, Mover, SECOND},
};

/// Entries that one step looks at.
const STEP_ENTRIES: usize = 128;
/// Directories whose nearest pin is remembered.
const NEAREST_MAX: usize = 50_000;
/// Directories above one another that are looked at.
const DEPTH_MAX: usize = 4096;
/// Shortest and longest time between two looks because names moved, and how much longer than the last one took it is.
const LOOK_INTERVAL: (u64, u64) = (2 * SECOND, 600 * SECOND);
const LOOK_REST: u64 = 100;

/// A look.
struct Look {
    /// Nanoseconds that it took so far.
    took: u64,
    /// Numbers of the tiers that directories are pinned to, by dataset and directory.
    directories: BTreeMap<(u32, u64), u8>,
    datasets: BTreeSet<u32>,
    dataset: Option<u32>,
    from: Vec<u8>,
    /// Pin of the nearest pinned directory at or above a directory.
    nearest: HashMap<u64, Option<DirectoryPin>>,
    /// Pin by dataset and body, and the blocks that are mapped.
    found: HashMap<(u32, u64), (DirectoryPin, u64)>,
}

/// When to look, and how far that is.
#[derive(Default)]
pub(crate) struct Beneath {
    look: Option<Look>,
    wanted: bool,
    /// Not before, if only names moved.
    next: u64,
    /// Not before, since a look failed.
    not_before: u64,
    /// What lies beneath and has no pin of its own, by dataset and tier, as the last look found it.
    bytes: HashMap<(u32, u8), u64>,
}

impl Beneath {
    /// Pins changed.
    pub(crate) fn look_again(&mut self) {
        (self.wanted, self.look) = (true, None);
    }

    /// What lies beneath the directories of a dataset that are pinned to this tier, bytes.
    pub(crate) fn bytes_of(&self, dataset: u32, tier: u8) -> u64 {
        self.bytes.get(&(dataset, tier)).copied().unwrap_or(0)
    }

    /// Whether it is not known yet what lies beneath.
    pub(crate) fn is_looking(&self) -> bool {
        self.wanted || self.look.is_some()
    }
}

impl Look {
    fn next_dataset(&mut self) -> bool {
        self.dataset = self.datasets.pop_first();
        self.nearest.clear();
        self.from.clear();
        self.dataset.is_some()
    }

    /// Looks at some entries; whether there are more.
    fn step(&mut self, store: &dyn Store) -> Result<bool, StoreError> {
        let Some(dataset) = self.dataset else {
            return Ok(self.next_dataset());
        };
        let (start, end) = keys::dataset_range(keys::TABLE_ENTRY, dataset);
        let from = if self.from.is_empty() { &start } else { &self.from };
        let entries = store.scan(from, &end, STEP_ENTRIES)?;
        let Some((last, _)) = entries.last() else {
            return Ok(self.next_dataset());
        };
        self.from = last.iter().copied().chain([0]).collect();
        for (key, value) in &entries {
            let entry = split_value(value).and_then(|(_, payload)| EntryRecord::decode(payload));
            let mut reader = Reader::new(key);
            let directory = reader
                .u8("table")
                .and_then(|_| reader.key_u32("dataset"))
                .and_then(|_| reader.key_u64("directory"));
            let (Ok(entry), Ok(directory)) = (entry, directory) else {
                continue;
            };
            if entry.kind == FileKind::File
                && let Some(pin) = self.nearest(store, dataset, directory)?
                && let Some(inode) = pins::inode_of(store, dataset, entry.object)?
            {
                // Of several names that lie beneath different ones, the fastest counts.
                let known = self.found.entry((dataset, inode.body));
                let (known, _) = known.or_insert((pin, inode.blocks));
                if pin.tier < known.tier {
                    *known = pin;
                }
            }
        }
        Ok(true)
    }

    /// The pin of the nearest pinned directory at or above this one.
    fn nearest(
        &mut self,
        store: &dyn Store,
        dataset: u32,
        directory: u64,
    ) -> Result<Option<DirectoryPin>, StoreError> {
        let (mut at, mut passed, mut pin) = (directory, Vec::new(), None);
        while passed.len() < DEPTH_MAX {
            if let Some(known) = self.nearest.get(&at) {
                pin = *known;
                break;
            }
            passed.push(at);
            let tier = self.directories.get(&(dataset, at)).copied();
            pin = tier.map(|tier| DirectoryPin { tier, directory: at });
            if pin.is_some() || at == keys::ROOT_OBJECT {
                break;
            }
            match pins::inode_of(store, dataset, at)? {
                Some(inode) if inode.parent != 0 => at = inode.parent,
                _ => break,
            }
        }
        if self.nearest.len() + passed.len() > NEAREST_MAX {
            self.nearest.clear();
        }
        self.nearest
            .extend(passed.into_iter().map(|passed| (passed, pin)));
        Ok(pin)
    }
}

impl Mover {
    /// Goes on with the look, or begins one if it is time; whether there is more to do at once.
    pub(crate) fn beneath_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<bool, StoreError> {
        let pins = &self.environment.pins;
        let store = self.environment.store.clone();
        let Some(mut look) = inner.beneath.look.take() else {
            let moved = pins.has_moved() && (inner.beneath.wanted || now >= inner.beneath.next);
            if !inner.beneath.wanted && !moved || now < inner.beneath.not_before {
                return Ok(false);
            }
            let directories = self.pinned_directories(inner);
            pins.begin_look();
            inner.beneath.wanted = false;
            inner.beneath.next = now + LOOK_INTERVAL.0;
            if directories.is_empty() {
                pins.end_look(HashMap::new());
                return Ok(false);
            }
            if moved {
                self.move_what_is_beneath(inner, &directories)?;
                MutexGuard::unlocked(inner, || self.commit_names(&directories));
                // A pin that changed meanwhile is looked for with the others.
                if inner.beneath.wanted {
                    return Ok(true);
                }
            }
            inner.beneath.look = Some(Look {
                took: 0,
                datasets: directories.keys().map(|(dataset, _)| *dataset).collect(),
                directories,
                dataset: None,
                from: Vec::new(),
                nearest: HashMap::new(),
                found: HashMap::new(),
            });
            return Ok(true);
        };
        let more = MutexGuard::unlocked(inner, || look.step(&*store));
        let since = self.environment.clock.monotonic_nanoseconds();
        look.took += since.saturating_sub(now);
        // A pin that changed meanwhile began anew.
        if inner.beneath.wanted {
            return Ok(true);
        }
        match more {
            Ok(false) => {
                let rest = look.took.saturating_mul(LOOK_REST);
                inner.beneath.next = now + rest.clamp(LOOK_INTERVAL.0, LOOK_INTERVAL.1);
                inner.beneath.bytes.clear();
                for ((dataset, body), (pin, blocks)) in &look.found {
                    if inner.pins.of_body(*dataset, *body).is_none() {
                        let bytes = inner.beneath.bytes.entry((*dataset, pin.tier)).or_default();
                        *bytes = bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES as u64));
                    }
                }
                let found = look.found.into_iter().map(|(place, (pin, _))| (place, pin));
                pins.end_look(found.collect());
                Ok(false)
            }
            Ok(true) => {
                inner.beneath.look = Some(look);
                Ok(true)
            }
            Err(error @ StoreError::Stopped(_)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "what lies beneath pinned directories cannot be looked for; it is tried again");
                inner.beneath.wanted = true;
                inner.beneath.not_before = now + 60 * SECOND;
                Ok(false)
            }
        }
    }

    /// The look reads records: what moved in RAM is handed to the store before.
    fn commit_names(&self, directories: &BTreeMap<(u32, u64), u8>) {
        let datasets: BTreeSet<u32> = directories.keys().map(|(dataset, _)| *dataset).collect();
        for dataset in datasets {
            let Some(state) = self.datasets.state_by_number(dataset) else {
                continue;
            };
            let name = state.name();
            let committed = self
                .datasets
                .filesystem(&name)
                .map(|filesystem| filesystem.commit());
            if !matches!(committed, Ok(Ok(_))) {
                // Full, perhaps: the next look tries again.
                tracing::warn!(dataset = %name, "names that moved could not be committed; what lies beneath pinned directories is looked for again");
                self.environment.pins.note_moved(dataset);
            }
        }
    }

    /// A name moved: each tier gets what belongs there now.
    fn move_what_is_beneath(
        &self,
        inner: &mut Inner,
        directories: &BTreeMap<(u32, u64), u8>,
    ) -> Result<(), StoreError> {
        let targets: BTreeSet<(u32, u8)> = directories
            .iter()
            .map(|((dataset, _), tier)| (*dataset, *tier))
            .collect();
        let datasets: BTreeSet<u32> = targets.iter().map(|(dataset, _)| *dataset).collect();
        for dataset in datasets {
            // What lies beneath none of them any more goes where its dataset is pinned to.
            let pin = self
                .datasets
                .state_by_number(dataset)
                .and_then(|state| state.settings().pin_tier);
            if pin.is_some_and(|target| waiting_move(inner, dataset, 0, target).is_some()) {
                continue;
            }
            if let Err(error) = self.start_move_of_dataset(inner, dataset) {
                tracing::warn!(%error, "what lies beneath no pinned directory any more is not moved yet");
            }
        }
        for (dataset, target) in targets {
            if waiting_move(inner, dataset, BENEATH, target).is_some() {
                continue;
            }
            let reason = "names moved: what lies beneath pinned directories now".to_owned();
            // It is no job that was asked for: when it cannot be begun, the next look tries again.
            if let Err(error) = self.start_move_beneath(inner, dataset, target, reason) {
                tracing::warn!(%error, "what lies beneath pinned directories is not moved yet");
            }
        }
        Ok(())
    }

    /// Pinned directories and the numbers of their tiers, as far as the pool has these.
    fn pinned_directories(&self, inner: &Inner) -> BTreeMap<(u32, u64), u8> {
        let number = |name: &str| inner.policies.iter().position(|policy| policy.name == name);
        let directories = inner.pins.directories();
        let found = directories.filter_map(|(place, tier)| Some((place, number(tier)? as u8)));
        found.collect()
    }
}
