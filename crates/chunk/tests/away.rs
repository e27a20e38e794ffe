//! A device that comes back after the store was used without it brings a past along that was given up: what lies there is
//! never taken for anything else.
#![allow(clippy::unwrap_used)]

use crate::numbered;

use std::sync::{Arc, Mutex};

use numbered::{copy_of, create, has, open_pool, options, write};
use terrace_chunk::{ChunkStore, EvacuateCursor};
use terrace_device::{Device, DeviceError, MemoryDevice, SeededRandomness};
use terrace_pool::{DeviceAdd, SegmentRange};
use terrace_store::Store;

fn open(devices: &[Arc<MemoryDevice>], nonce: u64) -> Arc<ChunkStore> {
    ChunkStore::open(open_pool(devices), options(nonce)).unwrap()
}

/// A store on a device in each of two tiers.
fn two_tiers(device_bytes: u64) -> (Vec<Arc<MemoryDevice>>, Arc<ChunkStore>) {
    create(&[("fast", &["fast"]), ("slow", &["slow"])], device_bytes)
}

#[test]
fn entries_of_a_past_that_was_given_up_prove_no_damage() {
    let (devices, store) = two_tiers(64 << 20);
    store.catch_up();
    // All of it is on the fast device alone, and goes with it.
    (0..150).for_each(|number| write(&store, number));
    drop(store);
    let store = open(&devices[1..], 2);
    assert!(store.newest().0 < 100, "the slow copy was not behind");
    write(&store, 1000);
    store.checkpoint().unwrap();
    drop(store);
    // It is back, and each of these openings follows a crash.
    for round in 0..150 {
        let store = open(&devices, 3 + round);
        write(&store, 2000 + round);
        if round % 3 == 0 {
            // The log goes on in new segments, also on the one that came back.
            assert!(store.mirror_now().unwrap());
            store.checkpoint().unwrap();
        }
        let kept = (0..round + 1).all(|number| has(&store, 2000 + number));
        assert!(kept, "round {round}");
    }
}

#[test]
fn a_copy_of_the_log_that_was_away_is_completed_before_the_log_goes_on_in_it() {
    let (devices, store) = create(&[("only", &["one", "two"])], 64 << 20);
    write(&store, 1);
    drop(store);
    for away in [0, 1] {
        let number = 10 * (away as u64 + 1);
        let store = open(&devices[1 - away..2 - away], number);
        write(&store, number);
        drop(store);
        // Back, and a crash before anything was brought to it but what an opening brings.
        let store = open(&devices, number + 1);
        write(&store, number + 1);
        drop(store);
    }
    for left in [0, 1] {
        let store = open(&[Arc::new(copy_of(&*devices[left]))], 100);
        for number in [1, 10, 11, 20, 21] {
            assert!(has(&store, number), "{number} is not on device {left} alone");
        }
    }
}

/// Near the end of a segment the log goes on in the next one first, which lies on the missing device, too.
#[test]
fn no_part_of_the_log_goes_on_where_a_missing_device_had_its_copy() {
    for count in (228..=256).step_by(4) {
        let (devices, store) = create(&[("fast", &["one", "two"]), ("slow", &["three"])], SMALL);
        (0..count).for_each(|number| write(&store, number));
        drop(store);
        let store = open(&devices[1..], 2);
        let pool = store.pool().clone();
        let mut cursor = EvacuateCursor::default();
        let mut leaves = || store.evacuate_step(SegmentRange::whole(0), &mut cursor, 1 << 20);
        while !leaves().unwrap().finished {}
        pool.abandon_device(0).unwrap();
        write(&store, count);
        assert!(store.mirror_now().unwrap());
        store.close().unwrap();
        drop((store, pool));
        for left in [1, 2] {
            let store = open(&[Arc::new(copy_of(&*devices[left]))], 3);
            let lost = (0..=count).find(|number| !has(&store, *number));
            assert_eq!(lost, None, "of {count} on device {left} alone");
        }
    }
}

