//! What moves down by itself: the coldest of a tier that is full, what was not used for long, what a tier held back; and
//! only within the window of its policy.

use terrace_mover::TierPolicy;
use terrace_store::Store;

use super::pool::{MIB, Pool, SECOND, record};

#[test]
fn the_coldest_moves_down_until_the_low_water_mark() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(19);
    for object in &files[..8] {
        record(pool.environment(), pool.number, *object, 50);
    }
    pool.settle();
    let tiers = pool.memory.space().tiers;
    assert!(
        tiers[0].live_bytes <= 15 * MIB,
        "{} MiB are left above",
        tiers[0].live_bytes / MIB
    );
    assert!(
        tiers[0].live_bytes >= 10 * MIB,
        "no more than needed: {} MiB",
        tiers[0].live_bytes / MIB
    );
    for object in &files[..8] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "what is read stays");
    }
    let jobs = pool.mover.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!((jobs[0].kind, jobs[0].state), ("demote", "done"));
    assert_eq!(jobs[0].done_bytes, jobs[0].total_bytes);
    assert!(jobs[0].done_bytes >= 4 * MIB);
    pool.audit(&files);
}

#[test]
fn a_full_lower_tier_fails_the_demotion_once_and_not_again_and_again() {
    let pool = Pool::new(20 * MIB);
    pool.files(19);
    let tight = TierPolicy {
        high_water: 0.0,
        low_water: 0.0,
        ..TierPolicy::named("slow")
    };
    pool.mover.set_policies(vec![TierPolicy::named("fast"), tight]);
    pool.settle();
    assert!(
        pool.mover.jobs().is_empty(),
        "there is no room to move to: no job"
    );
    assert_eq!(pool.memory.space().tiers[1].live_bytes, 0);
}

pub(super) fn policies(pool: &Pool, fast: TierPolicy) {
    pool.mover.set_policies(vec![fast, TierPolicy::named("slow")]);
}

#[test]
fn what_is_not_used_for_long_moves_down_although_there_is_room() {
    let pool = Pool::new(100 * MIB);
    let files = pool.files(6);
    pool.mover.pin(pool.number, files[5], "fast").unwrap();
    pool.settle();
    policies(
        &pool,
        TierPolicy {
            demote_after_seconds: 3600,
            ..TierPolicy::named("fast")
        },
    );
    pool.settle();
    assert_eq!(pool.memory.space().tiers[1].live_bytes, 0, "all of it is new");
    pool.clock.advance(3500 * SECOND);
    record(pool.environment(), pool.number, files[0], 1);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[0]), [MIB, 0], "used a moment ago");
    assert_eq!(pool.tier_bytes(files[5]), [MIB, 0], "pinned");
    for object in &files[1..5] {
        assert_eq!(pool.tier_bytes(*object), [0, MIB]);
    }
    let jobs = pool.mover.jobs();
    let aged: Vec<_> = jobs.iter().filter(|job| job.kind == "demote").collect();
    assert_eq!(aged.len(), 1, "a round that finds nothing is no job: {jobs:?}");
    assert_eq!((aged[0].state, aged[0].done_bytes), ("done", 4 * MIB));
    assert!(
        aged[0].reason.contains("not used for 3600 s"),
        "{}",
        aged[0].reason
    );
    pool.audit(&files);
}

#[test]
fn policies_work_in_their_window_only() {
    let moved = |window: &str| {
        let pool = Pool::new(20 * MIB);
        let files = pool.files(19);
        policies(
            &pool,
            TierPolicy {
                window: window.into(),
                ..TierPolicy::named("fast")
            },
        );
        pool.settle();
        pool.audit(&files);
        pool.memory.space().tiers[1].live_bytes > 0
    };
    assert_ne!(
        moved("00:00-12:00"),
        moved("12:00-00:00"),
        "in one half of the day"
    );
}

#[test]
fn a_job_that_waits_for_a_window_names_it_and_when_it_opens() {
    // Of these halves of a day one is closed now, whatever the time zone.
    let told = |window: &str| {
        let pool = Pool::new(20 * MIB);
        pool.files(19);
        policies(&pool, TierPolicy::named("fast"));
        pool.mover.step().unwrap();
        pool.mover.step().unwrap();
        policies(
            &pool,
            TierPolicy {
                window: window.into(),
                ..TierPolicy::named("fast")
            },
        );
        pool.mover.step().unwrap();
        let jobs = pool.mover.jobs();
        let demotion = jobs.iter().find(|job| job.kind == "demote").unwrap();
        demotion.reason.clone()
    };
    let told = [("00:00-12:00", "00:00"), ("12:00-00:00", "12:00")].map(|(window, opens)| {
        let words =
            format!("waiting for the window of tier 'fast', {window}, which opens at {opens} local time");
        told(window).contains(&words)
    });
    assert!(told[0] != told[1], "{told:?}");
}

