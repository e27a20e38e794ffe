//! What is given back: in portions that a commit can take where there is little room, and without waiting for room.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use terrace_dataset::{
    AllocateMode, Context, Datasets, Environment, FileKind, Filesystem, FsError, NewDataset, ROOT,
    RenameMode, SetAttributes, Tree, Volume,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Reservation, Store, StoreError};

const REGION: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// So little room that what a commit lets go of is bounded.
const LITTLE: u64 = 8 << 20;
const MUCH: u64 = 1 << 30;

/// A store in RAM that counts who was refused room: in a pool they wait until all was tried. Its reserve can be used up.
struct Refusing {
    below: MemoryStore,
    refused: AtomicUsize,
    is_reserve_used: AtomicBool,
}

impl Store for Refusing {
    terrace_store::in_memory!(below: get scan write_chunks read_chunk chunk_info commit flush newest reserve_always space rewrite);

    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        let result = self.below.reserve_beside(bytes, own);
        self.refused.fetch_add(usize::from(result.is_err()), Relaxed);
        result
    }

    fn is_reserve_left(&self, _eighths: u64) -> bool {
        !self.is_reserve_used.load(Relaxed)
    }
}

struct World {
    store: Arc<Refusing>,
    datasets: Datasets,
}

impl World {
    fn of(size_bytes: u64) -> Self {
        let store = Arc::new(Refusing {
            below: MemoryStore::new(size_bytes),
            refused: AtomicUsize::new(0),
            is_reserve_used: AtomicBool::new(false),
        });
        let clock = Arc::new(ManualClock::new(1_000_000_000));
        let environment = Environment::new(store.clone() as Arc<dyn Store>, clock);
        let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
        Self { store, datasets }
    }

    fn filesystem(&self) -> Arc<Filesystem> {
        self.datasets.create("pool/a", &NewDataset::default()).unwrap();
        let fs = self.datasets.filesystem("pool/a").unwrap();
        fs.sync().unwrap();
        fs
    }

    fn volume(&self, size_bytes: u64) -> Arc<Volume> {
        let new = NewDataset {
            volume_bytes: Some(size_bytes),
            sparse: true,
            ..NewDataset::default()
        };
        self.datasets.create("pool/v", &new).unwrap();
        self.datasets.volume("pool/v").unwrap()
    }

    fn commits_of(&self, work: impl FnOnce()) -> u64 {
        let before = self.store.newest().0;
        work();
        self.store.newest().0 - before
    }

    fn is_sound(&self) {
        let store: Arc<dyn Store> = self.store.clone();
        assert_eq!(
            terrace_dataset::check(&store).unwrap().problems,
            Vec::<String>::new()
        );
    }
}

fn file(fs: &Filesystem, name: &str) -> Result<u64, FsError> {
    let made = fs.create(&Context::root(), ROOT, name.as_bytes(), FileKind::File, 0o600, 0)?;
    Ok(made.object)
}

fn try_size(fs: &Filesystem, object: u64, size: u64) -> Result<(), FsError> {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    fs.set_attributes(&Context::root(), object, &change).map(drop)
}

fn set_size(fs: &Filesystem, object: u64, size: u64) {
    try_size(fs, object, size).unwrap();
}

/// A file with one block in each of its regions.
fn scattered(fs: &Filesystem, regions: u64) -> u64 {
    let object = file(fs, "scattered").unwrap();
    for region in 0..regions {
        fs.write(&Context::root(), object, region * REGION, &[1; 4096], false)
            .unwrap();
    }
    fs.sync().unwrap();
    object
}

/// Writes blocks to a file until there is no room; how many.
fn fill(fs: &Filesystem, object: u64) -> u64 {
    let mut written = 0u64;
    let write = |block: u64| {
        let content = block.to_le_bytes().repeat(512);
        fs.write(&Context::root(), object, block * BLOCK, &content, false)
    };
    // What was dirty had taken room beyond what it needed.
    for _ in 0..2 {
        while write(written).is_ok() {
            written += 1;
        }
        fs.sync().unwrap();
    }
    assert!(written > 1000, "{written}");
    written
}

fn mapped_bytes(fs: &Filesystem, object: u64) -> u64 {
    fs.attributes(object).unwrap().blocks512 * 512
}

