//! Devices for tests: every write and flush is recorded, so that the state after a power cut at any moment can be
//! made; errors can be asked for.
#![allow(dead_code, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use terrace_device::{Cause, Device, DeviceError, MemoryDevice, Operation, Randomness, SeededRandomness};
use terrace_pool::{
    CreateOptions, LABEL_BYTES, Label, OpenOptions, Parallelism, Pool, PoolError, TierSettings,
};

pub const MIB: u64 = 1024 * 1024;

#[derive(Clone)]
pub enum Event {
    Write {
        device: usize,
        offset: u64,
        data: Vec<u8>,
    },
    Flush {
        device: usize,
    },
    /// Durable at once.
    Truncate {
        device: usize,
        size_bytes: u64,
    },
}

#[derive(Default)]
pub struct Journal {
    pub events: Mutex<Vec<Event>>,
    /// Labels that were to be written, whatever came of it.
    pub labels: Mutex<Vec<Label>>,
}

/// A device in RAM that records what is done to it and fails where it is told to.
pub struct Medium {
    pub index: usize,
    pub memory: Arc<MemoryDevice>,
    pub size_at_first: u64,
    pub name: String,
    pub journal: Arc<Journal>,
    /// Reads that fail before they work again.
    pub failing_reads: Mutex<u32>,
    pub failing_writes: Mutex<u32>,
    pub failing_flushes: Mutex<u32>,
    /// Readings of each of these offsets that fail before it can be read.
    pub unreadable: Mutex<Vec<(u64, u32)>>,
    /// Writes at or behind this offset fail.
    pub unwritable_from: Mutex<u64>,
    /// What happens meanwhile, once, before the next write.
    pub before_write: Mutex<Option<Happens>>,
}

pub type Happens = Box<dyn FnOnce() + Send>;

impl Medium {
    fn fails(&self, counter: &Mutex<u32>, operation: Operation) -> Result<(), DeviceError> {
        let mut left = counter.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Err(DeviceError::whole(&self.name, operation, Cause::System(5)));
        }
        Ok(())
    }
}

impl Device for Medium {
    fn path(&self) -> String {
        self.name.clone()
    }
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.fails(&self.failing_reads, Operation::Read)?;
        let mut unreadable = self.unreadable.lock().unwrap();
        let here = unreadable
            .iter_mut()
            .find(|(at, left)| *at == offset && *left > 0);
        if let Some((_, left)) = here {
            *left -= 1;
            return Err(DeviceError::whole(&self.name, Operation::Read, Cause::System(5)));
        }
        self.memory.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if data.len() == LABEL_BYTES {
            self.journal.labels.lock().unwrap().extend(Label::decode(data));
        }
        let happens = self.before_write.lock().unwrap().take();
        if let Some(happens) = happens {
            happens();
        }
        self.fails(&self.failing_writes, Operation::Write)?;
        if offset >= *self.unwritable_from.lock().unwrap() {
            return Err(DeviceError::whole(&self.name, Operation::Write, Cause::System(5)));
        }
        self.memory.write_at(offset, data)?;
        let event = Event::Write {
            device: self.index,
            offset,
            data: data.to_vec(),
        };
        self.journal.events.lock().unwrap().push(event);
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.fails(&self.failing_flushes, Operation::Flush)?;
        self.journal
            .events
            .lock()
            .unwrap()
            .push(Event::Flush { device: self.index });
        Ok(())
    }
    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        self.journal.events.lock().unwrap().push(Event::Truncate {
            device: self.index,
            size_bytes,
        });
        self.memory.truncate(size_bytes)
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.memory.discard(offset, length)
    }
}

/// A set of media that share one journal.
pub struct Shelf {
    pub journal: Arc<Journal>,
    pub media: Vec<Arc<Medium>>,
}

impl Shelf {
    pub fn new(sizes_mib: &[u64]) -> Self {
        let mut shelf = Self {
            journal: Arc::default(),
            media: Vec::new(),
        };
        for size in sizes_mib {
            shelf.add(*size);
        }
        shelf
    }

    pub fn add(&mut self, size_mib: u64) -> Arc<Medium> {
        let index = self.media.len();
        let memory = Arc::new(MemoryDevice::new("", size_mib * MIB));
        self.media.push(self.medium(index, memory));
        self.media[index].clone()
    }

    fn medium(&self, index: usize, memory: Arc<MemoryDevice>) -> Arc<Medium> {
        Arc::new(Medium {
            index,
            size_at_first: memory.size_bytes(),
            memory,
            name: format!("/medium/{index}"),
            journal: self.journal.clone(),
            failing_reads: Mutex::new(0),
            failing_writes: Mutex::new(0),
            failing_flushes: Mutex::new(0),
            unreadable: Mutex::default(),
            unwritable_from: Mutex::new(u64::MAX),
            before_write: Mutex::default(),
        })
    }

