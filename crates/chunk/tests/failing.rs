//! Devices that fail while the store is in use: what is acknowledged from then on is found without them, and with one more of the
//! others missing where there is a second copy; where that cannot be known the opening is refused.
#![allow(clippy::unwrap_used)]

use crate::{fixture, numbered};

use std::sync::Arc;

use fixture::{FaultDevice, Power, make_pool, options};
use numbered::{has, numbers, write};
use terrace_chunk::ChunkStore;
use terrace_device::Device;
use terrace_pool::{DeviceState, OpenOptions, Parallelism, Pool, SegmentId};
use terrace_store::StoreError;

/// A store on so many devices in each tier, with forty batches.
fn store_of(tiers: &[(&'static str, usize)]) -> (Vec<Arc<FaultDevice>>, Arc<ChunkStore>) {
    let power = Power::new();
    let of_tier = |(name, count): &(&'static str, usize)| {
        let devices = (0..*count).map(|n| FaultDevice::new(&format!("/{name}{n}"), 64 << 20, power.clone()));
        (*name, 1, devices.collect::<Vec<_>>())
    };
    let groups: Vec<_> = tiers.iter().map(of_tier).collect();
    let devices = groups
        .iter()
        .flat_map(|(_, _, devices)| devices.clone())
        .collect();
    let store = ChunkStore::create(make_pool(&groups), options(1)).unwrap();
    (0..40).for_each(|number| write(&store, number));
    (devices, store)
}

/// Opens the store with all but one of its devices, as they are now; afterwards these are as before.
fn open_without(devices: &[Arc<FaultDevice>], missing: usize) -> Result<Arc<ChunkStore>, StoreError> {
    let left = devices
        .iter()
        .enumerate()
        .filter(|(number, _)| *number != missing);
    let left = left.map(|(_, device)| Arc::new(numbered::copy_of(&**device)) as Arc<dyn Device>);
    let degraded = OpenOptions {
        degraded: true,
        parallelism: Parallelism::Sequential,
        ..OpenOptions::default()
    };
    let pool = Pool::open(left.collect(), degraded).unwrap();
    ChunkStore::open(Arc::new(pool), options(2))
}

/// A device cannot be read for a while, often enough to count as failing.
fn cannot_be_read(devices: &[Arc<FaultDevice>], store: &ChunkStore, number: u16) {
    let device = &devices[usize::from(number)];
    device.fail(false, false, true);
    let start = SegmentId {
        device: number,
        index: 0,
    };
    while store.pool().devices()[usize::from(number)].state != DeviceState::Failing {
        store.pool().read(start, 0, &mut [0; 4096]).unwrap_err();
    }
    device.fail(false, false, false);
}

/// A device misses an entry of the log, and works again.
fn misses_one(devices: &[Arc<FaultDevice>], store: &ChunkStore, device: usize, number: u64) {
    devices[device].fail(true, false, false);
    write(store, number);
    devices[device].fail(false, false, false);
    assert_eq!(store.pool().devices()[device].state, DeviceState::Online);
}

#[test]
fn what_comes_after_a_device_failed_needs_neither_that_nor_one_more() {
    for tiers in [&[("fast", 1), ("slow", 2)][..], &[("only", 3)]] {
        for by_checkpoint in [true, false] {
            let (devices, store) = store_of(tiers);
            cannot_be_read(&devices, &store, 0);
            write(&store, 40);
            match by_checkpoint {
                true => store.checkpoint().unwrap(),
                false => store.note_failing().unwrap(),
            }
            (41..60).for_each(|number| write(&store, number));
            drop(store);
            for missing in 0..3 {
                let store = open_without(&devices, missing)
                    .unwrap_or_else(|error| panic!("{tiers:?}, without {missing}: {error}"));
                assert_eq!(numbers(&store), (0..60).collect::<Vec<_>>(), "without {missing}");
            }
        }
    }
}

#[test]
fn beside_a_fast_device_that_fails_the_slow_one_is_waited_for() {
    let (devices, store) = store_of(&[("fast", 1), ("slow", 1)]);
    assert!(store.behind_bytes() > 0);
    cannot_be_read(&devices, &store, 0);
    write(&store, 40);
    assert_eq!(store.behind_bytes(), 0);
    store.note_failing().unwrap();
    (41..60).for_each(|number| write(&store, number));
    drop(store);
    let store = open_without(&devices, 0).unwrap();
    assert_eq!(numbers(&store), (0..60).collect::<Vec<_>>());
}

/// Each of them is taken for one that was away later: nobody would ask for what one of them alone has.
#[test]
fn what_comes_after_two_devices_failed_is_on_the_third() {
    for first in 0..3 {
        for second in (0..3).filter(|second| *second != first) {
            let (devices, store) = store_of(&[("only", 3)]);
            misses_one(&devices, &store, first, 40);
            store.note_failing().unwrap();
            cannot_be_read(&devices, &store, second as u16);
            store.note_failing().unwrap();
            write(&store, 41);
            drop(store);
            for missing in [first, second] {
                let said = format!("{first} and {second} failed, without {missing}");
                match open_without(&devices, missing) {
                    Ok(store) => assert!(has(&store, 40) && has(&store, 41), "{said}"),
                    Err(error) => assert!(missing == second, "{said}: {error}"),
                }
            }
        }
    }
}

/// What the labels say tells who was in use longer, also where the log could not leave them in time.
#[test]
fn of_two_that_failed_the_one_that_was_in_use_longer_is_asked_for() {
    let (mut refused, mut opened) = (0, 0);
    for first in 0..3 {
        for second in (0..3).filter(|second| *second != first) {
            let (devices, store) = store_of(&[("only", 3)]);
            misses_one(&devices, &store, first, 40);
            store.pool().note_failing().unwrap();
            cannot_be_read(&devices, &store, second as u16);
            store.pool().note_failing().unwrap();
            write(&store, 41);
            drop(store);
            let said = format!("{first} and {second} failed");
            let store = open_without(&devices, first).unwrap();
            assert!(has(&store, 40) && has(&store, 41), "{said}");
            match open_without(&devices, second) {
                Ok(store) => {
                    assert!(has(&store, 40) && has(&store, 41), "{said}");
                    opened += 1;
                }
                Err(error) => {
                    let error = error.to_string();
                    let words = [
                        format!("may lie only on device {second} (last seen as /only{second})"),
                        format!("device {first} (/only{first}), which has a copy of it, dropped out"),
                    ];
                    assert!(words.iter().all(|words| error.contains(words)), "{said}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 0 && opened > 0, "{refused} refused, {opened} opened");
}

/// With a third device there is a second copy at once; with two there is one when the other is back.
#[test]
fn no_root_counts_on_a_copy_of_a_table_that_a_failed_flush_lost() {
    for (count, failing) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
        for writes_fail in [false, true] {
            let (devices, store) = store_of(&[("only", count)]);
            store.checkpoint().unwrap();
            (40..60).for_each(|number| write(&store, number));
            devices[failing].fail(writes_fail, true, false);
            store.checkpoint().unwrap();
            let said = format!("device {failing} of {count} failed, writes: {writes_fail}");
            assert_eq!(store.is_mirrored(), count == 3, "{said}");
            drop(store);
            devices.iter().for_each(|device| {
                device.fail(false, false, false);
                device.lose_unflushed();
            });
            let store = ChunkStore::open(fixture::open_pool(&devices), options(3)).unwrap();
            assert_eq!(store.verify_tables(), Vec::<String>::new(), "{said}");
            assert!(store.mirror_now().unwrap(), "{said}");
            assert_eq!(store.verify_tables(), Vec::<String>::new(), "{said}");
            drop(store);
            for missing in 0..count {
                let store = open_without(&devices, missing).unwrap();
                assert_eq!(
                    numbers(&store),
                    (0..60).collect::<Vec<_>>(),
                    "{said}, without {missing}"
                );
            }
        }
    }
}
