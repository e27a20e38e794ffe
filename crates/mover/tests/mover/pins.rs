//! Pins of files and directories: what is pinned moves to its tier, lands there, and stays.

use terrace_dataset::{Context, FileKind};
use terrace_mover::MoverError;

use super::pool::{MIB, Pool, SECOND, content, record};

#[test]
fn pinned_objects_move_to_their_tier_and_stay_there() {
    let mut pool = Pool::new(20 * MIB);
    let files = pool.files(19);
    let down = pool.mover.pin(pool.number, files[0], "slow").unwrap();
    pool.mover.pin(pool.number, files[1], "fast").unwrap();
    pool.settle();
    pool.reopen();
    record(pool.environment(), pool.number, files[0], 100);
    pool.settle();
    assert_eq!(pool.job(down).state, "done");
    assert_eq!(pool.tier_bytes(files[0]), [0, MIB], "not promoted");
    assert_eq!(pool.tier_bytes(files[1]), [MIB, 0], "not demoted");
    assert_eq!(
        pool.mover.pin_of_object(pool.number, files[0]).as_deref(),
        Some("slow")
    );
    pool.mover.unpin(pool.number, files[0]).unwrap();
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0]);
    pool.mover.demote(pool.number, files[0]).unwrap();
    pool.steps(100);
    assert_eq!(pool.tier_bytes(files[0]), [0, MIB]);
    assert!(matches!(
        pool.mover.demote(pool.number, files[0]),
        Err(MoverError::NoFurther("slower"))
    ));
    pool.audit(&files);
}

#[test]
fn what_is_written_to_a_pinned_object_lands_on_its_tier() {
    let mut pool = Pool::new(100 * MIB);
    let files = pool.files(2);
    pool.mover.pin(pool.number, files[0], "slow").unwrap();
    pool.settle();
    pool.reopen();
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    for object in &files {
        filesystem
            .write(
                &Context::root(),
                *object,
                MIB,
                &content(50 + *object as u8),
                false,
            )
            .unwrap();
    }
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.tier_bytes(files[0]), [0, 2 * MIB], "without a move");
    assert_eq!(pool.tier_bytes(files[1]), [2 * MIB, 0]);
    pool.mover.unpin(pool.number, files[0]).unwrap();
    filesystem
        .write(&Context::root(), files[0], 2 * MIB, &content(99), false)
        .unwrap();
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 2 * MIB]);
}

/// A file of 1 MiB of its own content in this directory; returns its object.
fn file_in(pool: &Pool, directory: u64, name: &str, seed: u8) -> u64 {
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let made = filesystem.create(&root, directory, name.as_bytes(), FileKind::File, 0o644, 0);
    let object = made.unwrap().object;
    filesystem.write(&root, object, 0, &content(seed), false).unwrap();
    object
}

fn directory_in(pool: &Pool, directory: u64, name: &str) -> u64 {
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let made = filesystem.make_directory(&Context::root(), directory, name.as_bytes(), 0o755);
    made.unwrap().object
}

