//! `Reads`: small reads that one worker has under way at a time, while it receives what else the client asks for.
//!
//! A worker for each read costs two changes of thread, one to receive it and one when the device has answered; where
//! processors are few, or slow to wake, that is more than the read. Here the thread that receives begins what it has received,
//! and waits for the client and the device together.
//!
//! Invariants: a read is answered once, by who began it; one that did not bring what it should is read again in the usual
//! way, which says why; who has to wait for a device in spite of this leaves the next requests to several workers; at most [`READS_MAX`] are under way, with answers of at most [`ANSWERS_BYTES_MAX`] in all, and
//! memory for [`RINGS_MAX`] workers: the others read one thing at a time.

use std::{
    io::{self, IoSlice},
    os::fd::BorrowedFd,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use terrace_dataset::{BegunRead, BlockDevice, FsError, ReadStart};
use terrace_device::{AlignedBuffer, Ended, FileRead, ReadRing};

use crate::{
    channel::Outgoing,
    connection::{Terms, write_all_parts},
    protocol::{Request, WireError},
    reply,
};

/// Most reads of a worker at a time.
const READS_MAX: u32 = 16;
/// What they are answered with is to fit into the socket's buffer.
const ANSWERS_BYTES_MAX: usize = 64 << 10;
/// What is read for them of devices, where chunks are compressed more than they are answered with: with so much no more is begun.
const DEVICE_BYTES_MAX: usize = 256 << 10;
/// Memory up to this size is kept for the next read.
const KEPT_BYTES_MAX: usize = 32 << 10;
/// Most workers of all connections that do this.
const RINGS_MAX: usize = 64;
/// After a read for which the worker waited itself so many requests are served by several workers, and twice as many after the
/// next, up to the most.
const REFRAIN_MIN: u32 = 32;
const REFRAIN_MAX: u32 = 4096;
/// Answers that are sent together at most.
const TOGETHER_MAX: usize = 64;

/// What a read goes to.
pub struct Answering<'a> {
    pub export: &'a dyn BlockDevice,
    pub terms: &'a Terms,
    pub writer: &'a Mutex<Outgoing>,
    /// What a client is told of an error.
    pub words: fn(FsError) -> (WireError, String),
    /// Requests of the client that are being served.
    pub under_way: &'a AtomicUsize,
    /// Rings of all connections.
    pub rings: &'a AtomicUsize,
}

struct Begun {
    request: Request,
    read: BegunRead,
    content: Vec<u8>,
}

/// See the module. Belongs to one thread.
pub struct Reads<'a> {
    answering: Answering<'a>,
    ring: Option<ReadRing>,
    has_tried: bool,
    /// So many requests are left to others, as this one waited for a device itself; and how many next time, about.
    refrain: u32,
    refrain_next: u32,
    begun: Vec<Option<Begun>>,
    /// Of those under way: of their answers, and of their memory.
    answer_bytes: usize,
    device_bytes: usize,
    ended: Vec<Ended>,
    /// Done and not sent.
    answers: Vec<(Request, Result<Vec<u8>, FsError>)>,
    /// For the next ones.
    memory: Vec<AlignedBuffer>,
    contents: Vec<Vec<u8>>,
}

