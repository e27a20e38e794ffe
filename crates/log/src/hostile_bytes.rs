//! Log entries and positions from any bytes: never a panic; what decodes encodes to itself.

use terrace_codec::{Reader, Writer};
use terrace_fuzz::fuzz;
use terrace_pool::SegmentId;

use crate::{Copies, EntryHeader, LogPosition};

fn entry() -> EntryHeader {
    let segment = |device, index| Some(SegmentId { device, index });
    EntryHeader {
        pool: [4; 16],
        nonce: 77,
        first: 5,
        last: 9,
        flushed: 4,
        behind: 2,
        previous: [3; 32],
        length: 11,
        continues: false,
        next: Copies([segment(0, 8), segment(1, 9)]),
        sum: [0; 32],
    }
}

#[test]
fn entries() {
    let payload = b"some payload";
    let mut header = EntryHeader {
        length: 12,
        ..entry()
    };
    let mut sample = header.seal(payload);
    sample.extend_from_slice(payload);
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().max(crate::HEADER_BYTES), 0);
        let payload = bytes.split_off(crate::HEADER_BYTES);
        if let Ok(mut header) = EntryHeader::decode(bytes) {
            header.length = payload.len() as u32;
            *bytes = header.seal(&payload);
        }
        bytes.extend_from_slice(&payload);
    };
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "entry",
        vec![sample],
        Some(&seal),
        &mut |bytes| {
            let Ok(mut header) = EntryHeader::decode(bytes) else {
                return;
            };
            let payload = bytes[crate::HEADER_BYTES..].to_vec();
            if header.verify(&payload) {
                let again = header.seal(&payload);
                assert_eq!(again, bytes[..crate::HEADER_BYTES]);
            }
        },
    );
}

#[test]
fn positions() {
    let header = entry();
    let position = LogPosition {
        segment: header.next,
        offset: 8192,
        next: Copies([None, header.next.0[0]]),
        previous: [8; 32],
        sequence: 6,
    };
    let mut writer = Writer::new();
    position.encode(&mut writer);
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "position",
        vec![writer.into_bytes()],
        None,
        &mut |bytes| {
            let mut reader = Reader::new(bytes);
            if let Ok(position) = LogPosition::decode(&mut reader) {
                let mut writer = Writer::new();
                position.encode(&mut writer);
                let mut again = Reader::new(writer.as_bytes());
                assert_eq!(LogPosition::decode(&mut again), Ok(position));
            }
        },
    );
}
