//! Checking: audits, verification and scrubs of what is stored, and emptying a device.

mod audit;
mod evacuate;
mod findings;
mod record_scan;
mod reports;
mod scrub;
mod verify;

pub(crate) use audit::{Auditor, Expected};
pub(crate) use evacuate::Evacuation;
pub use evacuate::{Alone, EvacuateCursor, Plight};
pub use findings::Findings;
pub use reports::{
    AuditReport, DamagedChunk, EvacuateProgress, ScrubCursor, ScrubProgress, UnreadableMetadata,
    VerifyProgress,
};
pub(crate) use scrub::Scrubber;
