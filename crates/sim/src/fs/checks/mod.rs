//! Checks: the engine against the models, each a struct that implements [`Invariant`]. None of them opens the pool again:
//! what they cannot ask is [`Trouble`], which the world judges.

mod audits;
mod datasets;
mod devices;
mod dump;
mod guests;
mod invariant;
mod past;
mod reservations;
mod settings;
mod survivors;

pub(crate) use audits::{Audit, Counts, Reserved, Rooms, RootHeld, RootHolders, ScrubClean, Tables};
pub(crate) use datasets::{FilesystemFound, FilesystemShown, VolumeSizes, VolumesFound};
pub(crate) use devices::{DeviceSizes, Readable};
pub(crate) use dump::{dump, stamps};
pub(crate) use guests::{GUEST_FILE, GuestsCounted, GuestsFound};
pub(crate) use invariant::{Compared, Invariant, Trouble};
pub(crate) use past::{
    PastShown, RetainedFound, RetainedKept, SnapshotNames, SnapshotsSettled, TickInterrupted, VolumeSnapshots,
};
pub(crate) use reservations::{AcceptedFits, PreallocatedFits, ReservedFits, Shortage};
pub(crate) use settings::{SettingsKept, value_of};
pub(crate) use survivors::{Lost, Survivors};
