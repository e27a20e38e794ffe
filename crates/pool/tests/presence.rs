//! Devices that go away and come back are told from devices that were used apart, whatever happened in between.
#![allow(clippy::unwrap_used)]

use crate::media;

use media::{Shelf, create, degraded, open, root_of, sequential, settled};
use terrace_device::SeededRandomness;
use terrace_pool::{DeviceAdd, DeviceState, Pool, PoolError, Presence, TierSettings, scan};

fn made(count: usize) -> Shelf {
    let shelf = Shelf::new(&vec![16; count]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"first").unwrap();
    shelf
}

fn presences(pool: &Pool) -> Vec<Presence> {
    pool.devices().into_iter().map(|device| device.presence).collect()
}

#[test]
fn a_device_that_was_away_is_taken_back_and_is_behind_until_it_is_whole() {
    let shelf = made(2);
    let pool = settled(shelf.devices(&[0]), degraded()).unwrap();
    assert!(matches!(presences(&pool)[1], Presence::Absent { since: 1 }));
    pool.write_root(b"alone").unwrap();
    pool.set_property("a", Some("b")).unwrap();
    drop(pool);
    // Once more without it: that it was away before must not be forgotten.
    drop(settled(shelf.devices(&[0]), degraded()).unwrap());
    for _ in 0..2 {
        let pool = settled(shelf.all(), sequential()).unwrap();
        assert_eq!(presences(&pool), [Presence::Whole, Presence::Behind]);
        assert_eq!(root_of(&pool), b"alone");
        assert_eq!(pool.property("a").as_deref(), Some("b"));
    }
    let pool = settled(shelf.all(), sequential()).unwrap();
    pool.note_whole(1).unwrap();
    assert_eq!(presences(&pool), [Presence::Whole; 2]);
    drop(pool);
    // It has the newest root, too.
    let pool = settled(shelf.devices(&[1]), degraded()).unwrap();
    assert_eq!(root_of(&pool), b"alone");
}

#[test]
fn what_does_not_open_without_a_device_was_not_used_without_it() {
    let shelf = made(2);
    // Whoever opened it found no whole state, and did not settle it.
    drop(Pool::open(shelf.devices(&[1]), degraded()).unwrap());
    drop(settled(shelf.devices(&[0]), degraded()).unwrap());
    let pool = settled(shelf.all(), sequential()).unwrap();
    assert_eq!(presences(&pool), [Presence::Whole, Presence::Behind]);
}

