//! Terrace: log.
