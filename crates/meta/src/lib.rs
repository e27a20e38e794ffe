//! Terrace: meta.
