//! Closing a pool whose device fails: what could not be saved is never reported as saved.

#![allow(clippy::unwrap_used)]

use crate::failing_device;

use std::sync::Arc;

use failing_device::FailingDevice;
use terrace_dataset::{Context, FileKind, NewDataset, ROOT};
use terrace_device::{Device, DeviceSpec, ManualClock};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

#[test]
fn a_close_that_failed_is_not_a_success_the_second_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let device: DeviceSpec = format!("{}:64M", path.display()).parse().unwrap();
    let failing = FailingDevice::new(device.create().unwrap());
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
    failing.fail();
    engine.close().unwrap_err();
    engine.close().unwrap_err();
}
