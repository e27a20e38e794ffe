//! Where small writes land that are made all over what fills half of a fast tier: dead blocks come back in time, and nothing goes below.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, Filesystem, NewDataset, ROOT, Tree};
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const FILE_BYTES: usize = 16 * MIB;
/// Written between two commits.
const COMMIT_BYTES: usize = MIB;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

struct Rig {
    engine: Arc<Engine>,
    filesystem: Arc<Filesystem>,
    object: u64,
    content: Vec<u8>,
    random: Random,
}

impl Rig {
    /// A file in order on a fast tier of twice its size, above a slow one.
    fn new() -> Self {
        let tier = |name: &str| TierSpec {
            name: name.into(),
            devices: vec![format!("/{name}").parse().unwrap()],
            copies: 1,
        };
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: vec![tier("fast"), tier("slow")],
            ..PoolSpec::default()
        };
        let device = |name: &str, bytes: usize| {
            vec![Arc::new(MemoryDevice::new(format!("/{name}"), bytes as u64)) as Arc<dyn Device>]
        };
        let devices = vec![device("fast", 2 * FILE_BYTES), device("slow", 8 * FILE_BYTES)];
        let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
        let engine = Engine::create_on(&spec, devices, OpenOptions::driven(clock, 1)).unwrap();
        let datasets = engine.datasets().clone();
        datasets.create("tank/data", &NewDataset::default()).unwrap();
        let filesystem = datasets.filesystem("tank/data").unwrap();
        let root = Context::root();
        let object = filesystem
            .create(&root, ROOT, b"file", FileKind::File, 0o644, 0)
            .unwrap()
            .object;
        let mut random = Random(7);
        let content = random.bytes(FILE_BYTES);
        filesystem.write(&root, object, 0, &content, false).unwrap();
        engine.tick().unwrap();
        Self {
            engine,
            filesystem,
            object,
            content,
            random,
        }
    }

    /// Writes blocks anywhere; what went below of that, bytes.
    fn overwrite(&mut self, bytes: usize) -> u64 {
        let live = |engine: &Engine| engine.store().space().tiers[1].live_bytes;
        let before = live(&self.engine);
        let root = Context::root();
        for count in 1..=bytes / BLOCK {
            let at = self.random.next() as usize % (FILE_BYTES / BLOCK) * BLOCK;
            let data = self.random.bytes(BLOCK);
            self.content[at..][..BLOCK].copy_from_slice(&data);
            self.filesystem
                .write(&root, self.object, at as u64, &data, false)
                .unwrap();
            if count % (COMMIT_BYTES / BLOCK) == 0 {
                self.filesystem.commit().unwrap();
            }
        }
        live(&self.engine).saturating_sub(before)
    }

    fn check(&self) {
        let mut found = vec![0; FILE_BYTES];
        for (at, piece) in found.chunks_mut(MIB).enumerate() {
            let read = self.filesystem.read(self.object, (at * MIB) as u64, piece);
            assert_eq!(read.unwrap(), MIB);
        }
        assert!(found == self.content);
    }
}

#[test]
fn what_is_written_over_at_random_stays_on_a_tier_that_holds_it() {
    let mut rig = Rig::new();
    let below = rig.overwrite(3 * FILE_BYTES);
    println!("{below} bytes below");
    // It was 14 MiB.
    assert!(below < FILE_BYTES as u64 / 8, "{below}");
    rig.check();
}
