//! `VolatileDevice`: a device whose unflushed writes are lost when its process dies. A test layer below the real
//! binary: with it, `kill -9` of a daemon is a power cut.
//!
//! Fault model: each 512-byte sector of each write goes to the inner device at once or is held in RAM until the next
//! flush, as the seeded generator decides; so after a kill any subset of what was not flushed is there, torn at
//! 512 bytes and in no order. Reads see everything that was written. A flush writes what is held, then flushes the
//! inner device. Chosen by the environment variable [`VOLATILE_VARIABLE`], whose value is the seed; for tests only.
//!
//! Invariant: what was written before a flush that returned `Ok` is on the inner device.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use terrace_sync::{Mutex, rank};

use crate::{DEVICE_BLOCK_BYTES, Device, DeviceError, Randomness, SeededRandomness};

/// Set to a number, every device that is opened for writing becomes volatile, seeded with it.
pub const VOLATILE_VARIABLE: &str = "TERRACE_TEST_VOLATILE_DEVICES";

const SECTOR_BYTES: usize = 512;

/// See the module.
pub struct VolatileDevice {
    inner: Arc<dyn Device>,
    held: Mutex<BTreeMap<u64, Box<[u8]>>, rank::device::Volatile>,
    randomness: SeededRandomness,
}

impl VolatileDevice {
    /// Lays the layer over `inner`.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        Self {
            inner,
            held: Mutex::new(BTreeMap::new()),
            randomness: SeededRandomness::new(seed),
        }
    }

    /// `device`, below the layer if the environment asks for it.
    pub fn if_asked(device: Arc<dyn Device>) -> Arc<dyn Device> {
        static SEED: OnceLock<Option<u64>> = OnceLock::new();
        match SEED.get_or_init(|| std::env::var(VOLATILE_VARIABLE).ok()?.parse().ok()) {
            Some(seed) => Arc::new(Self::new(device, *seed)),
            None => device,
        }
    }
}

impl Device for VolatileDevice {
    fn path(&self) -> String {
        self.inner.path()
    }

    fn stray(&self) -> Option<crate::Stray> {
        self.inner.stray()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_unit_bytes(&self) -> usize {
        self.inner.read_unit_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        // The lock is held across the read: a flush in between would let old content through.
        let held = self.held.lock();
        self.inner.read_at(offset, buffer)?;
        let block_bytes = DEVICE_BLOCK_BYTES as u64;
        let end = offset + buffer.len() as u64;
        for (at, block) in held.range(offset / block_bytes * block_bytes..end) {
            // Of the first and the last block a part may be asked for.
            let (from, to) = (offset.max(*at), end.min(at + block_bytes));
            buffer[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - at) as usize..(to - at) as usize]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut held = self.held.lock();
        // What reaches the media now: all, nothing, or each sector by itself.
        let mood = self.randomness.number() % 4;
        let mut through = data.to_vec();
        if mood == 0 {
            self.inner.read_at(offset, &mut through)?;
        } else if mood == 1 {
            let mut old = vec![0; data.len()];
            self.inner.read_at(offset, &mut old)?;
            for (sector, old) in through.chunks_mut(SECTOR_BYTES).zip(old.chunks(SECTOR_BYTES)) {
                if self.randomness.number() & 1 == 0 {
                    sector.copy_from_slice(old);
                }
            }
        }
        if mood != 0 {
            self.inner.write_at(offset, &through)?;
        }
        for (index, block) in data.chunks(DEVICE_BLOCK_BYTES).enumerate() {
            let at = offset + (index * DEVICE_BLOCK_BYTES) as u64;
            let range = index * DEVICE_BLOCK_BYTES..index * DEVICE_BLOCK_BYTES + block.len();
            if through[range] == *block {
                held.remove(&at);
            } else {
                held.insert(at, block.into());
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut held = self.held.lock();
        for (offset, block) in held.iter() {
            self.inner.write_at(*offset, block)?;
        }
        self.inner.flush()?;
        held.clear();
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let mut held = self.held.lock();
        held.retain(|at, _| *at < offset || *at >= offset + length);
        self.inner.discard(offset, length)
    }

    fn truncate(&self, size_bytes: u64) -> Result<bool, DeviceError> {
        let mut held = self.held.lock();
        held.retain(|at, _| *at < size_bytes);
        self.inner.truncate(size_bytes)
    }

    fn refresh_size(&self) -> Result<u64, DeviceError> {
        self.inner.refresh_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn unflushed_writes_may_be_lost_and_flushed_ones_are_not() {
        let (mut lost, mut kept) = (0, 0);
        for seed in 0..64 {
            let media: Arc<dyn Device> = Arc::new(MemoryDevice::new("media", 1 << 20));
            let device = VolatileDevice::new(media.clone(), seed);
            device.write_at(0, &[1; 8192]).unwrap();
            device.flush().unwrap();
            device.write_at(4096, &[2; 8192]).unwrap();
            let mut seen = [0; 12288];
            device.read_at(0, &mut seen).unwrap();
            assert!(
                seen[..4096] == [1; 4096] && seen[4096..] == [2; 8192],
                "reads see every write"
            );
            drop(device);
            media.read_at(0, &mut seen).unwrap();
            assert_eq!(seen[..4096], [1; 4096], "what was flushed is there");
            for sector in seen[4096..8192].chunks(512) {
                assert!(
                    sector == [1; 512] || sector == [2; 512],
                    "old or new, sector by sector"
                );
                if sector[0] == 1 { lost += 1 } else { kept += 1 }
            }
        }
        assert!(lost > 50 && kept > 50, "{lost} lost, {kept} kept");
    }
}
