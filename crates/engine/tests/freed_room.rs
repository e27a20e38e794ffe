//! What `df` and `list` say of writes and deletions before anything is committed.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use full_pool::{MIB, Rig};
use terrace_dataset::{Context, FileKind, Filesystem, FsError, ROOT, SetAttributes, Tree};

fn write(rig: &mut Rig, filesystem: &Filesystem, name: &str, length: u64) -> Result<u64, FsError> {
    let root = Context::root();
    let made = filesystem.create(&root, ROOT, name.as_bytes(), FileKind::File, 0o600, 0)?;
    let content = rig.random.bytes(length);
    filesystem.write(&root, made.object, 0, &content, false)?;
    Ok(made.object)
}

/// `syncfs` never reaches a FUSE server: nothing may have to be committed for it.
#[test]
fn statistics_follow_writes_and_deletions_at_once() {
    let mut rig = Rig::new(&[256 * MIB]);
    let data = rig.filesystem("tank/data");
    let root = Context::root();
    data.sync().unwrap();
    let used = |data: &Filesystem| data.statistics().unwrap().used_bytes / MIB;
    let listed = |rig: &Rig| rig.engine.datasets().info("tank/data").unwrap().referenced_bytes / MIB;
    let object = write(&mut rig, &data, "one", 16 * MIB).unwrap();
    write(&mut rig, &data, "other", 8 * MIB).unwrap();
    assert_eq!((used(&data), listed(&rig)), (24, 24));
    data.sync().unwrap();
    assert_eq!((used(&data), listed(&rig)), (24, 24));
    let available = data.statistics().unwrap().available_bytes;
    data.unlink(&root, ROOT, b"other").unwrap();
    assert_eq!((used(&data), listed(&rig)), (16, 16));
    let cut = SetAttributes {
        size: Some(4 * MIB),
        ..SetAttributes::default()
    };
    data.set_attributes(&root, object, &cut).unwrap();
    assert_eq!((used(&data), listed(&rig)), (4, 4));
    // What is not free yet cannot be written.
    assert!(data.statistics().unwrap().available_bytes <= available + MIB / 2);
    data.sync().unwrap();
    assert_eq!((used(&data), listed(&rig)), (4, 4));
}

/// A user who is told to delete something gets room for about as much, however little it is.
#[test]
fn small_deletion_on_a_full_pool_gives_room_back() {
    for (tiers, name) in [
        (&[96 * MIB][..], "one tier"),
        (&[48 * MIB, 96 * MIB][..], "two tiers"),
    ] {
        let mut rig = Rig::new(tiers);
        let data = rig.filesystem("tank/data");
        let root = Context::root();
        for number in 0..64 {
            write(&mut rig, &data, &format!("small{number}"), 64 << 10).unwrap();
            write(&mut rig, &data, &format!("other{number}"), 300 << 10).unwrap();
        }
        rig.fill(&data, "filler");
        for _ in 0..4 {
            rig.tick();
        }
        rig.fill(&data, "last");
        for round in 0..4 {
            for number in 0..4 {
                let name = format!("small{}", round * 16 + number);
                let _ = data.unlink(&root, ROOT, name.as_bytes());
            }
            data.sync().unwrap();
            for _ in 0..4 {
                rig.tick();
            }
            let available = data.statistics().unwrap().available_bytes;
            println!("{name} round {round}: {available} {}", rig.figures());
            assert!(available >= 128 << 10, "{name}, round {round}: {}", rig.figures());
            write(&mut rig, &data, &format!("new{round}"), 128 << 10).unwrap();
            rig.fill(&data, &format!("filled{round}"));
        }
    }
}
