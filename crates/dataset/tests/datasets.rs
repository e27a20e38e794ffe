//! Creating, destroying, renaming, properties, quotas, retention, views.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::{
    At, Context, DatasetError, Datasets, Environment, FileKind, FsError, Kind, NewDataset, Progress,
    SetAttributes, Source, Tree, check, keys,
};
use terrace_device::ManualClock;
use terrace_store::{Batch, MemoryStore, Store};

const SECOND: u64 = 1_000_000_000;

struct Pool {
    memory: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    datasets: Datasets,
}

fn open(memory: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> Datasets {
    let store: Arc<dyn Store> = memory.clone();
    Datasets::open(Arc::new(Environment::new(store, clock.clone())), "pool").unwrap()
}

impl Pool {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::new(1 << 30));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let datasets = open(&memory, &clock);
        Self {
            memory,
            clock,
            datasets,
        }
    }

    fn create(&self, name: &str) {
        self.datasets.create(name, &NewDataset::default()).unwrap();
    }

    fn write(&self, dataset: &str, name: &[u8], content: &[u8]) {
        let filesystem = self.datasets.filesystem(dataset).unwrap();
        let root = Context::root();
        let object = match filesystem.lookup(&root, 1, name) {
            Ok(found) => found.object,
            Err(FsError::NotFound) => {
                filesystem
                    .create(&root, 1, name, FileKind::File, 0o644, 0)
                    .unwrap()
                    .object
            }
            Err(error) => panic!("{error}"),
        };
        filesystem.write(&root, object, 0, content, false).unwrap();
    }

    fn read(tree: &dyn Tree, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let found = tree.lookup(&Context::root(), 1, name)?;
        let mut content = vec![0; found.size as usize];
        assert_eq!(tree.read(found.object, 0, &mut content)?, content.len());
        Ok(content)
    }

    fn sweep(&self) {
        for _ in 0..100_000 {
            if self.datasets.sweep_step(7).unwrap() == Progress::Idle {
                return;
            }
        }
        panic!("the sweep does not end");
    }

    fn audit(&self) {
        let report = check(&(self.memory.clone() as Arc<dyn Store>)).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(report.lost_bodies.is_empty(), "{:?}", report.lost_bodies);
        let real: BTreeMap<_, _> = self
            .memory
            .references()
            .into_iter()
            .filter(|(_, n)| *n != 0)
            .collect();
        assert_eq!(report.references, real);
    }

    fn names(&self) -> Vec<String> {
        self.datasets
            .list(None)
            .unwrap()
            .into_iter()
            .map(|info| info.name)
            .collect()
    }
}

#[test]
fn datasets_are_created_listed_and_found_again() {
    let pool = Pool::new();
    pool.create("pool/a");
    assert!(matches!(
        pool.datasets.create("pool/a", &NewDataset::default()),
        Err(DatasetError::Exists(_))
    ));
    assert!(matches!(
        pool.datasets.create("pool/x/y", &NewDataset::default()),
        Err(DatasetError::NoParent(_))
    ));
    assert!(matches!(
        pool.datasets.create("other/a", &NewDataset::default()),
        Err(DatasetError::Refused(_))
    ));
    assert!(matches!(
        pool.datasets.create("pool/a b", &NewDataset::default()),
        Err(DatasetError::InvalidName { .. })
    ));
    pool.datasets
        .create(
            "pool/x/y",
            &NewDataset {
                parents: true,
                ..NewDataset::default()
            },
        )
        .unwrap();
    let volume = NewDataset {
        volume_bytes: Some(10_000),
        sparse: true,
        ..NewDataset::default()
    };
    pool.datasets.create("pool/x/v", &volume).unwrap();
    assert!(matches!(
        pool.datasets.create("pool/x/v/w", &NewDataset::default()),
        Err(DatasetError::Refused(_))
    ));
    let expected = ["pool", "pool/a", "pool/x", "pool/x/v", "pool/x/y"];
    assert_eq!(pool.names(), expected);
    let again = open(&pool.memory, &pool.clock);
    let found: Vec<_> = again
        .list(None)
        .unwrap()
        .into_iter()
        .map(|info| info.name)
        .collect();
    assert_eq!(found, expected);
    assert_eq!(
        again.info("pool/x/v").unwrap().kind,
        Kind::Volume { size_bytes: 12288 }
    );
    assert!(matches!(
        again.filesystem("pool/x/v"),
        Err(DatasetError::WrongKind { .. })
    ));
    assert!(matches!(
        again.volume("pool/a"),
        Err(DatasetError::WrongKind { .. })
    ));
    pool.audit();
}

