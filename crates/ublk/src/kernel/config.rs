//! What kind of disk a device is: `struct ublk_params`, and how many requests it takes at once.
//!
//! Invariant: always [`PARAMETER_BYTES`] long; no field that a kernel of 6.1 would not know.

use std::thread;

use terrace_dataset::BlockDevice;

use super::protocol::SECTOR_BYTES;

/// Length of what is told: header, `ublk_param_basic`, `ublk_param_discard`.
pub const PARAMETER_BYTES: usize = 60;
/// Most data of one request, bytes; longer ones are split by the kernel.
pub const BUFFER_BYTES: u32 = 256 << 10;
/// Requests of a queue that may be under way.
pub const DEPTH: u16 = 32;
/// Most queues: with the two figures above, at most 32 MiB of memory for a device that is very busy.
const QUEUES_MAX: usize = 4;
/// Most sectors of one discard or write of zeroes: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;

const TYPE_BASIC: u32 = 1;
const TYPE_DISCARD: u32 = 2;
const READ_ONLY: u32 = 1;
const VOLATILE_CACHE: u32 = 4;
const FUA: u32 = 8;

/// A queue for each processor, up to a bound.
pub fn queues() -> u16 {
    thread::available_parallelism().map_or(1, |count| count.get().min(QUEUES_MAX)) as u16
}

/// Sectors of a disk of that size.
pub fn sectors(size_bytes: u64) -> u64 {
    size_bytes / SECTOR_BYTES
}

/// Of a disk whose requests hold at most `buffer_bytes` of data.
pub fn parameters(disk: &dyn BlockDevice, buffer_bytes: u32) -> [u8; PARAMETER_BYTES] {
    let mut bytes = [0; PARAMETER_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    // A device that is made so cannot be written later either.
    let read_only = disk.stays_read_only();
    // A cache is said to be there: otherwise Linux sends no flushes.
    let attributes = VOLATILE_CACHE | FUA | if read_only { READ_ONLY } else { 0 };
    let types = TYPE_BASIC | if read_only { 0 } else { TYPE_DISCARD };
    let logical = disk.block_bytes().clamp(512, 4096).ilog2() as u8;
    put(0, &(PARAMETER_BYTES as u32).to_ne_bytes());
    put(4, &types.to_ne_bytes());
    put(8, &attributes.to_ne_bytes());
    // Logical block, physical block, best and least unit: 4 KiB is the unit that is mapped.
    put(12, &[logical, 12, 12, 12]);
    put(16, &(buffer_bytes / SECTOR_BYTES as u32).to_ne_bytes());
    put(24, &sectors(disk.size_bytes()).to_ne_bytes());
    put(44, &4096_u32.to_ne_bytes());
    put(48, &RANGE_SECTORS_MAX.to_ne_bytes());
    put(52, &RANGE_SECTORS_MAX.to_ne_bytes());
    put(56, &1_u16.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::tests::Disk;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn a_disk_for_writing_has_a_cache_and_takes_discards() {
        let disk = Disk::new(1 << 20, 512);
        let bytes = parameters(&disk, BUFFER_BYTES);
        assert_eq!((word(&bytes, 0), word(&bytes, 4)), (60, 3));
        assert_eq!(word(&bytes, 8), VOLATILE_CACHE | FUA);
        assert_eq!(bytes[12..16], [9, 12, 12, 12]);
        assert_eq!(word(&bytes, 16), 512);
        assert_eq!(bytes[24..32], 2048_u64.to_ne_bytes());
        assert_eq!(word(&bytes, 44), 4096);
        assert_eq!((word(&bytes, 48), word(&bytes, 52)), (1 << 21, 1 << 21));
        assert_eq!(bytes[56..58], [1, 0]);
        assert!((1..=QUEUES_MAX as u16).contains(&queues()));
    }

    #[test]
    fn a_disk_for_reading_says_so() {
        let mut disk = Disk::new(1 << 20, 4096);
        disk.read_only = true;
        let bytes = parameters(&disk, 4096);
        assert_eq!(
            (word(&bytes, 4), word(&bytes, 8)),
            (TYPE_BASIC, VOLATILE_CACHE | FUA | READ_ONLY)
        );
        assert_eq!((bytes[12], word(&bytes, 16)), (12, 8));
    }
}
