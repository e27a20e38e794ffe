//! Snapshots, checkpoints that retention holds, and the interval in which each dataset is committed.

use std::sync::Arc;

use terrace_dataset::{At, Context, DatasetError, FsError, Tree, keys};
use terrace_store::Store;

use super::pool::{Pool, SECOND, open};

#[test]
fn a_snapshot_shows_the_past_until_it_is_destroyed() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.write("pool/a", b"file", b"before");
    pool.write("pool/a", b"gone", &vec![3; 3 << 20]);
    let checkpoint = pool.snapshots().take("pool/a@s", false, "").unwrap();
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
    let report = pool.snapshots().destroy("pool/a@s", false, true).unwrap();
    assert_eq!(
        report.bytes, info.history_bytes,
        "what only it holds would be freed"
    );
    let report = pool.snapshots().destroy("pool/a@s", false, false).unwrap();
    assert_eq!(report.bytes, info.history_bytes);
    assert_eq!(Pool::read(view.as_ref(), b"file"), Err(FsError::Stale));
    pool.sweep();
    pool.audit();
    assert_eq!(pool.datasets.info("pool/a").unwrap().history_bytes, 0);
    assert!(matches!(
        pool.snapshots().destroy("pool/a@s", false, false),
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
    let checkpoint = pool.snapshots().take("pool/a@s", true, "both").unwrap();
    let list = pool.snapshots().list(Some("pool/a"), false).unwrap();
    assert_eq!(list.len(), 2);
    assert!(
        list.iter()
            .all(|info| info.checkpoint == checkpoint && info.note == "both")
    );
    assert!(matches!(
        pool.snapshots().take("pool/a@s", true, ""),
        Err(DatasetError::Exists(_))
    ));
    pool.snapshots().rename("pool/a@s", "pool/a@t").unwrap();
    let again = open(&pool.memory, &pool.clock);
    assert_eq!(again.snapshots().info("pool/a@t").unwrap().checkpoint, checkpoint);
    assert!(again.checkpoint() > checkpoint);
    again.snapshots().destroy("pool/a@t", true, false).unwrap();
    assert_eq!(
        again.snapshots().list(None, true).unwrap().len(),
        1,
        "pool/a/b@s has another name now"
    );
}

#[test]
fn retention_holds_checkpoints_and_lets_them_go() {
    let pool = Pool::new();
    pool.create("pool/a");
    pool.properties()
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
    let held = pool.snapshots().list(Some("pool/a"), true).unwrap();
    // 400 minutes: the newest of each hour, and the newest minute.
    assert!((7..=9).contains(&held.len()), "{}", held.len());
    assert!(pool.snapshots().list(Some("pool/a"), false).unwrap().is_empty());
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
    pool.properties().set("pool/a", "snapshots", "off").unwrap();
    pool.datasets.commit_all().unwrap();
    assert!(pool.snapshots().list(Some("pool/a"), true).unwrap().is_empty());
    pool.sweep();
    pool.audit();
    let (from, to) = keys::table_range(keys::TABLE_HISTORY);
    assert!(pool.memory.scan(&from, &to, 1).unwrap().is_empty());
}

#[test]
fn each_dataset_is_committed_in_its_own_interval() {
    let pool = Pool::new();
    pool.create("pool/often");
    pool.create("pool/seldom");
    pool.properties()
        .set("pool/seldom", "commit_interval", "1m")
        .unwrap();
    let bytes = |name: &str| {
        let store: Arc<dyn Store> = pool.memory.clone();
        let number = pool.datasets.info(name).unwrap().number;
        let bytes = terrace_dataset::bytes_of_dataset(&store, number).unwrap();
        bytes.by_tier.iter().sum::<u64>()
    };
    pool.datasets.flusher().commit_due(5 * SECOND).unwrap();
    for name in ["pool/often", "pool/seldom"] {
        pool.write(name, b"f", &[7; 8192]);
    }
    assert_eq!(
        pool.datasets.flusher().commit_due(5 * SECOND).unwrap(),
        5 * SECOND
    );
    assert_eq!(
        (bytes("pool/often"), bytes("pool/seldom")),
        (0, 0),
        "neither is due"
    );
    pool.clock.advance(5 * SECOND);
    pool.datasets.flusher().commit_due(5 * SECOND).unwrap();
    assert_eq!((bytes("pool/often"), bytes("pool/seldom")), (8192, 0));
    pool.clock.advance(55 * SECOND);
    pool.datasets.flusher().commit_due(5 * SECOND).unwrap();
    assert_eq!((bytes("pool/often"), bytes("pool/seldom")), (8192, 8192));
    pool.write("pool/seldom", b"g", &[8; 4096]);
    pool.properties()
        .set("pool/seldom", "commit_interval", "auto")
        .unwrap();
    pool.clock.advance(5 * SECOND);
    pool.datasets.flusher().commit_due(5 * SECOND).unwrap();
    assert_eq!(bytes("pool/seldom"), 8192 + 4096, "as the pool again");
}
