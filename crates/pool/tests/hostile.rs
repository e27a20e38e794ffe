//! Whatever bytes a device bears, a pool opens from it or refuses with an error; it never panics.
#![allow(clippy::unwrap_used)]

use crate::media;

use media::{MIB, Shelf, create, open};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use terrace_device::Device;
use terrace_pool::{LABEL_BYTES, OpenOptions, Pool, PoolError};

/// Where labels and root slots begin, bytes, on a device of 16 MiB.
const PLACES: [u64; 7] = [
    0,
    64 * 1024,
    16 * MIB - 64 * 1024,
    256 * 1024,
    384 * 1024,
    512 * 1024,
    640 * 1024,
];

fn options() -> OpenOptions {
    OpenOptions {
        degraded: true,
        exported: true,
        destroyed: true,
        accept_stale: true,
        ..media::sequential()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(21), ..ProptestConfig::with_cases(150) })]

    #[test]
    fn damage_anywhere_is_survived_or_named(
        damage in proptest::collection::vec((0usize..7, 0u64..70_000, any::<u8>()), 1..8),
    ) {
        let shelf = Shelf::new(&[16, 16]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        pool.write_root(b"one").unwrap();
        pool.write_root(b"two").unwrap();
        drop(pool);
        for (place, offset, value) in damage {
            let at = (PLACES[place] + offset) / 4096 * 4096;
            let Some(at) = Some(at).filter(|at| *at < 16 * MIB) else { continue };
            let memory = &shelf.media[0].memory;
            let mut block = vec![0; 4096];
            memory.read_at(at, &mut block).unwrap();
            block[(offset % 4096) as usize] = value;
            memory.write_at(at, &block).unwrap();
        }
        // One device is whole: the newest root is always there.
        match Pool::open(shelf.all(), options()) {
            Ok(pool) => prop_assert_eq!(pool.read_root().unwrap().unwrap(), b"two"),
            Err(PoolError::NoLabel { path, .. }) => prop_assert_eq!(path, "/medium/0"),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn forged_labels_open_or_are_refused(
        changes in proptest::collection::vec((16usize..400, any::<u8>()), 1..5),
        root in any::<bool>(),
    ) {
        let shelf = Shelf::new(&[16]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        pool.write_root(b"one").unwrap();
        drop(pool);
        let memory = &shelf.media[0].memory;
        let mut label = vec![0; LABEL_BYTES];
        memory.read_at(0, &mut label).unwrap();
        for (position, value) in &changes {
            label[*position] = *value;
        }
        let sum = blake3::hash(&label[..LABEL_BYTES - 32]);
        label[LABEL_BYTES - 32..].copy_from_slice(sum.as_bytes());
        for place in &PLACES[..3] {
            memory.write_at(*place, &label).unwrap();
        }
        if root {
            let mut slot = vec![0; 4096];
            memory.read_at(PLACES[3], &mut slot).unwrap();
            for (position, value) in &changes {
                slot[*position % 72] = *value;
            }
            memory.write_at(PLACES[3], &slot).unwrap();
        }
        if let Ok(pool) = Pool::open(shelf.all(), options()) {
            let _ = pool.read_root();
            let _ = pool.set_property("a", Some("b"));
            let _ = pool.write_root(b"two");
            prop_assert!(pool.total_segments() < 1 << 20);
        }
    }
}

#[test]
fn devices_of_any_small_size_are_refused_with_an_error() {
    for blocks in [0u64, 1, 16, 31, 32, 64, 200] {
        let memory = terrace_device::MemoryDevice::new("small", blocks * 4096);
        let error = open(vec![std::sync::Arc::new(memory)]).unwrap_err();
        assert!(matches!(error, PoolError::NoLabel { .. }), "{blocks}: {error}");
    }
}
