//! `fallocate`: where it succeeded no write to the range is refused for want of room, whatever others write, over snapshots, quotas and
//! restarts; where there is no room it says so at once; what is cut off, punched out or deleted gives its room back.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use std::sync::Arc;

use full_pool::{BLOCK, MIB, Rig};
use terrace_dataset::{
    AllocateMode, Context, DatasetError, FileKind, Filesystem, FsError, ROOT, SetAttributes, Tree, check,
};

const RESERVE: AllocateMode = AllocateMode::Reserve { keep_size: false };
const KEEP: AllocateMode = AllocateMode::Reserve { keep_size: true };

/// A file with what it must hold.
struct Modelled {
    filesystem: Arc<Filesystem>,
    object: u64,
    model: Vec<u8>,
}

impl Modelled {
    fn new(filesystem: &Arc<Filesystem>, name: &str, size: u64) -> Self {
        Self {
            filesystem: filesystem.clone(),
            object: make(filesystem, name),
            model: vec![0; size as usize],
        }
    }

    fn allocate(&self, mode: AllocateMode, offset: u64, length: u64) -> Result<(), FsError> {
        self.filesystem
            .allocate(&Context::root(), self.object, mode, offset, length)
    }

    fn write(&mut self, offset: u64, content: &[u8]) {
        self.filesystem
            .write(&Context::root(), self.object, offset, content, false)
            .unwrap_or_else(|error| panic!("at {} KiB: {error}", offset >> 10));
        self.model[offset as usize..][..content.len()].copy_from_slice(content);
    }

    fn write_all(&mut self, rig: &mut Rig) {
        for offset in (0..self.model.len() as u64).step_by(128 << 10) {
            let content = rig.random.bytes(128 << 10);
            self.write(offset, &content);
        }
        self.filesystem.sync().unwrap();
    }

    fn scatter(&mut self, rig: &mut Rig, blocks: u64) {
        for count in 0..blocks {
            let block = rig.random.below(self.model.len() as u64 / BLOCK);
            let content = rig.random.bytes(BLOCK);
            self.write(block * BLOCK, &content);
            if count % 61 == 60 {
                self.filesystem.sync().unwrap();
            }
            if count % 997 == 996 {
                rig.tick();
            }
        }
        self.filesystem.sync().unwrap();
    }

    fn verify(&self, rig: &Rig) {
        let mut read = vec![0; self.model.len()];
        let length = self.filesystem.read(self.object, 0, &mut read).unwrap();
        assert_eq!(length, self.model.len());
        assert!(read == self.model);
        counts_are_exact(rig);
    }

    fn blocks(&self) -> u64 {
        self.filesystem.attributes(self.object).unwrap().blocks512 / 8
    }
}

fn make(filesystem: &Filesystem, name: &str) -> u64 {
    filesystem
        .create(&Context::root(), ROOT, name.as_bytes(), FileKind::File, 0o600, 0)
        .unwrap()
        .object
}

