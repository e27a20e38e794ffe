//! Rules of POSIX that a live filesystem keeps: permissions, special bits, ACLs, times, limits; and of a volume.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{
    ACCESS_READ, ACCESS_WRITE, At, AttributeMode, BlockDevice, Context, Datasets, Environment, FileKind,
    Filesystem, FsError, Groups, NewDataset, PastVolume, Progress, ROOT, RenameMode, SetAttributes, SetTime,
    Time, Tree,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

struct World {
    clock: Arc<ManualClock>,
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    fs: Arc<Filesystem>,
}

fn world_of(size_bytes: u64) -> World {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let memory = Arc::new(MemoryStore::new(size_bytes));
    let store: Arc<dyn Store> = memory.clone();
    let datasets = Datasets::open(Arc::new(Environment::new(store, clock.clone())), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    World {
        clock,
        memory,
        datasets,
        fs,
    }
}

fn world() -> World {
    let world = world_of(1 << 30);
    chmod(&world.fs, ROOT, 0o777);
    world
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
fn mode_bits_decide_who_may_do_what() {
    let World { fs, .. } = world();
    let (owner, other) = (Context::user(1000, 1000), Context::user(2000, 2000));
    let member = Context {
        groups: Groups::List(Arc::new([1000])),
        ..other.clone()
    };
    let object = file(&fs, &owner, ROOT, "a", 0o640);
    assert_eq!(mode(&fs, object), 0o640);
    fs.access(&owner, object, ACCESS_READ | ACCESS_WRITE).unwrap();
    fs.access(&member, object, ACCESS_READ).unwrap();
    assert_eq!(
        fs.access(&member, object, ACCESS_WRITE),
        Err(FsError::AccessDenied)
    );
    assert_eq!(fs.access(&other, object, ACCESS_READ), Err(FsError::AccessDenied));
    fs.access(&Context::root(), object, ACCESS_READ | ACCESS_WRITE)
        .unwrap();
    assert_eq!(fs.access(&Context::root(), object, 1), Err(FsError::AccessDenied));
    let trusted = Context {
        trusted: true,
        ..other.clone()
    };
    fs.access(&trusted, object, ACCESS_READ).unwrap();
    chmod(&fs, ROOT, 0o755);
    let made = fs.create(&other, ROOT, b"b", FileKind::File, 0o644, 0);
    assert_eq!(made.unwrap_err(), FsError::AccessDenied);
    assert_eq!(fs.unlink(&other, ROOT, b"a").unwrap_err(), FsError::AccessDenied);
}

#[test]
fn a_sticky_directory_protects_the_names_of_others() {
    let World { fs, .. } = world();
    chmod(&fs, ROOT, 0o1777);
    let (owner, other) = (Context::user(1000, 1000), Context::user(2000, 2000));
    file(&fs, &owner, ROOT, "a", 0o666);
    file(&fs, &other, ROOT, "b", 0o666);
    assert_eq!(fs.unlink(&other, ROOT, b"a").unwrap_err(), FsError::NotPermitted);
    let onto = fs.rename(&other, ROOT, b"b", ROOT, b"a", RenameMode::Replace);
    assert_eq!(onto.unwrap_err(), FsError::NotPermitted);
    fs.rename(&other, ROOT, b"b", ROOT, b"c", RenameMode::Replace)
        .unwrap();
    fs.unlink(&owner, ROOT, b"a").unwrap();
}

#[test]
fn setgid_is_inherited_and_privileges_are_taken_away() {
    let World { fs, .. } = world();
    let user = Context::user(1000, 1000);
    let root = Context::root();
    let dir = fs.make_directory(&root, ROOT, b"d", 0o777).unwrap().object;
    fs.set_attributes(
        &root,
        dir,
        &SetAttributes {
            gid: Some(77),
            ..Default::default()
        },
    )
    .unwrap();
    chmod(&fs, dir, 0o2777);
    let object = file(&fs, &user, dir, "a", 0o644);
    assert_eq!(fs.attributes(object).unwrap().gid, 77);
    let below = fs.make_directory(&user, dir, b"e", 0o755).unwrap();
    assert_eq!((below.gid, below.mode), (77, 0o2755));
    // Not in the group: setgid does not stick.
    fs.set_attributes(
        &user,
        object,
        &SetAttributes {
            mode: Some(0o2755),
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(mode(&fs, object), 0o755);
    chmod(&fs, object, 0o6755);
    fs.write(&user, object, 0, b"x", false).unwrap();
    assert_eq!(mode(&fs, object), 0o755);
    chmod(&fs, object, 0o6755);
    fs.write(&root, object, 0, b"x", false).unwrap();
    assert_eq!(mode(&fs, object), 0o6755);
    fs.write(&root, object, 0, b"x", true).unwrap();
    assert_eq!(mode(&fs, object), 0o755);
    chmod(&fs, object, 0o6755);
    fs.set_attributes(
        &root,
        object,
        &SetAttributes {
            uid: Some(5),
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(mode(&fs, object), 0o755);
}

#[test]
fn only_owners_change_attributes() {
    let World { fs, .. } = world();
    let (owner, other) = (Context::user(1000, 1000), Context::user(2000, 2000));
    let object = file(&fs, &owner, ROOT, "a", 0o666);
    let change = |change: SetAttributes, who: &Context| fs.set_attributes(who, object, &change).map(|_| ());
    let mode = SetAttributes {
        mode: Some(0o600),
        ..Default::default()
    };
    let uid = SetAttributes {
        uid: Some(1),
        ..Default::default()
    };
    let gid = SetAttributes {
        gid: Some(1),
        ..Default::default()
    };
    let now = SetAttributes {
        modified: Some(SetTime::Now),
        ..Default::default()
    };
    let time = Time {
        seconds: -5,
        nanos: 999_999_999,
    };
    let to = SetAttributes {
        modified: Some(SetTime::To(time)),
        accessed: Some(SetTime::To(time)),
        ..Default::default()
    };
    assert_eq!(change(mode, &other), Err(FsError::NotPermitted));
    assert_eq!(change(uid, &owner), Err(FsError::NotPermitted));
    assert_eq!(change(gid, &owner), Err(FsError::NotPermitted));
    assert_eq!(change(to, &other), Err(FsError::NotPermitted));
    chmod(&fs, object, 0o666);
    change(now, &other).unwrap();
    change(mode, &owner).unwrap();
    assert_eq!(change(now, &other), Err(FsError::AccessDenied));
    change(to, &owner).unwrap();
    let shown = fs.attributes(object).unwrap();
    assert_eq!((shown.accessed, shown.modified), (time, time));
    assert_eq!(
        change(
            SetAttributes {
                size: Some(1),
                ..Default::default()
            },
            &other
        ),
        Err(FsError::AccessDenied)
    );
    let through = SetAttributes {
        size: Some(1),
        through_handle: true,
        ..Default::default()
    };
    change(through, &other).unwrap();
}

#[test]
fn times_follow_what_is_done() {
    let World { fs, clock, .. } = world();
    let root = Context::root();
    let object = file(&fs, &root, ROOT, "a", 0o644);
    let created = fs.attributes(object).unwrap().created;
    clock.advance(1_000_000_001);
    fs.write(&root, object, 0, b"x", false).unwrap();
    let written = fs.attributes(object).unwrap();
    assert_eq!(
        written.modified,
        Time {
            seconds: created.seconds + 1,
            nanos: created.nanos + 1
        }
    );
    assert_eq!((written.changed, written.created), (written.modified, created));
    clock.advance(1_000_000_000);
    chmod(&fs, object, 0o600);
    let changed = fs.attributes(object).unwrap();
    assert_eq!(changed.modified, written.modified);
    assert!(changed.changed > written.changed);
    clock.advance(1_000_000_000);
    fs.link(&root, object, ROOT, b"b").unwrap();
    let linked = fs.attributes(object).unwrap();
    assert!(linked.changed > changed.changed);
    assert_eq!(fs.attributes(ROOT).unwrap().modified, linked.changed);
    clock.advance(1_000_000_000);
    fs.rename(&root, ROOT, b"b", ROOT, b"c", RenameMode::Replace)
        .unwrap();
    assert!(fs.attributes(object).unwrap().changed > linked.changed);
    clock.advance(1_000_000_000);
    let before = fs.attributes(object).unwrap().changed;
    fs.unlink(&root, ROOT, b"c").unwrap();
    assert!(fs.attributes(object).unwrap().changed > before);
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

#[test]
fn acls_are_enforced_inherited_and_in_step_with_the_mode() {
    let World { fs, datasets, .. } = world();
    let root = Context::root();
    let friend = Context::user(3000, 3000);
    let list = acl(&[(1, 7, !0), (2, 7, 3000), (4, 5, !0), (16, 7, !0), (32, 0, !0)]);
    let dir = fs.make_directory(&root, ROOT, b"d", 0o755).unwrap().object;
    let set = |object, name: &[u8], value: &[u8]| {
        fs.set_extended_attribute(&root, object, name, value, AttributeMode::Set)
    };
    set(dir, b"system.posix_acl_default", &list).unwrap();
    set(dir, b"system.posix_acl_access", &list).unwrap();
    assert_eq!(mode(&fs, dir), 0o770);
    // The umask does not count where there is a default ACL.
    let made = file(&fs, &friend, dir, "a", 0o666);
    assert_eq!(mode(&fs, made), 0o660);
    let inherited = fs.extended_attribute(made, b"system.posix_acl_access").unwrap();
    assert_eq!(
        inherited,
        acl(&[(1, 6, !0), (2, 7, 3000), (4, 5, !0), (16, 6, !0), (32, 0, !0)])
    );
    let by_root = file(&fs, &root, dir, "b", 0o644);
    fs.access(&friend, by_root, ACCESS_READ).unwrap();
    assert_eq!(
        fs.access(&friend, by_root, ACCESS_WRITE),
        Err(FsError::AccessDenied)
    );
    chmod(&fs, by_root, 0o660);
    fs.access(&friend, by_root, ACCESS_WRITE).unwrap();
    let below = fs.make_directory(&friend, dir, b"e", 0o755).unwrap().object;
    assert_eq!(
        fs.extended_attribute(below, b"system.posix_acl_default").unwrap(),
        list
    );
    fs.sync().unwrap();
    datasets.snapshots().take("pool/a@s", false, "").unwrap();
    // A list that the mode says already is not kept.
    set(
        by_root,
        b"system.posix_acl_access",
        &acl(&[(1, 6, !0), (4, 4, !0), (32, 4, !0)]),
    )
    .unwrap();
    assert_eq!(mode(&fs, by_root), 0o644);
    assert_eq!(
        fs.extended_attribute(by_root, b"system.posix_acl_access"),
        Err(FsError::NoAttribute)
    );
    let view = datasets.view("pool/a", &At::Snapshot("s".into())).unwrap();
    view.access(&friend, by_root, ACCESS_WRITE).unwrap();
    assert_eq!(
        set(by_root, b"system.posix_acl_access", b"x"),
        Err(FsError::Invalid)
    );
}

#[test]
fn limits_are_kept() {
    let World { fs, .. } = world();
    let root = Context::root();
    let long = "n".repeat(255);
    let object = file(&fs, &root, ROOT, &long, 0o644);
    assert_eq!(fs.lookup(&root, ROOT, long.as_bytes()).unwrap().object, object);
    let longer = [b'n'; 256];
    assert_eq!(
        fs.create(&root, ROOT, &longer, FileKind::File, 0, 0).unwrap_err(),
        FsError::NameTooLong
    );
    assert_eq!(fs.lookup(&root, ROOT, &longer).unwrap_err(), FsError::NameTooLong);
    let set =
        |name: &[u8], value: &[u8]| fs.set_extended_attribute(&root, object, name, value, AttributeMode::Set);
    set(b"user.big", &vec![1; 65_536]).unwrap();
    assert_eq!(set(b"user.big", &vec![1; 65_537]), Err(FsError::TooBig));
    assert_eq!(set(b"nonsense", b""), Err(FsError::NotSupported));
    let create = fs.set_extended_attribute(&root, object, b"user.big", b"", AttributeMode::Create);
    assert_eq!(create, Err(FsError::Exists));
    let replace = fs.set_extended_attribute(&root, object, b"user.other", b"", AttributeMode::Replace);
    assert_eq!(replace, Err(FsError::NoAttribute));
    assert_eq!(
        fs.write(&root, object, u64::MAX - 1, b"xx", false),
        Err(FsError::FileTooBig)
    );
    fs.write(&root, object, 16 << 40, b"far", false).unwrap();
    fs.sync().unwrap();
    let mut read = [0; 3];
    fs.read(object, 16 << 40, &mut read).unwrap();
    assert_eq!(&read, b"far");
    assert_eq!(fs.attributes(object).unwrap().blocks512, 8);
    fs.set_attributes(
        &root,
        object,
        &SetAttributes {
            size: Some(0),
            ..Default::default()
        },
    )
    .unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.attributes(object).unwrap().blocks512, 0);
}

#[test]
fn the_kernel_keeps_what_it_unlinks_until_it_forgets() {
    let World {
        fs,
        datasets,
        memory,
        clock,
    } = world();
    let kernel = Context {
        trusted: true,
        ..Context::root()
    };
    let object = file(&fs, &kernel, ROOT, "a", 0o644);
    fs.write(&kernel, object, 0, &[7; 10_000], false).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.unlink(&kernel, ROOT, b"a").unwrap().links, 0);
    fs.sync().unwrap();
    let mut read = [0; 10_000];
    assert_eq!(fs.read(object, 0, &mut read), Ok(10_000));
    assert_eq!(read, [7; 10_000]);
    let temporary = fs.temporary(&kernel, ROOT, 0o600).unwrap().object;
    fs.write(&kernel, temporary, 0, b"named later", false).unwrap();
    fs.sync().unwrap();
    fs.link(&kernel, temporary, ROOT, b"t").unwrap();
    fs.sync().unwrap();
    // A crash: what is not named is freed, what was named stays.
    drop((fs, datasets));
    let store: Arc<dyn Store> = memory.clone();
    let datasets = Datasets::open(Arc::new(Environment::new(store.clone(), clock)), "pool").unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    assert_eq!(fs.lookup(&kernel, ROOT, b"t").unwrap().object, temporary);
    assert_eq!(fs.attributes(object), Err(FsError::Stale));
    fs.sync().unwrap();
    assert_eq!(
        terrace_dataset::check(&store).unwrap().problems,
        Vec::<String>::new()
    );
    assert_eq!(memory.references().len(), 1);
}

#[test]
fn a_full_pool_refuses_data_and_takes_deletions() {
    let World { fs, .. } = world_of(24 << 20);
    let root = Context::root();
    let object = file(&fs, &root, ROOT, "a", 0o644);
    let mut written = 0u64;
    let mut block = vec![0u8; 1 << 20];
    let mut random = 1u64;
    let error = loop {
        for word in block.as_chunks_mut::<8>().0 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *word = random.to_le_bytes();
        }
        match fs.write(&root, object, written, &block, false) {
            Ok(_) => written += block.len() as u64,
            Err(error) => break error,
        }
        assert!(written < 100 << 20);
    };
    assert_eq!(error, FsError::NoSpace);
    assert!(written >= 16 << 20, "{written}");
    fs.sync().unwrap();
    let mut read = vec![0; 4096];
    assert_eq!(fs.read(object, written - 4096, &mut read), Ok(4096));
    let truncate = SetAttributes {
        size: Some(5000),
        ..Default::default()
    };
    fs.set_attributes(&root, object, &truncate).unwrap();
    fs.sync().unwrap();
    fs.write(&root, object, 5000, &block, false).unwrap();
    fs.unlink(&root, ROOT, b"a").unwrap();
    fs.sync().unwrap();
}

#[test]
fn what_deletions_took_of_the_reserve_is_given_back() {
    const FILES: usize = 8000;
    let World {
        fs, datasets, memory, ..
    } = world_of(24 << 20);
    let root = Context::root();
    fs.sync().unwrap();
    let empty = memory.space().available_bytes;
    for number in 0..FILES {
        file(&fs, &root, ROOT, &format!("f{number}"), 0o644);
    }
    let object = file(&fs, &root, ROOT, "a", 0o644);
    let mut written = 0;
    while fs
        .write(&root, object, written, &written.to_le_bytes().repeat(512), false)
        .is_ok()
    {
        written += 4096;
    }
    for number in 0..FILES {
        fs.unlink(&root, ROOT, format!("f{number}").as_bytes()).unwrap();
    }
    fs.unlink(&root, ROOT, b"a").unwrap();
    fs.sync().unwrap();
    while datasets.sweeper().step(1000).unwrap() == Progress::More {}
    assert_eq!(memory.space().available_bytes, empty);
    let object = file(&fs, &root, ROOT, "b", 0o644);
    fs.write(&root, object, 0, &[1; 4096], false).unwrap();
    fs.unlink(&root, ROOT, b"b").unwrap();
    fs.sync().unwrap();
    assert_eq!(memory.space().available_bytes, empty);
}

#[test]
fn a_quota_is_an_error_of_the_writer() {
    let World { fs, datasets, .. } = world();
    let root = Context::root();
    datasets.properties().set("pool/a", "quota", "1M").unwrap();
    fs.sync().unwrap();
    let object = file(&fs, &root, ROOT, "a", 0o644);
    fs.write(&root, object, 0, &vec![1; 900 << 10], false).unwrap();
    let more = fs.write(&root, object, 900 << 10, &vec![2; 300 << 10], false);
    assert_eq!(more, Err(FsError::QuotaExceeded));
    fs.write(&root, object, 0, &vec![3; 100 << 10], false).unwrap();
    fs.sync().unwrap();
    fs.unlink(&root, ROOT, b"a").unwrap();
    fs.sync().unwrap();
    let object = file(&fs, &root, ROOT, "b", 0o644);
    fs.write(&root, object, 0, &vec![1; 900 << 10], false).unwrap();
}

/// The last block is dirty when the room is counted that a write over its end needs, and mapped when it is asked for again.
#[test]
fn at_a_quota_what_is_written_over_is_no_excuse_for_what_is_new() {
    let World { fs, datasets, .. } = world();
    let root = Context::root();
    datasets.properties().set("pool/a", "quota", "1M").unwrap();
    fs.sync().unwrap();
    let object = file(&fs, &root, ROOT, "a", 0o644);
    let end = (1 << 20) - 4096 + 100;
    fs.write(&root, object, 0, &vec![1; end], false).unwrap();
    let beyond = fs.write(&root, object, end as u64, &[2; 4096], false);
    assert_eq!(beyond, Err(FsError::QuotaExceeded));
    // As far as it goes, also of what is dirty.
    fs.write(&root, object, end as u64, &[3; 4096 - 100], false)
        .unwrap();
    fs.write(&root, object, end as u64 - 50, &[4; 100], false)
        .unwrap();
    assert_eq!(datasets.info("pool/a").unwrap().used_bytes, 1 << 20);
}

#[test]
fn shared_content_counts_against_a_quota_too() {
    let World { fs, datasets, .. } = world();
    let root = Context::root();
    datasets.properties().set("pool/a", "quota", "2M").unwrap();
    let source = file(&fs, &root, ROOT, "source", 0o644);
    fs.write(&root, source, 0, &vec![1; 800 << 10], false).unwrap();
    fs.sync().unwrap();
    let copy = |name: &str| {
        let target = file(&fs, &root, ROOT, name, 0o644);
        fs.copy_range(&root, source, 0, target, 0, 800 << 10)
    };
    assert_eq!(copy("first"), Ok(800 << 10));
    assert_eq!(copy("second"), Err(FsError::QuotaExceeded));
    fs.unlink(&root, ROOT, b"first").unwrap();
    fs.sync().unwrap();
    assert_eq!(copy("third"), Ok(800 << 10));
    // What was mapped once more counts before it is committed as well, for whoever writes next.
    let other = file(&fs, &root, ROOT, "other", 0o644);
    let written = fs.write(&root, other, 0, &vec![2; 600 << 10], false);
    assert_eq!(written, Err(FsError::QuotaExceeded));
    fs.write(&root, other, 0, &vec![2; 300 << 10], false).unwrap();
    fs.sync().unwrap();
    let left = datasets.state("pool/a").unwrap().usage().quota_left_bytes();
    assert!(left.is_some_and(|left| left < 200 << 10), "{left:?}");
}

#[test]
fn a_volume_reads_what_was_written() {
    let World { datasets, memory, .. } = world();
    let new = NewDataset {
        volume_bytes: Some(10 << 20),
        ..NewDataset::default()
    };
    datasets.create("pool/v", &new).unwrap();
    let volume = datasets.volume("pool/v").unwrap();
    assert_eq!(volume.size_bytes(), 10 << 20);
    volume.write(512, &[5; 1024]).unwrap();
    volume.write(3 << 20, &vec![6; 300_000]).unwrap();
    volume.flush().unwrap();
    volume.write(4096, &[7; 512]).unwrap();
    let mut read = [0; 2048];
    volume.read(0, &mut read).unwrap();
    assert!(read[..512].iter().all(|byte| *byte == 0) && read[512..1536].iter().all(|byte| *byte == 5));
    volume.discard(3 << 20, 300_000).unwrap();
    volume.flush().unwrap();
    let status = volume.block_status(0, 10 << 20, 10).unwrap();
    assert_eq!(
        status
            .iter()
            .map(|piece| (piece.offset, piece.data))
            .collect::<Vec<_>>(),
        [(0, true), (8192, false)]
    );
    assert_eq!(volume.write((10 << 20) - 1, &[1; 2]), Err(FsError::NoSpace));
    volume.flush().unwrap();
    let mut read = vec![1; 300_000];
    volume.read(3 << 20, &mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    volume.resize(1 << 20).unwrap();
    volume.flush().unwrap();
    drop(volume);
    let store: Arc<dyn Store> = memory.clone();
    let report = terrace_dataset::check(&store).unwrap();
    assert_eq!(
        (report.problems, report.references),
        (Vec::new(), memory.references())
    );
}

/// One question is answered for so many regions with data; whoever asks on learns of all, and holes are no work.
#[test]
fn a_question_about_much_data_is_answered_in_parts() {
    const REGION: u64 = 1 << 20;
    let World { datasets, .. } = world();
    let size = 1 << 44;
    let new = NewDataset {
        volume_bytes: Some(size),
        sparse: true,
        ..NewDataset::default()
    };
    datasets.create("pool/v", &new).unwrap();
    let volume = datasets.volume("pool/v").unwrap();
    let of_a_hole = volume.block_status(0, size, 10).unwrap();
    assert_eq!((of_a_hole.len(), of_a_hole[0].length), (1, size));
    datasets.snapshots().take("pool/v@before", false, "").unwrap();
    for region in 0..4200 {
        volume.write(region * REGION, &[1; 4096]).unwrap();
    }
    volume.flush().unwrap();
    datasets.snapshots().take("pool/v@full", false, "").unwrap();
    // All of one device, question by question: how many it took, and how much data there is.
    let ask = |device: &dyn BlockDevice| {
        let (mut at, mut questions, mut data_bytes) = (0, 0, 0);
        while at < size {
            for piece in device.block_status(at, size - at, usize::MAX).unwrap() {
                assert_eq!(piece.offset, at);
                at += piece.length;
                data_bytes += if piece.data { piece.length } else { 0 };
            }
            questions += 1;
        }
        assert_eq!(at, size);
        (questions, data_bytes)
    };
    assert_eq!(ask(&*volume), (2, 4200 * 4096));
    volume.discard(0, 4150 * REGION).unwrap();
    volume.flush().unwrap();
    assert_eq!(ask(&*volume), (1, 50 * 4096));
    let past = |name: &str| {
        let view = datasets
            .volume_view("pool/v", &At::Snapshot(name.into()))
            .unwrap();
        PastVolume::new(view).unwrap()
    };
    // What there was at other times is work as well.
    assert_eq!(ask(&past("full")), (2, 4200 * 4096));
    assert_eq!(ask(&past("before")), (2, 0));
    let full = past("full");
    assert_eq!(full.block_status(4096, size, 1), Err(FsError::Invalid));
    let first = full.block_status(0, 3 * REGION, 3).unwrap();
    let first: Vec<_> = first.iter().map(|piece| (piece.length, piece.data)).collect();
    assert_eq!(first, [(4096, true), (REGION - 4096, false), (4096, true)]);
}

#[test]
fn the_root_directory_belongs_to_whoever_runs_the_pool() {
    let store = Arc::new(MemoryStore::new(1 << 30));
    let environment = Environment {
        owner: (1000, 100),
        ..Environment::new(store, Arc::new(ManualClock::new(0)))
    };
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    datasets.create("pool/files", &NewDataset::default()).unwrap();
    for name in ["pool", "pool/files"] {
        let files = datasets.filesystem(name).unwrap();
        let root = files.attributes(files.root()).unwrap();
        assert_eq!((root.uid, root.gid, root.mode), (1000, 100, 0o755), "{name}");
    }
}