    pub fn devices(&self, indices: &[usize]) -> Vec<Arc<dyn Device>> {
        indices
            .iter()
            .map(|index| self.media[*index].clone() as Arc<dyn Device>)
            .collect()
    }

    pub fn all(&self) -> Vec<Arc<dyn Device>> {
        self.devices(&(0..self.media.len()).collect::<Vec<_>>())
    }

    /// Takes what lies in front of the segments and at the end for durable: where another power cut starts from.
    #[allow(dead_code)]
    pub fn remember(&self) {
        for medium in &self.media {
            for (offset, length) in [(0, MIB / 2), (medium.size_bytes() - MIB / 16, MIB / 16)] {
                let mut content = vec![0; length as usize];
                medium.read_at(offset, &mut content).unwrap();
                medium.write_at(offset, &content).unwrap();
            }
            medium.flush().unwrap();
        }
    }

    pub fn events(&self) -> usize {
        self.journal.events.lock().unwrap().len()
    }

    /// The media after a power cut just before event `cut`: flushed writes are there; of each later one the first
    /// part, the last part, all, none or a random choice of its sectors.
    pub fn after_power_cut(&self, cut: usize, seed: u64) -> Shelf {
        let random = SeededRandomness::new(seed);
        let events = self.journal.events.lock().unwrap();
        let after = Self {
            journal: Arc::default(),
            media: Vec::new(),
        };
        let mut after = after;
        for (index, medium) in self.media.iter().enumerate() {
            let memory = Arc::new(MemoryDevice::new(
                "",
                medium.size_at_first.max(medium.size_bytes()),
            ));
            let flushed = events[..cut]
                .iter()
                .rposition(|event| matches!(event, Event::Flush { device } if *device == index))
                .unwrap_or(0);
            for (at, event) in events[..cut].iter().enumerate() {
                let (device, offset, data) = match event {
                    Event::Write { device, offset, data } => (device, offset, data),
                    Event::Truncate { device, size_bytes } if *device == index => {
                        memory.truncate(*size_bytes).unwrap();
                        continue;
                    }
                    _ => continue,
                };
                if *device != index {
                    continue;
                }
                if at < flushed {
                    memory.write_at(*offset, data).unwrap();
                } else {
                    tear(&memory, *offset, data, &random);
                }
            }
            let medium = after.medium(index, memory);
            after.media.push(medium);
        }
        after
    }
}

fn tear(memory: &MemoryDevice, offset: u64, data: &[u8], random: &SeededRandomness) {
    let mut torn = vec![0; data.len()];
    memory.read_at(offset, &mut torn).unwrap();
    let sectors = data.len() / 512;
    let border = random.number() as usize % (sectors + 1);
    let way = random.number() % 5;
    for sector in 0..sectors {
        let kept = match way {
            0 => sector < border,
            1 => sector >= border,
            2 => true,
            3 => false,
            _ => random.number().is_multiple_of(2),
        };
        if kept {
            torn[sector * 512..][..512].copy_from_slice(&data[sector * 512..][..512]);
        }
    }
    memory.write_at(offset, &torn).unwrap();
}

pub fn create_options(name: &str, tiers: Vec<(&str, Vec<Arc<dyn Device>>)>) -> CreateOptions {
    CreateOptions {
        name: name.into(),
        tiers: tiers
            .into_iter()
            .map(|(name, devices)| (TierSettings::named(name), devices))
            .collect(),
        properties: BTreeMap::new(),
        segment_bytes: None,
        created_nanoseconds: 1_700_000_000_000_000_000,
        force: false,
        parallelism: Parallelism::Sequential,
    }
}

pub fn create(name: &str, seed: u64, tiers: Vec<(&str, Vec<Arc<dyn Device>>)>) -> Pool {
    Pool::create(create_options(name, tiers), &SeededRandomness::new(seed)).unwrap()
}

pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<Pool, PoolError> {
    Pool::open(devices, sequential())
}

pub fn sequential() -> OpenOptions {
    OpenOptions {
        parallelism: Parallelism::Sequential,
        ..OpenOptions::default()
    }
}

/// Devices may be missing.
pub fn degraded() -> OpenOptions {
    OpenOptions {
        degraded: true,
        ..sequential()
    }
}

/// Opened as the floors above do: the root, then what else the devices that were away must have before they count. (There is
/// no log here.)
pub fn settled(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Pool, PoolError> {
    let pool = Pool::open(devices, options)?;
    pool.read_root()?;
    pool.settle_roots()?;
    pool.take_back(&pool.returned())?;
    Ok(pool)
}

pub fn root_of(pool: &Pool) -> Vec<u8> {
    pool.read_root().unwrap().unwrap()
}
