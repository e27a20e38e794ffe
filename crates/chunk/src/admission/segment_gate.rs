//! The gate of segments: what is appended to a stream that has no segment waits here until one may be taken.
//!
//! Invariant: nothing is held meanwhile that those need who bring segments back. What is moved does not come by here.

use terrace_store::StoreError;

use super::make_room::Admission;
use crate::{append::TryAppend, buffers::Chunk, encoding::Location, space::StreamKey};

impl Admission {
    /// Appends one chunk of new content; `placed` is told where.
    pub(crate) fn append(
        &self,
        key: StreamKey,
        privileged: bool,
        chunk: &Chunk<'_>,
        placed: &mut dyn FnMut(Vec<Location>),
    ) -> Result<(), StoreError> {
        let stream = self.writer.stream(key);
        while let TryAppend::NeedsSegment = self.writer.try_append(&stream, key, privileged, chunk, placed)? {
            let taken = || stream.has_open();
            self.relieve(key, &taken)?;
            self.wait_for_sinking(key, &taken)?;
            self.writer.begin_segment(&stream, key, privileged, chunk)?;
        }
        Ok(())
    }
}
