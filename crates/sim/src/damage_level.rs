//! Damage under the simulator: a store with known content at rest, then one disk is damaged, then the store is used
//! again.
//!
//! The rules. Damage to one disk of several: the pool opens (without the disk, if its labels or its end are gone), no
//! record is lost (but for what the log on a slower disk was behind by, when the process was killed); a chunk with a copy on another disk reads as it was; any other chunk reads as it was or as an error.
//! Damage to the only disk: opening may be refused and reading may fail. In any case: no byte is ever wrong, nothing
//! panics, nothing has no end; a scrub names exactly the chunks that cannot be read, and what it repaired stays so.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use terrace_chunk::{ChunkStore, ScrubCursor, Step};
use terrace_store::{ChunkId, Compression, Dedup, Flow, Owner, Piece, Placement, Store, Trial};

use crate::{
    act::Act,
    ensure,
    hardware::{Coverage, Disk, FaultKind, PAGE_BYTES, Random},
    models::Content,
    store::{
        Populate, StoreWorld,
        model::{MARKER_KEY, Value, marker_number},
    },
    trace,
    trace::Trace,
    violation,
    violation::Check,
};

const KINDS: [FaultKind; 11] = [
    FaultKind::Flip,
    FaultKind::Flip,
    FaultKind::Zeroed,
    FaultKind::Misdirected,
    FaultKind::Stale,
    FaultKind::ReadErrorForGood,
    FaultKind::Truncated,
    FaultKind::Vanished,
    FaultKind::CameBackOld,
    FaultKind::MisdirectedWrite,
    FaultKind::PhantomWrite,
];

/// Pages before the first segment; the label copies are in the first 32, the root slots behind.
const FRONT_PAGES: usize = 256;
const LABEL_PAGES: usize = 32;

/// What was damaged.
#[derive(Debug, Clone, Copy, Default)]
struct Damaged {
    /// Labels or the end of the device: the disk may not be recognised.
    labels: bool,
    /// The root slots or the log: a single disk may be back at an earlier state.
    anything: bool,
}

/// Damages a disk; `None` if there was nothing to be damaged in that way.
fn damage(disk: &mut Disk, kind: FaultKind, random: &mut Random) -> Option<Damaged> {
    let written = disk.written_pages();
    let last = written.len().checked_sub(1)?;
    match kind {
        FaultKind::Vanished => {
            disk.vanished = true;
            return Some(Damaged {
                labels: true,
                anything: true,
            });
        }
        FaultKind::CameBackOld => {
            return disk.come_back_old(random).then_some(Damaged {
                labels: false,
                anything: true,
            });
        }
        FaultKind::Truncated => {
            let size = disk.size_bytes()
                - (1 + random.below(disk.size_bytes() / PAGE_BYTES as u64 / 2)) * PAGE_BYTES as u64;
            disk.truncate(size);
            return Some(Damaged {
                labels: true,
                anything: true,
            });
        }
        _ => {}
    }
    let count = random.skewed(40).max(1);
    let first = random.index(last + 1);
    let mut hit = false;
    let mut labels = BTreeSet::new();
    for index in 0..count as usize {
        // Neighbours, or scattered; each page has its own fate.
        let at = if random.chance(1, 2) {
            (first + index) % (last + 1)
        } else {
            random.index(last + 1)
        };
        let page = written[at];
        if page < LABEL_PAGES || page * PAGE_BYTES + 17 * PAGE_BYTES > disk.size_bytes() as usize {
            // One of the label copies at most: all of them is the same as a missing disk.
            if labels.len() == 1 && !labels.contains(&(page / 16)) {
                continue;
            }
            labels.insert(page / 16);
        }
        hit = true;
        match kind {
            FaultKind::Flip => {
                let (byte, bit) = (random.index(PAGE_BYTES), random.below(8));
                disk.alter(page, |content| content[byte] ^= 1 << bit);
            }
            FaultKind::Zeroed => {
                let sector = random.index(8) * 512;
                let whole = random.chance(1, 2);
                disk.alter(page, |content| {
                    if whole {
                        content.fill(0)
                    } else {
                        content[sector..sector + 512].fill(0)
                    }
                });
            }
            FaultKind::Misdirected => {
                let other = disk.page(written[random.index(last + 1)]);
                disk.alter(page, |content| *content = other);
            }
            FaultKind::Stale => match disk.earlier_page(page) {
                Some(earlier) => disk.alter(page, |content| *content = earlier),
                None => disk.alter(page, |content| content.fill(0)),
            },
            _ => disk.spoil(page),
        }
    }
    hit.then_some(Damaged {
        labels: false,
        anything: written.iter().any(|page| *page >= FRONT_PAGES),
    })
}

