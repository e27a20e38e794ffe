//! Regions that random writes left in pieces are laid out anew: what that gives back, and what it may not change.

#![allow(clippy::unwrap_used)]

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use terrace_dataset::{
    AllocateMode, At, Context, Cut, Datasets, Environment, FileKind, Filesystem, Fragment, FsError, Layout,
    NewDataset, ROOT, RegionRecord, Relaid, SeekTarget, Settings, Tree, check, read_region,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

struct World {
    clock: Arc<ManualClock>,
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    fs: Arc<Filesystem>,
    number: u32,
}

fn world_of(size_bytes: u64) -> World {
    let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
    let memory = Arc::new(MemoryStore::new(size_bytes));
    let store: Arc<dyn Store> = memory.clone();
    let datasets = Datasets::open(Arc::new(Environment::new(store, clock.clone())), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    let number = datasets.info("pool/a").unwrap().number;
    World {
        clock,
        memory,
        datasets,
        fs,
        number,
    }
}

/// Lays one region out.
fn relayout(
    datasets: &Datasets,
    fragment: Fragment,
    cut: Cut,
    wanted: &dyn Fn(&Layout) -> bool,
    most_bytes: u64,
) -> Result<Relaid, FsError> {
    let wanted = |_: &Fragment, layout: &Layout| wanted(layout);
    let mut done = datasets.relayout(&[fragment], cut, &wanted, most_bytes);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

fn world() -> World {
    world_of(1 << 30)
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

impl World {
    fn store(&self) -> Arc<dyn Store> {
        self.memory.clone()
    }

    fn file(&self, name: &str, content: &[u8]) -> u64 {
        let root = Context::root();
        let object = self
            .fs
            .create(&root, ROOT, name.as_bytes(), FileKind::File, 0o644, 0);
        let object = object.unwrap().object;
        self.fs.write(&root, object, 0, content, false).unwrap();
        self.datasets.commit_all().unwrap();
        object
    }

    fn write(&self, object: u64, offset: u64, data: &[u8]) {
        self.fs
            .write(&Context::root(), object, offset, data, false)
            .unwrap();
    }

    /// Every `every`th block is written anew, each in a commit of its own with 16 others.
    fn scatter(&self, object: u64, content: &mut [u8], every: usize) {
        let blocks = content.len() / 4096;
        // Not in order, so that neighbours do not come together.
        let places: Vec<usize> = (0..blocks).step_by(every).collect();
        for (count, at) in (0..places.len()).map(|at| (at, places[at * 7 % places.len()])) {
            let data = noise((count + 1000 * every) as u64, 4096);
            content[at * 4096..(at + 1) * 4096].copy_from_slice(&data);
            self.write(object, at as u64 * 4096, &data);
            if count % 16 == 15 {
                self.datasets.commit_all().unwrap();
            }
        }
        self.datasets.commit_all().unwrap();
    }

    fn fragment(&self, object: u64, region: u64) -> Fragment {
        Fragment {
            dataset: self.number,
            body: object,
            region,
            object,
        }
    }

    fn relayout(&self, object: u64, region: u64) -> Result<Relaid, FsError> {
        self.relayout_of(object, region, Cut::InOrder, MIB)
    }

    fn relayout_of(&self, object: u64, region: u64, cut: Cut, most_bytes: u64) -> Result<Relaid, FsError> {
        let fragment = self.fragment(object, region);
        relayout(&self.datasets, fragment, cut, &Layout::is_gain, most_bytes)
    }

    fn record(&self, object: u64, region: u64) -> (u64, RegionRecord) {
        let found = read_region(self.memory.as_ref(), self.number, object, region)
            .unwrap()
            .unwrap();
        (found.birth, found.record)
    }

    fn read(&self, object: u64) -> Vec<u8> {
        let mut buffer = vec![0xEE; 8 << 20];
        let length = self.fs.read(object, 0, &mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    fn stored_bytes(&self) -> u64 {
        // Lets go of what nothing refers to.
        self.memory.references();
        self.memory.space().used_bytes
    }

    /// A full walk finds every count exact, and no chunk without a reference.
    fn audit(&self) {
        let report = check(&self.store()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(
            self.memory.references(),
            report.references,
            "references are not what a walk finds"
        );
    }
}

#[test]
fn dead_blocks_come_back_and_a_region_lies_in_whole_chunks_again() {
    let world = world();
    let mut content = noise(1, 4 * MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let before = (world.stored_bytes(), world.record(object, 1).1.runs().len());
    assert_eq!(before.0, 6 * MIB, "half of each chunk is dead, and stays");
    assert!(before.1 >= 200, "{} runs", before.1);
    let shown = world.fs.attributes(object).unwrap();
    let birth = world.record(object, 1).0;
    world.clock.advance(100 * SECOND);
    for region in 0..4 {
        let done = world.relayout(object, region).unwrap();
        assert!(
            matches!(
                done,
                Relaid::Done {
                    written_bytes: MIB,
                    whole: true,
                    ..
                }
            ),
            "{done:?}"
        );
        assert_eq!(
            world.relayout(object, region),
            Ok(Relaid::Left),
            "it lies well now"
        );
    }
    assert_eq!(world.stored_bytes(), 4 * MIB);
    let (now, record) = world.record(object, 1);
    assert_eq!((now, record.runs().len()), (birth, 8));
    assert!(world.read(object) == content);
    assert_eq!(world.fs.attributes(object).unwrap(), shown);
    world.audit();
}

#[test]
fn in_small_steps_it_comes_to_the_same() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let mut steps = 0;
    loop {
        let done = world.relayout_of(object, 0, Cut::InOrder, 200 << 10).unwrap();
        steps += 1;
        assert!(world.read(object) == content);
        world.audit();
        match done {
            Relaid::Done {
                written_bytes, whole, ..
            } => {
                assert!(written_bytes <= 328 << 10);
                if whole {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(steps, 4);
    assert_eq!(world.stored_bytes(), MIB);
}

#[test]
fn what_is_worth_it_is_what_is_half_dead_or_in_very_many_pieces() {
    let world = world();
    let layout = |object: u64| {
        let record = world.record(object, 0).1;
        let found = Layout::of(world.memory.as_ref(), &record, &Settings::default(), Cut::InOrder).unwrap();
        found.into_iter().next()
    };
    let mut content = noise(1, MIB as usize);
    let whole = world.file("whole", &content);
    assert_eq!(layout(whole), None);
    world.scatter(whole, &mut content, 64);
    let few = layout(whole).unwrap();
    assert!(
        !few.is_wasteful() && !few.is_scattered() && few.is_gain(),
        "{few:?}"
    );
    world.scatter(whole, &mut content, 3);
    let many = layout(whole).unwrap();
    assert!(many.is_wasteful() && many.is_scattered(), "{many:?}");
    assert_eq!((many.pieces_after, many.stored_after_bytes), (8, MIB));
    // A log that grew by a block at a time: nothing is dead, but it lies in 256 pieces.
    let log = world.file("log", &noise(2, 4096));
    for block in 1..256u64 {
        world.write(log, block * 4096, &noise(block + 7, 4096));
        world.datasets.commit_all().unwrap();
    }
    let log = layout(log).unwrap();
    assert!(!log.is_wasteful() && log.is_scattered(), "{log:?}");
}

#[test]
fn commits_notice_what_they_leave_in_pieces() {
    let world = world();
    let fragments = &world.datasets.environment().fragments;
    let mut content = noise(1, 2 * MIB as usize);
    let object = world.file("f", &content);
    assert_eq!(fragments.count(), 0, "what was just written lies well");
    world.clock.advance(SECOND);
    world.scatter(object, &mut content[..MIB as usize], 32);
    let now = terrace_device::Clock::monotonic_nanoseconds(&*world.clock);
    assert_eq!(fragments.take(now - 1, 10), []);
    assert_eq!(fragments.take(now, 10), [world.fragment(object, 0)]);
    assert_eq!(fragments.count(), 0);
}

#[test]
fn snapshots_that_see_the_live_record_read_the_same_from_the_new_chunks() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    world.datasets.snapshot("pool/a@s", false, "").unwrap();
    let view = world.datasets.view("pool/a", &At::Snapshot("s".into())).unwrap();
    let read = |buffer: &mut [u8]| view.read(object, 0, buffer).unwrap();
    let mut buffer = vec![0; MIB as usize];
    // A reader of the past that has looked the record up when it is replaced.
    read(&mut buffer[..4096]);
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    read(&mut buffer);
    assert!(buffer == content);
    assert_eq!(world.stored_bytes(), MIB, "the snapshot takes nothing of its own");
    world.audit();
    // What is written after it moves the new record to the past.
    let old = content.clone();
    world.scatter(object, &mut content, 5);
    read(&mut buffer);
    assert!(buffer == old && world.read(object) == content);
    world.datasets.destroy_snapshot("pool/a@s", false, false).unwrap();
    while world.datasets.sweep_step(100).unwrap() == terrace_dataset::Progress::More {}
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn what_the_past_or_others_share_stays_where_it_is() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    let copy = world.file("g", b"");
    let root = Context::root();
    world.datasets.snapshot("pool/a@s", false, "").unwrap();
    world.scatter(object, &mut content, 2);
    let before = world.stored_bytes();
    let record = world.record(object, 0).1;
    assert_eq!(
        world.relayout(object, 0),
        Ok(Relaid::Left),
        "the snapshot needs the old chunks whole"
    );
    world.datasets.destroy_snapshot("pool/a@s", false, false).unwrap();
    while world.datasets.sweep_step(100).unwrap() == terrace_dataset::Progress::More {}
    // Now half of it is shared by a reflink: the other half alone is written anew.
    world.fs.copy_range(&root, object, 0, copy, 0, MIB / 2).unwrap();
    world.datasets.commit_all().unwrap();
    assert!(matches!(
        world.relayout(object, 0),
        Ok(Relaid::Done { written_bytes, .. }) if written_bytes == MIB / 2
    ));
    let now = world.record(object, 0).1;
    assert!(
        now.range(0, 128).eq(record.range(0, 128)),
        "what is shared has moved"
    );
    assert_eq!(now.range(128, 256).count(), 4);
    assert_eq!(world.stored_bytes(), before - MIB / 4);
    assert!(world.read(object) == content && world.read(copy) == content[..MIB as usize / 2]);
    world.audit();
}

#[test]
fn content_that_stands_twice_in_a_region_is_not_written_twice() {
    let world = world();
    let half = noise(1, MIB as usize / 2);
    let object = world.file("f", &[half.clone(), half].concat());
    assert_eq!(world.stored_bytes(), MIB / 2);
    world.write(object, 4096, &noise(5, 4096));
    world.datasets.commit_all().unwrap();
    let before = world.stored_bytes();
    let content = world.read(object);
    let _ = world.relayout(object, 0).unwrap();
    assert!(world.stored_bytes() <= before);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn whoever_changes_the_region_meanwhile_has_won() {
    let root = Context::root();
    type Change = fn(&World, u64);
    let changes: [(&str, Change); 5] = [
        ("write", |world, object| {
            world.write(object, 8192, &noise(77, 20_000))
        }),
        ("punch", |world, object| {
            let root = Context::root();
            let punched = world
                .fs
                .allocate(&root, object, AllocateMode::Punch, 4096, 200_000);
            punched.unwrap();
        }),
        ("truncate", |world, object| {
            let size = terrace_dataset::SetAttributes {
                size: Some(300_001),
                ..Default::default()
            };
            world.fs.set_attributes(&Context::root(), object, &size).unwrap();
        }),
        ("replace", |world, object| {
            // Long ones leave their body to the sweep.
            for size in [20 * MIB, 0, 5000] {
                let size = terrace_dataset::SetAttributes {
                    size: Some(size),
                    ..Default::default()
                };
                world.fs.set_attributes(&Context::root(), object, &size).unwrap();
                world.datasets.commit_all().unwrap();
            }
        }),
        ("share", |world, object| {
            let root = Context::root();
            let copy = world
                .fs
                .create(&root, ROOT, b"copy", FileKind::File, 0o644, 0)
                .unwrap();
            let copied = world.fs.copy_range(&root, object, 0, copy.object, 0, MIB);
            assert_eq!(copied, Ok(MIB));
        }),
    ];
    for (name, change) in changes {
        for commits in [false, true] {
            let world = world();
            let mut content = noise(1, MIB as usize);
            let object = world.file("f", &content);
            world.scatter(object, &mut content, 2);
            let called = Cell::new(false);
            let done = relayout(
                &world.datasets,
                world.fragment(object, 0),
                Cut::InOrder,
                &|layout| {
                    assert!(layout.is_wasteful());
                    change(&world, object);
                    if commits {
                        world.datasets.commit_all().unwrap();
                    }
                    called.set(true);
                    true
                },
                MIB,
            );
            assert!(called.get());
            let done = done.unwrap();
            // What was not changed lies anew; a reflink that is not counted yet would lose it.
            let changed = name == "replace" || name == "share" && !commits;
            assert_eq!(
                matches!(done, Relaid::Done { .. }),
                !changed,
                "{name}, {commits}: {done:?}"
            );
            let shown = world.read(object);
            world.datasets.commit_all().unwrap();
            assert!(world.read(object) == shown, "{name}");
            // What the change left is what it leaves without a relayout.
            let other = world_of(1 << 30);
            let mut same = noise(1, MIB as usize);
            let twin = other.file("f", &same);
            other.scatter(twin, &mut same, 2);
            change(&other, twin);
            assert!(other.read(twin) == shown, "{name}");
            if name == "share" {
                let copy = world.fs.lookup(&root, ROOT, b"copy").unwrap();
                assert!(world.read(copy.object) == content);
            }
            while world.datasets.sweep_step(100).unwrap() == terrace_dataset::Progress::More {}
            world.audit();
        }
    }
}

#[test]
fn several_at_once_have_an_outcome_each() {
    let world = world();
    let mut content = noise(1, 4 * MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let foreign = Fragment {
        dataset: 999,
        ..world.fragment(object, 0)
    };
    let fragments = [
        world.fragment(object, 0),
        world.fragment(object, 9),
        foreign,
        world.fragment(object, 1),
        world.fragment(77, 2),
        world.fragment(object, 2),
        world.fragment(object, 3),
    ];
    let commits = world.memory.newest();
    let wanted = |fragment: &Fragment, layout: &Layout| {
        assert!(layout.is_wasteful());
        // Somebody is faster.
        if fragment.region == 2 {
            world.write(object, 2 * MIB, &noise(7, MIB as usize));
            world.datasets.commit_all().unwrap();
        }
        fragment.region != 1
    };
    let done = world.datasets.relayout(&fragments, Cut::InOrder, &wanted, MIB);
    content[2 * MIB as usize..3 * MIB as usize].copy_from_slice(&noise(7, MIB as usize));
    let is_done = |done: &Result<Relaid, FsError>| matches!(done, Ok(Relaid::Done { whole: true, .. }));
    assert!(is_done(&done[0]) && is_done(&done[6]), "{done:?}");
    assert_eq!(done[1..6], [const { Ok(Relaid::Left) }; 5]);
    // One commit was the write's, one for the two that were before the foreign one, one for those after it.
    assert_eq!(world.memory.newest().0, commits.0 + 3);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn what_is_written_over_loses_its_dead_blocks_once_and_makes_no_more() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    assert_eq!(world.stored_bytes(), MIB + MIB / 2);
    let done = world.relayout_of(object, 0, Cut::Survivors, MIB).unwrap();
    assert!(
        matches!(done, Relaid::Done { written_bytes, whole: true, .. } if written_bytes == MIB / 2),
        "what was just written has no dead blocks, and stays: {done:?}"
    );
    assert_eq!(world.stored_bytes(), MIB);
    assert_eq!(
        world.relayout_of(object, 0, Cut::Survivors, MIB),
        Ok(Relaid::Left)
    );
    // Between the blocks that were written over each of the others is a chunk of its own.
    world.scatter(object, &mut content, 2);
    world.scatter(object, &mut content, 3);
    assert_eq!(world.stored_bytes(), MIB, "nothing dead was left behind");
    assert_eq!(
        world.relayout_of(object, 0, Cut::Survivors, MIB),
        Ok(Relaid::Left)
    );
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    assert_eq!(
        world.record(object, 0).1.runs().len(),
        8,
        "in order, once it rests"
    );
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn what_is_left_in_stretches_is_cut_in_small_chunks() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 16);
    assert!(matches!(
        world.relayout_of(object, 0, Cut::Survivors, MIB),
        Ok(Relaid::Done { .. })
    ));
    let runs = world.record(object, 0).1;
    let longest = runs.runs().iter().map(|run| run.count).max();
    assert_eq!(longest, Some(4));
    assert_eq!(world.stored_bytes(), MIB);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn what_became_a_past_state_meanwhile_keeps_its_chunks() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let meanwhile = |_: &Layout| {
        world.datasets.snapshot("pool/a@s", false, "").unwrap();
        world.write(object, 0, &noise(8, 4096));
        world.datasets.commit_all().unwrap();
        true
    };
    let fragment = world.fragment(object, 0);
    let done = relayout(&world.datasets, fragment, Cut::InOrder, &meanwhile, MIB);
    content[..4096].copy_from_slice(&noise(8, 4096));
    assert_eq!(done, Ok(Relaid::Busy));
    assert_eq!(world.stored_bytes(), MIB + MIB / 2 + 4096, "no second copy");
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn holes_and_the_end_of_the_file_stay_what_they_are() {
    let world = world();
    let root = Context::root();
    let mut content = noise(1, 700_001);
    let object = world.file("f", &content);
    world.scatter(object, &mut content[..696_320], 2);
    for (from, length) in [(40_960, 4096), (131_072, 131_072), (401_408, 8192)] {
        let punch = world
            .fs
            .allocate(&root, object, AllocateMode::Punch, from, length);
        punch.unwrap();
        content[from as usize..(from + length) as usize].fill(0);
    }
    world.datasets.commit_all().unwrap();
    let holes = |offset| world.fs.seek(object, offset, SeekTarget::Hole).unwrap();
    let before: Vec<u64> = (0..170).map(|block| holes(block * 4096)).collect();
    let blocks = world.fs.attributes(object).unwrap().blocks512;
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    let after: Vec<u64> = (0..170).map(|block| holes(block * 4096)).collect();
    assert_eq!(before, after);
    assert_eq!(world.fs.attributes(object).unwrap().blocks512, blocks);
    assert!(world.read(object) == content);
    // The last chunk ends where the file ends.
    let last = *world.record(object, 0).1.runs().last().unwrap();
    let info = world.memory.chunk_info(last.chunk).unwrap().unwrap();
    assert_eq!(info.length % 4096, 700_001 % 4096);
    // What grows out of it reads as zero.
    let size = terrace_dataset::SetAttributes {
        size: Some(800_000),
        ..Default::default()
    };
    world.fs.set_attributes(&root, object, &size).unwrap();
    content.resize(800_000, 0);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn the_end_of_a_file_that_grew_lies_in_the_middle_of_a_chunk() {
    let world = world();
    let mut content = noise(1, 87);
    let object = world.file("f", &content);
    content.resize(4096, 0);
    for block in 1..4 {
        let data = noise(block + 1, 4096);
        world.write(object, block * 4096, &data);
        world.datasets.commit_all().unwrap();
        content.extend_from_slice(&data);
    }
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    assert_eq!(world.record(object, 0).1.runs().len(), 1);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn a_full_pool_says_so_and_nothing_changes() {
    let world = world_of(MIB + MIB / 2 + 200_000);
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let record = world.record(object, 0);
    assert_eq!(world.relayout(object, 0), Err(FsError::NoSpace));
    assert_eq!(world.record(object, 0), record);
    // There is room for a part: a step at a time it gives back more than it takes.
    while let Relaid::Done { whole: false, .. } = world.relayout_of(object, 0, Cut::InOrder, 1).unwrap() {
        world.memory.references();
    }
    assert_eq!(world.stored_bytes(), MIB);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn volumes_and_datasets_that_nobody_uses() {
    let world = world();
    let volume = NewDataset {
        volume_bytes: Some(2 * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    world.datasets.create("pool/v", &volume).unwrap();
    let handle = world.datasets.volume("pool/v").unwrap();
    let mut content = noise(3, 2 * MIB as usize);
    handle.write(0, &content).unwrap();
    world.datasets.commit_all().unwrap();
    for at in (0..512).step_by(2) {
        let data = noise(at + 900, 4096);
        content[at as usize * 4096..][..4096].copy_from_slice(&data);
        handle.write(at * 4096, &data).unwrap();
    }
    world.datasets.commit_all().unwrap();
    let number = world.datasets.info("pool/v").unwrap().number;
    let before = world.stored_bytes();
    let fragment = Fragment {
        dataset: number,
        body: ROOT,
        region: 1,
        object: ROOT,
    };
    let lay_out = |fragment| relayout(&world.datasets, fragment, Cut::InOrder, &Layout::is_gain, MIB);
    let chunk_bytes = handle.dataset().settings().chunk_bytes;
    let done = lay_out(fragment).unwrap();
    assert_eq!(
        matches!(done, Relaid::Done { .. }),
        chunk_bytes > 4096,
        "{done:?}"
    );
    assert!(chunk_bytes == 4096 || world.stored_bytes() < before);
    let mut shown = vec![0; content.len()];
    handle.read(0, &mut shown).unwrap();
    assert!(shown == content);
    world.audit();
    drop(handle);
    world.datasets.close("pool/v").unwrap();
    assert_eq!(lay_out(fragment), Ok(Relaid::Busy), "later, when it is in use");
    let gone = Fragment {
        object: 99,
        ..world.fragment(99, 0)
    };
    assert_eq!(lay_out(gone), Ok(Relaid::Left));
}

#[test]
fn one_that_is_closed_meanwhile_leaves_the_record_to_the_next() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let World {
        datasets,
        fs,
        memory,
        number,
        ..
    } = world;
    drop(fs);
    let record = read_region(memory.as_ref(), number, object, 0).unwrap();
    let fragment = Fragment {
        dataset: number,
        body: object,
        region: 0,
        object,
    };
    let closing = |_: &Layout| {
        datasets.close("pool/a").unwrap();
        // Has the record in RAM from now on.
        let again = datasets.filesystem("pool/a").unwrap();
        again.read(object, 0, &mut [0; 4096]).unwrap();
        true
    };
    let done = relayout(&datasets, fragment, Cut::InOrder, &closing, MIB);
    assert_eq!(done, Ok(Relaid::Busy));
    assert_eq!(read_region(memory.as_ref(), number, object, 0).unwrap(), record);
}

#[test]
fn writers_reflinks_commits_and_readers_of_the_past_at_the_same_time() {
    const ROUNDS: u64 = 400;
    let world = world();
    let mut content = noise(1, 2 * MIB as usize);
    let object = world.file("f", &content);
    let copy = world.file("g", b"");
    world.scatter(object, &mut content, 3);
    world.datasets.snapshot("pool/a@s", false, "").unwrap();
    let view = world.datasets.view("pool/a", &At::Snapshot("s".into())).unwrap();
    let past = content.clone();
    let (world, root) = (&world, Context::root());
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (written, root, content) = (&written, &root, &mut content);
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let block = (round * 97 % 512) as usize;
                let data = noise(50_000 + round, 4096);
                content[block * 4096..][..4096].copy_from_slice(&data);
                world.write(object, block as u64 * 4096, &data);
            }
            written.store(true, SeqCst);
        });
        scope.spawn(move || {
            while !written.load(SeqCst) {
                world.fs.commit().unwrap();
            }
        });
        scope.spawn(move || {
            for round in (0..).take_while(|_| !written.load(SeqCst)) {
                world.relayout(object, round % 2).unwrap();
            }
        });
        scope.spawn(move || {
            for round in (0u64..).take_while(|_| !written.load(SeqCst)) {
                let offset = round % 512 * 4096;
                let copied = world.fs.copy_range(root, object, offset, copy, offset, 80_000);
                copied.unwrap();
            }
        });
        let (view, past) = (&view, &past);
        scope.spawn(move || {
            let mut buffer = vec![0; past.len()];
            while !written.load(SeqCst) {
                view.read(object, 0, &mut buffer).unwrap();
                assert!(buffer == *past);
            }
        });
    });
    world.datasets.commit_all().unwrap();
    assert!(world.read(object) == content);
    world.audit();
}
