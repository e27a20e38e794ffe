//! Requests of FUSE from any bytes: see `fuzzing.rs`. (What right bytes mean is in `tests/protocol.rs`.)

use terrace_fuzz::fuzz;

use crate::fuzzing;

/// A request as the kernel sends it.
fn message(operation: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((40 + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&operation.to_ne_bytes());
    bytes.extend_from_slice(&7u64.to_ne_bytes());
    bytes.extend_from_slice(&1u64.to_ne_bytes());
    for number in [1000u32, 100, 4321, 0] {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn requests() {
    // Every operation that there is, with a body that is long enough for most and has names in it.
    let mut body = vec![0; 24];
    body.extend_from_slice(b"a name\0another name\0");
    body.extend_from_slice(&[0; 60]);
    let mut samples: Vec<Vec<u8>> = (1..=56).map(|operation| message(operation, &body)).collect();
    samples.push(message(1, b"name\0"));
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "request",
        samples,
        Some(&fuzzing::seal_request),
        &mut fuzzing::request,
    );
}
