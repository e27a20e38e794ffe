//! `SpaceReclaimer`: room for those who find none, from what the datasets of the pool have given up and the store does not know of, or
//! cannot bring back by itself: deletions that wait for a commit, what is left to the sweep, blocks that were written over in
//! chunks of which others live.
//!
//! The last of these is the dearest and comes last: regions are written anew, cut so that nothing dead is left behind
//! (`Cut::ForRoom`). Those that commits noticed come first ([`Fragments`](crate::live::Fragments), a hint that does not survive
//! everything); then all are looked through, from where the last look ended, those of the dataset that asks before others.
//!
//! Invariants: nobody is told that the pool is full before all of this was tried since they asked, but for looks through the whole
//! pool by those to whom nothing is promised, which are rare when they find nothing; one at a time works here, and the others
//! profit; who asks holds no lock that a commit needs.

use std::{collections::BTreeMap, sync::Arc};

use terrace_store::{Sequence, StoreError};
use terrace_sync::{Mutex, rank};

use super::clean_landing_tier::LandingCleaner;
use crate::{
    history::{Checkpointer, Progress, Sweeper},
    live::{Environment, Fragment, RoomSource},
    posix::FsError,
    records::{REGION_BYTES, RegionRecord, after, decode_region, keys},
    registry::{Borrowed, Registry},
    relayout::{Cut, Layout, Relaid},
    settings::Durability,
};

/// Records that one step of the sweep looks at, and steps until it is asked whether there is enough.
const SWEEP_RECORDS: usize = 1000;
const SWEEP_STEPS: usize = 16;
/// Regions taken at once of those that commits noticed, and looked at by a step of the look through all.
const REGIONS: usize = 64;
/// Of the pool's reserve, the part that is written at once: what it replaces comes back afterwards.
const WRITTEN_PART: u64 = 8;
/// What is written at once of a region where there is no room for all of it, bytes.
const PIECE_BYTES: u64 = REGION_BYTES / 8;
/// The part that must have come back before it is asked whether there is enough: room comes back in whole segments.
const GAINED_PART: u64 = 4;
/// How long after a look through the whole pool that won nothing the next one may be made for those to whom nothing is
/// promised, nanoseconds.
const BARREN_REST: u64 = 10_000_000_000;

/// What one who works for room leaves to the next.
#[derive(Default)]
struct Turn {
    /// Where looks through a dataset, or (`None`) the pool, go on.
    cursors: BTreeMap<Option<u32>, Vec<u8>>,
    /// The newest batch, and the time, when a look through the pool won nothing.
    barren: Option<(Sequence, u64)>,
}

/// Who asks.
struct Asking<'a> {
    /// Whose own regions are looked through first.
    dataset: Option<u32>,
    is_promised: bool,
    bytes: u64,
    enough: &'a mut dyn FnMut() -> bool,
}

/// See the module.
pub(crate) struct SpaceReclaimer {
    environment: Arc<Environment>,
    registry: Arc<Registry>,
    checkpointer: Arc<Checkpointer>,
    sweeper: Arc<Sweeper>,
    landing: LandingCleaner,
    /// Who waits for it holds no lock that a commit needs.
    turn: Mutex<Turn, rank::dataset::RoomTurn>,
}

impl SpaceReclaimer {
    pub(crate) fn new(
        environment: &Arc<Environment>,
        registry: &Arc<Registry>,
        checkpointer: &Arc<Checkpointer>,
        sweeper: &Arc<Sweeper>,
    ) -> Self {
        Self {
            landing: LandingCleaner::new(environment, registry),
            environment: environment.clone(),
            registry: registry.clone(),
            checkpointer: checkpointer.clone(),
            sweeper: sweeper.clone(),
            turn: Mutex::default(),
        }
    }

