//! Log entries and positions from any bytes: see `fuzzing.rs`.

use terrace_codec::Writer;
use terrace_fuzz::fuzz;
use terrace_pool::SegmentId;

use crate::{Copies, EntryHeader, LogPosition, fuzzing};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

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
    fuzz(
        HERE,
        "entry",
        vec![sample],
        Some(&fuzzing::seal_entry),
        &mut fuzzing::entry,
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
        HERE,
        "position",
        vec![writer.into_bytes()],
        None,
        &mut fuzzing::position,
    );
}
