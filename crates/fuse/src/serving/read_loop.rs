//! `Receiver`: one thread that reads requests from `/dev/fuse` and answers them there.
//!
//! Where requests come through rings (`uring_entry.rs`), only what the kernel never sends through those arrives here: that it
//! forgets objects.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    dispatch::Serving,
    threads::{Call, Place},
};
use crate::{
    protocol::{Header, PAYLOAD_BYTES_MAX, ReplyBuffer, Request, SmallRow, parse},
    transport::{Connection, REST, Received, RequestBuffer},
};

/// After this many reads of the device in a row that failed for no known reason a mount is given up.
const FAILURES_MAX: u32 = 100;

/// Nothing but word of forgotten objects comes here beside rings, and nobody waits for it: it is let gather for this
/// long, so that not each object of a tree being removed wakes a thread.
const GATHERED: Duration = Duration::from_millis(2);

/// A thread that was not needed for so long ends.
const LONG_REST: Duration = Duration::from_secs(30);

/// Starts a further thread, unless there are enough.
pub fn start(serving: &Arc<Serving>) -> io::Result<()> {
    if !serving.crew.join() {
        return Ok(());
    }
    let started = serving.start("fuse", |serving| {
        let place = serving.add_place(Place::default());
        Receiver::new(serving, &place).run();
        serving.remove_place(&place);
    });
    if started.is_err() {
        serving.crew.did_not_join();
    }
    started
}

/// Gives away the place of a thread that is, or is going to be, busy for long. Without a thread to take it the place is not given away,
/// and the watcher tries again.
pub fn relieve(serving: &Arc<Serving>, place: &Place) {
    if serving.crew.leave(place)
        && let Err(error) = start(serving)
    {
        serving.crew.take_back(place);
        serving.complain(&error);
    }
}

/// One thread's handles and buffers.
pub struct Receiver<'a> {
    shared: &'a Arc<Serving>,
    place: &'a Arc<Place>,
    /// Waits in the kernel for a request.
    waiting: Option<Connection>,
    /// Returns at once if there is none; absent if the kernel gave no second handle.
    looking: Option<Connection>,
    buffer: RequestBuffer,
    reply: ReplyBuffer,
    small_row: SmallRow,
}

impl<'a> Receiver<'a> {
    fn new(shared: &'a Arc<Serving>, place: &'a Arc<Place>) -> Self {
        Self {
            shared,
            place,
            waiting: shared.connection().duplicate(true).ok(),
            looking: shared.connection().duplicate(false).ok(),
            buffer: RequestBuffer::new(PAYLOAD_BYTES_MAX, shared.memory_count()),
            reply: ReplyBuffer::counted_in(shared.memory_count()),
            small_row: SmallRow::default(),
        }
    }

    fn run(&mut self) {
        let mut failures = 0;
        while self.enter() == Call::Receive {
            while self.shared.crew.holds(self.place) {
                match self.receive() {
                    Ok(Some(looked)) => {
                        failures = 0;
                        self.serve(looked);
                    }
                    Ok(None) => self.shared.crew.end_here(self.place),
                    Err(error) => {
                        failures += 1;
                        tracing::error!("reading a request of the kernel failed: {error}");
                        if failures == FAILURES_MAX {
                            self.shared.crew.end_here(self.place);
                        }
                    }
                }
            }
        }
    }

    /// Waits for a place. A thread that gets none gives its memory back after a while, and ends after a long one.
    fn enter(&mut self) -> Call {
        let crew = &self.shared.crew;
        if let Some(call) = crew.enter(self.place, Some(REST)) {
            return call;
        }
        self.give_back();
        loop {
            match self.shared.crew.enter(self.place, Some(LONG_REST)) {
                Some(call) => return call,
                None if self.shared.crew.quit() => {
                    self.shared.detach_current_thread();
                    return Call::End;
                }
                None => {}
            }
        }
    }

    /// Whether a thread at rest should give back the memory of long requests.
    fn is_grown(&self) -> bool {
        self.buffer.is_grown() || self.reply.is_grown()
    }

    fn give_back(&mut self) {
        self.buffer.give_back();
        self.reply.give_back(0);
    }

    /// Waits for a request; `None` when the mount has ended. True if it came through the handle that looks.
    fn receive(&mut self) -> io::Result<Option<bool>> {
        let longest = self.buffer.request().len().max(self.reply.len());
        if self.small_row.note(longest) && self.is_grown() {
            self.give_back();
        }
        let waiting = self.waiting.as_ref().unwrap_or(self.shared.connection());
        while let Some(looking) = &self.looking
            && (self.buffer.is_grown() || self.reply.is_grown())
        {
            if !waiting.wait(REST) {
                self.buffer.give_back();
                self.reply.give_back(0);
                break;
            }
            // Others that waited for the same request may have been faster.
            match looking.receive(&mut self.buffer)? {
                Received::Request => return Ok(Some(true)),
                Received::Ended => return Ok(None),
                Received::Nothing => {}
            }
        }
        loop {
            match waiting.receive(&mut self.buffer)? {
                Received::Request => break,
                Received::Ended => return Ok(None),
                Received::Nothing => continue,
            }
        }
        Ok(Some(false))
    }

    fn serve(&mut self, looked: bool) {
        let shared = self.shared;
        self.reply.clear();
        let parsed = parse(self.buffer.request(), shared.dialect);
        let (header, request) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::error!("a request of the kernel cannot be read: {error}");
                self.refuse(looked);
                return;
            }
        };
        if matches!(request, Request::Forget { .. } | Request::BatchForget(_)) {
            shared.answer(&header, request, &mut self.reply);
            if shared.uses_rings() {
                std::thread::sleep(GATHERED);
            }
            return;
        }
        let bytes = match &request {
            Request::Read { size, .. } => *size as usize,
            Request::Write { data, .. } => data.len(),
            _ => 0,
        };
        if shared.crew.is_slow(header.operation, bytes) {
            relieve(shared, self.place);
        }
        shared.begin(self.place);
        let started = Instant::now();
        let error = shared.answer(&header, request, &mut self.reply);
        shared.crew.learn(header.operation, bytes, started.elapsed());
        if let Some(error) = error {
            self.send(looked, &header, error);
        }
        shared.crew.done(self.place);
    }

    fn send(&mut self, looked: bool, header: &Header, error: i32) {
        let message = self.reply.finish(header.unique, error);
        let from = if looked {
            self.looking.as_ref()
        } else {
            self.waiting.as_ref()
        };
        if let Err(error) = from.unwrap_or(self.shared.connection()).send(message) {
            // The kernel refuses a malformed reply and waits on: an error at least lets the caller go.
            tracing::error!(
                "the kernel refused a reply to operation {}: {error}",
                header.operation
            );
            let message = self.reply.finish(header.unique, libc::EIO);
            let _ = from.unwrap_or(self.shared.connection()).send(message);
        }
    }

    /// Answers a request of which only the start makes sense.
    fn refuse(&mut self, looked: bool) {
        let Some(unique) = self
            .buffer
            .request()
            .get(8..16)
            .and_then(|bytes| bytes.try_into().ok())
        else {
            return;
        };
        let message = self.reply.finish(u64::from_ne_bytes(unique), libc::EIO);
        let from = if looked {
            self.looking.as_ref()
        } else {
            self.waiting.as_ref()
        };
        let _ = from.unwrap_or(self.shared.connection()).send(message);
    }
}
