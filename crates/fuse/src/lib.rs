//! Terrace: fuse.
