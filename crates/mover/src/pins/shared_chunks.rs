//! `SharedWithPinned`: chunks of pinned content that other content has as well (equal files, reflinks, snapshots), so that no
//! move of that takes them off the tier of the pin.
//!
//! Found by a look through the regions of datasets with pins, in bounded steps beside other work: at open, when a pin changes,
//! after a move by hand was asked for, which waits for it, but not for long; and every now and then, as what is written later may
//! be equal; not for a hundred times as long as it took.
//!
//! Invariants: a look changes nothing; of a chunk that content pinned to several tiers has, the fastest counts; after a change
//! of pins nothing that was known before keeps a chunk anywhere; memory is bounded by a part of the budget: what is beyond that is not
//! spared.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use terrace_store::{BLOCK_BYTES, ChunkId, Store, StoreError};
use terrace_sync::MutexGuard;

use crate::{
    extent::{Moving, reader},
    mover::{Guard, Inner, Mover, SECOND},
};

/// Region records that one step looks at.
const STEP_RECORDS: usize = 8;
/// Chunks that are known at most, and of the memory budget the part that they may take: what one takes, with the next look's beside
/// it, bytes.
const CHUNKS_MAX: u64 = 1 << 20;
const MEMORY_PART: u64 = 64;
const CHUNK_MEMORY_BYTES: u64 = 64;
/// Shortest and longest time between two looks, and how much longer than the last one took it is.
const LOOK_INTERVAL: (u64, u64) = (60 * SECOND, 3600 * SECOND);
const LOOK_REST: u64 = 100;
/// How long a move by hand waits for a look: where very much is pinned it goes on with what is known.
const PATIENCE_SECONDS: i64 = 10;

/// A look.
#[derive(Default)]
struct Look {
    /// Nanoseconds that it took so far.
    took: u64,
    datasets: BTreeSet<u32>,
    dataset: Option<u32>,
    cursor: Vec<u8>,
    found: HashMap<ChunkId, u8>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct SharedWithPinned {
    /// The tier that each is to stay on, or to come to.
    tiers: HashMap<ChunkId, u8>,
    look: Option<Look>,
    /// One more look is to begin, after the one that is under way.
    wanted: bool,
    /// Pins changed since the look that is under way began.
    stale: bool,
    /// Not before, if nobody waits for it.
    next: u64,
}

impl SharedWithPinned {
    /// Pins changed.
    pub(crate) fn forget(&mut self) {
        self.tiers.clear();
        self.look = None;
        (self.wanted, self.stale) = (true, true);
    }

    /// What was written since the last look is to be known as well. A look that is under way goes on: whoever asks again and again
    /// does not keep all others waiting.
    pub(crate) fn look_again(&mut self) {
        self.wanted = true;
    }

    /// Whether a move that was asked for so many seconds ago waits for a look.
    pub(crate) fn is_awaited(&self, seconds: i64) -> bool {
        (self.wanted || self.look.is_some()) && seconds < PATIENCE_SECONDS
    }

    /// Whether a pin keeps a chunk from this tier.
    fn keeps_from(&self, chunk: ChunkId, target: u8) -> bool {
        self.tiers.get(&chunk).is_some_and(|tier| *tier != target)
    }
}

impl Mover {
    /// Those chunks that no pin of other content keeps from this tier, and how many bytes of content the others hold.
    pub(crate) fn unless_shared_with_pinned(
        &self,
        inner: &Inner,
        target: u8,
        chunks: &[Moving],
    ) -> (Vec<Moving>, u64) {
        let mut chunks = chunks.to_vec();
        let mut kept_blocks = 0;
        if !inner.shared.tiers.is_empty() {
            chunks.retain(|moving| {
                let kept = inner.shared.keeps_from(moving.id(), target);
                kept_blocks += if kept { u64::from(moving.blocks()) } else { 0 };
                !kept
            });
        }
        (chunks, kept_blocks * BLOCK_BYTES as u64)
    }

