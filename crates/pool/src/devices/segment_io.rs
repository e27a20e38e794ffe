//! Reading, writing and flushing: each request goes to the device that it names.
//!
//! Invariants: no lock is held across I/O; of several requests each is tried and gets an outcome of its own.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    members::{Members, Parallelism},
    open_device::OpenDevice,
};
use crate::{PoolError, ondisk::SegmentId};

/// One of several reads ([`Pool::read_many`](crate::Pool::read_many)).
pub struct SegmentRead<'a> {
    /// The segment.
    pub segment: SegmentId,
    /// From where in it, bytes.
    pub offset: u64,
    /// What is to be filled.
    pub buffer: &'a mut [u8],
    /// Whether it was.
    pub outcome: Result<(), PoolError>,
}

impl<'a> SegmentRead<'a> {
    /// Not done yet.
    pub fn new(segment: SegmentId, offset: u64, buffer: &'a mut [u8]) -> Self {
        Self {
            segment,
            offset,
            buffer,
            outcome: Ok(()),
        }
    }
}

/// One of several writes ([`Pool::write_many`](crate::Pool::write_many)).
pub struct SegmentWrite<'a> {
    /// The segment.
    pub segment: SegmentId,
    /// From where in it, bytes.
    pub offset: u64,
    /// What is to be written.
    pub data: &'a [u8],
    /// Whether it was; `None`: it was not tried.
    pub outcome: Option<Result<(), PoolError>>,
}

impl<'a> SegmentWrite<'a> {
    /// Not tried yet.
    pub fn new(segment: SegmentId, offset: u64, data: &'a [u8]) -> Self {
        Self {
            segment,
            offset,
            data,
            outcome: None,
        }
    }
}

impl Members {
    /// Fills `buffer` from `offset` bytes into the segment.
    pub(crate) fn read_segment(
        &self,
        segment: SegmentId,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), PoolError> {
        self.device(segment.device)?
            .read(segment, offset, buffer, self.segment_bytes)
    }

    /// Several reads of segments of one device, at once where it can.
    pub(crate) fn read_many(&self, device: u16, reads: &mut [SegmentRead<'_>]) {
        match self.device(device) {
            Ok(open) if reads.iter().all(|read| read.segment.device == device) => {
                open.read_many(reads, self.segment_bytes);
            }
            _ => reads.iter_mut().for_each(|read| {
                read.outcome = self.read_segment(read.segment, read.offset, read.buffer);
            }),
        }
    }

    /// Writes at `offset` bytes into the segment, the parts one after the other.
    pub(crate) fn write_segment(
        &self,
        segment: SegmentId,
        offset: u64,
        parts: &[&[u8]],
    ) -> Result<(), PoolError> {
        self.check_writable()?;
        self.device(segment.device)?
            .write(segment, offset, parts, self.segment_bytes)
    }

    /// Several writes of segments, those of one device at once.
    pub(crate) fn write_many(&self, writes: &mut [SegmentWrite<'_>]) {
        if let Err(error) = self.check_writable() {
            writes
                .iter_mut()
                .for_each(|write| write.outcome = Some(Err(error.clone())));
            return;
        }
        let mut devices: Vec<u16> = writes.iter().map(|write| write.segment.device).collect();
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            let mut its: Vec<&mut SegmentWrite<'_>> = writes
                .iter_mut()
                .filter(|write| write.segment.device == device)
                .collect();
            match self.device(device) {
                Ok(open) => open.write_many(&mut its, self.segment_bytes),
                Err(error) => its
                    .iter_mut()
                    .for_each(|write| write.outcome = Some(Err(error.clone()))),
            }
        }
    }

    /// Tells the device that the content of a segment is not needed.
    pub(crate) fn discard(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.check_writable()?;
        self.device(segment.device)?.discard(segment, self.segment_bytes)
    }

    /// Whether this segment is there: its device is, and was not cut short before it.
    pub(crate) fn has_segment(&self, segment: SegmentId) -> bool {
        self.is_there_and(segment.device, |device| {
            device.reaches(segment.index, self.segment_bytes)
        })
    }

    /// Makes durable what was written to these devices; which of them failed, and why.
    pub(crate) fn flush_each(&self, devices: &[u16]) -> BTreeMap<u16, PoolError> {
        let mut failed = BTreeMap::new();
        let mut open: Vec<Arc<OpenDevice>> = Vec::with_capacity(devices.len());
        for number in devices {
            match self.device(*number) {
                Ok(device) if open.iter().all(|open| open.number != *number) => open.push(device),
                Ok(_) => {}
                Err(error) => _ = failed.insert(*number, error),
            }
        }
        open.sort_unstable_by_key(|device| device.number);
        let flushed = open.iter().zip(self.flush_devices(&open));
        failed.extend(flushed.filter_map(|(device, outcome)| Some((device.number, outcome.err()?))));
        failed
    }

    /// Flushes every device that is there.
    pub(crate) fn flush_all(&self) -> Result<(), PoolError> {
        self.flush_devices(&self.open()).into_iter().collect()
    }

    /// What became of each.
    fn flush_devices(&self, devices: &[Arc<OpenDevice>]) -> Vec<Result<(), PoolError>> {
        if devices.len() < 2 || self.parallelism == Parallelism::Sequential {
            return devices.iter().map(|device| device.flush()).collect();
        }
        // Each on a thread of its device: who waits does so only as long as the device answers.
        let asked: Vec<_> = devices.iter().map(|device| device.begin_flush()).collect();
        let flushed = devices.iter().zip(asked).map(|(device, asked)| match asked {
            Some(asked) => device.end_flush(&asked),
            None => device.flush(),
        });
        flushed.collect()
    }
}
