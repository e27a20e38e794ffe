//! Request headers of NBD from any bytes: never a panic, never a payload announced that is not in the header. (Whole
//! conversations with hostile clients are in `tests/clients.rs`.)

use terrace_fuzz::fuzz;

use crate::protocol::{CMD_WRITE, Request};

#[test]
fn request_headers() {
    let header = |magic: u32, length: &[u8]| {
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend_from_slice(&1u16.to_be_bytes());
        bytes.extend_from_slice(&CMD_WRITE.to_be_bytes());
        bytes.extend_from_slice(&7u64.to_be_bytes());
        bytes.extend_from_slice(&8192u64.to_be_bytes());
        bytes.extend_from_slice(length);
        bytes
    };
    let samples = vec![
        header(crate::protocol::REQUEST_MAGIC, &4096u32.to_be_bytes()),
        header(crate::protocol::EXTENDED_REQUEST_MAGIC, &4096u64.to_be_bytes()),
    ];
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "request",
        samples,
        None,
        &mut |bytes| {
            for extended in [false, true] {
                let Some(request) = Request::parse(extended, bytes) else {
                    continue;
                };
                assert!(bytes.len() >= Request::header_bytes(extended));
                assert!(request.payload_bytes(extended) <= request.length);
            }
        },
    );
}
