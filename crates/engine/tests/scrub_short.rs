//! A scrub of a pool without room for the copies that it finds lacking: it comes to its end, says so, and they are made later.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::NewDataset;
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, ScrubStatus, TierSpec};

const MIB: u64 = 1 << 20;

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

struct Rig {
    clock: Arc<ManualClock>,
    devices: Vec<Arc<MemoryDevice>>,
    engine: Arc<Engine>,
    opened: u64,
}

impl Rig {
    /// A pool of one tier.
    fn of(sizes_mib: &[u64], copies: u8) -> Self {
        let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
        let named = |(at, mib): (usize, &u64)| Arc::new(MemoryDevice::new(format!("/device{at}"), mib * MIB));
        let devices: Vec<_> = sizes_mib.iter().enumerate().map(named).collect();
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: vec![TierSpec {
                name: "disk".into(),
                devices: (0..devices.len())
                    .map(|at| format!("/device{at}").parse().unwrap())
                    .collect(),
                copies,
            }],
            ..PoolSpec::default()
        };
        let given = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
        let options = OpenOptions::driven(clock.clone(), 1);
        let engine = Engine::create_on(&spec, vec![given.collect()], options).unwrap();
        Self {
            clock,
            devices,
            engine,
            opened: 1,
        }
    }

    /// Closes it and opens it with these devices.
    fn reopen(&mut self, numbers: &[usize]) {
        self.engine.close().unwrap();
        self.opened += 1;
        let given = numbers
            .iter()
            .map(|number| self.devices[*number].clone() as Arc<dyn Device>);
        let options = OpenOptions {
            degraded: numbers.len() < self.devices.len(),
            ..OpenOptions::driven(self.clock.clone(), self.opened)
        };
        self.engine = Engine::open(given.collect(), options).unwrap();
    }

    fn write(&self, name: &str, mib: u64, seed: u64) {
        let new = NewDataset {
            volume_bytes: Some(mib * MIB),
            sparse: true,
            ..NewDataset::default()
        };
        self.engine.datasets().create(name, &new).unwrap();
        // Written through: so the first tables lie on devices that stay.
        self.engine.environment().budget.set_delays(false);
        let volume = self.engine.datasets().volume(name).unwrap();
        for at in 0..mib {
            volume.write(at * MIB, &noise(MIB, seed + at)).unwrap();
        }
        volume.flush().unwrap();
    }

    fn is_there(&self, name: &str, mib: u64, seed: u64) {
        let volume = self.engine.datasets().volume(name).unwrap();
        for at in 0..mib {
            let mut found = vec![0; MIB as usize];
            volume.read(at * MIB, &mut found).unwrap();
            assert!(found == noise(MIB, seed + at), "MiB {at} of {name}");
        }
    }

    fn destroy(&self, name: &str) {
        self.engine.datasets().destroy(name, false, true, false).unwrap();
    }

    /// Works as long as there is something to do, for so many seconds.
    fn work(&self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance(1_000_000_000);
            self.engine.tick().unwrap();
            for _ in 0..1000 {
                if !self.engine.step().unwrap() {
                    break;
                }
            }
        }
    }

    fn scrub(&self) -> ScrubStatus {
        self.engine.start_scrub().unwrap();
        self.work(60);
        let status = self.engine.status().scrub.unwrap();
        assert_eq!(status.state, "done", "{:?}", status.damage);
        status
    }
}

#[test]
fn a_scrub_that_finds_no_room_for_what_a_missing_device_had_goes_on() {
    let mut rig = Rig::of(&[64; 3], 2);
    rig.write("tank/kept", 26, 1000);
    rig.write("tank/large", 44, 2000);
    rig.reopen(&[0, 1]);
    let found = rig.scrub();
    assert!(found.unmended > 0 && found.repaired > 0, "{found:?}");
    assert_eq!(found.lost(), 0, "{found:?}");
    let words = found.describe_short("tank");
    assert!(
        words.contains("no room") && words.contains("pool add tank"),
        "{words}"
    );
    let events = rig.engine.events(0).unwrap();
    assert!(events.iter().any(|event| event.text == words), "{events:?}");
    // Nothing is damaged for it.
    let detail = rig.engine.status().state_detail;
    assert!(!detail.contains("damaged"), "{detail}");
    // After a restart that is known too.
    rig.reopen(&[0, 1]);
    assert_eq!(rig.engine.status().scrub.unwrap().unmended, found.unmended);
    let again = rig.scrub();
    assert!(again.unmended > 0, "{again:?}");
    // Without another scrub it gets its copies.
    rig.destroy("tank/large");
    rig.work(60);
    let last = rig.scrub();
    assert_eq!((last.errors, last.short, last.unmended), (0, 0, 0), "{last:?}");
    rig.is_there("tank/kept", 26, 1000);
}

#[test]
fn copies_that_had_no_room_are_made_when_there_is_also_after_a_restart() {
    let mut rig = Rig::of(&[96; 2], 1);
    rig.write("tank/kept", 30, 1000);
    rig.write("tank/large", 90, 2000);
    let mut settings = rig.engine.pool().tiers()[0].settings.clone();
    settings.copies = 2;
    rig.engine.set_tier("disk", settings).unwrap();
    let found = rig.scrub();
    assert!(found.short > 0, "{found:?}");
    rig.reopen(&[0, 1]);
    assert_eq!(rig.engine.status().scrub.unwrap().short, found.short);
    rig.work(200);
    assert!(rig.engine.status().scrub.unwrap().short > 0);
    rig.destroy("tank/large");
    rig.work(4000);
    assert_eq!(rig.engine.status().scrub.unwrap().short, 0);
    // Which a restart knows as well, and looks for nothing.
    let looks = |rig: &Rig| {
        let jobs = rig.engine.jobs().into_iter();
        jobs.filter(|job| job.kind == "resilver").count()
    };
    let before = looks(&rig);
    rig.reopen(&[0, 1]);
    assert_eq!(rig.engine.status().scrub.unwrap().short, 0);
    rig.work(200);
    assert_eq!(looks(&rig), before);
    rig.reopen(&[1]);
    rig.is_there("tank/kept", 30, 1000);
}
