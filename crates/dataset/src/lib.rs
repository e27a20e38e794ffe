//! Terrace: dataset.
