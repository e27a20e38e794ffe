//! Requests of the kernel: what must hold of any bytes. The harness of the tests (`hostile_bytes.rs`) and the
//! coverage-guided targets (`fuzz/`) call the same function.
//!
//! Invariant: a function panics only where something is wrong with the server.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use terrace_dataset::{BlockDevice, BlockStatus, FsError};

use crate::{
    kernel::Descriptor,
    serving::{Bell, Operation, Request, Service, Unflushed},
};

/// What a descriptor takes, as far as it is looked at.
const BYTES: usize = 16;
/// A tag's memory, bytes.
const BUFFER_BYTES: usize = 16 << 10;
const DISK_BYTES: usize = 64 << 10;

/// Descriptors, one behind the other: each is done or refused, and touches no more than its tag's memory and the disk.
pub fn request(bytes: &[u8]) {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    let service = SERVICE.get_or_init(|| Service {
        disk: Arc::new(Disk(Mutex::new(vec![0; DISK_BYTES]))),
        unflushed: unflushed(),
        written: Bell::default(),
    });
    let mut buffer = vec![7; BUFFER_BYTES];
    for descriptor in bytes.chunks_exact(BYTES) {
        let descriptor: &[u8; BYTES] = descriptor.try_into().expect("as many");
        let Ok(request) = Request::decode(Descriptor::decode(descriptor), BUFFER_BYTES) else {
            continue;
        };
        let answer = service.serve(&request, &mut buffer);
        let moves = matches!(request.operation, Operation::Read | Operation::Write);
        match answer {
            0.. if moves => assert_eq!(answer as u64, request.length),
            0.. => assert_eq!(answer, 0),
            // What a panic is answered with.
            _ => assert!(answer != -libc::EIO, "{request:?}"),
        }
    }
}

/// The mark of what is unflushed, in a file that has no name.
fn unflushed() -> Unflushed {
    let path = std::env::temp_dir().join(format!("terrace-fuzz-ublk-{}", std::process::id()));
    let mark = Unflushed::create(&path, 1).expect("a file for the mark");
    std::fs::remove_file(path).expect("it was just made");
    mark
}

/// A disk in RAM.
struct Disk(Mutex<Vec<u8>>);

impl Disk {
    fn with(&self, offset: u64, length: u64, act: impl FnOnce(&mut [u8])) -> Result<(), FsError> {
        let end = offset.checked_add(length).ok_or(FsError::Invalid)?;
        let mut content = self.0.lock();
        let place = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        let (from, to) = place.ok_or(FsError::Invalid)?;
        act(content.get_mut(from..to).ok_or(FsError::Invalid)?);
        Ok(())
    }
}

impl BlockDevice for Disk {
    fn size_bytes(&self) -> u64 {
        DISK_BYTES as u64
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        self.with(offset, buffer.len() as u64, |content| {
            buffer.copy_from_slice(content)
        })
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.with(offset, data.len() as u64, |content| content.copy_from_slice(data))
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.with(offset, length, |content| content.fill(0))
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.write_zeroes(offset, length)
    }
    fn flush(&self) -> Result<(), FsError> {
        Ok(())
    }
    fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
        Ok(Vec::new())
    }
}
