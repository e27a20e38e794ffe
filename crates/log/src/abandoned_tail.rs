//! The abandoned tail: entries of a past that was given up. A device that was away while the pool went on without it may bring along entries that
//! the others never had. Sequences were counted on without them, so that later they would look as if they proved damage.
//!
//! Invariants: only entries that say more than the accepted log knows are written over, each by its first block; nothing
//! on devices that were not away is changed; each segment is looked at once, and only those that such entries lead to.

use std::collections::BTreeSet;

use terrace_device::AlignedBuffer;
use terrace_pool::{Pool, PoolError, SegmentId};

use crate::{Copies, EntryHeader, LogPosition};

const BLOCK: usize = 4096;

/// Writes over what devices that were away (`is_of`) have of the log behind `past`, where their roots start, as far as it was
/// written after something behind `sequence`, the last one accepted, had been durable; flushes them. Returns how many entries.
///
/// # Errors
/// What the devices say: nothing is to be built on the pool then.
pub fn erase_given_up(
    pool: &Pool,
    past: &LogPosition,
    sequence: u64,
    is_of: impl Fn(u16) -> bool,
) -> Result<usize, PoolError> {
    let on_them =
        |copies: &Copies| -> Vec<SegmentId> { copies.iter().filter(|copy| is_of(copy.device)).collect() };
    let mut to_see = on_them(&past.segment);
    to_see.extend(on_them(&past.next));
    let (mut seen, mut devices) = (BTreeSet::new(), BTreeSet::new());
    let mut erased = 0;
    let mut bytes = AlignedBuffer::with_capacity(pool.segment_bytes() as usize);
    while let Some(segment) = to_see.pop() {
        if !pool.has_segment(segment) || !seen.insert(segment) {
            continue;
        }
        let window = bytes.reuse(pool.segment_bytes() as usize);
        if pool.read(segment, 0, window).is_err() {
            // What cannot be read proves nothing either.
            for (number, block) in window.chunks_exact_mut(BLOCK).enumerate() {
                if pool.read(segment, (number * BLOCK) as u64, block).is_err() {
                    block.fill(0);
                }
            }
        }
        let blocks = bytes.chunks_exact(BLOCK).enumerate();
        let entries: Vec<(usize, EntryHeader)> = blocks
            .filter_map(|(at, block)| Some((at * BLOCK, EntryHeader::decode(block).ok()?)))
            .filter(|(_, header)| header.pool == pool.id() && header.last > past.sequence)
            .collect();
        // It may be part of the log that was accepted.
        let claimed = pool.claim(segment).is_ok();
        let written = entries
            .iter()
            .filter(|(_, header)| header.flushed > sequence)
            .try_for_each(|(at, _)| {
                erased += 1;
                devices.insert(segment.device);
                pool.write(segment, *at as u64, &AlignedBuffer::zeroed(BLOCK))
            });
        if claimed {
            pool.release(segment)?;
        }
        written?;
        entries
            .iter()
            .for_each(|(_, header)| to_see.extend(on_them(&header.next)));
    }
    pool.flush(&devices.into_iter().collect::<Vec<_>>())?;
    Ok(erased)
}