#[test]
fn destroying_refuses_what_would_surprise_and_frees_the_rest() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/a/b");
    pool.write("pool/a", b"file", &[7; 10_000]);
    pool.write("pool/a/b", b"file", &[8; 10_000]);
    pool.datasets.snapshot("pool/a@s", true, "note").unwrap();
    assert!(matches!(
        pool.datasets.destroy("pool/a", false, false, false),
        Err(DatasetError::NotEmpty { .. })
    ));
    assert!(matches!(
        pool.datasets.destroy("pool", true, false, false),
        Err(DatasetError::Refused(_))
    ));
    pool.datasets.hold("keep", "pool/a/b@s").unwrap();
    assert!(matches!(
        pool.datasets.destroy("pool/a", true, true, false),
        Err(DatasetError::Held { .. })
    ));
    assert!(matches!(
        pool.datasets.destroy_snapshot("pool/a/b@s", false, false),
        Err(DatasetError::Held { .. })
    ));
    pool.datasets.release("keep", "pool/a/b@s").unwrap();
    let report = pool.datasets.destroy("pool/a", true, false, true).unwrap();
    assert_eq!(report.datasets, ["pool/a", "pool/a/b"]);
    assert_eq!(report.snapshots, ["pool/a@s", "pool/a/b@s"]);
    assert!(report.bytes >= 20_000);
    assert_eq!(pool.names().len(), 3, "a dry run changes nothing");
    let used = pool.datasets.filesystem("pool/a/b").unwrap();
    let view = pool.datasets.view("pool/a/b", &At::Snapshot("s".into())).unwrap();
    assert!(matches!(
        pool.datasets.destroy("pool/a", true, false, false),
        Err(DatasetError::Busy(_))
    ));
    pool.datasets.destroy("pool/a", true, true, false).unwrap();
    assert_eq!(pool.names(), ["pool"]);
    assert_eq!(view.attributes(1), Err(FsError::Stale));
    assert!(used.sync().is_err() || used.attributes(1).is_err());
    drop(used);
    assert!(pool.datasets.pending_sweep_bytes() > 0);
    pool.sweep();
    pool.audit();
    assert!(pool.memory.references().values().all(|blocks| *blocks == 0));
    assert_eq!(pool.datasets.pending_sweep_bytes(), 0);
    pool.create("pool/a");
    assert!(
        pool.datasets.info("pool/a").unwrap().number > 3,
        "numbers are not used twice"
    );
}