/// A device that remembers what was written to it, in order.
struct Remembering {
    below: MemoryDevice,
    writes: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Device for Remembering {
    fn path(&self) -> String {
        self.below.path()
    }
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.writes.lock().unwrap().push((offset, data.to_vec()));
        self.below.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
}

const SMALL: u64 = 24 << 20;

#[test]
fn one_that_comes_back_after_a_start_without_it_was_cut_short_is_not_called_damaged() {
    let (devices, store) = two_tiers(SMALL);
    (0..20).for_each(|number| write(&store, number));
    store.catch_up();
    // From here on it is on the fast device alone.
    (20..80).for_each(|number| write(&store, number));
    drop(store);
    let slow = Arc::new(Remembering {
        below: copy_of(&*devices[1]),
        writes: Mutex::default(),
    });
    let before = copy_of(&*devices[1]);
    drop(ChunkStore::open(open_pool(std::slice::from_ref(&slow)), options(2)).unwrap());
    let writes = slow.writes.lock().unwrap();
    assert!(writes.len() > 6, "{}", writes.len());
    for cut in 0..=writes.len() {
        let left = copy_of(&before);
        for (offset, data) in &writes[..cut] {
            left.write_at(*offset, data).unwrap();
        }
        let both = [Arc::new(copy_of(&*devices[0])), Arc::new(left)];
        for round in 0..3 {
            let store = ChunkStore::open(open_pool(&both), options(10 * cut as u64 + round + 3))
                .unwrap_or_else(|error| panic!("cut {cut} of {}, round {round}: {error}", writes.len()));
            write(&store, 1000 + round);
            let has = |number| has(&store, number);
            assert!((0..20).all(has), "cut {cut}");
            assert!((1000..1001 + round).all(has), "cut {cut}, round {round}");
        }
    }
}

#[test]
fn without_the_end_of_the_log_nothing_is_noted_and_the_error_says_which_device_is_needed() {
    let mut refused = 0;
    // From well before the end of a segment until behind it: the next one lies on other devices of the three.
    for written in (225..=258).step_by(3).chain(235..=243) {
        let (devices, store) = create(&[("only", &["/a", "/b", "/c"])], SMALL);
        (0..written).for_each(|number| write(&store, number));
        drop(store);
        for alone in &devices {
            let pool = open_pool(std::slice::from_ref(alone));
            let before = pool.generation();
            let Err(error) = ChunkStore::open(pool.clone(), options(2)) else {
                continue;
            };
            refused += 1;
            let error = error.to_string();
            assert_eq!(
                pool.generation(),
                before,
                "{written} on {}: {error}",
                alone.path()
            );
            if error.contains("later entries show") {
                // The segments before the end are those that are not there.
                continue;
            }
            for words in [
                "end of the log of pool 'tank'",
                "(last seen as /",
                "terrace start tank",
            ] {
                assert!(error.contains(words), "{written} on {}: {error}", alone.path());
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn of_two_that_were_away_the_one_that_was_in_use_longer_knows_how_the_log_went_on() {
    let (mut devices, store) = two_tiers(24 << 20);
    let joins = Arc::new(MemoryDevice::new("joins", 24 << 20));
    let place = DeviceAdd::Tier("fast".into());
    let number = store
        .pool()
        .add_device(joins.clone(), place, false, &SeededRandomness::new(8))
        .unwrap();
    devices.push(joins);
    // Only the fast one has it: it goes with that.
    write(&store, 1);
    drop(store);
    // The slow one writes where that was, names segments that the log goes on in, and drops out.
    let store = open(&devices[1..], 2);
    let (slow, as_it_was) = (&devices[1], copy_of(&*devices[1]));
    store.pool().note_lacking(1);
    store.pool().note_failing().unwrap();
    write(&store, 2);
    drop(store);
    let mut content = vec![0; as_it_was.size_bytes() as usize];
    as_it_was.read_at(0, &mut content).unwrap();
    slow.write_at(0, &content).unwrap();
    let store = open(&devices, 3);
    assert_eq!(store.pool().returned(), [1, 0]);
    assert!(store.pool().has_device(number));
    assert!(has(&store, 2), "what was acknowledged last is not there");
    assert!(!has(&store, 1), "what was given up came back");
}
