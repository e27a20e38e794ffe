//! Labels and roots from any bytes: never a panic; what decodes is consistent and encodes to itself.

use std::collections::BTreeMap;

use terrace_fuzz::fuzz;

use crate::label::{Label, Member};
use crate::root::{decode_root, encode_root};
use crate::{PoolState, TierSettings};

const SUM_BYTES: usize = 32;

fn label() -> Label {
    let member = |number: u16| Member {
        number,
        id: [number as u8 + 1; 16],
        tier: (number % 2) as u8,
        size_bytes: 64 << 20,
        path: format!("/dev/disk{number}"),
        presence: crate::Presence::Whole,
        begun: Vec::new(),
    };
    Label {
        pool_id: [9; 16],
        pool_name: "tank".into(),
        state: PoolState::Active,
        generation: 12,
        number: 1,
        next_number: 4,
        segment_bytes: 1 << 20,
        created_nanoseconds: 1_700_000_000_000_000_000,
        tiers: vec![TierSettings::named("fast"), TierSettings::named("slow")],
        members: vec![member(0), member(1), member(3)],
        properties: BTreeMap::from([("memory".into(), "1G".into())]),
    }
}

#[test]
fn labels() {
    let sample = label().encode().expect("a label").to_vec();
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(crate::LABEL_BYTES, 0);
        let end = bytes.len() - SUM_BYTES;
        let sum = blake3::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(sum.as_bytes());
    };
    // Only what comes before the zeroes is worth changing.
    let short = sample[..400].to_vec();
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "label",
        vec![short],
        Some(&seal),
        &mut |bytes| {
            if let Ok(label) = Label::decode(bytes) {
                let again = label.encode().expect("what decodes encodes");
                assert_eq!(Label::decode(&again).ok(), Some(label));
            }
        },
    );
}

#[test]
fn roots() {
    let sample = encode_root(&[9; 16], 7, b"a payload of some kind").to_vec();
    let seal = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().max(8192), 0);
        let length = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[..40]);
        if let Some(payload) = bytes.get(4096..4096usize.saturating_add(length)) {
            hasher.update(payload);
        }
        bytes[40..72].copy_from_slice(hasher.finalize().as_bytes());
    };
    fuzz(
        env!("CARGO_MANIFEST_DIR"),
        "root",
        vec![sample],
        Some(&seal),
        &mut |bytes| {
            if let Ok(root) = decode_root(bytes, &[9; 16]) {
                let again = encode_root(&[9; 16], root.generation, &root.payload);
                assert_eq!(decode_root(&again, &[9; 16]), Ok(root));
            }
        },
    );
}
