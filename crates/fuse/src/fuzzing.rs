//! Requests of FUSE, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use crate::protocol::{Dialect, parse};

/// A request of the kernel: it lies in its bytes.
pub fn request(bytes: &[u8]) {
    for long_setxattr in [false, true] {
        if let Ok((header, request)) = parse(bytes, Dialect { long_setxattr }) {
            assert!(header.length as usize <= bytes.len());
            let _ = format!("{request:?}");
        }
    }
}

/// Puts the right length into a request.
pub fn seal_request(bytes: &mut Vec<u8>) {
    let length = (bytes.len() as u32).to_ne_bytes();
    if let Some(place) = bytes.get_mut(..4) {
        place.copy_from_slice(&length);
    }
}
