//! `RingMemory`: what an entry of a ring's queue is in memory: the headers and the payload of one request, and of its
//! answer.
//!
//! Invariants: the memory given to the kernel stays in place for as long as this lives, wherever the owner moves it;
//! between a request's arrival and its [`answer_command`](RingMemory::answer_command) it is ours alone, else the
//! kernel's; lengths that the kernel tells are checked.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, atomic::AtomicU64},
};

use io_uring::{opcode, squeue::Entry128, types::Fd};

use super::kernel_device::Connection;
use crate::protocol::{IN_HEADER_BYTES, OUT_HEADER_BYTES, PAYLOAD_BYTES_MAX, ReplyBuffer, SmallRow, ring::*};

/// Bytes of a long submission entry.
const ENTRY_BYTES: usize = 128;
/// Where in it `addr` and `len` lie (`struct io_uring_sqe`).
const ADDRESS_AT: usize = 16;
const LENGTH_AT: usize = 24;

/// See the module.
pub struct RingMemory {
    queue: u16,
    headers: Box<[u8; HEADERS_BYTES]>,
    /// Its payload is where the kernel puts payloads of requests and takes those of replies.
    exchange: ReplyBuffer,
    /// Replies to requests that lie in `exchange` are written here first.
    apart: ReplyBuffer,
    small_row: SmallRow,
}

impl RingMemory {
    /// For an entry of `queue`; what is in use counts in `bytes`.
    pub fn new(queue: u16, bytes: &Arc<AtomicU64>) -> Self {
        Self {
            queue,
            headers: Box::new([0; HEADERS_BYTES]),
            exchange: ReplyBuffer::counted_in(bytes),
            apart: ReplyBuffer::counted_in(bytes),
            small_row: SmallRow::default(),
        }
    }

    /// Whether an entry at rest should have it [give memory back](Self::give_back).
    pub fn is_grown(&self) -> bool {
        self.exchange.is_grown() || self.apart.is_grown()
    }

    /// Gives back the memory of long requests. It must be ours, and the last answer handed over.
    pub fn give_back(&mut self) {
        self.exchange.give_back(0);
        self.apart.give_back(0);
    }

    /// What the kernel is told of this memory.
    pub fn parts(&mut self) -> [libc::iovec; 2] {
        [
            libc::iovec {
                iov_base: self.headers.as_mut_ptr().cast(),
                iov_len: HEADERS_BYTES,
            },
            libc::iovec {
                iov_base: self.exchange.payload_pointer().cast(),
                iov_len: PAYLOAD_BYTES_MAX,
            },
        ]
    }

    /// Gives the kernel this memory, which has these `parts`, as a further entry of the queue, and waits for a request. The
    /// parts must be there until that has been submitted, and the memory until the ring is gone.
    pub fn registration(&self, connection: &Connection, parts: &[libc::iovec; 2]) -> Entry128 {
        let mut command = self.command(connection, COMMAND_REGISTER, 0);
        set_memory(&mut command, parts);
        command
    }

    /// Hands over the answer that [`answer`](Self::answer) put here, and waits for the next request.
    pub fn answer_command(&self, connection: &Connection) -> Entry128 {
        self.command(connection, COMMAND_COMMIT_AND_FETCH, self.u64_at(COMMIT_ID_AT))
    }

    /// Lets `serve` answer the request that came: it gets the request's bytes as a read of the device would give them
    /// and an empty reply, and returns an error number or 0.
    pub fn answer(&mut self, serve: impl FnOnce(&[u8], &mut ReplyBuffer) -> i32) {
        self.exchange.clear();
        self.apart.clear();
        let payload_bytes = self.u32_at(PAYLOAD_BYTES_AT) as usize;
        let error = match front(&self.headers) {
            // Nothing of the request lies in the exchange: the reply can be written there.
            Some((front, 0)) => serve(front.bytes(), &mut self.exchange),
            Some((front, payload)) => {
                let served = match self.exchange.join(front.bytes(), payload) {
                    Some(request) => serve(request, &mut self.apart),
                    None => libc::EIO,
                };
                match served {
                    0 if self.apart.has_overflowed() => libc::EIO,
                    0 => {
                        self.exchange.bytes(self.apart.payload());
                        0
                    }
                    error => error,
                }
            }
            None => libc::EIO,
        };
        self.finish(error);
        // After many short requests in a row the memory of the long one before is given back, but for the answer.
        let longest = self.exchange.len().max(payload_bytes);
        if self.small_row.note(longest) && self.is_grown() {
            self.exchange.give_back(self.exchange.len());
            self.apart.give_back(0);
        }
    }

