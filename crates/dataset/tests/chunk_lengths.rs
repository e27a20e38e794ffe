//! `chunk_size=auto`: what does not compress lies in longer chunks, and how content is cut hangs on nothing but the content.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{
    Context, Cut, Datasets, Environment, FileKind, Fragment, Layout, NewDataset, ROOT, RegionRecord, Relaid,
    Tree, Volume, check, read_region,
};
use terrace_device::ManualClock;
use terrace_store::{ChunkId, MemoryStore, Store};

const BLOCK: usize = 4096;
const KIB: usize = 1024;
const MIB: usize = 1 << 20;

struct World {
    memory: Arc<MemoryStore>,
    datasets: Datasets,
}

fn world() -> World {
    let memory = Arc::new(MemoryStore::new(1 << 30));
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let environment = Environment::new(memory.clone() as Arc<dyn Store>, clock);
    let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
    World { memory, datasets }
}

impl World {
    fn volume(&self, name: &str) -> Arc<Volume> {
        let new = NewDataset {
            volume_bytes: Some(16 * MIB as u64),
            sparse: true,
            ..NewDataset::default()
        };
        self.datasets.create(name, &new).unwrap();
        self.datasets.volume(name).unwrap()
    }

    fn record(&self, name: &str, region: u64) -> RegionRecord {
        self.datasets.commit_all().unwrap();
        let number = self.datasets.info(name).unwrap().number;
        let found = read_region(self.memory.as_ref(), number, 1, region).unwrap();
        found.unwrap().record
    }

    /// Blocks of each run, ascending.
    fn lengths(&self, name: &str, region: u64) -> Vec<u32> {
        let record = self.record(name, region);
        record.runs().iter().map(|run| run.count).collect()
    }

    fn chunks(&self, name: &str, region: u64) -> Vec<ChunkId> {
        let record = self.record(name, region);
        record.runs().iter().map(|run| run.chunk).collect()
    }

    fn relayout(&self, name: &str, cut: Cut) -> Relaid {
        let fragment = Fragment {
            dataset: self.datasets.info(name).unwrap().number,
            body: 1,
            region: 0,
            object: 1,
        };
        let wanted = |_: &Fragment, layout: &Layout| layout.is_gain();
        let mut done = self.datasets.relayout(&[fragment], cut, &wanted, MIB as u64);
        done.remove(0).unwrap()
    }

