//! Changes on a full pool that give nothing back, as below a snapshot: they end while what destroys still works.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{MIB, Rig};
use terrace_dataset::{Context, FileKind, Filesystem, FsError, ROOT, SetAttributes};
use terrace_store::Store;

fn name(number: u64) -> String {
    format!("file with a name of some length {number}")
}

/// Small files until there is no room; how many.
fn fill(rig: &mut Rig, fs: &Filesystem) -> u64 {
    let root = Context::root();
    for number in 0.. {
        let name = name(number);
        let made = match fs.create(&root, ROOT, name.as_bytes(), FileKind::File, 0o600, 0) {
            Ok(made) => made,
            Err(FsError::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        };
        let length = 100 + rig.random.below(8000);
        let content = rig.random.bytes(length);
        match fs.write(&root, made.object, 0, &content, false) {
            Ok(_) | Err(FsError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
        if number % 2000 == 1999 {
            rig.tick();
        }
    }
    0
}

/// Changes the mode of all files; how many were refused.
fn change_all(rig: &Rig, fs: &Filesystem, files: u64, mode: u32) -> u64 {
    let root = Context::root();
    let change = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let mut refused = 0;
    for number in 0..files {
        let found = terrace_dataset::Tree::lookup(fs, &root, ROOT, name(number).as_bytes()).unwrap();
        match fs.set_attributes(&root, found.object, &change) {
            Ok(_) => {}
            Err(FsError::NoSpace) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if number % 2000 == 1999 {
            rig.tick();
        }
    }
    refused
}

/// Removes all files that are there; how many could not be.
fn remove_all(rig: &Rig, fs: &Filesystem, files: u64) -> u64 {
    let mut refused = 0;
    for number in 0..files {
        match fs.unlink(&Context::root(), ROOT, name(number).as_bytes()) {
            Ok(_) | Err(FsError::NotFound) => {}
            Err(FsError::NoSpace) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if number % 2000 == 1999 {
            rig.tick();
        }
    }
    refused
}

fn spent_and_brought_back(tiers_bytes: &[u64]) {
    let mut rig = Rig::new(tiers_bytes);
    let fs = rig.filesystem("tank/a");
    let files = fill(&mut rig, &fs);
    assert!(files > 2000, "{files}");
    let mut refused = 0;
    for round in 0..6 {
        if refused == 0 {
            rig.engine
                .datasets()
                .snapshots()
                .take(&format!("tank/a@s{round}"), false, "")
                .unwrap();
        }
        refused += change_all(&rig, &fs, files, 0o600 + round);
    }
    assert!(refused > 0, "below a snapshot each change takes room for good");
    remove_all(&rig, &fs, files);
    fs.sync()
        .unwrap_or_else(|error| panic!("{error}: {}", rig.figures()));
    drop(fs);
    rig.reopen(false);
    // What gives room back is not refused, however much was changed before.
    let snapshots = rig
        .engine
        .datasets()
        .snapshots()
        .list(Some("tank/a"), false)
        .unwrap();
    let snapshots: Vec<_> = snapshots.iter().map(|info| info.name.clone()).collect();
    assert!(!snapshots.is_empty());
    for snapshot in snapshots {
        rig.engine
            .datasets()
            .snapshots()
            .destroy(&snapshot, false, false)
            .unwrap_or_else(|error| panic!("{snapshot}: {error}: {}", rig.figures()));
        rig.tick();
    }
    let fs = rig.engine.datasets().filesystem("tank/a").unwrap();
    assert_eq!(remove_all(&rig, &fs, files), 0);
    for _ in 0..20 {
        rig.tick();
    }
    let space = rig.engine.chunks().space();
    assert!(space.available_bytes > space.size_bytes / 4, "{space:?}");
    rig.is_room_for(&fs, "new", 8 * MIB).unwrap();
}

#[test]
fn on_one_device_changes_end_before_what_destroys_does() {
    spent_and_brought_back(&[64 * MIB]);
}

#[test]
fn on_two_tiers_changes_end_before_what_destroys_does() {
    spent_and_brought_back(&[32 * MIB, 48 * MIB]);
}

#[test]
fn without_snapshots_removals_are_never_refused() {
    let mut rig = Rig::new(&[40 * MIB, 40 * MIB]);
    let fs = rig.filesystem("tank/a");
    let files = fill(&mut rig, &fs);
    assert_eq!(
        change_all(&rig, &fs, files / 2, 0o601),
        0,
        "there is some room for them"
    );
    for round in 2..6 {
        change_all(&rig, &fs, files, 0o600 + round);
    }
    assert_eq!(remove_all(&rig, &fs, files), 0);
    fs.sync().unwrap();
    for _ in 0..20 {
        rig.tick();
    }
    rig.is_room_for(&fs, "new", 8 * MIB).unwrap();
}
