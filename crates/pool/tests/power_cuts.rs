//! A power cut at any moment of any change leaves the state before or after it: never neither, never a refusal.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::sync::Arc;

use media::{MIB, Shelf, create, open};
use terrace_device::{Device, SeededRandomness};
use terrace_pool::{DeviceAdd, Pool, PoolError, PoolState, TierSettings};

/// Makes a change and opens the pool after a power cut before each of its writes and flushes, torn in several ways.
/// `check` gets the opened pool; after the whole change only the new state will do.
fn at_every_moment(
    shelf: &Shelf,
    change: impl FnOnce(),
    check: impl Fn(&Shelf, Result<Pool, PoolError>) -> Result<Moment, String>,
) {
    let before = shelf.events();
    change();
    let after = shelf.events();
    assert!(after > before, "the change wrote nothing");
    let (mut old, mut new) = (0, 0);
    for cut in before..=after {
        for seed in 0..12 {
            let survivors = shelf.after_power_cut(cut, (cut as u64) << 8 | seed);
            let moment = check(&survivors, open(survivors.all()));
            match moment
                .unwrap_or_else(|reason| panic!("cut {cut} of {before}..{after}, seed {seed}: {reason}"))
            {
                Moment::Before => {
                    assert!(cut < after, "seed {seed}: the change returned, yet it is lost");
                    old += 1;
                }
                Moment::After => new += 1,
            }
        }
    }
    assert!(old > 0 && new > 0, "{old} times before, {new} times after");
}

#[derive(Debug, PartialEq)]
enum Moment {
    Before,
    After,
}

fn root(pool: &Pool) -> Result<Vec<u8>, String> {
    pool.read_root()
        .map_err(|error| error.to_string())?
        .ok_or_else(|| "no root".into())
}

#[test]
fn a_root_is_the_old_or_the_new_one() {
    for sizes in [vec![16], vec![16, 16, 24]] {
        let shelf = Shelf::new(&sizes);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        pool.write_root(&[0; 60_000]).unwrap();
        for round in 1..5u8 {
            at_every_moment(
                &shelf,
                || pool.write_root(&[round; 60_000]).unwrap(),
                |_, opened| {
                    let payload = root(&opened.map_err(|error| error.to_string())?)?;
                    match payload {
                        _ if payload == [round; 60_000] => Ok(Moment::After),
                        _ if payload == [round - 1; 60_000] => Ok(Moment::Before),
                        _ => Err("neither root".into()),
                    }
                },
            );
        }
    }
}

#[test]
fn a_change_cut_off_is_ended_before_the_next_one_begins() {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    let before = shelf.events();
    pool.set_property("word", Some("new")).unwrap();
    let mut again = 0;
    for cut in before..shelf.events() {
        for seed in 0..3 {
            let once = shelf.after_power_cut(cut, seed);
            once.remember();
            let start = once.events();
            // Mends what the cut left behind, and is cut off itself.
            let word = open(once.all()).unwrap().property("word");
            for cut in start..=once.events() {
                for seed in 0..4 {
                    let twice = once.after_power_cut(cut, seed);
                    match open(twice.all()) {
                        Ok(pool) => assert_eq!(pool.property("word"), word),
                        Err(error) => panic!("cut {cut} of {start}..{}, seed {seed}: {error}", once.events()),
                    }
                    again += 1;
                }
            }
        }
    }
    assert!(again > 500, "{again}");
}