/// Runs one seed.
pub fn run(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check {
    let mut world = StoreWorld::begin(seed ^ 0xDA_4A6E_0000, coverage, trace)?;
    let turns = world.random.between(15, 70);
    Populate(turns).perform(&mut world)?;
    // The seeds that 'all' gives to this level take the kinds in turn: some hundred of them meet each, whatever number
    // they begin with.
    let kind = match (*world.random.pick(&KINDS), seed % 10) {
        (_, 9) => KINDS[(seed / 10 % KINDS.len() as u64) as usize],
        (chosen, _) => chosen,
    };
    let disk = world.random.index(world.rig.machine.disk_count());
    let mut trial = DamagedStore {
        world,
        kind,
        disk,
        cleanly: false,
    };
    if trial.is_lying() {
        trial.lie()?;
    }
    trial.stop()?;
    match trial.damage() {
        Some(what) => trial.judge(what),
        None => Ok(()),
    }
}

/// A store at rest, one disk of which is damaged.
struct DamagedStore {
    world: StoreWorld,
    kind: FaultKind,
    disk: usize,
    /// It was closed, and did not end by a kill.
    cleanly: bool,
}

impl DamagedStore {
    /// Whether the disk is damaged by lies while the store is used.
    fn is_lying(&self) -> bool {
        matches!(self.kind, FaultKind::MisdirectedWrite | FaultKind::PhantomWrite)
    }

    fn is_single(&self) -> bool {
        self.world.rig.machine.disk_count() == 1
    }

    /// Closes the store, or ends the process.
    fn stop(&mut self) -> Check {
        let (lying, world) = (self.is_lying(), &mut self.world);
        let store = world.store()?;
        self.cleanly = world.random.chance(1, 2);
        if self.cleanly
            && let Err(error) = store.close()
        {
            ensure!(lying, "cannot close: {error}");
            trace!(world.trace, "close: {error}");
            self.cleanly = false;
        }
        self.cleanly &= !world.condition.broken;
        drop(store);
        world.store = None;
        world.rig.machine.kill();
        world.rig.machine.end_storm();
        trace!(
            world.trace,
            "{} on disk {}, closed {}",
            self.kind.words(),
            self.disk,
            if self.cleanly { "cleanly" } else { "by a kill" }
        );
        Ok(())
    }

    fn damage(&self) -> Option<Damaged> {
        if self.is_lying() {
            // A label or a root may be among what was not written, as if the disk had been away.
            return Some(Damaged {
                labels: true,
                anything: true,
            });
        }
        self.world.coverage.hit(self.kind);
        let machine = &self.world.rig.machine;
        machine.with_disk(self.disk, |disk, random| damage(disk, self.kind, random))
    }

    /// One disk acknowledges writes, and makes them elsewhere or not at all, while the store goes on.
    fn lie(&mut self) -> Check {
        let (kind, disk, world) = (self.kind, self.disk, &mut self.world);
        let rate = world.random.between(50, 3000);
        trace!(world.trace, "disk {disk} lies from now on");
        world.rig.machine.with_disk(disk, |disk, _| match kind {
            FaultKind::MisdirectedWrite => disk.rates.write_misdirected = rate,
            _ => disk.rates.write_phantom = rate,
        });
        world.condition.storm = true;
        world.condition.lying = true;
        let turns = world.random.between(3, 20);
        let mut result = Populate(turns).perform(world);
        // A lie that was never told tests nothing.
        for _ in 0..20 {
            if result.is_err() || world.condition.broken || world.coverage.count(kind) > 0 {
                break;
            }
            result = Populate(5).perform(world);
        }
        world.condition.storm = false;
        result
    }

    fn judge(&mut self, what: Damaged) -> Check {
        let (kind, disk, cleanly, single) = (self.kind, self.disk, self.cleanly, self.is_single());
        let lying = self.is_lying();
        let mut opened = self.world.rig.open(false);
        if let Err(error) = &opened {
            trace!(self.world.trace, "does not open: {error}");
            ensure!(!error.is_empty(), "opening fails without a word");
            if !single {
                // Without the damaged disk it must.
                if kind == FaultKind::CameBackOld || what.labels {
                    self.world
                        .rig
                        .machine
                        .with_disk(disk, |disk, _| disk.vanished = true);
                }
                opened = self.world.rig.open(true);
                if let (Err(error), true) = (&opened, disk == 0 && !cleanly && self.world.log_may_be_behind())
                {
                    // The newest entries of the log lay on the damaged disk alone: without it there is the state before them.
                    trace!(
                        self.world.trace,
                        "does not open with what is left of disk {disk}: {error}"
                    );
                    self.world
                        .rig
                        .machine
                        .with_disk(disk, |disk, _| disk.vanished = true);
                    opened = self.world.rig.open(true);
                }
            }
        }
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                ensure!(
                    single,
                    "{} on one of several disks: the pool does not open: {error}",
                    kind.words()
                );
                return Ok(());
            }
        };
        self.world.store = Some(store.clone());
        let number = match store.get(MARKER_KEY) {
            Ok(value) => marker_number(value.as_deref())?,
            Err(error) => {
                ensure!(single, "a record is lost with one of several disks: {error}");
                return Ok(());
            }
        };
        trace!(
            self.world.trace,
            "opens at batch {number} of {}",
            self.world.model.newest()
        );
        if number != self.world.model.newest() {
            ensure!(
                (single && what.anything) || !cleanly,
                "{} on one of several disks: the store is at batch {number}, not {}",
                kind.words(),
                self.world.model.newest()
            );
            // An older root or a shorter log of the only disk; or, after a kill, entries behind the newest mark in the log
            // whose data is damaged, which look as if they had been torn: one state of the past, whole.
            return Ok(());
        }
        self.records(&store)?;
        let unreadable = self.chunks(&store)?;
        let copied = !lying && !what.labels && self.world.rig.shape.copies.iter().all(|copies| *copies > 1);
        if copied && self.world.random.chance(1, 2) {
            self.mended_in_passing(&store)?;
        }
        self.scrub(&store, &unreadable)?;
        let again = self.chunks(&store)?;
        if copied {
            let progress = store.verify_step(&mut ScrubCursor::default(), u64::MAX);
            ensure!(
                progress.damaged_copies == 0,
                "after a scrub {} copies are bad still",
                progress.damaged_copies
            );
        }
        ensure!(
            again.is_subset(&unreadable),
            "after a scrub other chunks cannot be read: {again:?}"
        );
        self.restore(&store, &again)
    }

    /// What a reader found bad is mended without a scrub: who reads again finds nothing bad.
    fn mended_in_passing(&self, store: &ChunkStore) -> Check {
        for _ in 0..10_000 {
            match store.step() {
                Ok(Step::More) => {}
                Ok(Step::Idle) => break,
                Err(error) => {
                    trace!(self.world.trace, "step: {error}");
                    return Ok(());
                }
            }
        }
        let bad = || -> u64 {
            let devices = store.pool().devices();
            devices.iter().map(|device| device.counters.checksum_errors).sum()
        };
        let before = bad();
        self.chunks(store)?;
        ensure!(
            bad() == before,
            "a reader finds {} bad copies that were found before and could have been mended",
            bad() - before
        );
        Ok(())
    }

    /// What is lost is written again, from a backup perhaps: it must be there then, and not be taken for what is lost.
    fn restore(&self, store: &ChunkStore, lost: &BTreeSet<ChunkId>) -> Check {
        let uses = self.world.model.live().values().flat_map(|value| &value.uses);
        for chunk in uses.filter(|chunk| lost.contains(&chunk.id)) {
            let content = chunk.content.bytes();
            let piece = Piece {
                content: &content,
                compression: Compression::Lz4,
                trial: Trial::Untried,
                dedup: Dedup::On,
                placement: Placement::Landing(Flow::Random),
                owner: Owner::default(),
                privileged: false,
            };
            let written = match store.write_chunks(&[piece]) {
                Ok(written) => written,
                Err(error) => {
                    // The pool is full, the disk refuses, or the index of the only disk is damaged.
                    trace!(self.world.trace, "writing again: {error}");
                    return Ok(());
                }
            };
            for written in written {
                let read = store.read_chunk(written.id);
                ensure!(
                    read.as_ref().is_ok_and(|bytes| bytes[..] == content[..]),
                    "chunk {} was lost and written again as {}, which reads as {:?}",
                    chunk.id,
                    written.id,
                    read.map(|bytes| bytes.len())
                );
            }
        }
        Ok(())
    }

    /// Every record is there, or reading it is an error on the only disk.
    fn records(&self, store: &ChunkStore) -> Check {
        let found = match store.scan(&[0x20], &[], usize::MAX >> 1) {
            Ok(found) => found,
            Err(error) => {
                ensure!(
                    self.is_single(),
                    "records are lost with one of several disks: {error}"
                );
                return Ok(());
            }
        };
        let expected: Vec<(Vec<u8>, Vec<u8>)> = self
            .world
            .model
            .live()
            .iter()
            .map(|(key, value)| (key.clone(), Value::encode(value)))
            .collect();
        ensure!(
            found
                .iter()
                .map(|(key, value)| (key.to_vec(), value.to_vec()))
                .eq(expected),
            "the records are not those that were written"
        );
        Ok(())
    }

    /// Reads every chunk; returns those that cannot be read.
    fn chunks(&self, store: &ChunkStore) -> Check<BTreeSet<ChunkId>> {
        let mut unreadable = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let (single, disk) = (self.is_single(), self.disk);
        for chunk in self.world.model.live().values().flat_map(|value| &value.uses) {
            if !seen.insert(chunk.id) {
                continue;
            }
            match store.read_chunk(chunk.id) {
                Ok(bytes) => ensure!(
                    bytes == chunk.content.bytes(),
                    "chunk {} reads as something else",
                    chunk.id
                ),
                Err(error) => {
                    unreadable.insert(chunk.id);
                    match store.chunk_info(chunk.id) {
                        Ok(Some(info)) => ensure!(
                            single
                                || usize::from(info.device) == disk
                                || self.world.rig.shape.copies.iter().any(|n| *n > 1),
                            "chunk {} on an undamaged disk cannot be read: {error}",
                            chunk.id
                        ),
                        Ok(None) => violation!("chunk {} is gone", chunk.id),
                        Err(error) => ensure!(single, "the record of chunk {} is lost: {error}", chunk.id),
                    }
                    let copied = self.world.rig.shape.tiers.len() == 1 && self.world.rig.shape.copies[0] > 1;
                    ensure!(
                        !copied,
                        "chunk {} has a copy on another disk and cannot be read: {error}",
                        chunk.id
                    );
                }
            }
        }
        // All at once, as a reader ahead asks for them: the same answers.
        let ids: Vec<ChunkId> = seen.iter().copied().collect();
        let contents: BTreeMap<ChunkId, Content> = self
            .world
            .model
            .live()
            .values()
            .flat_map(|value| &value.uses)
            .map(|chunk| (chunk.id, chunk.content))
            .collect();
        for (id, read) in ids.iter().zip(store.read_chunks(&ids)) {
            if let (Ok(bytes), Some(content)) = (read, contents.get(id)) {
                ensure!(
                    bytes == content.bytes(),
                    "chunk {id} reads as something else among others"
                );
            }
        }
        trace!(
            self.world.trace,
            "{} of {} chunks cannot be read",
            unreadable.len(),
            seen.len()
        );
        Ok(unreadable)
    }

    /// A whole scrub: it names what cannot be read.
    fn scrub(&self, store: &ChunkStore, unreadable: &BTreeSet<ChunkId>) -> Check {
        let mut cursor = ScrubCursor::default();
        let mut named = BTreeSet::new();
        let mut beyond_repair = false;
        for _ in 0..10_000 {
            match store.scrub_step(&mut cursor, 1 << 20) {
                Ok(progress) => {
                    named.extend(progress.damaged.iter().map(|damaged| damaged.id));
                    beyond_repair |= !progress.damaged_metadata.is_empty();
                    if progress.finished {
                        // Where the scrub names no damage to tables there is none any more.
                        let tables = match beyond_repair || self.world.rig.machine.lacks_a_disk() {
                            true => Vec::new(),
                            false => store.verify_tables(),
                        };
                        ensure!(
                            tables.is_empty(),
                            "after a scrub tables are bad still: {}",
                            tables.join("; ")
                        );
                        let missed: Vec<_> = unreadable.difference(&named).collect();
                        ensure!(missed.is_empty(), "a scrub did not find the damage of {missed:?}");
                        trace!(self.world.trace, "scrub: {} chunks damaged", named.len());
                        return Ok(());
                    }
                }
                Err(error) => {
                    trace!(self.world.trace, "scrub: {error}");
                    return Ok(());
                }
            }
        }
        violation!("a scrub has no end")
    }
}
