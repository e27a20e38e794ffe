//! Requests of a guest from any bytes: see `fuzzing.rs`.

use terrace_fuzz::fuzz;

use crate::fuzzing::{self, DATA_AT, DESCRIPTOR_BYTES, DESCRIPTORS};

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A request of these bytes and this much memory for the answer, and its status byte.
fn sample(kind: u32, sector: u64, sent: &[u8], answer: u32) -> Vec<u8> {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&sector.to_le_bytes());
    header.extend_from_slice(sent);
    let length = header.len() as u32;
    let parts = [
        (DATA_AT, length, NEXT, 1_u16),
        (DATA_AT + 0x8000, answer, NEXT | WRITE, 2),
        (DATA_AT + 0x10000, 1, WRITE, 0),
    ];
    let parts = match answer {
        // A descriptor of no length is none.
        0 => vec![parts[0], (parts[2].0, 1, WRITE, 0)],
        _ => parts.to_vec(),
    };
    let mut bytes = Vec::new();
    for (address, length, flags, next) in parts {
        bytes.extend_from_slice(&address.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
    }
    bytes.resize(usize::from(DESCRIPTORS) * DESCRIPTOR_BYTES, 0);
    bytes.extend_from_slice(&header);
    bytes
}

#[test]
fn requests() {
    let range = [&8u64.to_le_bytes()[..], &16u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
    let samples = vec![
        sample(0, 0, &[], 4096),
        sample(1, 8, &[5; 1024], 0),
        sample(4, 0, &[], 0),
        sample(8, 0, &[], 20),
        sample(11, 0, &range, 0),
        sample(13, 0, &[&range[..], &range].concat(), 0),
        sample(99, 0, &[], 0),
    ];
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "request",
        samples,
        None,
        &mut fuzzing::request,
    );
}
