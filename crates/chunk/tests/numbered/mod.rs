//! Stores on plain devices in RAM, with batches that each write their number and are flushed: what of the log is there is
//! told by the numbers that are found.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use terrace_chunk::{ChunkStore, Options};
use terrace_device::{AlignedBuffer, Device, MemoryDevice, SeededRandomness};
use terrace_pool::{CreateOptions, OpenOptions, Parallelism, Pool, TierSettings};
use terrace_store::{Batch, Store};

pub fn options(nonce: u64) -> Options {
    Options {
        threads: 0,
        nonce,
        ..Options::default()
    }
}

/// A new store, on devices of these names in each tier.
pub fn create(tiers: &[(&str, &[&str])], device_bytes: u64) -> (Vec<Arc<MemoryDevice>>, Arc<ChunkStore>) {
    let mut devices = Vec::new();
    let tiers = tiers.iter().map(|(tier, names)| {
        let of_tier = names
            .iter()
            .map(|name| Arc::new(MemoryDevice::new(*name, device_bytes)));
        let of_tier: Vec<Arc<MemoryDevice>> = of_tier.collect();
        devices.extend(of_tier.iter().cloned());
        let of_tier = of_tier.into_iter().map(|device| device as Arc<dyn Device>);
        (TierSettings::named(*tier), of_tier.collect())
    });
    let create = CreateOptions {
        name: "tank".into(),
        tiers: tiers.collect(),
        properties: BTreeMap::new(),
        segment_bytes: Some(1 << 20),
        created_nanoseconds: 0,
        force: false,
        parallelism: Parallelism::Sequential,
    };
    let pool = Pool::create(create, &SeededRandomness::new(7)).unwrap();
    let store = ChunkStore::create(Arc::new(pool), options(1)).unwrap();
    (devices, store)
}

/// The pool of these devices, some of which may be missing.
pub fn open_pool<D: Device + 'static>(devices: &[Arc<D>]) -> Arc<Pool> {
    let devices = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
    let degraded = OpenOptions {
        degraded: true,
        parallelism: Parallelism::Sequential,
        ..OpenOptions::default()
    };
    Arc::new(Pool::open(devices.collect(), degraded).unwrap())
}

/// A device of the same name with the same content.
pub fn copy_of(device: &dyn Device) -> MemoryDevice {
    let copy = MemoryDevice::new(device.path(), device.size_bytes());
    let mut piece = AlignedBuffer::zeroed(1 << 20);
    for offset in (0..device.size_bytes()).step_by(1 << 20) {
        let length = (device.size_bytes() - offset).min(1 << 20) as usize;
        device.read_at(offset, &mut piece[..length]).unwrap();
        copy.write_at(offset, &piece[..length]).unwrap();
    }
    copy
}

fn key(number: u64) -> Vec<u8> {
    [&[0x20][..], &number.to_be_bytes()].concat()
}

/// One batch, flushed.
pub fn write(store: &ChunkStore, number: u64) {
    let mut batch = Batch::new();
    batch.put(key(number), vec![1; 300]);
    let sequence = store.commit(batch).unwrap();
    store.flush(sequence).unwrap();
}

/// Whether the store has this batch.
pub fn has(store: &ChunkStore, number: u64) -> bool {
    store.get(&key(number)).unwrap().is_some()
}

/// What the store has, ascending.
pub fn numbers(store: &ChunkStore) -> Vec<u64> {
    let found = store.scan(&[0x20], &[0x21], 10_000).unwrap();
    let number = |key: &[u8]| u64::from_be_bytes(key[1..].try_into().unwrap());
    found.iter().map(|(key, _)| number(key)).collect()
}
