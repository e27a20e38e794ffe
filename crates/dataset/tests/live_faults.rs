//! Threads that change a filesystem at the same time as commits, and stores that fail under it.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use terrace_cache::Budget;
use terrace_dataset::{
    Context, Datasets, Environment, FileKind, FsError, NewDataset, ROOT, RenameMode, SetAttributes, Tree,
    check,
};
use terrace_device::ManualClock;
use terrace_store::{Batch, MemoryStore, Piece, Sequence, Store, StoreError, Written};

/// A store whose writes or commits fail while it is told so.
struct Failing {
    memory: MemoryStore,
    writes_fail: AtomicBool,
    commits_fail: AtomicBool,
}

fn broken() -> StoreError {
    StoreError::Device("the device is gone".into())
}

impl Store for Failing {
    terrace_store::in_memory!(memory: get scan read_chunk chunk_info flush newest reserve_beside reserve_always space rewrite);

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        if self.writes_fail.load(SeqCst) {
            Err(broken())
        } else {
            self.memory.write_chunks(pieces)
        }
    }
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        if self.commits_fail.load(SeqCst) {
            Err(broken())
        } else {
            self.memory.commit(batch)
        }
    }
}

fn failing() -> (Arc<Failing>, Datasets) {
    let memory = MemoryStore::new(1 << 30);
    let store = Arc::new(Failing {
        memory,
        writes_fail: AtomicBool::new(false),
        commits_fail: AtomicBool::new(false),
    });
    let datasets = open(&store);
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    (store, datasets)
}

fn open(store: &Arc<Failing>) -> Datasets {
    let store: Arc<dyn Store> = store.clone();
    Datasets::open(
        Arc::new(Environment::new(store, Arc::new(ManualClock::new(1)))),
        "pool",
    )
    .unwrap()
}

fn verify(store: &Arc<Failing>) {
    let as_store: Arc<dyn Store> = store.clone();
    let report = check(&as_store).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.references, store.memory.references());
}

#[test]
fn a_failed_commit_is_reported_and_made_up_for() {
    let root = Context::root();
    for writes in [true, false] {
        let (store, datasets) = failing();
        let fs = datasets.filesystem("pool/a").unwrap();
        let object = fs
            .create(&root, ROOT, b"a", FileKind::File, 0o644, 0)
            .unwrap()
            .object;
        fs.write(&root, object, 0, &[1; 9000], false).unwrap();
        fs.sync().unwrap();
        fs.write(&root, object, 4096, &[2; 4096], false).unwrap();
        let fail = |yes| {
            if writes {
                store.writes_fail.store(yes, SeqCst)
            } else {
                store.commits_fail.store(yes, SeqCst)
            }
        };
        fail(true);
        assert!(matches!(fs.sync(), Err(FsError::Io(_))));
        assert!(matches!(fs.sync(), Err(FsError::Io(_))));
        assert!(datasets.commit_all().is_err());
        // What is dirty is still there to be read, and more can be written over it.
        fs.write(&root, object, 8192, &[3; 10], false).unwrap();
        fs.set_attributes(
            &root,
            object,
            &SetAttributes {
                mode: Some(0o600),
                ..Default::default()
            },
        )
        .unwrap();
        fs.create(&root, ROOT, b"b", FileKind::File, 0o644, 0).unwrap();
        let mut read = vec![0; 9000];
        fs.read(object, 0, &mut read).unwrap();
        assert_eq!((read[4095], read[4096], read[8192], read[8999]), (1, 2, 3, 1));
        fail(false);
        fs.sync().unwrap();
        // Nothing is left over: the next commit of all has nothing to complain of.
        datasets.commit_all().unwrap();
        drop((fs, datasets));
        let datasets = open(&store);
        let fs = datasets.filesystem("pool/a").unwrap();
        let mut read = vec![0; 9000];
        fs.read(object, 0, &mut read).unwrap();
        assert_eq!((read[4095], read[4096], read[8192], read[8999]), (1, 2, 3, 1));
        assert_eq!(fs.attributes(object).unwrap().mode, 0o600);
        fs.lookup(&root, ROOT, b"b").unwrap();
        verify(&store);
    }
}

#[test]
fn closing_after_a_failed_commit_saves_what_came_later_too() {
    let root = Context::root();
    let (store, datasets) = failing();
    let fs = datasets.filesystem("pool/a").unwrap();
    let object = fs
        .create(&root, ROOT, b"a", FileKind::File, 0o644, 0)
        .unwrap()
        .object;
    store.commits_fail.store(true, SeqCst);
    fs.write(&root, object, 0, &[1; 10], false).unwrap();
    datasets.commit_all().unwrap_err();
    fs.write(&root, object, 0, &[2; 10], false).unwrap();
    datasets.save_all().unwrap_err();
    store.commits_fail.store(false, SeqCst);
    datasets.save_all().unwrap();
    drop((fs, datasets));
    let fs = open(&store).filesystem("pool/a").unwrap();
    let mut read = [0; 10];
    fs.read(object, 0, &mut read).unwrap();
    assert_eq!(read, [2; 10]);
    verify(&store);
}

