//! Reads that are begun: what is left of one to read from a device is read by who asked for it.
//!
//! Invariant: a read is begun as any other is done, and counts as one; whatever comes in between, or does not match, is
//! read again in the usual way.

use std::{any::Any, fs::File, sync::Arc};

use terrace_cache::{Begun, BegunFill};

use super::{LiveDataset, Lookup, ReadError};
use crate::{error::FsError, object::Object};

/// How far a read has come that was begun.
pub enum ReadStart {
    /// The buffer is filled, from RAM.
    Done,
    /// The buffer is filled, by reading a device meanwhile: one who asks for several things is better served by threads.
    Waited,
    /// The rest is up to the caller.
    Begun(BegunRead),
}

/// A read of which some bytes of a file are still to be read.
pub struct BegunRead {
    file: Arc<File>,
    offset: u64,
    length: usize,
    rest: Box<dyn Any + Send>,
}

impl BegunRead {
    /// `length` bytes from `offset` of `file` on are to be read; `rest`: what is known of the read beside.
    pub fn new(file: Arc<File>, offset: u64, length: usize, rest: impl Any + Send) -> Self {
        Self {
            file,
            offset,
            length,
            rest: Box::new(rest),
        }
    }

    /// What to read from: direct, so into memory at a multiple of 4096.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// From where, bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How much, bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// What is known of it beside, for who began it.
    pub fn into_rest<T: Any>(self) -> Option<T> {
        self.rest.downcast().ok().map(|rest| *rest)
    }
}

/// What a live dataset knows of a read that it began.
struct Rest {
    look: Lookup,
    fill: BegunFill,
}

impl LiveDataset {
    /// Fills the buffer as [`read_object`](Self::read_object) (`Invalid` beyond the end), unless all that is left to do is one
    /// small read of a device.
    pub(crate) fn begin_read_object(
        &self,
        object: &Arc<Object>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<ReadStart, FsError> {
        match self.begin(object, offset, buffer) {
            Ok(start) => Ok(start),
            Err(ReadError::Failed(error)) => Err(error),
            Err(ReadError::Moved) => match self.read_object(object, offset, buffer)? {
                length if length == buffer.len() => Ok(ReadStart::Waited),
                _ => Err(FsError::Invalid),
            },
        }
    }

    fn begin(&self, object: &Arc<Object>, offset: u64, buffer: &mut [u8]) -> Result<ReadStart, ReadError> {
        let look = self.locate(None, object, offset, buffer)?;
        if look.length < buffer.len() {
            return Err(FsError::Invalid.into());
        }
        let fetch = match (&look.fetches[..], look.sequential, &look.ahead) {
            ([], ..) => return Ok(ReadStart::Done),
            ([fetch], false, None) => fetch,
            _ => return self.fetch(object, look, buffer).map(|_| ReadStart::Waited),
        };
        let target = &mut buffer[fetch.at..fetch.at + fetch.length];
        let (cache, store) = (&self.dataset.environment().cache, &**self.dataset.store());
        match cache.begin_part(store, fetch.chunk, fetch.from, fetch.chunk_bytes, target)? {
            Begun::Reading(fill) => {
                let (file, offset, length) = (fill.part.file.clone(), fill.part.offset, fill.part.length);
                Ok(ReadStart::Begun(BegunRead::new(
                    file,
                    offset,
                    length,
                    Rest { look, fill },
                )))
            }
            Begun::Filled(filled) => {
                target[filled.bytes..].fill(0);
                self.ended(&look, filled.fetched);
                Ok(match filled.fetched {
                    true => ReadStart::Waited,
                    false => ReadStart::Done,
                })
            }
        }
    }

    /// Fills the buffer, the same as at the beginning, from the bytes that were read, if they were; whether they were
    /// right.
    pub(crate) fn end_read_object(&self, begun: BegunRead, bytes: Option<&[u8]>, buffer: &mut [u8]) -> bool {
        let Some(Rest { look, fill }) = begun.into_rest() else {
            return false;
        };
        let cache = &self.dataset.environment().cache;
        let is_filled = look.fetches.first().is_some_and(|fetch| {
            let target = buffer.get_mut(fetch.at..fetch.at + fetch.length);
            target.is_some_and(|target| cache.end_part(fill, bytes, target))
        });
        if is_filled {
            self.ended(&look, true);
        }
        is_filled
    }

    /// Counts a read of one piece.
    fn ended(&self, look: &Lookup, fetched: bool) {
        if look.is_use {
            self.count_read(look, 0, fetched);
        }
        self.waited(look);
    }
}
