//! Metadata: where the tables and manifests of the tree lie on the devices, and on how many.
//!
//! Owns the extents of metadata and their lock.

mod batch_read;
mod listing;
mod mirroring;
mod storage;
mod unflushed;

pub(crate) use storage::MetaStorage;
