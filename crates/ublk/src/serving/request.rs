//! One request of the kernel: what it asks for, checked, and done.
//!
//! Invariants: no more than the tag's memory is touched, whatever a descriptor claims; a change is noted as unflushed
//! before it is answered; nothing that was answered is durable by an answer alone unless it was asked to be.

use std::sync::Arc;

use terrace_dataset::{BlockDevice, BlockRead, Durability, FsError};
use terrace_device::ServedRequest;

use super::{unflushed::Unflushed, write_back::Bell};
use crate::kernel::{
    Descriptor, FLAG_FUA, OPERATION_DISCARD, OPERATION_FLUSH, OPERATION_READ, OPERATION_WRITE,
    OPERATION_WRITE_ZEROES, SECTOR_BYTES,
};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Fills the tag's memory.
    Read,
    /// Writes what is in it.
    Write,
    /// Makes durable what was answered.
    Flush,
    /// Frees a range.
    Discard,
    /// Makes a range read as zeroes.
    WriteZeroes,
}

impl Operation {
    /// What the operation with this number, in the order above, is called.
    fn name(number: u32) -> &'static str {
        let names = ["READ", "WRITE", "FLUSH", "DISCARD", "WRITE_ZEROES"];
        names.get(number as usize).copied().unwrap_or("unknown")
    }
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What.
    pub operation: Operation,
    /// Where, bytes.
    pub offset: u64,
    /// How much, bytes.
    pub length: u64,
    /// Durable when it is answered.
    pub fua: bool,
}

impl Request {
    /// Of its descriptor, with `buffer_bytes` for its data; an error number if it makes no sense.
    pub fn decode(descriptor: Descriptor, buffer_bytes: usize) -> Result<Self, i32> {
        let operation = match descriptor.operation_and_flags & 0xFF {
            OPERATION_READ => Operation::Read,
            OPERATION_WRITE => Operation::Write,
            OPERATION_FLUSH => Operation::Flush,
            OPERATION_DISCARD => Operation::Discard,
            OPERATION_WRITE_ZEROES => Operation::WriteZeroes,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let length = u64::from(descriptor.sectors) * SECTOR_BYTES;
        if matches!(operation, Operation::Read | Operation::Write) && length > buffer_bytes as u64 {
            return Err(libc::EIO);
        }
        let offset = match operation {
            // It is everywhere: the kernel says that it begins at sector -1.
            Operation::Flush => 0,
            _ => descriptor
                .first_sector
                .checked_mul(SECTOR_BYTES)
                .ok_or(libc::EIO)?,
        };
        Ok(Self {
            operation,
            offset,
            length,
            fua: descriptor.operation_and_flags & FLAG_FUA != 0,
        })
    }
}

/// A disk and what is noted of it.
pub struct Service {
    /// What is served.
    pub disk: Arc<dyn BlockDevice>,
    /// Whether the death of the process would lose something.
    pub unflushed: Unflushed,
    /// Rings when something is written.
    pub written: Bell,
}

impl Service {
    /// Does what `request` asks for; `buffer` is its tag's memory. What the kernel is told: bytes, or a negative error
    /// number.
    pub fn serve(&self, request: &Request, buffer: &mut [u8]) -> i32 {
        let _serving = ServedRequest::begin("ublk", request.operation as u32, Operation::name);
        match self.perform(request, buffer) {
            Ok(()) if matches!(request.operation, Operation::Read | Operation::Write) => {
                request.length as i32
            }
            Ok(()) => 0,
            Err(error) => refusal(&error),
        }
    }

    /// Does several reads at once, so that what they want of the storage is asked for together.
    pub fn serve_reads(&self, reads: &mut [(Request, &mut [u8])]) -> Vec<i32> {
        let _serving = ServedRequest::begin("ublk", Operation::Read as u32, Operation::name);
        let mut asked: Vec<BlockRead<'_>> = reads
            .iter_mut()
            .map(|(request, buffer)| BlockRead::new(request.offset, &mut buffer[..request.length as usize]))
            .collect();
        self.disk.read_many(&mut asked);
        let results = asked.iter().map(|read| match &read.outcome {
            Ok(()) => read.buffer.len() as i32,
            Err(error) => refusal(error),
        });
        results.collect()
    }

    /// Flushes what is unflushed, for the device that is to go on after this process; see [`WriteBack`](crate::serving::write_back::WriteBack).
    pub fn rest(&self) {
        if self.unflushed.is_clean() {
            return;
        }
        if let Err(error) = self.flush() {
            tracing::error!("ublk: a volume failed: {error}");
        }
    }