#[test]
fn roots_written_after_a_crash_do_not_endanger_the_one_that_survived() {
    for cut_seed in 0..20 {
        let shelf = Shelf::new(&[16, 16]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        pool.write_root(b"one").unwrap();
        let before = shelf.events();
        pool.write_root(b"two").unwrap();
        let cut = before + cut_seed as usize % (shelf.events() - before);
        // The survivor, opened: completes the roots, then writes the next one and loses power again.
        let first = shelf.after_power_cut(cut, cut_seed);
        let opened = open(first.all()).unwrap();
        let kept = root(&opened).unwrap();
        let base = Shelf {
            journal: Arc::default(),
            media: Vec::new(),
        };
        drop(base);
        opened.write_root(b"three").unwrap();
        for device in 0..2 {
            // The loss of one device after a completed write: the other has the newest root.
            let options = terrace_pool::OpenOptions {
                degraded: true,
                ..media::sequential()
            };
            let alone = Pool::open(first.devices(&[device]), options).unwrap();
            assert_eq!(root(&alone).unwrap(), b"three", "kept {kept:?}");
        }
    }
}

#[test]
fn a_crash_between_two_devices_is_mended_before_either_may_be_lost() {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"one").unwrap();
    let before = shelf.events();
    pool.write_root(b"two").unwrap();
    let mut mended = 0;
    for cut in before..shelf.events() {
        for seed in 0..16 {
            let survivors = shelf.after_power_cut(cut, seed);
            let pool = open(survivors.all()).unwrap();
            let kept = root(&pool).unwrap();
            pool.settle_roots().unwrap();
            mended += u32::from(survivors.events() > 0);
            for device in 0..2 {
                let options = terrace_pool::OpenOptions {
                    degraded: true,
                    read_only: true,
                    ..media::sequential()
                };
                let alone = Pool::open(survivors.devices(&[device]), options).unwrap();
                assert_eq!(root(&alone).unwrap(), kept, "cut {cut}, seed {seed}");
            }
        }
    }
    assert!(mended > 0);
}

#[test]
fn a_crash_between_two_copies_is_mended_before_either_may_go_bad() {
    const SLOTS: [u64; 4] = [256 * 1024, 384 * 1024, 512 * 1024, 640 * 1024];
    let shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"one").unwrap();
    pool.write_root(b"two").unwrap();
    let before = shelf.events();
    pool.write_root(b"three").unwrap();
    let mut mended = 0;
    for cut in before..shelf.events() {
        for seed in 0..16 {
            let survivors = shelf.after_power_cut(cut, seed);
            let pool = open(survivors.all()).unwrap();
            let kept = root(&pool).unwrap();
            let whole = survivors.events();
            pool.settle_roots().unwrap();
            mended += u32::from(survivors.events() > whole);
            for slot in SLOTS {
                *survivors.media[0].unreadable.lock().unwrap() = vec![(slot, u32::MAX)];
                assert_eq!(
                    root(&open(survivors.all()).unwrap()).unwrap(),
                    kept,
                    "cut {cut}, seed {seed}, {slot} is bad"
                );
            }
        }
    }
    assert!(mended > 0);
}

#[test]
fn a_root_that_could_not_be_read_never_comes_back() {
    const SLOT_OF_TWO: [u64; 2] = [384 * 1024, 640 * 1024];
    for attempts in [2, u32::MAX] {
        let shelf = Shelf::new(&[16]);
        let pool = create("tank", 1, vec![("only", shelf.all())]);
        pool.write_root(b"one").unwrap();
        pool.write_root(b"two").unwrap();
        *shelf.media[0].unreadable.lock().unwrap() = SLOT_OF_TWO.map(|at| (at, attempts)).into();
        let before = shelf.events();
        let reopened = open(shelf.all()).unwrap();
        let readable = || shelf.media[0].unreadable.lock().unwrap().clear();
        if attempts == 2 {
            assert_eq!(root(&reopened).unwrap(), b"two", "it is read again");
            continue;
        }
        assert_eq!(root(&reopened).unwrap(), b"one");
        assert_eq!(shelf.events(), before, "nothing is decided yet");
        readable();
        assert_eq!(root(&open(shelf.all()).unwrap()).unwrap(), b"two");
        // Now somebody goes on from what there was.
        reopened.settle_roots().unwrap();
        assert_eq!(root(&open(shelf.all()).unwrap()).unwrap(), b"one");
        for cut in before..=shelf.events() {
            let kept = open(shelf.after_power_cut(cut, cut as u64).all()).unwrap();
            assert!([&b"one"[..], b"two"].contains(&&*root(&kept).unwrap()));
        }
        reopened.write_root(b"three").unwrap();
        assert_eq!(root(&open(shelf.all()).unwrap()).unwrap(), b"three");
    }
}

