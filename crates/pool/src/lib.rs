//! Terrace: pool.
