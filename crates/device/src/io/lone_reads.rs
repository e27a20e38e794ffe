//! `LoneReads`: small reads of a file, of which those that come one after the other are looked for before their thread sleeps.
//!
//! Invariant: where several are under way here the processors are wanted by others, and each thread sleeps at once. (Those that
//! go through a ring of many are not known here.)

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::atomic::{AtomicU32, Ordering},
};

use super::{
    batched_transfer,
    polling::{Polling, is_polling_allowed},
};

/// What is small, bytes.
pub const SMALL_BYTES_MAX: usize = 64 * 1024;
/// So many in a row must have been the only one under way.
const ALONE_MIN: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct LoneReads {
    under_way: AtomicU32,
    /// How many in a row were the only one.
    alone: AtomicU32,
    polling: Polling,
}

impl LoneReads {
    /// Fills `buffer` from `offset`.
    pub fn read(&self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let is_alone = self.under_way.fetch_add(1, Ordering::AcqRel) == 0;
        // Who stores at once with another one may lose that; nothing hangs on one.
        let alone = match is_alone {
            true => (self.alone.load(Ordering::Relaxed) + 1).min(ALONE_MIN),
            false => 0,
        };
        self.alone.store(alone, Ordering::Relaxed);
        let polled = (alone >= ALONE_MIN && is_polling_allowed())
            .then(|| batched_transfer::read_polled(file.as_fd(), offset, buffer, &self.polling))
            .flatten();
        let read = match polled {
            Some(Ok(length)) if length == buffer.len() => Ok(()),
            // What failed or came short is read again, which says why.
            _ => file.read_exact_at(buffer, offset),
        };
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        read
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn reads_in_a_row_bring_their_bytes_and_say_what_is_wrong() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..100u32).flat_map(|at| [at as u8; 512]).collect();
        file.write_all(&content).unwrap();
        let reads = LoneReads::default();
        // More than enough to be read in the other way as well.
        for at in (0..100u64).chain((0..100).rev()) {
            let mut buffer = [0xff; 512];
            reads.read(&file, at * 512, &mut buffer).unwrap();
            assert_eq!(buffer, [at as u8; 512]);
        }
        let short = reads.read(&file, 99 * 512, &mut [0; 1024]).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(reads.under_way.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_beside_another_ends_a_row() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let reads = LoneReads::default();
        let row = || (0..ALONE_MIN * 2).for_each(|_| reads.read(&file, 0, &mut [0; 512]).unwrap());
        row();
        assert_eq!(reads.alone.load(Ordering::Relaxed), ALONE_MIN);
        reads.under_way.fetch_add(1, Ordering::Relaxed);
        row();
        assert_eq!(reads.alone.load(Ordering::Relaxed), 0);
    }
}
