//! `Machine`: the disks, the clock and the power of a simulated computer, and the [`Device`]s through which an engine
//! sees the disks.
//!
//! Invariants: after a cut or a kill every device handed out before is dead (it answers `Gone`), so that nothing of an
//! old engine reaches the disks of a new one; all chance comes from the machine's own stream, in the order of
//! operations.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use terrace_device::{
    Cause, Clock, DEVICE_BLOCK_BYTES, Device, DeviceError, ManualClock, Operation, WriteRequest,
};

use crate::{
    disk::{Disk, PAGE_BYTES, Rates, SECTOR_BYTES},
    fault::{Coverage, FaultKind},
    outcome::{Check, Violation},
    random::Random,
    root_guard,
    trace::Trace,
};

const ERROR_IO: i32 = libc::EIO;
/// Each operation moves the clock by this, nanoseconds.
const OPERATION_NANOSECONDS: u64 = 20_000;
/// Of the stops that were planned, one in so many is the end of the process alone.
const PROCESS_ENDS_IN: u64 = 4;
/// What an entry of the log and a table of the metadata begin with.
const LOG_MAGIC: &[u8] = b"TerrLog1";
const TABLE_MAGIC: &[u8] = b"TMT2";
/// What lies in front of the first segment, bytes.
pub(crate) const FRONT_BYTES: u64 = terrace_pool::SEGMENT_AREA_OFFSET;

/// What is counted until the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Every operation.
    Operations,
    /// Flushes: what was written before them is not durable.
    Flushes,
    /// Discards, and then one more operation: what was discarded is gone, what says why need not be durable.
    Discards,
}

/// What a power cut leaves of what a disk had not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// What chance has it.
    Any,
    /// All but the newest write.
    Oldest,
    /// The newest write alone.
    Newest,
}

struct State {
    disks: Vec<Disk>,
    random: Random,
    /// Grows with each start; devices of an earlier one are dead.
    session: u64,
    powered: bool,
    /// Operations of a kind until the power goes or the process ends.
    countdown: Option<(Counted, u64)>,
    /// Only the process ended: what it wrote is there.
    only_process: bool,
    /// What the next cut leaves.
    survivors: Survivors,
    /// Device operations so far.
    operations: u64,
    /// Disks whose root slots were read wrong in this session, or whose writing or flushing failed: what is newest there
    /// is not what was acknowledged.
    blurred: BTreeSet<usize>,
    /// The first thing that no engine may do to a disk and this one did.
    breach: Option<String>,
}

/// What a machine had at one moment.
pub struct Frozen {
    disks: Vec<Disk>,
    random: Random,
}

/// A simulated computer.
pub struct Machine {
    state: Mutex<State>,
    /// What took effect.
    pub coverage: Arc<Coverage>,
    /// What happened.
    pub trace: Trace,
    /// Its time.
    pub clock: Arc<ManualClock>,
}