/// What holds nothing is no work.
#[test]
fn volumes_are_discarded_in_portions_that_a_commit_can_take() {
    let world = World::of(LITTLE);
    let size = 1 << 44;
    let volume = world.volume(size);
    assert_eq!(world.commits_of(|| volume.discard(0, size).unwrap()), 0);
    // At two places that lie far from each other.
    for region in (0..100).chain(5_000_000..5_000_100) {
        volume.write(region * REGION + BLOCK, &[1; 8192]).unwrap();
    }
    volume.flush().unwrap();
    let commits = world.commits_of(|| volume.discard(BLOCK + 100, size - 8192).unwrap());
    assert_eq!(commits, 3, "two hundred regions, sixty-four at once");
    volume.flush().unwrap();
    let mut read = vec![9; 3 * BLOCK as usize];
    volume.read(0, &mut read).unwrap();
    assert!(read[4096..4196].iter().all(|byte| *byte == 1));
    assert!(read[4196..].iter().all(|byte| *byte == 0));
    let status = volume.block_status(0, size, 10).unwrap();
    let data = status.iter().filter(|piece| piece.data);
    assert_eq!(
        data.map(|piece| (piece.offset, piece.length)).collect::<Vec<_>>(),
        [(BLOCK, BLOCK)]
    );
    // Many small ones come to the same.
    for region in 0..100 {
        volume.write(region * REGION, &[1; 4096]).unwrap();
    }
    volume.flush().unwrap();
    let small = || (0..100).for_each(|region| volume.discard(region * REGION, REGION).unwrap());
    assert_eq!(world.commits_of(small), 1);
    // What is let go of counts, not how often; what was committed counts no more.
    volume.write(0, &[1; 1 << 20]).unwrap();
    volume.flush().unwrap();
    let blocks = || (0..256).for_each(|block| volume.discard(block * BLOCK, BLOCK).unwrap());
    assert_eq!(world.commits_of(blocks), 0);
    drop(volume);
    world.is_sound();
}

#[test]
fn a_volume_that_shrinks_gives_back_in_portions_and_has_its_new_size_at_the_end() {
    let world = World::of(LITTLE);
    let volume = world.volume(200 * REGION);
    for region in 0..200 {
        volume.write(region * REGION, &[1; 4096]).unwrap();
    }
    volume.flush().unwrap();
    let new_size = 2 * REGION + BLOCK;
    // The first portion goes with the size, in the commit that comes next.
    assert_eq!(world.commits_of(|| volume.resize(new_size).unwrap()), 2);
    volume.flush().unwrap();
    assert_eq!(volume.size_bytes(), new_size);
    volume.resize(200 * REGION).unwrap();
    let status = volume.block_status(0, 200 * REGION, 100).unwrap();
    let data = status.iter().filter(|piece| piece.data);
    assert_eq!(
        data.map(|piece| piece.offset).collect::<Vec<_>>(),
        [0, REGION, 2 * REGION]
    );
    drop(volume);
    world.is_sound();
}

