//! Labels and roots, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use crate::ondisk::{Label, decode_root, encode_root};

const SUM_BYTES: usize = 32;
/// The pool that all roots are of.
pub const POOL: [u8; 16] = [9; 16];

/// A label: what decodes is consistent and encodes to itself.
pub fn label(bytes: &[u8]) {
    if let Ok(label) = Label::decode(bytes) {
        let again = label.encode().expect("what decodes encodes");
        assert_eq!(Label::decode(&again).ok(), Some(label));
    }
}

/// Puts the right sum into a label.
pub fn seal_label(bytes: &mut Vec<u8>) {
    bytes.resize(crate::LABEL_BYTES, 0);
    let end = bytes.len() - SUM_BYTES;
    let sum = blake3::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(sum.as_bytes());
}

/// A root: what decodes encodes to itself.
pub fn root(bytes: &[u8]) {
    if let Ok(root) = decode_root(bytes, &POOL) {
        let again = encode_root(&POOL, root.generation, &root.payload);
        assert_eq!(decode_root(&again, &POOL), Ok(root));
    }
}

/// Puts the right sum into a root.
pub fn seal_root(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(8192), 0);
    let length = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..40]);
    if let Some(payload) = bytes.get(4096..4096usize.saturating_add(length)) {
        hasher.update(payload);
    }
    bytes[40..72].copy_from_slice(hasher.finalize().as_bytes());
}
