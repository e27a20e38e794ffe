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

mod appender;
mod audit;
mod books;
mod commit;
mod compaction;
mod compress;
mod counters;
mod crew;
mod evacuate;
mod failing;
mod filling;
mod findings;
mod format;
mod frames;
mod header;
mod heads;
mod log_room;
mod looking;
mod maintenance;
mod meta_copies;
mod meta_listed;
mod meta_reads;
mod meta_storage;
mod moves;
mod options;
mod packing;
mod payload;
mod pending_free;
mod places;
mod read;
mod read_into;
mod reclaim;
mod record;
mod record_scan;
mod recover;
mod release;
mod reports;
mod room;
mod root;
mod root_copy;
mod salvage;
mod scrub;
mod shortage;
mod sinking;
mod space;
mod spacing;
mod spans;
mod store;
mod streams;
mod survey;
mod sweep;
mod tables;
mod tail;
mod tier_room;
mod unflushed;
mod verify;
mod walk;
mod write;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_bytes;
#[cfg(test)]
mod store_in_memory;

pub use evacuate::{Alone, EvacuateCursor, Plight};
pub use findings::Findings;
pub use format::{FORMAT_NEWEST, FORMAT_OLDEST, FORMATS};
pub use options::{Options, Step};
pub use reports::{
    AuditReport, DamagedChunk, DeviceLoad, EvacuateProgress, ScrubCursor, ScrubProgress, UnreadableMetadata,
    VerifyProgress,
};
pub use salvage::{How, Salvaged};
pub use store::ChunkStore;
pub use survey::{ChunkPlace, EntryPlace, Survey, TablePlace};