#[test]
fn one_bad_copy_of_the_newest_root_costs_nothing_and_is_written_again() {
    for bad in [384 * 1024, 640 * 1024] {
        for unreadable in [true, false] {
            let shelf = Shelf::new(&[16]);
            let pool = create("tank", 1, vec![("only", shelf.all())]);
            pool.write_root(b"one").unwrap();
            pool.write_root(b"two").unwrap();
            drop(pool);
            match unreadable {
                true => shelf.media[0].unreadable.lock().unwrap().push((bad, u32::MAX)),
                false => shelf.media[0].memory.write_at(bad, &[7; 4096]).unwrap(),
            }
            let pool = open(shelf.all()).unwrap();
            assert_eq!(root(&pool).unwrap(), b"two");
            assert_eq!(pool.check_copies().0.len(), 1);
            pool.settle_roots().unwrap();
            shelf.media[0].unreadable.lock().unwrap().clear();
            let pool = open(shelf.all()).unwrap();
            assert_eq!(pool.check_copies().0, [""; 0]);
            pool.write_root(b"three").unwrap();
            assert_eq!(root(&open(shelf.all()).unwrap()).unwrap(), b"three");
        }
    }
}

#[test]
fn no_slot_that_could_not_be_read_is_left_as_it_was() {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"one").unwrap();
    pool.write_root(b"two").unwrap();
    drop(pool);
    // Both slots of the second device, in both copies.
    for slot in [256 * 1024, 384 * 1024, 512 * 1024, 640 * 1024] {
        shelf.media[1].memory.write_at(slot, &[7; 4096]).unwrap();
    }
    let pool = open(shelf.all()).unwrap();
    assert_eq!(root(&pool).unwrap(), b"two");
    pool.settle_roots().unwrap();
    let (problems, _) = open(shelf.all()).unwrap().check_copies();
    assert_eq!(problems, [""; 0]);
}

#[test]
fn a_failed_root_write_leaves_the_last_good_one_however_often_it_is_tried() {
    let shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"good").unwrap();
    let mark = shelf.events();
    for _ in 0..3 {
        *shelf.media[0].failing_flushes.lock().unwrap() = 1;
        pool.write_root(b"lost").unwrap_err();
    }
    for seed in 0..30 {
        let survivors = shelf.after_power_cut(shelf.events(), seed);
        let payload = root(&open(survivors.all()).unwrap()).unwrap();
        assert!(payload == b"good" || payload == b"lost");
    }
    assert_eq!(root(&pool).unwrap(), b"good");
    assert!(shelf.events() > mark);
}

#[test]
fn damaged_roots_are_told_from_none() {
    let shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    assert_eq!(pool.read_root().unwrap(), None);
    assert_eq!(open(shelf.all()).unwrap().read_root().unwrap(), None);
    assert!(pool.write_root(&[0; 65_537]).is_err());
    pool.write_root(b"").unwrap();
    assert_eq!(open(shelf.all()).unwrap().read_root().unwrap().unwrap(), b"");
    pool.write_root(b"second").unwrap();
    let newest = [384 * 1024, 640 * 1024];
    let mut block = vec![0; 4096];
    for byte in (0..80).chain([4096 - 1]) {
        let damaged = shelf.after_power_cut(shelf.events(), 2);
        let memory = &damaged.media[0].memory;
        for (copy, slot) in newest.into_iter().enumerate() {
            memory.read_at(slot, &mut block).unwrap();
            block[byte] ^= 0x10;
            memory.write_at(slot, &block).unwrap();
            let opened = open(damaged.all()).unwrap();
            let payload = opened.read_root().unwrap().unwrap();
            // Beyond the 72 bytes of the header nothing is read. The other copy is as good.
            let lost = byte < 72 && copy == 1;
            assert_eq!(payload, if lost { &b""[..] } else { b"second" }, "byte {byte}");
            assert_eq!(opened.check_copies().0.is_empty(), byte >= 72);
        }
    }
    for slot in [256 * 1024, 384 * 1024, 512 * 1024, 640 * 1024] {
        shelf.media[0].memory.write_at(slot, &[0x77; 4096]).unwrap();
    }
    assert!(matches!(
        open(shelf.all()).unwrap().read_root(),
        Err(PoolError::NoRoot(_))
    ));
}

