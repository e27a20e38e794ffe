//! Calls to the run's volume: writes, discards, zeroes and reads.
//!
//! Invariant: what is read is, byte for byte, what the model holds; a write that failed for a reason outside is a state
//! that may be found later.

use std::sync::Arc;

use terrace_dataset::{FsError, Volume};

use crate::{
    ensure,
    fs::{
        level::{Consequence, Run},
        state::{BlocksModel, Promise},
    },
    models::Content,
    trace,
    violation::Check,
};

/// What a volume is cut into if nothing else is said.
const CHUNK_OF_VOLUME: u64 = 16 << 10;
impl Run {
    /// One call to a volume.
    pub(crate) fn volume_call(&mut self) -> Check {
        if self.volumes.is_empty() {
            return self.filesystem_call();
        }
        let Some(handle) = self.volumes[0].handle.clone() else {
            return Ok(());
        };
        let mut model = self.volumes[0].history.newest().clone();
        let offset = self.random.below(model.size);
        let offset = if self.random.chance(1, 2) {
            offset / 4096 * 4096
        } else {
            offset
        };
        let length = self.random.skewed(200_000).max(1).min(model.size - offset);
        let choice = self.random.below(10);
        let (words, result) = match choice {
            0..=5 => {
                let mut offset = offset;
                let mut data = Content::choose(&mut self.random, 200_000).bytes();
                if self.random.chance(1, 4) && !data.is_empty() {
                    // Whole chunks, many at once: such writes go past the pages.
                    offset = offset / CHUNK_OF_VOLUME * CHUNK_OF_VOLUME;
                    let length = self.random.between(8, 24) * CHUNK_OF_VOLUME;
                    let length = length.min((model.size - offset) / CHUNK_OF_VOLUME * CHUNK_OF_VOLUME);
                    data = data.iter().copied().cycle().take(length as usize).collect();
                }
                data.truncate((model.size - offset) as usize);
                model.write(offset, &data);
                (
                    format!("write {} at {offset}", data.len()),
                    handle.write(offset, &data),
                )
            }
            6 => {
                model.zero(offset, length);
                (
                    format!("discard {length} at {offset}"),
                    handle.discard(offset, length),
                )
            }
            7 => {
                model.zero(offset, length);
                (
                    format!("write zeroes {length} at {offset}"),
                    handle.write_zeroes(offset, length),
                )
            }
            _ => {
                let mut buffer = vec![0; length as usize];
                let result = handle.read(offset, &mut buffer);
                if result.is_ok() {
                    ensure!(
                        buffer == model.read(offset, length as usize),
                        "{length} bytes read at {offset} of a volume are not those that were written"
                    );
                }
                (format!("read {length} at {offset}"), result)
            }
        };
        trace!(self.trace, "volume: {words}: {}", result.is_ok());
        if choice > 7 && result.is_ok() {
            return Ok(());
        }
        self.volume_written(0, result, model, handle)
    }

    /// What became of a call that makes the volume this model.
    pub(crate) fn volume_written(
        &mut self,
        index: usize,
        result: Result<(), FsError>,
        model: BlocksModel,
        handle: Arc<Volume>,
    ) -> Check {
        match result {
            Ok(()) => {
                self.volumes[index].history.push(model);
                if self.volumes[index].promise == Promise::Sync {
                    self.volumes[index].history.synced();
                }
                Ok(())
            }
            Err(error) => match self
                .check_promised(index, &error)
                .and_then(|()| self.judge("volume", &error))?
            {
                Consequence::GoOn if self.volumes[index].promise == Promise::Sync => {
                    // Done and not made durable, perhaps.
                    let mut shown = vec![0; model.size as usize];
                    if let Err(error) = handle.read(0, &mut shown) {
                        return self.after_error("reading the volume", &error);
                    }
                    if shown == model.read(0, shown.len()) {
                        self.volumes[index].history.push(model);
                    }
                    Ok(())
                }
                Consequence::GoOn => Ok(()),
                Consequence::Reopen => {
                    self.volumes[index].history.push(model);
                    self.recover(false)
                }
            },
        }
    }
}
