//! Looking for data and holes in files.
//!
//! What must hold: nothing is passed over, neither data on the way to data nor, once everything is committed, a hole on
//! the way to a hole: then a block is a hole if, and only if, it is all zero.

use terrace_dataset::{FsError, SeekTarget, Tree};

use super::call::Client;
use crate::{
    ensure,
    fs::models::{BLOCK, BlocksModel},
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

/// A look for data or for a hole.
pub(super) struct Seek {
    pub(super) offset: u64,
    pub(super) target: SeekTarget,
    /// After everything was committed.
    pub(super) exact: bool,
}

impl Seek {
    /// From there on, for what chance says.
    pub(super) fn choose(client: &mut Client<'_>, offset: u64) -> Self {
        let random = client.random();
        Self {
            offset,
            target: *random.pick(&[SeekTarget::Data, SeekTarget::Hole]),
            exact: random.chance(1, 2),
        }
    }

    /// Looks in a file, and compares.
    pub(super) fn within(&self, client: &mut Client<'_>, object: u64) -> Check {
        let Some(handle) = client.handle() else {
            return Ok(());
        };
        let Some(file) = client.file(object) else {
            return Ok(());
        };
        let (offset, target, exact) = (self.offset, self.target, self.exact);
        if exact && let Err(error) = handle.commit() {
            return client.world.after_error("commit", &error);
        }
        if exact {
            let used = file.taken_blocks();
            match handle.attributes(object) {
                Ok(attributes) => ensure!(
                    file.is_taken(attributes.blocks512 / 8),
                    "object {object} takes {} sectors, and has {used} blocks",
                    attributes.blocks512
                ),
                Err(error) => return client.world.after_error("attributes", &error),
            }
        }
        let expected = first(&file, offset, target);
        let found = match handle.seek(object, offset, target) {
            Ok(found) => Some(found),
            Err(FsError::NoData) => None,
            Err(error) => return client.world.after_error("seek", &error),
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
