//! Segments are handed out once, from the tier that was asked for, until it is full.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::collections::BTreeSet;

use media::{Shelf, create, open};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use terrace_pool::{Landing, Pool, PoolError, Request, SegmentId, SegmentKind, TierChoice, TierSettings};

fn pool() -> Pool {
    let shelf = Shelf::new(&[12, 16, 40]);
    create(
        "tank",
        1,
        vec![("fast", shelf.devices(&[0, 1])), ("slow", shelf.devices(&[2]))],
    )
}

fn request(choice: TierChoice) -> Request<'static> {
    Request {
        choice,
        kind: SegmentKind::Data,
        avoid: &[],
        garbage: &[],
        leave_free: 0,
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        choice: u8,
        kind: u8,
        avoid: Option<u16>,
        leave_free: u64,
    },
    Release(usize),
    Claim(u16, u32),
    Drain(u16, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let allocate = (
        0..6u8,
        0..3u8,
        proptest::option::of(0..3u16),
        prop_oneof![Just(0u64), 0..70u64],
    );
    prop_oneof![
        6 => allocate.prop_map(|(choice, kind, avoid, leave_free)| Step::Allocate { choice, kind, avoid, leave_free }),
        3 => any::<usize>().prop_map(Step::Release),
        1 => (0..4u16, 0..45u32).prop_map(|(device, index)| Step::Claim(device, index)),
        1 => (0..3u16, any::<bool>()).prop_map(|(device, on)| Step::Drain(device, on)),
    ]
}

fn choice_of(number: u8) -> TierChoice {
    match number {
        0 => TierChoice::Fastest,
        1 => TierChoice::Sequential,
        2 => TierChoice::Tier {
            tier: 0,
            strict: true,
        },
        3 => TierChoice::Tier {
            tier: 1,
            strict: true,
        },
        4 => TierChoice::Tier {
            tier: 0,
            strict: false,
        },
        _ => TierChoice::Tier {
            tier: 1,
            strict: false,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(12), ..ProptestConfig::with_cases(150) })]

    #[test]
    fn allocation_agrees_with_a_set(steps in proptest::collection::vec(step(), 1..150)) {
        let pool = pool();
        let sizes = [10u64, 14, 38];
        let tier_of = [0u8, 0, 1];
        let mut used: BTreeSet<SegmentId> = BTreeSet::new();
        let mut draining = [false; 3];
        let used_on = |used: &BTreeSet<SegmentId>, device: u16| used.iter().filter(|s| s.device == device).count() as u64;
        for step in steps {
            match step {
                Step::Allocate { choice, kind, avoid, leave_free } => {
                    let kind = [SegmentKind::Data, SegmentKind::Metadata, SegmentKind::Log][usize::from(kind)];
                    let avoid: Vec<u16> = avoid.into_iter().collect();
                    let choice = choice_of(choice);
                    let usable = |device: u16| !draining[usize::from(device)];
                    let free_on = |device: u16| sizes[usize::from(device)] - used_on(&used, device);
                    let all_free: u64 = (0..3).filter(|device| usable(*device)).map(free_on).sum();
                    prop_assert_eq!(pool.free_segments(), all_free);
                    let candidates: Vec<u16> = (0..3u16)
                        .filter(|device| usable(*device) && !avoid.contains(device) && free_on(*device) > 0)
                        .filter(|device| match choice {
                            TierChoice::Tier { tier, strict: true } => tier_of[usize::from(*device)] == tier,
                            _ => true,
                        })
                        .collect();
                    let possible = all_free > leave_free && !candidates.is_empty();
                    match pool.allocate(&Request { choice, kind, avoid: &avoid, garbage: &[], leave_free }) {
                        Ok(segment) => {
                            prop_assert!(possible);
                            prop_assert!(candidates.contains(&segment.device));
                            prop_assert!(u64::from(segment.index) < sizes[usize::from(segment.device)]);
                            prop_assert!(used.insert(segment), "handed out twice");
                        }
                        Err(error) => {
                            prop_assert!(error.is_no_space() && !possible, "{} {:?}", error, choice);
                        }
                    }
                }
                Step::Release(which) => {
                    if let Some(segment) = used.iter().nth(which % used.len().max(1)).copied() {
                        pool.release(segment).unwrap();
                        used.remove(&segment);
                        prop_assert!(pool.release(segment).is_err(), "released twice");
                    }
                }
                Step::Claim(device, index) => {
                    let segment = SegmentId { device, index };
                    let exists = sizes.get(usize::from(device)).is_some_and(|size| u64::from(index) < *size);
                    prop_assert_eq!(pool.claim(segment).is_ok(), exists && used.insert(segment));
                }
                Step::Drain(device, on) => {
                    pool.set_draining(device, on).unwrap();
                    draining[usize::from(device)] = on;
                }
            }
            for device in pool.devices() {
                prop_assert_eq!(u64::from(device.segments - device.free_segments), used_on(&used, device.number));
            }
        }
        for segment in used {
            prop_assert!(pool.is_claimed(segment));
        }
    }
}

