//! The edges: holes, the ends of files, a full pool, volumes, and datasets that nobody uses.

use terrace_dataset::{
    AllocateMode, Context, Cut, Fragment, FsError, Layout, NewDataset, ROOT, Relaid, SeekTarget, Tree,
};
use terrace_store::Store;

use super::world::{MIB, noise, relayout, world, world_of};

#[test]
fn holes_and_the_end_of_the_file_stay_what_they_are() {
    let world = world();
    let root = Context::root();
    let mut content = noise(1, 700_001);
    let object = world.file("f", &content);
    world.scatter(object, &mut content[..696_320], 2);
    for (from, length) in [(40_960, 4096), (131_072, 131_072), (401_408, 8192)] {
        let punch = world
            .fs
            .allocate(&root, object, AllocateMode::Punch, from, length);
        punch.unwrap();
        content[from as usize..(from + length) as usize].fill(0);
    }
    world.datasets.commit_all().unwrap();
    let holes = |offset| world.fs.seek(object, offset, SeekTarget::Hole).unwrap();
    let before: Vec<u64> = (0..170).map(|block| holes(block * 4096)).collect();
    let blocks = world.fs.attributes(object).unwrap().blocks512;
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    let after: Vec<u64> = (0..170).map(|block| holes(block * 4096)).collect();
    assert_eq!(before, after);
    assert_eq!(world.fs.attributes(object).unwrap().blocks512, blocks);
    assert!(world.read(object) == content);
    // The last chunk ends where the file ends.
    let last = *world.record(object, 0).1.runs().last().unwrap();
    let info = world.memory.chunk_info(last.chunk).unwrap().unwrap();
    assert_eq!(info.length % 4096, 700_001 % 4096);
    // What grows out of it reads as zero.
    let size = terrace_dataset::SetAttributes {
        size: Some(800_000),
        ..Default::default()
    };
    world.fs.set_attributes(&root, object, &size).unwrap();
    content.resize(800_000, 0);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn the_end_of_a_file_that_grew_lies_in_the_middle_of_a_chunk() {
    let world = world();
    let mut content = noise(1, 87);
    let object = world.file("f", &content);
    content.resize(4096, 0);
    for block in 1..4 {
        let data = noise(block + 1, 4096);
        world.write(object, block * 4096, &data);
        world.datasets.commit_all().unwrap();
        content.extend_from_slice(&data);
    }
    assert!(matches!(world.relayout(object, 0), Ok(Relaid::Done { .. })));
    assert_eq!(world.record(object, 0).1.runs().len(), 1);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn a_full_pool_says_so_and_nothing_changes() {
    let world = world_of(MIB + MIB / 2 + 200_000);
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    world.scatter(object, &mut content, 2);
    let record = world.record(object, 0);
    assert_eq!(world.relayout(object, 0), Err(FsError::NoSpace));
    assert_eq!(world.record(object, 0), record);
    // There is room for a part: a step at a time it gives back more than it takes.
    while let Relaid::Done { whole: false, .. } = world.relayout_of(object, 0, Cut::InOrder, 1).unwrap() {
        world.memory.references();
    }
    assert_eq!(world.stored_bytes(), MIB);
    assert!(world.read(object) == content);
    world.audit();
}

#[test]
fn volumes_and_datasets_that_nobody_uses() {
    let world = world();
    let volume = NewDataset {
        volume_bytes: Some(2 * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    world.datasets.create("pool/v", &volume).unwrap();
    let handle = world.datasets.volume("pool/v").unwrap();
    let mut content = noise(3, 2 * MIB as usize);
    handle.write(0, &content).unwrap();
    world.datasets.commit_all().unwrap();
    for at in (0..512).step_by(2) {
        let data = noise(at + 900, 4096);
        content[at as usize * 4096..][..4096].copy_from_slice(&data);
        handle.write(at * 4096, &data).unwrap();
    }
    world.datasets.commit_all().unwrap();
    let number = world.datasets.info("pool/v").unwrap().number;
    let before = world.stored_bytes();
    let fragment = Fragment {
        dataset: number,
        body: ROOT,
        region: 1,
        object: ROOT,
    };
    let lay_out = |fragment| relayout(&world.datasets, fragment, Cut::InOrder, &Layout::is_gain, MIB);
    let chunk_bytes = handle.dataset().settings().chunk_bytes;
    let done = lay_out(fragment).unwrap();
    assert_eq!(
        matches!(done, Relaid::Done { .. }),
        chunk_bytes > 4096,
        "{done:?}"
    );
    assert!(chunk_bytes == 4096 || world.stored_bytes() < before);
    let mut shown = vec![0; content.len()];
    handle.read(0, &mut shown).unwrap();
    assert!(shown == content);
    world.audit();
    drop(handle);
    world.datasets.close("pool/v").unwrap();
    assert_eq!(lay_out(fragment), Ok(Relaid::Busy), "later, when it is in use");
    let gone = Fragment {
        object: 99,
        ..world.fragment(99, 0)
    };
    assert_eq!(lay_out(gone), Ok(Relaid::Left));
}
