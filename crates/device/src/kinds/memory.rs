//! A device in RAM: for tests, and the plain case that other devices are compared with. Loses everything when
//! dropped; `flush` has nothing to do.

use terrace_sync::{RwLock, rank};

use super::file::check_range;
use crate::{
    DEVICE_BLOCK_BYTES, DEVICE_SECTOR_BYTES, Device,
    error::{Cause, DeviceError, Operation},
};

/// Pages of a group, of which a large device with little on it has few.
const GROUP_PAGES: usize = 4096;

type Page = Box<[u8; DEVICE_BLOCK_BYTES]>;

/// Bytes in RAM behind the [`Device`] interface.
pub struct MemoryDevice {
    name: String,
    pages: RwLock<Pages, rank::device::Pages>,
}

/// What was written; the rest reads as zeroes. Groups beyond the length are not there.
#[derive(Default)]
struct Pages {
    length: usize,
    groups: Vec<Option<Vec<Option<Page>>>>,
}

impl Pages {
    fn resize(&mut self, length: usize) {
        // What lay behind the end is not to come back.
        for page in length..self.length.min(length.next_multiple_of(GROUP_PAGES)) {
            self.forget(page);
        }
        self.length = length;
        self.groups.resize_with(length.div_ceil(GROUP_PAGES), || None);
    }

    fn get(&self, page: usize) -> Option<&Page> {
        self.groups.get(page / GROUP_PAGES)?.as_ref()?[page % GROUP_PAGES].as_ref()
    }

    fn slot(&mut self, page: usize) -> Option<&mut Option<Page>> {
        let group = self
            .groups
            .get_mut(page / GROUP_PAGES)
            .filter(|_| page < self.length)?;
        let group = group.get_or_insert_with(|| {
            let mut pages = Vec::new();
            pages.resize_with(GROUP_PAGES, || None);
            pages
        });
        group.get_mut(page % GROUP_PAGES)
    }

    fn forget(&mut self, page: usize) {
        if let Some(Some(group)) = self.groups.get_mut(page / GROUP_PAGES) {
            group[page % GROUP_PAGES] = None;
        }
    }
}

impl MemoryDevice {
    /// A device of `size_bytes` (rounded down to 4096) that reads as zeroes. Takes memory only for what is written.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        let mut pages = Pages::default();
        pages.resize((size_bytes / DEVICE_BLOCK_BYTES as u64) as usize);
        Self {
            name: name.into(),
            pages: RwLock::new(pages),
        }
    }

    /// Makes it larger; a smaller size changes nothing.
    pub fn grow(&self, size_bytes: u64) {
        let wanted = (size_bytes / DEVICE_BLOCK_BYTES as u64) as usize;
        let mut pages = self.pages.write();
        if wanted > pages.length {
            pages.resize(wanted);
        }
    }
}

impl Device for MemoryDevice {
    fn path(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        (self.pages.read().length * DEVICE_BLOCK_BYTES) as u64
    }

    fn read_unit_bytes(&self) -> usize {
        DEVICE_SECTOR_BYTES
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self, Operation::Read, offset, buffer.len() as u64)?;
        let pages = self.pages.read();
        let (mut at, mut rest) = (offset as usize, buffer);
        while !rest.is_empty() {
            let within = at % DEVICE_BLOCK_BYTES;
            let (part, others) = rest.split_at_mut((DEVICE_BLOCK_BYTES - within).min(rest.len()));
            match pages.get(at / DEVICE_BLOCK_BYTES) {
                Some(page) => part.copy_from_slice(&page[within..within + part.len()]),
                _ => part.fill(0),
            }
            at += part.len();
            rest = others;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range(self, Operation::Write, offset, data.len() as u64)?;
        let mut pages = self.pages.write();
        let first = offset as usize / DEVICE_BLOCK_BYTES;
        for (index, part) in data.chunks_exact(DEVICE_BLOCK_BYTES).enumerate() {
            let Some(slot) = pages.slot(first + index) else {
                return Err(DeviceError::range(
                    &self.name,
                    Operation::Write,
                    offset,
                    data.len() as u64,
                    Cause::Short,
                ));
            };
            slot.get_or_insert_with(|| Box::new([0; DEVICE_BLOCK_BYTES]))
                .copy_from_slice(part);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        let mut pages = self.pages.write();
        let wanted = (size_bytes / DEVICE_BLOCK_BYTES as u64) as usize;
        if wanted < pages.length {
            pages.resize(wanted);
        }
        Ok(true)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range(self, Operation::Discard, offset, length)?;
        let mut pages = self.pages.write();
        let first = offset as usize / DEVICE_BLOCK_BYTES;
        for page in first..first + length as usize / DEVICE_BLOCK_BYTES {
            pages.forget(page);
        }
        Ok(())
    }
}
