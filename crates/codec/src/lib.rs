//! Bounded reading and writing of the byte formats that Terrace keeps on devices and sends over sockets.
//!
//! Invariants: every read is bounds-checked and returns an error instead of panicking; a length read from the
//! input is never used to allocate before it was compared with what is left of the input. All integers that are
//! values are little-endian or variable-length (LEB128); integers inside *keys* are big-endian, so that byte
//! order is numeric order.

mod key;
mod number_hasher;
mod reader;
mod writer;

pub use key::KeyWriter;
pub use number_hasher::{NumberHasher, mix};
pub use reader::{DecodeError, Reader};
pub use writer::Writer;
