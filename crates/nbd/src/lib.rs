//! Terrace: nbd.
