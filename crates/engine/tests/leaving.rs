//! Devices that are to be emptied or shrunk: while the labels cannot be written nothing is half begun; the rate of their tier holds.

#![allow(clippy::unwrap_used)]

use crate::failing_device;

use std::sync::Arc;

use failing_device::FailingDevice;
use terrace_dataset::NewDataset;
use terrace_device::{Clock, Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, EngineError, OpenOptions, PoolSpec, TierSpec};
use terrace_pool::SegmentRange;

const MIB: u64 = 1 << 20;

fn pool() -> (Vec<Arc<FailingDevice>>, Arc<Engine>) {
    pool_on(Arc::new(ManualClock::new(1)))
}

fn pool_on(clock: Arc<ManualClock>) -> (Vec<Arc<FailingDevice>>, Arc<Engine>) {
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
    let options = OpenOptions::driven(clock, 1);
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

#[test]
fn a_device_is_emptied_at_the_rate_of_its_tier() {
    const RATE: u64 = MIB;
    const TICK: u64 = 100_000_000;
    let clock = Arc::new(ManualClock::new(1));
    let (_, engine) = pool_on(clock.clone());
    let new = NewDataset {
        volume_bytes: Some(16 * MIB),
        ..NewDataset::default()
    };
    engine.datasets().create("tank/v", &new).unwrap();
    let volume = engine.datasets().volume("tank/v").unwrap();
    let mut state = 88_172_645_463_325_252u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let content: Vec<u8> = (0..16 * MIB / 8).flat_map(|_| noise()).collect();
    volume.write(0, &content).unwrap();
    engine.tick().unwrap();
    let lies = |number: u16| engine.chunks().load_of(SegmentRange::whole(number)).live_bytes;
    let fuller = u16::from(lies(1) > lies(0));
    let path = ["/first", "/second"][usize::from(fuller)];
    let mut settings = engine.pool().tiers()[0].settings.clone();
    settings.rate_limit = RATE;
    engine.set_tier("disk", settings).unwrap();
    let (before, began) = (lies(fuller), clock.monotonic_nanoseconds());
    assert!(before > 6 * MIB, "{before}");
    let job = engine.evacuate_device(path).unwrap();
    let mut seen = false;
    while engine.is_leaving(job) {
        for _ in 0..50 {
            engine.step().unwrap();
        }
        clock.advance(TICK);
        let time = clock.monotonic_nanoseconds() - began;
        let moved = before - lies(fuller).min(before);
        // What the first step moves before it is known which tiers it touches, a piece, and what a rest saved.
        let allowed = RATE * time / (10 * TICK) + RATE / 4 + (128 << 10);
        assert!(moved <= allowed, "{moved} bytes in {time} ns");
        assert!(time < 200 * 10 * TICK, "{moved} bytes in {time} ns");
        let jobs = engine.mover().jobs();
        let shown = jobs.iter().find(|shown| shown.id == job).unwrap();
        seen |= shown
            .reason
            .ends_with("; at most 1M a second by rate_limit of tier 'disk'");
    }
    assert!(seen, "the job says what holds it");
    assert_eq!(lies(fuller), 0);
    let mut read = vec![0; content.len()];
    volume.read(0, &mut read).unwrap();
    assert!(read == content);
    engine.close().unwrap();
}