    /// Goes on with the look, or begins one if it is time; whether there is more to do at once.
    pub(crate) fn shared_step(&self, inner: &mut Guard<'_>, now: u64) -> Result<bool, StoreError> {
        // What belongs to pinned directories is not known yet.
        if inner.beneath.is_looking() {
            return Ok(false);
        }
        let Some(mut look) = inner.shared.look.take() else {
            if !inner.shared.wanted && now < inner.shared.next {
                return Ok(false);
            }
            (inner.shared.wanted, inner.shared.stale) = (false, false);
            let datasets = self.datasets_with_pins(inner);
            if datasets.is_empty() {
                inner.shared.tiers = HashMap::new();
                inner.shared.next = now + LOOK_INTERVAL.0;
                return Ok(false);
            }
            inner.shared.look = Some(Look {
                datasets,
                ..Look::default()
            });
            return Ok(true);
        };
        let step = self.look_for_shared(inner, &mut look);
        let since = self.environment.clock.monotonic_nanoseconds();
        look.took += since.saturating_sub(now);
        // A pin changed meanwhile: what was found may be wrong.
        if inner.shared.stale {
            return Ok(true);
        }
        let rest = look.took.saturating_mul(LOOK_REST);
        match step {
            Ok(true) => {
                inner.shared.look = Some(look);
                return Ok(true);
            }
            Ok(false) => inner.shared.tiers = look.found,
            Err(error @ StoreError::Stopped(_)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "what pinned content shares with other content could not be looked for");
            }
        }
        inner.shared.next = now + rest.clamp(LOOK_INTERVAL.0, LOOK_INTERVAL.1);
        Ok(inner.shared.wanted)
    }

    /// Looks at some regions; whether there are more.
    fn look_for_shared(&self, inner: &mut Guard<'_>, look: &mut Look) -> Result<bool, StoreError> {
        let Some(dataset) = look.dataset else {
            look.dataset = look.datasets.pop_first();
            look.cursor.clear();
            return Ok(look.dataset.is_some());
        };
        let store = self.environment.store.as_ref();
        let page = MutexGuard::unlocked(inner, || {
            reader::next_of_dataset(store, dataset, 0, &look.cursor, STEP_RECORDS)
        })?;
        for found in &page.found {
            let pin = self.pin_of(inner, found.dataset, found.body);
            let tier = pin.and_then(|pin| inner.policies.iter().position(|policy| policy.name == pin));
            if let Some(tier) = tier {
                let most = self.environment.budget.limit_bytes() / MEMORY_PART / CHUNK_MEMORY_BYTES;
                let most = most.min(CHUNKS_MAX) as usize;
                MutexGuard::unlocked(inner, || {
                    note_shared(store, found, tier as u8, most, &mut look.found)
                })?;
            }
        }
        match page.next {
            Some(next) => look.cursor = next,
            None => look.dataset = None,
        }
        Ok(true)
    }

    /// Datasets of which something is pinned, or all.
    fn datasets_with_pins(&self, inner: &Inner) -> BTreeSet<u32> {
        let mut found: BTreeSet<u32> = inner.pins.datasets().collect();
        for info in self.datasets.list(None).unwrap_or_default() {
            let state = self.datasets.state_by_number(info.number);
            if state.is_some_and(|state| state.settings().pin.is_some()) {
                found.insert(info.number);
            }
        }
        found
    }
}

/// Notes those chunks of a region that something else refers to as well.
fn note_shared(
    store: &dyn Store,
    region: &reader::Found,
    tier: u8,
    most: usize,
    known: &mut HashMap<ChunkId, u8>,
) -> Result<(), StoreError> {
    let mut blocks: BTreeMap<ChunkId, i64> = BTreeMap::new();
    for run in region.record.runs() {
        *blocks.entry(run.chunk).or_default() += i64::from(run.count);
    }
    for (chunk, blocks) in blocks {
        let shared = store
            .chunk_info(chunk)?
            .is_some_and(|info| info.references > blocks);
        if shared && (known.len() < most || known.contains_key(&chunk)) {
            let fastest = known.entry(chunk).or_insert(tier);
            *fastest = tier.min(*fastest);
        }
    }
    Ok(())
}
