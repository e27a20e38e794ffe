//! Looking for data and holes in files.
//!
//! What must hold: nothing is passed over, neither data on the way to data nor, once everything is committed, a hole on
//! the way to a hole: then a block is a hole if, and only if, it is all zero.

use terrace_dataset::{FsError, SeekTarget, Tree};

use crate::{
    ensure,
    fs::{
        level::Run,
        state::{BLOCK, BlocksModel},
    },
    violation::Check,
};

/// Where the first block from `offset` on is that is a hole, or is none, as a `SEEK_HOLE` or `SEEK_DATA` answers.
fn first(file: &BlocksModel, offset: u64, target: SeekTarget) -> Option<u64> {
    let block = BLOCK as u64;
    if offset >= file.size {
        return None;
    }
    let used = file.block_numbers();
    let from = offset / block;
    let found = match target {
        SeekTarget::Data => *used.iter().find(|number| **number >= from)?,
        SeekTarget::Hole => (from..)
            .find(|number| used.binary_search(number).is_err())
            .unwrap_or(from),
    };
    Some((found * block).clamp(offset, file.size)).filter(|at| target == SeekTarget::Hole || *at < file.size)
}

impl Run {
    pub(crate) fn seek(&mut self, index: usize, object: u64, offset: u64) -> Check {
        let target = *self.random.pick(&[SeekTarget::Data, SeekTarget::Hole]);
        let exact = self.random.chance(1, 2);
        self.seek_for(index, object, offset, target, exact)
    }

    /// With `exact`, after everything was committed.
    pub(crate) fn seek_for(
        &mut self,
        index: usize,
        object: u64,
        offset: u64,
        target: SeekTarget,
        exact: bool,
    ) -> Check {
        let filesystem = &self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let Ok(file) = filesystem.history.newest().tree.file(object).cloned() else {
            return Ok(());
        };
        if exact && let Err(error) = handle.commit() {
            return self.after_error("commit", &error);
        }
        if exact {
            let used = file.taken_blocks();
            match handle.attributes(object) {
                Ok(attributes) => ensure!(
                    file.is_taken(attributes.blocks512 / 8),
                    "object {object} takes {} sectors, and has {used} blocks",
                    attributes.blocks512
                ),
                Err(error) => return self.after_error("attributes", &error),
            }
        }
        let expected = first(&file, offset, target);
        let found = match handle.seek(object, offset, target) {
            Ok(found) => Some(found),
            Err(FsError::NoData) => None,
            Err(error) => return self.after_error("seek", &error),
        };
        let right = match target {
            _ if exact => found == expected,
            // What is not committed yet may be zeroes and count as data.
            SeekTarget::Data => match (found, expected) {
                (Some(found), Some(expected)) => (offset..=expected).contains(&found),
                (found, expected) => {
                    expected.is_none() && found.is_none_or(|found| (offset..file.size).contains(&found))
                }
            },
            SeekTarget::Hole => match (found, expected) {
                (Some(found), Some(expected)) => (expected..=file.size).contains(&found),
                (found, expected) => found == expected,
            },
        };
        ensure!(
            right,
            "{target:?} from {offset} of object {object} is at {found:?}, not at {expected:?} (of {} bytes, exactly: {exact})",
            file.size
        );
        Ok(())
    }
}