fn counts_are_exact(rig: &Rig) {
    let report = check(rig.engine.store()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

fn available(rig: &Rig) -> u64 {
    rig.engine.store().space().available_bytes
}

fn reopened(rig: &mut Rig, file: Modelled, cleanly: bool) -> Modelled {
    let Modelled {
        filesystem,
        object,
        model,
    } = file;
    drop(filesystem);
    rig.reopen(cleanly);
    Modelled {
        filesystem: rig.engine.datasets().filesystem("tank/data").unwrap(),
        object,
        model,
    }
}

#[test]
fn preallocated_file_is_written_over_and_over_on_a_pool_that_others_filled_also_after_restarts() {
    let mut rig = Rig::new(&[128 * MIB]);
    let mut file = Modelled::new(&rig.filesystem("tank/data"), "database", 24 * MIB);
    file.allocate(RESERVE, 0, 24 * MIB).unwrap();
    rig.fill(&file.filesystem, "filler");
    file.write_all(&mut rig);
    file.verify(&rig);
    for (round, cleanly) in [true, false, false].into_iter().enumerate() {
        rig.fill(&file.filesystem, &format!("filler{round}"));
        file.scatter(&mut rig, 6000);
        file.verify(&rig);
        file = reopened(&mut rig, file, cleanly);
        file.verify(&rig);
    }
    file.write_all(&mut rig);
    file.verify(&rig);
}

/// Preallocated, and nothing written yet, when the pool is opened again.
#[test]
fn promise_that_nothing_was_written_to_holds_after_a_restart() {
    for cleanly in [true, false] {
        let mut rig = Rig::new(&[128 * MIB]);
        let mut file = Modelled::new(&rig.filesystem("tank/data"), "database", 32 * MIB);
        file.allocate(RESERVE, 0, 32 * MIB).unwrap();
        file.filesystem.sync().unwrap();
        file = reopened(&mut rig, file, cleanly);
        rig.fill(&file.filesystem, "filler");
        file.write_all(&mut rig);
        file.verify(&rig);
    }
}

/// What compresses, is there twice, or is copied by reference gives back less than it takes when it is written over.
#[test]
fn content_that_was_there_before_or_is_shared_is_written_over_in_its_full_size() {
    let mut rig = Rig::new(&[160 * MIB]);
    let data = rig.filesystem("tank/data");
    let mut file = Modelled::new(&data, "database", 32 * MIB);
    let text = "all the same and compressed ".repeat(5000).into_bytes();
    let same = rig.random.bytes(128 << 10);
    for offset in (0..16 * MIB).step_by(128 << 10) {
        file.write(
            offset,
            if offset < 8 * MIB {
                &text[..128 << 10]
            } else {
                &same
            },
        );
    }
    file.allocate(RESERVE, 0, 32 * MIB).unwrap();
    for offset in (16 * MIB..32 * MIB).step_by(128 << 10) {
        file.write(
            offset,
            if offset < 24 * MIB {
                &text[..128 << 10]
            } else {
                &same
            },
        );
    }
    file.filesystem.sync().unwrap();
    let copy = make(&data, "copy");
    let copied = data.copy_range(&Context::root(), file.object, 0, copy, 0, 32 * MIB);
    assert_eq!(copied, Ok(32 * MIB));
    file.verify(&rig);
    drop(data);
    file = reopened(&mut rig, file, true);
    // The same content once more, when whatever finds equal content was loaded again.
    let twin = make(&file.filesystem, "twin");
    for offset in (0..32 * MIB).step_by(128 << 10) {
        let content = &file.model[offset as usize..][..128 << 10];
        let root = Context::root();
        file.filesystem
            .write(&root, twin, offset, content, false)
            .unwrap();
    }
    file.filesystem.sync().unwrap();
    rig.fill(&file.filesystem, "filler");
    file.write_all(&mut rig);
    file.verify(&rig);
    file.scatter(&mut rig, 2000);
    file.verify(&rig);
}

#[test]
fn snapshot_sets_aside_what_writing_over_preallocated_files_takes_or_is_refused() {
    let mut rig = Rig::new(&[192 * MIB]);
    let data = rig.filesystem("tank/data");
    let mut file = Modelled::new(&data, "database", 32 * MIB);
    file.allocate(RESERVE, 0, 32 * MIB).unwrap();
    file.write_all(&mut rig);
    let snapshot = |rig: &Rig, name: &str| rig.engine.datasets().snapshots().take(name, false, "");
    snapshot(&rig, "tank/data@first").unwrap();
    rig.fill(&data, "filler");
    for _ in 0..2 {
        file.write_all(&mut rig);
        file.scatter(&mut rig, 3000);
        file.verify(&rig);
    }
    let refused = snapshot(&rig, "tank/data@second").unwrap_err();
    assert!(
        matches!(refused, DatasetError::NoRoomForPreallocated { .. }),
        "{refused}"
    );
    // Retention holds none, and nobody is refused for it.
    let set = |rig: &Rig, value: &str| {
        rig.engine
            .datasets()
            .properties()
            .set("tank/data", "retention", value)
            .unwrap()
    };
    set(&rig, "all:1h");
    file.scatter(&mut rig, 500);
    rig.tick();
    file.write_all(&mut rig);
    set(&rig, "none");
    file.verify(&rig);
    drop(data);
    file = reopened(&mut rig, file, false);
    file.write_all(&mut rig);
    rig.engine
        .datasets()
        .snapshots()
        .destroy("tank/data@first", false, false)
        .unwrap();
    rig.tick();
    file.write_all(&mut rig);
    file.verify(&rig);
}

#[test]
fn preallocation_counts_against_quotas_at_once_and_is_written_when_they_are_used_up() {
    let mut rig = Rig::new(&[128 * MIB]);
    let data = rig.filesystem("tank/data");
    rig.engine
        .datasets()
        .properties()
        .set("tank/data", "quota", "20M")
        .unwrap();
    let mut file = Modelled::new(&data, "database", 16 * MIB);
    assert_eq!(file.allocate(RESERVE, 0, 24 * MIB), Err(FsError::QuotaExceeded));
    assert_eq!(data.attributes(file.object).unwrap().size, 0);
    file.allocate(RESERVE, 0, 16 * MIB).unwrap();
    let filled = rig.fill(&data, "filler");
    assert!((3 * MIB..=4 * MIB).contains(&filled), "{filled}");
    file.write_all(&mut rig);
    file.scatter(&mut rig, 2000);
    file.verify(&rig);
    assert_eq!(file.allocate(KEEP, 16 * MIB, MIB), Err(FsError::QuotaExceeded));
    // What is there counts once.
    file.allocate(RESERVE, 0, 16 * MIB).unwrap();
    file.verify(&rig);
}

#[test]
fn preallocation_without_room_fails_at_once_and_changes_nothing() {
    let mut rig = Rig::new(&[96 * MIB]);
    let data = rig.filesystem("tank/data");
    let file = Modelled::new(&data, "database", 0);
    data.sync().unwrap();
    let before = available(&rig);
    for mode in [RESERVE, KEEP, AllocateMode::Zero { keep_size: false }] {
        assert_eq!(
            file.allocate(mode, 0, 90 * MIB),
            Err(FsError::NoSpace),
            "{mode:?}"
        );
    }
    let attributes = data.attributes(file.object).unwrap();
    assert_eq!((attributes.size, attributes.blocks512), (0, 0));
    data.sync().unwrap();
    assert!(available(&rig) + MIB > before);
    rig.fill(&data, "filler");
    file.verify(&rig);
}

#[test]
fn what_is_punched_out_cut_off_or_deleted_gives_its_room_back() {
    let rig = Rig::new(&[256 * MIB]);
    let data = rig.filesystem("tank/data");
    let root = Context::root();
    data.sync().unwrap();
    let empty = available(&rig);
    let mut file = Modelled::new(&data, "database", 0);
    let taken = |rig: &Rig| {
        data.sync().unwrap();
        (empty.saturating_sub(available(rig)) + MIB / 2) / MIB
    };
    file.allocate(KEEP, 4 * MIB, 60 * MIB).unwrap();
    // At once, before anything is committed.
    assert!(empty - available(&rig) >= 60 * MIB);
    let working = taken(&rig) - 60;
    assert!(working < 16, "{working}");
    let attributes = data.attributes(file.object).unwrap();
    assert_eq!((attributes.size, file.blocks()), (0, 60 * 256));
    file.allocate(AllocateMode::Punch, 10 * MIB, 10 * MIB).unwrap();
    assert_eq!((taken(&rig), file.blocks()), (50 + working, 50 * 256));
    file.model = vec![0; 8 * MIB as usize];
    for offset in (4 * MIB..8 * MIB).step_by(128 << 10) {
        file.write(offset, &vec![offset as u8 | 1; 128 << 10]);
    }
    data.sync().unwrap();
    assert_eq!(file.blocks(), 50 * 256, "what was written was there already");
    file.verify(&rig);
    let cut = SetAttributes {
        size: Some(6 * MIB),
        ..SetAttributes::default()
    };
    data.set_attributes(&root, file.object, &cut).unwrap();
    data.sync().unwrap();
    assert_eq!(file.blocks(), 2 * 256, "also what lay behind the end");
    file.model.truncate(6 * MIB as usize);
    file.verify(&rig);
    file.allocate(AllocateMode::Zero { keep_size: true }, 0, 32 * MIB)
        .unwrap();
    data.sync().unwrap();
    assert_eq!(file.blocks(), 32 * 256);
    file.model = vec![0; 6 * MIB as usize];
    file.verify(&rig);
    data.unlink(&root, ROOT, b"database").unwrap();
    data.sync().unwrap();
    for _ in 0..8 {
        rig.tick();
    }
    assert!(taken(&rig) <= 2, "metadata and a segment to write to");
    assert_eq!(rig.engine.store().space().set_aside_bytes, 0);
    counts_are_exact(&rig);
    // A large file, of which the content goes in the background; and one that is made empty.
    for empties in [false, true] {
        let mut file = Modelled::new(&data, "large", 32 * MIB);
        file.allocate(RESERVE, 0, 64 * MIB).unwrap();
        for offset in (0..32 * MIB).step_by(128 << 10) {
            file.write(offset, &vec![offset as u8 | 1; 128 << 10]);
        }
        data.sync().unwrap();
        counts_are_exact(&rig);
        if empties {
            let cut = SetAttributes {
                size: Some(0),
                ..SetAttributes::default()
            };
            data.set_attributes(&root, file.object, &cut).unwrap();
            file.allocate(RESERVE, 0, MIB).unwrap();
            data.sync().unwrap();
            assert_eq!(file.blocks(), 256);
            counts_are_exact(&rig);
        }
        data.unlink(&root, ROOT, b"large").unwrap();
        data.sync().unwrap();
        for _ in 0..8 {
            rig.tick();
        }
        assert!(taken(&rig) <= 2, "{empties}");
        assert_eq!(rig.engine.store().space().set_aside_bytes, 0);
        counts_are_exact(&rig);
    }
}

/// A write ends where the reserved blocks end, and returns the short count; so does an append.
#[test]
fn write_past_the_preallocated_range_is_short_on_a_full_pool() {
    let mut rig = Rig::new(&[96 * MIB]);
    let data = rig.filesystem("tank/data");
    let root = Context::root();
    let mut file = Modelled::new(&data, "database", 0);
    let appended = Modelled::new(&data, "journal", 0);
    file.allocate(KEEP, 0, 10 * BLOCK).unwrap();
    appended.allocate(KEEP, 0, BLOCK).unwrap();
    rig.fill(&data, "filler");
    let content = rig.random.bytes(16 * BLOCK);
    let write = |offset: u64| data.write(&root, file.object, offset, &content, false);
    assert_eq!(write(6 * BLOCK + 100), Ok(4 * BLOCK as usize - 100));
    assert_eq!(write(9 * BLOCK), Ok(BLOCK as usize));
    assert_eq!(write(10 * BLOCK), Err(FsError::NoSpace));
    assert_eq!(data.attributes(file.object).unwrap().size, 10 * BLOCK);
    file.model = vec![0; 10 * BLOCK as usize];
    file.model[6 * BLOCK as usize + 100..][..4 * BLOCK as usize - 100]
        .copy_from_slice(&content[..4 * BLOCK as usize - 100]);
    file.model[9 * BLOCK as usize..].copy_from_slice(&content[..BLOCK as usize]);
    file.verify(&rig);
    let done = data.append(&root, appended.object, &content, false);
    assert_eq!(done, Ok((0, BLOCK as usize)));
}

/// The working reserve is set aside once, and goes with the last dataset that needs it.
#[test]
fn datasets_with_preallocated_files_share_one_working_reserve() {
    let rig = Rig::new(&[256 * MIB]);
    let aside = |rig: &Rig| rig.engine.store().space().set_aside_bytes;
    let one = Modelled::new(&rig.filesystem("tank/0"), "database", 0);
    one.allocate(KEEP, 0, BLOCK).unwrap();
    one.filesystem.sync().unwrap();
    let first = aside(&rig);
    assert!(first > MIB, "{first}");
    for number in 1..8 {
        let more = Modelled::new(&rig.filesystem(&format!("tank/{number}")), "database", 0);
        more.allocate(KEEP, 0, BLOCK).unwrap();
        more.filesystem.sync().unwrap();
    }
    assert_eq!(aside(&rig), first + 7 * BLOCK);
    drop(one);
    for number in 0..8 {
        let name = format!("tank/{number}");
        rig.engine.datasets().destroy(&name, false, false, false).unwrap();
        match number {
            7 => assert_eq!(aside(&rig), 0),
            _ => assert_eq!(aside(&rig), first - BLOCK + (7 - number) * BLOCK),
        }
    }
}

#[test]
fn skipped_retention_is_reported_once_and_when_it_resumes() {
    let mut rig = Rig::new(&[160 * MIB]);
    let data = rig.filesystem("tank/data");
    let mut file = Modelled::new(&data, "database", 32 * MIB);
    file.allocate(RESERVE, 0, 32 * MIB).unwrap();
    file.write_all(&mut rig);
    rig.fill(&data, "filler");
    let datasets = rig.engine.datasets();
    datasets
        .properties()
        .set("tank/data", "retention", "all:1h")
        .unwrap();
    let told = |rig: &Rig, words: &str| {
        let events = rig.engine.events(0).unwrap();
        events.iter().filter(|event| event.text.contains(words)).count()
    };
    for _ in 0..3 {
        file.scatter(&mut rig, 10);
        rig.tick();
    }
    assert_eq!(told(&rig, "retention holds no past state of 'tank/data'"), 1);
    data.unlink(&Context::root(), ROOT, b"filler").unwrap();
    for _ in 0..3 {
        file.scatter(&mut rig, 10);
        rig.tick();
    }
    assert_eq!(told(&rig, "retention holds past states of 'tank/data' again"), 1);
}

/// Like a quota below the space in use: new content is refused, reserved ranges stay writable.
#[test]
fn quota_below_the_preallocated_size_is_accepted_and_keeps_the_promise() {
    let mut rig = Rig::new(&[128 * MIB]);
    let data = rig.filesystem("tank/data");
    let mut file = Modelled::new(&data, "database", 16 * MIB);
    file.allocate(RESERVE, 0, 16 * MIB).unwrap();
    rig.engine
        .datasets()
        .properties()
        .set("tank/data", "quota", "4M")
        .unwrap();
    let other = make(&data, "other");
    // Some room was taken in advance before there was a quota.
    data.sync().unwrap();
    let content = rig.random.bytes(2 * MIB);
    let refused = data.write(&Context::root(), other, 0, &content, false);
    assert_eq!(refused, Err(FsError::QuotaExceeded));
    file.write_all(&mut rig);
    file.verify(&rig);
}
