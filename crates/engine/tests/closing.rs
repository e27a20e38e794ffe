//! Closing a pool whose device fails: what could not be saved is never reported as saved.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use terrace_dataset::{Context, FileKind, NewDataset, ROOT};
use terrace_device::{Cause, Device, DeviceError, DeviceSpec, ManualClock, Operation};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

/// A device whose writes fail while it is told so.
struct Failing {
    below: Arc<dyn Device>,
    fails: AtomicBool,
}

impl Device for Failing {
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
        if self.fails.load(SeqCst) {
            return Err(DeviceError::whole(self.path(), Operation::Write, Cause::Gone));
        }
        self.below.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
}

#[test]
fn a_close_that_failed_is_not_a_success_the_second_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let device: DeviceSpec = format!("{}:64M", path.display()).parse().unwrap();
    let failing = Arc::new(Failing {
        below: device.create().unwrap(),
        fails: AtomicBool::new(false),
    });
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec![device],
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let options = OpenOptions::driven(Arc::new(ManualClock::new(1)), 1);
    let engine = Engine::create_on(&spec, vec![vec![failing.clone() as Arc<dyn Device>]], options).unwrap();
    engine
        .datasets()
        .create("tank/data", &NewDataset::default())
        .unwrap();
    let filesystem = engine.datasets().filesystem("tank/data").unwrap();
    filesystem
        .create(&Context::root(), ROOT, b"file", FileKind::File, 0o644, 0)
        .unwrap();
    failing.fails.store(true, SeqCst);
    engine.close().unwrap_err();
    engine.close().unwrap_err();
}
