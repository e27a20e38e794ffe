//! A pool of which the end of the log is gone: refused, unless somebody asks for the last state that can be read. That is whole, is
//! gone on with, and what was given up does not come back with the devices that had it.
#![allow(clippy::unwrap_used)]

use crate::numbered;

use std::sync::Arc;

use numbered::{copy_of, create, numbers, open_pool, options, write};
use terrace_chunk::{ChunkStore, Options};
use terrace_device::MemoryDevice;
use terrace_store::StoreError;

const DEVICE_BYTES: u64 = 17 << 20;

fn open(devices: &[Arc<MemoryDevice>], nonce: u64, rewind: bool) -> Result<Arc<ChunkStore>, StoreError> {
    let options = Options {
        rewind,
        ..options(nonce)
    };
    ChunkStore::open(open_pool(devices), options)
}

/// Three devices of one tier, on two of which each segment of the log lies, with so many batches.
fn three_with(batches: u64) -> Vec<Arc<MemoryDevice>> {
    let (devices, store) = create(&[("only", &["/a", "/b", "/c"])], DEVICE_BYTES);
    (0..batches).for_each(|number| write(&store, number));
    devices
}

#[test]
fn the_last_state_that_can_be_read_is_opened_when_that_is_asked_for_and_the_rest_stays_given_up() {
    let (mut refused, mut lost) = (0, 0);
    for written in [20, 225, 235, 237, 239, 240, 243, 258, 300, 480, 500, 700] {
        let devices = three_with(written);
        for alone in 0..3 {
            let copies: Vec<_> = devices
                .iter()
                .map(|device| Arc::new(copy_of(&**device)))
                .collect();
            let one = &copies[alone..=alone];
            let Err(error) = open(one, 2, false) else { continue };
            refused += 1;
            let said = format!("{written} on {alone}: {error}");
            let store = open(one, 3, true).unwrap_or_else(|error| panic!("{said}; {error}"));
            assert!(store.given_up().is_some(), "{said}");
            let left = numbers(&store).len() as u64;
            assert_eq!(numbers(&store), (0..left).collect::<Vec<_>>(), "{said}");
            assert!(left <= written, "{said}");
            lost += written - left;
            let mut expected: Vec<u64> = (0..left).collect();
            (1000..1005).for_each(|number| write(&store, number));
            expected.extend(1000..1005);
            assert_eq!(numbers(&store), expected, "{said}");
            drop(store);
            // As after a kill; nothing need be given up any more.
            let store = open(one, 4, false).unwrap_or_else(|error| panic!("{said}; again: {error}"));
            assert!(store.given_up().is_none());
            assert_eq!(numbers(&store), expected, "{said}");
            drop(store);
            // With the others: what they alone had is given up, whatever is written from here on.
            for round in 0..40 {
                let store = open(&copies, 10 + round, false)
                    .unwrap_or_else(|error| panic!("{said}; round {round}: {error}"));
                assert_eq!(numbers(&store), expected, "{said}, round {round}");
                (0..20).for_each(|number| write(&store, 2000 + 20 * round + number));
                expected.extend(2000 + 20 * round..2020 + 20 * round);
                if round % 7 == 6 {
                    store.checkpoint().unwrap();
                }
            }
        }
    }
    assert!(refused > 3 && lost > 0, "{refused} refused, {lost} lost");
}

#[test]
fn whoever_asks_although_nothing_is_missing_loses_nothing() {
    let devices = three_with(300);
    let store = open(&devices, 2, true).unwrap();
    assert!(store.given_up().is_none());
    assert_eq!(numbers(&store).len(), 300);
    drop(store);
    // A kill before the root that says where the log goes on is no other case than the one before it.
    let store = open(&devices[..2], 3, true).unwrap();
    assert!(store.given_up().is_none());
    assert_eq!(numbers(&store).len(), 300);
}
