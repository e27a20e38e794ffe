//! A device that has no root record, since others hold it: alone it opens nothing, and says whose it is.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

#[test]
fn a_device_without_a_root_names_those_that_may_have_it() {
    let devices: Vec<Arc<dyn Device>> = (0..6)
        .map(|number| Arc::new(MemoryDevice::new(format!("/device{number}"), 64 << 20)) as Arc<dyn Device>)
        .collect();
    let names = (0..6).map(|number| format!("/device{number}").parse().unwrap());
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: names.collect(),
            copies: 2,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1));
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![devices.clone()], options).unwrap();
    engine.close().unwrap();
    let degraded = OpenOptions {
        degraded: true,
        ..OpenOptions::driven(clock.clone(), 2)
    };
    let Err(error) = Engine::open(vec![devices[5].clone()], degraded) else {
        panic!("it opened");
    };
    let error = error.to_string();
    let named = [
        "/device0",
        "/device3",
        "terrace start tank",
        "nothing was changed",
    ];
    assert!(named.iter().all(|part| error.contains(part)), "{error}");
    // Nor is anything noted: with the others it opens as before.
    let engine = Engine::open(devices, OpenOptions::driven(clock, 3)).unwrap();
    assert_eq!(engine.status().state, "online");
    engine.close().unwrap();
}
