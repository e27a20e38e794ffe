//! Our own log-structured merge tree: an ordered map from byte keys to byte values that knows nothing of what they
//! mean. Batches go into memory ([`Tree::apply`]; the caller's log makes them durable), [`Tree::step`] writes them
//! as sorted immutable tables and merges those in bounded slices, and [`Tree::manifest`] describes the result in a
//! few KiB that a root record holds. Nothing on a device is ever overwritten.
//!
//! Invariants: a reader sees whole batches only; what is read from a device is compared with a sum that reaches back
//! to the manifest (manifest → head of a table → block), so a damaged, lost or misplaced extent gives an error that
//! names it, never a wrong value; tables of replaced runs stay readable until no reader uses them and a newer
//! manifest is durable. The idea is O'Neil's log-structured merge tree (1996), merged in slices as size-tiered runs.

mod entries;
mod error;
mod options;
mod runs;
mod state;
mod storage;
mod table;
mod tree;
mod upkeep;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;

pub use entries::{KEY_BYTES_MAX, Key, Operation, VALUE_BYTES_MAX, Value, decode_count, encode_count};
pub use error::MetaError;
pub use options::{Options, Progress, Usage};
pub use state::{Applier, Reader};
pub use storage::{Extent, ExtentCounters, ExtentError, ExtentRead, ExtentStorage, MemoryExtents};
pub use table::{PREFACE_BYTES, Preface, UnreadableExtent};
pub use tree::Tree;
pub use upkeep::{LoggedChange, Salvage, Upkeep, VerifyCursor, VerifyReport};
