//! `ReadStream`: whether reads of an object go through it in order.
//!
//! Invariants: a few words for each object, changed under its state lock; requests that are under way at once arrive
//! in any order, so a stream is not broken by a read that is only a little early or late; reads that jump about make
//! no stream, since a stream gets on by about as much as it reads (in small objects, all reads are near: only exact
//! ones count there).

/// Reads in a row, each where the last one ended, that make a sequential reader.
const STREAK: u32 = 2;
/// Reads in a row near the end of the last ones that do.
const NEAR_STREAK: u32 = 8;
/// How near a small read is.
const NEAR_BYTES: u64 = 128 << 10;
/// Large reads this close to the last one are the same scan: readahead of the kernel arrives out of order.
const SCAN_NEAR_BYTES: u64 = 1 << 20;
/// Reads from this size on are taken for readahead.
const SCAN_READ_BYTES: usize = 64 << 10;
/// Objects from this size on have streams of reads that are merely near.
const LARGE_BYTES: u64 = 1 << 20;
/// By how many reads a stream may have got on less than it has read.
const LATE_READS: u64 = 6;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadStream {
    /// Where the last read ended.
    last_end: u64,
    /// Reads in a row that began where the one before ended, and the bytes of these and of the one that they follow.
    exact: u32,
    exact_bytes: u64,
    /// The same with the large reads near by: a scan.
    scan: u32,
    /// Reads in a row that were near the furthest end, where the first of them began, that end, and their bytes.
    near: u32,
    start: u64,
    furthest: u64,
    bytes: u64,
}

impl ReadStream {
    /// A read begins. Whether what follows it will be wanted soon, and how much the read adds to the heat of its region:
    /// a scan (a backup, a copy) reads everything once and must not push out what is used again and again, so it adds
    /// next to nothing; reads that begin somewhere else count in full, and so does a file of `size` bytes that is read
    /// whole at once.
    pub(crate) fn note(&mut self, offset: u64, length: usize, size: u64) -> (bool, f32) {
        let end = offset + length as u64;
        let exact = self.last_end == offset;
        let large = length >= SCAN_READ_BYTES && self.last_end.abs_diff(offset) <= SCAN_NEAR_BYTES;
        let goes_on = offset > 0 && (exact || large);
        (self.exact, self.exact_bytes) = match exact {
            true => (
                self.exact.saturating_add(1),
                self.exact_bytes.saturating_add(length as u64),
            ),
            false => (0, length as u64),
        };
        self.scan = if goes_on { self.scan.saturating_add(1) } else { 0 };
        self.last_end = end;

        let furthest = self.furthest.max(end);
        let bytes = self.bytes.saturating_add(length as u64);
        let got_on = furthest - self.start.min(furthest);
        let near = size >= LARGE_BYTES
            && self.furthest.abs_diff(offset) <= NEAR_BYTES.max(length as u64)
            && offset >= self.start.saturating_sub(NEAR_BYTES)
            && bytes <= got_on.saturating_add(LATE_READS * length as u64)
            && got_on <= 2 * bytes + NEAR_BYTES;
        if near {
            (self.near, self.furthest, self.bytes) = (self.near.saturating_add(1), furthest, bytes);
        } else {
            (self.near, self.start, self.furthest, self.bytes) = (0, offset, end, length as u64);
        }
        let stream = self.near >= NEAR_STREAK;
        let begins_scan = offset == 0 && length >= SCAN_READ_BYTES && (length as u64) < size;
        let heat = match self.scan {
            _ if stream => 0.0,
            0 if !begins_scan => 1.0,
            scan if scan < STREAK => length as f32 / crate::records::REGION_BYTES as f32,
            _ => 0.0,
        };
        (self.exact >= STREAK || stream, heat)
    }

    /// How much of what follows is worth fetching now, bytes: as much again as has been read in order twice over. Who reads a
    /// little here and a little there in order has little fetched in vain, and who goes on soon has all that there is
    /// room for (the doubling of Linux: Wu, Xi and Xu 2008, "On the design of a new Linux readahead framework").
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let stream = if self.near >= NEAR_STREAK { self.bytes } else { 0 };
        self.exact_bytes.max(stream).saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;

    fn sums(size: u64, reads: impl Iterator<Item = u64>, length: usize) -> (u32, f32) {
        let mut stream = ReadStream::default();
        reads.fold((0, 0.0), |(ahead, heat), offset| {
            let (sequential, more) = stream.note(offset, length, size);
            (ahead + u32::from(sequential), heat + more)
        })
    }

    #[test]
    fn requests_that_overtake_each_other_are_a_stream() {
        // Four at once, in an order that changes.
        let orders = [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 0, 1, 3]];
        let reads =
            (0..1024u64).map(|at| (at / 4 * 4 + orders[(at / 4) as usize % 4][(at % 4) as usize]) * 4096);
        let (ahead, heat) = sums(SIZE, reads, 4096);
        assert!(ahead > 1000, "{ahead}");
        assert!(heat < 12.0, "{heat}");
        // In order, it is one after two reads.
        assert_eq!(sums(SIZE, (0..100).map(|at| at * 4096), 4096).0, 99);
    }

    #[test]
    fn reads_that_jump_about_are_none_also_in_a_small_file() {
        let scattered = |blocks: u64| {
            (0..2000u64)
                .map(move |at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
                .map(move |at| at % blocks * 4096)
        };
        for blocks in [16, 64, 1024, 16_384] {
            let (ahead, heat) = sums(blocks * 4096, scattered(blocks), 4096);
            assert!(ahead < 100, "{blocks} blocks: {ahead}");
            assert!(heat > 1700.0, "{blocks} blocks: {heat}");
        }
        // One block again and again is hot.
        assert!(sums(SIZE, (0..1000).map(|_| 8192), 4096).1 > 900.0);
    }

    #[test]
    fn the_further_a_reader_went_in_order_the_more_is_read_ahead_of_him() {
        let mut stream = ReadStream::default();
        let mut read = |offset: u64| {
            let (sequential, _) = stream.note(offset << 13, 8192, SIZE);
            sequential.then(|| stream.ahead_bytes() >> 13)
        };
        let ahead: Vec<_> = [5, 6, 7, 8, 100, 101, 102].into_iter().map(&mut read).collect();
        assert_eq!(ahead, [None, None, Some(6), Some(8), None, None, Some(6)]);
        // Those that overtake one another get on as well.
        let mut stream = ReadStream::default();
        let orders = (0..64u64).map(|at| at / 2 * 2 + (1 - at % 2));
        let ahead = orders.map(|at| {
            let (sequential, _) = stream.note(at << 13, 8192, SIZE);
            sequential.then(|| stream.ahead_bytes() >> 13)
        });
        assert_eq!(ahead.last().unwrap(), Some(2 * 64));
    }

    #[test]
    fn readahead_of_the_kernel_is_a_scan() {
        let (_, heat) = sums(
            SIZE,
            [0, 2, 1, 3, 5, 4, 6, 7].into_iter().map(|at| at * (128 << 10)),
            128 << 10,
        );
        assert!(heat < 0.5, "{heat}");
    }
}
