//! Devices that drop out, or come back, while power goes at any moment: the newest root is never taken for one of the past, and
//! what each of two sides did without the other is never silently lost.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::sync::Arc;

use media::{Shelf, create, degraded, open, root_of, sequential, settled};
use terrace_device::SeededRandomness;
use terrace_pool::{DeviceAdd, Pool, PoolError, Presence};

/// Four fast devices that have the newest root, and a slow one with an older one.
fn with_an_old_root_on_the_slow_one() -> (Shelf, Pool) {
    let mut shelf = Shelf::new(&[16, 16]);
    let tiers = vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))];
    let pool = create("tank", 1, tiers);
    pool.write_root(b"old").unwrap();
    for number in 0..3 {
        let device = shelf.add(16);
        let randomness = SeededRandomness::new(10 + number);
        pool.add_device(device, DeviceAdd::Tier("fast".into()), false, &randomness)
            .unwrap();
    }
    pool.write_root(b"new").unwrap();
    (shelf, pool)
}

const FAST: [usize; 4] = [0, 2, 3, 4];

#[test]
fn when_all_fast_devices_drop_out_the_slow_one_has_the_newest_root() {
    // They fail to flush, refuse their labels, or lack something and stay in use.
    for way in 0..3 {
        let (shelf, pool) = with_an_old_root_on_the_slow_one();
        shelf.remember();
        let from = shelf.events();
        for number in FAST {
            let medium = &shelf.media[number];
            match way {
                0 => {
                    *medium.failing_flushes.lock().unwrap() = 1;
                    pool.flush(&[number as u16]).unwrap_err();
                }
                1 => {
                    *medium.failing_writes.lock().unwrap() = 2;
                    pool.set_property("a", Some("b")).unwrap();
                }
                _ => pool.note_lacking(number as u16),
            }
        }
        pool.note_failing().unwrap();
        let absent = pool
            .devices()
            .into_iter()
            .filter(|device| device.presence != Presence::Whole);
        assert_eq!(absent.count(), 4, "way {way}");
        for cut in from..=shelf.events() {
            for seed in 0..6 {
                let after = shelf.after_power_cut(cut, seed);
                let pool = settled(after.all(), sequential()).unwrap();
                assert_eq!(root_of(&pool), b"new", "way {way}, cut {cut}, seed {seed}");
            }
        }
        // What is written from here on counts too.
        pool.write_root(b"newer").unwrap();
        drop(pool);
        let pool = settled(shelf.all(), sequential()).unwrap();
        assert_eq!(root_of(&pool), b"newer", "way {way}");
    }
}

#[test]
fn no_device_is_noted_as_absent_while_no_other_takes_the_root() {
    let (shelf, pool) = with_an_old_root_on_the_slow_one();
    FAST.iter().for_each(|number| pool.note_lacking(*number as u16));
    // Its label could be written, but not its root.
    *shelf.media[1].failing_writes.lock().unwrap() = 2;
    pool.note_failing().unwrap_err();
    // A root that only those get which lack something does not count.
    *shelf.media[1].failing_writes.lock().unwrap() = 2;
    pool.write_root(b"on those").unwrap_err();
    drop(pool);
    let pool = open(shelf.all()).unwrap();
    assert!(
        pool.devices()
            .iter()
            .all(|device| device.presence == Presence::Whole)
    );
    assert_ne!(root_of(&pool), b"old");
}