    fn give_back(&self, turn: &mut Turn, asking: &mut Asking<'_>) -> Result<(), StoreError> {
        let store = &self.environment.store;
        let before = store.newest();
        // What could not be committed of one dataset is no reason not to go on.
        let nodes = self
            .registry
            .nodes_where(|node| node.state.settings().durability != Durability::Ram);
        if let Err(error) = self.checkpointer.close(nodes, |_, _| Ok(())) {
            tracing::debug!(%error, "a commit for room failed");
        }
        let mut steps = 0;
        while self.sweeper.step(SWEEP_RECORDS)? == Progress::More {
            steps += 1;
            if steps % SWEEP_STEPS == 0 && (asking.enough)() {
                return Ok(());
            }
        }
        if store.newest() != before && (asking.enough)() {
            return Ok(());
        }
        let mut gained = 0;
        loop {
            let noticed = self.environment.fragments.take_early(u64::MAX, 0, REGIONS);
            if noticed.is_empty() {
                break;
            }
            let fragments: Vec<Fragment> = noticed.iter().map(|(fragment, _)| *fragment).collect();
            let results = self.cut(&fragments, &mut gained, asking);
            for ((fragment, since), whole) in noticed.into_iter().zip(results) {
                // It is to be put in order once it rests.
                self.environment.fragments.put_back(fragment, since, whole);
            }
            if self.is_enough(&mut gained, asking, false) {
                return Ok(());
            }
        }
        if self.is_enough(&mut gained, asking, true) {
            return Ok(());
        }
        if asking.dataset.is_some() && self.look_through(asking.dataset, turn, &mut gained, asking)? {
            return Ok(());
        }
        let now = self.environment.clock.monotonic_nanoseconds();
        let is_barren = turn.barren.is_some_and(|(newest, at)| {
            newest == store.newest() || (!asking.is_promised && now < at.saturating_add(BARREN_REST))
        });
        if !is_barren && !self.look_through(None, turn, &mut gained, asking)? {
            turn.barren = Some((store.newest(), now));
        }
        Ok(())
    }

    /// Looks through all regions of a dataset, or of the pool, once; whether there is enough.
    fn look_through(
        &self,
        dataset: Option<u32>,
        turn: &mut Turn,
        gained: &mut u64,
        asking: &mut Asking<'_>,
    ) -> Result<bool, StoreError> {
        let (first, end) = match dataset {
            Some(dataset) => keys::dataset_range(keys::TABLE_REGION, dataset),
            None => keys::table_range(keys::TABLE_REGION),
        };
        let begun = turn.cursors.get(&dataset).unwrap_or(&first).clone();
        let begun = begun.clamp(first.clone(), end.clone());
        for (from, to) in [(begun.clone(), end), (first, begun)] {
            let mut cursor = from;
            loop {
                let page = self.environment.records().scan(&cursor, &to, REGIONS)?;
                let Some((last, _)) = page.last() else { break };
                cursor = after(last);
                turn.cursors.insert(dataset, cursor.clone());
                let mut fragments = Vec::new();
                for (key, value) in &page {
                    fragments.extend(self.suspect(key, value));
                }
                self.cut(&fragments, gained, asking);
                if self.is_enough(gained, asking, false) {
                    return Ok(true);
                }
            }
        }
        Ok(self.is_enough(gained, asking, true))
    }

    /// The region of a record, if there may be dead blocks in its chunks.
    fn suspect(&self, key: &[u8], value: &[u8]) -> Option<Fragment> {
        let (dataset, body, region) = keys::parse_region(key).ok()?;
        let node = self.registry.by_number(dataset)?;
        if node.state.is_gone() {
            return None;
        }
        let record = decode_region(value).ok()?.record;
        may_have_dead_blocks(&record, node.state.settings().raw_chunk_bytes).then_some(Fragment {
            dataset,
            body,
            region,
            // Of most objects; where it is not, the region is left as it is.
            object: body,
        })
    }

