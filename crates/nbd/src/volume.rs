//! How a volume of a pool is an export.

use terrace_dataset::{FsError, Volume};

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
        4096
    }

    fn read_only(&self) -> bool {
        false
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
