//! No generation is used for two labels: not after one that failed on some devices or on all, not after a power cut that left
//! one on a single device, not by an opening that is tried again, not without the devices that may know of newer ones.
#![allow(clippy::unwrap_used)]

use crate::media;

use std::collections::BTreeMap;

use media::{MIB, Shelf, create, degraded, open, sequential, settled};
use terrace_device::{Device, SeededRandomness};
use terrace_pool::{DeviceAdd, LABEL_BYTES, Label, Pool, TierSettings};

/// What labels say, by generation.
#[derive(Default)]
struct Used(BTreeMap<u64, Label>);

impl Used {
    fn note(&mut self, label: Label, what: &str) {
        let label = Label { number: 0, ..label };
        let generation = label.generation;
        let before = self.0.insert(generation, label.clone());
        assert!(
            before.as_ref().is_none_or(|before| *before == label),
            "{what}: generation {generation} was {before:?} and is {label:?}"
        );
    }

    /// All labels that anybody tried to write to these media, whatever came of it.
    fn note_tried(&mut self, shelf: &Shelf, what: &str) {
        let tried = std::mem::take(&mut *shelf.journal.labels.lock().unwrap());
        tried.into_iter().for_each(|label| self.note(label, what));
    }

    /// All labels that can be read on them.
    fn note_found(&mut self, shelf: &Shelf, what: &str) {
        for medium in &shelf.media {
            for offset in [0, LABEL_BYTES as u64, medium.size_bytes() - LABEL_BYTES as u64] {
                let mut bytes = vec![0; LABEL_BYTES];
                medium.memory.read_at(offset, &mut bytes).unwrap();
                if let Ok(label) = Label::decode(&bytes) {
                    self.note(label, what);
                }
            }
        }
    }
}

fn made(count: usize) -> (Shelf, Pool) {
    let shelf = Shelf::new(&vec![16; count]);
    let pool = create("tank", 1, vec![("only", shelf.all())]);
    pool.write_root(b"first").unwrap();
    (shelf, pool)
}

/// Changes of all kinds; whether each is done does not matter here.
fn changes(shelf: &mut Shelf, pool: &Pool) -> usize {
    let joining = shelf.add(16);
    let place = DeviceAdd::Tier("only".into());
    let added = pool.add_device(joining, place, false, &SeededRandomness::new(9));
    let done = [
        pool.set_property("a", Some("b")).is_ok(),
        pool.set_tier("only", TierSettings::named("only")).is_ok(),
        pool.rename("pond").is_ok(),
        pool.note_failing().is_ok(),
        pool.take_back(&[0, 1, 2]).is_ok(),
        pool.note_whole(1).is_ok(),
        added.is_ok_and(|number| pool.remove_device(number).is_ok()),
    ];
    done.into_iter().filter(|done| *done).count()
}

#[test]
fn a_label_that_some_device_refused_has_its_generation_for_itself() {
    let mut done = 0;
    // Each of the media, and all of them, fails for a while: at once, or later.
    for failing in 0..4 {
        for times in 1..8 {
            for of_flushes in [false, true] {
                let (mut shelf, pool) = made(3);
                let what = format!("medium {failing} fails {times} times, in flushes: {of_flushes}");
                let mut used = Used::default();
                for (index, medium) in shelf.media.iter().enumerate() {
                    if failing == index || failing == 3 {
                        let counter = match of_flushes {
                            true => &medium.failing_flushes,
                            false => &medium.failing_writes,
                        };
                        *counter.lock().unwrap() = times;
                    }
                }
                done += changes(&mut shelf, &pool);
                used.note_tried(&shelf, &what);
                // And then all goes well again.
                done += changes(&mut shelf, &pool);
                used.note_tried(&shelf, &what);
                used.note_found(&shelf, &what);
            }
        }
    }
    assert!(done > 200, "{done} changes were made");
}

#[test]
fn a_label_that_a_power_cut_left_on_one_device_has_its_generation_for_itself() {
    let (shelf, pool) = made(2);
    let before = shelf.events();
    pool.set_property("a", Some("b")).unwrap();
    let mut begun = 0;
    for cut in before..=shelf.events() {
        for seed in 0..12 {
            let after = shelf.after_power_cut(cut, (cut as u64) << 8 | seed);
            let what = format!("cut {cut}, seed {seed}");
            let mut used = Used::default();
            used.note_found(&after, &what);
            let pool = open(after.all()).unwrap();
            begun += usize::from(used.0.len() > 1);
            pool.settle_roots().unwrap();
            pool.set_property("c", Some("d")).unwrap();
            used.note_tried(&after, &what);
        }
    }
    assert!(begun > 10, "{begun} times a label was left on a device");
}

#[test]
fn an_opening_that_is_tried_again_uses_no_generation_twice() {
    for first in 0..3 {
        let (shelf, pool) = made(3);
        drop(pool);
        let mut used = Used::default();
        used.note_found(&shelf, "before");
        let pool = Pool::open(shelf.all(), sequential()).unwrap();
        // Every device refuses the label that the opening writes, one after the other; then it is another one that does.
        let refuse = |medium: &std::sync::Arc<media::Medium>| *medium.failing_writes.lock().unwrap() = 2;
        shelf.media.iter().for_each(refuse);
        assert!(pool.settle_roots().is_err());
        used.note_tried(&shelf, "refused by all");
        refuse(&shelf.media[first]);
        let _ = pool.settle_roots();
        used.note_tried(&shelf, &format!("refused by medium {first}"));
        let _ = pool.set_property("a", Some(&first.to_string()));
        used.note_tried(&shelf, "at last");
    }
}

#[test]
fn a_change_before_the_opening_is_settled_leaves_it_no_generation_of_its_own() {
    let (shelf, pool) = made(2);
    drop(pool);
    let mut used = Used::default();
    used.note_found(&shelf, "before");
    let pool = Pool::open(shelf.all(), sequential()).unwrap();
    shelf.media.iter().for_each(|medium| {
        *medium.failing_writes.lock().unwrap() = 2;
    });
    assert!(pool.set_property("a", Some("b")).is_err());
    shelf.media.iter().for_each(|medium| {
        *medium.failing_writes.lock().unwrap() = 0;
    });
    let tried = pool.generation();
    pool.settle_roots().unwrap();
    pool.set_property("a", Some("c")).unwrap();
    used.note_tried(&shelf, "settled after a change that failed");
    assert!(pool.generation() > tried + 2, "what was tried is passed over");
}

#[test]
fn who_opens_without_a_device_passes_over_what_that_may_know() {
    let (shelf, pool) = made(2);
    drop(pool);
    let mut used = Used::default();
    used.note_found(&shelf, "before");
    // A label that only the second device has got: its first copy.
    let pool = open(shelf.all()).unwrap();
    pool.settle_roots().unwrap();
    *shelf.media[0].failing_flushes.lock().unwrap() = 1;
    let _ = pool.set_property("a", Some("b"));
    drop(pool);
    *shelf.media[0].failing_flushes.lock().unwrap() = 0;
    used.note_tried(&shelf, "with both");
    let pool = settled(shelf.devices(&[0]), degraded()).unwrap();
    pool.set_property("a", Some("c")).unwrap();
    used.note_tried(&shelf, "without the second one");
    assert!(shelf.media[0].size_bytes() == 16 * MIB);
}
