//! The configuration space of a disk, as drivers read it (`struct virtio_blk_config`).
//!
//! Invariant: always [`CONFIG_BYTES`] long, little-endian, fields at the places that the specification gives them.

/// Length of the space, bytes.
pub const CONFIG_BYTES: usize = 60;
/// Where the driver says whether the device may cache writes.
pub const WRITEBACK_OFFSET: u32 = 32;
/// Unit of sizes and addresses, whatever the logical block is.
pub const SECTOR_BYTES: u64 = 512;
/// Most data segments of one request: what fits a queue of 128 with header and status.
const SEGMENTS_MAX: u32 = 126;
/// Most ranges of one discard or write-zeroes request.
pub const RANGES_MAX: u32 = 64;
/// Most sectors of one such range: 1 GiB.
pub const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// Fills in the space.
pub fn space(size_bytes: u64, block_bytes: u32, queues: u16, writeback: bool) -> [u8; CONFIG_BYTES] {
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(size_bytes / SECTOR_BYTES).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block_bytes.to_le_bytes());
    // Topology: 4 KiB is the best unit, whatever the logical block is.
    let physical_exponent = (4096 / block_bytes.clamp(1, 4096)).ilog2();
    put(24, &[physical_exponent as u8, 0]);
    put(26, &1_u16.to_le_bytes());
    put(32, &[u8::from(writeback)]);
    put(34, &queues.to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    put(44, &(4096 / SECTOR_BYTES as u32).to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &RANGES_MAX.to_le_bytes());
    put(56, &[1]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_drivers_look() {
        let space = space(1 << 30, 512, 8, true);
        assert_eq!(space[..8], (1_u64 << 21).to_le_bytes());
        assert_eq!(space[20..26], [0, 2, 0, 0, 3, 0]);
        assert_eq!((space[32], &space[34..36]), (1, &[8, 0][..]));
        assert_eq!(super::space(4096, 4096, 1, false)[24], 0);
    }
}
