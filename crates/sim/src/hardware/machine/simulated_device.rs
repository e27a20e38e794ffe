//! `SimulatedDevice`: a disk of a machine as an engine sees it, and every fault of a single operation.
//!
//! Invariants: a device of an earlier session, of a machine without power or of a disk that is gone answers `Gone` and
//! changes nothing; what goes wrong is decided by the machine's own chance, in the order of operations; a device whose
//! flush failed once never flushes again.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_device::{Cause, DEVICE_BLOCK_BYTES, Device, DeviceError, Operation, WriteRequest};

use super::{Counted, FRONT_BYTES, Machine, State};
use crate::hardware::{FaultKind, PAGE_BYTES, SECTOR_BYTES, root_guard};

const ERROR_IO: i32 = libc::EIO;

/// Each operation moves the clock by this, nanoseconds.
const OPERATION_NANOSECONDS: u64 = 20_000;

/// Of the stops that were planned, one in so many is the end of the process alone.
const PROCESS_ENDS_IN: u64 = 4;

/// A disk as an engine sees it.
pub(crate) struct SimulatedDevice {
    machine: Arc<Machine>,
    disk: usize,
    session: u64,
    flush_failed: Mutex<bool>,
}

impl SimulatedDevice {
    pub(crate) fn new(machine: Arc<Machine>, disk: usize, session: u64) -> Self {
        Self {
            machine,
            disk,
            session,
            flush_failed: Mutex::new(false),
        }
    }

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
        let is_running = state.session == self.session && state.powered;
        if is_running && !state.disks[self.disk].vanished {
            let sees_all = state.blurred.is_empty();
            let breach = state.labels.breach(data, sees_all);
            state.breach = state.breach.take().or(breach);
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
