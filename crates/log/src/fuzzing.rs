//! Log entries and positions, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use terrace_codec::{Reader, Writer};

use crate::{EntryHeader, HEADER_BYTES, LogPosition};

/// An entry with its payload: what decodes and has the right sum encodes to itself.
pub fn entry(bytes: &[u8]) {
    let Ok(mut header) = EntryHeader::decode(bytes) else {
        return;
    };
    let payload = bytes[HEADER_BYTES..].to_vec();
    if header.verify(&payload) {
        let again = header.seal(&payload);
        assert_eq!(again, bytes[..HEADER_BYTES]);
    }
}

/// Puts the right length and sum into an entry.
pub fn seal_entry(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().max(HEADER_BYTES), 0);
    let payload = bytes.split_off(HEADER_BYTES);
    if let Ok(mut header) = EntryHeader::decode(bytes) {
        header.length = payload.len() as u32;
        *bytes = header.seal(&payload);
    }
    bytes.extend_from_slice(&payload);
}

/// A position: what decodes encodes to itself.
pub fn position(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    if let Ok(position) = LogPosition::decode(&mut reader) {
        let mut writer = Writer::new();
        position.encode(&mut writer);
        let mut again = Reader::new(writer.as_bytes());
        assert_eq!(LogPosition::decode(&mut again), Ok(position));
    }
}
