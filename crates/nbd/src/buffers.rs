//! `Buffers`: the memory that a server's requests may hold, all clients together.
//!
//! A request gets a buffer of [`PIECE_BYTES`] as long as fewer than [`BUFFERS_MAX`] are out, else a small one: long
//! requests are then served in smaller pieces. So nobody waits for memory that another client holds, and what a thousand
//! clients that take no answers can hold is bounded: 256 MiB, and 64 KiB for each of their requests.

use parking_lot::Mutex;

use crate::protocol::PIECE_BYTES;

/// Size of the buffer that every request can have.
pub const SMALL_BYTES: usize = 64 << 10;
/// Most large buffers at a time.
const BUFFERS_MAX: usize = 256;
/// Large buffers that are kept for the next request.
const KEPT_MAX: usize = 16;

#[derive(Default)]
struct State {
    kept: Vec<Vec<u8>>,
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
    lender: Option<&'a Buffers>,
}

impl Buffers {
    /// A buffer for `length` bytes, or for a piece of them.
    pub fn take(&self, length: usize) -> Buffer<'_> {
        let small = |length: usize| Buffer {
            bytes: vec![0; length.min(SMALL_BYTES)],
            lender: None,
        };
        if length <= SMALL_BYTES {
            return small(length);
        }
        let kept = {
            let mut state = self.state.lock();
            if state.out >= BUFFERS_MAX {
                return small(length);
            }
            state.out += 1;
            state.kept.pop()
        };
        Buffer {
            bytes: kept.unwrap_or_else(|| vec![0; PIECE_BYTES]),
            lender: Some(self),
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let Some(lender) = self.lender else { return };
        let mut state = lender.state.lock();
        state.out -= 1;
        if state.kept.len() < KEPT_MAX {
            state.kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl std::ops::Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
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
}
