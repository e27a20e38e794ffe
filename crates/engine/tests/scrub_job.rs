//! A scrub is a job like any other: it can be paused, goes on where it was, and shows no rate meanwhile.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, NewDataset, ROOT};
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: usize = 1 << 20;
const SCRUB: u64 = 1;

#[test]
fn a_scrub_is_paused_resumed_and_cancelled() {
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: Vec::new(),
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("disk", 128 * MIB as u64));
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![vec![device]], options).unwrap();
    let made = NewDataset {
        properties: vec![("compression".into(), "off".into())],
        ..NewDataset::default()
    };
    engine.datasets().create("tank/data", &made).unwrap();
    let filesystem = engine.datasets().filesystem("tank/data").unwrap();
    let root = Context::root();
    let file = filesystem
        .create(&root, ROOT, b"file", FileKind::File, 0o644, 0)
        .unwrap();
    let mut state = 1u64;
    let words = (0..32 * MIB / 8).flat_map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 29)).to_le_bytes()
    });
    let content: Vec<u8> = words.collect();
    filesystem.write(&root, file.object, 0, &content, false).unwrap();
    filesystem.sync().unwrap();
    engine.tick().unwrap();
    let job = || engine.jobs().into_iter().find(|job| job.id == SCRUB).unwrap();
    let some_steps = || {
        clock.advance(1_000_000_000);
        engine.step().unwrap();
    };
    for action in ["pause", "resume", "cancel"] {
        engine.job_action(SCRUB, action).unwrap_err();
    }
    assert!(engine.start_scrub().unwrap());
    while job().done_bytes == 0 {
        some_steps();
    }
    engine.job_action(SCRUB, "pause").unwrap();
    let paused = job();
    assert_eq!(
        (paused.state.as_str(), paused.rate, paused.eta_seconds),
        ("paused", 0.0, None)
    );
    assert!(paused.done_bytes < paused.total_bytes, "{paused:?}");
    assert!(!engine.start_scrub().unwrap(), "one at a time");
    (0..10).for_each(|_| some_steps());
    engine.job_action(SCRUB, "pause").unwrap();
    assert_eq!(job(), paused);
    engine.job_action(SCRUB, "resume").unwrap();
    while job().state == "running" {
        some_steps();
    }
    assert_eq!(job().state, "done");
    assert_eq!(job().done_bytes, job().total_bytes);
    assert!(job().total_bytes >= 32 * MIB as u64);
    assert!(engine.start_scrub().unwrap());
    engine.job_action(SCRUB, "pause").unwrap();
    engine.job_action(SCRUB, "cancel").unwrap();
    assert_eq!(job().state, "cancelled");
    engine.job_action(SCRUB, "resume").unwrap_err();
    engine.close().unwrap();
}