    /// The answer is `error`, or with 0 what lies in the reply.
    fn finish(&mut self, error: i32) {
        let error = match error {
            0 if self.exchange.has_overflowed() => libc::EIO,
            error => error,
        };
        let payload = if error == 0 { self.exchange.len() } else { 0 };
        let unique = self.u64_at(8);
        let headers = &mut self.headers;
        headers[..4].copy_from_slice(&((OUT_HEADER_BYTES + payload) as u32).to_ne_bytes());
        headers[4..8].copy_from_slice(&(-error).to_ne_bytes());
        headers[8..16].copy_from_slice(&unique.to_ne_bytes());
        headers[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&(payload as u32).to_ne_bytes());
    }

    fn u32_at(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.headers[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }

    fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.headers[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }

    /// `struct fuse_uring_cmd_req` in a long submission entry.
    fn command(&self, connection: &Connection, operation: u32, commit_id: u64) -> Entry128 {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        opcode::UringCmd80::new(Fd(connection.as_fd().as_raw_fd()), operation)
            .cmd(request)
            .build()
    }
}

/// The crate has no way to give a command memory.
fn set_memory(command: &mut Entry128, memory: &[libc::iovec; 2]) {
    const { assert!(size_of::<Entry128>() == ENTRY_BYTES) };
    // SAFETY: the entry is `struct io_uring_sqe` with its 64 bytes more, plain bytes laid out by the kernel's ABI.
    let bytes = unsafe { &mut *(&raw mut *command).cast::<[u8; ENTRY_BYTES]>() };
    bytes[ADDRESS_AT..ADDRESS_AT + 8].copy_from_slice(&(memory.as_ptr() as u64).to_ne_bytes());
    bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&(memory.len() as u32).to_ne_bytes());
}

/// The part of a request that lies in the headers, and the length of the rest. `None` if the lengths cannot be.
fn front(headers: &[u8; HEADERS_BYTES]) -> Option<(Front, usize)> {
    let number = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&headers[at..at + 4]);
        u32::from_ne_bytes(bytes) as usize
    };
    let payload = number(PAYLOAD_BYTES_AT);
    let operation = number(0).checked_sub(IN_HEADER_BYTES)?.checked_sub(payload)?;
    if operation > OPERATION_BYTES_MAX {
        return None;
    }
    let mut front = Front {
        bytes: [0; IN_HEADER_BYTES + OPERATION_BYTES_MAX],
        length: IN_HEADER_BYTES + operation,
    };
    front.bytes[..IN_HEADER_BYTES].copy_from_slice(&headers[..IN_HEADER_BYTES]);
    front.bytes[IN_HEADER_BYTES..front.length]
        .copy_from_slice(&headers[OPERATION_AT..OPERATION_AT + operation]);
    Some((front, payload))
}

struct Front {
    bytes: [u8; IN_HEADER_BYTES + OPERATION_BYTES_MAX],
    length: usize,
}

impl Front {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(length: u32, payload: u32) -> [u8; HEADERS_BYTES] {
        let mut headers = [0; HEADERS_BYTES];
        headers[..4].copy_from_slice(&length.to_ne_bytes());
        headers[OPERATION_AT] = 7;
        headers[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&payload.to_ne_bytes());
        headers
    }

    #[test]
    fn a_request_is_put_together_and_lengths_that_cannot_be_are_refused() {
        let (front_of, payload) = front(&headers(40 + 16 + 5, 5)).unwrap();
        assert_eq!((front_of.length, payload), (56, 5));
        assert_eq!(front_of.bytes[40], 7);
        assert!(front(&headers(39, 0)).is_none());
        assert!(front(&headers(40 + 4, 5)).is_none());
        assert!(front(&headers(40 + 129, 0)).is_none());
        assert!(front(&headers(u32::MAX, u32::MAX)).is_none());
        let mut exchange = ReplyBuffer::new();
        let whole = exchange.join(front_of.bytes(), payload).unwrap();
        assert_eq!(whole.len(), 61);
        assert!(exchange.join(&[0; 300], 0).is_none());
        assert!(
            exchange
                .join(&[], crate::protocol::PAYLOAD_BYTES_MAX + 1)
                .is_none()
        );
    }
}
