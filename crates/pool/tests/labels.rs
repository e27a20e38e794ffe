//! Labels say what was put into them, or that they are damaged; never anything else, and never a panic.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use terrace_device::AlignedBuffer;
use terrace_pool::{LABEL_BYTES, Label, LabelError, Landing, Member, PoolState, Presence, TierSettings};

fn label(members: u16, tiers: u8) -> Label {
    let tier = |index| TierSettings {
        landing: [Landing::OFF, Landing::SEQUENTIAL][usize::from(index == 1)],
        ..TierSettings::named(format!("tier{index}"))
    };
    let member = |number: u16| Member {
        number,
        id: [number as u8; 16],
        tier: (number % u16::from(tiers)) as u8,
        size_bytes: (100 + u64::from(number)) << 20,
        path: format!("/dev/disk{number}"),
        presence: match number % 3 {
            1 => Presence::Absent { since: 41 },
            2 => Presence::Behind,
            _ => Presence::Whole,
        },
        begun: vec![[number as u8; 16]; if number % 9 == 4 { 2 } else { 0 }],
    };
    Label {
        pool_id: [7; 16],
        pool_name: "tank".into(),
        state: PoolState::Active,
        generation: 42,
        number: members - 1,
        next_number: members + 3,
        segment_bytes: 1 << 20,
        created_nanoseconds: 1,
        tiers: (0..tiers).map(tier).collect(),
        members: (0..members).map(member).collect(),
        properties: BTreeMap::from([("memory".into(), "1G".into())]),
    }
}

/// The sum that belongs to changed content: what a forger would write.
fn sum_again(bytes: &mut AlignedBuffer) {
    let sum = blake3::hash(&bytes[..LABEL_BYTES - 32]);
    bytes[LABEL_BYTES - 32..].copy_from_slice(sum.as_bytes());
}

#[test]
fn every_single_damaged_byte_is_detected() {
    let bytes = label(3, 2).encode().unwrap();
    // All of the head and the body, all of the sum, and the padding between here and there.
    let positions = (0..800)
        .chain((800..LABEL_BYTES - 32).step_by(61))
        .chain(LABEL_BYTES - 32..LABEL_BYTES);
    for position in positions {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1 << (position % 8);
        let error = Label::decode(&damaged).unwrap_err();
        let expected = if position < 8 {
            LabelError::NotALabel
        } else {
            LabelError::Damaged
        };
        assert_eq!(error, expected, "byte {position}");
    }
}

#[test]
fn the_largest_pool_fits_into_a_label() {
    let mut large = label(128, 16);
    for member in &mut large.members {
        member.path = "/é".repeat(300);
    }
    for index in 0..100 {
        large.properties.insert(format!("user:{index}"), "v".repeat(140));
    }
    let back = Label::decode(&large.encode().unwrap()).unwrap();
    assert_eq!(back.members.len(), 128);
    assert_eq!(back.properties, large.properties);
    assert!(back.members[0].path.ends_with("/é/é") && back.members[0].path.len() <= 200);
    large.properties.insert("more".into(), "v".repeat(4000));
    assert!(large.encode().unwrap_err().to_string().contains("16384"));
}

#[test]
fn labels_of_other_format_versions_are_named_as_such() {
    let mut bytes = label(1, 1).encode().unwrap();
    for (version, error) in [
        (1, LabelError::Older(1)),
        (3, LabelError::Older(3)),
        (5, LabelError::Newer(5)),
    ] {
        bytes[8] = version;
        sum_again(&mut bytes);
        assert_eq!(Label::decode(&bytes), Err(error));
    }
}

#[test]
fn what_makes_no_sense_is_not_written() {
    let wrong: [fn(&mut Label); 12] = [
        |label| label.pool_name = "a/b".into(),
        |label| label.pool_name = String::new(),
        |label| label.tiers.clear(),
        |label| label.tiers[1].name = "tier0".into(),
        |label| label.tiers[0].high_water = f64::NAN,
        |label| label.tiers[0].low_water = 0.9,
        |label| label.segment_bytes = 3 << 20,
        |label| label.members.swap(0, 1),
        |label| label.number = 9,
        |label| label.members[0].tier = 2,
        |label| label.members[0].size_bytes = 4096,
        |label| label.generation = u64::MAX,
    ];
    for (index, change) in wrong.iter().enumerate() {
        let mut label = label(3, 2);
        change(&mut label);
        assert!(
            matches!(label.encode(), Err(LabelError::Invalid(_))),
            "case {index}"
        );
    }
}

fn any_label() -> impl Strategy<Value = Label> {
    let head = (
        any::<[u8; 16]>(),
        "[a-z][a-zA-Z0-9_.-]{0,63}",
        0..3u8,
        0..1u64 << 62,
        any::<u64>(),
    );
    let properties = proptest::collection::btree_map("\\PC{1,20}", "\\PC{0,200}", 0..8);
    (head, 1..20u16, 1..6u8, 0..7u32, properties, any::<[u32; 2]>()).prop_map(
        |(
            (pool_id, pool_name, state, generation, created),
            members,
            tiers,
            shift,
            properties,
            [promote, rate],
        )| {
            let mut label = label(members, tiers);
            label.state = [PoolState::Active, PoolState::Exported, PoolState::Destroyed][usize::from(state)];
            label.segment_bytes = 1 << (20 + shift);
            for tier in &mut label.tiers {
                tier.promote_after = promote;
                tier.rate_limit = u64::from(rate);
                tier.high_water = f64::from(promote) / f64::from(u32::MAX);
                tier.low_water = tier.high_water / 2.0;
            }
            Label {
                pool_id,
                pool_name,
                generation,
                created_nanoseconds: created,
                properties,
                ..label
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(11), ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_label_reads_as_it_was_written(label in any_label()) {
        prop_assert_eq!(Label::decode(&label.encode().unwrap()).unwrap(), label);
    }

    #[test]
    fn any_bytes_are_a_label_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert!(Label::decode(&bytes).is_err());
        let mut padded = AlignedBuffer::padded_from(&bytes);
        padded.resize(LABEL_BYTES);
        padded[..8].copy_from_slice(b"TERRLABL");
        padded[8..12].copy_from_slice(&1u32.to_le_bytes());
        sum_again(&mut padded);
        let _ = Label::decode(&padded);
    }

    #[test]
    fn a_forged_label_is_consistent_or_an_error(
        label in any_label(),
        changes in proptest::collection::vec((12usize..1500, any::<u8>()), 1..6),
    ) {
        let mut bytes = label.encode().unwrap();
        for (position, value) in changes {
            bytes[position] = value;
        }
        sum_again(&mut bytes);
        if let Ok(forged) = Label::decode(&bytes) {
            prop_assert!(forged.own().is_some());
            let again = Label::decode(&forged.encode().unwrap()).unwrap();
            prop_assert_eq!(again, forged);
        }
    }
}
