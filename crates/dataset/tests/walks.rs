//! A walk over many files, each read once, adds no heat; who reads a file again does, also in the middle of a walk.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{
    Context, Datasets, Environment, FileKind, Filesystem, NewDataset, Tree, body_of_object, read_region,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

const SECOND: u64 = 1_000_000_000;
const FILES: u64 = 300;
const FILE_BYTES: u64 = 20 << 10;

struct Stored {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    environment: Arc<Environment>,
    filesystem: Arc<Filesystem>,
    number: u32,
    files: Vec<u64>,
    large: u64,
}

impl Stored {
    fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(64 << 20));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let environment = Arc::new(Environment::new(store.clone(), clock.clone()));
        let datasets = Datasets::open(environment.clone(), "pool").unwrap();
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let number = datasets.info("pool/a").unwrap().number;
        let filesystem = datasets.filesystem("pool/a").unwrap();
        let root = Context::root();
        let make = |name: String, bytes: u64, seed: u64| {
            let made = filesystem.create(&root, 1, name.as_bytes(), FileKind::File, 0o644, 0);
            let object = made.unwrap().object;
            let content: Vec<u8> = (0..bytes)
                .map(|at| (at / 4096 * 7 + at % 251 + seed * 31) as u8)
                .collect();
            filesystem.write(&root, object, 0, &content, false).unwrap();
            object
        };
        let files = (0..FILES)
            .map(|at| make(format!("f{at}"), FILE_BYTES + at, at))
            .collect();
        let large = make("large".into(), 8 << 20, 999);
        datasets.commit_all().unwrap();
        Self {
            store,
            clock,
            environment,
            filesystem,
            number,
            files,
            large,
        }
    }

    fn read(&self, process: u32, object: u64, offset: u64, bytes: usize) {
        let mut buffer = vec![0; bytes];
        self.filesystem
            .read_for(process, object, offset, &mut buffer)
            .unwrap();
    }

    /// Reads all of a file, in pieces of this size.
    fn read_whole(&self, process: u32, object: u64, piece: usize) {
        let size = self.filesystem.attributes(object).unwrap().size;
        (0..size)
            .step_by(piece)
            .for_each(|at| self.read(process, object, at, piece));
    }

    fn body(&self, object: u64) -> u64 {
        body_of_object(&self.store, self.number, object).unwrap().unwrap()
    }

    /// Reads that are known of the first region of a file, and of its first chunk.
    fn heat(&self, object: u64) -> (f32, u8) {
        let minutes = (self.environment.clock.now_nanoseconds() / 60 / SECOND) as u32;
        let body = self.body(object);
        let heat = self.environment.heat.of(self.number, body, 0, minutes).reads;
        let record = read_region(&*self.store, self.number, body, 0).unwrap().unwrap();
        let chunk = record.record.runs()[0].chunk;
        let blocks = record.record.runs()[0].count;
        (heat, self.environment.chunk_heat.reads(chunk, blocks))
    }

    fn warm(&self) -> usize {
        let files = self.files.iter();
        files.filter(|file| self.heat(**file) != (0.0, 0)).count()
    }

    fn minutes_pass(&self) {
        self.clock.advance(120 * SECOND);
    }
}

#[test]
fn one_backup_after_another_adds_none() {
    let tree = Stored::new();
    // tar; rsync; an indexer that looks at the beginning; each file by a process of its own.
    tree.files
        .iter()
        .for_each(|file| tree.read_whole(10, *file, 128 << 10));
    tree.minutes_pass();
    tree.files
        .iter()
        .for_each(|file| tree.read_whole(11, *file, 4 << 10));
    tree.minutes_pass();
    tree.files.iter().for_each(|file| tree.read(12, *file, 0, 512));
    assert_eq!(tree.warm(), 0);
    // Of which nobody knows what they read for.
    tree.minutes_pass();
    tree.files
        .iter()
        .rev()
        .for_each(|file| tree.read_whole(0, *file, 64 << 10));
    assert_eq!(tree.warm(), 0);
    let tree = Stored::new();
    (20..)
        .zip(&tree.files)
        .for_each(|(process, file)| tree.read_whole(process, *file, 128 << 10));
    assert_eq!(tree.warm(), 0);
}

#[test]
fn a_small_file_that_is_read_again_and_again_gets_hot() {
    // By one process, or each time by another one.
    for others in [false, true] {
        let tree = Stored::new();
        let file = tree.files[5];
        (0..10).for_each(|time| tree.read_whole(100 + time * u32::from(others), file, 128 << 10));
        assert_eq!(tree.heat(file), (10.0, 10));
        // And stays so when a backup passes.
        tree.files
            .iter()
            .for_each(|file| tree.read_whole(50, *file, 128 << 10));
        let (reads, of_chunk) = tree.heat(file);
        assert!(
            (9.0..=11.0).contains(&reads) && of_chunk >= 9,
            "{reads} {of_chunk}"
        );
        assert_eq!(tree.warm(), 1);
    }
}

#[test]
fn who_walks_and_comes_back_uses_what_it_comes_back_to() {
    let tree = Stored::new();
    // Two thirds of the reads are of ten files.
    let mut passed = tree.files[10..].iter();
    for round in 0..29 {
        for file in &tree.files[..10] {
            tree.read_whole(7, *file, 128 << 10);
        }
        passed
            .by_ref()
            .take(5)
            .for_each(|file| tree.read_whole(7, *file, 128 << 10));
        assert!(round < 28 || tree.files[..10].iter().all(|file| tree.heat(*file).0 >= 27.0));
    }
    assert_eq!(tree.warm(), 10);
    // A large file that it jumps about in is used as well, but for the first few reads.
    (0..40u64).for_each(|at| tree.read(7, tree.large, (at * 37 % 255 + 1) * 4096, 4096));
    let (reads, _) = tree.heat(tree.large);
    assert!((34.0..40.0).contains(&reads), "{reads}");
}