    /// Writes these regions anew as far as there are dead blocks in their chunks; for each, whether nothing is left to do.
    fn cut(&self, fragments: &[Fragment], gained: &mut u64, asking: &Asking<'_>) -> Vec<bool> {
        let reserve = self.environment.store.space().reserve_bytes;
        let at_once = (reserve / WRITTEN_PART / REGION_BYTES).clamp(1, REGIONS as u64) as usize;
        let wanted = |_: &Fragment, layout: &Layout| layout.dead_bytes() > 0;
        let mut whole = Vec::with_capacity(fragments.len());
        let mut won = 0;
        for fragments in fragments.chunks(at_once) {
            // What it has no time for now is looked at the next time.
            if won > self.target(asking) {
                whole.extend(fragments.iter().map(|_| false));
                continue;
            }
            self.open_those(fragments);
            for (fragment, mut result) in
                fragments.iter().zip(
                    self.registry
                        .relayout(fragments, Cut::ForRoom, &wanted, REGION_BYTES),
                )
            {
                whole.push(true);
                if matches!(result, Err(FsError::NoSpace)) {
                    // There is not even as much room as that for a moment: a piece of it.
                    let piece = std::slice::from_ref(fragment);
                    let mut results = self.registry.relayout(piece, Cut::ForRoom, &wanted, PIECE_BYTES);
                    result = results.pop().unwrap_or(result);
                }
                match result {
                    Ok(Relaid::Done { dead_bytes, .. }) => won += dead_bytes,
                    Ok(Relaid::Left | Relaid::Busy) => {}
                    Err(error) => tracing::debug!(%error, "a region could not be cut for room"),
                }
            }
        }
        *gained += won;
        whole
    }

    /// Only datasets that are open lay anything out.
    fn open_those(&self, fragments: &[Fragment]) {
        for of_one in fragments.chunk_by(|one, next| one.dataset == next.dataset) {
            let node = self.registry.by_number(of_one[0].dataset);
            let Some(node) = node.filter(|node| Borrowed::of(node).is_none()) else {
                continue;
            };
            if let Err(error) = node.open() {
                tracing::debug!(%error, "a dataset could not be opened for room");
            }
        }
    }

    fn target(&self, asking: &Asking<'_>) -> u64 {
        let reserve = self.environment.store.space().reserve_bytes;
        (reserve / GAINED_PART).max(asking.bytes * 2)
    }

    /// Asks when enough came back for an answer to be worth it, or (`at_last`) anything.
    fn is_enough(&self, gained: &mut u64, asking: &mut Asking<'_>, at_last: bool) -> bool {
        let least = if at_last { 1 } else { self.target(asking) };
        if *gained < least {
            return false;
        }
        *gained = 0;
        (asking.enough)()
    }
}

impl RoomSource for SpaceReclaimer {
    fn clear_landing(&self, bytes: u64) {
        self.landing.clear_for(bytes);
    }

    fn make_room(
        &self,
        dataset: Option<u32>,
        is_promised: bool,
        bytes: u64,
        enough: &mut dyn FnMut() -> bool,
    ) {
        let mut turn = self.turn.lock();
        let mut asking = Asking {
            dataset,
            is_promised,
            bytes,
            enough,
        };
        if let Err(error) = self.give_back(&mut turn, &mut asking) {
            tracing::debug!(%error, "room could not be brought back");
        }
    }
}

/// Whether chunks of this record may hold more than the record maps of them: all do of which it maps not a whole one of
/// the longest length: of a shorter one only its own record tells.
fn may_have_dead_blocks(record: &RegionRecord, chunk_bytes: u32) -> bool {
    let blocks = (chunk_bytes / terrace_store::BLOCK_BYTES as u32).max(1);
    record
        .runs()
        .iter()
        .any(|run| run.index > 0 || run.count % blocks != 0)
}

#[cfg(test)]
mod tests {
    use terrace_store::ChunkId;

    use super::*;

    #[test]
    fn what_is_not_a_whole_chunk_of_the_longest_may_have_dead_blocks() {
        let suspect = |count, index| {
            let mut record = RegionRecord::new();
            record.overwrite(0, 16, ChunkId(1), 0);
            record.overwrite(16, count, ChunkId(2), index);
            may_have_dead_blocks(&record, 64 << 10)
        };
        assert!(!suspect(16, 0));
        assert!(suspect(4, 0), "the head of a long one, or a whole short one");
        assert!(suspect(12, 4));
        assert!(suspect(16, 16));
    }
}
