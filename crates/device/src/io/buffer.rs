//! Memory whose address suits direct I/O.
//!
//! Invariants: the address is a multiple of 4096; all `capacity` bytes are initialised from the start (so a longer
//! length never shows uninitialised memory); large buffers come zeroed from the kernel, without a pass over them;
//! those in huge pages, where the kernel has such, are for being used again and again: their first use costs a pass over all of it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::DEVICE_BLOCK_BYTES;

/// From this size on memory is asked for with a small alignment, which gets untouched zero pages instead of a
/// `memset`, and aligned by hand.
const LARGE_BYTES: usize = 128 * 1024;

/// A huge page, on most machines.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What an allocation is given back with.
enum Memory {
    Heap(Layout),
    /// A mapping of so many bytes.
    Mapped(usize),
}

/// A growable run of bytes at a 4096-aligned address; reusable without being zeroed again.
pub struct AlignedBuffer {
    allocation: NonNull<u8>,
    memory: Memory,
    start: NonNull<u8>,
    length: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its allocation alone; nothing in it is tied to a thread.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// An empty buffer with room for `capacity` bytes (rounded up to 4096; at least 4096).
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(DEVICE_BLOCK_BYTES);
        let (size, align) = if capacity >= LARGE_BYTES {
            (capacity + DEVICE_BLOCK_BYTES, 16)
        } else {
            (capacity, DEVICE_BLOCK_BYTES)
        };
        let Ok(layout) = Layout::from_size_align(size, align) else {
            panic!("a buffer of {capacity} bytes is larger than the address space");
        };
        // SAFETY: the layout has a size above zero.
        let Some(allocation) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let skip = allocation.as_ptr().align_offset(DEVICE_BLOCK_BYTES);
        debug_assert!(skip + capacity <= size);
        // SAFETY: `skip` is 0 for the small layout and at most 4095 for the large one, which has 4096 spare bytes.
        let start = unsafe { allocation.add(skip) };
        Self {
            allocation,
            memory: Memory::Heap(layout),
            start,
            length: 0,
            capacity,
        }
    }

    /// An empty buffer in huge pages, with room for `capacity` bytes rounded up to whole ones; in others if there are none.
    pub fn in_huge_pages(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(HUGE_PAGE_BYTES);
        let mapped = capacity + HUGE_PAGE_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let mapping = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) };
        let Some(allocation) = mapping.ok().and_then(|start| NonNull::new(start.cast::<u8>())) else {
            return Self::with_capacity(capacity);
        };
        let skip = allocation.as_ptr().align_offset(HUGE_PAGE_BYTES);
        debug_assert!(skip + capacity <= mapped);
        // SAFETY: `skip` is below the huge page that was mapped beyond the capacity.
        let start = unsafe { allocation.add(skip) };
        let mut buffer = Self {
            allocation,
            memory: Memory::Mapped(mapped),
            start,
            length: 0,
            capacity,
        };
        prefer_huge_pages(buffer.reuse(capacity));
        buffer.clear();
        buffer
    }

    /// A buffer of `length` zero bytes.
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::with_capacity(length);
        buffer.length = length;
        buffer
    }

    /// A copy of `bytes`, followed by zeroes up to a multiple of 4096.
    pub fn padded_from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len().next_multiple_of(DEVICE_BLOCK_BYTES));
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Bytes that fit without a new allocation.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes the length `length`; what was there before stays, what comes to light is *unspecified* (zeroes or
    /// bytes of an earlier use, never another's memory). Grows when it must. For buffers that are then read into.
    pub fn reuse(&mut self, length: usize) -> &mut [u8] {
        self.reserve_total(length);
        self.length = length;
        self
    }

    /// Makes the length `length`; new bytes are zero.
    pub fn resize(&mut self, length: usize) {
        let old = self.length;
        self.reuse(length);
        if length > old {
            self[old..].fill(0);
        }
    }

    /// Appends a copy of `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let old = self.length;
        let new = old + bytes.len();
        if new > self.capacity {
            self.reserve_total(new.max(self.capacity * 2));
        }
        self.length = new;
        self[old..].copy_from_slice(bytes);
    }

    /// Appends zeroes up to a multiple of 4096.
    pub fn pad_to_block(&mut self) {
        self.resize(self.length.next_multiple_of(DEVICE_BLOCK_BYTES));
    }

    /// Shortens to `length` bytes; nothing happens if it is shorter already.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Forgets the content, keeps the memory.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Gives the memory from byte `from` on, in whole pages, back to the system: what was there reads as zeroes, and takes memory
    /// again when it is used next. False where the system refuses, as where its pages are larger: nothing changes then.
    pub fn give_back(&mut self, from: usize) -> bool {
        let from = from.next_multiple_of(DEVICE_BLOCK_BYTES);
        // SAFETY: whole pages of this buffer's own allocation, private and anonymous, that nobody else sees while it is borrowed: they
        // come back zeroed.
        from >= self.capacity
            || unsafe {
                let start = self.start.add(from).as_ptr().cast();
                madvise(start, self.capacity - from, Advice::LinuxDontNeed).is_ok()
            }
    }

    fn reserve_total(&mut self, capacity: usize) {
        if capacity > self.capacity {
            let mut larger = Self::with_capacity(capacity);
            larger.length = self.length;
            larger.copy_from_slice(self);
            *self = larger;
        }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: allocated by `alloc_zeroed` with this very layout, freed once.
            Memory::Heap(layout) => unsafe { dealloc(self.allocation.as_ptr(), layout) },
            Memory::Mapped(bytes) => {
                // SAFETY: mapped with this length, unmapped once; nothing can be done about a failure.
                let _ = unsafe { munmap(self.allocation.as_ptr().cast(), bytes) };
            }
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `length <= capacity` bytes from `start` are inside the allocation and initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for AlignedBuffer {
    fn default() -> Self {
        Self::with_capacity(DEVICE_BLOCK_BYTES)
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        let mut copy = Self::with_capacity(self.length);
        copy.length = self.length;
        copy.copy_from_slice(self);
        copy
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.length, self.capacity)
    }
}

/// Has the kernel use huge pages for `memory`, as far as whole ones lie in it and were not touched yet; where there are none it takes
/// others. What is not touched takes no memory.
fn prefer_huge_pages(memory: &mut [u8]) {
    let skip = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
    let Some(aligned) = memory.get_mut(skip..) else {
        return;
    };
    let length = aligned.len() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if length > 0 {
        // SAFETY: it is borrowed for us alone, and the advice changes nothing of what it holds.
        let _ = unsafe { madvise(aligned.as_mut_ptr().cast(), length, Advice::LinuxHugepage) };
    }
}