#[test]
fn data_heeds_the_high_water_mark_and_metadata_does_not() {
    let pool = pool();
    let lower = TierSettings {
        high_water: 0.84,
        ..TierSettings::named("fast")
    };
    pool.set_tier("fast", lower).unwrap();
    let mut on_fast = 0;
    while pool.tier_of(pool.allocate(&request(TierChoice::Fastest)).unwrap().device) == Some(0) {
        on_fast += 1;
    }
    // 84 % of 24 segments: lower than usual.
    assert_eq!(on_fast, 20);
    let metadata = Request {
        kind: SegmentKind::Metadata,
        ..request(TierChoice::Fastest)
    };
    for _ in 0..3 {
        assert_eq!(pool.tier_of(pool.allocate(&metadata).unwrap().device), Some(0));
    }
    // The last is for compaction.
    assert_eq!(pool.tier_of(pool.allocate(&metadata).unwrap().device), Some(1));
    let on_fast = TierChoice::Tier {
        tier: 0,
        strict: true,
    };
    assert!(pool.allocate(&request(on_fast)).is_ok());
    // Above every mark the rest is used all the same, to the last segment.
    while pool.free_segments() > 0 {
        pool.allocate(&request(TierChoice::Fastest)).unwrap();
    }
    assert!(
        pool.allocate(&request(TierChoice::Fastest))
            .unwrap_err()
            .is_no_space()
    );
}

#[test]
fn above_the_usual_mark_new_data_lands_until_a_sixteenth_is_left() {
    let shelf = Shelf::new(&[256, 40]);
    let tiers = vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))];
    let pool = create("tank", 1, tiers);
    let mut on_fast = 0;
    while pool.allocate(&request(TierChoice::Fastest)).unwrap().device == 0 {
        on_fast += 1;
    }
    assert_eq!(on_fast, pool.tiers()[0].segments * 15 / 16);
}

#[test]
fn garbage_does_not_count_against_the_mark_and_the_floor_is_left() {
    let pool = pool();
    let garbage = Request {
        garbage: &[10],
        ..request(TierChoice::Fastest)
    };
    let tier_of = |segment: SegmentId| pool.tier_of(segment.device);
    let mut on_fast = 0;
    while tier_of(pool.allocate(&garbage).unwrap()) == Some(0) {
        on_fast += 1;
    }
    assert_eq!(on_fast, 21, "all of 24 but an eighth");
    assert_eq!(pool.tiers()[0].free_segments, pool.tiers()[0].floor_segments);
    // While the slower tier is above its mark, too; not when that has nothing but its own floor.
    while pool.tiers()[1].free_segments > pool.tiers()[1].floor_segments {
        assert_eq!(tier_of(pool.allocate(&garbage).unwrap()), Some(1));
    }
    assert_eq!(tier_of(pool.allocate(&garbage).unwrap()), Some(0));
}