#[test]
fn a_large_directory_that_was_just_emptied_is_listed_on_a_small_stack() {
    const NAMES: usize = 6000;
    let root = Context::root();
    let (store, datasets) = failing();
    let fs = datasets.filesystem("pool/a").unwrap();
    let name = |number: usize| format!("n{number}").into_bytes();
    for number in 0..NAMES {
        fs.create(&root, ROOT, &name(number), FileKind::File, 0o644, 0)
            .unwrap();
    }
    fs.sync().unwrap();
    drop((fs, datasets));
    // With little memory a directory of this size is not kept as a whole.
    let store: Arc<dyn Store> = store.clone();
    let budget = Arc::new(Budget::new(1 << 20));
    let environment = Environment::with_budget(store, Arc::new(ManualClock::new(1)), budget);
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    (0..NAMES).for_each(|number| {
        let _ = fs.unlink(&root, ROOT, &name(number)).unwrap();
    });
    let listing = thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || fs.read_directory(ROOT, 0, 1).unwrap().len())
        .unwrap();
    assert_eq!(listing.join().unwrap(), 0);
}

#[test]
fn threads_and_commits_leave_a_consistent_tree() {
    let (store, datasets) = failing();
    let datasets = Arc::new(datasets);
    let fs = datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let dirs: Vec<u64> = (0..3)
        .map(|at| {
            fs.make_directory(&root, ROOT, format!("d{at}").as_bytes(), 0o755)
                .unwrap()
                .object
        })
        .collect();
    let done = AtomicU64::new(0);
    const THREADS: u64 = 4;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, root, dirs, done) = (&fs, &root, &dirs, &done);
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut next = |below: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random % below
                };
                for round in 0..400u64 {
                    let name = format!("n{}", next(12)).into_bytes();
                    let other = format!("n{}", next(12)).into_bytes();
                    let (dir, to) = (dirs[next(3) as usize], dirs[next(3) as usize]);
                    match next(8) {
                        0..3 => {
                            let object = match fs.create(root, dir, &name, FileKind::File, 0o644, 0) {
                                Ok(made) => made.object,
                                Err(_) => fs.lookup(root, dir, &name).map_or(0, |found| found.object),
                            };
                            let content = vec![round as u8 | 1; next(20_000) as usize];
                            let _ = fs.write(root, object, next(200_000), &content, false);
                        }
                        3 => drop(fs.unlink(root, dir, &name)),
                        4 => drop(fs.rename(root, dir, &name, to, &other, RenameMode::Replace)),
                        5 => drop(fs.rename(root, dir, &name, to, &other, RenameMode::Exchange)),
                        6 => {
                            if let Ok(found) = fs.lookup(root, dir, &name) {
                                let mut buffer = vec![0; 5000];
                                let _ = fs.read(found.object, next(100_000), &mut buffer);
                                let size = SetAttributes {
                                    size: Some(next(100_000)),
                                    ..Default::default()
                                };
                                let _ = fs.set_attributes(root, found.object, &size);
                            }
                        }
                        _ => fs.sync().unwrap(),
                    }
                }
                done.fetch_add(1, SeqCst);
            });
        }
        scope.spawn(|| {
            while done.load(SeqCst) < THREADS {
                datasets.commit_all().unwrap();
                thread::yield_now();
            }
        });
    });
    fs.sync().unwrap();
    let mut listed = 0;
    for dir in &dirs {
        for entry in fs.read_directory(*dir, 0, 100).unwrap() {
            let size = fs.attributes(entry.object).unwrap().size;
            let mut content = vec![0; size as usize];
            assert_eq!(fs.read(entry.object, 0, &mut content), Ok(size as usize));
            listed += 1;
        }
    }
    assert!(listed > 0);
    verify(&store);
}

#[test]
fn a_large_file_is_freed_in_the_background() {
    let (store, datasets) = failing();
    let fs = datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 12) as u8 | 1).collect();
    let mut objects = Vec::new();
    for name in [b"a", b"b"] {
        let object = fs
            .create(&root, ROOT, name, FileKind::File, 0o644, 0)
            .unwrap()
            .object;
        for region in 0..20u64 {
            fs.write(&root, object, region << 20, &content, false).unwrap();
        }
        objects.push(object);
    }
    fs.sync().unwrap();
    let held = store.memory.references().len();
    fs.set_attributes(
        &root,
        objects[0],
        &SetAttributes {
            size: Some(0),
            ..Default::default()
        },
    )
    .unwrap();
    fs.write(&root, objects[0], 5000, b"new", false).unwrap();
    fs.unlink(&root, ROOT, b"b").unwrap();
    fs.sync().unwrap();
    assert!(
        store.memory.references().len() >= held,
        "nothing is freed in the foreground"
    );
    assert!(datasets.sweeper().is_pending());
    while datasets.sweeper().step(8).unwrap() == terrace_dataset::Progress::More {}
    assert_eq!(store.memory.references().len(), 1);
    let mut read = [9; 5003];
    assert_eq!(fs.read(objects[0], 0, &mut read), Ok(5003));
    assert!(read[..5000].iter().all(|byte| *byte == 0) && &read[5000..] == b"new");
    verify(&store);
}
