//! Terrace: chunk.
