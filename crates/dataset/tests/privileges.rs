//! What a change takes from a file, whoever makes it (set-id bits, capabilities), and what nobody may change (flags).

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{
    AllocateMode, AttributeMode, Context, Datasets, Environment, FileFlags, FileKind, Filesystem, FsError,
    Groups, NewDataset, ROOT, RenameMode, SetAttributes, SetId, Strip, Tree,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

struct World {
    clock: Arc<ManualClock>,
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    fs: Arc<Filesystem>,
}

fn world() -> World {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let memory = Arc::new(MemoryStore::new(1 << 30));
    let store: Arc<dyn Store> = memory.clone();
    let datasets = Datasets::open(Arc::new(Environment::new(store, clock.clone())), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    chmod(&fs, ROOT, 0o777);
    World {
        clock,
        memory,
        datasets,
        fs,
    }
}

fn file(fs: &Filesystem, context: &Context, dir: u64, name: &str, mode: u32) -> u64 {
    fs.create(context, dir, name.as_bytes(), FileKind::File, mode, 0)
        .unwrap()
        .object
}

fn chmod(fs: &Filesystem, object: u64, mode: u32) {
    fs.set_attributes(
        &Context::root(),
        object,
        &SetAttributes {
            mode: Some(mode),
            ..Default::default()
        },
    )
    .unwrap();
}

fn mode(fs: &Filesystem, object: u64) -> u32 {
    fs.attributes(object).unwrap().mode
}

#[test]
fn setgid_without_group_execute_stays_for_members_of_the_group() {
    let World { fs, .. } = world();
    let root = Context::root();
    let stripping = |uid, gid, groups: &[u32]| Context {
        groups: Groups::List(groups.into()),
        trusted: true,
        strip: Strip::SetId,
        ..Context::user(uid, gid)
    };
    let (member, other) = (stripping(1000, 1000, &[77]), stripping(1000, 1000, &[]));
    let object = file(&fs, &root, ROOT, "a", 0o666);
    let group = SetAttributes {
        gid: Some(77),
        ..Default::default()
    };
    fs.set_attributes(&root, object, &group).unwrap();
    for (who, left) in [
        (&member, 0o2666),
        (&other, 0o666),
        (&stripping(0, 77, &[]), 0o2666),
    ] {
        chmod(&fs, object, 0o6666);
        assert_eq!(
            fs.write_stripping(who, object, 0, b"x").unwrap().set_id,
            SetId::Fell
        );
        assert_eq!(mode(&fs, object), left, "{who:?}");
        let again = fs.write_stripping(who, object, 0, b"x");
        assert_eq!(again.unwrap().set_id, SetId::Kept, "there is none left to fall");
    }
    // The owner changes: setuid falls for everybody, setgid for who could not set it.
    for (who, left) in [(&root, 0o2666), (&other, 0o666)] {
        chmod(&fs, object, 0o6666);
        fs.set_attributes(who, object, &group).unwrap();
        assert_eq!(mode(&fs, object), left, "{who:?}");
    }
}

#[test]
fn each_kind_of_allocation_is_a_change_of_content() {
    let World { fs, clock, .. } = world();
    let root = Context::root();
    let object = file(&fs, &root, ROOT, "a", 0o777);
    fs.write(&root, object, 0, &[1; 10_000], false).unwrap();
    let stripping = Context {
        strip: Strip::SetId,
        ..Context::root()
    };
    let (capability, flags) = (b"security.capability", AttributeMode::Set);
    for (at, mode) in [
        AllocateMode::Reserve { keep_size: false },
        AllocateMode::Reserve { keep_size: true },
        AllocateMode::Punch,
        AllocateMode::Zero { keep_size: false },
        AllocateMode::Zero { keep_size: true },
    ]
    .into_iter()
    .enumerate()
    {
        for offset in [0, 20_000] {
            chmod(&fs, object, 0o6777);
            fs.set_extended_attribute(&root, object, capability, b"value", flags)
                .unwrap();
            clock.advance(1_000_000);
            let before = fs.attributes(object).unwrap();
            fs.allocate(&stripping, object, mode, offset, 100).unwrap();
            let after = fs.attributes(object).unwrap();
            assert_eq!(after.mode, 0o777, "{mode:?} at {offset}, {at}");
            assert!(
                after.modified > before.modified && after.changed > before.changed,
                "{mode:?} at {offset}"
            );
            assert_eq!(
                fs.extended_attribute(object, capability),
                Err(FsError::NoAttribute)
            );
        }
    }
    // What is written back from a mapping is none that Linux knows of.
    chmod(&fs, object, 0o6777);
    fs.set_extended_attribute(&root, object, capability, b"value", flags)
        .unwrap();
    let mapping = Context {
        strip: Strip::Nothing,
        ..Context::user(1, 1)
    };
    fs.write(&mapping, object, 0, b"x", false).unwrap();
    assert_eq!(mode(&fs, object), 0o6777);
    assert!(fs.extended_attribute(object, capability).is_ok());
}

#[test]
fn flags_hold_for_everybody_and_outlive_the_opening() {
    let World {
        fs,
        datasets,
        memory,
        clock,
    } = world();
    let (root, user) = (Context::root(), Context::user(1000, 1000));
    let kernel = Context {
        trusted: true,
        ..Context::root()
    };
    let object = file(&fs, &user, ROOT, "a", 0o666);
    let dir = fs.make_directory(&user, ROOT, b"d", 0o777).unwrap().object;
    let immutable = FileFlags {
        immutable: true,
        no_dump: true,
        ..FileFlags::default()
    };
    let append_only = FileFlags {
        append_only: true,
        ..FileFlags::default()
    };
    assert_eq!(
        fs.set_file_flags(&user, object, immutable),
        Err(FsError::NotPermitted)
    );
    let other = Context::user(2000, 2000);
    assert_eq!(
        fs.set_file_flags(&other, object, FileFlags::default()),
        Err(FsError::NotPermitted)
    );
    fs.set_file_flags(&root, object, immutable).unwrap();
    fs.set_file_flags(&kernel, dir, append_only).unwrap();
    fs.sync().unwrap();
    drop((fs, datasets));
    let store: Arc<dyn Store> = memory.clone();
    let datasets = Datasets::open(Arc::new(Environment::new(store, clock)), "pool").unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    assert_eq!(fs.file_flags(object), Ok(immutable));
    assert_eq!(fs.file_flags(dir), Ok(append_only));
    for who in [&root, &kernel, &user] {
        assert_eq!(fs.write(who, object, 0, b"x", false), Err(FsError::NotPermitted));
        assert_eq!(fs.append(who, object, b"x", false), Err(FsError::NotPermitted));
        assert_eq!(fs.unlink(who, ROOT, b"a").unwrap_err(), FsError::NotPermitted);
        assert_eq!(
            fs.remove_directory(who, ROOT, b"d").unwrap_err(),
            FsError::NotPermitted
        );
        let moved = fs.rename(who, ROOT, b"a", dir, b"b", RenameMode::Replace);
        assert_eq!(moved.unwrap_err(), FsError::NotPermitted);
        assert_eq!(
            fs.link(who, object, dir, b"b").unwrap_err(),
            FsError::NotPermitted
        );
        let mode = SetAttributes {
            mode: Some(0o600),
            ..Default::default()
        };
        assert_eq!(
            fs.set_attributes(who, object, &mode).unwrap_err(),
            FsError::NotPermitted
        );
        let copied = fs.copy_range(who, object, 0, object, 0, 1);
        assert_eq!(copied, Err(FsError::NotPermitted));
    }
    let added = file(&fs, &user, dir, "added", 0o644);
    assert_eq!(
        fs.unlink(&root, dir, b"added").unwrap_err(),
        FsError::NotPermitted
    );
    // Only behind what is there.
    fs.write(&root, added, 0, b"content", false).unwrap();
    fs.set_file_flags(&root, added, append_only).unwrap();
    assert_eq!(fs.write(&root, added, 6, b"x", false), Err(FsError::NotPermitted));
    fs.write(&root, added, 7, b"x", false).unwrap();
    assert_eq!(fs.append(&root, added, b"y", false), Ok((8, 1)));
    fs.set_file_flags(&root, object, FileFlags::default()).unwrap();
    fs.write(&root, object, 0, b"x", false).unwrap();
}
