//! Our own log-structured merge tree: an ordered map from byte keys to byte values that knows nothing of what they
//! mean. Batches go into memory ([`Tree::apply`]; the caller's log makes them durable), [`Tree::step`] writes them
//! as sorted immutable tables and merges those in bounded slices, and [`Tree::manifest`] describes the result in a
//! few KiB that a root record holds. Nothing on a device is ever overwritten.
//!
//! Invariants: a reader sees whole batches only; what is read from a device is compared with a sum that reaches back
//! to the manifest (manifest → head of a table → block), so a damaged, lost or misplaced extent gives an error that
//! names it, never a wrong value; tables of replaced runs stay readable until no reader uses them and a newer
//! manifest is durable. The idea is O'Neil's log-structured merge tree (1996), merged in slices as size-tiered runs.

mod block;
mod cache;
mod error;
mod filter;
mod key;
mod manifest;
mod many;
mod memory_extents;
mod memtable;
mod merge;
mod operation;
mod options;
mod preface;
mod rewrite;
mod run;
mod salvage;
mod step;
mod storage;
mod stretch;
mod table;
mod table_writer;
mod tree;
mod unreadable;
mod value;
mod verify;
mod version;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use error::MetaError;
pub use key::Key;
pub use memory_extents::{ExtentCounters, MemoryExtents};
pub use operation::{Operation, decode_count, encode_count};
pub use options::{Options, Progress, Usage};
pub use preface::{PREFACE_BYTES, Preface};
pub use salvage::{LoggedChange, Salvage};
pub use storage::{Extent, ExtentError, ExtentRead, ExtentStorage};
pub use tree::{KEY_BYTES_MAX, Tree, VALUE_BYTES_MAX};
pub use unreadable::UnreadableExtent;
pub use value::Value;
pub use verify::{VerifyCursor, VerifyReport};
