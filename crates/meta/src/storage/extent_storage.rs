//! `ExtentStorage`: where a tree keeps its tables; the one seam between the tree and the devices.
//!
//! Invariants the tree relies on: an extent, once written, never changes until it is released; `write` returns
//! only after the bytes can be read back (not necessarily after they are durable); after `sync` everything
//! written before it survives a power cut.

use bytes::Bytes;

/// Where some bytes of a tree lie. `location` means something to the storage alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Chosen by the storage; opaque to the tree.
    pub location: u64,
    /// Length, bytes.
    pub bytes: u32,
}

impl std::fmt::Display for Extent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "extent {:#x} of {} bytes", self.location, self.bytes)
    }
}

/// One of several reads ([`ExtentStorage::read_many`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRead {
    /// What is read from.
    pub extent: Extent,
    /// From where in it, bytes.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
}

/// Why the storage could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    /// No room for another extent; frees up when others are released.
    #[error("no room: {0}")]
    NoSpace(String),
    /// The device or the storage failed; the text names it.
    #[error("{0}")]
    Failed(String),
}

/// Writes, reads and frees extents. Called from any thread; no lock of the tree's read path is held across a call.
pub trait ExtentStorage: Send + Sync {
    /// Stores `bytes` (at most [`Options::table_bytes`](crate::Options::table_bytes) plus one record and its
    /// block) in a new extent, whose `bytes` is exactly their length.
    fn write(&self, bytes: &[u8]) -> Result<Extent, ExtentError>;

    /// Reads `length` bytes at `offset` of an extent; out of range or of an unknown place: `Failed`, before
    /// anything is allocated. The bytes need not be verified: the tree checks its own sums.
    fn read(&self, extent: Extent, offset: u32, length: u32) -> Result<Bytes, ExtentError>;

    /// Does several reads, at once where the devices allow; each gets an outcome of its own, in their order, as from
    /// [`ExtentStorage::read`]. The tree asks for a few MiB at most.
    fn read_many(&self, reads: &[ExtentRead]) -> Vec<Result<Bytes, ExtentError>> {
        let each = reads.iter();
        each.map(|read| self.read(read.extent, read.offset, read.length))
            .collect()
    }

    /// Reads from one certain copy, numbered from 0; `None` when there is no such copy. The tree asks for the
    /// copies one by one when what [`ExtentStorage::read`] gave it does not match its sum, and when it verifies.
    fn read_copy(
        &self,
        copy: u32,
        extent: Extent,
        offset: u32,
        length: u32,
    ) -> Option<Result<Bytes, ExtentError>> {
        (copy == 0).then(|| self.read(extent, offset, length))
    }

    /// Frees extents. The tree itself never calls it: the owner of the tree does, with what
    /// [`Tree::take_released`](crate::Tree::take_released) gave it, when the next root is durable.
    fn release(&self, extents: &[Extent]);

    /// Makes everything written so far durable; [`Tree::manifest`](crate::Tree::manifest) calls it once.
    fn sync(&self) -> Result<(), ExtentError>;
}
