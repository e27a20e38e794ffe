//! Terrace: cache.
