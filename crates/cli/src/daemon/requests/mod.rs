//! Requests: what a client asks of the daemon, one file a kind, each a function
//! of what it needs: the open pool, its mounts, its block devices. Owns how the daemon ends (`Ending`).

pub(super) mod datasets;
pub(super) mod devices;
pub(super) mod files;
pub(super) mod heat;
pub(super) mod jobs;
pub(super) mod moves;
pub(super) mod properties;
mod readonly;
pub(super) mod stop;
pub(super) mod tiers;
pub(super) mod where_is;
