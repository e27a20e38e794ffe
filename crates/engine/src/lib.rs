//! Terrace: engine.
