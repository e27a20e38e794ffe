//! Devices that come and go: a store on two to four disks that is opened with whichever of them are there, used, cut short at any
//! moment, loses a disk while it is in use, and gets one more.
//!
//! What must hold: whoever opens it with a disk that knew of something acknowledged sees that, or is refused, unless too many of
//! the disks are missing that had it; an opening that is refused has noted nothing on labels; disks of which each was used
//! without the other are never taken together in silence; and as long as every opening had a disk that knew of the one before,
//! all of them are one pool, and any one of them can be missing.

use std::{collections::BTreeSet, sync::Arc};

use terrace_chunk::ChunkStore;
use terrace_pool::{DeviceAdd, LABEL_BYTES, OpenOptions};
use terrace_store::{Batch, Store, StoreError};

use crate::{
    ensure,
    hardware::{Coverage, FaultKind, PAGE_BYTES, Random, SharedRandom},
    rig::{MIB, Rig, Shape},
    trace,
    trace::Trace,
    violation,
    violation::{Check, Violation},
};

/// Prefix of the keys that are written.
const KEYS: [u8; 2] = [0x22, 9];

type Disks = BTreeSet<usize>;
type Writes = BTreeSet<u64>;

/// One time that the store was open.
struct Use {
    /// All of its past can be read with these disks.
    holds: Disks,
    /// Any one of them may be missing: all disks of the pool were in use at its end, and log and tables had two copies.
    whole: bool,
    /// It was so when it began, and all of them were there.
    was_whole: bool,
}

struct Run {
    rig: Rig,
    random: Random,
    trace: Trace,
    coverage: Arc<Coverage>,
    members: Disks,
    /// A disk that is not part of the pool yet.
    spare: Option<usize>,
    /// The next write's number.
    next: u64,
    /// Most long records beside one: in some runs so many that the log goes on in other segments all the time.
    most_beside: u64,
    /// The log leaves a disk that drops out before that is noted; else it stays in its segments, as where there is no room.
    leaves: bool,
    /// What was acknowledged and each disk knew of when it was last in use.
    known: Vec<Writes>,
    /// The last use of each disk.
    last: Vec<Option<usize>>,
    /// The use whose root each disk may have got by an opening that was cut: without that one's disks its tables cannot be read.
    perhaps: Vec<Option<usize>>,
    uses: Vec<Use>,
    /// Lost with more disks than may be lost.
    excused: Writes,
    /// The disks of the newest use; several where power went before it was clear whether it came to one.
    newest: Vec<Disks>,
    /// Something may have been used without what another one knows.
    apart: bool,
    /// So many disks are missing that there is nothing more to tell.
    over: bool,
}

