//! Where small writes land that are made all over what fills half of a fast tier: dead blocks come back in time, and nothing goes below.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{BLOCK, MIB, Modelled, Rig};
use terrace_dataset::NewDataset;
use terrace_store::Store;

const VOLUME_BYTES: u64 = 16 * MIB;
/// Written between two commits.
const COMMIT_BYTES: u64 = MIB;

/// A volume in order, in long chunks, on a fast tier of twice its size above a slow one.
fn rig() -> (Rig, Modelled) {
    let mut rig = Rig::new(&[2 * VOLUME_BYTES, 8 * VOLUME_BYTES]);
    let property = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let new = NewDataset {
        volume_bytes: Some(VOLUME_BYTES),
        properties: vec![property("compression", "off"), property("chunk_size", "128K")],
        ..NewDataset::default()
    };
    rig.engine.datasets().create("tank/v", &new).unwrap();
    let mut volume = Modelled::new(rig.engine.datasets().volume("tank/v").unwrap());
    volume.write_all(&mut rig.random);
    rig.tick();
    (rig, volume)
}

/// What lives on a tier, bytes, but for what is about to be freed.
fn live_bytes(rig: &Rig, tier: usize) -> u64 {
    let space = rig.engine.chunks().space();
    space.tiers[tier]
        .live_bytes
        .saturating_sub(space.pending_free_bytes)
}

#[test]
fn what_is_written_over_at_random_stays_on_a_tier_that_holds_it() {
    let (mut rig, mut volume) = rig();
    let before = live_bytes(&rig, 1);
    for count in 1..=3 * VOLUME_BYTES / BLOCK {
        let block = rig.random.below(VOLUME_BYTES / BLOCK);
        volume.write(&mut rig.random, block * BLOCK, BLOCK).unwrap();
        if count % (COMMIT_BYTES / BLOCK) == 0 {
            volume.volume.commit().unwrap();
        }
    }
    let below = live_bytes(&rig, 1).saturating_sub(before);
    println!("{below} bytes below");
    // It was 14 MiB.
    assert!(below < VOLUME_BYTES / 8, "{below}");
    volume.verify();
}

/// On one tier there is no other place: what is written over at random in long chunks comes back before compaction would have to win
/// room from segments that are full of chunks of which half is dead.
#[test]
fn what_is_written_over_at_random_in_a_pool_that_is_three_quarters_full_is_not_written_many_times() {
    let mut rig = Rig::new(&[4 * VOLUME_BYTES]);
    let mut volumes = ["tank/v", "tank/w"].map(|name| {
        let property = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let new = NewDataset {
            volume_bytes: Some(VOLUME_BYTES * 5 / 4),
            sparse: true,
            properties: vec![property("compression", "off"), property("chunk_size", "128K")],
            ..NewDataset::default()
        };
        rig.engine.datasets().create(name, &new).unwrap();
        Modelled::new(rig.engine.datasets().volume(name).unwrap())
    });
    for volume in &mut volumes {
        volume.write_all(&mut rig.random);
        rig.tick();
    }
    let written = |rig: &Rig| rig.engine.chunks().space().tiers[0].devices[0].written_bytes;
    let before = written(&rig);
    let volume = &mut volumes[0];
    let blocks = volume.model.len() as u64 / BLOCK;
    for count in 1..=blocks {
        let block = rig.random.below(blocks);
        volume.write(&mut rig.random, block * BLOCK, BLOCK).unwrap();
        if count % (COMMIT_BYTES / BLOCK) == 0 {
            volume.volume.commit().unwrap();
        }
    }
    let times = (written(&rig) - before) as f64 / (blocks * BLOCK) as f64;
    println!("each byte was written {times} times");
    // It was 5.04; the more often all is written over, the nearer both come to what compaction has to write.
    assert!(times < 4.2, "{times}");
    volumes.iter().for_each(Modelled::verify);
}

#[test]
fn who_commits_little_brings_little_back() {
    let (mut rig, mut volume) = rig();
    for block in (0..VOLUME_BYTES / BLOCK).step_by(2) {
        volume.write(&mut rig.random, block * BLOCK, BLOCK).unwrap();
    }
    volume.volume.commit().unwrap();
    // As long as there is room nothing is done, so it is used up in ever smaller pieces.
    let data = rig.thick("tank/data", 16 * MIB);
    let mut at = 0;
    for piece in [MIB, 256 << 10, 64 << 10, BLOCK] {
        while rig.engine.chunks().short_landing_tier(2 * piece, 2).is_none() {
            data.write(at, &rig.random.bytes(piece)).unwrap();
            data.commit().unwrap();
            at += piece;
        }
    }
    let dead_bytes = VOLUME_BYTES / 2;
    let before = live_bytes(&rig, 0);
    let mut came_back = 0;
    for commit in 1..=dead_bytes / BLOCK / 4 {
        volume.write(&mut rig.random, 0, BLOCK).unwrap();
        volume.volume.commit().unwrap();
        came_back = before.saturating_sub(live_bytes(&rig, 0));
        // Four times of what was written, or a region, of which half is dead; somewhat less or more is known of at a time.
        assert!(came_back <= 4 * commit * BLOCK + MIB, "{commit}: {came_back}");
    }
    assert!(came_back > dead_bytes / 4, "{came_back}");
    volume.verify();
}
