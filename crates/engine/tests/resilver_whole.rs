//! A device that was away is called whole only when it has everything, and for good: at the moment at which a label is first
//! written that says so, what is durable on it alone is the whole pool, its metadata and all content.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use terrace_dataset::NewDataset;
use terrace_device::{Device, DeviceError, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};
use terrace_pool::{LABEL_BYTES, Label, Presence};

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const SIZE: u64 = 96 * MIB;
/// Volumes, and how much of each is written before the device is away, without it, and when it is back.
const VOLUME: u64 = 12;

/// Content by page.
type Image = BTreeMap<u64, Vec<u8>>;

/// What the devices of a machine share.
#[derive(Default)]
struct World {
    /// What is durable on the device that was away.
    durable: Mutex<Image>,
    /// The same at the moment at which a label first said that all is whole, once somebody waits for that.
    whole: Mutex<Option<Option<Image>>>,
}

/// A device in RAM with a write cache.
struct Cached {
    name: String,
    memory: MemoryDevice,
    /// Since the last flush; of the device that was away only.
    pending: Mutex<Image>,
    was_away: bool,
    world: Arc<World>,
}

impl Cached {
    fn new(name: &str, was_away: bool, world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            memory: MemoryDevice::new(name, SIZE),
            pending: Mutex::default(),
            was_away,
            world: world.clone(),
        })
    }
}

impl Device for Cached {
    fn path(&self) -> String {
        self.name.clone()
    }
    fn size_bytes(&self) -> u64 {
        SIZE
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let says_whole = |label: &Label| {
            let mut members = label.members.iter();
            members.all(|member| member.presence == Presence::Whole)
        };
        if data.len() == LABEL_BYTES && Label::decode(data).as_ref().is_ok_and(says_whole) {
            let mut whole = self.world.whole.lock().unwrap();
            if let Some(first @ None) = &mut *whole {
                *first = Some(self.world.durable.lock().unwrap().clone());
            }
        }
        if self.was_away {
            let mut pending = self.pending.lock().unwrap();
            for (page, at) in data.chunks(PAGE).zip((offset..).step_by(PAGE)) {
                pending.insert(at, page.to_vec());
            }
        }
        self.memory.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        if self.was_away {
            let mut durable = self.world.durable.lock().unwrap();
            durable.append(&mut self.pending.lock().unwrap());
        }
        Ok(())
    }
    fn discard(&self, _offset: u64, _length: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn noise(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..bytes / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

fn write(engine: &Engine, name: &str, seed: u64) {
    let new = NewDataset {
        volume_bytes: Some(VOLUME * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    engine.datasets().create(name, &new).unwrap();
    let volume = engine.datasets().volume(name).unwrap();
    for at in 0..VOLUME {
        volume.write(at * MIB, &noise(MIB, seed + at)).unwrap();
    }
    volume.flush().unwrap();
}

fn tick(engine: &Engine, clock: &ManualClock) {
    clock.advance(1_000_000_000);
    engine.tick().unwrap();
    for _ in 0..1000 {
        if !engine.step().unwrap() {
            break;
        }
    }
}

fn degraded(clock: &Arc<ManualClock>, seed: u64) -> OpenOptions {
    OpenOptions {
        degraded: true,
        ..OpenOptions::driven(clock.clone(), seed)
    }
}

/// `early`: log and tables have both copies before the content has.
fn comes_back(early: bool, by_scrub: bool) {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let world = Arc::new(World::default());
    let devices = [
        Cached::new("/stays", false, &world),
        Cached::new("/away", true, &world),
    ];
    let given = |count: usize| -> Vec<Arc<dyn Device>> {
        let devices = devices[..count].iter();
        devices.map(|device| device.clone() as Arc<dyn Device>).collect()
    };
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec!["/stays".parse().unwrap(), "/away".parse().unwrap()],
            copies: 2,
        }],
        ..PoolSpec::default()
    };
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![given(2)], options).unwrap();
    write(&engine, "tank/both", 1);
    engine.close().unwrap();
    let engine = Engine::open(given(1), degraded(&clock, 2)).unwrap();
    write(&engine, "tank/without", 1000);
    engine.close().unwrap();

    let engine = Engine::open(given(2), OpenOptions::driven(clock.clone(), 3)).unwrap();
    assert_eq!(engine.pool().devices()[1].presence, Presence::Behind);
    *world.whole.lock().unwrap() = Some(None);
    if by_scrub {
        let job = engine.resilver_job().unwrap();
        engine.job_action(job, "cancel").unwrap();
        engine.start_scrub().unwrap();
    }
    if early {
        assert!(engine.chunks().mirror_now().unwrap());
    }
    let whole = (0..120).find_map(|_| {
        tick(&engine, &clock);
        world.whole.lock().unwrap().as_mut().and_then(Option::take)
    });
    let whole = whole.expect("it is called whole in the end");
    assert_eq!(engine.pool().devices()[1].presence, Presence::Whole);

    // The other device is gone, and the power went at that moment.
    let alone = MemoryDevice::new("/away", SIZE);
    whole
        .iter()
        .for_each(|(at, page)| alone.write_at(*at, page).unwrap());
    let engine = Engine::open(vec![Arc::new(alone)], degraded(&clock, 4)).unwrap();
    for (name, seed) in [("tank/both", 1), ("tank/without", 1000)] {
        let volume = engine.datasets().volume(name).unwrap();
        for at in 0..VOLUME {
            let mut content = vec![0; MIB as usize];
            let read = volume.read(at * MIB, &mut content);
            read.unwrap_or_else(|error| {
                panic!("{name}, MiB {at}, early: {early}, scrub: {by_scrub}: {error}")
            });
            assert!(content == noise(MIB, seed + at), "{name}, MiB {at}");
        }
    }
}

#[test]
fn a_device_is_called_whole_when_it_alone_has_everything() {
    comes_back(false, false);
    comes_back(true, false);
}

#[test]
fn a_scrub_calls_a_device_whole_when_it_alone_has_everything() {
    comes_back(false, true);
    comes_back(true, true);
}
