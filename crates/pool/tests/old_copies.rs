//! Copies of devices that were made while a pool was at rest, and take the place of the device later: they are told by their labels
//! as soon as the pool was opened in between.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::sync::Arc;

use media::{MIB, Shelf, create, sequential};
use terrace_device::{Device, MemoryDevice};
use terrace_pool::{OpenOptions, Pool, PoolError, Presence};

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
