//! Entries: keys, values, operations on them, and the table in memory that takes them first.

mod key;
mod memtable;
mod operation;
mod value;

pub use key::Key;
pub use operation::{Operation, decode_count, encode_count};
pub use value::Value;

pub(crate) use memtable::Memtable;
pub(crate) use operation::OperationRef;
