//! Frames: memory for content that was read, of the sizes that chunks and blocks mostly have, used again and again.
//!
//! Readers ask for thousands of such pieces a second, and the cache lets as many go, in other threads than those that asked:
//! the C library's allocator spent a third of the processor time of a read of 1 MiB on handing them about.
//!
//! Invariants: a frame has one owner; it comes back when the last [`Bytes`] on it is gone; what is kept for later is bounded
//! ([`KEPT_BYTES`] for each size), and is never given out uninitialised.

use bytes::Bytes;
use terrace_store::{BLOCK_BYTES, CHUNK_BYTES_MAX};
use terrace_sync::{Mutex, rank};

/// A block, a chunk of a volume where it compresses and where it does not, and one of a file.
const SIZES: [usize; 4] = [BLOCK_BYTES, 16 * 1024, 64 * 1024, CHUNK_BYTES_MAX];
/// Free frames of one size, at most.
const KEPT_BYTES: usize = 2 << 20;

static FREE: [Mutex<Vec<Box<[u8]>>, rank::Leaf>; SIZES.len()] =
    [const { Mutex::new(Vec::new()) }; SIZES.len()];

fn free_of(length: usize) -> Option<&'static Mutex<Vec<Box<[u8]>>, rank::Leaf>> {
    let class = SIZES.iter().position(|size| *size == length)?;
    FREE.get(class)
}

/// Comes back to the free ones when it is dropped.
struct Frame(Box<[u8]>);

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        if let Some(free) = free_of(memory.len()) {
            let mut free = free.lock();
            if (free.len() + 1) * memory.len() <= KEPT_BYTES {
                free.push(memory);
            }
        }
    }
}

/// A copy of `content`.
pub(crate) fn copy(content: &[u8]) -> Bytes {
    let Some(free) = free_of(content.len()) else {
        return Bytes::copy_from_slice(content);
    };
    let memory = free.lock().pop();
    Bytes::from_owner(Frame(match memory {
        Some(mut memory) => {
            memory.copy_from_slice(content);
            memory
        }
        None => content.into(),
    }))
}

/// `length` bytes that `fill` writes; it finds there whatever it finds. `None` if it gives none.
pub(crate) fn filled(length: usize, fill: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<Bytes> {
    let memory = free_of(length).and_then(|free| free.lock().pop());
    let mut frame = Frame(memory.unwrap_or_else(|| vec![0; length].into()));
    fill(&mut frame.0)?;
    Some(Bytes::from_owner(frame))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_it_was_however_often_memory_is_used_again() {
        for round in 0..3u8 {
            let mut held = Vec::new();
            for length in [1, 4095, BLOCK_BYTES, 4097, 16 * 1024, 64 * 1024, CHUNK_BYTES_MAX] {
                for number in 0..20u8 {
                    let fill = round * 20 + number;
                    held.push((copy(&vec![fill; length]), length, fill));
                    let filled = filled(length, |bytes| {
                        bytes.fill(fill ^ 0xff);
                        Some(())
                    });
                    held.push((filled.unwrap(), length, fill ^ 0xff));
                }
            }
            for (content, length, fill) in &held {
                assert_eq!(content.len(), *length);
                assert!(content.iter().all(|byte| byte == fill));
                // A part keeps all of it.
                let part = content.slice(length / 2..);
                assert!(part.iter().all(|byte| byte == fill));
            }
        }
        assert!(filled(BLOCK_BYTES, |_| None).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let held: Vec<Bytes> = (0..2000).map(|_| copy(&[7; BLOCK_BYTES])).collect();
        drop(held);
        for (free, size) in FREE.iter().zip(SIZES) {
            assert!(free.lock().len() * size <= KEPT_BYTES);
        }
    }
}