impl Machine {
    /// A computer with disks of these sizes in bytes; `true`: the disk stands for a directory of slot files.
    pub fn new(sizes: &[(u64, bool)], random: Random, coverage: Arc<Coverage>, trace: Trace) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                disks: sizes
                    .iter()
                    .map(|(size, slots)| Disk::new(*size, *slots))
                    .collect(),
                random,
                session: 0,
                powered: true,
                countdown: None,
                only_process: false,
                survivors: Survivors::Any,
                operations: 0,
                blurred: BTreeSet::new(),
                breach: None,
            }),
            coverage,
            trace,
            clock: Arc::new(ManualClock::new(1_700_000_000_000_000_000)),
        })
    }

    /// The disks as devices of a new session; those of earlier sessions are dead from now on. Disks that vanished are
    /// left out.
    pub fn plug_in(self: &Arc<Self>) -> Vec<Arc<dyn Device>> {
        let mut state = self.state.lock();
        state.session += 1;
        state.powered = true;
        state.blurred.clear();
        let session = state.session;
        (0..state.disks.len())
            .filter(|disk| !state.disks[*disk].vanished)
            .map(|disk| self.device_of(disk, session))
            .collect()
    }

    /// A disk as a device of the running session.
    pub fn device(self: &Arc<Self>, disk: usize) -> Arc<dyn Device> {
        let session = self.state.lock().session;
        self.device_of(disk, session)
    }

    fn device_of(self: &Arc<Self>, disk: usize, session: u64) -> Arc<dyn Device> {
        Arc::new(SimulatedDevice {
            machine: self.clone(),
            disk,
            session,
            flush_failed: Mutex::new(false),
        })
    }

    /// The power goes, or now and then the process alone ends, after this many more device operations; `None`: it stays.
    pub fn cut_power_after(&self, operations: Option<u64>) {
        self.state.lock().countdown = operations.map(|left| (Counted::Operations, left));
    }

    /// As [`cut_power_after`](Self::cut_power_after), counting one kind of operations only.
    pub fn cut_power_at(&self, counted: Counted, after: u64) {
        self.state.lock().countdown = Some((counted, after));
    }

    /// Plans a stop within `most` operations, or at one of the next flushes or discards.
    pub fn plan_stop(&self, most: u64, random: &mut Random) {
        let (counted, after) = match random.below(6) {
            0 | 1 => {
                // What a flush was to make durable before what came last, or the reverse.
                self.survivors(*random.pick(&[Survivors::Any, Survivors::Oldest, Survivors::Newest]));
                (Counted::Flushes, random.skewed(8))
            }
            2 => (Counted::Discards, random.between(1, 3)),
            _ => (Counted::Operations, random.skewed(most)),
        };
        self.trace
            .event(format_args!("power goes after {after} {counted:?}"));
        self.cut_power_at(counted, after);
    }

    /// What the next power cut leaves, of every disk.
    pub fn survivors(&self, survivors: Survivors) {
        self.state.lock().survivors = survivors;
    }

    /// The power goes now, unless the machine has stopped already.
    pub fn cut_power(&self) {
        let mut state = self.state.lock();
        state.countdown = None;
        state.only_process &= !state.powered;
        state.powered = false;
    }

    /// Whether the machine runs: the power is on, and the process has not ended by itself.
    pub fn is_powered(&self) -> bool {
        self.state.lock().powered
    }

    /// After the power went or the process ended: decides what the disks kept.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let survivors = std::mem::replace(&mut state.survivors, Survivors::Any);
        for (number, disk) in state.disks.iter_mut().enumerate() {
            let mut random = state.random.fork(number as u64);
            if !state.only_process {
                disk.lose_power(survivors, &mut random, &self.coverage);
            }
        }
        state.only_process = false;
        state.countdown = None;
        state.session += 1;
    }

    /// The process ends: its devices are dead, what it wrote stays where it is.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        state.session += 1;
        state.countdown = None;
        self.coverage.hit(FaultKind::Kill);
    }

    /// Everything that the disks hold, and the machine's chance, to come back to with [`thaw`](Self::thaw).
    pub fn freeze(&self) -> Frozen {
        let state = self.state.lock();
        Frozen {
            disks: state.disks.clone(),
            random: state.random.clone(),
        }
    }

    /// All is as it was when it was frozen; the devices of what was tried meanwhile are dead.
    pub fn thaw(&self, frozen: Frozen) {
        let mut state = self.state.lock();
        state.session += 1;
        (state.disks, state.random) = (frozen.disks, frozen.random);
        (state.powered, state.only_process, state.countdown) = (true, false, None);
        state.survivors = Survivors::Any;
    }

    /// Whether a disk is gone.
    pub fn lacks_a_disk(&self) -> bool {
        self.state.lock().disks.iter().any(|disk| disk.vanished)
    }

    /// A violation if the engine did something to a disk that it may never do, whatever came of it.
    pub fn check_breach(&self) -> Check {
        match self.state.lock().breach.take() {
            Some(words) => Err(Violation(words)),
            None => Ok(()),
        }
    }

    /// Device operations so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Number of disks.
    pub fn disk_count(&self) -> usize {
        self.state.lock().disks.len()
    }

    /// Devices begin to fail by chance, operations up to `most` times in 10,000; some stop altogether: they take no
    /// more writes, or nothing new, or are gone.
    pub fn begin_storm(&self, most: u64, random: &mut Random) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for disk in &mut state.disks {
            let mut rate = |of: u64| {
                if random.chance(1, 3) {
                    random.skewed(most) / of
                } else {
                    0
                }
            };
            disk.rates = Rates {
                read_error: rate(1),
                read_flip: rate(1),
                read_misdirected: rate(2),
                read_stale: rate(2),
                write_error: rate(2),
                flush_error: rate(1),
                slow: rate(1),
                ..Rates::default()
            };
            disk.backing_full = random.chance(1, 35);
            disk.unwritable = random.chance(1, 6).then(|| {
                // Where labels and roots are, or anywhere.
                let of_front = random.chance(2, 3);
                let start = if of_front {
                    0
                } else {
                    random.below(disk.size_bytes())
                };
                start..start + FRONT_BYTES
            });
            disk.writes_fail = random.chance(1, 40);
            if random.chance(1, 40) {
                // Without its power, mostly: what it had not flushed is gone in part.
                if random.chance(2, 3) {
                    disk.lose_power(Survivors::Any, &mut state.random, &self.coverage);
                }
                disk.vanished = true;
            }
        }
    }

    /// Devices work again, but for those that are gone.
    pub fn end_storm(&self) {
        for disk in &mut self.state.lock().disks {
            disk.rates = Rates::default();
            disk.writes_fail = false;
            disk.backing_full = false;
            disk.unwritable = None;
        }
    }

    /// Between two sessions: every device works again, and one that was gone is back with what it had then.
    pub fn repair(&self) {
        self.end_storm();
        for disk in &mut self.state.lock().disks {
            if std::mem::take(&mut disk.vanished) {
                self.coverage.hit(FaultKind::CameBackOld);
            }
            disk.unspoil();
        }
    }

    /// Reads fail now and then while the pool is opened: errors on all disks, flipped bits on one of several.
    pub fn trouble_reads(&self, random: &mut Random) {
        let mut state = self.state.lock();
        let several = state.disks.len() > 1;
        let flips = random.index(state.disks.len());
        for (number, disk) in state.disks.iter_mut().enumerate() {
            disk.rates.read_error = random.between(0, 400);
            if several && number == flips {
                // Rarely: what is wrong three times in a row counts as damaged for good.
                disk.rates.read_flip = random.between(0, 60);
            }
        }
    }

    /// Some pages of one kind cannot be read until the next [`repair`](Self::repair): tables, on one disk or on all; or
    /// entries of the log on one disk, and only if `whole`: no copy of an entry is missing because a write failed, or the
    /// one that cannot be read may be the only one. Only when nothing was lost: what looks like a table may lie where data
    /// was, and an opening believes that data which cannot be read is there. Whether there were any.
    pub fn spoil_for_opening(&self, whole: bool, random: &mut Random) -> bool {
        let mut state = self.state.lock();
        let one = random.index(state.disks.len());
        let (all, of_log, odds) = (random.chance(1, 2), random.chance(1, 2), random.between(1, 4));
        let mut spoiled = false;
        for (number, disk) in state.disks.iter_mut().enumerate() {
            if disk.vanished || (of_log || !all) && number != one {
                continue;
            }
            let pages = match of_log {
                true if !whole => Vec::new(),
                true => disk.pages_that_begin_with(LOG_MAGIC),
                false => disk.pages_that_begin_with(TABLE_MAGIC),
            };
            for page in pages {
                if random.chance(odds, 4) {
                    disk.spoil(page);
                    spoiled = true;
                }
            }
        }
        self.trace.event(format_args!(
            "cannot be read while opening: log {of_log}, {spoiled}"
        ));
        spoiled
    }

    /// On how many of these disks the newest root that any of them holds is durable.
    pub fn root_holders(&self, disks: impl Iterator<Item = usize>) -> usize {
        let state = self.state.lock();
        root_guard::holders(disks.filter_map(|disk| state.disks.get(disk)))
    }

    /// How many of these disks have the newest root that any of them holds in one copy of its slot only.
    pub fn half_roots(&self, disks: impl Iterator<Item = usize>) -> usize {
        let state = self.state.lock();
        root_guard::halves(disks.filter_map(|disk| state.disks.get(disk)))
    }

    /// Works on a disk directly, below the engine, with the machine's chance.
    pub fn with_disk<T>(&self, disk: usize, work: impl FnOnce(&mut Disk, &mut Random) -> T) -> T {
        let mut state = self.state.lock();
        let state = &mut *state;
        work(&mut state.disks[disk], &mut state.random)
    }
}

