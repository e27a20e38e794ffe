//! A device that begins to fail is told among the events, once, with the cause and what to type.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use terrace_dataset::NewDataset;
use terrace_device::{Cause, Device, DeviceError, ManualClock, MemoryDevice, Operation};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: u64 = 1 << 20;

struct Failing {
    below: MemoryDevice,
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

fn told(engine: &Engine, path: &str) -> Vec<String> {
    let events = engine.events(0).unwrap().into_iter();
    let of_devices = events.filter(|event| event.kind == "device" && event.text.contains(path));
    of_devices.map(|event| event.text).collect()
}

#[test]
fn a_device_that_fails_is_told_once_with_its_cause() {
    let devices: Vec<Arc<Failing>> = ["/first", "/second", "/third"]
        .map(|name| {
            Arc::new(Failing {
                below: MemoryDevice::new(name, 96 * MIB),
                fails: AtomicBool::new(false),
            })
        })
        .into();
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: ["/first", "/second", "/third"]
                .iter()
                .map(|name| name.parse().unwrap())
                .collect(),
            copies: 2,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let given = || {
        devices
            .iter()
            .map(|device| device.clone() as Arc<dyn Device>)
            .collect()
    };
    let engine = Engine::create_on(&spec, vec![given()], OpenOptions::driven(clock.clone(), 1)).unwrap();
    let new = NewDataset {
        volume_bytes: Some(32 * MIB),
        properties: vec![("compression".into(), "off".into())],
        ..NewDataset::default()
    };
    engine.datasets().create("tank/v", &new).unwrap();
    let volume = engine.datasets().volume("tank/v").unwrap();
    let mut write = |at: u64| {
        let content: Vec<u8> = (0..MIB)
            .map(|byte| (byte ^ (byte >> 8) ^ (at * 37)) as u8)
            .collect();
        volume.write(at * MIB, &content).unwrap();
        // Copies on the others: the flush succeeds.
        volume.flush().unwrap();
        clock.advance(1_000_000_000);
        (0..20).for_each(|_| {
            engine.step().unwrap();
        });
    };
    (0..6).for_each(&mut write);
    assert!(
        told(&engine, "/second").is_empty(),
        "{:?}",
        told(&engine, "/second")
    );
    devices[1].fails.store(true, SeqCst);
    (6..16).for_each(&mut write);
    let failing: Vec<String> = told(&engine, "/second");
    let said: Vec<&String> = failing
        .iter()
        .filter(|text| text.contains("is failing"))
        .collect();
    let [text] = said.as_slice() else {
        panic!("not once: {failing:?}");
    };
    for part in ["'/second'", "nothing new is put on it", "terrace status tank"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The cause in the words of whoever met it.
    let cause = DeviceError::whole("/second", Operation::Write, Cause::Gone).cause;
    assert!(text.contains(&cause.to_string()), "{cause}: {text}");
    assert!(told(&engine, "/first").is_empty() && told(&engine, "/third").is_empty());
    // It is there after a restart too, and is told anew only if it fails again.
    engine.close().unwrap();
    drop((volume, engine));
    devices[1].fails.store(false, SeqCst);
    let options = OpenOptions::driven(clock.clone(), 2);
    let engine = Engine::open(given(), options).unwrap();
    (0..50).for_each(|_| {
        engine.step().unwrap();
    });
    let again = told(&engine, "/second");
    assert_eq!(
        again.iter().filter(|text| text.contains("is failing")).count(),
        1,
        "{again:?}"
    );
    engine.close().unwrap();
}

#[test]
fn a_pool_that_writes_nothing_any_more_is_told_once_although_nothing_can_be_written() {
    let device = Arc::new(Failing {
        below: MemoryDevice::new("/only", 96 * MIB),
        fails: AtomicBool::new(false),
    });
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec!["/only".parse().unwrap()],
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![vec![device.clone() as Arc<dyn Device>]], options).unwrap();
    engine
        .datasets()
        .create("tank/data", &NewDataset::default())
        .unwrap();
    let before = engine.events(0).unwrap();
    device.fails.store(true, SeqCst);
    engine.tick().unwrap();
    engine
        .datasets()
        .create("tank/more", &NewDataset::default())
        .and_then(|_| Ok(engine.store().flush(engine.store().newest())?))
        .unwrap_err();
    assert_eq!(engine.status().state, "stopped");
    for _ in 0..20 {
        clock.advance(1_000_000_000);
        let _ = engine.step();
    }
    let events = engine.events(0).unwrap();
    let stopped: Vec<_> = events.iter().filter(|event| event.kind == "stopped").collect();
    let [stopped] = stopped[..] else {
        panic!("{events:?}")
    };
    assert!(
        stopped.text.contains("accepts no writes") && stopped.text.contains("'terrace status tank'"),
        "{}",
        stopped.text
    );
    // They go on where the others ended, and are asked for as these are.
    let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(engine.events(stopped.id).unwrap()[0], *stopped);
    assert!(stopped.id >= before.len() as u64);
}
