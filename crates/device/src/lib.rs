//! Where bytes live: the [`Device`] seam with its real forms (regular file, block device, directory of slot
//! files) and one in RAM, the aligned buffers that direct I/O needs, and the [`Clock`] and [`Randomness`] seams; and
//! [`listen_at`] and [`Complaint`] for the sockets that clients connect to.
//!
//! Invariants of every device: offsets and lengths are multiples of 4096 (of reads: of [`Device::read_unit_bytes`]) and
//! inside the device, anything else is an error, never a partial transfer; a write is durable only after a later [`Device::flush`] returned `Ok`; once
//! a flush failed, every later flush of that open device fails too (what was lost cannot be known any more).

mod error;
mod host;
mod io;
mod kinds;
mod randomness;
mod text;

pub use error::{Cause, DeviceError, Operation};
pub use host::{
    Claim, Complaint, HostShortage, Made, ServedRequest, Serving, SocketFile, give_spare_memory_back,
    holders_of, listen_at, partitions_of,
};
pub use io::{AlignedBuffer, HUGE_PAGE_BYTES, Uring, allow_polling, be_prompt};
pub use kinds::{DirectoryDevice, FileDevice, MemoryDevice, Stray, VOLATILE_VARIABLE, VolatileDevice};
pub use randomness::{Randomness, SeededRandomness, SystemRandomness};
pub use terrace_sync::{Clock, ManualClock, SystemClock};
pub use text::{
    DeviceKind, DeviceSpec, SizeError, SpecError, exact_size, format_duration, format_size, open_path,
    parse_duration, parse_seconds, parse_size, peek_path,
};

/// The unit of device I/O in bytes: offsets and lengths are multiples of it.
pub const DEVICE_BLOCK_BYTES: usize = 4096;

/// The smallest unit of reads that a device may have, in bytes.
pub const DEVICE_SECTOR_BYTES: usize = 512;

/// One of several reads.
pub struct ReadRequest<'a> {
    /// From where on.
    pub offset: u64,
    /// What is to be filled.
    pub buffer: &'a mut [u8],
    /// Whether it was.
    pub outcome: Result<(), DeviceError>,
}

impl<'a> ReadRequest<'a> {
    /// Not done yet.
    pub fn new(offset: u64, buffer: &'a mut [u8]) -> Self {
        Self {
            offset,
            buffer,
            outcome: Ok(()),
        }
    }
}

/// One of several writes.
pub struct WriteRequest<'a> {
    /// Where to.
    pub offset: u64,
    /// What is to be written.
    pub data: &'a [u8],
    /// Whether it was.
    pub outcome: Result<(), DeviceError>,
}

impl<'a> WriteRequest<'a> {
    /// Not done yet.
    pub fn new(offset: u64, data: &'a [u8]) -> Self {
        Self {
            offset,
            data,
            outcome: Ok(()),
        }
    }
}

/// A range of bytes that survives power cuts once flushed. Object safe; every method may be called from any thread
/// and blocks until done.
pub trait Device: Send + Sync {
    /// The path (or name) that the user knows the device by.
    fn path(&self) -> String;

    /// What became of the path, if it does not lead to the open device any more. One look at it.
    fn stray(&self) -> Option<Stray> {
        None
    }

    /// Usable size in bytes, a multiple of [`Device::block_bytes`].
    fn size_bytes(&self) -> u64;

    /// The unit of I/O in bytes: offsets and lengths of all calls but reads are multiples of it.
    fn block_bytes(&self) -> u32 {
        DEVICE_BLOCK_BYTES as u32
    }

    /// The unit of reads in bytes: their offsets and lengths are multiples of it. A power of two, at least
    /// [`DEVICE_SECTOR_BYTES`] and at most [`Device::block_bytes`]; the same as long as the device is open.
    fn read_unit_bytes(&self) -> usize {
        DEVICE_BLOCK_BYTES
    }

    /// Fills `buffer` from `offset`. Never a partial read: anything short is an error. A buffer whose address is no
    /// multiple of [`Device::read_unit_bytes`] works but costs a copy; use [`AlignedBuffer`] on hot paths.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Does several reads, at once where the system allows; each gets an outcome of its own, as from
    /// [`Device::read_at`].
    fn read_many(&self, reads: &mut [ReadRequest<'_>]) {
        for read in reads {
            read.outcome = self.read_at(read.offset, read.buffer);
        }
    }

    /// Writes all of `data` at `offset`, in one request where the system allows (several MiB are fine). After an
    /// error any part of the range may or may not have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Does several writes that do not overlap, at once and in any order where the system allows; all are tried, and each
    /// gets an outcome of its own, as from [`Device::write_at`].
    fn write_many(&self, writes: &mut [WriteRequest<'_>]) {
        for write in writes {
            write.outcome = self.write_at(write.offset, write.data);
        }
    }

    /// Writes the parts one after the other from `offset`; each part is a multiple of the block in length.
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), DeviceError> {
        let mut at = offset;
        for part in parts {
            self.write_at(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Returns when every write that completed before the call is durable.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that the range is no longer needed; it reads as anything until it is written again. A
    /// device that cannot do this does nothing and returns `Ok`.
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError>;

    /// Cuts the backing off behind `size_bytes` (a multiple of the block), durably when it returns; whether it was: a
    /// backing with a size of its own, as a block device, keeps it. Nothing beyond is in use any more.
    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        let _ = size_bytes;
        Ok(false)
    }

    /// Measures the backing again (after it grew) and returns the new [`Device::size_bytes`]. Never shrinks.
    fn refresh_size(&self) -> Result<u64, DeviceError> {
        Ok(self.size_bytes())
    }
}
