//! Room on a full pool: what a reservation promises, what a quota allows, and what others freed, on a device, with nobody but the
//! test driving the background. Every byte of a volume is compared with a model.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use full_pool::{BLOCK, MIB, Modelled, Random, Rig, copy_of};
use terrace_dataset::{Context, DatasetError, FileKind, FsError, NewDataset, ROOT, Tree};
use terrace_device::Device;

#[test]
fn a_thick_volume_is_written_and_written_over_on_a_pool_that_others_filled() {
    let mut rig = Rig::new(&[128 * MIB]);
    let mut volume = Modelled::new(rig.thick("tank/v", 32 * MIB));
    let data = rig.filesystem("tank/data");
    rig.fill(&data, "first");
    for round in 0..4 {
        volume.write_all(&mut rig.random);
        volume.verify();
        // Nobody else gets what is reserved, whatever the overwrites gave back.
        rig.tick();
        let more = rig.fill(&data, &format!("round{round}"));
        assert!(more < 8 * MIB, "{more}");
    }
}

/// Small segments of which many are written, and larger ones.
#[test]
fn random_overwrites_of_a_thick_volume_find_room_on_a_full_pool_also_after_restarts() {
    for (pool, size, times) in [(128, 24, 1), (320, 100, 1)] {
        let mut rig = Rig::new(&[pool * MIB]);
        let mut volume = Modelled::new(rig.thick("tank/v", size * MIB));
        let data = rig.filesystem("tank/data");
        volume.write_all(&mut rig.random);
        rig.fill(&data, "filler");
        drop(data);
        let blocks = times * size * MIB / BLOCK;
        for cleanly in [true, false, false] {
            volume.scatter(&mut rig, blocks);
            volume.verify();
            let model = std::mem::take(&mut volume.model);
            drop(volume);
            rig.reopen(cleanly);
            let again = rig.engine.datasets().volume("tank/v").unwrap();
            volume = Modelled { volume: again, model };
            volume.verify();
        }
        volume.scatter(&mut rig, blocks / 2);
        volume.verify();
    }
}

#[test]
fn what_one_dataset_freed_another_can_write_at_once() {
    let mut rig = Rig::new(&[128 * MIB]);
    let (x, y) = (rig.filesystem("tank/x"), rig.filesystem("tank/y"));
    let filled = rig.fill(&x, "filler");
    assert!(filled > 64 * MIB);
    for round in 0..3 {
        x.unlink(&Context::root(), ROOT, b"filler").unwrap();
        rig.is_room_for(&y, "new", filled / 2)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        y.unlink(&Context::root(), ROOT, b"new").unwrap();
        rig.fill(&x, "filler");
    }
}

#[test]
fn what_a_destroyed_dataset_or_snapshot_held_can_be_written_at_once() {
    let mut rig = Rig::new(&[128 * MIB]);
    let y = rig.filesystem("tank/y");
    let x = rig.filesystem("tank/x");
    let filled = rig.fill(&x, "filler");
    rig.engine
        .datasets()
        .snapshots()
        .take("tank/x@s", false, "")
        .unwrap();
    x.unlink(&Context::root(), ROOT, b"filler").unwrap();
    assert_eq!(rig.is_room_for(&y, "none", filled / 2), Err(FsError::NoSpace));
    rig.engine
        .datasets()
        .snapshots()
        .destroy("tank/x@s", false, false)
        .unwrap();
    rig.is_room_for(&y, "one", filled / 2).unwrap();
    drop(x);
    let x = rig.engine.datasets().filesystem("tank/x").unwrap();
    rig.fill(&x, "filler");
    drop(x);
    rig.engine
        .datasets()
        .destroy("tank/x", true, true, false)
        .unwrap();
    rig.is_room_for(&y, "two", filled / 4).unwrap();
}

