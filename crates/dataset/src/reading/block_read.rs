//! One of several reads of a block device that are done at once.

use crate::posix::FsError;

/// One of several reads.
pub struct BlockRead<'a> {
    /// Where it begins, bytes.
    pub offset: u64,
    /// What it fills.
    pub buffer: &'a mut [u8],
    /// Whether it did.
    pub outcome: Result<(), FsError>,
}

impl<'a> BlockRead<'a> {
    /// One that is still to be done.
    pub fn new(offset: u64, buffer: &'a mut [u8]) -> Self {
        Self {
            offset,
            buffer,
            outcome: Ok(()),
        }
    }
}
