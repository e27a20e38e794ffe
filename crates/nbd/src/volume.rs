//! How a volume of a pool is an export; and a snapshot of one, and one that is only to be read.
//!
//! Invariant: what is only to be read says so, and refuses changes even from a client that asks for them.

use std::sync::Arc;

use terrace_dataset::{FsError, ROOT, SeekTarget, Tree, View, Volume};

use crate::{BlockRange, Export, ExportError};

fn export_error(error: FsError) -> ExportError {
    match error {
        FsError::NoSpace | FsError::QuotaExceeded => ExportError::NoSpace,
        FsError::ReadOnly => ExportError::ReadOnly,
        FsError::Invalid => ExportError::Invalid,
        error => {
            tracing::error!("NBD: a volume failed: {error}");
            ExportError::Io
        }
    }
}

impl Export for Volume {
    fn size_bytes(&self) -> u64 {
        Volume::size_bytes(self)
    }

    fn block_bytes(&self) -> u32 {
        self.dataset().settings().block_bytes
    }

    fn read_only(&self) -> bool {
        self.dataset().settings().readonly
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ExportError> {
        Volume::read(self, offset, buffer).map_err(export_error)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), ExportError> {
        Volume::write(self, offset, data).map_err(export_error)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _keep_allocated: bool) -> Result<(), ExportError> {
        Volume::write_zeroes(self, offset, length).map_err(export_error)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), ExportError> {
        Volume::discard(self, offset, length).map_err(export_error)
    }

    fn flush(&self) -> Result<(), ExportError> {
        Volume::flush(self).map_err(export_error)
    }

    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockRange>, ExportError> {
        let ranges = Volume::block_status(self, offset, length, limit).map_err(export_error)?;
        Ok(ranges
            .into_iter()
            .map(|range| BlockRange {
                length: range.length,
                hole: !range.data,
            })
            .collect())
    }
}

/// An export whose clients may only read.
pub struct ReadOnly(pub Arc<dyn Export>);

impl Export for ReadOnly {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ExportError> {
        self.0.read(offset, buffer)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn flush(&self) -> Result<(), ExportError> {
        self.0.flush()
    }

    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockRange>, ExportError> {
        self.0.block_status(offset, length, limit)
    }
}

/// A volume as it was.
pub struct PastVolume {
    view: Arc<View>,
    size_bytes: u64,
}

impl PastVolume {
    /// Of a view of a volume.
    pub fn new(view: Arc<View>) -> Result<Self, FsError> {
        let size_bytes = view.attributes(ROOT)?.size;
        Ok(Self { view, size_bytes })
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64, ExportError> {
        match self.view.seek(ROOT, offset, target) {
            Ok(found) => Ok(found),
            Err(FsError::NoData) => Ok(self.size_bytes),
            Err(error) => Err(export_error(error)),
        }
    }
}

impl Export for PastVolume {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self) -> u32 {
        self.view.dataset().settings().block_bytes
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ExportError> {
        let length = self.view.read(ROOT, offset, buffer).map_err(export_error)?;
        if length == buffer.len() {
            Ok(())
        } else {
            Err(ExportError::Invalid)
        }
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn flush(&self) -> Result<(), ExportError> {
        Ok(())
    }

    fn block_status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<BlockRange>, ExportError> {
        let end = offset.checked_add(length).ok_or(ExportError::Invalid)?;
        let mut ranges = Vec::new();
        let mut at = offset;
        while at < end && ranges.len() < limit {
            let data = self.seek(at, SeekTarget::Data)?;
            let hole = data > at;
            let until = if hole {
                data
            } else {
                self.seek(at, SeekTarget::Hole)?
            };
            let until = until.clamp(at + 1, end);
            ranges.push(BlockRange {
                length: until - at,
                hole,
            });
            at = until;
        }
        Ok(ranges)
    }
}