    fn perform(&self, request: &Request, buffer: &mut [u8]) -> Result<(), FsError> {
        let Request {
            operation,
            offset,
            length,
            fua,
        } = *request;
        match operation {
            Operation::Read => return self.disk.read(offset, &mut buffer[..length as usize]),
            Operation::Write => self.disk.write(offset, &buffer[..length as usize])?,
            Operation::Flush => return self.flush(),
            Operation::Discard => self.disk.discard(offset, length)?,
            Operation::WriteZeroes => self.disk.write_zeroes(offset, length)?,
        }
        if self.disk.durability() != Durability::Sync {
            self.unflushed.changed();
            self.written.ring();
        }
        if fua { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), FsError> {
        let before = self.unflushed.before_flush();
        self.disk.flush()?;
        // With 'timed' and 'ram' a flush promises nothing, and what it did not keep stays noted.
        if matches!(self.disk.durability(), Durability::Barrier | Durability::Sync) {
            self.unflushed.flushed(before);
        }
        Ok(())
    }
}

fn refusal(error: &FsError) -> i32 {
    match error {
        FsError::ReadOnly | FsError::Invalid | FsError::NoSpace | FsError::QuotaExceeded => {}
        error => tracing::error!("ublk: a volume failed: {error}"),
    }
    match error {
        // The block layer knows no quotas.
        FsError::QuotaExceeded => -libc::ENOSPC,
        error => -error.errno(),
    }
}

#[cfg(test)]
pub mod tests {
    use parking_lot::Mutex;
    use terrace_dataset::BlockStatus;

    use super::*;

    /// A disk in memory that counts flushes.
    pub struct Disk {
        pub content: Mutex<Vec<u8>>,
        pub flushes: Mutex<u32>,
        pub block_bytes: u32,
        pub read_only: bool,
        pub durability: Durability,
        pub fail_flushes: bool,
    }

    impl Disk {
        pub fn new(size_bytes: usize, block_bytes: u32) -> Self {
            Self {
                content: Mutex::new(vec![0; size_bytes]),
                flushes: Mutex::new(0),
                block_bytes,
                read_only: false,
                durability: Durability::Barrier,
                fail_flushes: false,
            }
        }

        fn with<R>(
            &self,
            offset: u64,
            length: usize,
            act: impl FnOnce(&mut [u8]) -> R,
        ) -> Result<R, FsError> {
            let mut content = self.content.lock();
            let end = (offset as usize).checked_add(length).ok_or(FsError::Invalid)?;
            content
                .get_mut(offset as usize..end)
                .map(act)
                .ok_or(FsError::Invalid)
        }
    }