#[test]
fn the_walk_complains_of_nothing_while_a_dataset_is_freed_and_of_what_nobody_frees() {
    let pool = Pool::new();
    pool.create("pool/a");
    for name in 0..20 {
        pool.write("pool/a", format!("file {name}").as_bytes(), &[name; 5000]);
    }
    pool.datasets.snapshot("pool/a@s", false, "").unwrap();
    for name in 0..20 {
        pool.write("pool/a", format!("file {name}").as_bytes(), &[0x77; 5000]);
    }
    pool.datasets.commit_all().unwrap();
    pool.audit();
    let number = pool.datasets.state("pool/a").unwrap().number();
    pool.datasets.destroy("pool/a", true, true, false).unwrap();
    pool.audit();
    let mut steps = 0;
    while pool.datasets.sweep_step(7).unwrap() == Progress::More {
        pool.audit();
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
    // As if the freeing had left something out.
    let mut batch = Batch::new();
    batch.put(keys::heat(number, 1), vec![0]);
    pool.memory.commit(batch).unwrap();
    let problems = check(&(pool.memory.clone() as Arc<dyn Store>)).unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn a_snapshot_shows_the_past_until_it_is_destroyed() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.write("pool/a", b"file", b"before");
    pool.write("pool/a", b"gone", &vec![3; 3 << 20]);
    let checkpoint = pool.datasets.snapshot("pool/a@s", false, "").unwrap();
    pool.write("pool/a", b"file", b"after!");
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    filesystem.unlink(&Context::root(), 1, b"gone").unwrap();
    pool.datasets.commit_all().unwrap();
    pool.sweep();
    pool.audit();
    assert_eq!(Pool::read(filesystem.as_ref(), b"file").unwrap(), b"after!");
    assert_eq!(Pool::read(filesystem.as_ref(), b"gone"), Err(FsError::NotFound));
    let view = pool.datasets.view("pool/a", &At::Checkpoint(checkpoint)).unwrap();
    assert_eq!(Pool::read(view.as_ref(), b"file").unwrap(), b"before");
    assert_eq!(Pool::read(view.as_ref(), b"gone").unwrap(), vec![3; 3 << 20]);
    let names: Vec<_> = view
        .read_directory(1, 0, 10)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert_eq!(names.len(), 2);
    let info = pool.datasets.info("pool/a").unwrap();
    assert!(info.history_bytes >= 3 << 20, "{info:?}");
    assert!(matches!(
        pool.datasets.view("pool/a", &At::Checkpoint(checkpoint + 1)),
        Err(DatasetError::NotHeld { .. })
    ));
    pool.datasets.destroy_snapshot("pool/a@s", false, false).unwrap();
    assert_eq!(Pool::read(view.as_ref(), b"file"), Err(FsError::Stale));
    pool.sweep();
    pool.audit();
    assert_eq!(pool.datasets.info("pool/a").unwrap().history_bytes, 0);
    assert!(matches!(
        pool.datasets.destroy_snapshot("pool/a@s", false, false),
        Err(DatasetError::NoSnapshot(_))
    ));
}

#[test]
fn a_recursive_snapshot_is_one_checkpoint() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/a/b");
    pool.write("pool/a", b"x", b"1");
    pool.write("pool/a/b", b"x", b"2");
    let checkpoint = pool.datasets.snapshot("pool/a@s", true, "both").unwrap();
    let list = pool.datasets.snapshots(Some("pool/a"), false).unwrap();
    assert_eq!(list.len(), 2);
    assert!(
        list.iter()
            .all(|info| info.checkpoint == checkpoint && info.note == "both")
    );
    assert!(matches!(
        pool.datasets.snapshot("pool/a@s", true, ""),
        Err(DatasetError::Exists(_))
    ));
    pool.datasets.rename_snapshot("pool/a@s", "pool/a@t").unwrap();
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(
        again.resolve("pool/a", &At::Snapshot("t".into())).unwrap(),
        checkpoint
    );
    assert!(again.checkpoint() > checkpoint);
    again.destroy_snapshot("pool/a@t", true, false).unwrap();
    assert_eq!(
        again.snapshots(None, true).unwrap().len(),
        1,
        "pool/a/b@s has another name now"
    );
}

#[test]
fn renaming_moves_a_whole_tree() {
    let pool = Pool::new();
    for name in ["pool/a", "pool/a/b", "pool/c"] {
        pool.create(name);
    }
    pool.datasets.set("pool/c", "compression", "off").unwrap();
    pool.write("pool/a/b", b"x", b"content");
    let filesystem = pool.datasets.filesystem("pool/a/b").unwrap();
    assert!(matches!(
        pool.datasets.rename("pool/a", "pool/a/d"),
        Err(DatasetError::Refused(_))
    ));
    assert!(matches!(
        pool.datasets.rename("pool/a", "pool/c"),
        Err(DatasetError::Exists(_))
    ));
    assert!(matches!(
        pool.datasets.rename("pool/a", "pool/n/d"),
        Err(DatasetError::NoParent(_))
    ));
    pool.datasets.rename("pool/a", "pool/c/d").unwrap();
    assert_eq!(pool.names(), ["pool", "pool/c", "pool/c/d", "pool/c/d/b"]);
    assert_eq!(&*pool.datasets.state("pool/c/d/b").unwrap().name(), "pool/c/d/b");
    let value = pool.datasets.get("pool/c/d/b", "compression").unwrap();
    assert_eq!(
        (value[0].value.as_str(), &value[0].source),
        ("off", &Source::Inherited("pool/c".into()))
    );
    filesystem.sync().unwrap();
    assert_eq!(Pool::read(filesystem.as_ref(), b"x").unwrap(), b"content");
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(
        Pool::read(again.filesystem("pool/c/d/b").unwrap().as_ref(), b"x").unwrap(),
        b"content"
    );
}