/// A disk as an engine sees it.
struct SimulatedDevice {
    machine: Arc<Machine>,
    disk: usize,
    session: u64,
    flush_failed: Mutex<bool>,
}

impl SimulatedDevice {
    fn error(&self, operation: Operation, offset: u64, length: usize, cause: Cause) -> DeviceError {
        DeviceError::range(self.path(), operation, offset, length as u64, cause)
    }

    /// What comes before every operation: is the device there, does the power last. `Err(true)` if the power goes
    /// during this operation.
    fn begin(&self, state: &mut State, operation: Operation) -> Result<(), bool> {
        if state.session != self.session || !state.powered {
            return Err(false);
        }
        if state.disks[self.disk].vanished {
            self.machine.coverage.hit(FaultKind::Vanished);
            return Err(false);
        }
        state.operations += 1;
        self.machine.clock.advance(OPERATION_NANOSECONDS);
        if let Some((counted, left)) = state.countdown {
            let counts = match counted {
                Counted::Operations => true,
                Counted::Flushes => operation == Operation::Flush,
                // The discard itself is still done.
                Counted::Discards => left == 0 || operation == Operation::Discard,
            };
            if counts && left == 0 {
                state.countdown = None;
                state.powered = false;
                state.only_process = state.random.chance(1, PROCESS_ENDS_IN);
                if state.only_process {
                    self.machine.coverage.hit(FaultKind::KillMidway);
                }
                return Err(true);
            }
            state.countdown = Some((counted, left - u64::from(counts)));
        }
        let slow = state.disks[self.disk].rates.slow;
        if slow > 0 && state.random.chance(slow, 10_000) {
            self.machine.clock.advance(3_000_000_000);
            self.machine.coverage.hit(FaultKind::Slow);
        }
        Ok(())
    }