impl<'a> Reads<'a> {
    /// None.
    pub fn new(answering: Answering<'a>) -> Self {
        Self {
            answering,
            ring: None,
            has_tried: false,
            refrain: 0,
            refrain_next: 0,
            begun: Vec::new(),
            answer_bytes: 0,
            device_bytes: 0,
            ended: Vec::new(),
            answers: Vec::new(),
            memory: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Whether reads can be begun: asked for each request, or batch of them.
    pub fn can_begin(&mut self) -> bool {
        if self.refrain > 0 {
            self.refrain -= 1;
            return false;
        }
        if !self.has_tried {
            self.has_tried = true;
            let rings = self.answering.rings;
            if rings.fetch_add(1, Ordering::Relaxed) < RINGS_MAX {
                self.ring = ReadRing::open(READS_MAX).ok();
            }
            if self.ring.is_none() {
                rings.fetch_sub(1, Ordering::Relaxed);
            }
            self.begun.resize_with(READS_MAX as usize, || None);
        }
        self.ring.is_some()
    }

    /// Whether the client is to be [waited](Self::wait) for here: there is something else to wait for, or the ring watches him
    /// already. Who receives without that would have the ring tell later of what he has received.
    pub fn is_waiting(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| ring.under_way() > 0 || ring.is_watching())
    }

    /// How many are under way.
    fn under_way(&self) -> usize {
        self.ring.as_ref().map_or(0, ReadRing::under_way)
    }

    /// Whether there are as many as there may be.
    pub fn is_full(&self) -> bool {
        self.answer_bytes >= ANSWERS_BYTES_MAX
            || self.device_bytes >= DEVICE_BYTES_MAX
            || self.ring.as_ref().is_none_or(ReadRing::is_full)
    }

    /// Begins a read that has been found sound; or does it. It is answered by [`send`](Self::send), or behind a later
    /// [`wait`](Self::wait).
    pub fn begin(&mut self, request: Request) -> io::Result<()> {
        while self.under_way() > 0 && self.is_full() {
            self.wait(None)?;
        }
        let mut content = self.contents.pop().unwrap_or_default();
        content.resize(request.length as usize, 0);
        match self.answering.export.begin_read(request.offset, &mut content) {
            Ok(ReadStart::Begun(read)) => {
                self.refrain_next /= 2;
                self.start(Begun {
                    request,
                    read,
                    content,
                });
            }
            Ok(ReadStart::Done) => self.answers.push((request, Ok(content))),
            Ok(ReadStart::Waited) => {
                self.refrain_next = (self.refrain_next * 2).clamp(REFRAIN_MIN, REFRAIN_MAX);
                self.refrain = self.refrain_next;
                self.answers.push((request, Ok(content)));
            }
            Err(error) => self.answers.push((request, Err(error))),
        }
        if self.answers.len() >= TOGETHER_MAX {
            self.send()?;
        }
        Ok(())
    }

    fn start(&mut self, begun: Begun) {
        let mut memory = self
            .memory
            .pop()
            .unwrap_or_else(|| AlignedBuffer::with_capacity(begun.read.length()));
        memory.reuse(begun.read.length());
        let read = FileRead {
            file: begun.read.file().clone(),
            offset: begun.read.offset(),
            memory,
        };
        match self.ring.as_mut().map(|ring| ring.begin(read)) {
            Some(Ok(number)) => {
                self.answering.under_way.fetch_add(1, Ordering::AcqRel);
                self.answer_bytes += begun.content.len();
                self.device_bytes += begun.read.length();
                self.begun[number] = Some(begun);
            }
            _ => self.read_again(begun),
        }
    }

    /// Reads in the usual way.
    fn read_again(&mut self, mut begun: Begun) {
        let read = self
            .answering
            .export
            .read(begun.request.offset, &mut begun.content);
        self.answers.push((begun.request, read.map(|()| begun.content)));
    }

    /// Waits until a read has ended, or something can be received from `client`: whether it can. Answers what has ended.
    pub fn wait(&mut self, client: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let Some(ring) = &mut self.ring else {
            return Ok(true);
        };
        let has_come = ring.wait(client, &mut self.ended)?;
        let mut ended = std::mem::take(&mut self.ended);
        for end in ended.drain(..) {
            let Some(begun) = self.begun.get_mut(end.number).and_then(Option::take) else {
                continue;
            };
            self.answering.under_way.fetch_sub(1, Ordering::AcqRel);
            self.answer_bytes -= begun.content.len();
            self.device_bytes -= begun.read.length();
            self.end(begun, &end);
            if end.memory.len() <= KEPT_BYTES_MAX {
                self.memory.push(end.memory);
            }
        }
        self.ended = ended;
        self.send()?;
        Ok(has_come)
    }

    fn end(&mut self, begun: Begun, end: &Ended) {
        let Begun {
            request,
            read,
            mut content,
        } = begun;
        let export = self.answering.export;
        let is_good = end.is_whole && export.end_read(read, &end.memory, &mut content);
        let outcome = match is_good {
            true => Ok(()),
            false => export.read(request.offset, &mut content),
        };
        self.answers.push((request, outcome.map(|()| content)));
    }

    /// Waits for all of them and answers.
    pub fn finish(&mut self) -> io::Result<()> {
        while self.under_way() > 0 {
            self.wait(None)?;
        }
        self.send()
    }

    /// Sends the answers to what is done.
    pub fn send(&mut self) -> io::Result<()> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let Answering { terms, words, .. } = self.answering;
        let mut answers = std::mem::take(&mut self.answers);
        let headers: Vec<_> = answers
            .iter()
            .filter_map(|(request, outcome)| {
                let content = outcome.as_ref().ok()?;
                Some((reply::data_header(terms, request, content.len()), content))
            })
            .collect();
        let mut parts: Vec<IoSlice<'_>> = headers
            .iter()
            .flat_map(|(header, content)| [IoSlice::new(header), IoSlice::new(content)])
            .collect();
        {
            let writer = &mut *self.answering.writer.lock();
            write_all_parts(writer, &mut parts)?;
            drop(headers);
            for (request, outcome) in answers.drain(..) {
                match outcome {
                    Ok(content) if self.contents.len() < READS_MAX as usize => self.contents.push(content),
                    Ok(_) => {}
                    Err(error) => {
                        let (cause, words) = words(error);
                        reply::error(writer, terms, &request, cause, &words)?;
                    }
                }
            }
        }
        self.answers = answers;
        Ok(())
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        if self.ring.take().is_some() {
            self.answering.rings.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
