//! Whatever grows is bounded by the budget: removals and changes of names wait for commits, a commit takes a bounded part, and
//! what is kept decoded is bounded for all datasets together.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use terrace_cache::Budget;
use terrace_dataset::{
    Context, Datasets, Environment, FileKind, Filesystem, NewDataset, Tree, check, check_within,
    count_references,
};
use terrace_device::ManualClock;
use terrace_store::MemoryStore;

const LIMIT: u64 = 8 << 20;
/// What a change of metadata counts in memory.
const CHANGE_BYTES: u64 = 1536;

struct Rig {
    environment: Arc<Environment>,
    datasets: Arc<Datasets>,
}

fn rig() -> Rig {
    let budget = Arc::new(Budget::new(LIMIT).without_delays());
    let store = Arc::new(MemoryStore::new(1 << 30));
    let clock = Arc::new(ManualClock::new(1));
    let environment = Arc::new(Environment::with_budget(store, clock, budget));
    let datasets = Arc::new(Datasets::open(environment.clone(), "pool").unwrap());
    Rig {
        environment,
        datasets,
    }
}

impl Rig {
    fn filesystem(&self, name: &str) -> Arc<Filesystem> {
        self.datasets.create(name, &NewDataset::default()).unwrap();
        self.datasets.filesystem(name).unwrap()
    }

    fn dirty_bytes(&self) -> u64 {
        self.environment.budget.dirty_bytes()
    }
}

/// As the kernel asks: it has checked, and what loses its last name is held until it forgets it.
fn kernel() -> Context {
    Context {
        trusted: true,
        ..Context::default()
    }
}

fn name(number: u64) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

fn make(files: &Filesystem, number: u64) -> u64 {
    let made = files.create(&kernel(), files.root(), &name(number), FileKind::File, 0o644, 0);
    made.unwrap().object
}

#[test]
fn removals_below_a_snapshot_wait_for_commits_and_each_commit_takes_a_sixteenth() {
    let rig = rig();
    let files = rig.filesystem("pool/a");
    const FILES: u64 = 20_000;
    let budget = &rig.environment.budget;
    let most = budget.metadata_most_bytes();
    assert_eq!(most, LIMIT / 16);
    let fits = |what: &str| {
        let dirty = rig.dirty_bytes();
        assert!(
            dirty <= most + budget.limit_bytes() / 64 + 4 * CHANGE_BYTES,
            "{what}: {dirty} dirty"
        );
    };
    for number in 0..FILES {
        make(&files, number);
        fits("made");
    }
    rig.datasets.snapshots().take("pool/a@before", false, "").unwrap();
    let store = &rig.environment.store;
    let before = store.newest();
    for number in 0..FILES {
        let removed = files.unlink(&kernel(), files.root(), &name(number)).unwrap();
        files.release_object(removed.object);
        fits("removed");
    }
    let commits = store.newest().0 - before.0;
    assert!(commits >= FILES * CHANGE_BYTES / most, "{commits} commits");
    files.sync().unwrap();
    assert_eq!(rig.dirty_bytes(), 0);
    assert_eq!(check(store).unwrap().problems, Vec::<String>::new());
}

#[test]
fn the_last_release_of_a_removed_file_is_counted_when_it_is_removed_and_waits_for_nothing() {
    let rig = rig();
    let files = rig.filesystem("pool/a");
    let objects: Vec<u64> = (0..200).map(|number| make(&files, number)).collect();
    files.sync().unwrap();
    (0..200).for_each(|number| {
        files.unlink(&kernel(), files.root(), &name(number)).unwrap();
    });
    files.sync().unwrap();
    let owed = rig.dirty_bytes();
    // As many as a sixty-fourth of the budget has room for, so that those who never let go leave others theirs.
    assert_eq!(owed, LIMIT / 64 / CHANGE_BYTES * CHANGE_BYTES);
    let commits = rig.environment.store.newest();
    objects.iter().for_each(|object| files.release_object(*object));
    assert_eq!(rig.environment.store.newest(), commits, "it waited");
    assert_eq!(rig.dirty_bytes(), 200 * CHANGE_BYTES);
    files.sync().unwrap();
    assert_eq!(rig.dirty_bytes(), 0);
}

#[test]
fn a_removed_file_that_gets_a_name_again_owes_nothing() {
    let rig = rig();
    let files = rig.filesystem("pool/a");
    let object = make(&files, 1);
    files.open_object(object).unwrap();
    files.unlink(&kernel(), files.root(), &name(1)).unwrap();
    files.link(&kernel(), object, files.root(), &name(2)).unwrap();
    files.release_object(object);
    files.release_object(object);
    files.sync().unwrap();
    assert_eq!(rig.dirty_bytes(), 0);
}