#[test]
fn properties_are_inherited_set_and_reset() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/a/b");
    pool.datasets.set("pool/a", "compression", "zstd-7").unwrap();
    pool.datasets.set("pool/a", "user:owner", "me").unwrap();
    pool.datasets.set("pool", "pin", "slow").unwrap();
    let settings = pool.datasets.state("pool/a/b").unwrap().settings();
    assert_eq!(settings.compression, terrace_store::Compression::Zstd(7));
    assert_eq!(settings.pin_tier, Some(1));
    let all = pool.datasets.get("pool/a/b", "all").unwrap();
    assert!(
        all.iter()
            .any(|p| p.name == "user:owner" && p.source == Source::Inherited("pool/a".into()))
    );
    assert!(all.iter().any(|p| p.name == "type" && p.value == "fs"));
    for (name, value) in [
        ("pin", "tape"),
        ("encryption", "on"),
        ("used", "1"),
        ("nothing", "1"),
        ("quota", "x"),
    ] {
        assert!(
            matches!(
                pool.datasets.set("pool/a", name, value),
                Err(DatasetError::InvalidProperty(_))
            ),
            "{name}"
        );
    }
    pool.datasets.inherit("pool/a", "compression").unwrap();
    let value = &pool.datasets.get("pool/a/b", "compression").unwrap()[0];
    assert_eq!((value.value.as_str(), &value.source), ("lz4", &Source::Default));
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(again.get("pool/a/b", "pin").unwrap()[0].value, "slow");
}

/// Volumes are made with chunks that go by the content, unless it is said otherwise for them or above them; what was made without a
/// word of it keeps those of 128 KiB.
#[test]
fn volumes_are_made_with_chunks_that_go_by_the_content() {
    let pool = Pool::new();
    let make = |name: &str, chunk_size: Option<&str>| {
        let chunk_size = chunk_size.map(|value| ("chunk_size".to_owned(), value.to_owned()));
        let new = NewDataset {
            volume_bytes: Some(1 << 20),
            sparse: true,
            properties: chunk_size.into_iter().collect(),
            ..NewDataset::default()
        };
        pool.datasets.create(name, &new).unwrap();
    };
    let both = |name: &str| {
        let settings = pool.datasets.state(name).unwrap().settings();
        (settings.chunk_bytes, settings.raw_chunk_bytes)
    };
    let chunk_bytes = |name: &str| {
        let (usual, raw) = both(name);
        assert_eq!(usual, raw);
        usual
    };
    make("pool/v", None);
    assert_eq!(both("pool/v"), (16 << 10, 64 << 10));
    let value = &pool.datasets.get("pool/v", "chunk_size").unwrap()[0];
    assert_eq!((value.value.as_str(), &value.source), ("auto", &Source::Local));
    make("pool/w", Some("64K"));
    assert_eq!(chunk_bytes("pool/w"), 64 << 10);
    pool.create("pool/a");
    assert_eq!(chunk_bytes("pool/a"), 128 << 10);
    pool.datasets.set("pool/a", "chunk_size", "32K").unwrap();
    make("pool/a/v", None);
    assert_eq!(chunk_bytes("pool/a/v"), 32 << 10);
    let value = &pool.datasets.get("pool/a/v", "chunk_size").unwrap()[0];
    assert_eq!(value.source, Source::Inherited("pool/a".into()));
    // As a volume of an older version: nothing is written down for it.
    pool.datasets.inherit("pool/v", "chunk_size").unwrap();
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(again.state("pool/v").unwrap().settings().chunk_bytes, 128 << 10);
}

