//! Labels and roots from any bytes: see `fuzzing.rs`.

use std::collections::BTreeMap;

use terrace_fuzz::fuzz;

use crate::{
    PoolState, TierSettings, fuzzing,
    ondisk::{Label, Member, encode_root},
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

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
    // Only what comes before the zeroes is worth changing.
    let short = sample[..400].to_vec();
    fuzz(
        HERE,
        "label",
        vec![short],
        Some(&fuzzing::seal_label),
        &mut fuzzing::label,
    );
}

#[test]
fn roots() {
    let sample = encode_root(&fuzzing::POOL, 7, b"a payload of some kind").to_vec();
    fuzz(
        HERE,
        "root",
        vec![sample],
        Some(&fuzzing::seal_root),
        &mut fuzzing::root,
    );
}