    fn check(
        &self,
        state: &State,
        operation: Operation,
        offset: u64,
        length: usize,
    ) -> Result<(), DeviceError> {
        let unit = match operation {
            Operation::Read => self.read_unit_bytes(),
            _ => DEVICE_BLOCK_BYTES,
        };
        if !offset.is_multiple_of(unit as u64) || !length.is_multiple_of(unit) {
            return Err(self.error(operation, offset, length, Cause::Misaligned));
        }
        let size_bytes = state.disks[self.disk].size_bytes();
        if offset
            .checked_add(length as u64)
            .is_none_or(|end| end > size_bytes)
        {
            return Err(self.error(operation, offset, length, Cause::OutOfRange { size_bytes }));
        }
        Ok(())
    }
}

impl Device for SimulatedDevice {
    fn path(&self) -> String {
        format!("/simulated/disk{}", self.disk)
    }

    fn size_bytes(&self) -> u64 {
        self.machine.state.lock().disks[self.disk].size_bytes()
    }

    /// Every other disk is read by sectors.
    fn read_unit_bytes(&self) -> usize {
        match self.disk % 2 {
            0 => SECTOR_BYTES,
            _ => DEVICE_BLOCK_BYTES,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let machine = &self.machine;
        let mut state = machine.state.lock();
        self.check(&state, Operation::Read, offset, buffer.len())?;
        if self.begin(&mut state, Operation::Read).is_err() {
            return Err(self.error(Operation::Read, offset, buffer.len(), Cause::Gone));
        }
        let State {
            disks,
            random,
            blurred,
            ..
        } = &mut *state;
        let disk = &mut disks[self.disk];
        let untrue = if offset < FRONT_BYTES {
            Some(self.disk)
        } else {
            None
        };
        let failed = || self.error(Operation::Read, offset, buffer.len(), Cause::System(ERROR_IO));
        if disk.rates.read_error > 0 && random.chance(disk.rates.read_error, 10_000) {
            machine.coverage.hit(FaultKind::ReadErrorOnce);
            blurred.extend(untrue);
            machine.trace.operation(self.disk, "read fails", offset, &[]);
            return Err(failed());
        }
        if disk.rates.bad_page > 0 && random.chance(disk.rates.bad_page, 10_000) {
            let pages = buffer.len().div_ceil(PAGE_BYTES);
            disk.spoil((offset / PAGE_BYTES as u64) as usize + random.index(pages));
        }
        if !disk.read(offset, buffer) {
            machine.coverage.hit(FaultKind::ReadErrorForGood);
            blurred.extend(untrue);
            machine
                .trace
                .operation(self.disk, "read hits bad page", offset, &[]);
            return Err(self.error(Operation::Read, offset, buffer.len(), Cause::System(ERROR_IO)));
        }
        if disk.rates.read_flip > 0 && !buffer.is_empty() && random.chance(disk.rates.read_flip, 10_000) {
            let at = random.index(buffer.len());
            buffer[at] ^= 1 << random.below(8);
            blurred.extend(untrue);
            machine.coverage.hit(FaultKind::Flip);
            machine
                .trace
                .operation(self.disk, "read flips", offset + at as u64, &[]);
        }
        if disk.rates.read_misdirected > 0 && random.chance(disk.rates.read_misdirected, 10_000) {
            let other = disk.elsewhere(offset, buffer.len(), random);
            if disk.read(other, buffer) && other != offset {
                machine.coverage.hit(FaultKind::MisdirectedRead);
                blurred.extend(untrue);
                machine
                    .trace
                    .operation(self.disk, "read is misdirected", other, &[]);
            }
        }
        if disk.rates.read_stale > 0
            && !buffer.is_empty()
            && random.chance(disk.rates.read_stale, 10_000)
            && disk.show_earlier(offset, buffer, random)
        {
            machine.coverage.hit(FaultKind::StaleRead);
            blurred.extend(untrue);
            machine.trace.operation(self.disk, "read is stale", offset, &[]);
        }
        machine.trace.operation(self.disk, "read", offset, buffer);
        Ok(())
    }

    /// In either order: a crash between two of them leaves any of them without the others.
    fn write_many(&self, writes: &mut [WriteRequest<'_>]) {
        let blocks: u64 = writes
            .iter()
            .map(|write| write.offset / DEVICE_BLOCK_BYTES as u64)
            .sum();
        if blocks % 2 == 1 {
            writes.reverse();
        }
        for write in writes.iter_mut() {
            write.outcome = self.write_at(write.offset, write.data);
        }
        if blocks % 2 == 1 {
            writes.reverse();
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let machine = &self.machine;
        let mut state = machine.state.lock();
        self.check(&state, Operation::Write, offset, data.len())?;
        if state.session == self.session
            && state.powered
            && state.breach.is_none()
            && !state.blurred.contains(&self.disk)
        {
            let breach = root_guard::breach(&state.disks[self.disk], offset, data);
            state.breach = breach.map(|words| format!("disk {}: {words}", self.disk));
        }
        if let Err(struck) = self.begin(&mut state, Operation::Write) {
            if struck {
                // On its way then: any of its sectors may have made it.
                let State {
                    disks,
                    random,
                    only_process,
                    ..
                } = &mut *state;
                match *only_process {
                    true => disks[self.disk].write_partly(offset, data, random),
                    false => disks[self.disk].write(offset, data),
                }
                machine
                    .trace
                    .operation(self.disk, "write, power goes", offset, data);
            }
            return Err(self.error(Operation::Write, offset, data.len(), Cause::Gone));
        }
        let State {
            disks,
            random,
            blurred,
            ..
        } = &mut *state;
        let disk = &mut disks[self.disk];
        let front = (offset < FRONT_BYTES).then_some(self.disk);
        if disk.writes_fail {
            machine.coverage.hit(FaultKind::WriteErrorForGood);
            return Err(self.error(Operation::Write, offset, data.len(), Cause::System(ERROR_IO)));
        }
        if disk.is_unwritable(offset, data.len()) {
            machine.coverage.hit(FaultKind::WriteErrorRange);
            return Err(self.error(Operation::Write, offset, data.len(), Cause::System(ERROR_IO)));
        }
        if disk.backing_full && disk.is_new_place(offset, data.len()) {
            machine.coverage.hit(FaultKind::BackingFull);
            return Err(self.error(Operation::Write, offset, data.len(), Cause::System(libc::ENOSPC)));
        }
        if disk.rates.write_error > 0 && random.chance(disk.rates.write_error, 10_000) {
            machine.coverage.hit(FaultKind::WriteErrorOnce);
            machine.trace.operation(self.disk, "write fails", offset, data);
            blurred.extend(front);
            disk.write_partly(offset, data, random);
            return Err(self.error(Operation::Write, offset, data.len(), Cause::System(ERROR_IO)));
        }
        if disk.rates.write_phantom > 0 && random.chance(disk.rates.write_phantom, 10_000) {
            machine.coverage.hit(FaultKind::PhantomWrite);
            machine
                .trace
                .operation(self.disk, "write is not made", offset, data);
            return Ok(());
        }
        let mut offset = offset;
        if disk.rates.write_misdirected > 0 && random.chance(disk.rates.write_misdirected, 10_000) {
            offset = disk.elsewhere(offset, data.len(), random);
            machine.coverage.hit(FaultKind::MisdirectedWrite);
        }
        disk.write(offset, data);
        machine.trace.operation(self.disk, "write", offset, data);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let machine = &self.machine;
        let mut state = machine.state.lock();
        if self.begin(&mut state, Operation::Flush).is_err() {
            return Err(self.error(Operation::Flush, 0, 0, Cause::Gone));
        }
        let mut flush_failed = self.flush_failed.lock();
        if *flush_failed {
            return Err(self.error(Operation::Flush, 0, 0, Cause::FlushFailedBefore));
        }
        let State {
            disks,
            random,
            blurred,
            ..
        } = &mut *state;
        let disk = &mut disks[self.disk];
        if disk.writes_fail || (disk.rates.flush_error > 0 && random.chance(disk.rates.flush_error, 10_000)) {
            machine.coverage.hit(FaultKind::FlushError);
            machine.trace.operation(self.disk, "flush fails", 0, &[]);
            *flush_failed = true;
            blurred.insert(self.disk);
            return Err(self.error(Operation::Flush, 0, 0, Cause::System(ERROR_IO)));
        }
        disk.flush();
        machine.trace.operation(self.disk, "flush", 0, &[]);
        Ok(())
    }

    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        let machine = &self.machine;
        let mut state = machine.state.lock();
        let begun = self.begin(&mut state, Operation::Resize);
        let State { disks, random, .. } = &mut *state;
        let disk = &mut disks[self.disk];
        // One disk in three stands for a block device, which keeps its size.
        let cuts = self.disk % 3 != 2;
        if let Err(struck) = begun {
            if struck && cuts && random.chance(1, 2) && size_bytes < disk.size_bytes() {
                disk.shrink(size_bytes);
            }
            return Err(self.error(Operation::Resize, 0, 0, Cause::Gone));
        }
        if disk.writes_fail {
            return Err(self.error(Operation::Resize, 0, 0, Cause::System(ERROR_IO)));
        }
        if cuts && size_bytes < disk.size_bytes() {
            disk.shrink(size_bytes);
        }
        machine.trace.operation(
            self.disk,
            if cuts { "cut off" } else { "not cut off" },
            size_bytes,
            &[],
        );
        Ok(cuts)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let machine = &self.machine;
        let mut state = machine.state.lock();
        self.check(&state, Operation::Discard, offset, length as usize)?;
        if self.begin(&mut state, Operation::Discard).is_err() {
            return Err(self.error(Operation::Discard, offset, length as usize, Cause::Gone));
        }
        let State { disks, random, .. } = &mut *state;
        let zero = random.chance(1, 2);
        disks[self.disk].discard(offset, length, zero);
        machine.trace.operation(
            self.disk,
            if zero { "discard" } else { "discard, kept" },
            offset,
            &[],
        );
        Ok(())
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Machine at {} ns", self.clock.now_nanoseconds())
    }
}
