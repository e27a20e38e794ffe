//! A directory of slot files.

use std::path::Path;

use crate::Device;
use crate::error::DeviceError;

/// A directory used as a device.
pub struct DirectoryDevice {}

impl DirectoryDevice {
    /// Makes the directory and its description where absent and opens it exclusively.
    pub fn create(_path: &Path, _size_bytes: Option<u64>) -> Result<Self, DeviceError> {
        todo!()
    }
    /// Opens an existing one exclusively.
    pub fn open(_path: &Path) -> Result<Self, DeviceError> {
        todo!()
    }
    /// Opens for reading only and holds nothing.
    pub fn peek(_path: &Path) -> Result<Self, DeviceError> {
        todo!()
    }
}

impl Device for DirectoryDevice {
    fn path(&self) -> String {
        todo!()
    }
    fn size_bytes(&self) -> u64 {
        todo!()
    }
    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> Result<(), DeviceError> {
        todo!()
    }
    fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<(), DeviceError> {
        todo!()
    }
    fn flush(&self) -> Result<(), DeviceError> {
        todo!()
    }
    fn discard(&self, _offset: u64, _length: u64) -> Result<(), DeviceError> {
        todo!()
    }
}
