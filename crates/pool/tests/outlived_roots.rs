//! Roots lie on four devices, the fastest. One that held them before faster ones came has none that would show, to who opens it
//! without the others, a state of the past out of segments that were written over since.
#![allow(clippy::unwrap_used)]

use crate::media;

use media::{Shelf, create, open, sequential};
use terrace_device::{Device, SeededRandomness};
use terrace_pool::{DeviceAdd, OpenOptions, Pool};

/// A fast device and a slow one with two roots each, and three more fast ones.
fn grown() -> (Shelf, Pool) {
    let mut shelf = Shelf::new(&[16, 16]);
    let tiers = vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))];
    let pool = create("tank", 1, tiers);
    pool.write_root(b"oldest").unwrap();
    pool.write_root(b"old").unwrap();
    for number in 0..3 {
        let device = shelf.add(16);
        let randomness = SeededRandomness::new(10 + number);
        pool.add_device(device, DeviceAdd::Tier("fast".into()), false, &randomness)
            .unwrap();
    }
    (shelf, pool)
}

/// What the slow device shows by itself.
fn alone(shelf: &Shelf) -> Option<Vec<u8>> {
    let options = OpenOptions {
        degraded: true,
        read_only: true,
        ..sequential()
    };
    let pool = Pool::open(shelf.devices(&[1]), options).unwrap();
    pool.read_root().unwrap()
}

#[test]
fn a_device_beyond_those_that_hold_roots_shows_no_old_state() {
    let (shelf, pool) = grown();
    pool.write_root(b"new").unwrap();
    assert_eq!(alone(&shelf), None);
    // Where it holds roots again it shows the newest.
    for number in [0, 2, 3] {
        pool.remove_device(number).unwrap();
    }
    pool.write_root(b"newer").unwrap();
    assert_eq!(alone(&shelf).unwrap(), b"newer");
}

/// As a device has it that refused to erase it.
#[test]
fn an_old_root_that_is_still_there_goes_with_the_next_one() {
    const ROOTS: (u64, u64) = (256 << 10, 512 << 10);
    let mut shelf = Shelf::new(&[16, 16]);
    let tiers = vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))];
    let pool = create("tank", 1, tiers);
    pool.write_root(b"old").unwrap();
    let mut roots = vec![0; ROOTS.1 as usize];
    shelf.media[1].read_at(ROOTS.0, &mut roots).unwrap();
    for number in 0..3 {
        let device = shelf.add(16);
        let randomness = SeededRandomness::new(10 + number);
        pool.add_device(device, DeviceAdd::Tier("fast".into()), false, &randomness)
            .unwrap();
    }
    pool.write_root(b"new").unwrap();
    drop(pool);
    shelf.media[1].write_at(ROOTS.0, &roots).unwrap();
    assert_eq!(alone(&shelf).unwrap(), b"old");
    let pool = open(shelf.all()).unwrap();
    assert_eq!(pool.read_root().unwrap().unwrap(), b"new");
    pool.write_root(b"newer").unwrap();
    assert_eq!(alone(&shelf), None);
}

#[test]
fn power_cuts_while_an_old_root_is_erased_leave_the_newest_one() {
    let (shelf, pool) = grown();
    shelf.remember();
    let from = shelf.events();
    pool.write_root(b"new").unwrap();
    let to = shelf.events();
    drop(pool);
    for cut in from..=to {
        for seed in 0..6 {
            let after = shelf.after_power_cut(cut, seed);
            let pool = open(after.all()).unwrap();
            let root = pool.read_root().unwrap().unwrap();
            // Those who held the one before still do, or the new one is there.
            assert!(root == b"old" || root == b"new", "cut {cut}, seed {seed}");
            if cut == to {
                assert_eq!(root, b"new", "seed {seed}");
            }
            pool.settle_roots().unwrap();
            pool.write_root(b"after").unwrap();
            assert_eq!(alone(&after), None, "cut {cut}, seed {seed}");
        }
    }
}
