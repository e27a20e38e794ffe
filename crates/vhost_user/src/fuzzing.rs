//! Requests of a guest: what must hold of any bytes in its memory. The harness of the tests (`hostile_bytes.rs`) and the
//! coverage-guided targets (`fuzz/`) call the same function.
//!
//! Invariant: a function panics only where something is wrong with the server.

use parking_lot::Mutex;
use terrace_dataset::{BlockDevice, BlockStatus, FsError};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::request::serve;

/// Descriptors of the queue.
pub const DESCRIPTORS: u16 = 16;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Where the guest's data begins: what lies behind the descriptors in the input.
pub const DATA_AT: u64 = 0x2000;
const AVAILABLE_AT: u64 = 0x1000;
const USED_AT: u64 = 0x1800;
const MEMORY_BYTES: usize = 256 << 10;
const DISK_BYTES: usize = 64 << 10;

/// The table of descriptors, of which the first is asked for, and the data that they lead to: the request is done or
/// refused, and no more is said to be written than the guest has memory.
pub fn request(bytes: &[u8]) {
    let (table, data) = bytes.split_at(bytes.len().min(usize::from(DESCRIPTORS) * DESCRIPTOR_BYTES));
    let data = &data[..data.len().min(MEMORY_BYTES - DATA_AT as usize)];
    let memory =
        GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).expect("memory of a guest");
    memory.write_slice(table, GuestAddress(0)).expect("fits");
    memory.write_slice(data, GuestAddress(DATA_AT)).expect("fits");
    // Its flags, its index: one request, which begins with descriptor 0.
    let available = [0_u16, 1, 0].map(u16::to_le_bytes).concat();
    memory
        .write_slice(&available, GuestAddress(AVAILABLE_AT))
        .expect("fits");
    let mut queue = Queue::new(DESCRIPTORS).expect("a queue");
    queue.set_desc_table_address(Some(0), Some(0));
    queue.set_avail_ring_address(Some(AVAILABLE_AT as u32), Some(0));
    queue.set_used_ring_address(Some(USED_AT as u32), Some(0));
    queue.set_ready(true);
    let disk = Disk(Mutex::new(vec![0; DISK_BYTES]));
    let mut buffer = Vec::new();
    let chains: Vec<_> = queue.iter(&memory).map(Iterator::collect).unwrap_or_default();
    for (at, chain) in chains.into_iter().enumerate() {
        let written = serve(&disk, chain, "a volume", at % 2 == 0, &mut buffer);
        assert!(written as usize <= usize::from(DESCRIPTORS) * MEMORY_BYTES);
        assert!(buffer.len() <= crate::request::PIECE_BYTES);
    }
}

/// A disk in RAM.
struct Disk(Mutex<Vec<u8>>);

impl Disk {
    fn with(&self, offset: u64, length: u64, act: impl FnOnce(&mut [u8])) -> Result<(), FsError> {
        let mut content = self.0.lock();
        let end = offset.checked_add(length).expect("looked at before");
        act(content
            .get_mut(offset as usize..end as usize)
            .expect("nothing beyond the end gets here"));
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