#[test]
fn a_pinned_directory_holds_what_lies_beneath_now_and_later() {
    let mut pool = Pool::new(100 * MIB);
    let outside = file_in(&pool, 1, "outside", 1);
    let top = directory_in(&pool, 1, "top");
    let below = directory_in(&pool, top, "below");
    let files = [file_in(&pool, top, "a", 2), file_in(&pool, below, "b", 3)];
    let own = file_in(&pool, below, "own", 4);
    let nearer = directory_in(&pool, below, "nearer");
    let near = file_in(&pool, nearer, "near", 5);
    pool.datasets.commit_all().unwrap();
    pool.mover.pin(pool.number, own, "fast").unwrap();
    pool.mover.pin(pool.number, nearer, "fast").unwrap();
    let job = pool.mover.pin(pool.number, top, "slow").unwrap();
    pool.settle();
    assert_eq!(pool.job(job).state, "done", "{}", pool.job(job).reason);
    for file in files {
        assert_eq!(pool.tier_bytes(file), [0, MIB]);
    }
    for (file, why) in [
        (outside, "outside"),
        (own, "its own pin"),
        (near, "a nearer directory"),
    ] {
        assert_eq!(pool.tier_bytes(file), [MIB, 0], "{why}");
    }
    // What comes later lands there, and heat does not bring it up; after a restart as well.
    let later = file_in(&pool, below, "later", 6);
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.tier_bytes(later), [0, MIB]);
    pool.reopen();
    for file in files.into_iter().chain([later]) {
        record(pool.environment(), pool.number, file, 100);
    }
    pool.settle();
    for file in files.into_iter().chain([later]) {
        assert_eq!(pool.tier_bytes(file), [0, MIB], "not promoted");
    }
    // A file that moves in moves down, and one that moves out is free.
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let replace = terrace_dataset::RenameMode::Replace;
    let root = Context::root();
    filesystem
        .rename(&root, 1, b"outside", top, b"inside", replace)
        .unwrap();
    filesystem.rename(&root, top, b"a", 1, b"a", replace).unwrap();
    // Within seconds, although nobody has committed it; and so what moves soon after that.
    for (into, tiers) in [(top, [0, MIB]), (nearer, [MIB, 0])] {
        for _ in 0..3 {
            pool.clock.advance(SECOND);
            assert!(pool.steps(10_000) < 10_000, "the mover does not come to rest");
        }
        assert_eq!(pool.tier_bytes(outside), tiers);
        if into == top {
            let rename = filesystem.rename(&root, top, b"inside", nearer, b"inside", replace);
            rename.unwrap();
        }
    }
    record(pool.environment(), pool.number, files[0], 100);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "it left, and is hot");
    pool.mover.unpin(pool.number, top).unwrap();
    record(pool.environment(), pool.number, files[1], 100);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[1]), [MIB, 0], "nothing holds it any more");
}

/// Progress of a job after each step until it is over: bytes done of all. What is not known yet is left out.
fn progress(pool: &Pool, job: u64) -> Vec<(u64, u64)> {
    let mut seen = Vec::new();
    while pool.job(job).state != "done" {
        if let terrace_mover::Step::Idle { .. } = pool.mover.step().unwrap() {
            pool.clock.advance(SECOND);
        }
        let job = pool.job(job);
        seen.push((job.done_bytes, job.total_bytes));
    }
    seen.retain(|(_, total)| *total > 0);
    seen.dedup();
    seen
}

#[track_caller]
fn ends_at_all(seen: &[(u64, u64)], bytes: u64) {
    assert!(seen.iter().all(|(_, total)| *total == bytes), "{seen:?}");
    assert!(seen.is_sorted() && seen.len() > 2, "{seen:?}");
    assert_eq!(seen.last(), Some(&(bytes, bytes)));
}

#[test]
fn the_job_of_a_pinned_directory_counts_what_lies_beneath_it() {
    let pool = Pool::new(100 * MIB);
    for at in 0..10 {
        file_in(&pool, 1, &format!("outside{at}"), at);
    }
    let other = directory_in(&pool, 1, "other");
    file_in(&pool, other, "f", 20);
    let top = directory_in(&pool, 1, "top");
    let below = directory_in(&pool, top, "below");
    for at in 0..40 {
        file_in(&pool, below, &format!("f{at}"), 30 + at);
    }
    let own = file_in(&pool, below, "own", 100);
    let nearer = directory_in(&pool, below, "nearer");
    file_in(&pool, nearer, "near", 101);
    pool.datasets.commit_all().unwrap();
    pool.mover.pin(pool.number, other, "slow").unwrap();
    pool.mover.pin(pool.number, own, "fast").unwrap();
    pool.mover.pin(pool.number, nearer, "fast").unwrap();
    pool.settle();
    let job = pool.mover.pin(pool.number, top, "slow").unwrap();
    ends_at_all(&progress(&pool, job), 40 * MIB);
    // And the job that a moved name begins: what all directories hold that are pinned to the tier.
    let last = pool.mover.jobs().last().unwrap().id;
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let replace = terrace_dataset::RenameMode::Replace;
    let moved = filesystem.rename(&Context::root(), 1, b"outside0", top, b"inside", replace);
    moved.unwrap();
    while pool.mover.jobs().last().unwrap().id == last {
        pool.mover.step().unwrap();
        pool.clock.advance(SECOND);
    }
    let slow = pool.mover.jobs().into_iter().filter(|job| job.id > last);
    let slow = slow.map(|job| job.id).max().unwrap();
    ends_at_all(&progress(&pool, slow), 42 * MIB);
}
