//! `Reads`: small reads that one worker has under way at a time, while it receives what else the client asks for.
//!
//! A worker for each read costs two changes of thread, one to receive it and one when the device has answered; where
//! processors are few, or slow to wake, that is more than the read. Here the thread that receives begins what it has received,
//! and waits for the client and the device together.
//!
//! Invariants: a read is answered once, by who began it; who gives the turn away answers what he has under way before he
//! waits for anything else; a read that did not bring what it should is read again in the usual way, which says why; who has to
//! wait for a device in spite of all this leaves the next requests to several workers; at most [`READS_MAX`] are under way, and
//! none is begun with [`ANSWERS_BYTES_MAX`] of answers to come; there are rings for [`RINGS_MAX`] workers of a server: the
//! others read one thing at a time.

use std::{
    io::{self, IoSlice},
    os::fd::BorrowedFd,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_dataset::{BegunRead, BlockDevice, FsError, ReadStart};
use terrace_device::{AlignedBuffer, Ended, FileRead, ReadRing};

use crate::{
    channel::Outgoing,
    connection::{Terms, write_all_parts},
    protocol::{Request, WireError},
    reply,
    seats::Seated,
};

/// Most reads of a worker at a time.
const READS_MAX: u32 = 16;
/// What they are answered with is to fit into the socket's buffer.
const ANSWERS_BYTES_MAX: usize = 64 << 10;
/// What is read for them of devices, where chunks are compressed more than they are answered with: with so much no more is begun.
const DEVICE_BYTES_MAX: usize = 256 << 10;
/// Memory up to this size is kept for the next read.
const KEPT_BYTES_MAX: usize = 32 << 10;
/// Most workers of all connections of a server that do this, and of one.
const RINGS_MAX: usize = 64;
const RINGS_HERE_MAX: usize = 2;
/// Beginning a read takes less than this, if it does not wait.
const BEGIN_MAX: Duration = Duration::from_micros(100);
/// One that takes longer may have been kept from the processor; it counts as so many of the others, and with more than so many
/// the worker waits for devices.
const SLOW_COUNTS: u32 = 16;
const SLOW_MAX: u32 = 40;
/// A read under way for so long waits for a slow device.
const LATE: Duration = Duration::from_millis(2);
/// After so many writes beside them the reads are waited for, however many more have come.
const BESIDE_MAX: u32 = 16;
/// Of what a socket is sent, so much without a look whether it takes it at once.
const UNSEEN_BYTES_MAX: usize = 32 << 10;
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
    /// Rings of all connections, and of this one.
    pub rings: &'a AtomicUsize,
    pub rings_here: &'a AtomicUsize,
    /// Told how long a read took that took long.
    pub late: &'a dyn Fn(Duration),
}

struct Begun {
    at: Instant,
    request: Request,
    read: BegunRead,
    content: Vec<u8>,
}

