//! `RingGroup`: entries of one of the kernel's queues in one ring, for a thread that takes together what came together.
//!
//! Entries wander: a request is answered through whichever ring hands the answer over, and its entry waits there for the
//! next one. So memory with an answer in it comes [in](Door::bring) from other threads, and memory with a request that is
//! not for this one goes [out](RingGroup::take).
//!
//! Invariants: memory in the group is the kernel's but for what [`wait`](RingGroup::wait) named last; each place has at
//! most one command under way, and none when it is empty.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, mpsc},
};

use io_uring::{opcode, squeue::Entry128, types::Fd};
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    device::Connection,
    ring::{Ring, Taken, open_ring, taken},
    ring_memory::RingMemory,
};

/// What the completion of the bell carries; entries carry their place.
const BELL: u64 = u64::MAX;
/// Commands handed over with one call; more take a further one.
const COMMANDS: u32 = 64;

/// By which memory comes into a group, from any thread.
pub struct Door {
    sender: mpsc::Sender<Box<RingMemory>>,
    bell: Arc<OwnedFd>,
}

impl Door {
    /// Brings memory with an answer in it, which the group hands over. It comes back if the group is gone.
    pub fn bring(&self, memory: Box<RingMemory>) -> Result<(), Box<RingMemory>> {
        self.sender.send(memory).map_err(|refused| refused.0)?;
        self.ring();
        Ok(())
    }

    /// Wakes the group's thread.
    pub fn ring(&self) {
        // It fails only if the bell has rung very often already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }
}

/// See the module. Belongs to the thread that made it.
pub struct RingGroup {
    ring: Ring,
    places: Vec<Option<Box<RingMemory>>>,
    bell: Arc<OwnedFd>,
    incoming: mpsc::Receiver<Box<RingMemory>>,
}

impl RingGroup {
    /// Without entries.
    pub fn open() -> io::Result<(Self, Door)> {
        let (sender, incoming) = mpsc::channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let door = Door {
            sender,
            bell: bell.clone(),
        };
        let mut group = Self {
            ring: open_ring(COMMANDS)?,
            places: Vec::new(),
            bell,
            incoming,
        };
        group.listen()?;
        Ok((group, door))
    }

    /// Whether no entry is here.
    pub fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// Memory with a request that came.
    pub fn entry(&mut self, place: usize) -> Option<&mut RingMemory> {
        self.places.get_mut(place)?.as_deref_mut()
    }

    /// Takes memory with a request that came away, to be answered elsewhere.
    pub fn take(&mut self, place: usize) -> Option<Box<RingMemory>> {
        self.places.get_mut(place)?.take()
    }

    /// Hands over the answer in the entry, with the next [`wait`](Self::wait).
    pub fn answered(&mut self, connection: &Connection, place: usize) -> io::Result<()> {
        let Some(memory) = self.places.get(place).and_then(Option::as_deref) else {
            return Ok(());
        };
        let command = memory.answer_command(connection).user_data(place as u64);
        self.push(&command)
    }

    /// Hands over answers, also those that were brought, and waits until requests have come, or the bell has rung: the
    /// places of the entries that have requests. `refused`: told of entries that the kernel does not take back.
    pub fn wait(
        &mut self,
        connection: &Connection,
        came: &mut Vec<usize>,
        mut refused: impl FnMut(io::Error),
    ) -> io::Result<Taken> {
        came.clear();
        while let Ok(memory) = self.incoming.try_recv() {
            let place = self.places.iter().position(Option::is_none);
            let place = place.unwrap_or_else(|| {
                self.places.push(None);
                self.places.len() - 1
            });
            self.places[place] = Some(memory);
            self.answered(connection, place)?;
        }
        while let Err(error) = self.ring.submit_and_wait(1) {
            let again = [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock];
            if !again.contains(&error.kind()) {
                return Err(error);
            }
        }
        let (mut has_rung, mut has_ended) = (false, false);
        for done in self.ring.completion() {
            if done.user_data() == BELL {
                has_rung = true;
                continue;
            }
            let place = done.user_data() as usize;
            match taken(done.result()) {
                Ok(Taken::Request) => came.push(place),
                Ok(Taken::Ended) => has_ended = true,
                Err(error) => {
                    refused(error);
                    self.places[place] = None;
                }
            }
        }
        if has_rung {
            // First it is still, then it is listened to, then what was brought is looked for.
            let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
            self.listen()?;
        }
        Ok(if has_ended { Taken::Ended } else { Taken::Request })
    }

    fn listen(&mut self) -> io::Result<()> {
        let bell = Fd(self.bell.as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(&Entry128::from(poll).user_data(BELL))
    }

    fn push(&mut self, command: &Entry128) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.ring.submit()?;
        }
        // SAFETY: what commands point to is ours, in place, and there until the ring is dropped (fields are dropped in
        // order); a place that was emptied has no command under way.
        unsafe { self.ring.submission().push(command) }.map_err(io::Error::other)
    }
}
