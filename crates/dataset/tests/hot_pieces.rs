//! Single blocks of long chunks get chunks of their own on a faster tier: what that may not change.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use terrace_dataset::{
    At, Context, Datasets, Environment, FileKind, Filesystem, Fragment, FsError, HotPiece, NewDataset,
    Progress, ROOT, RegionRecord, Tree, check, read_region,
};
use terrace_device::ManualClock;
use terrace_store::{ChunkId, MemoryStore, Placement, Store};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

struct World {
    memory: Arc<MemoryStore>,
    datasets: Datasets,
    fs: Arc<Filesystem>,
    number: u32,
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

fn world(size_bytes: u64) -> World {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let memory = Arc::new(MemoryStore::new(size_bytes));
    let store: Arc<dyn Store> = memory.clone();
    let datasets = Datasets::open(Arc::new(Environment::new(store, clock)), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    let number = datasets.info("pool/a").unwrap().number;
    World {
        memory,
        datasets,
        fs,
        number,
    }
}

impl World {
    /// A file all of which lies on the slow tier.
    fn file(&self, name: &str, content: &[u8]) -> u64 {
        let root = Context::root();
        let made = self
            .fs
            .create(&root, ROOT, name.as_bytes(), FileKind::File, 0o644, 0);
        let object = made.unwrap().object;
        self.fs.write(&root, object, 0, content, false).unwrap();
        self.datasets.commit_all().unwrap();
        for region in 0..(content.len() as u64).div_ceil(MIB) {
            self.sink(self.number, object, region);
        }
        object
    }

    fn sink(&self, dataset: u32, body: u64, region: u64) {
        let (_, record) = self.record_of(dataset, body, region);
        let chunks: Vec<ChunkId> = record.runs().iter().map(|run| run.chunk).collect();
        let placement = Placement::Tier {
            tier: 1,
            strict: true,
        };
        self.memory.rewrite(&chunks, placement).unwrap();
    }

    fn record_of(&self, dataset: u32, body: u64, region: u64) -> (u64, RegionRecord) {
        let found = read_region(self.memory.as_ref(), dataset, body, region);
        let found = found.unwrap().unwrap();
        (found.birth, found.record)
    }

    fn record(&self, object: u64, region: u64) -> (u64, RegionRecord) {
        self.record_of(self.number, object, region)
    }

    fn piece(&self, dataset: u32, object: u64, region: u64, block: u32, blocks: u32) -> HotPiece {
        let (chunk, _) = self.record_of(dataset, object, region).1.lookup(block).unwrap();
        HotPiece {
            fragment: Fragment {
                dataset,
                body: object,
                region,
                object,
            },
            chunk,
            blocks,
        }
    }

    fn raise(&self, object: u64, region: u64, block: u32, blocks: u32) -> Result<u64, FsError> {
        let piece = self.piece(self.number, object, region, block, blocks);
        self.datasets.raise(&[piece], 0)
    }

    fn tier(&self, object: u64, block: u32) -> u8 {
        let (chunk, _) = self.record(object, 0).1.lookup(block).unwrap();
        self.memory.chunk_tier(chunk).unwrap().unwrap()
    }

    fn read(&self, object: u64) -> Vec<u8> {
        let mut buffer = vec![0xEE; 4 << 20];
        let length = self.fs.read(object, 0, &mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    fn audit(&self) {
        let store: Arc<dyn Store> = self.memory.clone();
        let report = check(&store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(self.memory.references(), report.references);
    }
}

#[test]
fn blocks_rise_alone_and_the_rest_stays_where_it_is() {
    let world = world(1 << 30);
    let content = noise(1, 2 * MIB as usize + 5000);
    let object = world.file("f", &content);
    let (birth, before) = world.record(object, 0);
    let attributes = world.fs.attributes(object).unwrap();
    // Some neighbours, one from RAM, one not.
    let mut block = [0; BLOCK];
    world.fs.read(object, 3 * 4096, &mut block).unwrap();
    let raised = world.raise(object, 0, 0, 1 << 3 | 1 << 10 | 1 << 11 | 1 << 31);
    assert_eq!(raised, Ok(4 * 4096));
    let (now, record) = world.record(object, 0);
    assert_eq!((now, record.runs().len()), (birth, before.runs().len() + 5));
    let up = |block| world.tier(object, block) == 0;
    let risen: Vec<u32> = (0..256).filter(|block| up(*block)).collect();
    assert_eq!(risen, [3, 10, 11, 31]);
    assert_eq!(record.lookup(4), before.lookup(4));
    assert_eq!(world.fs.attributes(object).unwrap(), attributes);
    assert!(world.read(object) == content);
    // Those that are there are no part of the chunk any more; nor is there more of it than there is.
    assert_eq!(world.raise(object, 0, 0, 1 << 3), Ok(0));
    // The end of the file is shorter than a block.
    assert_eq!(world.raise(object, 2, 0, 0b10), Ok(5000 - 4096));
    assert!(world.read(object) == content);
    assert_eq!(world.fs.attributes(object).unwrap(), attributes);
    world.audit();
}

#[test]
fn the_past_and_who_shares_the_chunk_read_on_what_they_did() {
    let world = world(1 << 30);
    let root = Context::root();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    let copy = world.file("g", b"");
    world.fs.copy_range(&root, object, 0, copy, 0, MIB / 2).unwrap();
    world.datasets.snapshots().take("pool/a@s", false, "").unwrap();
    let old = content.clone();
    let view = world.datasets.view("pool/a", &At::Snapshot("s".into())).unwrap();
    let past = || {
        let mut buffer = vec![0; MIB as usize];
        assert_eq!(view.read(object, 0, &mut buffer).unwrap(), buffer.len());
        buffer
    };
    // The snapshot sees the live record.
    assert!(past() == old);
    assert_eq!(world.raise(object, 0, 0, 0b110), Ok(2 * 4096));
    assert!(past() == old && world.read(copy) == old[..old.len() / 2]);
    world.audit();
    // Then it has one of its own, whose chunks are shared.
    content[5 * BLOCK..6 * BLOCK].copy_from_slice(&noise(9, BLOCK));
    world
        .fs
        .write(&root, object, 5 * 4096, &noise(9, BLOCK), false)
        .unwrap();
    world.datasets.commit_all().unwrap();
    let (birth, _) = world.record(object, 0);
    assert_eq!(world.raise(object, 0, 64, 1), Ok(4096));
    assert_eq!((world.record(object, 0).0, world.tier(object, 64)), (birth, 0));
    assert!(past() == old && world.read(object) == content);
    world.audit();
    drop(view);
    world
        .datasets
        .snapshots()
        .destroy("pool/a@s", false, false)
        .unwrap();
    while world.datasets.sweeper().step(100).unwrap() == Progress::More {}
    assert!(world.read(object) == content && world.read(copy) == old[..old.len() / 2]);
    world.audit();
}

#[test]
fn what_a_volume_shares_with_its_past_is_counted_exactly() {
    let world = world(1 << 30);
    let volume = NewDataset {
        volume_bytes: Some(2 * MIB),
        properties: vec![("chunk_size".into(), "128K".into())],
        ..NewDataset::default()
    };
    world.datasets.create("pool/v", &volume).unwrap();
    let handle = world.datasets.volume("pool/v").unwrap();
    let mut content = noise(3, 2 * MIB as usize);
    handle.write(0, &content).unwrap();
    world.datasets.commit_all().unwrap();
    let number = world.datasets.info("pool/v").unwrap().number;
    world.sink(number, ROOT, 1);
    let raise = |block, blocks| {
        let piece = world.piece(number, ROOT, 1, block, blocks);
        world.datasets.raise(&[piece], 0)
    };
    world.datasets.snapshots().take("pool/v@s", false, "").unwrap();
    assert_eq!(raise(0, 0b101), Ok(2 * 4096));
    world.audit();
    let data = noise(7, BLOCK);
    content[MIB as usize..][..BLOCK].copy_from_slice(&data);
    handle.write(MIB, &data).unwrap();
    world.datasets.commit_all().unwrap();
    world.audit();
    // These the snapshot has too, in a record of its own now.
    assert_eq!(raise(32, u32::MAX), Ok(32 * 4096));
    world.audit();
    let mut shown = vec![0; content.len()];
    handle.read(0, &mut shown).unwrap();
    assert!(shown == content);
    drop(handle);
    world.datasets.close("pool/v").unwrap();
    assert_eq!(raise(64, 1), Ok(0), "nobody uses it");
}

#[test]
fn a_full_pool_says_so_and_nothing_changes() {
    let world = world(3 * MIB);
    let content = noise(1, 2 * MIB as usize);
    let object = world.file("f", &content);
    let rest = world.memory.space();
    let _room = world
        .memory
        .reserve(rest.size_bytes - rest.used_bytes - 150_000)
        .unwrap();
    let before = world.record(object, 0);
    let mut last = Ok(0);
    for chunk in 0..8 {
        last = world.raise(object, 0, chunk * 32, 0x5555_5555);
        if last.is_err() {
            break;
        }
    }
    assert_eq!(last, Err(FsError::NoSpace));
    assert_eq!(
        world.record(object, 0).1.mapped_blocks(),
        before.1.mapped_blocks()
    );
    assert!(world.read(object) == content);
    world.audit();
}

/// Whoever writes, shares or keeps a past state at the same time finds what was there before, or what he wrote.
#[test]
fn beside_writers_snapshots_and_reflinks() {
    let world = world(1 << 30);
    let root = Context::root();
    let mut content = noise(1, MIB as usize);
    let object = world.file("f", &content);
    let copy = world.file("g", &content);
    let done = AtomicBool::new(false);
    let raised = std::thread::scope(|scope| {
        let raising = scope.spawn(|| {
            let (mut raised, mut round) = (0, 0u32);
            while !done.load(SeqCst) {
                for chunk in 0..8 {
                    let bits = 1u32.rotate_left(round.wrapping_mul(7)) | 1u32.rotate_left(round * 3 + chunk);
                    let blocks = world.record(object, 0).1;
                    if blocks.lookup(chunk * 32 + 1).is_some() {
                        raised += world.raise(object, 0, chunk * 32 + 1, bits).unwrap();
                    }
                }
                round += 1;
            }
            raised
        });
        for at in 0..60usize {
            let block = at * 37 % 256;
            let data = noise(1000 + at as u64, BLOCK);
            content[block * BLOCK..][..BLOCK].copy_from_slice(&data);
            let offset = block as u64 * 4096;
            world.fs.write(&root, object, offset, &data, false).unwrap();
            if at % 7 == 3 {
                let (from, length) = (block as u64 / 2 * 4096, 64 << 10);
                world
                    .fs
                    .copy_range(&root, object, from, copy, from, length)
                    .unwrap();
            }
            world.datasets.commit_all().unwrap();
            if at % 10 == 5 {
                let name = format!("pool/a@{at}");
                world.datasets.snapshots().take(&name, false, "").unwrap();
                let view = world.datasets.view("pool/a", &At::Snapshot(at.to_string()));
                let mut buffer = vec![0; MIB as usize];
                view.unwrap().read(object, 0, &mut buffer).unwrap();
                assert!(buffer == content, "{at}");
            }
            assert!(world.read(object) == content, "{at}");
        }
        done.store(true, SeqCst);
        raising.join().unwrap()
    });
    assert!(raised > 0);
    world.audit();
}
