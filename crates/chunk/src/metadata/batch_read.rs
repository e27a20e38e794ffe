//! Many reads of metadata at once: those of one device are under way together.
//!
//! Invariants: each has an outcome of its own; one that fails on the first copy is read from the other one, as a single read
//! would be; nothing here knows the sums of tables, which the tree compares.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;
use terrace_device::AlignedBuffer;
use terrace_log::Copies;
use terrace_meta::{ExtentError, ExtentRead};
use terrace_pool::{PoolError, SegmentId, SegmentRead};

use super::storage::{BLOCK, MetaStorage, extent_error, no_copy};

/// One of several reads of a device.
struct Piece {
    /// Its number among the reads that were asked for.
    number: usize,
    segment: SegmentId,
    /// The whole blocks of the segment that hold it, bytes.
    blocks: Range<usize>,
    /// Where it starts in these, bytes.
    skip: usize,
    length: usize,
}

impl Piece {
    fn new(number: usize, segment: SegmentId, at: u32, length: u32) -> Self {
        let (at, length, block) = (at as usize, length as usize, BLOCK as usize);
        let start = at / block * block;
        Self {
            number,
            segment,
            blocks: start..(at + length).next_multiple_of(block),
            skip: at - start,
            length,
        }
    }
}

impl MetaStorage {
    /// Several reads, each from the first copy that can be read.
    pub(crate) fn read_at_once(&self, reads: &[ExtentRead]) -> Vec<Result<Bytes, ExtentError>> {
        let places: Vec<Result<(Copies, u32), ExtentError>> = reads
            .iter()
            .map(|read| {
                let (copies, at) = self.copies(read.extent, read.offset, read.length)?;
                Ok((self.fastest_first(copies), at))
            })
            .collect();
        let mut pieces: BTreeMap<u16, Vec<Piece>> = BTreeMap::new();
        for (number, (place, read)) in places.iter().zip(reads).enumerate() {
            if let Ok((copies, at)) = place
                && let Some(segment) = copies.iter().next()
            {
                let piece = Piece::new(number, segment, *at, read.length);
                pieces.entry(segment.device).or_default().push(piece);
            }
        }
        let mut first: Vec<Option<Result<Bytes, ExtentError>>> = vec![None; reads.len()];
        for (device, pieces) in pieces {
            self.read_pieces(device, &pieces, &mut first);
        }
        let all = places.into_iter().zip(reads).zip(first);
        all.map(|((place, read), first)| {
            let (copies, at) = place?;
            let found = match first {
                Some(Err(failure)) => self.read_any(copies.iter().skip(1), at, read.length, failure),
                Some(Ok(bytes)) => Ok(bytes),
                None => Err(no_copy(read.extent)),
            };
            let kept = || self.kept_content(read.extent, read.offset, read.length);
            found.or_else(|error| kept().ok_or(error))
        })
        .collect()
    }

