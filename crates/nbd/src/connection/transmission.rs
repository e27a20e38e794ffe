//! Transmission: requests of one client, several at once, answered as they finish.
//!
//! Workers take turns at the socket ([`Turns`]): whoever has the turn reads one request with its payload, passes the turn on, and
//! serves it while the next worker reads on. So requests are served out of order, with no queue between threads. A worker
//! is added when a request is read and none waits.
//! While few small things are asked for at a time, and answered soon, the worker keeps the turn as it serves what waits for no
//! device: writes. It also keeps the turn for the reads of a client that asks for one thing at a time or keeps some workers
//! busy already.
//!
//! Small reads and writes that were received together are served together ([`Batch`]).
//!
//! Invariants: at most [`WORKERS_MAX`] requests (or batches of small ones) of a connection are in memory, each with at most one [`PIECE_BYTES`](crate::wire::PIECE_BYTES) of data: longer ones are served piece by piece; a client that sends
//! nonsense, or more than it may, loses its connection; the replies of requests already read are still sent if they
//! can be.

use std::{
    io::{self, BufReader, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use terrace_dataset::{BlockDevice, BlockStatus, FsError};
use terrace_device::ServedRequest;

use super::{
    batch::Batch,
    channel::{Incoming, Outgoing},
    turns::{Turn, Turns},
};
use crate::{
    buffers::Buffers,
    wire::{
        CMD_CACHE, CMD_DISCONNECT, CMD_FLAG_DF, CMD_FLAG_FUA, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ,
        CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, PAYLOAD_BYTES_MAX, PIECE_BYTES, Refusal, Request, Terms,
        WireError, command_name, refusal, reply, words,
    },
};

/// Most requests of one connection that are served at the same time.
const WORKERS_MAX: usize = 8;
/// Most workers of all connections together, beside the one that each has.
const WORKERS_SHARED_MAX: usize = 1024;
/// What is served sooner than this may be served without handing the socket over: what comes meanwhile need not wait for long.
const SOON: Duration = Duration::from_micros(250);
/// So many must have been served so soon,
const SOON_MIN: usize = 16;
/// as the balance of those against the others, each of which counts as so many;
const LATE_COUNTS: usize = 16;
/// a longer balance is not carried.
const SOON_MAX: usize = 64;
/// So many workers read small things of one client at a time; what else it asks for waits, and is read together.
const READERS_MAX: usize = 4;
/// So many requests in a row must have come when no other was under way, for a client that asks for one thing at a time.
const ALONE_MIN: usize = 16;
/// More requests than this that came together are for several workers.
const KEPT_REQUESTS_MAX: usize = 8;
/// And more data as well: the answer is to fit into the socket's buffer, so that a client that does not take it at once cannot
/// keep us from hearing what it says meanwhile.
const KEPT_BYTES_MAX: u64 = 64 << 10;
/// Requests that come together are received together, up to this size: fifteen writes of 4 KiB.
const RECEIVE_BYTES: usize = 64 << 10;
/// Most stretches in one block status reply.
const STATUS_RANGES_MAX: usize = 1024;
/// Most bytes that one request to cache a range reads; it is a hint.
const CACHE_BYTES_MAX: u64 = 256 << 20;

/// What the connections of a server share.
#[derive(Default)]
pub struct Resources {
    buffers: Buffers,
    workers: AtomicUsize,
}

struct Transmission<'a> {
    turns: Turns,
    writer: Mutex<Outgoing>,
    export: Arc<dyn BlockDevice>,
    terms: Terms,
    /// Set when no more requests are to be read: by a worker, or by the server.
    closing: Arc<AtomicBool>,
    workers: AtomicUsize,
    /// Workers that serve something, what they serve, and how many requests in a row were the only one.
    busy: AtomicUsize,
    under_way: AtomicUsize,
    alone: AtomicUsize,
    /// How many requests were served soon of late, less those that were not.
    soon: AtomicUsize,
    resources: &'a Resources,
}

/// Serves `export` to a client until it leaves or its socket is shut down. Once `closing` is set, what was asked for is
/// answered and no more is read.
pub fn transmit(
    incoming: Incoming,
    outgoing: Outgoing,
    export: Arc<dyn BlockDevice>,
    terms: Terms,
    closing: Arc<AtomicBool>,
    resources: &Resources,
) {
    let transmission = Transmission {
        turns: Turns::new(BufReader::with_capacity(RECEIVE_BYTES, incoming)),
        writer: Mutex::new(outgoing),
        export,
        terms,
        closing,
        workers: AtomicUsize::new(1),
        busy: AtomicUsize::new(0),
        under_way: AtomicUsize::new(0),
        alone: AtomicUsize::new(0),
        soon: AtomicUsize::new(0),
        resources,
    };
    thread::scope(|scope| transmission.work(scope));
    transmission.writer.lock().shutdown();
}

impl<'a> Transmission<'a> {
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut kept: Option<Turn<'_>> = None;
        loop {
            let mut turn = kept.take().unwrap_or_else(|| self.turns.wait());
            let Some(request) = self.next(&mut turn) else {
                return;
            };
            let begun = Instant::now();
            let _serving = ServedRequest::begin("NBD", request.command.into(), command_name);
            let batch = Batch::collect(&request, &mut turn, self.terms.extended, |request| {
                refusal(request, &*self.export, &self.terms).is_none()
            });
            let work = self.begin(batch.as_ref().map_or(1, Batch::len));
            let keeps = self.keeps(&request, batch.as_ref(), work.others);
            if !keeps && self.turns.waiting() == 0 {
                self.call_another(scope);
            }
            let mut turn = Some(turn);
            let served = match batch {
                Some(batch) => {
                    if !keeps {
                        turn = None;
                    }
                    self.serve_batch(&batch)
                }
                None => self.serve(&request, &mut turn, keeps),
            };
            drop(work);
            if served.is_err() {
                self.close();
            }
            self.note(begun.elapsed());
            kept = turn;
        }
    }

    /// Counts a worker that serves so many requests.
    fn begin(&self, requests: usize) -> Work<'_> {
        let others = self.busy.fetch_add(1, Ordering::AcqRel);
        let before = self.under_way.fetch_add(requests, Ordering::AcqRel);
        self.note_together(before + requests);
        Work {
            others,
            _busy: Counted(&self.busy, 1),
            _under_way: Counted(&self.under_way, requests),
        }
    }

    /// Notes how many requests are under way. Who stores at once with another one may lose that; nothing hangs on one.
    fn note_together(&self, requests: usize) {
        let alone = match requests {
            1 => (self.alone.load(Ordering::Relaxed) + 1).min(ALONE_MIN),
            _ => 0,
        };
        self.alone.store(alone, Ordering::Relaxed);
    }

    /// Whether these are served without passing the turn on, while `others` serve something.
    fn keeps(&self, request: &Request, batch: Option<&Batch>, others: usize) -> bool {
        let (requests, bytes) =
            batch.map_or((1, request.length), |batch| (batch.len(), batch.bytes() as u64));
        let reads = batch.map_or(request.command == CMD_READ, |batch| batch.read_bytes() > 0);
        self.soon.load(Ordering::Relaxed) >= SOON_MIN
            && matches!(request.command, CMD_READ | CMD_WRITE)
            && request.flags & CMD_FLAG_FUA == 0
            && bytes <= KEPT_BYTES_MAX
            && (!reads
                || requests <= KEPT_REQUESTS_MAX
                    && (others >= READERS_MAX - 1 || self.alone.load(Ordering::Relaxed) >= ALONE_MIN))
    }

    /// Notes how long something took. Workers that note at once may lose a count; nothing hangs on one.
    fn note(&self, took: Duration) {
        let soon = self.soon.load(Ordering::Relaxed);
        let now = match took < SOON {
            true => (soon + 1).min(SOON_MAX),
            false => soon.saturating_sub(LATE_COUNTS),
        };
        self.soon.store(now, Ordering::Relaxed);
    }

    /// Adds a worker, where the limits allow; without one the others serve all the same.
    fn call_another<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let add = |count: &AtomicUsize, most| {
            count
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                    (count < most).then_some(count + 1)
                })
                .is_ok()
        };
        if !add(&self.workers, WORKERS_MAX) {
            return;
        }
        let shared = &self.resources.workers;
        if add(shared, WORKERS_SHARED_MAX) {
            let worker = thread::Builder::new()
                .name("nbd-request".into())
                .spawn_scoped(scope, move || {
                    // Given back however the work ends.
                    let _counted = Counted(shared, 1);
                    self.work(scope);
                });
            if worker.is_ok() {
                return;
            }
            shared.fetch_sub(1, Ordering::AcqRel);
        }
        self.workers.fetch_sub(1, Ordering::AcqRel);
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.writer.lock().shutdown();
    }

    /// Reads the next request; `None` at the end of the connection.
    fn next(&self, reader: &mut BufReader<Incoming>) -> Option<Request> {
        if self.closing.load(Ordering::Acquire) {
            return None;
        }
        let mut header = [0; 32];
        let header = &mut header[..Request::header_bytes(self.terms.extended)];
        let request = reader
            .read_exact(header)
            .ok()
            .and_then(|()| Request::parse(self.terms.extended, header))
            .filter(|request| request.command != CMD_DISCONNECT);
        if request.is_none() {
            // Requests that other workers still serve are answered: only reading ends here.
            self.closing.store(true, Ordering::Release);
        }
        request
    }

    fn serve_batch(&self, batch: &Batch) -> io::Result<()> {
        if !batch.reads().is_empty() {
            let mut buffer = self.resources.buffers.take(batch.read_bytes());
            batch.answer_reads(&*self.export, &self.terms, &mut buffer, &self.writer, words)?;
        }
        match batch.has_writes() {
            true => batch.answer_writes(&*self.export, &self.terms, &self.writer, words),
            false => Ok(()),
        }
    }

    /// Receives the payload of a request, passes the turn on unless it `keeps` it, and answers.
    fn serve(&self, request: &Request, turn: &mut Option<Turn<'_>>, keeps: bool) -> io::Result<()> {
        let payload = request.payload_bytes(self.terms.extended);
        if payload > PAYLOAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if let Some((cause, words)) = refusal(request, &*self.export, &self.terms) {
            let skipped = match turn.take() {
                Some(mut turn) => io::copy(&mut Read::by_ref(&mut *turn).take(payload), &mut io::sink())?,
                None => 0,
            };
            if skipped < payload {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return reply::error(&mut *self.writer.lock(), &self.terms, request, cause, &words);
        }
        let outcome = match request.command {
            CMD_WRITE => {
                let written = self.receive_and_write(request, turn, keeps)?;
                written.map(|()| Answer::Done).map_err(words)
            }
            CMD_READ => {
                if !keeps {
                    *turn = None;
                }
                return self.read(request);
            }
            _ => {
                *turn = None;
                self.perform(request)
            }
        };
        let changes = matches!(request.command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
        let outcome = match outcome {
            Ok(answer) if changes && request.flags & CMD_FLAG_FUA != 0 => {
                self.export.flush().map(|()| answer).map_err(words)
            }
            outcome => outcome,
        };
        let (terms, writer) = (&self.terms, &mut *self.writer.lock());
        match outcome {
            Ok(Answer::Done) => reply::done(writer, terms, request),
            Ok(Answer::Status(ranges)) => reply::block_status(writer, terms, request, &ranges),
            Err((cause, words)) => reply::error(writer, terms, request, cause, &words),
        }
    }

    /// Writes what follows the header. Piece by piece if it is long; then the turn is kept meanwhile.
    fn receive_and_write(
        &self,
        request: &Request,
        turn: &mut Option<Turn<'_>>,
        keeps: bool,
    ) -> io::Result<Result<(), FsError>> {
        let end = request.offset + request.length;
        let mut buffer = self.resources.buffers.take(request.length as usize);
        let mut at = request.offset;
        let mut outcome = Ok(());
        while at < end {
            let length = buffer.len().min((end - at) as usize);
            let piece = &mut buffer[..length];
            if let Some(turn) = turn {
                turn.read_exact(piece)?;
            }
            let from = at;
            at += length as u64;
            if at == end && !keeps {
                // The last piece needs the turn no more: the next request can come while it is written.
                *turn = None;
            }
            if outcome.is_ok() {
                outcome = self.export.write(from, piece);
            }
        }
        Ok(outcome)
    }

    /// Answers a read, in several pieces if it is long.
    fn read(&self, request: &Request) -> io::Result<()> {
        let length = request.length as usize;
        let mut buffer = self.resources.buffers.take(length);
        let terms = &self.terms;
        let mut step = buffer.len().min(length);
        if step < length && request.flags & CMD_FLAG_DF != 0 {
            let words = format!("a read of more than {step} bytes that may not be split");
            return reply::error(
                &mut *self.writer.lock(),
                terms,
                request,
                WireError::Overflow,
                &words,
            );
        }
        let end = request.offset + request.length;
        let mut at = request.offset;
        let mut writer = None;
        while at < end {
            step = step.min((end - at) as usize);
            let piece = &mut buffer[..step];
            let read = self.export.read(at, piece);
            let last = at + step as u64 == end;
            match read {
                Err(error) if writer.is_none() => {
                    let (cause, words) = words(error);
                    return reply::error(&mut *self.writer.lock(), terms, request, cause, &words);
                }
                // Half of a simple reply is out, and it has no way to say that the rest cannot be read.
                Err(error) => return Err(io::Error::other(error.to_string())),
                Ok(()) if terms.structured => {
                    reply::part(&mut *self.writer.lock(), terms, request, at, piece, last)?;
                }
                Ok(()) => match &mut writer {
                    None => reply::data(&mut **writer.insert(self.writer.lock()), terms, request, piece)?,
                    Some(writer) => writer.write_all(piece)?,
                },
            }
            at += step as u64;
        }
        Ok(())
    }

    fn perform(&self, request: &Request) -> Result<Answer, Refusal> {
        let export = &*self.export;
        let (offset, length) = (request.offset, request.length);
        match request.command {
            CMD_FLUSH => export.flush().map_err(words)?,
            CMD_TRIM => export.discard(offset, length).map_err(words)?,
            CMD_WRITE_ZEROES => {
                // Zeroes are never stored, so every zeroing is fast; what NO_HOLE asks for is the volume's reservation.
                export.write_zeroes(offset, length).map_err(words)?;
            }
            CMD_CACHE => self.cache(offset, length.min(CACHE_BYTES_MAX))?,
            _ => {
                let limit = if request.flags & CMD_FLAG_REQ_ONE != 0 {
                    1
                } else {
                    STATUS_RANGES_MAX
                };
                let ranges = export.block_status(offset, length, limit).map_err(words)?;
                return Ok(Answer::Status(within_request(ranges, length, limit)));
            }
        }
        Ok(Answer::Done)
    }

    /// Reads a range for the sake of the caches.
    fn cache(&self, offset: u64, length: u64) -> Result<(), Refusal> {
        let mut buffer = self.resources.buffers.take(PIECE_BYTES);
        let end = offset + length;
        let mut at = offset;
        while at < end && !self.closing.load(Ordering::Acquire) {
            let step = buffer.len().min((end - at) as usize);
            self.export.read(at, &mut buffer[..step]).map_err(words)?;
            at += step as u64;
        }
        Ok(())
    }
}

/// Something that is served.
struct Work<'a> {
    /// How many others served something when it began.
    others: usize,
    _busy: Counted<'a>,
    _under_way: Counted<'a>,
}

/// So many less when dropped.
struct Counted<'a>(&'a AtomicUsize, usize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

enum Answer {
    Done,
    Status(Vec<BlockStatus>),
}

/// Cuts the stretches to the request's length: with REQ_ONE nothing may reach beyond it.
fn within_request(ranges: Vec<BlockStatus>, length: u64, limit: usize) -> Vec<BlockStatus> {
    let mut left = length;
    let mut cut = Vec::with_capacity(ranges.len().min(limit));
    for range in ranges.into_iter().take(limit) {
        if left == 0 {
            break;
        }
        let length = range.length.min(left);
        left -= length;
        cut.push(BlockStatus { length, ..range });
    }
    cut
}
