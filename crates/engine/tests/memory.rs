//! `pool set memory` on an open pool: each share changes at once.

#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::Arc};

use terrace_device::{DeviceSpec, ManualClock};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

fn engine_in(directory: &Path) -> Arc<Engine> {
    engine_on(directory, Arc::new(ManualClock::new(1)))
}

fn engine_on(directory: &Path, clock: Arc<ManualClock>) -> Arc<Engine> {
    let path = directory.join("device");
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
        ..OpenOptions::driven(clock, 1)
    };
    Engine::create_on(&spec, vec![vec![opened]], options).unwrap()
}

#[test]
fn memory_is_shared_out_anew_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine_in(directory.path());
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

#[test]
fn memory_that_nobody_uses_is_lent_to_readers_by_and_by() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(1));
    let engine = engine_on(directory.path(), clock.clone());
    engine.set_property("memory", "256M").unwrap();
    let for_readers = || engine.environment().budget.read_cache_bytes();
    assert_eq!(for_readers(), 64 << 20);
    for _ in 0..8 {
        clock.advance(1_000_000_000);
        while engine.step().unwrap() {}
    }
    assert!(for_readers() > 160 << 20, "{}", for_readers());
    engine.set_property("memory", "128M").unwrap();
    assert_eq!(for_readers(), 32 << 20);
    engine.close().unwrap();
}

/// What the process holds, bytes.
#[cfg(target_env = "gnu")]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kibibytes = line.split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() << 10
}

#[test]
#[cfg(target_env = "gnu")]
fn what_caches_no_longer_hold_goes_back_to_the_kernel() {
    use bytes::Bytes;
    use terrace_store::ChunkId;

    let directory = tempfile::tempdir().unwrap();
    let engine = engine_in(directory.path());
    engine.set_property("memory", "1G").unwrap();
    // What is used between them stays where it is, and keeps the allocator from giving back an end.
    let mut beside = Vec::new();
    for id in 1..=16_384 {
        engine
            .environment()
            .cache
            .insert(ChunkId(id), Bytes::from(vec![1; 12 << 10]));
        beside.push(vec![1_u8; 64]);
    }
    let full = resident_bytes();
    engine.set_property("memory", "32M").unwrap();
    let left = resident_bytes();
    assert!(left + (128 << 20) < full, "{full} before, {left} after");
    drop(beside);
    engine.close().unwrap();
}
