//! Who changes a region while it is laid out anew has won, and several regions at once have an outcome each.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use terrace_dataset::{
    AllocateMode, At, Context, Cut, FileKind, Fragment, FsError, Layout, ROOT, Relaid, Tree, read_region,
};
use terrace_store::Store;

use super::world::{MIB, World, noise, relayout, world, world_of};

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
            while world.datasets.sweeper().step(100).unwrap() == terrace_dataset::Progress::More {}
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
    world.datasets.snapshots().take("pool/a@s", false, "").unwrap();
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