#[test]
fn a_quota_bounds_the_dataset_and_those_below() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.create("pool/a/b");
    pool.datasets.set("pool/a", "quota", "1M").unwrap();
    let state = pool.datasets.state("pool/a/b").unwrap();
    let room = state.reserve(600 << 10).unwrap();
    assert_eq!(state.reserve(600 << 10).unwrap_err(), FsError::QuotaExceeded);
    drop(room);
    let mut room = state.reserve(1 << 20).unwrap();
    assert_eq!(state.reserve(1).unwrap_err(), FsError::QuotaExceeded);
    room.shrink_by(512 << 10);
    let other = state.reserve(512 << 10).unwrap();
    room.join(other);
    assert_eq!(state.reserve(4096).unwrap_err(), FsError::QuotaExceeded);
    drop(room);
    assert_eq!(state.usage().quota_left_bytes(), Some(1 << 20));
    pool.datasets.rename("pool/a/b", "pool/b").unwrap();
    assert_eq!(state.usage().quota_left_bytes(), None);
}

#[test]
fn a_reservation_keeps_room_for_its_dataset() {
    const WORKING: u64 = (6 << 20) / 32;
    let memory = Arc::new(MemoryStore::new(10 << 20));
    let clock = Arc::new(ManualClock::new(0));
    let datasets = open(&memory, &clock);
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    datasets.create("pool/b", &NewDataset::default()).unwrap();
    datasets.set("pool/a", "reservation", "6M").unwrap();
    let too_much = datasets
        .set("pool/b", "reservation", "6M")
        .unwrap_err()
        .to_string();
    assert!(
        too_much.contains("6.19M would have to be set aside, working room included, and 3.81M are free"),
        "{too_much}"
    );
    let thick = NewDataset {
        volume_bytes: Some(6 << 20),
        ..NewDataset::default()
    };
    let error = datasets.create("pool/v", &thick).unwrap_err();
    assert!(matches!(
        error,
        DatasetError::NoRoom { wanted_bytes, available_bytes }
            if (wanted_bytes, available_bytes) == ((6 << 20) + WORKING, (4 << 20) - WORKING)
    ));
    assert!(datasets.state("pool/v").is_err());
    let (a, b) = (
        datasets.state("pool/a").unwrap(),
        datasets.state("pool/b").unwrap(),
    );
    assert_eq!(b.reserve(4 << 20).unwrap_err(), FsError::NoSpace);
    let taken = b.reserve((4 << 20) - WORKING).unwrap();
    let own = a.reserve(6 << 20).unwrap();
    // What it gives back is its own again at once.
    drop(own);
    assert_eq!(b.reserve(4096).unwrap_err(), FsError::NoSpace);
    let own = a.reserve((6 << 20) + WORKING).unwrap();
    assert_eq!(a.reserve(4096).unwrap_err(), FsError::NoSpace);
    drop((taken, own));
    datasets.inherit("pool/a", "reservation").unwrap();
    drop(b.reserve(9 << 20).unwrap());
}

#[test]
fn retention_holds_checkpoints_and_lets_them_go() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.datasets
        .set("pool/a", "retention", "all:1m hourly:1d")
        .unwrap();
    let mut first = None;
    for step in 0..40u8 {
        pool.write("pool/a", b"x", &[step; 5000]);
        let checkpoint = pool.datasets.commit_all().unwrap();
        first = first.or(Some((checkpoint, step)));
        pool.datasets.commit_all().unwrap();
        pool.clock.advance(10 * 60 * SECOND);
    }
    let held = pool.datasets.snapshots(Some("pool/a"), true).unwrap();
    // 400 minutes: the newest of each hour, and the newest minute.
    assert!((7..=9).contains(&held.len()), "{}", held.len());
    assert!(pool.datasets.snapshots(Some("pool/a"), false).unwrap().is_empty());
    let newest = held.last().unwrap();
    let now = pool.datasets.environment().now();
    let at = At::parse("-15m", now).unwrap();
    let view = pool.datasets.view("pool/a", &at).unwrap();
    assert!(view.checkpoint() <= newest.checkpoint);
    assert!(Pool::read(view.as_ref(), b"x").unwrap()[0] >= 34);
    assert!(matches!(
        pool.datasets.view("pool/a", &At::Checkpoint(first.unwrap().0)),
        Err(DatasetError::NotHeld { .. })
    ));
    pool.sweep();
    pool.audit();
    pool.datasets.set("pool/a", "snapshots", "off").unwrap();
    pool.datasets.commit_all().unwrap();
    assert!(pool.datasets.snapshots(Some("pool/a"), true).unwrap().is_empty());
    pool.sweep();
    pool.audit();
    let (from, to) = keys::table_range(keys::TABLE_HISTORY);
    assert!(pool.memory.scan(&from, &to, 1).unwrap().is_empty());
}