    fn audit(&self) {
        let report = check(&(self.memory.clone() as Arc<dyn Store>)).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// What compresses, and is not the same everywhere.
fn text(seed: u8, length: usize) -> Vec<u8> {
    let line = |at: usize| format!("{seed:3} {:11}\n", at / BLOCK);
    (0..length / 16)
        .flat_map(|at| line(at * 16).into_bytes())
        .collect()
}

/// 256 KiB: noise, text, both by turns in pieces of 16 KiB, and noise with a hole of 4 KiB in it.
fn mixture() -> Vec<u8> {
    let (sixteen, sixty_four) = (16 * KIB, 64 * KIB);
    let mut content = [noise(1, sixty_four), text(2, sixty_four)].concat();
    content.extend([noise(3, sixteen), text(4, sixteen), noise(5, 2 * sixteen)].concat());
    let mut holed = noise(6, sixty_four);
    holed[20 * KIB..24 * KIB].fill(0);
    content.extend(holed);
    content
}
/// Of the last 64 KiB: 16, and after the hole 8 and again 2 times 16, of which the two and only they lie side by side.
const MIXTURE: [u32; 11] = [16, 4, 4, 4, 4, 4, 4, 8, 4, 1, 2];

fn expected() -> Vec<u32> {
    [&MIXTURE[..], &[8]].concat()
}

fn read(volume: &Volume, length: usize) -> Vec<u8> {
    let mut buffer = vec![0xEE; length];
    volume.read(0, &mut buffer).unwrap();
    buffer
}

#[test]
fn what_does_not_compress_lies_in_longer_chunks_however_it_was_written() {
    let world = world();
    let content = mixture();
    // At once; in small pieces out of order; as part of a stream that is written through.
    let at_once = world.volume("pool/at_once");
    at_once.write(0, &content).unwrap();
    let pieces = world.volume("pool/pieces");
    for at in (0..content.len() / BLOCK).map(|at| at * 23 % (content.len() / BLOCK)) {
        pieces
            .write((at * BLOCK) as u64, &content[at * BLOCK..][..BLOCK])
            .unwrap();
    }
    let stream = world.volume("pool/stream");
    let mut whole = noise(9, 9 * MIB);
    whole[8 * MIB..][..content.len()].copy_from_slice(&content);
    for (at, part) in whole.chunks(MIB).enumerate() {
        stream.write((at * MIB) as u64, part).unwrap();
    }
    assert_eq!(world.lengths("pool/at_once", 0), expected());
    let first = world.chunks("pool/at_once", 0);
    assert_eq!(
        world.chunks("pool/pieces", 0),
        first,
        "equal content is cut, and found, alike"
    );
    assert_eq!(world.chunks("pool/stream", 8)[..first.len()], first);
    assert_eq!(world.lengths("pool/stream", 2), [16; 16]);
    assert!(read(&at_once, content.len()) == content);
    assert!(read(&pieces, content.len()) == content);
    assert!(read(&stream, whole.len()) == whole);
    world.audit();
}

#[test]
fn a_length_that_was_asked_for_is_kept_and_the_end_of_a_file_stays_apart() {
    let world = world();
    world.volume("pool/v");
    world
        .datasets
        .properties()
        .set("pool/v", "chunk_size", "16K")
        .unwrap();
    let volume = world.datasets.volume("pool/v").unwrap();
    volume.write(0, &noise(1, 128 * KIB)).unwrap();
    assert_eq!(world.lengths("pool/v", 0), [4; 8]);

    let new = NewDataset {
        properties: vec![("chunk_size".into(), "auto".into())],
        ..NewDataset::default()
    };
    world.datasets.create("pool/files", &new).unwrap();
    let files = world.datasets.filesystem("pool/files").unwrap();
    let root = Context::root();
    let object = files
        .create(&root, ROOT, b"f", FileKind::File, 0o644, 0)
        .unwrap()
        .object;
    let content = noise(2, 62 * KIB + 100);
    files.write(&root, object, 0, &content, false).unwrap();
    world.datasets.commit_all().unwrap();
    let number = world.datasets.info("pool/files").unwrap().number;
    let found = read_region(world.memory.as_ref(), number, object, 0)
        .unwrap()
        .unwrap();
    let lengths: Vec<u32> = found.record.runs().iter().map(|run| run.count).collect();
    assert_eq!(lengths, [12, 4]);
    let mut buffer = vec![0; 64 * KIB];
    let length = files.read(object, 0, &mut buffer).unwrap();
    assert!(buffer[..length] == content);
    world.audit();
}

#[test]
fn what_lies_well_is_left_and_what_is_put_in_order_is_joined_again() {
    let world = world();
    let volume = world.volume("pool/v");
    let mut content = [mixture(), noise(7, 256 * KIB)].concat();
    volume.write(0, &content).unwrap();
    let before = world.chunks("pool/v", 0);
    assert!(matches!(world.relayout("pool/v", Cut::InOrder), Relaid::Left));
    assert_eq!(world.chunks("pool/v", 0), before);

    // In the middle of the first chunk, and the end of a later one.
    let (first, last) = (noise(10, BLOCK), noise(11, 48 * KIB));
    volume.write(5 * BLOCK as u64, &first).unwrap();
    volume.write(400 * KIB as u64, &last).unwrap();
    content[5 * BLOCK..][..BLOCK].copy_from_slice(&first);
    content[400 * KIB..][..last.len()].copy_from_slice(&last);
    let lengths = world.lengths("pool/v", 0);
    let rest = &expected()[1..];
    assert_eq!(lengths, [&[5, 1, 10], rest, &[16, 16, 4, 12, 16]].concat());
    let written = world.chunks("pool/v", 0);
    assert!(matches!(
        world.relayout("pool/v", Cut::InOrder),
        Relaid::Done { .. }
    ));
    assert_eq!(
        world.lengths("pool/v", 0),
        [&[16], rest, &[16, 16, 4, 12, 16]].concat()
    );
    let after = world.chunks("pool/v", 0);
    let anew = after.iter().filter(|chunk| !written.contains(chunk));
    assert_eq!(
        anew.count(),
        2,
        "what was written over, and what was left of the later one"
    );
    assert!(read(&volume, content.len()) == content);
    world.audit();
}

#[test]
fn what_is_left_of_a_long_chunk_is_found_and_cut_short() {
    let world = world();
    let volume = world.volume("pool/v");
    volume.write(0, &noise(1, 64 * KIB)).unwrap();
    world.datasets.commit_all().unwrap();
    volume.write(16 * KIB as u64, &noise(2, 48 * KIB)).unwrap();
    assert_eq!(world.lengths("pool/v", 0), [4, 12]);
    assert!(
        matches!(world.relayout("pool/v", Cut::Survivors), Relaid::Done { dead_bytes, .. } if dead_bytes == 48 << 10)
    );
    world.memory.references();
    assert_eq!(world.memory.space().used_bytes, 64 << 10);
    world.audit();
}
