//! Devices that are to be emptied or shrunk while the labels cannot be written: nothing is half begun.

#![allow(clippy::unwrap_used)]

mod failing_device;

use std::sync::Arc;

use failing_device::FailingDevice;
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, EngineError, OpenOptions, PoolSpec, TierSpec};

const MIB: u64 = 1 << 20;

fn pool() -> (Vec<Arc<FailingDevice>>, Arc<Engine>) {
    let device = |name: &str| FailingDevice::new(Arc::new(MemoryDevice::new(name, 96 * MIB)));
    let devices = vec![device("/first"), device("/second")];
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec!["/first".parse().unwrap(), "/second".parse().unwrap()],
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let options = OpenOptions::driven(Arc::new(ManualClock::new(1)), 1);
    let opened = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
    let engine = Engine::create_on(&spec, vec![opened.collect()], options).unwrap();
    (devices, engine)
}

fn drive(engine: &Engine, job: u64) {
    for _ in 0..10_000 {
        if !engine.is_leaving(job) {
            return;
        }
        engine.step().unwrap();
    }
    panic!("it does not come to its end");
}

type Begin = fn(&Engine) -> Result<u64, EngineError>;

#[test]
fn what_cannot_begin_leaves_the_device_in_use() {
    let begins: [Begin; 3] = [
        |engine| engine.evacuate_device("/second"),
        |engine| engine.remove_device("/second"),
        |engine| engine.shrink_device("/second", 40 * MIB),
    ];
    for (number, begin) in begins.into_iter().enumerate() {
        let (devices, engine) = pool();
        let free = engine.pool().free_segments();
        devices.iter().for_each(|device| device.fail());
        begin(&engine).unwrap_err();
        devices.iter().for_each(|device| device.work());
        let second = &engine.pool().devices()[1];
        assert!(!second.draining, "{number}: it takes nothing new");
        assert_eq!(engine.pool().free_segments(), free, "{number}: its end is closed");
        assert_eq!(engine.status().tiers[0].devices[1].leaving, "", "{number}");
        assert!(
            engine.use_device_again("/second", false).is_err(),
            "{number}: there is nothing to undo"
        );
        let job = begin(&engine).unwrap();
        drive(&engine, job);
        let size = devices[1].size_bytes() / MIB;
        let left = engine.pool().devices().len();
        assert_eq!((left, size), [(2, 96), (1, 96), (2, 40)][number]);
        engine.close().unwrap();
    }
}
