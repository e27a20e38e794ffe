//! The real [`Store`](terrace_store::Store): chunks in pool segments, records in a log-structured merge tree, one
//! log, one flush per fsync.
//!
//! Invariants:
//! - A chunk is immutable and appended once; only its record (table `0x01`) knows where it lies.
//! - Everything that changes is a batch: encoded into the pending log entry and applied to the tree in the same
//!   order under one short lock that is never held across I/O.
//! - A batch is durable only after the data of every chunk that it introduces, then the log entry, and then the
//!   flush of each device that was written to.
//! - A segment is used again only after the operations that emptied it are durable.
//! - No byte is returned that was not verified.

mod admission;
mod append;
mod buffer_pool;
mod buffers;
mod catalog;
mod checking;
mod durability;
mod encoding;
mod errors;
mod gc;
mod handles;
mod ledger;
mod metadata;
mod options;
mod reading;
mod recovery;
mod salvage;
mod space;
mod stop;
mod store;
mod worker_pool;
mod writing;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;
#[cfg(test)]
mod store_in_memory;

pub use checking::{
    Alone, AuditReport, DamagedChunk, EvacuateCursor, EvacuateProgress, Findings, Plight, ScrubCursor,
    ScrubProgress, UnreadableMetadata, VerifyProgress,
};
pub use encoding::{ChunkPlace, EntryPlace, FORMAT_NEWEST, FORMAT_OLDEST, FORMATS, TablePlace};
pub(crate) use handles::Handles;
pub use options::{Options, Step};
pub use salvage::{How, Salvaged, Survey};
pub use space::DeviceLoad;
pub use store::ChunkStore;
