//! Requests: what a client asks of the daemon, one file a kind.

mod datasets;
mod devices;
mod files;
mod heat;
mod jobs;
mod moves;
mod properties;
mod readonly;
mod stop;
mod tiers;
mod where_is;
