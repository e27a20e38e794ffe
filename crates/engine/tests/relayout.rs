//! What random writes all over a file cost, on a device, and what laying it out anew gives back: room, and reads.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use terrace_dataset::{Context, FileKind, NewDataset, ROOT, Tree};
use terrace_device::{Device, DeviceError, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: usize = 1 << 20;
const FILE_BYTES: usize = 16 * MIB;

/// A device that counts how often it is read.
struct Counting {
    below: MemoryDevice,
    reads: AtomicU64,
}

impl Device for Counting {
    fn path(&self) -> String {
        self.below.path()
    }
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, SeqCst);
        self.below.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
}

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
    device: Arc<Counting>,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
}

impl Rig {
    fn new() -> Self {
        let device = Arc::new(Counting {
            below: MemoryDevice::new("/disk", 128 * MIB as u64),
            reads: AtomicU64::new(0),
        });
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: vec![TierSpec {
                name: "disk".into(),
                devices: vec!["/disk".parse().unwrap()],
                copies: 1,
            }],
            ..PoolSpec::default()
        };
        let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
        let options = OpenOptions::driven(clock.clone(), 1);
        let devices = vec![vec![device.clone() as Arc<dyn Device>]];
        let engine = Engine::create_on(&spec, devices, options).unwrap();
        Self {
            device,
            clock,
            engine,
        }
    }

    /// A file in order, and then as many writes of a block as it has blocks, anywhere: the file, and its content.
    fn scattered(&self, random: &mut Random) -> (u64, Vec<u8>) {
        let datasets = self.engine.datasets().clone();
        datasets.create("tank/data", &NewDataset::default()).unwrap();
        let filesystem = datasets.filesystem("tank/data").unwrap();
        let root = Context::root();
        let object = filesystem
            .create(&root, ROOT, b"file", FileKind::File, 0o644, 0)
            .unwrap()
            .object;
        let mut content = random.bytes(FILE_BYTES);
        filesystem.write(&root, object, 0, &content, false).unwrap();
        self.engine.tick().unwrap();
        for count in 0..FILE_BYTES / 4096 {
            let block = random.next() as usize % (FILE_BYTES / 4096);
            let data = random.bytes(4096);
            content[block * 4096..][..4096].copy_from_slice(&data);
            let offset = block as u64 * 4096;
            filesystem.write(&root, object, offset, &data, false).unwrap();
            if count % 64 == 63 {
                filesystem.commit().unwrap();
            }
        }
        (object, content)
    }

    fn rest(&self) {
        let mut idle = 0;
        for _ in 0..100_000 {
            idle = if self.engine.step().unwrap() { 0 } else { idle + 1 };
            if idle == 4 {
                return;
            }
        }
        panic!("the background finds no rest");
    }

    fn wait(&self, seconds: u64) {
        for _ in 0..seconds / 10 {
            self.clock.advance(10_000_000_000);
            self.engine.tick().unwrap();
            self.rest();
        }
    }

    /// Reads a file in order with nothing in RAM: its content, and how often the device was read for it.
    fn read_in_order(&mut self, object: u64) -> (Vec<u8>, u64) {
        self.engine.close().unwrap();
        let options = OpenOptions::driven(self.clock.clone(), 2);
        self.engine = Engine::open(vec![self.device.clone()], options).unwrap();
        let filesystem = self.engine.datasets().filesystem("tank/data").unwrap();
        let mut content = vec![0; FILE_BYTES];
        filesystem.read(object, 0, &mut [0; 1]).unwrap();
        let before = self.device.reads.load(SeqCst);
        for piece in content.chunks_mut(MIB).enumerate() {
            let read = filesystem.read(object, (piece.0 * MIB) as u64, piece.1).unwrap();
            assert_eq!(read, MIB);
        }
        (content, self.device.reads.load(SeqCst) - before)
    }

    fn live_bytes(&self) -> u64 {
        let space = self.engine.datasets().environment().store.space();
        space.tiers[0].live_bytes
    }
}

#[test]
fn room_and_order_come_back_after_random_writes() {
    let mut rig = Rig::new();
    let root = Context::root();
    let (object, mut content) = rig.scattered(&mut Random(42));
    rig.wait(60);
    let scattered = rig.live_bytes();
    let (shown, reads) = rig.read_in_order(object);
    assert!(shown == content);
    // What was noticed is not known any more; a write here and there is noticed again.
    let filesystem = rig.engine.datasets().filesystem("tank/data").unwrap();
    for region in 0..FILE_BYTES / MIB {
        let offset = region * MIB;
        content[offset..offset + 4096].fill(region as u8 + 1);
        let data = content[offset..offset + 4096].to_vec();
        filesystem
            .write(&root, object, offset as u64, &data, false)
            .unwrap();
    }
    drop(filesystem);
    rig.wait(600);
    let laid_out = rig.live_bytes();
    let (shown, reads_after) = rig.read_in_order(object);
    assert!(shown == content);
    println!("live bytes {scattered} -> {laid_out}, device reads {reads} -> {reads_after}");
    let file = FILE_BYTES as u64;
    assert!(scattered > file / 2 * 3, "{scattered} bytes");
    assert!(laid_out < file + file / 16, "{laid_out} bytes");
    assert!(reads > 500, "{reads} reads");
    assert!(
        reads_after * 8 < reads,
        "{reads_after} reads after it, {reads} before"
    );
}

#[test]
fn what_is_read_in_order_is_put_in_order_at_once() {
    let mut rig = Rig::new();
    let (object, content) = rig.scattered(&mut Random(43));
    let (shown, reads) = rig.read_in_order(object);
    assert!(shown == content);
    for _ in 0..6 {
        rig.clock.advance(1_000_000_000);
        rig.engine.tick().unwrap();
        rig.rest();
    }
    let jobs = rig.engine.jobs();
    let relayouts: Vec<_> = jobs.iter().filter(|job| job.kind == "relayout").collect();
    assert!(
        matches!(relayouts[..], [job] if job.state == "done"),
        "{relayouts:?}"
    );
    let (shown, reads_after) = rig.read_in_order(object);
    assert!(shown == content);
    println!("device reads {reads} -> {reads_after}");
    assert!(reads > 500, "{reads} reads");
    assert!(
        reads_after * 8 < reads,
        "{reads_after} reads after it, {reads} before"
    );
}
