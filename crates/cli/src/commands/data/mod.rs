//! Commands on datasets, files, mounts and volumes.

pub(crate) mod blocks;
pub(crate) mod datasets;
pub(crate) mod files;
pub(crate) mod mount_helper;
pub(crate) mod mounts;
pub(crate) mod properties;
pub(crate) mod where_is;

pub(crate) use where_is::dataset_path;
