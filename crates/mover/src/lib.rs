//! Terrace: mover.