#[test]
fn a_property_is_the_old_or_the_new_one() {
    let shelf = Shelf::new(&[16, 16, 24]);
    let pool = create(
        "tank",
        1,
        vec![("fast", shelf.devices(&[0, 1])), ("slow", shelf.devices(&[2]))],
    );
    pool.set_property("memory", Some("0")).unwrap();
    for round in 1..4 {
        let (old, new) = ((round - 1).to_string(), round.to_string());
        at_every_moment(
            &shelf,
            || pool.set_property("memory", Some(&new)).unwrap(),
            |survivors, opened| {
                let pool = opened.map_err(|error| error.to_string())?;
                let value = pool.property("memory").unwrap_or_default();
                // Opening settled the matter: the next opening says the same.
                drop(pool);
                let again = open(survivors.all()).map_err(|error| error.to_string())?;
                assert_eq!(again.property("memory").unwrap_or_default(), value);
                match value {
                    _ if value == new => Ok(Moment::After),
                    _ if value == old => Ok(Moment::Before),
                    other => Err(format!("value {other:?}")),
                }
            },
        );
    }
}

#[test]
fn export_happens_or_does_not() {
    let shelf = Shelf::new(&[16, 16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    at_every_moment(
        &shelf,
        || pool.set_state(PoolState::Exported).unwrap(),
        |_, opened| match opened {
            Ok(_) => Ok(Moment::Before),
            Err(PoolError::WrongState { .. }) => Ok(Moment::After),
            Err(error) => Err(error.to_string()),
        },
    );
}

#[test]
fn a_device_is_shrunk_or_is_not() {
    let shelf = Shelf::new(&[16, 24]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"root").unwrap();
    at_every_moment(
        &shelf,
        || pool.shrink_device(1, 12 * MIB).unwrap(),
        |survivors, opened| {
            let pool = opened.map_err(|error| error.to_string())?;
            assert_eq!(root(&pool)?, b"root");
            let size = pool.devices()[1].size_bytes;
            assert_eq!(
                pool.total_segments(),
                14 + u64::from(pool.segments_in(size)),
                "as many segments as the label says"
            );
            // Asked for again it comes to its end, whatever had happened.
            pool.shrink_device(1, 12 * MIB)
                .map_err(|error| error.to_string())?;
            assert_eq!(survivors.media[1].memory.size_bytes(), 12 * MIB);
            open(survivors.all()).map_err(|error| error.to_string())?;
            match size / MIB {
                12 => Ok(Moment::After),
                24 => Ok(Moment::Before),
                other => Err(format!("{other} MiB")),
            }
        },
    );
    assert_eq!(shelf.media[1].memory.size_bytes(), 12 * MIB);
}

#[test]
fn nothing_is_cut_off_that_a_label_may_still_call_part_of_the_device() {
    let shelf = Shelf::new(&[16, 24]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"root").unwrap();
    // The other device takes copy 0 of the new label and nothing behind it.
    *shelf.media[0].unwritable_from.lock().unwrap() = 64 * 1024;
    pool.shrink_device(1, 12 * MIB).unwrap_err();
    assert_eq!(shelf.media[1].memory.size_bytes(), 24 * MIB);
    *shelf.media[0].unwritable_from.lock().unwrap() = u64::MAX;
    pool.shrink_device(1, 12 * MIB).unwrap();
    assert_eq!(shelf.media[1].memory.size_bytes(), 12 * MIB);
    drop(pool);
    let pool = open(shelf.all()).unwrap();
    assert_eq!(pool.devices()[1].size_bytes, 12 * MIB);
}

#[test]
fn a_device_joins_or_does_not() {
    let mut shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("slow", shelf.all())]);
    pool.write_root(b"root").unwrap();
    let joining: Arc<dyn Device> = shelf.add(20);
    let before = shelf.events();
    let place = DeviceAdd::NewTier {
        position: 0,
        settings: TierSettings::named("fast"),
    };
    assert_eq!(
        pool.add_device(joining, place, false, &SeededRandomness::new(5))
            .unwrap(),
        1
    );
    for cut in before..=shelf.events() {
        for seed in 0..12 {
            let survivors = shelf.after_power_cut(cut, seed);
            // Until it joined, the device may bear no label: then the old one alone is the pool.
            let both = open(survivors.all());
            let pool = match both {
                Err(PoolError::NoLabel { path, .. }) if path == "/medium/1" => {
                    open(survivors.devices(&[0])).unwrap()
                }
                both => both.unwrap_or_else(|error| panic!("cut {cut} seed {seed}: {error}")),
            };
            assert_eq!(root(&pool).unwrap(), b"root");
            match pool.devices().len() {
                1 => assert!(cut < shelf.events() && pool.tiers().len() == 1),
                2 => {
                    assert_eq!(pool.tier_of(0), Some(1));
                    assert_eq!(pool.tier_of(1), Some(0));
                    assert_eq!(pool.tiers()[0].settings.name, "fast");
                }
                other => panic!("{other} devices"),
            }
            drop(pool);
            if cut < before + 3 {
                // Long before the end the old device alone must do.
                open(survivors.devices(&[0])).unwrap();
            }
        }
    }
    assert_eq!(open(shelf.all()).unwrap().devices().len(), 2);
}

