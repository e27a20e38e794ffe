//! `WriteStream`: whether writes to an object go through it in order, and how far they have come.
//!
//! Requests that are under way at once (a queue of large writes to a volume, the write-back of a kernel) arrive in any
//! order; taken for jumps, they would make one stream many short ones, and nothing of it would be written ahead.
//!
//! Invariants: a few words for each object, changed under its state lock; only a large write may come early, and only as
//! much may come late as was passed over before: who writes the same few MiB again and again makes no stream.

/// Writes from this size on may be early or late.
const LARGE_BYTES: u64 = 64 << 10;
/// How early.
const EARLY_BYTES: u64 = 4 << 20;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriteStream {
    /// Where it would go on.
    end: u64,
    /// How far it has come since it began, bytes.
    run_bytes: u64,
    /// Passed over, and not written since then, bytes.
    gap_bytes: u64,
}

impl WriteStream {
    /// A write.
    pub(crate) fn note(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let large = length >= LARGE_BYTES;
        if offset >= self.end && (offset == self.end || (large && offset - self.end <= EARLY_BYTES)) {
            self.gap_bytes += offset - self.end;
            self.run_bytes += end - self.end;
            self.end = end;
        } else if large && end <= self.end && length <= self.gap_bytes && self.end - offset <= self.run_bytes
        {
            self.gap_bytes -= length;
        } else {
            *self = Self {
                end,
                run_bytes: length,
                gap_bytes: 0,
            };
        }
    }

    /// How far it has come since it began, bytes.
    pub(crate) fn run_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// Where it began.
    pub(crate) fn start(&self) -> u64 {
        self.end - self.run_bytes.min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn run(writes: impl IntoIterator<Item = (u64, u64)>) -> WriteStream {
        let mut stream = WriteStream::default();
        for (offset, length) in writes {
            stream.note(offset, length);
        }
        stream
    }

    #[test]
    fn small_writes_must_follow_one_another() {
        let stream = run((0..100).map(|at| (MIB + at * 4096, 4096)));
        assert_eq!((stream.start(), stream.run_bytes()), (MIB, 100 * 4096));
        assert_eq!(run([(0, 4096), (4096, 4096), (12288, 4096)]).run_bytes(), 4096);
    }

    #[test]
    fn large_ones_may_change_places() {
        let order = [3, 1, 2, 0, 4, 7, 5, 6];
        let stream = run((0..8).flat_map(|eight| order.map(|at| ((eight * 8 + at) * MIB, MIB))));
        assert!(stream.run_bytes() >= 60 * MIB, "{stream:?}");
    }

    #[test]
    fn who_jumps_or_comes_back_begins_anew() {
        assert_eq!(run([(0, 8 * MIB), (32 * MIB, MIB)]).run_bytes(), MIB);
        assert_eq!(run([(0, 8 * MIB), (4 * MIB, MIB)]).run_bytes(), MIB);
        // A log of 4 MiB that is written round and round.
        let round = (0..16).flat_map(|_| (0..4).map(|at| (at * MIB, MIB)));
        assert!(run(round).run_bytes() <= 4 * MIB);
    }
}
