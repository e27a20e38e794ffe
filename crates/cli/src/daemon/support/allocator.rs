//! The allocator of the daemon, told to give memory back.
//!
//! The GNU C library keeps an arena for each of many threads, and raises the size from which memory goes straight back
//! to the kernel as soon as something large is freed. A daemon whose threads hand 128 KiB buffers to each other then
//! holds on to far more than it uses: 314 MiB instead of 184 MiB with `memory=256M` (docs/measurements.md).

/// Few arenas, and thresholds that stay where they are.
#[cfg(target_env = "gnu")]
pub fn give_memory_back() {
    /// From this size on memory is asked for and given back by itself; that much may lie unused at an arena's end.
    const LARGE_BYTES: libc::c_int = 1 << 20;
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let arenas = (cores / 2).clamp(2, 8) as libc::c_int;
    // SAFETY: mallopt only takes numbers; it is called before the process has a second thread. What it does not know
    // it ignores, and then memory is kept as it was without it.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Other C libraries have nothing of the kind.
#[cfg(not(target_env = "gnu"))]
pub fn give_memory_back() {}
