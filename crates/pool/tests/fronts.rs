//! Labels and roots of a pool that is open: what of them was wiped, or cannot be read, is found and written anew.
#![allow(clippy::unwrap_used)]

use crate::media;

use media::{Shelf, create, open, sequential};
use terrace_device::{AlignedBuffer, Device};
use terrace_pool::{OpenOptions, Pool, Presence};

/// Where labels and roots lie in front of a device, and how long they are, bytes.
const FRONT: usize = 768 * 1024;
const LABEL_BYTES: u64 = 64 * 1024;

fn two() -> (Shelf, Pool) {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("disks", shelf.devices(&[0, 1]))]);
    pool.write_root(b"a").unwrap();
    pool.write_root(b"b").unwrap();
    (shelf, pool)
}

/// As somebody does who writes zeroes over a device that is in use.
fn wipe(shelf: &Shelf, device: usize) {
    let memory = &shelf.media[device].memory;
    memory.write_at(0, &AlignedBuffer::zeroed(FRONT)).unwrap();
    let end = memory.size_bytes() - LABEL_BYTES;
    memory
        .write_at(end, &AlignedBuffer::zeroed(LABEL_BYTES as usize))
        .unwrap();
}

fn degraded() -> OpenOptions {
    OpenOptions {
        degraded: true,
        ..sequential()
    }
}

#[test]
fn what_is_as_it_should_be_is_not_written() {
    let (shelf, pool) = two();
    let before = shelf.events();
    assert_eq!(pool.mend_fronts().unwrap(), []);
    assert_eq!(shelf.events(), before);
}

#[test]
fn a_device_whose_labels_and_roots_were_wiped_is_found_again() {
    for device in [0, 1] {
        let (shelf, pool) = two();
        wipe(&shelf, device);
        let damage = pool.mend_fronts().unwrap();
        assert_eq!(damage.len(), 1);
        assert_eq!(usize::from(damage[0].device), device);
        // Three labels, and both copies of the newest root.
        assert_eq!(damage[0].found.len(), 5, "{damage:?}");
        assert_eq!(damage[0].left, [""; 0]);
        assert_eq!(pool.devices()[device].counters.checksum_errors, 5);
        assert_eq!(pool.mend_fronts().unwrap(), []);
        drop(pool);
        let both = open(shelf.all()).unwrap();
        assert_eq!(both.check_copies().0, [""; 0]);
        assert_eq!(both.read_root().unwrap().unwrap(), b"b");
        drop(both);
        let alone = Pool::open(shelf.devices(&[device]), degraded()).unwrap();
        assert_eq!(alone.read_root().unwrap().unwrap(), b"b");
    }
}

#[test]
fn whatever_power_leaves_of_that_the_other_device_opens() {
    let (shelf, pool) = two();
    wipe(&shelf, 1);
    shelf.remember();
    let from = shelf.events();
    pool.mend_fronts().unwrap();
    for cut in from..=shelf.events() {
        for seed in 0..4 {
            let after = shelf.after_power_cut(cut, seed);
            let pool = Pool::open(after.all(), degraded()).unwrap();
            assert_eq!(pool.read_root().unwrap().unwrap(), b"b", "cut {cut}");
        }
    }
}

#[test]
fn each_copy_is_looked_at_and_what_cannot_be_mended_is_told() {
    let offsets = [0, 64, 256, 384, 512, 640].map(|kib: u64| kib << 10);
    for offset in offsets.into_iter().chain([(16 << 20) - LABEL_BYTES]) {
        let (shelf, pool) = two();
        let noise = vec![0x55; 4096];
        shelf.media[0].memory.write_at(offset, &noise).unwrap();
        let damage = pool.mend_fronts().unwrap();
        assert_eq!(damage.len(), 1, "{offset}");
        assert_eq!((damage[0].found.len(), damage[0].left.len()), (1, 0), "{offset}");
        assert_eq!(pool.mend_fronts().unwrap(), [], "{offset}");
    }
    // Unreadable and not written anew either.
    let (shelf, pool) = two();
    *shelf.media[1].unreadable.lock().unwrap() = vec![(512 << 10, u32::MAX)];
    let damage = pool.mend_fronts().unwrap();
    assert_eq!(damage[0].found.len(), 1, "{damage:?}");
    assert_eq!(damage[0].left, damage[0].found);
    assert_eq!(pool.devices()[1].counters.read_errors, 1);
}

#[test]
fn a_device_that_was_away_keeps_what_tells_of_that() {
    let (shelf, pool) = two();
    drop(pool);
    let alone = Pool::open(shelf.devices(&[0]), degraded()).unwrap();
    alone.settle_roots().unwrap();
    alone.write_root(b"c").unwrap();
    drop(alone);
    let both = open(shelf.all()).unwrap();
    both.settle_roots().unwrap();
    assert!(matches!(both.devices()[1].presence, Presence::Absent { .. }));
    let label = |shelf: &Shelf| {
        let mut bytes = vec![0; 3 * LABEL_BYTES as usize];
        shelf.media[1].memory.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let before = label(&shelf);
    shelf.media[0].memory.write_at(0, &[0; 4096]).unwrap();
    assert_eq!(both.mend_fronts().unwrap().len(), 1);
    assert_eq!(label(&shelf), before);
}
