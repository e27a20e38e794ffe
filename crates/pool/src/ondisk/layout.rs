//! Where things lie on a device.
//!
//! ```text
//! 0         label, copy 0          64 KiB
//! 64 KiB    label, copy 1          64 KiB
//! 128 KiB   unused                 128 KiB
//! 256 KiB   root slot 0            4 KiB header + 64 KiB payload, in 128 KiB
//! 384 KiB   root slot 1            the same
//! 512 KiB   root slot 0, again     the same bytes once more
//! 640 KiB   root slot 1, again     the same
//! 768 KiB   unused                 256 KiB
//! 1 MiB     segments               segment_count × segment_bytes
//! end−64 KiB  label, copy 2        64 KiB; "end" is the size that the label states
//! ```

/// Bytes of one label copy.
pub const LABEL_BYTES: usize = 64 * 1024;
/// Where the first label copy starts, bytes.
pub(crate) const LABEL_OFFSETS: [u64; 2] = [0, LABEL_BYTES as u64];
/// Where the two copies of each root slot start, bytes.
pub(crate) const ROOT_OFFSETS: [[u64; 2]; 2] = [[256 * 1024, 512 * 1024], [384 * 1024, 640 * 1024]];
/// Where segment 0 starts, bytes.
pub const SEGMENT_AREA_OFFSET: u64 = 1024 * 1024;
/// Segment size of a pool on devices of more than 2 GiB, or more than 1 GiB in a large pool, bytes.
pub const DEFAULT_SEGMENT_BYTES: u32 = 16 * 1024 * 1024;
/// Smallest segment size, bytes.
pub(crate) const SEGMENT_BYTES_MIN: u32 = 1024 * 1024;
/// Largest segment size that is accepted from a label, bytes.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// Segments that the smallest device of a new pool shall have: with fewer, the eight or so that have to stay free are a large part of
/// it, and what is written over at random is brought back while more of it lives.
const SEGMENTS_WANTED: u64 = 128;
/// Those that it shall have where the pool has more than [`SEGMENTS_OF_SMALL_POOL`] of them: a root can list some 3,800 for metadata.
const SEGMENTS_WANTED_OF_LARGE: u64 = 64;
const SEGMENTS_OF_SMALL_POOL: u32 = 4096;
/// Segments without which a device is of no use.
pub(crate) const SEGMENTS_MIN: u32 = 4;
/// The smallest device, bytes: front, a few segments of 1 MiB, label at the end.
pub const DEVICE_BYTES_MIN: u64 =
    SEGMENT_AREA_OFFSET + SEGMENTS_MIN as u64 * SEGMENT_BYTES_MIN as u64 + LABEL_BYTES as u64;

/// Segments on a device of `size_bytes`.
pub(crate) fn segment_count(size_bytes: u64, segment_bytes: u32) -> u32 {
    let area = size_bytes.saturating_sub(SEGMENT_AREA_OFFSET + LABEL_BYTES as u64);
    u32::try_from(area / u64::from(segment_bytes.max(1))).unwrap_or(u32::MAX)
}

/// Where the label copy at the end starts, bytes.
pub(crate) fn end_label_offset(size_bytes: u64) -> u64 {
    (size_bytes / 4096 * 4096).saturating_sub(LABEL_BYTES as u64)
}

/// The segment size for a new pool: 16 MiB, halved until the smallest device has 128 of them, or 64 of more than 4,096 in all; at least
/// 1 MiB.
pub(crate) fn choose_segment_bytes(smallest_device_bytes: u64, all_bytes: u64) -> u32 {
    let mut segment_bytes = DEFAULT_SEGMENT_BYTES;
    let is_too_large = |segment_bytes| {
        let wanted = match segment_count(all_bytes, segment_bytes / 2) > SEGMENTS_OF_SMALL_POOL {
            true => SEGMENTS_WANTED_OF_LARGE,
            false => SEGMENTS_WANTED,
        };
        u64::from(segment_count(smallest_device_bytes, segment_bytes)) < wanted
    };
    while segment_bytes > SEGMENT_BYTES_MIN && is_too_large(segment_bytes) {
        segment_bytes /= 2;
    }
    segment_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_device_of_a_large_pool_makes_no_small_segments() {
        const GIB: u64 = 1 << 30;
        let mib = |smallest: u64, all: u64| choose_segment_bytes(smallest, all) >> 20;
        assert_eq!(mib(3 * GIB / 2, 3 * GIB / 2), 8);
        // A tier in RAM before disks: what metadata can take goes by the size of a segment.
        assert_eq!(mib(3 * GIB / 2, 30 * GIB), 8);
        assert_eq!(mib(3 * GIB / 2, 20_000 * GIB), 16);
        assert_eq!(mib(GIB / 2 + GIB / 16, 20_000 * GIB), 8);
    }
}
