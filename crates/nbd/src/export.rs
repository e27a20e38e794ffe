//! `Export`: what a volume must be able to do to be served. Implemented for [`terrace_dataset::Volume`].

use std::fmt;

/// A stretch of a volume, as block status tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Its length, bytes.
    pub length: u64,
    /// Whether nothing is stored there (it reads as zeroes).
    pub hole: bool,
}

/// Why a request failed, in the words of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportError {
    /// The pool or the quota is full.
    NoSpace,
    /// The volume or the export is read-only.
    ReadOnly,
    /// Offset or length outside the volume, or not on its blocks.
    Invalid,
    /// The data cannot be read or made durable.
    Io,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "the pool or the volume's quota is full",
            Self::ReadOnly => "the export is read-only",
            Self::Invalid => "the request lies outside the volume",
            Self::Io => "the volume could not be read or written; see 'terrace status'",
        })
    }
}

/// A block device to be served. Offsets and lengths are bytes; the server keeps them inside `size_bytes`.
pub trait Export: Send + Sync {
    /// Size now; it may change when the volume is resized.
    fn size_bytes(&self) -> u64;
    /// Smallest unit of a request, bytes.
    fn block_bytes(&self) -> u32;
    /// Whether writes are refused.
    fn read_only(&self) -> bool;
    /// Fills `buffer` from `offset`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ExportError>;
    /// Writes `data` at `offset`.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), ExportError>;
    /// Makes the range read as zeroes; frees its space unless `keep_allocated`.
    fn write_zeroes(&self, offset: u64, length: u64, keep_allocated: bool) -> Result<(), ExportError>;
    /// Frees the range; it reads as zeroes afterwards.
    fn discard(&self, offset: u64, length: u64) -> Result<(), ExportError>;
    /// Makes every write that returned before the call durable.
    fn flush(&self) -> Result<(), ExportError>;
    /// What is stored in the range: consecutive stretches from `offset`, at most `limit` of them, at least one.
    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockRange>, ExportError>;
}