#[test]
fn a_thousand_datasets_keep_together_no_more_than_one_may() {
    let rig = rig();
    let caches = &rig.environment.caches;
    let most = rig.environment.budget.object_bytes() * 5 / 4;
    let all: Vec<Arc<Filesystem>> = (0..1000)
        .map(|number| {
            let files = rig.filesystem(&format!("pool/d{number}"));
            for number in 0..8 {
                make(&files, number);
            }
            files.sync().unwrap();
            assert!(caches.used_bytes() <= most, "{number}: {}", caches.used_bytes());
            files
        })
        .collect();
    for files in &all {
        for number in 0..8 {
            files.lookup(&kernel(), files.root(), &name(number)).unwrap();
        }
        assert!(caches.used_bytes() <= most, "{}", caches.used_bytes());
    }
    drop(all);
}

#[test]
fn names_that_are_looked_up_and_never_committed_are_bounded_too() {
    let rig = rig();
    let files = rig.filesystem("pool/a");
    let most = rig.environment.budget.object_bytes() * 5 / 4;
    for number in 0..20_000 {
        make(&files, number);
    }
    files.sync().unwrap();
    for round in 0..2 {
        for number in 0..20_000 {
            files.lookup(&kernel(), files.root(), &name(number)).unwrap();
            let kept = rig.environment.caches.used_bytes();
            assert!(kept <= most, "round {round}: {kept}");
        }
    }
}

#[test]
fn records_of_small_chunks_weigh_what_they_take() {
    let rig = rig();
    let files = rig.filesystem("pool/a");
    rig.datasets
        .properties()
        .set("pool/a", "chunk_size", "4K")
        .unwrap();
    let object = make(&files, 1);
    let mut content = vec![0_u8; 1 << 20];
    for region in 0..600_u64 {
        for (at, block) in content.chunks_exact_mut(4096).enumerate() {
            block[..8].copy_from_slice(&(region * 256 + at as u64 + 1).to_le_bytes());
        }
        files
            .write(&kernel(), object, region << 20, &content, false)
            .unwrap();
        if region == 60 {
            // So many fit: their runs, of 24 bytes each, are all counted.
            files.sync().unwrap();
            let kept = rig.environment.caches.used_bytes();
            assert!(kept >= 60 * 256 * 24, "{kept}");
        }
    }
    files.sync().unwrap();
    let mut block = vec![0; 4096];
    for region in 0..600_u64 {
        files.read(object, region << 20, &mut block).unwrap();
    }
    // 600 records of 256 runs, each of 24 bytes, are 3.6 MiB.
    let kept = rig.environment.caches.used_bytes();
    assert!(kept <= rig.environment.budget.object_bytes() * 5 / 4, "{kept}");
}

#[test]
fn a_check_in_passes_finds_what_one_finds_at_once() {
    let rig = rig();
    let files = rig.filesystem("pool/a");
    let content = vec![7_u8; 8192];
    for number in 0..300 {
        let object = make(&files, number);
        files.write(&kernel(), object, 0, &content, false).unwrap();
    }
    files.sync().unwrap();
    rig.datasets.snapshots().take("pool/a@before", false, "").unwrap();
    for number in 0..100 {
        let removed = files.unlink(&kernel(), files.root(), &name(number)).unwrap();
        files.release_object(removed.object);
    }
    files.sync().unwrap();
    let store = &rig.environment.store;
    let at_once = check(store).unwrap();
    assert_eq!((at_once.problem_count, at_once.lost_bodies.len()), (0, 0));
    let blocks = AtomicU64::new(0);
    count_references(store, &mut |_, count| {
        blocks.fetch_add(count as u64, Relaxed);
    })
    .unwrap();
    assert_eq!(
        blocks.load(Relaxed),
        at_once.references.values().sum::<i64>() as u64
    );
    // An inode goes that has a name and content, and an entry that an inode counts on.
    let mut batch = terrace_store::Batch::new();
    let number = rig.datasets.state("pool/a").unwrap().number();
    let lost = files.lookup(&kernel(), files.root(), &name(250)).unwrap().object;
    batch.delete(terrace_dataset::keys::inode(number, lost));
    batch.delete(terrace_dataset::keys::entry(number, files.root(), &name(251)));
    store.commit(batch).unwrap();
    let at_once = check(store).unwrap();
    assert!(
        at_once.problem_count >= 3 && at_once.lost_bodies.len() == 1,
        "{at_once:?}"
    );
    for objects in [1, 7, 100, 201, 1000] {
        let passes = check_within(store, objects).unwrap();
        let sorted = |problems: &[String]| {
            let mut problems = problems.to_vec();
            problems.sort();
            problems
        };
        assert_eq!(sorted(&passes.problems), sorted(&at_once.problems), "{objects}");
        assert_eq!(passes.lost_bodies, at_once.lost_bodies);
        let counts = |report: &terrace_dataset::CheckReport| {
            (
                report.inodes,
                report.entries,
                report.regions,
                report.versions,
                report.problem_count,
            )
        };
        assert_eq!(counts(&passes), counts(&at_once));
        assert!(passes.references.is_empty());
    }
}
