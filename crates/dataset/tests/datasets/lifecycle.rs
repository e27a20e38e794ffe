//! Datasets made, listed, renamed and destroyed, and files without a name that outlive their last call.

use std::sync::Arc;

use terrace_dataset::{
    At, Context, DatasetError, FsError, Kind, NewDataset, Progress, SetAttributes, Source, Tree, check, keys,
};
use terrace_store::{Batch, Store};

use super::pool::{Pool, open};

#[test]
fn datasets_are_created_listed_and_found_again() {
    let pool = Pool::new();
    pool.create("pool/a");
    assert!(matches!(
        pool.datasets.create("pool/a", &NewDataset::default()),
        Err(DatasetError::Exists(_))
    ));
    assert!(matches!(
        pool.datasets.create("pool/x/y/z", &NewDataset::default()),
        // What makes it also makes what is above it.
        Err(DatasetError::NoParent(parent)) if parent == "pool/x/y"
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
    pool.snapshots().take("pool/a@s", true, "note").unwrap();
    assert!(matches!(
        pool.datasets.destroy("pool/a", false, false, false),
        Err(DatasetError::NotEmpty { .. })
    ));
    assert!(matches!(
        pool.datasets.destroy("pool", true, false, false),
        Err(DatasetError::Refused(_))
    ));
    pool.snapshots().hold("keep", "pool/a/b@s").unwrap();
    assert!(matches!(
        pool.datasets.destroy("pool/a", true, true, false),
        Err(DatasetError::Held { .. })
    ));
    assert!(matches!(
        pool.snapshots().destroy("pool/a/b@s", false, false),
        Err(DatasetError::Held { .. })
    ));
    pool.snapshots().release("keep", "pool/a/b@s").unwrap();
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
    assert!(pool.datasets.sweeper().pending_bytes() > 0);
    pool.sweep();
    pool.audit();
    assert!(pool.memory.references().values().all(|blocks| *blocks == 0));
    assert_eq!(pool.datasets.sweeper().pending_bytes(), 0);
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
    pool.snapshots().take("pool/a@s", false, "").unwrap();
    for name in 0..20 {
        pool.write("pool/a", format!("file {name}").as_bytes(), &[0x77; 5000]);
    }
    pool.datasets.commit_all().unwrap();
    pool.audit();
    let number = pool.datasets.state("pool/a").unwrap().number();
    pool.datasets.destroy("pool/a", true, true, false).unwrap();
    pool.audit();
    let mut steps = 0;
    while pool.datasets.sweeper().step(7).unwrap() == Progress::More {
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
fn renaming_moves_a_whole_tree() {
    let pool = Pool::new();
    for name in ["pool/a", "pool/a/b", "pool/c"] {
        pool.create(name);
    }
    pool.properties().set("pool/c", "compression", "off").unwrap();
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
    let value = pool.properties().get("pool/c/d/b", "compression").unwrap();
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