#[test]
fn the_reserve_stays_free() {
    let pool = pool();
    let modest = Request {
        garbage: &[],
        leave_free: 5,
        ..request(TierChoice::Fastest)
    };
    while pool.allocate(&modest).is_ok() {}
    assert_eq!(pool.free_segments(), 5);
    assert!(pool.allocate(&request(TierChoice::Fastest)).is_ok());
}

/// A kind of writes, how a tier takes it, and how one takes the other kind.
const KINDS: [(TierChoice, Landing, Landing); 2] = [
    (TierChoice::Sequential, Landing::SEQUENTIAL, Landing::RANDOM),
    (TierChoice::Random, Landing::RANDOM, Landing::SEQUENTIAL),
];

#[test]
fn data_lands_where_the_tier_says_so() {
    for (choice, takes, other) in KINDS {
        let pool = pool();
        let tier_of = |segment: SegmentId| pool.tier_of(segment.device);
        let set = |name: &str, landing| {
            let settings = TierSettings {
                landing,
                ..TierSettings::named(name)
            };
            pool.set_tier(name, settings).unwrap()
        };
        for landing in [Landing::OFF, other] {
            set("slow", landing);
            assert_eq!(tier_of(pool.allocate(&request(choice)).unwrap()), Some(0));
        }
        for landing in [takes, Landing::ALL] {
            set("slow", landing);
            assert_eq!(tier_of(pool.allocate(&request(choice)).unwrap()), Some(1));
        }
        // What is for no kind of content stays fast.
        let log = Request {
            kind: SegmentKind::Log,
            ..request(TierChoice::Fastest)
        };
        assert_eq!(tier_of(pool.allocate(&log).unwrap()), Some(0));
        // It lands on one tier alone.
        assert_eq!(set("fast", takes), [("slow".to_owned(), takes)]);
        assert_eq!(pool.tiers()[1].settings.landing, other);
        assert_eq!(tier_of(pool.allocate(&request(choice)).unwrap()), Some(0));
        assert_eq!(set("slow", Landing::ALL), [("fast".to_owned(), takes)]);
        assert!(set("slow", Landing::ALL).is_empty());
        while pool
            .allocate(&request(TierChoice::Tier {
                tier: 1,
                strict: true,
            }))
            .is_ok()
        {}
        assert_eq!(tier_of(pool.allocate(&request(choice)).unwrap()), Some(0));
    }
}

#[test]
fn a_tier_that_holds_keeps_what_would_land_below() {
    for (choice, takes, _) in KINDS {
        let pool = pool();
        let set = |name: &str, landing| {
            let settings = TierSettings {
                landing,
                high_water: 0.5,
                low_water: 0.25,
                ..TierSettings::named(name)
            };
            pool.set_tier(name, settings).unwrap();
        };
        set("fast", Landing::OFF);
        set("slow", takes);
        pool.set_holds(vec![Some(0.75), None]);
        let total = pool.tiers()[0].segments;
        let mut on_fast = 0;
        for choice in [choice, TierChoice::Fastest].into_iter().cycle() {
            let segment = pool.allocate(&request(choice)).unwrap();
            if pool.tier_of(segment.device) != Some(0) {
                break;
            }
            on_fast += 1;
        }
        assert_eq!(
            on_fast,
            total * 3 / 4,
            "up to the level that is held, whatever its marks"
        );
        pool.set_holds(vec![None, None]);
        let segment = pool.allocate(&request(choice)).unwrap();
        assert_eq!(pool.tier_of(segment.device), Some(1));
    }
}

#[test]
fn copies_go_to_other_devices_and_load_is_spread() {
    let pool = pool();
    let first = pool.allocate(&request(TierChoice::Fastest)).unwrap();
    let avoid = [first.device];
    let second = pool
        .allocate(&Request {
            avoid: &avoid,
            ..request(TierChoice::Fastest)
        })
        .unwrap();
    assert_ne!(first.device, second.device);
    assert_eq!(pool.tier_of(second.device), Some(0));
    let nowhere = Request {
        avoid: &[0, 1, 2],
        ..request(TierChoice::Fastest)
    };
    assert!(pool.allocate(&nowhere).unwrap_err().is_no_space());
    for _ in 0..10 {
        pool.allocate(&request(TierChoice::Fastest)).unwrap();
    }
    let used: Vec<_> = pool
        .devices()
        .iter()
        .map(|device| device.segments - device.free_segments)
        .collect();
    assert_eq!(used, [5, 7, 0], "in proportion to 10 and 14 segments");
}

