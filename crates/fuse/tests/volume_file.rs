//! `VolumeFile` without a mount: what the kernel's loop device is told.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{AllocateMode, Context, Datasets, Environment, FsError, NewDataset};
use terrace_device::SystemClock;
use terrace_fuse::{Files, VOLUME_OBJECT, VolumeFile};
use terrace_store::MemoryStore;

/// The block layer makes an I/O error of EDQUOT, and filesystems take that for a broken disk.
#[test]
fn at_its_quota_a_volume_is_full_and_not_broken() {
    let store = Arc::new(MemoryStore::new(256 << 20));
    let environment = Environment::new(store, Arc::new(SystemClock::new()));
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    let new = NewDataset {
        volume_bytes: Some(16 << 20),
        sparse: true,
        properties: vec![("quota".into(), "1M".into())],
        ..NewDataset::default()
    };
    datasets.create("pool/disk", &new).unwrap();
    let file = VolumeFile::new(datasets.volume("pool/disk").unwrap());
    let context = Context::root();
    let write = |at: u64| {
        let data: Vec<u8> = (0..64 << 10)
            .map(|byte: u64| (byte * 31 + at / 7) as u8)
            .collect();
        file.write(&context, VOLUME_OBJECT, at, &data)
    };
    let refused = (0..32).map(|number| write(number << 16)).find_map(Result::err);
    assert!(matches!(refused, Some(FsError::NoSpace)), "{refused:?}");
    // What is given back can be used again.
    file.allocate(&context, VOLUME_OBJECT, AllocateMode::Punch, 0, 512 << 10)
        .unwrap();
    file.sync(VOLUME_OBJECT).unwrap();
    write(8 << 20).unwrap();
}
