//! Copies of devices that were made while a pool was at rest, and take the place of the device later: they are told by their labels
//! as soon as the pool was opened in between.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::sync::Arc;

use media::{MIB, Shelf, create, sequential};
use terrace_device::{Device, MemoryDevice, SeededRandomness};
use terrace_pool::{DeviceAdd, OpenOptions, Pool, PoolError, Presence};

fn degraded() -> OpenOptions {
    OpenOptions {
        degraded: true,
        ..sequential()
    }
}

/// Opened as the floors above do.
fn settled(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Pool, PoolError> {
    let pool = Pool::open(devices, options)?;
    pool.read_root()?;
    pool.settle_roots()?;
    pool.take_back(&pool.returned())?;
    Ok(pool)
}

fn two() -> Shelf {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("disks", shelf.devices(&[0, 1]))]);
    pool.write_root(b"old").unwrap();
    shelf
}

fn copy_of(shelf: &Shelf, device: usize) -> Arc<dyn Device> {
    let mut bytes = vec![0; 16 * MIB as usize];
    shelf.media[device].memory.read_at(0, &mut bytes).unwrap();
    let copy = MemoryDevice::new("/copy", 16 * MIB);
    copy.write_at(0, &bytes).unwrap();
    Arc::new(copy)
}

#[test]
fn an_old_copy_is_refused_and_the_device_itself_is_not() {
    let shelf = two();
    let copy = copy_of(&shelf, 1);
    let first = || shelf.devices(&[0]);
    settled(shelf.all(), sequential())
        .unwrap()
        .write_root(b"new")
        .unwrap();
    let with_copy = || [first(), vec![copy.clone()]].concat();
    let error = settled(with_copy(), sequential()).map(drop).unwrap_err();
    assert!(matches!(&error, PoolError::StaleDevice { .. }), "{error}");
    assert!(error.to_string().contains("old copy"), "{error}");
    // The device itself is as good as before.
    let pool = settled(shelf.all(), sequential()).unwrap();
    assert_eq!(pool.read_root().unwrap().unwrap(), b"new");
    drop(pool);
    // Beside the device itself it is one too many.
    let both = || [shelf.all(), vec![copy.clone()]].concat();
    let error = settled(both(), sequential()).map(drop).unwrap_err();
    assert!(matches!(&error, PoolError::StaleDevice { .. }), "{error}");
    let pool = settled(both(), degraded()).unwrap();
    assert_eq!(pool.devices()[1].path, shelf.media[1].path());
    assert_eq!(pool.outdated(), []);
}

#[test]
fn an_old_copy_is_taken_as_one_that_was_away_by_who_insists() {
    let shelf = two();
    let copy = copy_of(&shelf, 1);
    let pool = settled(shelf.all(), sequential()).unwrap();
    pool.write_root(b"new").unwrap();
    drop(pool);
    let with_copy = || [shelf.devices(&[0]), vec![copy.clone()]].concat();
    // Until its log is whole it is one that was away, and nothing is said of it in its own label.
    let pool = Pool::open(with_copy(), degraded()).unwrap();
    pool.settle_roots().unwrap();
    assert!(matches!(pool.devices()[1].presence, Presence::Absent { .. }));
    drop(pool);
    let pool = Pool::open(with_copy(), sequential()).unwrap();
    assert_eq!((pool.returned(), pool.outdated()), (vec![1], vec![]));
    drop(pool);
    let pool = settled(with_copy(), degraded()).unwrap();
    assert_eq!(pool.devices()[1].presence, Presence::Behind);
    assert_eq!(pool.read_root().unwrap().unwrap(), b"new");
    pool.note_whole(1).unwrap();
    drop(pool);
    let pool = settled(with_copy(), sequential()).unwrap();
    assert!(pool.returned().is_empty());
    assert_eq!(pool.read_root().unwrap().unwrap(), b"new");
}

#[test]
fn whatever_a_power_cut_leaves_of_an_opening_the_devices_are_one_pool() {
    let shelf = two();
    shelf.remember();
    let from = shelf.events();
    settled(shelf.all(), sequential()).unwrap();
    let to = shelf.events();
    assert!(to > from, "an opening writes nothing");
    for cut in from..=to {
        for seed in 0..6 {
            for alone in [0, 1] {
                // Used without the other one, and then both.
                let after = shelf.after_power_cut(cut, seed);
                settled(after.devices(&[alone]), degraded()).unwrap();
                settled(after.all(), sequential()).unwrap();
                settled(after.all(), sequential()).unwrap();
            }
            settled(shelf.after_power_cut(cut, seed).all(), sequential()).unwrap();
        }
    }
}

