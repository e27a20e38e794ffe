//! `pool set memory` on an open pool: each share changes at once.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_device::{DeviceSpec, ManualClock};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

#[test]
fn memory_is_shared_out_anew_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let device: DeviceSpec = format!("{}:64M", path.display()).parse().unwrap();
    let opened = device.create().unwrap();
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec![device],
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let options = OpenOptions {
        memory_bytes: None,
        ..OpenOptions::driven(Arc::new(ManualClock::new(1)), 1)
    };
    let engine = Engine::create_on(&spec, vec![vec![opened]], options).unwrap();
    let shares = || {
        let budget = &engine.environment().budget;
        assert_eq!(engine.chunks().memtable_bytes() as u64, budget.store_bytes() / 3);
        (budget.limit_bytes(), budget.dirty_limit_bytes())
    };
    engine.set_property("memory", "1G").unwrap();
    let (limit, dirty) = shares();
    assert_eq!(limit, 1 << 30);
    engine.set_property("memory", "64M").unwrap();
    assert_eq!(shares(), (64 << 20, dirty / 16));
    engine.close().unwrap();
}
