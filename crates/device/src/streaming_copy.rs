//! Copying what the processor will not look at again: into memory that a device takes next.
//!
//! An ordinary copy first fetches what it overwrites, then pushes out of the caches what others still need, and its result is
//! written back later all the same. Invariant: afterwards the target holds the source, for every thread that learns of it by
//! the ordinary means (a lock, a channel).

/// Less than this is copied the ordinary way: a line of the cache would be mixed from both.
const STREAMED_BYTES_MIN: usize = 1024;

/// Copies `source` to `target`, past the caches where the processor can do that. For large memory that is written once and then
/// only handed to a device; whoever reads it soon waits for it. (Non-temporal stores: Intel, *Software Developer's Manual*, vol. 1,
/// 10.4.6.2.)
///
/// # Panics
/// If the lengths differ, as `copy_from_slice` does.
pub fn copy_past_caches(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "both have the same length");
    if target.len() < STREAMED_BYTES_MIN {
        target.copy_from_slice(source);
        return;
    }
    stream(target, source);
}

#[cfg(target_arch = "x86_64")]
fn stream(target: &mut [u8], source: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE_BYTES: usize = 64;
    const PART_BYTES: usize = size_of::<__m128i>();

    let head = target.as_ptr().align_offset(LINE_BYTES).min(target.len());
    let (target_head, target) = target.split_at_mut(head);
    let (source_head, source) = source.split_at(head);
    target_head.copy_from_slice(source_head);
    let (target_lines, target_tail) = target.as_chunks_mut::<LINE_BYTES>();
    let (source_lines, source_tail) = source.as_chunks::<LINE_BYTES>();
    for (to, from) in target_lines.iter_mut().zip(source_lines) {
        let to = to.as_mut_ptr().cast::<__m128i>();
        let from = from.as_ptr().cast::<__m128i>();
        for part in 0..LINE_BYTES / PART_BYTES {
            // SAFETY: the parts of a line lie in it; the load asks for no alignment, and the store for 16 bytes, to which all lines
            // behind the head are aligned, and which all x86_64 have (SSE2).
            unsafe { _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part))) };
        }
    }
    // Such stores are in no order with others: before anybody learns of them they are to be there.
    // SAFETY: nothing is needed for it but what all x86_64 have (SSE).
    unsafe { _mm_sfence() };
    target_tail.copy_from_slice(source_tail);
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(target: &mut [u8], source: &[u8]) {
    target.copy_from_slice(source);
}
