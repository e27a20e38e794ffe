//! A move by hand that finds little room, and before it what is not to be moved, ends.

#![allow(clippy::unwrap_used)]

use crate::emulated;

use std::sync::Arc;

use emulated::{MIB, Pattern, Pool, SECOND, Shape};
use terrace_dataset::{NewDataset, Volume, read_region};
use terrace_mover::Step;
use terrace_store::{Placement, Store};

const SHAPE: Shape = Shape {
    volume_bytes: 16 * MIB,
    fast_bytes: 32 * MIB,
    memory_bytes: 2 * MIB,
    chunk_size: "128K",
    reads_per_quarter: 250,
    pattern: Pattern::Contiguous,
};

/// A volume of this content, pinned or not, on this tier.
fn volume(pool: &Pool, name: &str, content: &[u8], tier: u8, pin: Option<&str>) -> (u32, Arc<Volume>) {
    let mut properties = vec![
        ("compression".to_owned(), "off".to_owned()),
        ("dedup".into(), "on".into()),
        ("chunk_size".into(), "128K".into()),
    ];
    properties.extend(pin.map(|pin| ("pin".to_owned(), pin.to_owned())));
    let made = NewDataset {
        volume_bytes: Some(content.len() as u64),
        properties,
        ..NewDataset::default()
    };
    pool.datasets.create(name, &made).unwrap();
    let number = pool.datasets.info(name).unwrap().number;
    let volume = pool.datasets.volume(name).unwrap();
    for (at, piece) in content.chunks(MIB as usize).enumerate() {
        volume.write(at as u64 * MIB, piece).unwrap();
        volume.commit().unwrap();
        let found = read_region(pool.store.as_ref(), number, 1, at as u64).unwrap();
        for run in found.unwrap().record.runs() {
            let placement = Placement::Tier { tier, strict: true };
            pool.store.rewrite(&[run.chunk], placement).unwrap();
        }
    }
    (number, volume)
}

fn content(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn a_move_by_hand_for_which_there_is_little_room_goes_past_what_stays_for_a_pin() {
    let pool = Pool::new(SHAPE, "compression", "off");
    let equal = content(4 * MIB, 2);
    let (_, _pinned) = volume(&pool, "pool/pinned", &equal, 1, Some("slow"));
    // The fast tier is full but for one chunk or two: 27 MiB and a bit of the 27.2 up to its mark.
    let filling = content(27 * MIB - (128 << 10), 3);
    let (_, _filling) = volume(&pool, "pool/filling", &filling, 0, None);
    let own = content(MIB, 4);
    let moved = [equal, own].concat();
    let (number, _moved) = volume(&pool, "pool/moved", &moved, 1, None);
    let id = pool.mover.move_to(number, 0, "fast").unwrap();
    for _ in 0..20_000 {
        if let Step::Idle { wait } = pool.mover.step().unwrap() {
            pool.clock.advance(wait.min(SECOND));
        }
        let job = pool.mover.jobs().into_iter().find(|job| job.id == id).unwrap();
        if job.state != "running" && job.state != "waiting" {
            assert_eq!((job.state, job.done_bytes), ("done", 5 * MIB), "{job:?}");
            assert!(job.reason.contains("4M that are pinned elsewhere"), "{job:?}");
            let there = read_region(pool.store.as_ref(), number, 1, 4).unwrap().unwrap();
            for run in there.record.runs() {
                assert_eq!(pool.store.chunk_info(run.chunk).unwrap().unwrap().tier, 0);
            }
            return;
        }
    }
    panic!("it does not end: {:?}", pool.mover.jobs());
}