#[test]
fn devices_that_were_used_apart_are_refused_until_one_is_left_out() {
    for (first, second) in [(0, 1), (1, 0)] {
        let shelf = made(2);
        for (number, root) in [(first, b"one"), (second, b"two")] {
            let pool = settled(shelf.devices(&[number]), degraded()).unwrap();
            pool.write_root(root).unwrap();
        }
        for options in [sequential(), degraded()] {
            let error = settled(shelf.all(), options).unwrap_err();
            assert!(matches!(&error, PoolError::UsedApart { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("/medium/0") && text.contains("/medium/1"), "{text}");
        }
        // More of it on one side makes no difference.
        for _ in 0..3 {
            let pool = settled(shelf.devices(&[first]), degraded()).unwrap();
            pool.set_property("a", Some("b")).unwrap();
        }
        let error = settled(shelf.all(), sequential()).unwrap_err();
        assert!(matches!(&error, PoolError::UsedApart { .. }), "{error}");
        // Joined again as a new one.
        let pool = settled(shelf.devices(&[first]), degraded()).unwrap();
        let medium = shelf.devices(&[second]).remove(0);
        let place = DeviceAdd::Tier("only".into());
        let randomness = SeededRandomness::new(5);
        assert_eq!(pool.add_device(medium, place, true, &randomness).unwrap(), 2);
        pool.remove_device(second as u16).unwrap();
        drop(pool);
        let pool = settled(shelf.all(), sequential()).unwrap();
        assert_eq!(root_of(&pool), b"one");
    }
}

#[test]
fn of_three_devices_two_may_be_away_at_a_time_as_long_as_one_knows_of_all() {
    let shelf = made(3);
    let visits: [&[usize]; 6] = [&[0], &[0, 1], &[1], &[1, 2], &[2, 0], &[0]];
    for (number, there) in visits.into_iter().enumerate() {
        let pool = settled(shelf.devices(there), degraded()).unwrap();
        pool.write_root(&[number as u8]).unwrap();
    }
    let pool = settled(shelf.all(), sequential()).unwrap();
    assert_eq!(root_of(&pool), [5]);
    drop(pool);
    // In turns with nobody who knows of the one before: each has what the next one lacks.
    for there in [[1], [2]] {
        drop(settled(shelf.devices(&there), degraded()).unwrap());
    }
    let error = settled(shelf.all(), degraded()).unwrap_err();
    assert!(matches!(&error, PoolError::UsedApart { .. }), "{error}");
    // The one that was away from both goes with either.
    drop(settled(shelf.devices(&[0, 1]), degraded()).unwrap());
}

#[test]
fn an_old_label_that_tells_nothing_is_refused_and_taken_as_away_where_devices_may_be_missing() {
    let shelf = made(2);
    let before = shelf.after_power_cut(shelf.events(), 0);
    open(shelf.all()).unwrap().set_property("a", Some("b")).unwrap();
    let mut devices = shelf.devices(&[0]);
    devices.extend(before.devices(&[1]));
    let error = open(devices.clone()).unwrap_err();
    assert!(matches!(&error, PoolError::StaleDevice { .. }), "{error}");
    // What is there alone must not be lost by following the advice.
    assert!(error.to_string().contains("start tank --degraded"), "{error}");
    assert!(!error.to_string().contains("--force"), "{error}");
    let pool = settled(devices, degraded()).unwrap();
    assert_eq!((pool.returned(), pool.outdated()), (vec![1], vec![1]));
    assert_eq!(pool.devices()[1].presence, Presence::Behind);
    assert_eq!(pool.property("a").as_deref(), Some("b"));
}

#[test]
fn a_device_that_refuses_its_label_is_noted_and_the_change_holds() {
    let shelf = made(3);
    let pool = open(shelf.all()).unwrap();
    *shelf.media[1].failing_writes.lock().unwrap() = u32::MAX;
    pool.set_property("a", Some("b")).unwrap();
    assert!(matches!(presences(&pool)[1], Presence::Absent { .. }));
    assert_eq!(pool.devices()[1].state, DeviceState::Failing);
    pool.write_root(b"on the others").unwrap();
    drop(pool);
    *shelf.media[1].failing_writes.lock().unwrap() = 0;
    // Alone it is of the past, and then not to be had together with the others any more.
    let copy = shelf.after_power_cut(shelf.events(), 0);
    let pool = settled(shelf.all(), sequential()).unwrap();
    assert_eq!(pool.property("a").as_deref(), Some("b"));
    assert_eq!(root_of(&pool), b"on the others");
    assert_eq!(presences(&pool)[1], Presence::Behind);
    drop(pool);
    drop(settled(copy.devices(&[1]), degraded()).unwrap());
    let error = settled(copy.all(), sequential()).unwrap_err();
    assert!(matches!(&error, PoolError::UsedApart { .. }), "{error}");
}

#[test]
fn a_device_that_fails_is_noted_at_once_and_the_last_one_never() {
    let shelf = made(2);
    let pool = open(shelf.all()).unwrap();
    *shelf.media[0].failing_flushes.lock().unwrap() = 1;
    assert!(pool.flush(&[0]).is_err());
    pool.note_failing().unwrap();
    let generation = pool.generation();
    assert!(matches!(presences(&pool)[0], Presence::Absent { .. }));
    pool.note_failing().unwrap();
    *shelf.media[1].failing_flushes.lock().unwrap() = 1;
    assert!(pool.flush(&[1]).is_err());
    pool.note_failing().unwrap();
    assert_eq!(
        pool.generation(),
        generation,
        "it is noted once, and the last one is all there is"
    );
    drop(pool);
    let pool = settled(shelf.all(), sequential()).unwrap();
    assert_eq!(presences(&pool), [Presence::Behind, Presence::Whole]);
}

#[test]
fn a_device_that_lacks_what_another_has_is_noted_and_stays_in_use() {
    let shelf = made(2);
    let pool = open(shelf.all()).unwrap();
    pool.note_lacking(1);
    pool.note_lacking(7);
    pool.note_failing().unwrap();
    assert!(matches!(presences(&pool)[1], Presence::Absent { .. }));
    assert_eq!(pool.devices()[1].state, DeviceState::Online);
    drop(pool);
    let apart = shelf.after_power_cut(shelf.events(), 0);
    assert_eq!(
        presences(&settled(shelf.all(), sequential()).unwrap())[1],
        Presence::Behind
    );
    drop(settled(apart.devices(&[1]), degraded()).unwrap());
    let error = settled(apart.all(), sequential()).unwrap_err();
    assert!(matches!(&error, PoolError::UsedApart { .. }), "{error}");
}

#[test]
fn whatever_a_power_cut_leaves_of_going_and_coming_back_is_taken_for_what_it_is() {
    let shelf = made(3);
    shelf.remember();
    let from = shelf.events();
    drop(settled(shelf.devices(&[0, 2]), degraded()).unwrap());
    let back = settled(shelf.all(), sequential()).unwrap();
    back.note_whole(1).unwrap();
    drop(back);
    for cut in from..=shelf.events() {
        for seed in 0..6 {
            // All of them are one pool, also if the first that is there is without the one that was away.
            let whole = shelf.after_power_cut(cut, seed);
            settled(whole.all(), sequential())
                .unwrap_or_else(|error| panic!("cut {cut}, seed {seed}: {error}"));
            let apart = shelf.after_power_cut(cut, seed);
            for there in [&[0, 2][..], &[0, 1, 2], &[2], &[0, 2], &[0, 1, 2]] {
                settled(apart.devices(there), degraded())
                    .unwrap_or_else(|error| panic!("cut {cut}, seed {seed}, {there:?}: {error}"));
            }
            // But not those that were used apart from there on.
            for there in [&[0, 2][..], &[1]] {
                drop(settled(apart.devices(there), degraded()).unwrap());
            }
            let error = settled(apart.all(), sequential()).unwrap_err();
            assert!(
                matches!(&error, PoolError::UsedApart { .. }),
                "cut {cut}, seed {seed}: {error}"
            );
        }
    }
}

#[test]
fn a_label_begun_without_a_device_does_not_hide_that_it_was_used_apart() {
    // Without it for the first time, and where it is known to be away and was used apart before the label.
    for away_before in [false, true] {
        let shelf = made(3);
        if away_before {
            drop(settled(shelf.devices(&[0, 2]), degraded()).unwrap());
            drop(settled(shelf.devices(&[1]), degraded()).unwrap());
        }
        shelf.remember();
        let from = shelf.events();
        let pool = settled(shelf.devices(&[0, 2]), degraded()).unwrap();
        pool.set_property("a", Some("b")).unwrap();
        drop(pool);
        for cut in from..=shelf.events() {
            for seed in 0..6 {
                let apart = shelf.after_power_cut(cut, seed);
                for there in [&[0, 2][..], &[1]] {
                    let pool = settled(apart.devices(there), degraded()).unwrap();
                    pool.write_root(b"acknowledged").unwrap();
                }
                let error = settled(apart.all(), sequential()).map(drop).unwrap_err();
                assert!(
                    matches!(&error, PoolError::UsedApart { .. }),
                    "cut {cut}, seed {seed}, away before: {away_before}: {error}"
                );
            }
        }
    }
}

#[test]
fn a_device_that_joins_copies_is_behind() {
    let mut shelf = Shelf::new(&[16, 16]);
    let options = media::create_options("tank", vec![("only", shelf.all())]);
    let tiers = options.tiers.into_iter().map(|(settings, devices)| {
        let settings = TierSettings {
            copies: 2,
            ..settings
        };
        (settings, devices)
    });
    let options = terrace_pool::CreateOptions {
        tiers: tiers.collect(),
        ..media::create_options("tank", Vec::new())
    };
    let pool = Pool::create(options, &SeededRandomness::new(1)).unwrap();
    let third = shelf.add(16);
    let place = DeviceAdd::Tier("only".into());
    let number = pool.add_device(third, place, false, &SeededRandomness::new(2));
    assert_eq!(number.unwrap(), 2);
    assert_eq!(
        presences(&pool),
        [Presence::Whole, Presence::Whole, Presence::Behind]
    );
}

#[test]
fn looking_for_pools_tells_what_was_away_from_what_was_used_apart() {
    let base = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..2)
        .map(|number| base.path().join(format!("d{number}")))
        .collect();
    let files = || paths.iter().map(|path| terrace_device::open_path(path).unwrap());
    for path in &paths {
        terrace_device::FileDevice::create(path, Some(16 << 20)).unwrap();
    }
    let pool = create("tank", 1, vec![("only", files().collect())]);
    pool.write_root(b"root").unwrap();
    drop(pool);
    drop(settled(files().take(1).collect(), degraded()).unwrap());
    let look = || scan(&[base.path().to_path_buf()], &[]).0.remove(0);
    assert_eq!(
        (look().paths(), look().missing.len(), look().is_apart()),
        (paths.clone(), 0, false)
    );
    drop(settled(files().skip(1).collect(), degraded()).unwrap());
    assert_eq!(
        (look().paths(), look().missing.len(), look().is_apart()),
        (paths.clone(), 0, true)
    );
}

#[test]
fn a_device_that_cannot_be_read_is_not_said_to_hold_nonsense() {
    let shelf = Shelf::new(&[64, 64]);
    let tiers = vec![("fast", shelf.all())];
    drop(create("tank", 1, tiers));
    shelf.remember();
    *shelf.media[1].failing_reads.lock().unwrap() = u32::MAX;
    let Err(error) = open(shelf.all()) else {
        panic!("a pool was opened with a device of which nothing can be read");
    };
    let said = error.to_string();
    assert!(said.contains("its label cannot be read"), "{said}");
    assert!(
        said.contains("/medium/1") && said.contains("--degraded"),
        "{said}"
    );
}