#[test]
fn volumes_grow_and_report_their_size() {
    let pool = Pool::new();
    let new = NewDataset {
        volume_bytes: Some(1 << 20),
        ..NewDataset::default()
    };
    pool.datasets.create("pool/v", &new).unwrap();
    assert_eq!(pool.datasets.get("pool/v", "reservation").unwrap()[0].value, "1M");
    let volume = pool.datasets.volume("pool/v").unwrap();
    volume.write(4096, &[9; 4096]).unwrap();
    pool.datasets.resize_volume("pool/v", 2 << 20).unwrap();
    assert_eq!(volume.size_bytes(), 2 << 20);
    assert_eq!(pool.datasets.get("pool/v", "reservation").unwrap()[0].value, "2M");
    let again = open(&pool.memory, &pool.clock);
    let volume = again.volume("pool/v").unwrap();
    assert_eq!(volume.size_bytes(), 2 << 20);
    let mut block = [0; 4096];
    volume.read(4096, &mut block).unwrap();
    assert_eq!(block, [9; 4096]);
    pool.audit();
}

/// A crash can come between any two batches: the size in the volume's inode and that in the dataset's record must not be
/// in different ones.
#[test]
fn a_resize_is_one_batch() {
    let pool = Pool::new();
    let new = NewDataset {
        volume_bytes: Some(4 << 20),
        ..NewDataset::default()
    };
    pool.datasets.create("pool/v", &new).unwrap();
    let volume = pool.datasets.volume("pool/v").unwrap();
    for size in [8 << 20, 1 << 20, 3 << 20] {
        volume.write(0, &[size as u8 | 1; 8192]).unwrap();
        volume.write((1 << 20) - 4096, &[7; 4096]).unwrap();
        let before = pool.memory.newest();
        pool.datasets.resize_volume("pool/v", size).unwrap();
        assert_eq!(pool.memory.newest().0, before.0 + 1);
        let again = open(&pool.memory, &pool.clock);
        assert_eq!(again.volume("pool/v").unwrap().size_bytes(), size);
        let listed = again.list(Some("pool/v")).unwrap();
        assert_eq!(listed[0].kind, Kind::Volume { size_bytes: size });
    }
    pool.audit();
}

#[test]
fn an_open_file_without_a_name_that_is_emptied_leaves_nothing() {
    let root = Context::root();
    for crash in [false, true] {
        for sweep_before in [false, true] {
            let mut pool = Pool::new();
            pool.create("pool/a");
            pool.write("pool/a", b"file", &vec![3; 40 << 20]);
            let filesystem = pool.datasets.filesystem("pool/a").unwrap();
            let object = filesystem.lookup(&root, 1, b"file").unwrap().object;
            pool.datasets.commit_all().unwrap();
            filesystem.open_object(object).unwrap();
            filesystem.unlink(&root, 1, b"file").unwrap();
            pool.datasets.commit_all().unwrap();
            let empty = SetAttributes {
                size: Some(0),
                ..SetAttributes::default()
            };
            filesystem.set_attributes(&root, object, &empty).unwrap();
            pool.datasets.commit_all().unwrap();
            filesystem.write(&root, object, 0, &[5; 9000], false).unwrap();
            pool.datasets.commit_all().unwrap();
            if sweep_before {
                pool.sweep();
            }
            pool.audit();
            if crash {
                drop(filesystem);
                pool.datasets = open(&pool.memory, &pool.clock);
                drop(pool.datasets.filesystem("pool/a").unwrap());
            } else {
                filesystem.release_object(object);
            }
            pool.datasets.commit_all().unwrap();
            pool.sweep();
            pool.audit();
            assert!(
                pool.memory.references().values().all(|blocks| *blocks == 0),
                "{crash} {sweep_before}"
            );
            assert_eq!(pool.datasets.info("pool/a").unwrap().objects, 1);
        }
    }
}