#[test]
fn at_its_quota_a_volume_can_be_overwritten_in_order() {
    let mut rig = Rig::new(&[128 * MIB]);
    let new = NewDataset {
        volume_bytes: Some(16 * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    rig.engine.datasets().create("tank/v", &new).unwrap();
    let volume = rig.engine.datasets().volume("tank/v").unwrap();
    let mut model = Vec::new();
    for round in 0..3 {
        model = rig.random.bytes(16 * MIB);
        for (at, piece) in model.chunks(MIB as usize).enumerate() {
            volume
                .write(at as u64 * MIB, piece)
                .unwrap_or_else(|error| panic!("round {round}, MiB {at}: {error}"));
        }
        volume.commit().unwrap();
        if round == 0 {
            rig.engine
                .datasets()
                .properties()
                .set("tank/v", "quota", "16M")
                .unwrap();
        }
    }
    let mut read = vec![0; model.len()];
    volume.read(0, &mut read).unwrap();
    assert!(read == model);
}

#[test]
fn at_its_quota_a_dataset_can_be_overwritten_and_emptied() {
    let mut rig = Rig::new(&[128 * MIB]);
    let data = rig.filesystem("tank/data");
    rig.engine
        .datasets()
        .properties()
        .set("tank/data", "quota", "8M")
        .unwrap();
    let filled = rig.fill(&data, "file");
    assert_eq!(filled, 8 * MIB);
    let root = Context::root();
    let object = data.lookup(&root, ROOT, b"file").unwrap().object;
    let mut model = vec![0; filled as usize];
    data.read(object, 0, &mut model).unwrap();
    for round in 0..3u64 {
        for (at, length) in [
            (0, filled),
            (5 * MIB, 3 * MIB),
            (12_345, 100),
            (filled - BLOCK, BLOCK),
        ] {
            let content = rig.random.bytes(length);
            data.write(&root, object, at, &content, false)
                .unwrap_or_else(|error| panic!("round {round}, {length} at {at}: {error}"));
            model[at as usize..(at + length) as usize].copy_from_slice(&content);
        }
        if round == 1 {
            data.sync().unwrap();
        }
    }
    assert_eq!(
        data.write(&root, object, filled, &[1; 4096], false),
        Err(FsError::QuotaExceeded)
    );
    // Over its end: the part that exists is no excuse for the part that does not.
    let beyond = rig.random.bytes(64 << 10);
    assert_eq!(
        data.write(&root, object, filled - (32 << 10), &beyond, false),
        Err(FsError::QuotaExceeded)
    );
    let mut read = vec![0; filled as usize];
    data.read(object, 0, &mut read).unwrap();
    assert!(read == model);
    data.sync().unwrap();
    let size = terrace_dataset::SetAttributes {
        size: Some(4 * MIB + 5),
        ..Default::default()
    };
    data.set_attributes(&root, object, &size).unwrap();
    data.write(&root, object, 4 * MIB, &rig.random.bytes(2 * MIB), false)
        .unwrap();
    data.unlink(&root, ROOT, b"file").unwrap();
    rig.is_room_for(&data, "again", 7 * MIB).unwrap();
}

#[test]
fn a_reservation_above_a_quota_is_refused() {
    let mut rig = Rig::new(&[128 * MIB]);
    rig.filesystem("tank/data");
    let datasets = rig.engine.datasets().clone();
    datasets.properties().set("tank/data", "quota", "8M").unwrap();
    let refused = datasets
        .properties()
        .set("tank/data", "reservation", "9M")
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("9M") && refused.contains("8M") && refused.contains("quota"),
        "{refused}"
    );
    datasets
        .properties()
        .set("tank/data", "reservation", "8M")
        .unwrap();
    let refused = datasets
        .properties()
        .set("tank/data", "quota", "7M")
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("8M") && refused.contains("7M") && refused.contains("reservation"),
        "{refused}"
    );
    // Beside others below the same quota it holds as well, and takes of it.
    datasets
        .create("tank/data/other", &NewDataset::default())
        .unwrap();
    let small = NewDataset {
        volume_bytes: Some(MIB),
        sparse: true,
        ..NewDataset::default()
    };
    datasets.create("tank/data/small", &small).unwrap();
    let other = datasets.filesystem("tank/data/other").unwrap();
    datasets
        .properties()
        .set("tank/data", "reservation", "none")
        .unwrap();
    datasets
        .properties()
        .set("tank/data/small", "reservation", "1M")
        .unwrap();
    assert_eq!(rig.fill(&other, "filler"), 7 * MIB);
    let refused = datasets
        .properties()
        .set("tank/data/other", "reservation", "8M")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("1M") && refused.contains("quota"), "{refused}");
    let small = datasets.volume("tank/data/small").unwrap();
    for round in 0..3 {
        small
            .write(0, &rig.random.bytes(MIB))
            .unwrap_or_else(|error| panic!("{round}: {error}"));
        small.flush().unwrap();
    }
    // Of what lies above as well.
    let thick = NewDataset {
        volume_bytes: Some(9 * MIB),
        ..NewDataset::default()
    };
    let refused = datasets.create("tank/data/v", &thick).unwrap_err().to_string();
    assert!(
        refused.contains("tank/data") && refused.contains("9M"),
        "{refused}"
    );
}

