//! A pool on devices in memory, full or nearly so, with nobody but the test driving the background; a volume with what it must
//! hold.

#![allow(clippy::unwrap_used, dead_code)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, Filesystem, FsError, NewDataset, ROOT, Volume};
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};
use terrace_store::Store;

pub const MIB: u64 = 1 << 20;
pub const BLOCK: u64 = 4096;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, length: u64) -> Vec<u8> {
        let words = (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(length as usize).collect()
    }
}

pub struct Rig {
    pub devices: Vec<Arc<MemoryDevice>>,
    pub clock: Arc<ManualClock>,
    pub engine: Arc<Engine>,
    pub random: Random,
    pub opened: u64,
}

impl Rig {
    /// A pool with one device in each tier.
    pub fn new(tiers_bytes: &[u64]) -> Self {
        let tiers: Vec<_> = tiers_bytes.iter().map(|bytes| (vec![*bytes], 1)).collect();
        Self::of(&tiers)
    }

    /// A pool with these devices in each tier, of which each keeps so many copies.
    pub fn of(tiers: &[(Vec<u64>, u8)]) -> Self {
        let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
        Self::with(tiers, OpenOptions::driven(clock.clone(), 1), clock)
    }

    /// The same with all threads of its own.
    pub fn threaded(tiers_bytes: &[u64]) -> Self {
        let options = OpenOptions {
            memory_bytes: Some(64 << 20),
            ..OpenOptions::default()
        };
        let tiers: Vec<_> = tiers_bytes.iter().map(|bytes| (vec![*bytes], 1)).collect();
        Self::with(&tiers, options, Arc::new(ManualClock::new(0)))
    }

