//! copy_file_range: shares chunks instead of copying bytes where both ranges are aligned to blocks.
//!
//! Invariants: both objects' inode locks are held, so neither changes meanwhile; a shared block is counted by the
//! commit that maps it, together with or before any change that could take the chunk from its first owner.

use super::write::{ContentWriter, some_written};
use crate::{
    objects::{Object, State},
    posix::FsError,
    records::REGION_BYTES,
};
use std::sync::Arc;

use terrace_store::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes copied at once where blocks cannot be shared.
const COPY_BYTES: u64 = 256 << 10;

impl ContentWriter {
    /// Returns how much was copied: less than asked for when something went wrong on the way, since what was copied
    /// until then stays; an error only when nothing was.
    pub(crate) fn copy(
        &self,
        source: &Arc<Object>,
        from: u64,
        target: &Arc<Object>,
        to: u64,
        length: u64,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<u64, FsError> {
        let mut done = 0;
        while done < length {
            let copied = self.copy_piece(source, from + done, target, to + done, length - done, after);
            match copied {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies at most up to where the next region of one of the two begins.
    fn copy_piece(
        &self,
        source: &Arc<Object>,
        at: u64,
        target: &Arc<Object>,
        onto: u64,
        length: u64,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<u64, FsError> {
        // As far as one region of the source and one of the target go.
        let reach = (REGION_BYTES - at % REGION_BYTES)
            .min(REGION_BYTES - onto % REGION_BYTES)
            .min(length);
        if at.is_multiple_of(BLOCK) && onto.is_multiple_of(BLOCK) {
            // In whole blocks; at the end of the source its last block counts as whole if the target ends there too.
            let target_size = target.state().inode.size;
            let source_size = source.state().inode.size;
            let ends = at + reach == source_size && onto + reach >= target_size;
            let whole = if ends { reach } else { reach / BLOCK * BLOCK };
            if whole > 0 && self.share(source, at, target, onto, whole, after)? {
                return Ok(whole);
            }
        }
        // Stays aligned to where the next region starts.
        let mut buffer = vec![0; reach.min(COPY_BYTES) as usize];
        let read = self.reader.read_object(source, at, &mut buffer)?;
        let written = some_written(self.write_object(target, onto, &buffer[..read], after))?;
        Ok(written as u64)
    }

    /// Maps the target's blocks to the source's chunks. `false`: the source has dirty pages there, or is just being laid
    /// out anew.
    fn share(
        &self,
        source: &Arc<Object>,
        from: u64,
        target: &Arc<Object>,
        to: u64,
        length: u64,
        after: &mut dyn FnMut(&mut State),
    ) -> Result<bool, FsError> {
        let (first, last) = (from / BLOCK, (from + length).div_ceil(BLOCK));
        // What room is set aside for is shared with nobody: writing over it has to give its room back.
        let onto = to / BLOCK;
        if is_promised(source, first, last) || is_promised(target, onto, onto + (last - first)) {
            return Ok(false);
        }
        // While the source's content is being laid out anew, its chunks may go before the target's commit counts them.
        let Some(relayouts) = self.relayouts.now() else {
            return Ok(false);
        };
        let Some(record) = self.extents.sharable(source, first, last)? else {
            return Ok(false);
        };
        let shared_bytes = u64::from(record.mapped_blocks()) * BLOCK;
        let charge = self.admission.charge_shared(shared_bytes)?;
        let start = to / BLOCK;
        let base = first / (REGION_BYTES / BLOCK) * (REGION_BYTES / BLOCK);
        let _gate = self.epoch.enter();
        let mut state = target.state();
        if state.freed {
            return Err(FsError::Stale);
        }
        if !self.relayouts.are_as(relayouts) {
            return Ok(false);
        }
        let mut gone = state
            .data
            .punch(start, start + (last - first), self.epoch.buffers());
        for run in record.runs() {
            let block = start + (base + u64::from(run.block) - first);
            gone += state
                .data
                .map(block, run.count, run.chunk, run.index, self.epoch.buffers());
        }
        self.epoch.dropped(gone);
        self.epoch.add_shared(charge);
        state.inode.size = state.inode.size.max(to + length);
        after(&mut state);
        self.epoch.mark_inode(target, &mut state);
        Ok(true)
    }
}

/// Whether room is set aside for some of these blocks.
fn is_promised(object: &Object, first: u64, last: u64) -> bool {
    let state = object.state();
    let preallocated = state.inode.preallocated.as_ref();
    preallocated.is_some_and(|ranges| ranges.intersects(first, last))
}