#[test]
fn many_files_are_removed_in_portions_where_there_is_little_room() {
    // Where there is much, one commit by memory: 5000 changes are more than a sixteenth of 64 MiB, of which each takes 1,536 bytes.
    for (size_bytes, commits) in [(LITTLE, 2), (MUCH, 1)] {
        let world = World::of(size_bytes);
        let fs = world.filesystem();
        for number in 0..5000 {
            file(&fs, &format!("f{number}")).unwrap();
            if number % 500 == 0 {
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
        let remove = || {
            for number in 0..5000 {
                fs.unlink(&Context::root(), ROOT, format!("f{number}").as_bytes())
                    .unwrap();
            }
        };
        assert_eq!(world.commits_of(remove), commits);
        fs.sync().unwrap();
        drop(fs);
        world.is_sound();
    }
}

#[test]
fn content_of_removed_files_counts() {
    let world = World::of(LITTLE);
    let fs = world.filesystem();
    for number in 0..20 {
        let object = file(&fs, &format!("f{number}")).unwrap();
        // One chunk for all blocks, so that it has room.
        for at in 0..15 {
            fs.write(&Context::root(), object, at * REGION, &vec![7; 1 << 20], false)
                .unwrap();
        }
        fs.sync().unwrap();
    }
    let remove = || {
        for number in 0..20 {
            fs.unlink(&Context::root(), ROOT, format!("f{number}").as_bytes())
                .unwrap();
        }
    };
    // Sixty-four MiB at once: five files.
    assert_eq!(world.commits_of(remove), 3);
    fs.sync().unwrap();
    drop(fs);
    world.is_sound();
}

#[test]
fn a_file_is_made_shorter_in_portions_from_its_end_on() {
    let world = World::of(LITTLE);
    let fs = world.filesystem();
    let object = scattered(&fs, 200);
    let size = 2 * REGION + 5;
    assert_eq!(world.commits_of(|| set_size(&fs, object, size)), 3);
    fs.sync().unwrap();
    assert_eq!(fs.attributes(object).unwrap().size, size);
    assert_eq!(mapped_bytes(&fs, object), 3 * BLOCK);
    let mut read = vec![9; 8];
    assert_eq!(fs.read(object, 2 * REGION, &mut read), Ok(5));
    assert_eq!(read[..5], [1; 5]);
    set_size(&fs, object, 300 * REGION);
    assert_eq!(fs.read(object, 2 * REGION, &mut read), Ok(8));
    assert_eq!(read, [1, 1, 1, 1, 1, 0, 0, 0]);
    // The whole of a large one is left to the sweep.
    assert_eq!(world.commits_of(|| set_size(&fs, object, 0)), 0);
    fs.sync().unwrap();
    drop(fs);
    world.is_sound();
}

#[test]
fn holes_are_punched_in_portions() {
    let world = World::of(LITTLE);
    let fs = world.filesystem();
    let object = scattered(&fs, 200);
    let punch = || {
        fs.allocate(
            &Context::root(),
            object,
            AllocateMode::Punch,
            100,
            200 * REGION - 100,
        )
        .unwrap();
    };
    assert_eq!(world.commits_of(punch), 3);
    fs.sync().unwrap();
    assert_eq!(mapped_bytes(&fs, object), BLOCK);
    let mut read = vec![9; 4096];
    assert_eq!(fs.read(object, 0, &mut read), Ok(4096));
    assert!(read[..100].iter().all(|byte| *byte == 1));
    assert!(read[100..].iter().all(|byte| *byte == 0));
    drop(fs);
    world.is_sound();
}

#[test]
fn on_a_full_pool_nobody_who_gives_back_waits_for_room() {
    let world = World::of(LITTLE);
    let fs = world.filesystem();
    let root = Context::root();
    for number in 0..100 {
        file(&fs, &format!("f{number}")).unwrap();
    }
    let object = file(&fs, "data").unwrap();
    let written = fill(&fs, object);
    assert_eq!(file(&fs, "another").unwrap_err(), FsError::NoSpace);
    let refused = world.store.refused.load(Relaxed);
    for number in 0..90 {
        let name = format!("f{number}");
        fs.unlink(&root, ROOT, name.as_bytes()).unwrap();
    }
    fs.rename(&root, ROOT, b"f90", ROOT, b"f91", RenameMode::Replace)
        .unwrap();
    fs.allocate(&root, object, AllocateMode::Punch, 0, 100 * BLOCK)
        .unwrap();
    set_size(&fs, object, (written - 100) * BLOCK);
    assert_eq!(world.store.refused.load(Relaxed), refused);
    fs.sync().unwrap();
    file(&fs, "another").unwrap();
    fs.sync().unwrap();
    drop(fs);
    world.is_sound();
}

/// As many times as it takes until one in 64 has looked for room in vain.
const OFTEN: u64 = 100;

#[test]
fn files_are_cut_to_the_size_they_have_when_the_reserve_is_used_up() {
    let world = World::of(LITTLE);
    let fs = world.filesystem();
    let empty = file(&fs, "empty").unwrap();
    let object = file(&fs, "data").unwrap();
    let written = fill(&fs, object);
    world.store.is_reserve_used.store(true, Relaxed);
    let grown = try_size(&fs, object, (written + 1) * BLOCK);
    assert_eq!(grown, Err(FsError::NoSpace), "it gives nothing back");
    for _ in 0..OFTEN {
        set_size(&fs, empty, 0);
        set_size(&fs, object, written * BLOCK);
    }
    fs.sync().unwrap();
    drop(fs);
    world.is_sound();
}

#[test]
fn what_no_snapshot_has_is_given_back_when_the_reserve_is_used_up() {
    let world = World::of(LITTLE);
    let fs = world.filesystem();
    let root = Context::root();
    let directory = |name: String| fs.make_directory(&root, ROOT, name.as_bytes(), 0o700);
    directory("old directory".into()).unwrap();
    let old = file(&fs, "old").unwrap();
    fs.write(&root, old, 0, &[1; 4096], false).unwrap();
    fs.sync().unwrap();
    world.datasets.snapshots().take("pool/a@s", false, "").unwrap();
    for number in 0..OFTEN {
        directory(format!("d{number}")).unwrap();
    }
    let young = file(&fs, "young").unwrap();
    let written = fill(&fs, young);
    assert!(written > 2 * OFTEN);
    world.store.is_reserve_used.store(true, Relaxed);
    let punch = |object, block| fs.allocate(&root, object, AllocateMode::Punch, block * BLOCK, BLOCK);
    let remove = |name: &str| fs.remove_directory(&root, ROOT, name.as_bytes()).map(drop);
    assert_eq!(try_size(&fs, old, 0), Err(FsError::NoSpace));
    assert_eq!(punch(old, 0), Err(FsError::NoSpace));
    assert_eq!(remove("old directory"), Err(FsError::NoSpace));
    for number in 0..OFTEN {
        set_size(&fs, young, (written - number) * BLOCK);
        punch(young, number).unwrap();
        remove(&format!("d{number}")).unwrap();
    }
    fs.sync().unwrap();
    drop(fs);
    world.is_sound();
}
