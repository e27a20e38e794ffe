//! Entries: keys, values, operations on them, filters over keys, and the table in memory that takes them first.
//!
//! Owns the records of a `Memtable`, behind its lock, which is held for one look-up or a part of a batch.

mod filter;
mod key;
mod memtable;
mod operation;
mod value;

pub use key::{KEY_BYTES_MAX, Key};
pub use operation::{Operation, decode_count, encode_count};
pub use value::{VALUE_BYTES_MAX, Value};

pub(crate) use filter::{Filter, filter_bytes, filter_hash};
pub(crate) use memtable::Memtable;
pub(crate) use operation::OperationRef;
