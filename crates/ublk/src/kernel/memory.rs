//! `Mapping`: memory that is shared with the kernel, or survives the process; and `Buffer`, a part of it.
//!
//! Invariants: a mapping stays where it is until it is dropped; who holds a [`Buffer`] is the only one that uses that part.

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    slice,
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// See the module.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is memory of the process, bound to no thread; who may use which part of it is for its users to say.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing of it is handed out without `unsafe`, but for atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of our own, zeroes.
    pub fn anonymous(length: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Self::at(start.cast(), length)
    }

    /// A part of a file, to be read, and written if `writable`.
    pub fn of_file(file: BorrowedFd<'_>, offset: u64, length: usize, writable: bool) -> io::Result<Self> {
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let start = unsafe { mmap(ptr::null_mut(), length, protection, flags, file, offset) }?;
        Self::at(start.cast(), length)
    }

    fn at(start: *mut u8, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    /// The address of a part of it. `length` bytes from `offset` must lie inside.
    pub fn part(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: inside of the mapping.
        unsafe { self.start.add(offset) }
    }

    /// Gives the memory back to the system; it reads as zeroes afterwards.
    ///
    /// # Safety
    ///
    /// It is anonymous memory, and nobody uses any of it.
    pub unsafe fn forget_content(&self) {
        // SAFETY: the caller's. That it fails costs memory alone.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxDontNeed) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, once; nobody has a part of it any more (see `Buffer`).
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// The memory of one tag, on its way between a queue's thread and a worker.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is the only way to that memory while it exists.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `length` bytes of a mapping from `offset`.
    ///
    /// # Safety
    ///
    /// The mapping outlives the buffer, and nobody else uses that part meanwhile, the kernel included.
    pub unsafe fn new(mapping: &Mapping, offset: usize, length: usize) -> Self {
        Self {
            start: mapping.part(offset, length),
            length,
        }
    }

    /// Its content.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped, initialised, and ours alone (`new`).
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_reads_as_zeroes() {
        let mapping = Mapping::anonymous(8192).unwrap();
        // SAFETY: nobody else knows the mapping.
        let mut buffer = unsafe { Buffer::new(&mapping, 4096, 4096) };
        buffer.bytes().fill(7);
        assert_eq!(buffer.bytes()[4095], 7);
        // SAFETY: the buffer is not looked at meanwhile.
        unsafe { mapping.forget_content() };
        assert!(buffer.bytes().iter().all(|byte| *byte == 0));
    }
}