#[test]
fn a_released_segment_is_the_last_to_be_used_again() {
    let shelf = Shelf::new(&[12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let first = pool.allocate(&request(TierChoice::Fastest)).unwrap();
    pool.release(first).unwrap();
    for index in 1..10 {
        assert_eq!(pool.allocate(&request(TierChoice::Fastest)).unwrap().index, index);
    }
    assert_eq!(pool.allocate(&request(TierChoice::Fastest)).unwrap(), first);
}

#[test]
fn claims_after_opening_keep_segments_from_being_handed_out() {
    let shelf = Shelf::new(&[12]);
    drop(create("tank", 1, vec![("only", shelf.all())]));
    let pool = open(shelf.all()).unwrap();
    for index in [0, 3, 9] {
        pool.claim(SegmentId { device: 0, index }).unwrap();
    }
    let beyond = SegmentId { device: 0, index: 10 };
    assert!(matches!(pool.claim(beyond), Err(PoolError::Segment { .. })));
    assert!(matches!(
        pool.claim(SegmentId { device: 5, index: 0 }),
        Err(PoolError::NoDevice { .. })
    ));
    let mut got = BTreeSet::new();
    while let Ok(segment) = pool.allocate(&request(TierChoice::Fastest)) {
        got.insert(segment.index);
    }
    assert_eq!(got, BTreeSet::from([1, 2, 4, 5, 6, 7, 8]));
}

#[test]
fn segment_numbers_order_as_pairs() {
    let segment = SegmentId { device: 3, index: 9 };
    assert_eq!(SegmentId::from_u64(segment.to_u64()), Some(segment));
    assert_eq!(SegmentId::from_u64(1 << 48), None);
    assert_eq!(segment.to_string(), "3:9");
}

#[test]
fn copies_are_placed_so_that_what_is_free_can_be_matched() {
    // Free segments of each device, which differ from its size where much was written before it came, and what pairs of them
    // there are.
    let cases: [(&[(u32, u32)], u64); 4] = [
        (&[(30, 30), (8, 8), (8, 8)], 16),
        (&[(200, 20), (20, 20), (20, 20)], 30),
        (&[(100, 50), (40, 26), (40, 23), (16, 1)], 50),
        (&[(16, 16), (16, 16), (16, 16)], 24),
    ];
    for (devices, pairs) in cases {
        let sizes: Vec<u64> = devices.iter().map(|(all, _)| u64::from(*all) + 2).collect();
        let shelf = Shelf::new(&sizes);
        let mut options = media::create_options("tank", vec![("only", shelf.all())]);
        options.tiers[0].0.copies = 2;
        options.segment_bytes = Some(1 << 20);
        let pool = Pool::create(options, &terrace_device::SeededRandomness::new(1)).unwrap();
        for (number, (_, free)) in devices.iter().enumerate() {
            let device = number as u16;
            for index in *free..pool.devices()[number].segments {
                pool.claim(SegmentId { device, index }).unwrap();
            }
        }
        assert_eq!(pool.content_room().beyond(0), pairs, "{devices:?}");
        let mut taken = 0;
        while let Ok(first) = pool.allocate(&request(TierChoice::Fastest)) {
            let avoid = [first.device];
            let second = Request {
                avoid: &avoid,
                ..request(TierChoice::Tier {
                    tier: 0,
                    strict: true,
                })
            };
            if pool.allocate(&second).is_err() {
                break;
            }
            taken += 1;
        }
        assert_eq!(taken, pairs, "{devices:?}");
    }
}
