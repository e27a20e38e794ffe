//! One device of an open pool: the device itself, its place, its counts and whether it can be relied on.
//!
//! Invariants: counters and state change with atomics only, never under a lock; a device that failed to write or
//! flush is not given new segments; one that does not answer ([`Watch`]) is asked for nothing.

use std::{
    fmt::Display,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use terrace_device::{Cause, Device, DeviceError, Operation, ReadRequest, WriteRequest};
use terrace_sync::Stopwatch;

use super::{
    counters::{CounterValues, Counters, DeviceState},
    flusher::{Asked, Flusher},
    segment_io::{SegmentRead, SegmentWrite},
    watch::{Kind, Turn, UnderWay, Watch},
};
use crate::{
    PoolError,
    ondisk::{SEGMENT_AREA_OFFSET, SegmentId},
};

/// Failed writes after which a device counts as failing.
const WRITE_ERRORS_MAX: u64 = 3;
/// Reads that failed twice in a row after which a device counts as failing.
const READ_ERRORS_MAX: u32 = 16;

/// A device that is there.
pub(crate) struct OpenDevice {
    pub(crate) number: u16,
    device: Arc<dyn Device>,
    segments: AtomicU32,
    draining: AtomicBool,
    /// Why nothing new is put on it any more, once that is so.
    failure: OnceLock<String>,
    failed_reads: AtomicU32,
    counters: Counters,
    watch: Arc<Watch>,
    flusher: Flusher,
}

impl OpenDevice {
    pub(crate) fn new(number: u16, segments: u32, device: Arc<dyn Device>) -> Self {
        Self {
            number,
            device,
            segments: AtomicU32::new(segments),
            draining: AtomicBool::new(false),
            failure: OnceLock::new(),
            failed_reads: AtomicU32::new(0),
            counters: Counters::default(),
            watch: Arc::default(),
            flusher: Flusher::default(),
        }
    }

    /// The device itself: to read labels and roots of it, and to change its size.
    pub(crate) fn raw(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn path(&self) -> String {
        self.device.path()
    }

    /// Segments that may be read and written.
    pub(crate) fn segments(&self) -> u32 {
        self.segments.load(Ordering::Acquire)
    }

    /// It has grown, or was cut off where nothing is in use.
    pub(crate) fn set_segments(&self, segments: u32) {
        self.segments.store(segments, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Nothing new is put on it, or is again; returns whether that was so before.
    pub(crate) fn set_draining(&self, draining: bool) -> bool {
        self.draining.swap(draining, Ordering::Relaxed)
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.watch.is_silent()
    }

    /// Since when it does not answer, nanoseconds since 1970.
    pub(crate) fn silent_since(&self) -> Option<u64> {
        self.watch.silent_since()
    }

    /// When it was found not to answer.
    pub(crate) fn found_silent(&self) -> Option<u64> {
        self.watch.found_silent()
    }

    pub(crate) fn counters(&self) -> CounterValues {
        self.counters.values()
    }

    /// Counts a label or root that it did not give.
    pub(crate) fn note_read_error(&self) {
        self.counters.count_read_error();
    }

    /// Counts what it gave and did not match its checksum.
    pub(crate) fn note_checksum_error(&self) {
        self.counters.count_checksum_error();
    }

    pub(crate) fn state(&self) -> DeviceState {
        if self.watch.is_silent() {
            DeviceState::NotAnswering
        } else if self.failure.get().is_some() {
            DeviceState::Failing
        } else {
            DeviceState::Online
        }
    }

    /// Whether new segments may be put on it.
    pub(crate) fn is_usable(&self) -> bool {
        self.failure.get().is_none() && !self.watch.is_refused() && !self.is_draining()
    }

    /// Begins a request, unless the device does not answer.
    fn begin(&self, kind: Kind) -> Result<UnderWay<'_>, DeviceError> {
        self.watch.begin(kind).ok_or_else(|| self.no_answer(kind))
    }

    fn no_answer(&self, kind: Kind) -> DeviceError {
        let operation = match kind {
            Kind::Read => Operation::Read,
            Kind::Write => Operation::Write,
            Kind::Flush => Operation::Flush,
        };
        DeviceError::whole(self.device.path(), operation, Cause::NoAnswer)
    }

    /// Looks whether it answers; see [`Watch::look`]. Whether that has changed.
    pub(super) fn look(&self, monotonic: u64, now: u64, timeout: u64) -> bool {
        let Some(turn) = self.watch.look(monotonic, now, timeout) else {
            return false;
        };
        let device = self.device.path();
        match turn {
            Turn::FellSilent => tracing::error!(device, "the device does not answer"),
            Turn::Answered => tracing::warn!(device, "the device answers again"),
        }
        true
    }

    /// Asks it for nothing more as long as it does not answer, if that `may` be; who waits for a flush of it is let go.
    pub(super) fn refuse(&self, may: bool) {
        if self.watch.refuse(may) {
            self.flusher.wake();
        }
    }

    fn place(
        &self,
        segment: SegmentId,
        offset: u64,
        length: u64,
        segment_bytes: u32,
        operation: Operation,
    ) -> Result<u64, PoolError> {
        if segment.index >= self.segments() {
            return Err(PoolError::Segment {
                segment,
                reason: "it lies beyond the end of the device",
            });
        }
        let start = SEGMENT_AREA_OFFSET + u64::from(segment.index) * u64::from(segment_bytes);
        if offset
            .checked_add(length)
            .is_none_or(|end| end > u64::from(segment_bytes))
        {
            let cause = Cause::Other(format!(
                "outside of segment {segment}, which has {segment_bytes} bytes"
            ));
            let at = start.saturating_add(offset);
            return Err(DeviceError::range(self.device.path(), operation, at, length, cause).into());
        }
        Ok(start + offset)
    }

    pub(super) fn read(
        &self,
        segment: SegmentId,
        offset: u64,
        buffer: &mut [u8],
        segment_bytes: u32,
    ) -> Result<(), PoolError> {
        let at = self.place(
            segment,
            offset,
            buffer.len() as u64,
            segment_bytes,
            Operation::Read,
        )?;
        let under_way = self.begin(Kind::Read)?;
        self.counters.count_read(buffer.len() as u64);
        let begun = Stopwatch::start();
        let first = self.device.read_at(at, buffer);
        drop(under_way);
        self.counters.count_read_time(begun, 1);
        if let Err(first) = first {
            self.counters.count_read_error();
            tracing::warn!(error = %first, "read failed, trying again");
            let _under_way = self.begin(Kind::Read)?;
            if let Err(second) = self.device.read_at(at, buffer) {
                if self.failed_reads.fetch_add(1, Ordering::Relaxed) + 1 >= READ_ERRORS_MAX {
                    self.mark_failing(&second);
                }
                return Err(second.into());
            }
        }
        Ok(())
    }

    /// As [`read`](Self::read) each, at once where the device can.
    pub(super) fn read_many(&self, reads: &mut [SegmentRead<'_>], segment_bytes: u32) {
        let places: Result<Vec<u64>, PoolError> = reads
            .iter()
            .map(|read| {
                let length = read.buffer.len() as u64;
                self.place(read.segment, read.offset, length, segment_bytes, Operation::Read)
            })
            .collect();
        let mut done: Vec<bool> = Vec::new();
        if let Ok(places) = places {
            let mut requests: Vec<ReadRequest<'_>> = places
                .into_iter()
                .zip(reads.iter_mut())
                .map(|(at, read)| ReadRequest::new(at, &mut *read.buffer))
                .collect();
            let Some(under_way) = self.watch.begin(Kind::Read) else {
                reads
                    .iter_mut()
                    .for_each(|read| read.outcome = Err(self.no_answer(Kind::Read).into()));
                return;
            };
            let begun = Stopwatch::start();
            self.device.read_many(&mut requests);
            drop(under_way);
            done.extend(requests.iter().map(|request| request.outcome.is_ok()));
            let whole = done.iter().filter(|done| **done).count() as u64;
            self.counters.count_read_time(begun, whole);
        }
        for (number, read) in reads.iter_mut().enumerate() {
            if done.get(number) == Some(&true) {
                self.counters.count_read(read.buffer.len() as u64);
                read.outcome = Ok(());
            } else {
                // By itself: counted, tried again, and with a cause of its own.
                read.outcome = self.read(read.segment, read.offset, read.buffer, segment_bytes);
            }
        }
    }

    pub(super) fn write(
        &self,
        segment: SegmentId,
        offset: u64,
        parts: &[&[u8]],
        segment_bytes: u32,
    ) -> Result<(), PoolError> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        let at = self.place(segment, offset, length, segment_bytes, Operation::Write)?;
        let _under_way = self
            .begin(Kind::Write)
            .map_err(|error| self.write_failed(error))?;
        self.counters.count_write(length);
        let begun = Stopwatch::start();
        let written = match parts {
            [whole] => self.device.write_at(at, whole),
            parts => self.device.write_vectored_at(at, parts),
        };
        self.counters.count_write_time(begun, 1);
        written.map_err(|error| self.write_failed(error))
    }

    /// As [`write`](Self::write) each, at once where the device can.
    pub(super) fn write_many(&self, writes: &mut [&mut SegmentWrite<'_>], segment_bytes: u32) {
        let mut requests: Vec<(usize, WriteRequest<'_>)> = Vec::with_capacity(writes.len());
        for (number, write) in writes.iter_mut().enumerate() {
            let length = write.data.len() as u64;
            match self.place(
                write.segment,
                write.offset,
                length,
                segment_bytes,
                Operation::Write,
            ) {
                Ok(at) => requests.push((number, WriteRequest::new(at, write.data))),
                Err(error) => write.outcome = Some(Err(error)),
            }
        }
        let (numbers, mut requests): (Vec<usize>, Vec<_>) = requests.into_iter().unzip();
        let Ok(under_way) = self.begin(Kind::Write) else {
            for number in numbers {
                if let Some(write) = writes.get_mut(number) {
                    write.outcome = Some(Err(self.write_failed(self.no_answer(Kind::Write))));
                }
            }
            return;
        };
        for request in &requests {
            self.counters.count_write(request.data.len() as u64);
        }
        let begun = Stopwatch::start();
        self.device.write_many(&mut requests);
        drop(under_way);
        self.counters.count_write_time(begun, requests.len() as u64);
        for (number, request) in numbers.into_iter().zip(requests) {
            if let Some(write) = writes.get_mut(number) {
                write.outcome = Some(request.outcome.map_err(|error| self.write_failed(error)));
            }
        }
    }

    pub(crate) fn flush(&self) -> Result<(), PoolError> {
        let outcome = self.begin(Kind::Flush).and_then(|_under_way| {
            self.counters.count_flush();
            self.device.flush()
        });
        outcome.map_err(|error| self.flush_failed(error))
    }

    /// Begins a flush beside others; to be waited for by [`end_flush`](Self::end_flush). `None` where that cannot be.
    pub(super) fn begin_flush(&self) -> Option<Asked> {
        if self.watch.is_refused() {
            return None;
        }
        let asked = self.flusher.ask(&self.device, &self.watch)?;
        self.counters.count_flush();
        Some(asked)
    }

    /// Waits for a flush, as long as the device is said to answer.
    pub(super) fn end_flush(&self, asked: &Asked) -> Result<(), PoolError> {
        terrace_sync::about_to_do_io();
        let outcome = self.flusher.wait(asked, &self.watch);
        let outcome = outcome.unwrap_or_else(|| Err(self.no_answer(Kind::Flush)));
        outcome.map_err(|error| self.flush_failed(error))
    }

    fn flush_failed(&self, error: DeviceError) -> PoolError {
        // After a failed flush the device cannot say what is durable: nothing new goes there.
        self.counters.count_write_error();
        self.mark_failing(&error);
        error.into()
    }

    /// Writes outside of the segments (labels, roots), counted like any other.
    pub(crate) fn write_front(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let _under_way = self
            .begin(Kind::Write)
            .map_err(|error| self.write_failed(error))?;
        self.counters.count_write(bytes.len() as u64);
        let begun = Stopwatch::start();
        let written = self.device.write_at(offset, bytes);
        self.counters.count_write_time(begun, 1);
        written.map_err(|error| self.write_failed(error))
    }

    pub(super) fn discard(&self, segment: SegmentId, segment_bytes: u32) -> Result<(), PoolError> {
        let at = self.place(
            segment,
            0,
            u64::from(segment_bytes),
            segment_bytes,
            Operation::Discard,
        )?;
        let _under_way = self.begin(Kind::Write)?;
        Ok(self.device.discard(at, u64::from(segment_bytes))?)
    }

    fn write_failed(&self, error: DeviceError) -> PoolError {
        if self.counters.count_write_error() >= WRITE_ERRORS_MAX {
            self.mark_failing(&error);
        }
        error.into()
    }

    /// Its backing has less than the `size_bytes` that the pool gave it: what is left can be read, nothing new is put on it.
    pub(crate) fn mark_cut_short(&self, size_bytes: u64) {
        let (device, has) = (self.device.path(), self.device.size_bytes());
        let _ = self
            .failure
            .set(format!("it was cut short: it has {has} bytes of {size_bytes}"));
        tracing::error!(
            device,
            has,
            size_bytes,
            "the device was cut short; nothing new is put on it"
        );
    }

    /// Whether its backing reaches to the end of a segment.
    pub(super) fn reaches(&self, segment: u32, segment_bytes: u32) -> bool {
        let end = SEGMENT_AREA_OFFSET + (u64::from(segment) + 1) * u64::from(segment_bytes);
        end <= self.device.size_bytes()
    }

    /// It refused what a device of the pool must take.
    pub(crate) fn give_up(&self, error: &PoolError) {
        self.mark_failing(error);
    }

    fn mark_failing(&self, error: &dyn Display) {
        if self.failure.set(error.to_string()).is_ok() {
            tracing::error!(%error, "the device is failing; nothing new is put on it");
        }
    }

    /// Why it counts as failing, if it does.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }
}