#[test]
fn each_dataset_is_committed_in_its_own_interval() {
    let pool = Pool::new();
    pool.create("pool/often");
    pool.create("pool/seldom");
    pool.datasets.set("pool/seldom", "commit_interval", "1m").unwrap();
    let bytes = |name: &str| {
        let store: Arc<dyn Store> = pool.memory.clone();
        let number = pool.datasets.info(name).unwrap().number;
        let bytes = terrace_dataset::bytes_of_dataset(&store, number).unwrap();
        bytes.by_tier.iter().sum::<u64>()
    };
    pool.datasets.commit_due(5 * SECOND).unwrap();
    for name in ["pool/often", "pool/seldom"] {
        pool.write(name, b"f", &[7; 8192]);
    }
    assert_eq!(pool.datasets.commit_due(5 * SECOND).unwrap(), 5 * SECOND);
    assert_eq!(
        (bytes("pool/often"), bytes("pool/seldom")),
        (0, 0),
        "neither is due"
    );
    pool.clock.advance(5 * SECOND);
    pool.datasets.commit_due(5 * SECOND).unwrap();
    assert_eq!((bytes("pool/often"), bytes("pool/seldom")), (8192, 0));
    pool.clock.advance(55 * SECOND);
    pool.datasets.commit_due(5 * SECOND).unwrap();
    assert_eq!((bytes("pool/often"), bytes("pool/seldom")), (8192, 8192));
    pool.write("pool/seldom", b"g", &[8; 4096]);
    pool.datasets
        .set("pool/seldom", "commit_interval", "auto")
        .unwrap();
    pool.clock.advance(5 * SECOND);
    pool.datasets.commit_due(5 * SECOND).unwrap();
    assert_eq!(bytes("pool/seldom"), 8192 + 4096, "as the pool again");
}

#[test]
fn scans_add_no_heat_and_what_ram_answers_does() {
    let pool = Pool::new();
    pool.create("pool/a");
    const REGION: usize = 1 << 20;
    pool.write("pool/a", b"scanned", &vec![7; 8 * REGION]);
    pool.write("pool/a", b"used", &vec![8; REGION]);
    let filesystem = pool.datasets.filesystem("pool/a").unwrap();
    let root = Context::root();
    let object = |name: &[u8]| filesystem.lookup(&root, 1, name).unwrap().object;
    let number = pool.datasets.info("pool/a").unwrap().number;
    let minutes = 1_800_000_000 / 60;
    let heat = |object: u64, region: u32| {
        let heat = &pool.datasets.environment().heat;
        heat.of(number, object, region, minutes).reads
    };
    // Not committed: every read is answered from dirty pages.
    let mut small = vec![0; 4096];
    for at in [9, 3, 200, 77, 5] {
        filesystem.read(object(b"used"), at * 4096, &mut small).unwrap();
    }
    assert_eq!(heat(object(b"used"), 0), 5.0);
    pool.datasets.commit_all().unwrap();
    for at in [9, 3, 200, 77, 5] {
        filesystem.read(object(b"used"), at * 4096, &mut small).unwrap();
    }
    assert_eq!(heat(object(b"used"), 0), 10.0);
    // Thrice from end to end, the last time as the kernel's readahead arrives.
    let mut large = vec![0; 128 << 10];
    let in_order: Vec<u64> = (0..64).collect();
    let swapped: Vec<u64> = in_order.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    for order in [&in_order, &in_order, &swapped] {
        for at in order {
            filesystem
                .read(object(b"scanned"), at * (128 << 10), &mut large)
                .unwrap();
        }
    }
    for region in 1..8 {
        assert!(heat(object(b"scanned"), region) < 1.0, "region {region}");
    }
    assert!(heat(object(b"scanned"), 0) < 3.0);
}