#[test]
fn a_device_leaves_or_does_not_and_takes_nothing_along() {
    let shelf = Shelf::new(&[16, 20]);
    let pool = create(
        "tank",
        1,
        vec![("fast", shelf.devices(&[0])), ("slow", shelf.devices(&[1]))],
    );
    pool.write_root(b"root").unwrap();
    let before = shelf.events();
    pool.remove_device(0).unwrap();
    let (mut whole, mut left) = (0, 0);
    for cut in before..=shelf.events() {
        for seed in 0..12 {
            let survivors = shelf.after_power_cut(cut, seed);
            let pool = match open(survivors.devices(&[1])) {
                Ok(pool) => {
                    left += 1;
                    pool
                }
                Err(PoolError::MissingDevices { .. }) => {
                    assert!(cut < shelf.events());
                    whole += 1;
                    open(survivors.all()).unwrap()
                }
                Err(error) => panic!("cut {cut} seed {seed}: {error}"),
            };
            assert_eq!(root(&pool).unwrap(), b"root");
        }
    }
    assert!(whole > 0 && left > 0);
    assert!(
        matches!(open(shelf.devices(&[0])), Err(PoolError::NoLabel { .. })),
        "its label is wiped"
    );
}

#[test]
fn a_device_grows_or_does_not() {
    let shelf = Shelf::new(&[16]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.set_property("a", Some("b")).unwrap();
    assert_eq!(pool.resize_device(0).unwrap(), 14);
    shelf.media[0].memory.grow(30 * MIB);
    at_every_moment(
        &shelf,
        || assert_eq!(pool.resize_device(0).unwrap(), 28),
        |_, opened| {
            let pool = opened.map_err(|error| error.to_string())?;
            assert_eq!(pool.property("a").as_deref(), Some("b"));
            match pool.devices()[0].segments {
                14 => Ok(Moment::Before),
                28 => Ok(Moment::After),
                other => Err(format!("{other} segments")),
            }
        },
    );
    assert_eq!(pool.free_segments(), 28);
}
