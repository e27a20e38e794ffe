//! `Buffers`: the memory that a server's requests may hold, all clients together.
//!
//! A request gets a buffer of [`PIECE_BYTES`] as long as fewer than [`BUFFERS_MAX`] are out, else a small one: long
//! requests are then served in smaller pieces. So nobody waits for memory that another client holds, and what a thousand
//! clients that take no answers can hold is bounded: 256 MiB, and 64 KiB for each of their requests.

use parking_lot::Mutex;

use crate::wire::PIECE_BYTES;

/// Size of the buffer that every request can have.
pub const SMALL_BYTES: usize = 64 << 10;
/// Most large buffers at a time.
const BUFFERS_MAX: usize = 256;
/// Buffers that are kept for the next request, of each kind.
const KEPT_MAX: usize = 16;

#[derive(Default)]
struct State {
    kept: Vec<Vec<u8>>,
    small: Vec<Vec<u8>>,
    /// Large ones that are out.
    out: usize,
}

/// See above.
#[derive(Default)]
pub struct Buffers {
    state: Mutex<State>,
}

/// Memory for one request, given back when dropped.
pub struct Buffer<'a> {
    bytes: Vec<u8>,
    /// Of these; what lies behind is of an earlier use.
    length: usize,
    is_large: bool,
    lender: &'a Buffers,
}

impl Buffers {
    /// A buffer for `length` bytes, or for a piece of them.
    pub fn take(&self, length: usize) -> Buffer<'_> {
        let mut state = self.state.lock();
        if length > SMALL_BYTES && state.out < BUFFERS_MAX {
            state.out += 1;
            let kept = state.kept.pop();
            drop(state);
            return Buffer {
                bytes: kept.unwrap_or_else(|| vec![0; PIECE_BYTES]),
                length: PIECE_BYTES,
                is_large: true,
                lender: self,
            };
        }
        let kept = state.small.pop();
        drop(state);
        let length = length.min(SMALL_BYTES);
        // Cleared as far as it is used for the first time, and not again.
        let mut bytes = kept.unwrap_or_else(|| Vec::with_capacity(SMALL_BYTES));
        if bytes.len() < length {
            bytes.resize(length, 0);
        }
        Buffer {
            bytes,
            length,
            is_large: false,
            lender: self,
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut state = self.lender.state.lock();
        if self.is_large {
            state.out -= 1;
        }
        let kept = match self.is_large {
            true => &mut state.kept,
            false => &mut state.small,
        };
        if kept.len() < KEPT_MAX {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl std::ops::Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl std::ops::DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_nobody_waits() {
        let buffers = Buffers::default();
        let held: Vec<_> = (0..BUFFERS_MAX).map(|_| buffers.take(usize::MAX)).collect();
        assert!(held.iter().all(|buffer| buffer.len() == PIECE_BYTES));
        assert_eq!(buffers.take(PIECE_BYTES).len(), SMALL_BYTES);
        assert_eq!(buffers.take(100).len(), 100);
        drop(held);
        assert_eq!(buffers.take(PIECE_BYTES).len(), PIECE_BYTES);
        assert_eq!(buffers.state.lock().kept.len(), KEPT_MAX);
    }

    #[test]
    fn small_ones_are_used_again_at_any_length() {
        let buffers = Buffers::default();
        for length in [100, 4096, 1, 0, SMALL_BYTES, 4096] {
            let mut buffer = buffers.take(length);
            assert_eq!(buffer.len(), length);
            buffer.fill(7);
            drop(buffer);
            assert_eq!(buffers.state.lock().small.len(), 1);
        }
        let held: Vec<_> = (0..=KEPT_MAX).map(|_| buffers.take(1)).collect();
        drop(held);
        let state = buffers.state.lock();
        assert_eq!((state.small.len(), state.out), (KEPT_MAX, 0));
    }
}