#[test]
fn a_snapshot_of_a_thick_volume_sets_aside_what_overwriting_it_takes_or_is_refused() {
    let mut rig = Rig::new(&[192 * MIB]);
    let mut volume = Modelled::new(rig.thick("tank/v", 32 * MIB));
    volume.write_all(&mut rig.random);
    rig.engine
        .datasets()
        .snapshots()
        .take("tank/v@first", false, "")
        .unwrap();
    let data = rig.filesystem("tank/data");
    rig.fill(&data, "filler");
    for _ in 0..2 {
        volume.write_all(&mut rig.random);
        volume.scatter(&mut rig, 4000);
        volume.verify();
    }
    let refused = rig
        .engine
        .datasets()
        .snapshots()
        .take("tank/v@second", false, "")
        .unwrap_err();
    assert!(
        matches!(refused, DatasetError::NoRoomForSnapshot { .. }),
        "{refused}"
    );
    let words = refused.to_string();
    assert!(words.contains("32M") && words.contains("tank/v"), "{words}");
    data.unlink(&Context::root(), ROOT, b"filler").unwrap();
    rig.engine
        .datasets()
        .snapshots()
        .take("tank/v@second", false, "")
        .unwrap();
    rig.fill(&data, "filler");
    volume.write_all(&mut rig.random);
    volume.verify();
    rig.engine
        .datasets()
        .snapshots()
        .destroy("tank/v@second", false, false)
        .unwrap();
    volume.scatter(&mut rig, 2000);
    rig.engine
        .datasets()
        .snapshots()
        .destroy("tank/v@first", false, false)
        .unwrap();
    volume.write_all(&mut rig.random);
    volume.verify();
}

/// Also while nobody writes the volume; at once where no snapshot is left, else when it is counted what the older one has of it.
#[test]
fn what_was_set_aside_for_a_snapshot_of_a_thick_volume_is_given_back_with_it() {
    let mut rig = Rig::new(&[256 * MIB]);
    let mut volume = Modelled::new(rig.thick("tank/v", 32 * MIB));
    volume.write_all(&mut rig.random);
    rig.tick();
    let used = |rig: &Rig| rig.engine.datasets().info("tank/v").unwrap().used_bytes;
    let snapshot = |rig: &Rig, name: &str| {
        rig.engine.datasets().snapshots().take(name, false, "").unwrap();
    };
    let destroy = |rig: &Rig, name: &str| {
        rig.engine
            .datasets()
            .snapshots()
            .destroy(name, false, false)
            .unwrap();
    };
    let before = used(&rig);
    snapshot(&rig, "tank/v@only");
    assert_eq!(
        used(&rig),
        before + 32 * MIB,
        "what it takes to write over the snapshot"
    );
    destroy(&rig, "tank/v@only");
    assert_eq!(used(&rig), before);
    snapshot(&rig, "tank/v@older");
    volume.write_all(&mut rig.random);
    rig.tick();
    let before = used(&rig);
    snapshot(&rig, "tank/v@newer");
    assert_eq!(used(&rig), before + 32 * MIB);
    destroy(&rig, "tank/v@newer");
    rig.tick();
    assert_eq!(used(&rig), before);
    let data = rig.filesystem("tank/data");
    rig.fill(&data, "filler");
    volume.write_all(&mut rig.random);
    volume.verify();
}