    /// Reads from one device at once; the outcome of each goes to its place among all.
    fn read_pieces(&self, device: u16, pieces: &[Piece], to: &mut [Option<Result<Bytes, ExtentError>>]) {
        let mut buffer = AlignedBuffer::zeroed(pieces.iter().map(|piece| piece.blocks.len()).sum());
        let mut rest = &mut buffer[..];
        let mut reads = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (mine, others) = rest.split_at_mut(piece.blocks.len());
            reads.push(SegmentRead::new(piece.segment, piece.blocks.start as u64, mine));
            rest = others;
        }
        self.pool.read_many(device, &mut reads);
        let outcomes: Vec<Result<(), PoolError>> = reads.into_iter().map(|read| read.outcome).collect();
        let all = Bytes::from_owner(buffer);
        let mut start = 0;
        for (piece, outcome) in pieces.iter().zip(outcomes) {
            let bytes = all.slice(start + piece.skip..start + piece.skip + piece.length);
            to[piece.number] = Some(outcome.map(|()| bytes).map_err(extent_error));
            start += piece.blocks.len();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use terrace_device::{
        Cause, Device, DeviceError, MemoryDevice, Operation, ReadRequest, SeededRandomness,
    };
    use terrace_meta::{Extent, ExtentStorage};
    use terrace_pool::{CreateOptions, Parallelism, Pool, TierSettings};
    use terrace_sync::{Mutex, rank};

    use super::*;

    /// Counts the reads of each call for many, and fails on request.
    struct Watched {
        inner: MemoryDevice,
        fails: AtomicBool,
        together: Mutex<Vec<usize>, rank::Leaf>,
    }

    impl Device for Watched {
        fn path(&self) -> String {
            self.inner.path()
        }
        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            if self.fails.load(Ordering::SeqCst) {
                return Err(DeviceError::whole(self.path(), Operation::Read, Cause::Short));
            }
            self.inner.read_at(offset, buffer)
        }
        fn read_many(&self, reads: &mut [ReadRequest<'_>]) {
            self.together.lock().push(reads.len());
            for read in reads {
                read.outcome = self.read_at(read.offset, read.buffer);
            }
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.inner.write_at(offset, data)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            self.inner.flush()
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
            self.inner.discard(offset, length)
        }
    }

    #[test]
    fn many_reads_are_one_call_and_each_falls_back_to_the_other_copy() {
        let devices: Vec<Arc<Watched>> = (0..2)
            .map(|number| {
                Arc::new(Watched {
                    inner: MemoryDevice::new(format!("d{number}"), 16 << 20),
                    fails: AtomicBool::new(false),
                    together: Mutex::default(),
                })
            })
            .collect();
        let all = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
        let options = CreateOptions {
            name: "tank".into(),
            tiers: vec![(TierSettings::named("only"), all.collect())],
            properties: BTreeMap::new(),
            segment_bytes: Some(1 << 20),
            created_nanoseconds: 0,
            force: false,
            parallelism: Parallelism::Sequential,
        };
        let pool = Pool::create(options, &SeededRandomness::new(7)).unwrap();
        let storage = MetaStorage::new(Arc::new(pool));
        let contents: Vec<Vec<u8>> = [10_000usize, 300, 70_001]
            .into_iter()
            .map(|length| (0..length).map(|at| (at * 7 + length) as u8).collect())
            .collect();
        let extents: Vec<Extent> = contents
            .iter()
            .map(|content| storage.write(content).unwrap())
            .collect();
        let read = |extent: usize, offset, length| ExtentRead {
            extent: extents[extent],
            offset,
            length,
        };
        let reads = [
            read(2, 4095, 2),
            read(0, 0, 10_000),
            read(1, 299, 1),
            read(1, 299, 2),
            read(2, 12_288, 57_713),
        ];
        let nowhere = ExtentRead {
            extent: Extent {
                location: 99 << 32,
                bytes: 10,
            },
            offset: 0,
            length: 10,
        };
        let check = || {
            let found = storage.read_many(&[&reads[..], &[nowhere]].concat());
            for (number, from) in [(0, 2), (1, 0), (2, 1), (4, 2)] {
                let ExtentRead { offset, length, .. } = reads[number];
                let (from, to) = (&contents[from], (offset + length) as usize);
                assert_eq!(found[number].as_deref().unwrap(), &from[offset as usize..to]);
            }
            assert!(found[3].is_err(), "beyond its end");
            assert!(found[5].is_err(), "in no segment");
            let calls = |device: &Arc<Watched>| std::mem::take(&mut *device.together.lock());
            devices.iter().flat_map(calls).collect::<Vec<usize>>()
        };
        assert_eq!(check(), [4], "one device has the first copies");
        for device in &devices {
            device.fails.store(true, Ordering::SeqCst);
            assert_eq!(check(), [4]);
            device.fails.store(false, Ordering::SeqCst);
        }
        devices
            .iter()
            .for_each(|device| device.fails.store(true, Ordering::SeqCst));
        assert!(storage.read_many(&reads).iter().all(Result::is_err));
    }
}
