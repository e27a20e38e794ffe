//! Bytes go where they belong, errors are counted, and devices come and go.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::sync::Arc;

use media::{MIB, Shelf, create, open};
use terrace_device::{Device, SeededRandomness};
use terrace_pool::{
    DeviceAdd, DeviceState, Parallelism, Pool, PoolError, Request, SegmentId, SegmentKind, TierChoice,
    TierSettings,
};

const DATA: Request<'static> = Request {
    choice: TierChoice::Fastest,
    kind: SegmentKind::Data,
    avoid: &[],
    garbage: &[],
    leave_free: 0,
};

#[test]
fn segments_hold_what_was_written_and_do_not_overlap() {
    let shelf = Shelf::new(&[12, 16]);
    let pool = create(
        "tank",
        1,
        vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))],
    );
    pool.set_property("before", Some("yes")).unwrap();
    let size = pool.segment_bytes() as usize;
    assert_eq!(size as u64, MIB);
    let mut segments = Vec::new();
    while let Ok(segment) = pool.allocate(&DATA) {
        let fill = segments.len() as u8 + 1;
        let (front, back) = (vec![fill; size / 2], vec![!fill; size / 2]);
        pool.write_vectored(segment, 0, &[&front, &back]).unwrap();
        segments.push(segment);
    }
    assert_eq!(segments.len() as u64, pool.total_segments());
    pool.write_root(b"root").unwrap();
    pool.set_property("after", Some("yes")).unwrap();
    pool.flush_all().unwrap();
    drop(pool);
    let pool = open(shelf.all()).unwrap();
    assert_eq!(pool.properties().len(), 2);
    assert_eq!(pool.read_root().unwrap().unwrap(), b"root");
    for (index, segment) in segments.into_iter().enumerate() {
        let mut buffer = vec![0; size];
        pool.read(segment, 0, &mut buffer).unwrap();
        let fill = index as u8 + 1;
        assert!(buffer[..size / 2].iter().all(|byte| *byte == fill), "{segment}");
        assert!(buffer[size / 2..].iter().all(|byte| *byte == !fill), "{segment}");
    }
}

