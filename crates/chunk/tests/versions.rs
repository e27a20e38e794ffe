//! Format versions: a pool keeps its own until it is upgraded; one that is too old or too new is refused by name.
#![allow(clippy::unwrap_used)]

use crate::fixture;

use std::sync::Arc;

use fixture::{FaultDevice, Power, audit, make_pool, open_pool, options, small};
use terrace_chunk::{ChunkStore, FORMAT_NEWEST, FORMAT_OLDEST, Options};
use terrace_device::{AlignedBuffer, Device};
use terrace_store::{Store, StoreError};

/// Where the payloads of the two root slots of a device start, bytes; the first byte is the version.
const ROOTS: [u64; 2] = [(256 << 10) + 4096, (384 << 10) + 4096];

/// What both slots say.
fn versions_on(device: &FaultDevice) -> [u8; 2] {
    ROOTS.map(|root| {
        let mut payload = AlignedBuffer::zeroed(4096);
        device.read_at(root, &mut payload).unwrap();
        payload[0]
    })
}

fn open(device: &Arc<FaultDevice>) -> Arc<ChunkStore> {
    ChunkStore::open(open_pool(std::slice::from_ref(device)), options(2)).unwrap()
}

#[test]
fn a_pool_keeps_its_version_until_it_is_upgraded() {
    let device = FaultDevice::new("d0", 80 << 20, Power::new());
    let pool = make_pool(&[("only", 1, vec![device.clone()])]);
    let oldest = Options {
        format_version: FORMAT_OLDEST,
        ..options(1)
    };
    let store = ChunkStore::create(pool, oldest).unwrap();
    store.close().unwrap();
    drop(store);

    let store = open(&device);
    store.checkpoint().unwrap();
    assert_eq!(store.format_version(), FORMAT_OLDEST);
    assert!(!store.has_preallocation());
    assert_eq!(versions_on(&device), [FORMAT_OLDEST; 2]);

    store.upgrade_format().unwrap();
    assert_eq!(store.format_version(), FORMAT_NEWEST);
    assert!(store.has_preallocation());
    // Should the newest root go bad, what an older program finds is not of its version either.
    assert_eq!(versions_on(&device), [FORMAT_NEWEST; 2]);
    drop(store);

    let store = open(&device);
    assert_eq!(store.format_version(), FORMAT_NEWEST);
    audit(&store);
}

#[test]
fn a_pool_of_an_unknown_version_is_refused_by_its_version_and_not_called_damaged() {
    let (known, oldest) = (u32::from(FORMAT_NEWEST), u32::from(FORMAT_OLDEST));
    for version in [1, oldest - 1, known + 1, 255] {
        let wanted = match version > known {
            true => StoreError::Newer { version, known },
            false => StoreError::Older { version, oldest },
        };
        let (device, _, store) = small(80);
        store.close().unwrap();
        let mut root = store.pool().read_root().unwrap().unwrap();
        root[0] = version as u8;
        store.pool().write_root(&root).unwrap();
        drop(store);
        let pool = open_pool(std::slice::from_ref(&device));
        let error = ChunkStore::open(pool, options(2)).err().unwrap();
        assert_eq!(error.to_string(), wanted.to_string());
        assert!(!error.to_string().contains("damaged"), "{error}");
    }
}
