//! Requests of the kernel from any bytes: see `fuzzing.rs`.

use terrace_fuzz::fuzz;

use crate::{fuzzing, kernel::protocol};

#[test]
fn requests() {
    let descriptor = |operation: u32, sectors: u32, first: u64| {
        let mut bytes = operation.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&sectors.to_ne_bytes());
        bytes.extend_from_slice(&first.to_ne_bytes());
        bytes
    };
    let samples = [
        descriptor(protocol::OPERATION_READ, 8, 0),
        descriptor(protocol::OPERATION_WRITE | protocol::FLAG_FUA, 32, 64),
        descriptor(protocol::OPERATION_FLUSH, 0, u64::MAX),
        descriptor(protocol::OPERATION_DISCARD, 128, 0),
        descriptor(protocol::OPERATION_WRITE_ZEROES, 1, 127),
        descriptor(protocol::OPERATION_DISCARD, u32::MAX, u64::MAX / 512),
    ];
    let mut samples = samples.to_vec();
    samples.push(samples.concat());
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "request",
        samples,
        None,
        &mut fuzzing::request,
    );
}
