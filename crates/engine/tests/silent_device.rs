//! A device that does not answer for `device_timeout`: its content is read from the other copies, writes and flushes go on without it,
//! `status` tells it without asking any device, and it is used again once it answers.

#![allow(clippy::unwrap_used)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use terrace_dataset::NewDataset;
use terrace_device::{Device, DeviceError, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: u64 = 1 << 20;
const CONTENT_MIB: u64 = 12;

#[derive(Default)]
struct Hold {
    is_held: bool,
    waiting: usize,
}

/// Holds reads back until it is told otherwise.
struct Hanging {
    below: MemoryDevice,
    hold: Mutex<Hold>,
    changed: Condvar,
}

impl Hanging {
    fn hang(&self, is_held: bool) {
        self.hold.lock().is_held = is_held;
        self.changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.hold.lock().waiting
    }
}

impl Device for Hanging {
    fn path(&self) -> String {
        self.below.path()
    }
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let mut hold = self.hold.lock();
        hold.waiting += 1;
        while hold.is_held {
            self.changed.wait(&mut hold);
        }
        hold.waiting -= 1;
        drop(hold);
        self.below.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
}

/// Content that neither compresses nor repeats.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..MIB / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

fn read_all(engine: &Engine) {
    let volume = engine.datasets().volume("tank/v").unwrap();
    let mut found = vec![0; MIB as usize];
    for at in 0..CONTENT_MIB {
        volume.read(at * MIB, &mut found).unwrap();
        assert!(found == noise(at), "MiB {at}");
    }
}

fn state(engine: &Engine, device: usize) -> (String, Option<String>) {
    let device = engine.status().tiers[0].devices[device].clone();
    (device.state, device.silent_since)
}

#[test]
fn what_a_device_that_does_not_answer_has_is_read_from_the_other_copies() {
    let names = ["/d0", "/d1", "/d2"];
    let devices = names.map(|name| {
        Arc::new(Hanging {
            below: MemoryDevice::new(name, 64 * MIB),
            hold: Mutex::default(),
            changed: Condvar::new(),
        })
    });
    let given = || {
        devices
            .iter()
            .map(|device| device.clone() as Arc<dyn Device>)
            .collect()
    };
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: names.iter().map(|name| name.parse().unwrap()).collect(),
            copies: 2,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let engine = Engine::create_on(&spec, vec![given()], OpenOptions::driven(clock.clone(), 1)).unwrap();
    let new = NewDataset {
        volume_bytes: Some(CONTENT_MIB * MIB),
        ..NewDataset::default()
    };
    engine.datasets().create("tank/v", &new).unwrap();
    let volume = engine.datasets().volume("tank/v").unwrap();
    for at in 0..CONTENT_MIB {
        volume.write(at * MIB, &noise(at)).unwrap();
    }
    volume.flush().unwrap();
    engine.set_property("device_timeout", "10s").unwrap();
    engine.close().unwrap();
    drop((volume, engine));
    // With nothing in memory.
    let engine = Engine::open(given(), OpenOptions::driven(clock.clone(), 2)).unwrap();
    assert_eq!(engine.property("device_timeout").unwrap(), "10s");
    let seconds = |count: u64| {
        for _ in 0..count {
            clock.advance(1_000_000_000);
            engine.watch_devices();
        }
    };
    devices[1].hang(true);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&engine));
        let deadline = Instant::now() + Duration::from_secs(60);
        while devices[1].waiting() == 0 {
            assert!(Instant::now() < deadline, "nobody reads there");
            std::thread::yield_now();
        }
        seconds(9);
        assert_eq!(state(&engine, 1), ("online".into(), None));
        seconds(5);
        let (said, since) = state(&engine, 1);
        assert_eq!(said, "not answering");
        assert!(since.is_some());
        // New readers find the other copies, and writers other devices.
        read_all(&engine);
        let status = engine.status();
        assert_eq!(status.state, "degraded");
        assert!(
            status.state_detail.contains("'/d1' has not answered since"),
            "{}",
            status.state_detail
        );
        let volume = engine.datasets().volume("tank/v").unwrap();
        volume.write(0, &noise(0)).unwrap();
        volume.flush().unwrap();
        (0..50).for_each(|_| _ = engine.step().unwrap());
        let told = |engine: &Engine, words: &str| {
            let events = engine.events(0).unwrap();
            events
                .iter()
                .filter(|event| event.kind == "device" && event.text.contains(words))
                .count()
        };
        assert_eq!(told(&engine, "'/d1' has not answered since"), 1);
        devices[1].hang(false);
        reader.join().unwrap();
        seconds(2);
        assert_ne!(state(&engine, 1).0, "not answering");
        (0..50).for_each(|_| _ = engine.step().unwrap());
        assert_eq!(told(&engine, "'/d1' answers again"), 1);
    });
    read_all(&engine);
    engine.close().unwrap();
}