#[test]
fn both_sides_of_a_start_that_was_cut_are_told_apart_when_each_was_used() {
    let shelf = Shelf::new(&[16; 3]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"first").unwrap();
    drop(pool);
    shelf.remember();
    let from = shelf.events();
    drop(settled(shelf.devices(&[0, 1]), degraded()).unwrap());
    let sides: [[&[usize]; 2]; 4] = [[&[0], &[1]], [&[0], &[1, 2]], [&[1], &[0, 2]], [&[2], &[0, 1]]];
    for cut in from..=shelf.events() {
        for seed in 0..6 {
            for [one, other] in sides {
                for order in [[one, other], [other, one]] {
                    let apart = shelf.after_power_cut(cut, seed);
                    for there in order {
                        let pool = settled(apart.devices(there), degraded()).unwrap();
                        pool.write_root(b"acknowledged").unwrap();
                    }
                    for together in [&[0, 1, 2][..], &[one[0], other[0]]] {
                        let error = settled(apart.devices(together), degraded())
                            .map(drop)
                            .unwrap_err();
                        assert!(
                            matches!(&error, PoolError::UsedApart { .. }),
                            "cut {cut}, seed {seed}, {order:?}, {together:?}: {error}"
                        );
                    }
                }
            }
            // One that may have taken the label that was cut, and was not used, was only away.
            for (there, then) in [(0, 1), (1, 0)] {
                let away = shelf.after_power_cut(cut, seed);
                drop(settled(away.devices(&[there]), degraded()).unwrap());
                settled(away.devices(&[there, then, 2]), sequential())
                    .unwrap_or_else(|error| panic!("cut {cut}, seed {seed}, {there}: {error}"));
            }
        }
    }
}

#[test]
fn one_that_comes_back_stands_for_the_others_only_when_it_has_what_they_have() {
    let shelf = Shelf::new(&[16; 2]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"first").unwrap();
    drop(pool);
    let pool = settled(shelf.devices(&[0]), degraded()).unwrap();
    pool.write_root(b"acknowledged").unwrap();
    drop(pool);
    shelf.remember();
    let from = shelf.events();
    drop(settled(shelf.all(), sequential()).unwrap());
    let mut taken = 0;
    for cut in from..=shelf.events() {
        for seed in 0..6 {
            let after = shelf.after_power_cut(cut, seed);
            let pool = settled(after.devices(&[1]), degraded()).unwrap();
            let seen = root_of(&pool);
            pool.write_root(b"alone").unwrap();
            drop(pool);
            match settled(after.all(), sequential()) {
                Ok(pool) => {
                    assert_eq!(root_of(&pool), b"alone", "cut {cut}, seed {seed}");
                    assert_eq!(seen, b"acknowledged", "cut {cut}, seed {seed}: lost");
                    taken += 1;
                }
                Err(error) => assert!(matches!(&error, PoolError::UsedApart { .. }), "{error}"),
            }
        }
    }
    assert!(taken > 0, "it never counts");
}

#[test]
fn a_root_that_only_an_absent_device_took_does_not_count_while_another_fails() {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"old").unwrap();
    pool.note_lacking(1);
    pool.note_failing().unwrap();
    *shelf.media[0].failing_flushes.lock().unwrap() = 1;
    pool.flush(&[0]).unwrap_err();
    // Both fail or lack something: no label can say so.
    pool.note_failing().unwrap();
    *shelf.media[0].failing_writes.lock().unwrap() = 2;
    pool.write_root(b"on one of the past").unwrap_err();
    *shelf.media[0].failing_flushes.lock().unwrap() = 1;
    pool.write_root(b"perhaps not durable").unwrap_err();
    // It works again: the next opening goes by its label and its root.
    pool.write_root(b"new").unwrap();
    drop(pool);
    let pool = settled(shelf.all(), sequential()).unwrap();
    assert_eq!(String::from_utf8(root_of(&pool)).unwrap(), "new");
}

#[test]
fn what_is_noted_of_a_device_while_it_is_taken_back_holds() {
    let shelf = Shelf::new(&[16; 2]);
    let pool = Arc::new(create("tank", 1, vec![("only", shelf.all())]));
    pool.write_root(b"first").unwrap();
    let is_absent = || matches!(pool.devices()[1].presence, Presence::Absent { .. });
    pool.note_lacking(1);
    pool.note_failing().unwrap();
    assert!(is_absent());
    // What it lacked before is there now; while it gets the root it misses something else.
    let other = Arc::downgrade(&pool);
    let happens = move || other.upgrade().unwrap().note_lacking(1);
    *shelf.media[1].before_write.lock().unwrap() = Some(Box::new(happens));
    pool.take_back(&[1]).unwrap();
    assert!(
        shelf.media[1].before_write.lock().unwrap().is_none(),
        "it got none"
    );
    pool.note_failing().unwrap();
    assert!(is_absent());
    // Nothing came in between.
    pool.take_back(&[1]).unwrap();
    pool.note_failing().unwrap();
    assert_eq!(pool.devices()[1].presence, Presence::Behind);
}
