//! Root slots.

/// Longest payload of the root record, bytes.
pub const ROOT_BYTES_MAX: usize = 64 * 1024;
