//! A device that came back to a pool without room for the copies that it lacks: it stays behind until there is room.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::NewDataset;
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};
use terrace_pool::Presence;

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

fn write(engine: &Engine, name: &str, mib: u64, seed: u64) {
    let new = NewDataset {
        volume_bytes: Some(mib * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    engine.datasets().create(name, &new).unwrap();
    let volume = engine.datasets().volume(name).unwrap();
    for at in 0..mib {
        volume.write(at * MIB, &noise(MIB, seed + at)).unwrap();
    }
    volume.flush().unwrap();
}

/// Works until nothing is left to do for so many seconds.
fn work(engine: &Engine, clock: &ManualClock, seconds: u64) {
    for _ in 0..seconds {
        clock.advance(1_000_000_000);
        engine.tick().unwrap();
        for _ in 0..1000 {
            if !engine.step().unwrap() {
                break;
            }
        }
    }
}

#[test]
fn a_device_for_whose_copies_there_is_no_room_stays_behind_until_there_is() {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let devices = [160, 64].map(|mib| Arc::new(MemoryDevice::new(format!("/device{mib}"), mib * MIB)));
    let given = |numbers: &[usize]| -> Vec<Arc<dyn Device>> {
        let chosen = numbers
            .iter()
            .map(|number| devices[*number].clone() as Arc<dyn Device>);
        chosen.collect()
    };
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec!["/device160".parse().unwrap(), "/device64".parse().unwrap()],
            copies: 2,
        }],
        ..PoolSpec::default()
    };
    let options = OpenOptions::driven(clock.clone(), 1);
    let engine = Engine::create_on(&spec, vec![given(&[0, 1])], options).unwrap();
    write(&engine, "tank/both", 4, 1);
    engine.close().unwrap();
    let degraded = OpenOptions {
        degraded: true,
        ..OpenOptions::driven(clock.clone(), 2)
    };
    let engine = Engine::open(given(&[0]), degraded).unwrap();
    write(&engine, "tank/kept", 16, 1000);
    write(&engine, "tank/large", 60, 2000);
    engine.close().unwrap();

    // Also after a restart.
    for seed in 3..5 {
        let engine = Engine::open(given(&[0, 1]), OpenOptions::driven(clock.clone(), seed)).unwrap();
        work(&engine, &clock, 120);
        let jobs = engine.jobs();
        let job = jobs.iter().rfind(|job| job.kind == "resilver").unwrap();
        assert!(job.state == "done" && job.reason.contains("no room"), "{job:?}");
        assert_eq!(engine.pool().devices()[1].presence, Presence::Behind);
        let status = engine.status();
        assert_eq!(status.state, "degraded");
        assert!(status.state_detail.contains("no room"), "{}", status.state_detail);
        // Nor does a scrub find room.
        engine.start_scrub().unwrap();
        work(&engine, &clock, 5);
        assert_eq!(engine.status().scrub.unwrap().state, "done");
        assert_eq!(engine.pool().devices()[1].presence, Presence::Behind);
        if seed == 3 {
            engine.close().unwrap();
            continue;
        }
        engine
            .datasets()
            .destroy("tank/large", false, true, false)
            .unwrap();
        work(&engine, &clock, 4000);
        assert_eq!(engine.pool().devices()[1].presence, Presence::Whole);
        assert_eq!(engine.status().state, "online");
        engine.close().unwrap();
    }
    // All of it is there.
    let alone = OpenOptions {
        degraded: true,
        ..OpenOptions::driven(clock.clone(), 9)
    };
    let engine = Engine::open(given(&[1]), alone).unwrap();
    let volume = engine.datasets().volume("tank/kept").unwrap();
    for at in 0..16 {
        let mut found = vec![0; MIB as usize];
        volume.read(at * MIB, &mut found).unwrap();
        assert!(found == noise(MIB, 1000 + at));
    }
}
