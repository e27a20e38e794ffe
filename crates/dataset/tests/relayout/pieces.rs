//! Regions in pieces: which are worth laying out anew, and how they lie afterwards.

use terrace_dataset::{Cut, Layout, Relaid, Settings, Tree, WHOLE_PART};

use super::world::{MIB, SECOND, noise, world};

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
fn what_comes_back_by_itself_is_no_reason_to_look_at_a_region() {
    let world = world();
    let fragments = &world.datasets.environment().fragments;
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let taken = fragments.take_early(u64::MAX, WHOLE_PART / 2, 9);
    assert_eq!(taken.len(), 1, "half of each long chunk is dead");
    let cut = world.relayout_of(object, 0, Cut::Survivors, MIB);
    assert!(matches!(cut, Ok(Relaid::Done { .. })), "{cut:?}");
    // Each block is a chunk of its own now, and dies as a whole.
    world.scatter(object, &mut content, 2);
    world.scatter(object, &mut content, 3);
    assert_eq!(fragments.take_early(u64::MAX, 1, 9), []);
    assert_eq!(fragments.count(), 1, "it is in pieces all the same");
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