#[test]
fn transfers_outside_of_a_segment_are_refused() {
    let shelf = Shelf::new(&[12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let segment = pool.allocate(&DATA).unwrap();
    let mut block = vec![0; 8192];
    assert!(pool.read(segment, MIB - 4096, &mut block).is_err());
    assert!(pool.write(segment, MIB - 4096, &block).is_err());
    assert!(pool.read(segment, u64::MAX - 4095, &mut block).is_err());
    assert!(pool.write(segment, 100, &block).is_err());
    assert!(
        pool.read(SegmentId { device: 0, index: 10 }, 0, &mut block)
            .is_err()
    );
    assert!(
        pool.read(
            SegmentId {
                device: 0,
                index: u32::MAX
            },
            0,
            &mut block
        )
        .is_err()
    );
    assert!(
        pool.read(SegmentId { device: 9, index: 0 }, 0, &mut block)
            .is_err()
    );
    assert!(pool.flush(&[0, 9]).is_err());
    pool.read(segment, MIB - 8192, &mut block).unwrap();
}

#[test]
fn a_read_is_tried_twice_and_errors_are_counted() {
    let shelf = Shelf::new(&[12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let segment = pool.allocate(&DATA).unwrap();
    let before = pool.devices()[0].counters;
    let mut block = vec![0; 4096];
    *shelf.media[0].failing_reads.lock().unwrap() = 1;
    pool.read(segment, 0, &mut block).unwrap();
    *shelf.media[0].failing_reads.lock().unwrap() = 2;
    let error = pool.read(segment, 0, &mut block).unwrap_err();
    assert!(error.to_string().contains("/medium/0"), "{error}");
    pool.write(segment, 0, &block).unwrap();
    pool.note_checksum_error(0);
    pool.flush(&[0, 0]).unwrap();
    let device = &pool.devices()[0];
    let now = device.counters;
    assert_eq!(
        (now.reads - before.reads, now.read_errors, now.checksum_errors),
        (2, 2, 1)
    );
    assert_eq!(
        (now.writes - before.writes, now.write_bytes - before.write_bytes),
        (1, 4096)
    );
    assert_eq!((now.flushes - before.flushes, now.write_errors), (1, 0));
    assert_eq!(device.state, DeviceState::Online);
}

#[test]
fn a_device_that_cannot_write_gets_nothing_new() {
    for flush in [false, true] {
        let shelf = Shelf::new(&[12, 12]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        let segment = pool.allocate(&DATA).unwrap();
        assert_eq!(segment.device, 0);
        if flush {
            *shelf.media[0].failing_flushes.lock().unwrap() = 1;
            pool.flush_all().unwrap_err();
        } else {
            *shelf.media[0].failing_writes.lock().unwrap() = 3;
            for _ in 0..3 {
                pool.write(segment, 0, &[0; 4096]).unwrap_err();
            }
        }
        assert_eq!(pool.devices()[0].state, DeviceState::Failing);
        for _ in 0..10 {
            assert_eq!(pool.allocate(&DATA).unwrap().device, 1);
        }
        assert!(pool.allocate(&DATA).unwrap_err().is_no_space());
        pool.write_root(b"elsewhere").unwrap();
    }
}

#[test]
fn every_device_is_flushed_although_one_fails() {
    for parallelism in [Parallelism::Sequential, Parallelism::Threads] {
        let shelf = Shelf::new(&[12, 12, 12]);
        let mut options = media::create_options("tank", vec![("only", shelf.all())]);
        options.parallelism = parallelism;
        let pool = Pool::create(options, &SeededRandomness::new(1)).unwrap();
        let before: Vec<_> = pool
            .devices()
            .iter()
            .map(|device| device.counters.flushes)
            .collect();
        *shelf.media[0].failing_flushes.lock().unwrap() = 1;
        let error = pool.flush(&[2, 0, 1]).unwrap_err();
        assert!(error.to_string().contains("/medium/0"), "{error}");
        for (device, before) in pool.devices().iter().zip(before) {
            assert_eq!(device.counters.flushes, before + 1);
        }
        pool.flush(&[]).unwrap();
    }
}

#[test]
fn a_device_in_use_does_not_leave() {
    let shelf = Shelf::new(&[12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let segment = pool.allocate(&DATA).unwrap();
    let error = pool.remove_device(segment.device).unwrap_err();
    assert!(
        matches!(error, PoolError::DeviceInUse { segments: 1, .. }),
        "{error}"
    );
    assert!(!pool.devices()[0].draining, "refused, so nothing changed");
    pool.release(segment).unwrap();
    pool.remove_device(segment.device).unwrap();
    assert!(matches!(
        pool.read(segment, 0, &mut [0; 4096]),
        Err(PoolError::NoDevice { .. })
    ));
    assert_eq!(
        pool.remove_device(0),
        Err(PoolError::NoDevice {
            number: 0,
            state: "not part of it"
        })
    );
    assert!(
        pool.remove_device(1)
            .unwrap_err()
            .to_string()
            .contains("last device")
    );
    drop(pool);
    assert_eq!(open(shelf.devices(&[1])).unwrap().devices().len(), 1);
}

#[test]
fn a_device_that_is_abandoned_in_vain_keeps_its_segments_in_use() {
    let shelf = Shelf::new(&[12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let segments: Vec<_> = (0..2).map(|_| pool.allocate(&DATA).unwrap()).collect();
    let on_it = segments.iter().find(|segment| segment.device == 1).unwrap();
    *shelf.media[0].failing_writes.lock().unwrap() = u32::MAX;
    pool.abandon_device(1).unwrap_err();
    assert!(pool.is_claimed(*on_it));
    assert_eq!(pool.devices()[1].free_segments + 1, pool.devices()[1].segments);
}

#[test]
fn a_device_that_is_gone_can_be_struck_off() {
    let shelf = Shelf::new(&[12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"root").unwrap();
    drop(pool);
    let degraded = terrace_pool::OpenOptions {
        degraded: true,
        ..media::sequential()
    };
    let pool = Pool::open(shelf.devices(&[1]), degraded).unwrap();
    pool.remove_device(0).unwrap();
    drop(pool);
    let pool = open(shelf.devices(&[1])).unwrap();
    assert_eq!(pool.read_root().unwrap().unwrap(), b"root");
    // It comes back and is left alone.
    assert_eq!(open(shelf.all()).unwrap().devices().len(), 1);
}

#[test]
fn the_root_outlives_all_devices_that_held_it() {
    let shelf = Shelf::new(&[12, 12, 12, 12, 12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"root").unwrap();
    for number in 0..5 {
        pool.remove_device(number).unwrap();
    }
    drop(pool);
    let pool = open(shelf.devices(&[5])).unwrap();
    assert_eq!(pool.read_root().unwrap().unwrap(), b"root");
}

#[test]
fn a_pool_of_one_gets_its_second_root_with_its_second_device() {
    let mut shelf = Shelf::new(&[12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"root").unwrap();
    let second: Arc<dyn Device> = shelf.add(12);
    pool.add_device(
        second,
        DeviceAdd::Tier("only".into()),
        false,
        &SeededRandomness::new(8),
    )
    .unwrap();
    drop(pool);
    let degraded = terrace_pool::OpenOptions {
        degraded: true,
        ..media::sequential()
    };
    let pool = Pool::open(shelf.devices(&[1]), degraded).unwrap();
    assert_eq!(pool.read_root().unwrap().unwrap(), b"root");
}

#[test]
fn numbers_are_not_used_twice_and_replaced_devices_work() {
    let mut shelf = Shelf::new(&[12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let chance = SeededRandomness::new(8);
    let new: Arc<dyn Device> = shelf.add(16);
    let number = pool
        .add_device(new.clone(), DeviceAdd::Tier("only".into()), false, &chance)
        .unwrap();
    assert_eq!(number, 2);
    let again = pool
        .add_device(new.clone(), DeviceAdd::Tier("only".into()), true, &chance)
        .unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
    pool.remove_device(2).unwrap();
    let number = pool
        .add_device(new, DeviceAdd::Tier("only".into()), false, &chance)
        .unwrap();
    assert_eq!(number, 3);
    let elsewhere: Arc<dyn Device> = shelf.add(16);
    let error = pool
        .add_device(elsewhere.clone(), DeviceAdd::Tier("none".into()), false, &chance)
        .unwrap_err();
    assert!(error.to_string().contains("no tier called 'none'"), "{error}");
    let between = DeviceAdd::NewTier {
        position: 1,
        settings: TierSettings::named("only"),
    };
    assert!(
        pool.add_device(elsewhere.clone(), between, false, &chance)
            .is_err(),
        "the name is taken"
    );
    let between = DeviceAdd::NewTier {
        position: 1,
        settings: TierSettings::named("slow"),
    };
    assert_eq!(pool.add_device(elsewhere, between, false, &chance).unwrap(), 4);
    let slow = Request {
        choice: TierChoice::Tier {
            tier: 1,
            strict: true,
        },
        ..DATA
    };
    assert_eq!(pool.allocate(&slow).unwrap().device, 4);
    drop(pool);
    let pool = open(shelf.devices(&[4 - 1, 0, 2, 1])).unwrap();
    let numbers: Vec<_> = pool.devices().iter().map(|device| device.number).collect();
    assert_eq!(numbers, [0, 1, 3, 4]);
}

#[test]
fn a_device_is_replaced_by_another_of_its_tier() {
    let mut shelf = Shelf::new(&[12, 12]);
    let pool = create(
        "tank",
        1,
        vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))],
    );
    let chance = SeededRandomness::new(8);
    let segment = pool.allocate(&DATA).unwrap();
    let number = pool.replace_device(0, shelf.add(16), false, &chance).unwrap();
    assert_eq!((number, pool.tier_of(number)), (2, Some(0)));
    assert!(pool.devices()[0].draining);
    for _ in 0..5 {
        assert_eq!(pool.allocate(&DATA).unwrap().device, number);
    }
    pool.release(segment).unwrap();
    pool.remove_device(0).unwrap();
    drop(pool);
    // One that is gone is replaced as well.
    let degraded = terrace_pool::OpenOptions {
        degraded: true,
        ..media::sequential()
    };
    let pool = Pool::open(shelf.devices(&[2]), degraded).unwrap();
    assert_eq!(pool.replace_device(1, shelf.add(16), false, &chance).unwrap(), 3);
    pool.remove_device(1).unwrap();
    assert!(pool.replace_device(1, shelf.add(16), false, &chance).is_err());
    drop(pool);
    assert_eq!(open(shelf.devices(&[3, 2])).unwrap().tiers()[1].devices, [3]);
}

#[test]
fn settings_and_names_are_kept() {
    let shelf = Shelf::new(&[12]);
    let pool = create("tank", 1, vec![("fast", shelf.all())]);
    let settings = TierSettings {
        high_water: 0.5,
        low_water: 0.25,
        window: "01:00-05:00".into(),
        ..TierSettings::named("ssd")
    };
    pool.set_tier("fast", settings.clone()).unwrap();
    assert!(
        pool.set_tier("fast", settings.clone()).is_err(),
        "it is called ssd now"
    );
    let wrong = TierSettings {
        high_water: 1.5,
        ..settings.clone()
    };
    assert!(
        pool.set_tier("ssd", wrong)
            .unwrap_err()
            .to_string()
            .contains("between 0 and 1")
    );
    pool.rename("lake").unwrap();
    assert!(pool.rename("no/slash").is_err());
    pool.set_property("user:note", Some("é")).unwrap();
    pool.set_property("gone", Some("x")).unwrap();
    pool.set_property("gone", None).unwrap();
    assert!(pool.set_property("", Some("x")).is_err());
    assert!(pool.set_property("large", Some(&"v".repeat(20_000))).is_err());
    let generation = pool.generation();
    drop(pool);
    let pool = open(shelf.all()).unwrap();
    assert_eq!(pool.name(), "lake");
    assert_eq!(pool.generation(), generation);
    assert_eq!(pool.tiers()[0].settings, settings);
    assert_eq!(
        pool.properties().into_iter().collect::<Vec<_>>(),
        [("user:note".to_string(), "é".to_string())]
    );
    assert_eq!(pool.created_nanoseconds(), 1_700_000_000_000_000_000);
}

#[test]
fn a_device_to_be_shrunk_takes_nothing_at_its_end_and_loses_only_what_is_free() {
    let shelf = Shelf::new(&[12, 24]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let last = SegmentId { device: 1, index: 20 };
    pool.claim(last).unwrap();
    let (size_bytes, segments) = pool.measure_shrunk(1, 12 * MIB + 5).unwrap();
    assert_eq!((size_bytes, segments), (12 * MIB, 10));
    assert!(pool.measure_shrunk(1, 24 * MIB).is_err() && pool.measure_shrunk(1, 2 * MIB).is_err());
    pool.limit_device(1, Some(segments));
    assert_eq!(pool.total_segments(), 10 + 10 + 1);
    let in_use = pool.shrink_device(1, size_bytes);
    assert!(matches!(in_use, Err(PoolError::DeviceInUse { segments: 1, .. })));
    let mut taken = Vec::new();
    while let Ok(segment) = pool.allocate(&DATA) {
        assert!(segment.device == 0 || segment.index < segments, "{segment}");
        taken.push(segment);
    }
    assert_eq!(taken.len(), 20);
    // Given up: everything can be taken again.
    pool.limit_device(1, None);
    assert_eq!(pool.free_segments(), 22 - 11);
    pool.release(last).unwrap();
    pool.shrink_device(1, size_bytes).unwrap();
    assert_eq!((pool.total_segments(), pool.free_segments()), (20, 0));
    assert!(pool.read(last, 0, &mut vec![0; 4096]).is_err());
    for segment in taken {
        pool.release(segment).unwrap();
    }
    drop(pool);
    let pool = open(shelf.all()).unwrap();
    assert_eq!(pool.total_segments(), 20);
    // It can grow again.
    shelf.media[1].memory.grow(24 * MIB);
    assert_eq!(pool.resize_device(1).unwrap(), 22);
    assert_eq!(pool.free_segments(), 32);
}

#[test]
fn large_devices_get_large_segments() {
    for (mib, segment_mib) in [
        (6, 1),
        (64, 1),
        (200, 1),
        (300, 2),
        (1100, 8),
        (2048, 8),
        (2100, 16),
        (5000, 16),
    ] {
        let shelf = Shelf::new(&[mib]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        assert_eq!(u64::from(pool.segment_bytes()), segment_mib * MIB, "{mib} MiB");
        let last = SegmentId {
            device: 0,
            index: pool.total_segments() as u32 - 1,
        };
        pool.claim(last).unwrap();
        pool.write(last, u64::from(pool.segment_bytes()) - 4096, &[9; 4096])
            .unwrap();
        drop(pool);
        open(shelf.all()).unwrap();
    }
}

#[test]
fn a_device_that_joins_or_leaves_does_not_bring_an_older_root_back() {
    let mut shelf = Shelf::new(&[12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.devices(&[0, 1]))]);
    let _ = shelf.add(12);
    let third = shelf.devices(&[2]).remove(0);
    pool.write_root(&0u64.to_le_bytes()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checkpoints = scope.spawn(|| {
            let mut number = 0u64;
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                number += 1;
                pool.write_root(&number.to_le_bytes()).unwrap();
                let newest = pool.read_root().unwrap().unwrap();
                if newest != number.to_le_bytes() {
                    return Err(format!("root {number} was replaced by {newest:?}"));
                }
            }
            Ok(())
        });
        for seed in 0..200 {
            let randomness = SeededRandomness::new(seed);
            let place = DeviceAdd::Tier("only".into());
            let number = pool.add_device(third.clone(), place, true, &randomness).unwrap();
            pool.remove_device(number).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(checkpoints.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_bad_block_under_the_last_label_copy_does_not_make_a_change_half_true() {
    let shelf = Shelf::new(&[12, 12]);
    let pool = create("tank", 1, vec![("only", shelf.devices(&[0, 1]))]);
    *shelf.media[0].unwritable_from.lock().unwrap() = 12 * MIB - 64 * 1024;
    let removed = pool.remove_device(1).is_ok();
    drop(pool);
    // What the labels say after a crash is what the caller was told.
    let pool = open(shelf.devices(&[0])).unwrap();
    assert!(removed && pool.devices().len() == 1);
}