    impl BlockDevice for Disk {
        fn size_bytes(&self) -> u64 {
            self.content.lock().len() as u64
        }
        fn block_bytes(&self) -> u32 {
            self.block_bytes
        }
        fn read_only(&self) -> bool {
            self.read_only
        }
        fn durability(&self) -> Durability {
            self.durability
        }
        fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
            self.with(offset, buffer.len(), |content| buffer.copy_from_slice(content))
        }
        fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
            self.with(offset, data.len(), |content| content.copy_from_slice(data))
        }
        fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
            self.with(offset, length as usize, |content| content.fill(0))
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
            self.write_zeroes(offset, length)
        }
        fn flush(&self) -> Result<(), FsError> {
            *self.flushes.lock() += 1;
            if self.fail_flushes {
                Err(FsError::Io("no".into()))
            } else {
                Ok(())
            }
        }
        fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
            Ok(Vec::new())
        }
    }

    pub fn service(disk: Disk) -> (Arc<Service>, Arc<Disk>, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let unflushed = Unflushed::create(&directory.path().join("mark"), 1).unwrap();
        let disk = Arc::new(disk);
        let service = Service {
            disk: disk.clone(),
            unflushed,
            written: Bell::default(),
        };
        (Arc::new(service), disk, directory)
    }

    fn descriptor(operation_and_flags: u32, first_sector: u64, sectors: u32) -> Descriptor {
        Descriptor {
            operation_and_flags,
            sectors,
            first_sector,
        }
    }

    fn ask(service: &Service, descriptor: Descriptor, buffer: &mut [u8]) -> i32 {
        match Request::decode(descriptor, buffer.len()) {
            Ok(request) => service.serve(&request, buffer),
            Err(error) => -error,
        }
    }

    #[test]
    fn sectors_become_bytes_and_nonsense_an_error() {
        let request = Request::decode(descriptor(OPERATION_WRITE | FLAG_FUA | 1 << 8, 3, 8), 4096).unwrap();
        assert_eq!(
            (request.operation, request.offset, request.length),
            (Operation::Write, 1536, 4096)
        );
        assert!(request.fua);
        assert!(
            !Request::decode(descriptor(OPERATION_WRITE, 3, 8), 4096)
                .unwrap()
                .fua
        );
        // More data than the tag has memory; a place that no disk has; an operation of zoned disks.
        assert_eq!(
            Request::decode(descriptor(OPERATION_READ, 0, 9), 4096),
            Err(libc::EIO)
        );
        assert_eq!(
            Request::decode(descriptor(OPERATION_READ, u64::MAX, 1), 4096),
            Err(libc::EIO)
        );
        assert_eq!(Request::decode(descriptor(13, 0, 1), 4096), Err(libc::EOPNOTSUPP));
        // A discard has no data.
        let request = Request::decode(descriptor(OPERATION_DISCARD, 8, u32::MAX), 0).unwrap();
        assert_eq!(request.length, u64::from(u32::MAX) * 512);
    }

    #[test]
    fn each_operation_does_what_it_says() {
        let (service, disk, _directory) = service(Disk::new(1 << 20, 512));
        let mut buffer = vec![7; 4096];
        assert_eq!(
            ask(&service, descriptor(OPERATION_WRITE, 8, 8), &mut buffer),
            4096
        );
        buffer.fill(0);
        assert_eq!(ask(&service, descriptor(OPERATION_READ, 8, 1), &mut buffer), 512);
        assert_eq!((buffer[511], buffer[512]), (7, 0));
        assert_eq!(
            ask(&service, descriptor(OPERATION_WRITE_ZEROES, 8, 1), &mut buffer),
            0
        );
        assert_eq!(ask(&service, descriptor(OPERATION_DISCARD, 9, 1), &mut buffer), 0);
        assert_eq!(
            disk.content.lock()[4096..8192],
            [vec![0; 1024], vec![7; 3072]].concat()
        );
        assert_eq!(
            ask(&service, descriptor(OPERATION_FLUSH, u64::MAX, 0), &mut buffer),
            0
        );
        assert_eq!(*disk.flushes.lock(), 1);
        // Behind the end.
        let behind = descriptor(OPERATION_READ, 2048, 1);
        assert_eq!(ask(&service, behind, &mut buffer), -libc::EINVAL);
    }

    #[test]
    fn reads_that_come_together_are_answered_each_for_itself() {
        let (service, disk, _directory) = service(Disk::new(8192, 512));
        disk.content.lock()[512..1024].fill(3);
        let (mut one, mut two) = ([0; 1024], [0; 1024]);
        let request =
            |first_sector| Request::decode(descriptor(OPERATION_READ, first_sector, 1), 1024).unwrap();
        let mut reads = [(request(1), &mut one[..]), (request(99), &mut two[..])];
        assert_eq!(service.serve_reads(&mut reads), [512, -libc::EINVAL]);
        assert_eq!((one[511], one[512]), (3, 0));
    }

    #[test]
    fn a_change_is_unflushed_until_a_flush_or_fua() {
        let (service, disk, _directory) = service(Disk::new(1 << 20, 512));
        let mut buffer = vec![7; 512];
        for operation in [OPERATION_WRITE, OPERATION_WRITE_ZEROES, OPERATION_DISCARD] {
            assert!(ask(&service, descriptor(operation, 0, 1), &mut buffer) >= 0);
            assert!(!service.unflushed.is_clean());
            assert_eq!(
                ask(&service, descriptor(OPERATION_FLUSH, u64::MAX, 0), &mut buffer),
                0
            );
            assert!(service.unflushed.is_clean());
        }
        let flushes = *disk.flushes.lock();
        assert_eq!(
            ask(
                &service,
                descriptor(OPERATION_WRITE | FLAG_FUA, 0, 1),
                &mut buffer
            ),
            512
        );
        assert_eq!(*disk.flushes.lock(), flushes + 1, "FUA reaches the log");
        assert!(service.unflushed.is_clean());
        // A write that was refused changed nothing, and a read never does.
        assert!(ask(&service, descriptor(OPERATION_WRITE, 1 << 40, 1), &mut buffer) < 0);
        assert_eq!(ask(&service, descriptor(OPERATION_READ, 0, 1), &mut buffer), 512);
        assert!(service.unflushed.is_clean());
    }

    #[test]
    fn a_flush_that_keeps_nothing_leaves_the_note() {
        for (durability, clean) in [
            (Durability::Ram, false),
            (Durability::Timed, false),
            (Durability::Barrier, true),
            (Durability::Sync, true),
        ] {
            let mut disk = Disk::new(4096, 512);
            disk.durability = durability;
            let (service, _, _directory) = service(disk);
            let mut buffer = vec![7; 512];
            assert_eq!(ask(&service, descriptor(OPERATION_WRITE, 0, 1), &mut buffer), 512);
            assert_eq!(
                service.unflushed.is_clean(),
                durability == Durability::Sync,
                "{durability:?}"
            );
            assert_eq!(
                ask(&service, descriptor(OPERATION_FLUSH, u64::MAX, 0), &mut buffer),
                0
            );
            assert_eq!(service.unflushed.is_clean(), clean, "{durability:?}");
        }
        let mut disk = Disk::new(4096, 512);
        disk.fail_flushes = true;
        let (service, _, _directory) = service(disk);
        let fua = descriptor(OPERATION_WRITE | FLAG_FUA, 0, 1);
        assert_eq!(ask(&service, fua, &mut [7; 512]), -libc::EIO);
        assert!(!service.unflushed.is_clean());
    }
}
