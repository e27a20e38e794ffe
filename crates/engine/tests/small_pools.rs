//! Thick volumes that are most of a small pool: every write to them finds room, however they are written over; or they are
//! refused when they are made, with figures.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{BLOCK, MIB, Modelled, Rig};
use terrace_dataset::{DatasetError, NewDataset};

/// The largest volume of up to so many MiB that the pool promises room for; above that it is refused with figures.
fn largest(rig: &Rig, mib: u64) -> Modelled {
    for size in (1..=mib).rev() {
        let new = NewDataset {
            volume_bytes: Some(size * MIB),
            properties: vec![("compression".into(), "off".into())],
            ..NewDataset::default()
        };
        match rig.engine.datasets().create("tank/v", &new) {
            Ok(()) => return Modelled::new(rig.engine.datasets().volume("tank/v").unwrap()),
            Err(DatasetError::NoRoom {
                wanted_bytes,
                available_bytes,
            }) => assert!(wanted_bytes > available_bytes),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no volume could be made");
}

/// Sizes of the devices of a tier, MiB, and how many copies it keeps.
type Tier<'a> = (&'a [u64], u8);

fn in_bytes(sizes: &[u64]) -> Vec<u64> {
    sizes.iter().map(|mib| mib * MIB).collect()
}

/// Written in full, and then at random, with flushes, and with or without background work between.
fn write_over(tiers: &[Tier], mib: u64, least_mib: u64, seed: u64, ticks: bool) {
    let tiers: Vec<_> = tiers
        .iter()
        .map(|(sizes, copies)| (in_bytes(sizes), *copies))
        .collect();
    let mut rig = Rig::of(&tiers);
    rig.random = full_pool::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut volume = largest(&rig, mib);
    let size = volume.model.len() as u64;
    assert!(size >= least_mib * MIB, "{}", size / MIB);
    volume.write_all(&mut rig.random);
    for count in 0..size / BLOCK {
        let block = rig.random.below(size / BLOCK);
        let written = volume.write(&mut rig.random, block * BLOCK, BLOCK);
        written.unwrap_or_else(|error| panic!("write {count}: {error}: {}", rig.figures()));
        if count % 61 == 60 {
            volume.volume.flush().unwrap();
        }
        if ticks && count % 997 == 996 {
            rig.tick();
        }
    }
    volume.verify();
}

#[test]
fn a_thick_volume_that_is_most_of_a_small_pool_takes_every_random_write() {
    write_over(&[(&[128], 1)], 80, 80, 1, true);
    write_over(&[(&[128], 1)], 128, 88, 1, false);
}

/// No time passes, and nobody does anything but who writes: what was written over in chunks is brought back by whom it is taken
/// from, before it has taken all room.
#[test]
fn the_largest_thick_volume_takes_every_random_write_with_nobody_working_beside_it() {
    let geometries: &[(&[Tier], u64)] = &[
        (&[(&[32], 1), (&[128], 1)], 110),
        (&[(&[64], 1), (&[64], 1)], 80),
        (&[(&[96], 1), (&[32], 1)], 80),
        (&[(&[32], 1), (&[32], 1), (&[128], 1)], 120),
        (&[(&[64, 64], 2)], 30),
        (&[(&[32], 1), (&[64, 64], 2)], 40),
        (&[(&[128, 96], 2), (&[64], 1)], 60),
    ];
    let seeds = std::env::var("TERRACE_SMALL_POOL_SEEDS").unwrap_or_else(|_| "1-1".into());
    let (from, to) = seeds.split_once('-').unwrap();
    let mut refused = Vec::new();
    for seed in from.parse::<u64>().unwrap()..=to.parse().unwrap() {
        for (tiers, least) in geometries {
            let all: u64 = tiers.iter().flat_map(|(sizes, _)| *sizes).sum();
            if std::panic::catch_unwind(|| write_over(tiers, all, *least, seed, false)).is_err() {
                refused.push((seed, tiers));
            }
        }
    }
    assert!(refused.is_empty(), "{refused:?}");
}