#[test]
fn a_tier_that_holds_lets_the_one_below_sleep_and_then_writes_in_one_batch() {
    let pool = Pool::new(20 * MIB);
    let mut files = pool.files(18);
    pool.mover.demote(pool.number, files[17]).unwrap();
    let holding = TierPolicy {
        hold: Some(0.95),
        demote_after_seconds: 60,
        ..TierPolicy::named("fast")
    };
    policies(&pool, holding.clone());
    pool.steps(1000);
    assert_eq!(pool.tier_bytes(files[17]), [0, MIB], "asked for by hand: moved");
    record(pool.environment(), pool.number, files[17], 100);
    pool.settle();
    let tiers = pool.memory.space().tiers;
    assert_eq!(
        (tiers[0].live_bytes, tiers[1].live_bytes),
        (17 * MIB, MIB),
        "above high_water, old, hot: nothing moves either way"
    );
    assert_eq!(pool.mover.resting_tiers(), 1);
    policies(
        &pool,
        TierPolicy {
            demote_after_seconds: 0,
            ..holding
        },
    );
    files.push(pool.file("f18", 18));
    files.push(pool.file("f19", 19));
    pool.datasets.commit_all().unwrap();
    pool.mover.demote(pool.number, files[17]).unwrap_err();
    pool.mover.promote(pool.number, files[17]).unwrap();
    pool.steps(100_000);
    let tiers = pool.memory.space().tiers;
    // Down to the low-water mark, and what was promoted by hand meanwhile.
    assert!(tiers[0].live_bytes <= 16 * MIB, "{}", tiers[0].live_bytes);
    pool.settle();
    let demotions = pool.mover.jobs();
    let demotions: Vec<_> = demotions
        .iter()
        .filter(|job| job.kind == "demote" && job.reason.contains("moving the coldest"))
        .collect();
    // What made room for the file that was promoted by hand is another matter.
    assert_eq!(demotions.len(), 1, "one batch: {demotions:?}");
    assert_eq!(pool.mover.resting_tiers(), 1, "and it holds again");
    pool.audit(&files);
}

#[test]
fn where_all_is_hot_the_hottest_goes_last() {
    let pool = Pool::new(20 * MIB);
    let files = pool.files(19);
    // The first in the order of the records are the hottest.
    for (at, object) in files.iter().enumerate() {
        record(
            pool.environment(),
            pool.number,
            *object,
            if at < 9 { 400 } else { 40 },
        );
    }
    pool.settle();
    for object in &files[..9] {
        assert_eq!(pool.tier_bytes(*object), [MIB, 0], "{:?}", pool.mover.jobs());
    }
    let below = files[9..]
        .iter()
        .filter(|object| pool.tier_bytes(**object)[1] > 0);
    assert!(below.count() >= 3);
    pool.audit(&files);
}

#[test]
fn what_would_come_up_again_goes_down_no_further_than_it_may_come_up() {
    let pool = Pool::new(40 * MIB);
    pool.mover.set_step_bytes(MIB);
    let files = pool.files(36);
    for object in &files {
        record(pool.environment(), pool.number, *object, 40);
    }
    assert!(pool.steps(10_000) < 10_000);
    let live = pool.memory.space().tiers[0].live_bytes;
    assert!(live < 32 * MIB, "below the middle of the marks: {live}");
    assert!(live > 30 * MIB, "and not down to the lower one: {live}");
    assert!(pool.mover.jobs().iter().all(|job| job.state == "done"));
    pool.audit(&files);
}

#[test]
fn what_hot_content_shares_with_cold_content_stays_up() {
    let pool = Pool::new(20 * MIB);
    let mut files = pool.files(19);
    let twin = pool.file("twin", 3);
    pool.datasets.commit_all().unwrap();
    assert_eq!(pool.memory.space().tiers[0].live_bytes, 19 * MIB, "shared");
    record(pool.environment(), pool.number, files[3], 50);
    pool.clock.advance(600 * 60 * SECOND);
    record(pool.environment(), pool.number, files[3], 50);
    pool.settle();
    assert_eq!(pool.tier_bytes(files[3]), [MIB, 0]);
    assert_eq!(pool.tier_bytes(twin), [MIB, 0]);
    assert!(pool.memory.space().tiers[0].live_bytes <= 15 * MIB);
    let promoted = pool.mover.jobs().iter().any(|job| job.kind == "promote");
    assert!(!promoted, "it never went down");
    files.truncate(19);
    pool.audit(&files);
}
