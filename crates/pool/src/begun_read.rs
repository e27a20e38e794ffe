//! `BegunRead`: a read of a segment that is done by who asked for it.
//!
//! Invariant: it counts as any other read does, and as an error where it brought too little: who got none reads through the
//! pool, which tries again and knows what to say.

use std::{fs::File, sync::Arc, time::Instant};

use crate::{SegmentId, member::OpenDevice};

/// See the module.
pub struct BegunRead {
    device: Arc<OpenDevice>,
    file: Arc<File>,
    offset: u64,
    length: u64,
    begun: Instant,
}

impl BegunRead {
    pub(crate) fn new(
        device: Arc<OpenDevice>,
        segment: SegmentId,
        offset: u64,
        length: u64,
        segment_bytes: u32,
    ) -> Option<Self> {
        let (file, offset) = device.place_to_read(segment, offset, length, segment_bytes)?;
        Some(Self {
            device,
            file,
            offset,
            length,
            begun: Instant::now(),
        })
    }

    /// The file, and where in it to read, bytes.
    pub fn place(&self) -> (Arc<File>, u64) {
        (self.file.clone(), self.offset)
    }

    /// All bytes have come, or they have not.
    pub fn ended(&self, is_whole: bool) {
        self.device.note_read(self.length, self.begun, is_whole);
    }
}

impl Drop for BegunRead {
    fn drop(&mut self) {
        self.device.end_own_read();
    }
}
