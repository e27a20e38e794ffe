//! Memory that was freed and lies between what is still in use: given back to the kernel.
//!
//! The GNU C library gives back only what lies at an arena's end. After a crowd of threads with buffers of their own has gone,
//! that is little: a daemon of 14 MiB kept 600 after a thousand clients. Invariant: nothing that is in use changes.

/// Gives it back; takes milliseconds, for which others wait with what they ask the allocator for. For the end of something
/// that needed much more memory than there was need for before.
#[cfg(target_env = "gnu")]
pub fn give_spare_memory_back() {
    // SAFETY: it takes a number alone, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries have nothing of the kind.
#[cfg(not(target_env = "gnu"))]
pub fn give_spare_memory_back() {}