/// Several who write at once, with all threads that an open pool has, while a neighbour takes all room that he can get.
#[test]
fn writers_to_whom_room_is_promised_find_some_beside_one_another_and_a_greedy_neighbour() {
    const WRITERS: u64 = 3;
    const PART: u64 = 6 * MIB;
    let mut rig = Rig::threaded(&[128 * MIB]);
    let volume = rig.thick("tank/v", WRITERS * PART);
    let data = rig.filesystem("tank/data");
    rig.fill(&data, "filler");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let (root, content) = (Context::root(), Random(7).bytes(MIB));
            let mut round = 0;
            while !done.load(Ordering::SeqCst) {
                round += 1;
                let name = format!("greedy{round}");
                let made = data.create(&root, ROOT, name.as_bytes(), FileKind::File, 0o600, 0);
                let written = made.and_then(|made| data.write(&root, made.object, 0, &content, false));
                assert!(matches!(written, Ok(_) | Err(FsError::NoSpace)), "{written:?}");
                let _ = data.unlink(&root, ROOT, name.as_bytes());
            }
        });
        let writers = (0..WRITERS).map(|writer| {
            let volume = &volume;
            scope.spawn(move || {
                let (mut random, first) = (Random(writer + 1), writer * PART);
                let mut model = vec![0; PART as usize];
                for count in 0..3 * PART / BLOCK {
                    let length = if count % 50 == 0 { 128 << 10 } else { BLOCK };
                    let at = random.below((PART - length) / BLOCK + 1) * BLOCK;
                    let content = random.bytes(length);
                    volume
                        .write(first + at, &content)
                        .unwrap_or_else(|error| panic!("writer {writer}, {count}: {error}"));
                    model[at as usize..(at + length) as usize].copy_from_slice(&content);
                    if count % 101 == 100 {
                        volume.flush().unwrap();
                    }
                }
                volume.flush().unwrap();
                let mut read = vec![0; PART as usize];
                volume.read(first, &mut read).unwrap();
                assert!(read == model, "writer {writer}");
            })
        });
        let writers: Vec<_> = writers.collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        neighbour.join().unwrap();
        ended.into_iter().for_each(|end| end.unwrap());
    });
    rig.engine.close().unwrap();
    let devices = rig
        .devices
        .iter()
        .map(|device| copy_of(device) as Arc<dyn Device>);
    let report = terrace_engine::verify(devices.collect(), &mut |_, _| {}).unwrap();
    assert!(report.clean, "{:?}", report.problems);
}

/// Found by the simulator: a device went although the others had no room for what was promised, and a write to a volume with a
/// reservation was refused.
#[test]
fn a_device_that_what_is_promised_needs_does_not_leave() {
    let mut rig = Rig::new(&[128 * MIB, 96 * MIB]);
    let mut volume = Modelled::new(rig.thick("tank/v", 100 * MIB));
    for _ in 0..3 {
        rig.tick();
    }
    let refused = rig.engine.remove_device("/disk1").unwrap_err().to_string();
    assert!(
        refused.contains("set aside for reservations") && refused.contains("add a device"),
        "{refused}"
    );
    assert!(rig.engine.evacuate_device("/disk1").is_err());
    volume.write_all(&mut rig.random);
    volume.verify();
    // What nobody is promised any more is in nobody's way.
    drop(volume);
    rig.engine
        .datasets()
        .destroy("tank/v", true, true, false)
        .unwrap();
    for _ in 0..5 {
        rig.tick();
    }
    rig.engine.remove_device("/disk1").unwrap();
}

fn set_copies(rig: &Rig, copies: u8) -> Result<(), String> {
    let mut settings = rig.engine.pool().tiers()[0].settings.clone();
    settings.copies = copies;
    let set = rig.engine.set_tier("tier0", settings);
    set.map(drop).map_err(|error| error.to_string())
}

/// Found by the simulator: a tier was told to keep two copies though what was promised needs the room for one.
#[test]
fn more_copies_do_not_take_what_is_promised() {
    let mut rig = Rig::of(&[(vec![128 * MIB; 2], 1)]);
    let mut volume = Modelled::new(rig.thick("tank/v", 140 * MIB));
    let refused = set_copies(&rig, 2).unwrap_err();
    assert!(
        refused.contains("set aside for reservations") && refused.contains("pool add"),
        "{refused}"
    );
    assert_eq!(rig.engine.pool().tiers()[0].settings.copies, 1);
    volume.write_all(&mut rig.random);
    volume.verify();
    drop(volume);
    rig.engine
        .datasets()
        .destroy("tank/v", true, true, false)
        .unwrap();
    // What is promised has its room in two copies as well.
    let mut volume = Modelled::new(rig.thick("tank/w", 60 * MIB));
    for _ in 0..8 {
        rig.tick();
    }
    set_copies(&rig, 2).unwrap();
    volume.write_all(&mut rig.random);
    volume.verify();
}