    fn with(tiers: &[(Vec<u64>, u8)], options: OpenOptions, clock: Arc<ManualClock>) -> Self {
        let (mut devices, mut specs, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for (tier, (sizes, copies)) in tiers.iter().enumerate() {
            let own: Vec<_> = (devices.len()..)
                .zip(sizes)
                .map(|(number, bytes)| Arc::new(MemoryDevice::new(format!("/disk{number}"), *bytes)))
                .collect();
            specs.push(TierSpec {
                name: format!("tier{tier}"),
                devices: own.iter().map(|device| device.path().parse().unwrap()).collect(),
                copies: *copies,
            });
            given.push(
                own.iter()
                    .map(|device| device.clone() as Arc<dyn Device>)
                    .collect(),
            );
            devices.extend(own);
        }
        let spec = PoolSpec {
            name: "tank".into(),
            tiers: specs,
            ..PoolSpec::default()
        };
        let engine = Engine::create_on(&spec, given, options).unwrap();
        Self {
            devices,
            clock,
            engine,
            random: Random(0x9e37_79b9_7f4a_7c15),
            opened: 1,
        }
    }

    pub fn figures(&self) -> String {
        let space = self.engine.chunks().space();
        let own = self.engine.datasets().list(None).unwrap();
        let own: Vec<_> = own
            .iter()
            .map(|info| (&info.name, info.referenced_bytes, info.used_bytes))
            .collect();
        format!("{space:?} {own:?}")
    }

    pub fn tick(&self) {
        self.clock.advance(5_000_000_000);
        self.engine.tick().unwrap();
        for _ in 0..64 {
            self.engine.step().unwrap();
        }
    }

    /// Opens the pool again, after a clean stop or as after a kill: the devices keep what was written to them.
    pub fn reopen(&mut self, cleanly: bool) {
        if cleanly {
            self.engine.close().unwrap();
        }
        let copies: Vec<_> = self.devices.iter().map(|device| copy_of(device)).collect();
        self.devices = copies;
        self.opened += 1;
        let options = OpenOptions::driven(self.clock.clone(), self.opened);
        let devices = self
            .devices
            .iter()
            .map(|device| device.clone() as Arc<dyn Device>);
        self.engine = Engine::open(devices.collect(), options).unwrap();
    }

    pub fn thick(&self, name: &str, size_bytes: u64) -> Arc<Volume> {
        let new = NewDataset {
            volume_bytes: Some(size_bytes),
            properties: vec![("compression".into(), "off".into())],
            ..NewDataset::default()
        };
        self.engine.datasets().create(name, &new).unwrap();
        self.engine.datasets().volume(name).unwrap()
    }

    pub fn filesystem(&self, name: &str) -> Arc<Filesystem> {
        self.engine
            .datasets()
            .create(name, &NewDataset::default())
            .unwrap();
        self.engine.datasets().filesystem(name).unwrap()
    }

    /// Writes to a new file until there is no room; what it holds, bytes.
    pub fn fill(&mut self, filesystem: &Filesystem, name: &str) -> u64 {
        let root = Context::root();
        let object = match filesystem.create(&root, ROOT, name.as_bytes(), FileKind::File, 0o600, 0) {
            Ok(made) => made.object,
            Err(FsError::NoSpace | FsError::QuotaExceeded) => return 0,
            Err(error) => panic!("{error}"),
        };
        let (mut at, mut length) = (0, MIB);
        loop {
            let content = self.random.bytes(length);
            match filesystem.write(&root, object, at, &content, false) {
                Ok(_) => at += length,
                Err(FsError::NoSpace | FsError::QuotaExceeded) if length > BLOCK => length /= 4,
                Err(FsError::NoSpace | FsError::QuotaExceeded) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let _ = filesystem.sync();
        at
    }

    pub fn is_room_for(&mut self, filesystem: &Filesystem, name: &str, length: u64) -> Result<(), FsError> {
        let root = Context::root();
        let made = filesystem.create(&root, ROOT, name.as_bytes(), FileKind::File, 0o600, 0)?;
        for piece in 0..length / MIB {
            let content = self.random.bytes(MIB);
            filesystem.write(&root, made.object, piece * MIB, &content, false)?;
        }
        filesystem.sync()
    }
}

pub fn copy_of(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let copy = MemoryDevice::new(device.path(), device.size_bytes());
    let mut piece = terrace_device::AlignedBuffer::zeroed(MIB as usize);
    for offset in (0..device.size_bytes()).step_by(MIB as usize) {
        let length = (device.size_bytes() - offset).min(MIB) as usize;
        device.read_at(offset, &mut piece[..length]).unwrap();
        copy.write_at(offset, &piece[..length]).unwrap();
    }
    Arc::new(copy)
}

/// A volume with what it must hold.
pub struct Modelled {
    pub volume: Arc<Volume>,
    pub model: Vec<u8>,
}

impl Modelled {
    pub fn new(volume: Arc<Volume>) -> Self {
        let model = vec![0; volume.size_bytes() as usize];
        Self { volume, model }
    }

    pub fn write(&mut self, random: &mut Random, offset: u64, length: u64) -> Result<(), FsError> {
        let content = random.bytes(length);
        self.volume.write(offset, &content)?;
        self.model[offset as usize..(offset + length) as usize].copy_from_slice(&content);
        Ok(())
    }

    pub fn write_all(&mut self, random: &mut Random) {
        for offset in (0..self.model.len() as u64).step_by(128 << 10) {
            self.write(random, offset, 128 << 10)
                .unwrap_or_else(|error| panic!("at {} KiB: {error}", offset >> 10));
        }
        self.volume.flush().unwrap();
    }

    /// Blocks at random, with a flush every now and then; what was refused.
    pub fn scatter(&mut self, rig: &mut Rig, blocks: u64) {
        for count in 0..blocks {
            let block = rig.random.below(self.model.len() as u64 / BLOCK);
            self.write(&mut rig.random, block * BLOCK, BLOCK)
                .unwrap_or_else(|error| panic!("write {count} of {blocks}: {error}: {}", rig.figures()));
            if count % 61 == 60 {
                self.volume.flush().unwrap();
            }
            if count % 997 == 996 {
                rig.tick();
            }
        }
        self.volume.flush().unwrap();
    }

    pub fn verify(&self) {
        let mut piece = vec![0; MIB as usize];
        for offset in (0..self.model.len()).step_by(MIB as usize) {
            let length = (self.model.len() - offset).min(MIB as usize);
            self.volume.read(offset as u64, &mut piece[..length]).unwrap();
            assert!(
                piece[..length] == self.model[offset..offset + length],
                "at {offset}"
            );
        }
    }
}
