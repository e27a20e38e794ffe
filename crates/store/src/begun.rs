//! `BegunPart`: a part of a chunk that is read by who asked for it, while he does other things.
//!
//! Invariant: no byte of it is given on that was not compared with a sum.

use std::{fs::File, sync::Arc};

use bytes::Bytes;

/// What of the bytes that were read is the part; `None` if they did not come, or are not what they should be.
type End = Box<dyn FnOnce(Option<&[u8]>) -> Option<Bytes> + Send>;

/// See the module.
pub struct BegunPart {
    /// What to read from: direct, so into memory at a multiple of 4096.
    pub file: Arc<File>,
    /// From where, bytes.
    pub offset: u64,
    /// How much, bytes.
    pub length: usize,
    end: End,
}

impl BegunPart {
    /// `end` makes the part out of the bytes.
    pub fn new(
        file: Arc<File>,
        offset: u64,
        length: usize,
        end: impl FnOnce(Option<&[u8]>) -> Option<Bytes> + Send + 'static,
    ) -> Self {
        Self {
            file,
            offset,
            length,
            end: Box::new(end),
        }
    }

    /// The part, of all bytes that were to be read; `None` for bytes: they did not come. `None` if they do not match its sums, whyever (it may have moved meanwhile):
    /// it is to be asked for by [`Store::read_chunk_part`](crate::Store::read_chunk_part) then.
    pub fn end(self, bytes: Option<&[u8]>) -> Option<Bytes> {
        (self.end)(bytes)
    }
}