/// Found by the simulator: copies that were lacking took the room that was set aside for a volume.
#[test]
fn copies_that_are_lacking_leave_the_room_that_is_promised() {
    let mut rig = Rig::of(&[(vec![128 * MIB; 2], 1)]);
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 80 * MIB).unwrap();
    let mut volume = Modelled::new(rig.thick("tank/v", 40 * MIB));
    set_copies(&rig, 2).unwrap();
    // In MiB; nothing lies there but the file.
    let scrubbed = |rig: &Rig| {
        rig.engine.start_scrub().unwrap();
        for _ in 0..100 {
            rig.tick();
        }
        assert_eq!(rig.engine.status().scrub.unwrap().state, "done");
        rig.engine.store().space().tiers[0].live_bytes / MIB
    };
    let in_part = scrubbed(&rig);
    assert!((81..155).contains(&in_part), "{in_part} {}", rig.figures());
    let events = rig.engine.events(0).unwrap();
    let told = |event: &terrace_engine::Entry| {
        event.text.contains("fewer copies than their tier keeps")
            && event.text.contains("'terrace pool add tank ")
    };
    assert!(events.iter().any(told), "{events:?}");
    let space = rig.engine.store().space();
    assert!(space.set_aside_bytes <= space.room_bytes, "{}", rig.figures());
    rig.fill(&data, "filler");
    volume.write_all(&mut rig.random);
    volume.verify();
    let is_whole = || {
        let told = |event: &terrace_engine::Entry| event.text.contains("no content lacks a copy any more");
        rig.engine.events(0).unwrap().iter().any(told)
    };
    assert!(!is_whole());
    // They get their copies once nobody is promised the room, without another scrub.
    data.unlink(&Context::root(), ROOT, b"filler").unwrap();
    drop(volume);
    rig.engine
        .datasets()
        .destroy("tank/v", true, true, false)
        .unwrap();
    for _ in 0..2000 {
        if is_whole() {
            break;
        }
        rig.tick();
    }
    assert!(is_whole(), "{}", rig.figures());
    // And nobody goes on looking.
    let jobs = rig.engine.jobs().len();
    for _ in 0..100 {
        rig.tick();
    }
    assert_eq!(rig.engine.jobs().len(), jobs);
    // What was written over and destroyed is gone by now.
    let live = rig.engine.store().space().tiers[0].live_bytes / MIB;
    assert!((160..165).contains(&live), "{live} {}", rig.figures());
}

#[test]
fn a_filesystem_shows_as_used_what_it_holds_whatever_the_pool_keeps_beside_it() {
    for tiers in [vec![(vec![256 * MIB, 256 * MIB], 2)], vec![(vec![256 * MIB], 1)]] {
        let mut rig = Rig::of(&tiers);
        let _others = rig.thick("tank/v", 16 * MIB);
        let data = rig.filesystem("tank/data");
        let used = || {
            let shown = data.statistics().unwrap();
            (shown.size_bytes - shown.available_bytes, shown.used_bytes)
        };
        assert_eq!(used(), (0, 0), "{tiers:?}");
        rig.is_room_for(&data, "file", 8 * MIB).unwrap();
        assert_eq!(used(), (8 * MIB, 8 * MIB), "{tiers:?}");
    }
}

/// The reservation goes with the volume: the quota that counts it is that of the new parent.
#[test]
fn rename_carries_a_reservation_below_another_parent() {
    let mut rig = Rig::new(&[192 * MIB]);
    for name in ["tank/a", "tank/b"] {
        rig.filesystem(name);
        rig.engine
            .datasets()
            .properties()
            .set(name, "quota", "40M")
            .unwrap();
    }
    let volume = rig.thick("tank/a/v", 24 * MIB);
    drop(volume);
    rig.engine.datasets().rename("tank/a/v", "tank/b/v").unwrap();
    let filled = |rig: &mut Rig, name: &str| {
        let filesystem = rig.engine.datasets().filesystem(name).unwrap();
        rig.fill(&filesystem, "filler") / MIB
    };
    assert!((39..=40).contains(&filled(&mut rig, "tank/a")));
    assert!((15..=16).contains(&filled(&mut rig, "tank/b")));
    let mut volume = Modelled::new(rig.engine.datasets().volume("tank/b/v").unwrap());
    volume.write_all(&mut rig.random);
    volume.verify();
}