/// Of devices with the same label, one that lacks a root which the others have behind them.
#[test]
fn an_old_copy_with_the_same_label_is_told_by_its_root() {
    let shelf = two();
    let pool = settled(shelf.all(), sequential()).unwrap();
    pool.write_root(b"copied").unwrap();
    let copy = copy_of(&shelf, 1);
    let with_copy = || [shelf.devices(&[0]), vec![copy.clone()]].concat();
    // The one that came next may have been cut off on the way.
    pool.write_root(b"new").unwrap();
    let opened = Pool::open(with_copy(), sequential()).unwrap();
    assert_eq!((opened.returned(), opened.outdated()), (vec![], vec![]));
    drop(opened);
    pool.repeat_last_root().unwrap();
    drop(pool);
    // The device itself is as good as before.
    let opened = Pool::open(shelf.all(), sequential()).unwrap();
    assert_eq!(opened.outdated(), []);
    drop(opened);
    let opened = Pool::open(with_copy(), sequential()).unwrap();
    assert_eq!((opened.returned(), opened.outdated()), (vec![1], vec![1]));
    assert_eq!(opened.outdated_by_label(), []);
    opened.settle_roots().unwrap();
    assert!(matches!(opened.devices()[1].presence, Presence::Absent { .. }));
    drop(opened);
    let opened = settled(with_copy(), sequential()).unwrap();
    assert_eq!(opened.devices()[1].presence, Presence::Behind);
    assert_eq!(opened.read_root().unwrap().unwrap(), b"new");
    // With label and root it is told no more.
    opened.note_whole(1).unwrap();
    drop(opened);
    let opened = Pool::open(with_copy(), sequential()).unwrap();
    assert_eq!((opened.returned(), opened.outdated()), (vec![], vec![]));
}

/// Of five devices four hold roots; what the others have of them, or lack, tells nothing.
#[test]
fn whatever_a_power_cut_leaves_of_roots_no_device_is_taken_for_an_old_copy() {
    let mut shelf = Shelf::new(&[16, 16, 16, 16]);
    let tiers = vec![("fast", shelf.devices(&[0, 1])), ("slow", shelf.devices(&[2, 3]))];
    let pool = create("tank", 1, tiers);
    (0..3).for_each(|number| pool.write_root(&[number]).unwrap());
    shelf.remember();
    let from = shelf.events();
    for number in 3..5 {
        let added = shelf.add(16);
        let randomness = SeededRandomness::new(u64::from(number));
        pool.add_device(added, DeviceAdd::Tier("fast".into()), false, &randomness)
            .unwrap();
        pool.write_root(&[number]).unwrap();
    }
    pool.remove_device(0).unwrap();
    (5..8).for_each(|number| pool.write_root(&[number]).unwrap());
    let to = shelf.events();
    drop(pool);
    let mut opened = 0;
    for cut in from..=to {
        for seed in 0..4 {
            let after = shelf.after_power_cut(cut, seed);
            let Ok(pool) = Pool::open(after.all(), degraded()) else {
                continue;
            };
            assert_eq!(pool.outdated(), [], "cut {cut}, seed {seed}");
            pool.settle_roots().unwrap();
            drop(pool);
            let pool = Pool::open(after.all(), degraded()).unwrap();
            assert_eq!(pool.outdated(), [], "cut {cut}, seed {seed}, again");
            opened += 1;
        }
    }
    assert!(opened > 100, "only {opened} opened");
}

/// One that refused a root once gets the next one before the others lose theirs.
#[test]
fn a_device_that_refused_a_root_once_is_not_taken_for_an_old_copy() {
    let shelf = two();
    let pool = settled(shelf.all(), sequential()).unwrap();
    (0..3).for_each(|number| pool.write_root(&[number]).unwrap());
    shelf.remember();
    let from = shelf.events();
    for refusing in [1, 0] {
        *shelf.media[refusing].failing_writes.lock().unwrap() = 2;
        pool.write_root(b"refused").unwrap_err();
        pool.write_root(b"taken").unwrap();
    }
    let to = shelf.events();
    drop(pool);
    for cut in from..=to {
        for seed in 0..6 {
            let after = shelf.after_power_cut(cut, seed);
            let pool = Pool::open(after.all(), sequential()).unwrap();
            assert_eq!(pool.outdated(), [], "cut {cut}, seed {seed}");
        }
    }
}