/// See the module. Belongs to one thread.
pub struct Reads<'a> {
    answering: Answering<'a>,
    ring: Option<(ReadRing, Seated)>,
    /// So many requests are left to others, as this one waited for a device itself; and how many next time, about.
    refrain: u32,
    refrain_next: u32,
    /// How many reads took long to begin of late, less those that did not.
    slow: u32,
    /// The ring watched the client already when the turn was given away: what it tells of him may be of what others received.
    watch_is_old: bool,
    /// Writes that were done since the last wait.
    beside: u32,
    begun: Vec<Option<Begun>>,
    /// Of those under way: of their answers, and of their memory.
    answer_bytes: usize,
    device_bytes: usize,
    /// Sent since the socket was last seen to have room.
    sent_bytes: usize,
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
            refrain: 0,
            refrain_next: 0,
            slow: 0,
            watch_is_old: false,
            beside: 0,
            begun: Vec::new(),
            answer_bytes: 0,
            device_bytes: 0,
            sent_bytes: 0,
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
        if self.ring.is_none() {
            self.ring = self.open();
            self.begun.resize_with(READS_MAX as usize, || None);
            if self.ring.is_none() {
                self.refrain = REFRAIN_MAX;
            }
        }
        self.ring.is_some()
    }

    fn open(&self) -> Option<(ReadRing, Seated)> {
        let Answering {
            rings, rings_here, ..
        } = self.answering;
        let take = |count: &AtomicUsize, most| count.fetch_add(1, Ordering::Relaxed) < most;
        let has_place = take(rings_here, RINGS_HERE_MAX) & take(rings, RINGS_MAX);
        let ring = has_place.then(|| ReadRing::open(READS_MAX).ok()).flatten();
        if ring.is_none() {
            self.give_ring_back();
        }
        ring.map(|ring| (ring, Seated::new()))
    }

    fn give_ring_back(&self) {
        self.answering.rings_here.fetch_sub(1, Ordering::Relaxed);
        self.answering.rings.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the client is to be [waited](Self::wait) for here: there is something else to wait for, or the ring watches him
    /// already. Who receives without that would have the ring tell later of what he has received.
    pub fn is_waiting(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|(ring, _)| ring.under_way() > 0 || ring.is_watching())
    }

    /// How many are under way.
    fn under_way(&self) -> usize {
        self.ring.as_ref().map_or(0, |(ring, _)| ring.under_way())
    }

    /// Whether there are as many as there may be.
    pub fn is_full(&self) -> bool {
        self.answer_bytes >= ANSWERS_BYTES_MAX
            || self.device_bytes >= DEVICE_BYTES_MAX
            || self.ring.as_ref().is_none_or(|(ring, _)| ring.is_full())
    }

    /// Begins a read that has been found sound; or does it. It is answered by a [`send`](Self::send), behind a
    /// [`wait`](Self::wait) if it was begun.
    pub fn begin(&mut self, request: Request) -> io::Result<()> {
        while self.under_way() > 0 && self.is_full() {
            self.wait(None)?;
            self.send()?;
        }
        let mut content = self.contents.pop().unwrap_or_default();
        content.resize(request.length as usize, 0);
        let at = Instant::now();
        let start = self.answering.export.begin_read(request.offset, &mut content);
        // Looking it up may have taken a read of a device as well.
        self.slow = match at.elapsed() < BEGIN_MAX {
            true => self.slow.saturating_sub(1),
            false => self.slow + SLOW_COUNTS,
        };
        if matches!(start, Ok(ReadStart::Waited)) || self.slow > SLOW_MAX {
            self.slow = 0;
            self.refrain_more();
        } else {
            self.refrain_next /= 2;
        }
        match start {
            Ok(ReadStart::Begun(read)) => {
                self.start(Begun {
                    at,
                    request,
                    read,
                    content,
                });
            }
            Ok(ReadStart::Done | ReadStart::Waited) => self.answers.push((request, Ok(content))),
            Err(error) => self.answers.push((request, Err(error))),
        }
        if self.answers.len() >= TOGETHER_MAX {
            self.send()?;
        }
        Ok(())
    }

    /// The worker waited for a device itself: others serve what comes next.
    fn refrain_more(&mut self) {
        self.refrain_next = (self.refrain_next * 2).clamp(REFRAIN_MIN, REFRAIN_MAX);
        self.refrain = self.refrain_next;
    }

    /// Writes: at once, beside the reads that are under way, or once these are answered. An error of the connection, or of the
    /// export.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<Result<(), FsError>> {
        let export = self.answering.export;
        if self.under_way() > 0 || !self.answers.is_empty() {
            if let Some((ring, _)) = &mut self.ring {
                // What fails for the moment is submitted by whoever waits.
                let _ = ring.submit();
            }
            self.beside += 1;
            if self.beside <= BESIDE_MAX && export.write_at_once(offset, data) {
                return Ok(Ok(()));
            }
            self.finish()?;
        }
        Ok(export.write(offset, data))
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
        match self.ring.as_mut().map(|(ring, _)| ring.begin(read)) {
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
        self.refrain_more();
        let read = self
            .answering
            .export
            .read(begun.request.offset, &mut begun.content);
        self.answers.push((begun.request, read.map(|()| begun.content)));
    }

    /// Waits until a read has ended, or something can be received from `client`: whether it can. What has ended is to be sent.
    pub fn wait(&mut self, client: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let Some((ring, _)) = &mut self.ring else {
            return Ok(true);
        };
        self.beside = 0;
        let mut has_come = ring.wait(client, &mut self.ended)?;
        if has_come && std::mem::take(&mut self.watch_is_old) {
            has_come = client.is_some_and(|client| is_ready(client, PollFlags::IN));
        }
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
        Ok(has_come)
    }

    fn end(&mut self, begun: Begun, end: &Ended) {
        let Begun {
            at,
            request,
            read,
            mut content,
        } = begun;
        let took = at.elapsed();
        if took >= LATE {
            (self.answering.late)(took);
        }
        let export = self.answering.export;
        let bytes = end.is_whole.then_some(&end.memory[..]);
        let outcome = match export.end_read(read, bytes, &mut content) {
            true => Ok(()),
            false => {
                self.refrain_more();
                export.read(request.offset, &mut content)
            }
        };
        self.answers.push((request, outcome.map(|()| content)));
    }

    /// Waits for all of them and answers.
    pub fn finish(&mut self) -> io::Result<()> {
        while self.under_way() > 0 {
            self.wait(None)?;
        }
        self.watch_is_old |= self.is_waiting();
        self.send()
    }

    /// Whether sending may have to wait for the client to take what he was sent before, as far as this worker knows: then
    /// another one is to hear him meanwhile.
    pub fn may_block(&mut self, client: BorrowedFd<'_>) -> bool {
        let is_sound =
            |(_, outcome): &(Request, Result<Vec<u8>, FsError>)| outcome.as_ref().map_or(0, Vec::len);
        let bytes: usize = self.answers.iter().map(is_sound).sum();
        if bytes == 0 || self.sent_bytes + bytes <= UNSEEN_BYTES_MAX {
            return false;
        }
        let has_room = is_ready(client, PollFlags::OUT);
        if has_room {
            self.sent_bytes = 0;
        }
        !has_room
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
            self.sent_bytes += headers.iter().map(|(_, content)| content.len()).sum::<usize>();
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

/// Whether the client can be received from (also of his end), or be sent to, without waiting.
fn is_ready(client: BorrowedFd<'_>, what: PollFlags) -> bool {
    let mut socket = [PollFd::new(&client, what)];
    poll(&mut socket, Some(&Timespec::default())) == Ok(1)
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        if self.ring.take().is_some() {
            self.give_ring_back();
        }
    }
}
