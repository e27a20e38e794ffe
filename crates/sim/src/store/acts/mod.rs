//! What is done to a store at level `store`, a struct for each kind.

mod audits;
mod background;
mod batches;
mod deletion;
mod filling;
mod holding;
mod mirrors;
mod populating;
mod reading;
mod stops;
mod upgrading;

pub(crate) use audits::{Audit, AuditRoot};
pub(crate) use background::{Background, Checkpoint, Rewrite, Scrub};
pub(crate) use batches::{CommitBatch, DropHeld, Flush};
pub(crate) use deletion::DeleteEverything;
pub(crate) use filling::FillUp;
pub(crate) use holding::HoldOverDeath;
pub(crate) use mirrors::{CatchUp, LookAtMirrors};
pub(crate) use populating::Populate;
pub(crate) use reading::Read;
pub(crate) use stops::{CloseAndOpen, Cut, CutOffTwice, Kill, PlanCut, Weather};
pub(crate) use upgrading::UpgradeFormat;
