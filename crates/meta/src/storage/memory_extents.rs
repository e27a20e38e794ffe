//! `MemoryExtents`: extents in memory, with faults on request; for tests of the tree and of what is built on it.
//!
//! Invariants: locations are never used twice, so that reading a released extent fails instead of giving other
//! bytes; every fault is counted down deterministically.

use std::collections::BTreeMap;

use bytes::Bytes;
use terrace_sync::{Mutex, rank};

use crate::{Extent, ExtentError, ExtentStorage};

/// Extents in memory.
#[derive(Default)]
pub struct MemoryExtents {
    inner: Mutex<Inner, rank::Leaf>,
}

#[derive(Default)]
struct Inner {
    extents: BTreeMap<u64, Bytes>,
    next: u64,
    fail_writes_after: Option<u64>,
    fail_reads_after: Option<u64>,
    capacity_bytes: Option<u64>,
    writes: u64,
    reads: u64,
    bytes_written: u64,
    bytes_read: u64,
    syncs: u64,
}

/// What a [`MemoryExtents`] was asked to do so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExtentCounters {
    /// Successful writes.
    pub writes: u64,
    /// Successful reads.
    pub reads: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Syncs.
    pub syncs: u64,
}

impl MemoryExtents {
    /// An empty storage without limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `count` more writes succeed and every later one fail; `None`: all succeed.
    pub fn fail_writes_after(&self, count: Option<u64>) {
        self.inner.lock().fail_writes_after = count;
    }

    /// Lets `count` more reads succeed and every later one fail; `None`: all succeed.
    pub fn fail_reads_after(&self, count: Option<u64>) {
        self.inner.lock().fail_reads_after = count;
    }

    /// Refuses writes that would hold more than `bytes`; `None`: no limit.
    pub fn limit(&self, bytes: Option<u64>) {
        self.inner.lock().capacity_bytes = bytes;
    }

    /// Changes one stored byte by exclusive or; false if there is no such byte.
    pub fn flip(&self, extent: Extent, offset: u32, mask: u8) -> bool {
        let mut inner = self.inner.lock();
        let Some(bytes) = inner.extents.get_mut(&extent.location) else {
            return false;
        };
        let mut changed = bytes.to_vec();
        let Some(byte) = changed.get_mut(offset as usize) else {
            return false;
        };
        *byte ^= mask;
        *bytes = Bytes::from(changed);
        true
    }

    /// Replaces what an extent holds, as a device that lost or misplaced a write would.
    pub fn replace(&self, extent: Extent, content: Bytes) {
        let mut inner = self.inner.lock();
        inner.next = inner.next.max(extent.location);
        inner.extents.insert(extent.location, content);
    }

    /// What an extent holds.
    pub fn content(&self, extent: Extent) -> Option<Bytes> {
        self.inner.lock().extents.get(&extent.location).cloned()
    }

    /// The extents held, ascending.
    pub fn held(&self) -> Vec<Extent> {
        let inner = self.inner.lock();
        inner
            .extents
            .iter()
            .map(|(location, content)| Extent {
                location: *location,
                bytes: content.len() as u32,
            })
            .collect()
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> u64 {
        self.inner
            .lock()
            .extents
            .values()
            .map(|content| content.len() as u64)
            .sum()
    }

    /// What was asked so far.
    pub fn counters(&self) -> ExtentCounters {
        let inner = self.inner.lock();
        ExtentCounters {
            writes: inner.writes,
            reads: inner.reads,
            bytes_written: inner.bytes_written,
            bytes_read: inner.bytes_read,
            syncs: inner.syncs,
        }
    }
}

fn count_down(left: &mut Option<u64>, what: &str) -> Result<(), ExtentError> {
    match left {
        Some(0) => Err(ExtentError::Failed(format!("{what} fails on request"))),
        Some(count) => {
            *count -= 1;
            Ok(())
        }
        None => Ok(()),
    }
}

impl ExtentStorage for MemoryExtents {
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError> {
        let length =
            u32::try_from(bytes.len()).map_err(|_| ExtentError::Failed("an extent above 4 GiB".into()))?;
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        count_down(&mut inner.fail_writes_after, "a write")?;
        if let Some(capacity) = inner.capacity_bytes {
            let held: u64 = inner.extents.values().map(|content| content.len() as u64).sum();
            if held + u64::from(length) > capacity {
                return Err(ExtentError::NoSpace(format!(
                    "{held} of {capacity} bytes are taken"
                )));
            }
        }
        inner.next += 1;
        inner.writes += 1;
        inner.bytes_written += u64::from(length);
        inner.extents.insert(inner.next, Bytes::copy_from_slice(bytes));
        Ok(Extent {
            location: inner.next,
            bytes: length,
        })
    }

    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        count_down(&mut inner.fail_reads_after, "a read")?;
        let content = inner
            .extents
            .get(&extent.location)
            .ok_or_else(|| ExtentError::Failed(format!("{extent} was never written or was released")))?;
        let (start, length) = (offset as usize, length as usize);
        let end = start.checked_add(length).filter(|end| *end <= content.len());
        let end =
            end.ok_or_else(|| ExtentError::Failed(format!("{extent} has no {length} bytes at {start}")))?;
        inner.reads += 1;
        inner.bytes_read += length as u64;
        Ok(content.slice(start..end))
    }

    fn release(&self, extents: &[Extent]) {
        let mut inner = self.inner.lock();
        for extent in extents {
            inner.extents.remove(&extent.location);
        }
    }

    fn sync(&self) -> Result<(), ExtentError> {
        self.inner.lock().syncs += 1;
        Ok(())
    }
}
