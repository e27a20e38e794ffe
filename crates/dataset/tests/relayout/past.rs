//! What snapshots, clones and reflinks share with a region that is laid out anew keeps its chunks, and reads the same.

use terrace_dataset::{At, Context, Cut, Layout, Relaid, Tree};

use super::world::{MIB, noise, relayout, world};

#[test]
fn snapshots_that_see_the_live_record_read_the_same_from_the_new_chunks() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    world.datasets.snapshots().take("pool/a@s", false, "").unwrap();
    let view = world.datasets.view("pool/a", &At::Snapshot("s".into())).unwrap();
    let read = |buffer: &mut [u8]| view.read(object, 0, buffer).unwrap();
    let mut buffer = vec![0; MIB as usize];
    // A reader of the past that has looked the record up when it is replaced.
    read(&mut buffer[..4096]);
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    read(&mut buffer);
    assert!(buffer == content);
    assert_eq!(world.stored_bytes(), MIB, "the snapshot takes nothing of its own");
    world.audit();
    // What is written after it moves the new record to the past.
    let old = content.clone();
    world.scatter(object, &mut content, 5);
    read(&mut buffer);
    assert!(buffer == old && world.read(object) == content);
    world
        .datasets
        .snapshots()
        .destroy("pool/a@s", false, false)
        .unwrap();
    while world.datasets.sweeper().step(100).unwrap() == terrace_dataset::Progress::More {}
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn what_the_past_or_others_share_stays_where_it_is() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    let copy = world.file("g", b"");
    let root = Context::root();
    world.datasets.snapshots().take("pool/a@s", false, "").unwrap();
    world.scatter(object, &mut content, 2);
    let before = world.stored_bytes();
    let record = world.record(object, 0).1;
    assert_eq!(
        world.relayout(object, 0),
        Ok(Relaid::Left),
        "the snapshot needs the old chunks whole"
    );
    world
        .datasets
        .snapshots()
        .destroy("pool/a@s", false, false)
        .unwrap();
    while world.datasets.sweeper().step(100).unwrap() == terrace_dataset::Progress::More {}
    // Now half of it is shared by a reflink: the other half alone is written anew.
    world.fs.copy_range(&root, object, 0, copy, 0, MIB / 2).unwrap();
    world.datasets.commit_all().unwrap();
    assert!(matches!(
        world.relayout(object, 0),
        Ok(Relaid::Done { written_bytes, .. }) if written_bytes == MIB / 2
    ));
    let now = world.record(object, 0).1;
    assert!(
        now.range(0, 128).eq(record.range(0, 128)),
        "what is shared has moved"
    );
    assert_eq!(now.range(128, 256).count(), 4);
    assert_eq!(world.stored_bytes(), before - MIB / 4);
    assert!(world.read(object) == content && world.read(copy) == content[..MIB as usize / 2]);
    world.audit();
}

#[test]
fn what_became_a_past_state_meanwhile_keeps_its_chunks() {
    let world = world();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let meanwhile = |_: &Layout| {
        world.datasets.snapshots().take("pool/a@s", false, "").unwrap();
        world.write(object, 0, &noise(8, 4096));
        world.datasets.commit_all().unwrap();
        true
    };
    let fragment = world.fragment(object, 0);
    let done = relayout(&world.datasets, fragment, Cut::InOrder, &meanwhile, MIB);
    content[..4096].copy_from_slice(&noise(8, 4096));
    assert_eq!(done, Ok(Relaid::Busy));
    assert_eq!(world.stored_bytes(), MIB + MIB / 2 + 4096, "no second copy");
    assert!(world.read(object) == content);
    world.audit();
}