/// Runs one seed.
pub fn run(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check {
    let mut random = Random::new(seed ^ 0xA3A1_0000_0000);
    let mut shape = choose(&mut random);
    trace!(trace, "away level, {shape:?}");
    // The last one is the spare.
    shape.tiers.push(vec![(24 * MIB, false)]);
    let mut rig = Rig::new(shape, random.fork(1), coverage.clone(), trace.clone());
    rig.shape.tiers.pop();
    let disks = rig.machine.disk_count();
    let members: Disks = (0..disks - 1).collect();
    rig.machine.with_disk(disks - 1, |disk, _| disk.vanished = true);
    let mut run = Run {
        rig,
        random: random.fork(2),
        trace,
        coverage,
        newest: vec![members.clone()],
        members,
        spare: Some(disks - 1),
        next: 0,
        most_beside: *Random::new(seed ^ 0xA3A2_0000_0000).pick(&[0, 0, 12]),
        // With this number the seeds that were kept before have logs that stay.
        leaves: Random::new(seed ^ 0xA51C_0000_0000).chance(1, 2),
        known: vec![Writes::new(); disks],
        last: vec![None; disks],
        perhaps: vec![None; disks],
        uses: Vec::new(),
        excused: Writes::new(),
        apart: false,
        over: false,
    };
    let store = run.rig.create().map_err(Violation)?;
    run.begin_use(run.members.clone(), Writes::new());
    run.use_it(&store, run.members.clone())?;
    run.leave(store);
    for _ in 0..run.random.between(4, 14) {
        run.open_once()?;
        run.rig.machine.check_breach()?;
        if run.over {
            return Ok(());
        }
    }
    // At the end all of them, with nothing in the way.
    run.rig.machine.cut_power_after(None);
    run.open_with(run.members.clone(), false)
}

fn choose(random: &mut Random) -> Shape {
    let size = |random: &mut Random| (random.between(16, 28) * MIB, random.chance(1, 6));
    let disks = |random: &mut Random, count: u64| (0..count).map(|_| size(random)).collect::<Vec<_>>();
    let (tiers, copies) = match random.below(6) {
        0 | 1 => (vec![disks(random, 2)], vec![random.between(1, 2) as u8]),
        2 => (vec![disks(random, 3)], vec![random.between(1, 2) as u8]),
        3 => (vec![disks(random, 4)], vec![2]),
        4 => (vec![disks(random, 2), disks(random, 1)], vec![2, 1]),
        _ => (vec![disks(random, 1), disks(random, 1)], vec![1, 1]),
    };
    Shape {
        tiers,
        copies,
        memtable_bytes: *random.pick(&[8 << 10, 32 << 10, 128 << 10]),
        checkpoint_log_bytes: *random.pick(&[32 << 10, 128 << 10, 512 << 10]),
        hint_bytes: 16,
    }
}

fn key(number: u64) -> Vec<u8> {
    [&KEYS[..], &number.to_be_bytes()].concat()
}

/// What of it is there.
fn seen(store: &ChunkStore) -> Check<Writes> {
    let found = store
        .scan(&KEYS, &[KEYS[0], KEYS[1] + 1], usize::MAX >> 1)
        .map_err(|error| Violation(format!("a scan failed: {error}")))?;
    let numbers = found.iter().filter_map(|(key, _)| key.get(2..)?.try_into().ok());
    Ok(numbers.map(u64::from_be_bytes).collect())
}

impl Run {
    /// Whether a disk is of the fastest tier, to which the spare one goes too.
    fn is_fast(&self, disk: usize) -> bool {
        disk < self.rig.shape.tiers[0].len() || disk >= self.rig.shape.disks().len()
    }

    /// Whether the copy of the log on a slower disk may be behind that on the first one.
    fn log_may_be_behind(&self) -> bool {
        self.rig.shape.tiers.len() > 1 && self.rig.shape.copies[0] == 1
    }

    /// The first page of both label copies in front of each disk: what an opening that is refused must not have changed.
    fn labels(&self) -> Vec<Vec<u8>> {
        let machine = &self.rig.machine;
        let copies = [0, LABEL_BYTES / PAGE_BYTES];
        let of_disk = |disk| {
            machine.with_disk(disk, |state, _| {
                copies
                    .iter()
                    .flat_map(|page| state.page(*page).to_vec())
                    .collect()
            })
        };
        (0..machine.disk_count()).map(of_disk).collect()
    }

    fn open_once(&mut self) -> Check {
        let there: Disks = match self.random.chance(2, 5) {
            true => self.members.clone(),
            false => {
                let chosen = self.members.iter().filter(|_| self.random.chance(1, 2));
                chosen.copied().collect()
            }
        };
        if there.is_empty() {
            return Ok(());
        }
        let cut = self.random.chance(2, 5);
        self.open_with(there, cut)
    }

    fn open_with(&mut self, there: Disks, cut: bool) -> Check {
        let machine = self.rig.machine.clone();
        for disk in 0..machine.disk_count() {
            machine.with_disk(disk, |state, _| state.vanished = !there.contains(&disk));
        }
        machine.cut_power_after(cut.then(|| self.random.skewed(500)));
        let degraded = there != self.members;
        trace!(
            self.trace,
            "opening with {there:?}, degraded {degraded}, cut {cut}"
        );
        let options = OpenOptions {
            degraded,
            ..OpenOptions::default()
        };
        let labels = self.labels();
        let knows_nothing = |newest: &Disks| newest.is_disjoint(&there);
        let comes_apart = self.newest.iter().any(knows_nothing);
        match self.rig.open_with(options) {
            Ok(store) => {
                self.apart |= comes_apart;
                let outdated = store.pool().outdated();
                ensure!(
                    outdated.is_empty(),
                    "with {there:?} devices {outdated:?} count as old copies"
                );
                let used: Disks = there
                    .iter()
                    .copied()
                    .filter(|disk| store.pool().has_device(*disk as u16))
                    .collect();
                ensure!(
                    self.apart || used == there,
                    "of {there:?} only {used:?} were taken"
                );
                let visible = match seen(&store) {
                    Ok(visible) => visible,
                    Err(_) if !machine.is_powered() => {
                        self.cut_while_opening(there);
                        self.leave(store);
                        return Ok(());
                    }
                    Err(violation) => {
                        ensure!(
                            used.iter().any(|disk| self.lacks_too_many(*disk, &used)
                                || self.may_lack_too_many(*disk, &used)),
                            "{violation}"
                        );
                        self.over = true;
                        return Ok(());
                    }
                };
                self.check(&used, &visible)?;
                self.begin_use(used.clone(), visible);
                let done = self.use_it(&store, used);
                self.leave(store);
                done
            }
            Err(error) if !machine.is_powered() => {
                trace!(self.trace, "power went while opening: {error}");
                self.coverage.hit(FaultKind::PowerCutInRecovery);
                self.apart |= comes_apart;
                self.cut_while_opening(there);
                machine.cut_power();
                machine.settle();
                Ok(())
            }
            Err(error) => {
                trace!(self.trace, "refused: {error}");
                machine.kill();
                ensure!(
                    self.labels() == labels,
                    "an opening with {there:?} was refused, and labels were changed by it: {error}"
                );
                ensure!(
                    degraded || self.apart,
                    "all disks are there, none was used apart, and the pool does not open: {error}"
                );
                let missing = self.members.difference(&there).count();
                let whole = self.newest.len() == 1 && self.uses.last().is_some_and(|last| last.whole);
                ensure!(
                    missing != 1 || !whole || self.apart,
                    "one disk of a whole pool is missing, and it does not open with {there:?}: {error}"
                );
                Ok(())
            }
        }
    }

    /// What these disks knew of must be there.
    fn check(&mut self, used: &Disks, visible: &Writes) -> Check {
        for disk in used {
            let lost: Vec<u64> = self.known[*disk].difference(visible).copied().collect();
            let too_many = self.lacks_too_many(*disk, used);
            for number in lost {
                ensure!(
                    too_many || self.excused.contains(&number),
                    "disk {disk} knew of write {number}, which was acknowledged and is not there with {used:?}; its last use can be \
                     read from {:?}, whole: {}",
                    self.last_of(*disk).map(|last| &last.holds),
                    self.last_of(*disk).is_some_and(|last| last.whole)
                );
                self.excused.insert(number);
            }
        }
        Ok(())
    }

    /// Power went before it could be seen what there was with these disks.
    fn excuse(&mut self, used: &Disks) {
        for disk in used {
            if self.lacks_too_many(*disk, used) {
                self.excused.extend(&self.known[*disk]);
            }
        }
    }

    /// Power went before it was clear whether an opening came to a use.
    fn cut_while_opening(&mut self, there: Disks) {
        self.excuse(&there);
        let uses = there
            .iter()
            .flat_map(|disk| [self.last[*disk], self.perhaps[*disk]]);
        let newest = uses.max().flatten();
        for disk in &there {
            self.perhaps[*disk] = newest;
        }
        // Perhaps only those have a label of it that were in use until then: those that came back get none before they have the log.
        let were_in_use = |disk: &usize| self.newest.iter().all(|newest| newest.contains(disk));
        let current: Disks = there.iter().copied().filter(were_in_use).collect();
        self.newest.push(if current.is_empty() { there } else { current });
    }

    fn last_of(&self, disk: usize) -> Option<&Use> {
        self.last[disk].and_then(|last| self.uses.get(last))
    }

    /// Whether more disks than may be are missing of those that had what this one knew of.
    fn lacks_too_many(&self, disk: usize, used: &Disks) -> bool {
        self.last_of(disk).is_some_and(|last| !self.is_enough(last, used))
    }

    /// The same of the use that an opening which was cut may have brought it to.
    fn may_lack_too_many(&self, disk: usize, used: &Disks) -> bool {
        let perhaps = self.perhaps[disk].and_then(|last| self.uses.get(last));
        perhaps.is_some_and(|last| !self.is_enough(last, used))
    }

    fn is_enough(&self, last: &Use, used: &Disks) -> bool {
        let missing: Vec<usize> = last.holds.difference(used).copied().collect();
        let behind = self.log_may_be_behind() && missing.iter().any(|disk| self.is_fast(*disk));
        missing.len() <= usize::from(last.whole && !behind)
    }

    fn begin_use(&mut self, used: Disks, visible: Writes) {
        let before = used.iter().filter_map(|disk| self.last[*disk]).max();
        let before = before.and_then(|last| self.uses.get(last));
        let began = Use {
            holds: match before {
                Some(before) if !self.is_enough(before, &used) => &before.holds | &used,
                _ => used.clone(),
            },
            whole: false,
            was_whole: before.is_some_and(|before| before.whole && before.holds.is_subset(&used)),
        };
        for disk in &used {
            self.known[*disk].clone_from(&visible);
            self.last[*disk] = Some(self.uses.len());
            self.perhaps[*disk] = None;
        }
        self.newest = vec![used];
        self.uses.push(began);
    }

    /// Works with the store until it is enough, or the power goes.
    fn use_it(&mut self, store: &Arc<ChunkStore>, mut used: Disks) -> Check {
        let machine = self.rig.machine.clone();
        let mut dropped = false;
        let mut mirrored = false;
        for _ in 0..self.random.below(6) {
            let done: Result<(), StoreError> = match self.random.below(10) {
                0 => store.checkpoint(),
                1 => store.mirror_now().map(|done| mirrored = done),
                2 => (0..4).try_for_each(|_| store.step().map(drop)),
                3 => self.drop_one(store, &mut used, &mut dropped),
                4 if self.random.chance(1, 3) && !dropped => {
                    self.add(store, &mut used)?;
                    Ok(())
                }
                _ => self.write(store, &used),
            };
            if let Err(error) = done {
                trace!(self.trace, "{error}");
                ensure!(
                    !machine.is_powered() || dropped,
                    "the store failed although nothing was wrong: {error}"
                );
                return Ok(());
            }
        }
        if self.random.chance(1, 2) {
            mirrored = store.mirror_now().unwrap_or(false);
        }
        if let Some(last) = self.uses.last_mut() {
            last.whole = mirrored && !dropped && used == self.members && store.is_mirrored();
            last.whole &= machine.is_powered();
            if last.whole {
                last.holds.clone_from(&used);
            }
        }
        Ok(())
    }

    fn write(&mut self, store: &Arc<ChunkStore>, used: &Disks) -> Result<(), StoreError> {
        let number = self.next;
        self.next += 1;
        let mut batch = Batch::new();
        batch.put(key(number), vec![number as u8; self.random.skewed(3000) as usize]);
        if self.most_beside > 0 {
            // Always the same records: room is not what this is about.
            for beside in 0..self.random.below(self.most_beside) {
                batch.put(
                    vec![KEYS[0], KEYS[1] + 1, beside as u8],
                    vec![number as u8; 30_000],
                );
            }
        }
        let sequence = store.commit(batch)?;
        store.flush(sequence)?;
        trace!(self.trace, "write {number} is acknowledged by {used:?}");
        for disk in used {
            self.known[*disk].insert(number);
        }
        Ok(())
    }

    /// A disk is gone while the store is in use; it is noted before anything else happens.
    fn drop_one(
        &mut self,
        store: &Arc<ChunkStore>,
        used: &mut Disks,
        dropped: &mut bool,
    ) -> Result<(), StoreError> {
        if used.len() < 2 {
            return Ok(());
        }
        let machine = self.rig.machine.clone();
        machine.cut_power_after(None);
        let gone = *self.random.pick(&used.iter().copied().collect::<Vec<_>>());
        trace!(self.trace, "disk {gone} drops out");
        self.coverage.hit(FaultKind::Vanished);
        machine.with_disk(gone, |disk, _| disk.vanished = true);
        *dropped = true;
        used.remove(&gone);
        let written = self.write(store, used);
        // It may have had no part in that.
        let flushed = store.pool().flush(&[gone as u16]);
        let noted = match self.leaves {
            true => store.note_failing(),
            false => store
                .pool()
                .note_failing()
                .map_err(|error| StoreError::Device(error.to_string().into())),
        };
        trace!(
            self.trace,
            "written {written:?}, flushed {flushed:?}, noted {noted:?}"
        );
        if noted.is_ok() && machine.is_powered() {
            self.newest = vec![used.clone()];
            if let Some(last) = self.uses.last_mut().filter(|last| last.was_whole) {
                last.was_whole = false;
                last.holds.remove(&gone);
            }
        }
        if self.random.chance(1, 2) {
            machine.cut_power_after(Some(self.random.skewed(200)));
        }
        written
    }

    fn add(&mut self, store: &Arc<ChunkStore>, used: &mut Disks) -> Check {
        let Some(spare) = self.spare else { return Ok(()) };
        if *used != self.members {
            return Ok(());
        }
        let machine = self.rig.machine.clone();
        machine.cut_power_after(None);
        machine.with_disk(spare, |disk, _| disk.vanished = false);
        let randomness = SharedRandom::new(self.random.fork(7));
        let place = DeviceAdd::Tier("tier0".into());
        let number = store
            .pool()
            .add_device(machine.device(spare), place, false, &randomness);
        trace!(self.trace, "disk {spare} joins: {number:?}");
        match number {
            Ok(number) => ensure!(usize::from(number) == spare, "it is device {number}"),
            Err(error) if machine.is_powered() => violation!("a disk could not join: {error}"),
            Err(_) => return Ok(()),
        }
        self.spare = None;
        self.members.insert(spare);
        used.insert(spare);
        let known = used.first().map(|first| self.known[*first].clone());
        self.known[spare] = known.unwrap_or_default();
        self.last[spare] = self.uses.len().checked_sub(1);
        if let Some(last) = self.uses.last_mut() {
            last.holds.insert(spare);
            last.was_whole = false;
        }
        self.newest = vec![used.clone()];
        Ok(())
    }

    /// The end of a use, in one of several ways.
    fn leave(&mut self, store: Arc<ChunkStore>) {
        let machine = self.rig.machine.clone();
        let cut = !machine.is_powered() || self.random.chance(1, 3);
        if !cut && self.random.chance(1, 2) {
            // What fails now fails for reasons that are known.
            let _ = store.close();
        }
        drop(store);
        match cut {
            true => {
                self.coverage.hit(FaultKind::PowerCut);
                machine.cut_power();
                machine.settle();
            }
            false => machine.kill(),
        }
    }
}
