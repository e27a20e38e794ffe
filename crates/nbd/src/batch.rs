//! `Batch`: small reads that came together are asked of the volume together and answered together.
//!
//! A client that keeps many small reads under way costs a wake-up, a read of the device and a send for each otherwise.
//! Invariants: only requests that have arrived whole are taken, so that nobody waits for a client to go on; a batch has at
//! most [`BATCH_BYTES`] of data; each request of it gets its own answer, also when others fail.

use std::io::{self, BufRead, BufReader, IoSlice, Read};

use terrace_dataset::{BlockDevice, BlockRead};

use crate::{
    buffers::SMALL_BYTES,
    channel::Outgoing,
    connection::{Terms, write_all_parts},
    protocol::{CMD_FLAG_DF, CMD_READ, Request, WireError},
    reply,
};

/// Most data of one batch: what any request may have, however many clients there are.
const BATCH_BYTES: u64 = SMALL_BYTES as u64;
/// Reads up to this size are put together.
const READ_BYTES_MAX: u64 = 16 << 10;

/// Requests to be answered together; at least one.
pub struct Batch {
    requests: Vec<Request>,
    bytes: u64,
}

impl Batch {
    /// Begins with `first` and takes what came behind it as far as that has been received and fits. `None` if that is
    /// nothing. `is_sound`: whether a request can be answered as it is.
    pub fn collect<R: Read>(
        first: &Request,
        reader: &mut BufReader<R>,
        extended: bool,
        is_sound: impl Fn(&Request) -> bool,
    ) -> Option<Self> {
        let header_bytes = Request::header_bytes(extended);
        let fits = |request: &Request| {
            request.command == CMD_READ
                && request.flags & !CMD_FLAG_DF == 0
                && (1..=READ_BYTES_MAX).contains(&request.length)
                && is_sound(request)
        };
        if reader.buffer().len() < header_bytes || !fits(first) {
            return None;
        }
        let mut batch = Self {
            bytes: first.length,
            requests: vec![*first],
        };
        while let Some(next) = reader.buffer().get(..header_bytes) {
            let next = Request::parse(extended, next).filter(&fits);
            let Some(next) = next.filter(|next| batch.bytes + next.length <= BATCH_BYTES) else {
                break;
            };
            batch.bytes += next.length;
            batch.requests.push(next);
            reader.consume(header_bytes);
        }
        (batch.requests.len() > 1).then_some(batch)
    }

    /// Bytes of data in all.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Reads all that is asked for into `buffer`, which holds [`bytes`](Self::bytes), and answers. `refused`: what a client
    /// is told of an error.
    pub fn answer(
        &self,
        export: &dyn BlockDevice,
        terms: &Terms,
        mut buffer: &mut [u8],
        writer: &parking_lot::Mutex<Outgoing>,
        refused: impl Fn(terrace_dataset::FsError) -> (WireError, String),
    ) -> io::Result<()> {
        let mut reads = Vec::with_capacity(self.requests.len());
        for request in &self.requests {
            let (mine, others) = buffer.split_at_mut(request.length as usize);
            reads.push(BlockRead::new(request.offset, mine));
            buffer = others;
        }
        export.read_many(&mut reads);
        let mut headers = Vec::with_capacity(reads.len());
        let mut failures = Vec::new();
        for (request, read) in self.requests.iter().zip(reads) {
            match read.outcome {
                Ok(()) => headers.push((reply::data_header(terms, request, read.buffer.len()), read.buffer)),
                Err(error) => failures.push((request, refused(error))),
            }
        }
        let parts = headers
            .iter()
            .flat_map(|(header, data)| [IoSlice::new(header), IoSlice::new(data)]);
        let mut parts: Vec<IoSlice<'_>> = parts.collect();
        let writer = &mut *writer.lock();
        write_all_parts(writer, &mut parts)?;
        for (request, (cause, words)) in failures {
            reply::error(writer, terms, request, cause, &words)?;
        }
        Ok(())
    }
}
