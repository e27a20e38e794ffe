//! The lagging replica: what the copy of the log on a slower device does not have yet, on its way there (`Behind`).
//!
//! Invariants: entries go there in the order of the log, several at once; an entry counts as due until the device has
//! flushed it; a copy that fails is abandoned until the next segment, as any copy that fails, and nothing is due for it then.

use std::{collections::BTreeSet, sync::Arc};

use terrace_device::AlignedBuffer;
use terrace_pool::SegmentId;
use terrace_sync::{MutexGuard, rank};

use super::log::Log;

/// What is written at once, bytes.
const WRITE_BYTES: usize = 1 << 20;

/// An entry that one copy does not have yet.
#[derive(Clone)]
pub(super) struct Due {
    pub(super) segment: SegmentId,
    pub(super) offset: u32,
    pub(super) bytes: Arc<AlignedBuffer>,
    /// First sequence in it.
    pub(super) first: u64,
}

/// Entries that were written to the slower copies, and are not flushed there yet.
#[must_use]
pub struct Behind<'a> {
    log: &'a Log,
    /// One at a time.
    _turn: MutexGuard<'a, (), rank::log::CatchingUp>,
    written: Vec<Due>,
    failed: BTreeSet<SegmentId>,
}

impl Behind<'_> {
    /// The devices to be flushed: those that took what was due.
    pub fn devices(&self) -> Vec<u16> {
        let mut devices: BTreeSet<u16> = self.written.iter().map(|due| due.segment.device).collect();
        for failed in &self.failed {
            devices.remove(&failed.device);
        }
        devices.into_iter().collect()
    }

    /// They were flushed, but for `failed`. Whether every copy has what was due.
    pub fn finish(self, failed: &[u16]) -> bool {
        let flushed = self.devices();
        let mut lost = self.failed;
        lost.extend(
            self.written
                .iter()
                .map(|due| due.segment)
                .filter(|segment| failed.contains(&segment.device) || !flushed.contains(&segment.device)),
        );
        self.log.caught_up(self.written.len(), &lost)
    }
}

impl Log {
    /// Writes what is due to the slower copies; it counts once the devices were flushed and [`Behind::finish`] was called.
    pub fn write_behind(&self) -> Behind<'_> {
        let turn = self.catching.lock();
        let due = self.due();
        let mut failed = BTreeSet::new();
        let mut rest = &due[..];
        let mut joined = AlignedBuffer::default();
        while let Some((first, others)) = rest.split_first() {
            joined.clear();
            joined.extend_from_slice(&first.bytes);
            let mut taken = 0;
            for next in others {
                let follows = next.segment == first.segment
                    && next.offset as usize == first.offset as usize + joined.len()
                    && joined.len() + next.bytes.len() <= WRITE_BYTES;
                if !follows {
                    break;
                }
                joined.extend_from_slice(&next.bytes);
                taken += 1;
            }
            rest = &others[taken..];
            if failed.contains(&first.segment) {
                continue;
            }
            if let Err(error) = self.pool.write(first.segment, first.offset.into(), &joined) {
                tracing::warn!(segment = %first.segment, %error, "a copy of the log failed");
                failed.insert(first.segment);
            }
        }
        Behind {
            log: self,
            _turn: turn,
            written: due,
            failed,
        }
    }

    /// Writes what is due to the slower copies and flushes them. Whether every copy has it.
    pub fn catch_up(&self) -> bool {
        let behind = self.write_behind();
        let mut failed = behind.devices();
        failed.retain(|device| {
            let flushed = self.pool.flush(&[*device]);
            flushed.is_err_and(|error| {
                tracing::warn!(device, %error, "a copy of the log failed");
                true
            })
        });
        behind.finish(&failed)
    }
}
