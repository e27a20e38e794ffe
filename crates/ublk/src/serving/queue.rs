//! `Queue`: one queue of a device, with a thread and a ring of its own.
//!
//! The kernel answers a command with a request in a tag's memory; the command that hands the result back waits for the
//! tag's next. A small request that comes alone is served by the thread itself, so that who asks for one thing at a
//! time pays for no handing over; everything else goes to the crew. Invariants: the memory of a tag is the
//! kernel's while a command for it is under way, and ours in between; the thread ends when the device does, with
//! nothing under way.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use io_uring::{opcode, types::Fd};
use rustix::event::{PollFd, PollFlags, poll};
use terrace_device::Uring;

use super::{
    request::{Operation, Request},
    threads::{Crew, Job, Mailbox, Work},
};
use crate::kernel::{
    Buffer, DESCRIPTOR_BYTES, Descriptor, Information, Mapping, QueueCommand, descriptors_at,
    queue_command_bytes,
};

/// Marks the completion that is the bell's.
const BELL: u64 = u64::MAX;
/// What is not longer than this is served by the queue's thread, if it comes alone.
const SMALL_BYTES: u64 = 64 << 10;
/// Most small reads that are done at once.
const READS_MAX: usize = 16;
/// After a pause of this length the memory of the tags is given back.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module. Belongs to the thread that made it.
pub struct Queue {
    // Dropped first: then no command is under way any more.
    ring: Uring,
    channel: Arc<File>,
    number: u16,
    buffer_bytes: usize,
    like_ioctls: bool,
    descriptors: Mapping,
    buffers: Mapping,
    mailbox: Arc<Mailbox>,
    crew: Arc<Crew>,
    closing: Arc<AtomicBool>,
    /// Tags whose command is with the kernel, and tags whose request is with the crew.
    armed: usize,
    outstanding: usize,
    /// Memory of tags was used since it was last given back.
    used: bool,
}

impl Queue {
    /// Gives the kernel a command for each tag: from then on it may send requests. `channel` is the device's own file.
    pub fn register(
        channel: Arc<File>,
        number: u16,
        information: &Information,
        like_ioctls: bool,
        crew: Arc<Crew>,
        mailbox: Arc<Mailbox>,
        closing: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let depth = usize::from(information.depth);
        let buffer_bytes = information.buffer_bytes as usize;
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let descriptors = Mapping::of_file(
            channel.as_fd(),
            descriptors_at(number),
            (depth * DESCRIPTOR_BYTES).next_multiple_of(page),
            false,
        )?;
        let mut queue = Self {
            ring: Uring::shared((depth as u32 + 1).next_power_of_two())?,
            channel,
            number,
            buffer_bytes,
            like_ioctls,
            descriptors,
            buffers: Mapping::anonymous(depth * buffer_bytes)?,
            mailbox,
            crew,
            closing,
            armed: 0,
            outstanding: 0,
            used: false,
        };
        queue.watch_bell()?;
        for tag in 0..information.depth {
            queue.command(QueueCommand::Fetch, tag, 0)?;
        }
        queue.ring.submit()?;
        // A refusal is there at once; a request cannot be, as the disk is not there yet.
        while let Some((carried, result)) = queue.ring.completion() {
            if carried != BELL && result < 0 {
                return Err(io::Error::from_raw_os_error(-result));
            }
        }
        Ok(queue)
    }

    /// Serves requests until the device ends.
    pub fn run(&mut self) -> io::Result<()> {
        let mut arrived = Vec::new();
        while self.armed + self.outstanding > 0 && !self.closing.load(Ordering::Acquire) {
            self.wait()?;
            let mut belled = false;
            while let Some(done) = self.ring.completion() {
                match done {
                    (BELL, _) => belled = true,
                    (tag, 0) => {
                        self.armed -= 1;
                        arrived.push(tag as u16);
                    }
                    // The device ends: nothing more comes for this tag.
                    _ => self.armed -= 1,
                }
            }
            if belled {
                self.watch_bell()?;
                self.hand_back()?;
            }
            self.serve(&mut arrived)?;
        }
        Ok(())
    }

    /// Hands over what was prepared and waits for the kernel, or the crew.
    fn wait(&mut self) -> io::Result<()> {
        let idle = self.used && self.outstanding == 0;
        if !self.ring.wait(idle.then_some(PAUSE))? {
            // SAFETY: no request is under way: each tag waits in the kernel, which copies into the memory, or out of it, only
            // on this thread's way into or out of a call.
            unsafe { self.buffers.forget_content() };
            self.used = false;
        }
        Ok(())
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: commands point to the memory of their tag, which stays until the ring is gone; a poll to nothing.
        unsafe { self.ring.push(entry) }
    }

    fn watch_bell(&mut self) -> io::Result<()> {
        let bell = Fd(self.mailbox.bell().as_raw_fd());
        let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(&entry.user_data(BELL))
    }

    fn command(&mut self, command: QueueCommand, tag: u16, result: i32) -> io::Result<()> {
        let offset = usize::from(tag) * self.buffer_bytes;
        let address = self.buffers.part(offset, self.buffer_bytes).as_ptr() as u64;
        let entry = opcode::UringCmd16::new(Fd(self.channel.as_raw_fd()), command.code(self.like_ioctls))
            .cmd(queue_command_bytes(self.number, tag, result, address))
            .build();
        self.push(&entry.user_data(u64::from(tag)))?;
        self.armed += 1;
        Ok(())
    }

    fn answer(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.command(QueueCommand::CommitAndFetch, tag, result)
    }

    /// Answers what the crew has done.
    fn hand_back(&mut self) -> io::Result<()> {
        for (tag, result) in self.mailbox.take() {
            self.outstanding -= 1;
            self.answer(tag, result)?;
        }
        Ok(())
    }

    fn request_of(&self, tag: u16) -> Result<Request, i32> {
        let place = self
            .descriptors
            .part(usize::from(tag) * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES);
        // SAFETY: inside of the mapping; the kernel wrote it before it told us of the request, and does not again
        // before the request is answered. Aligned: a page begins there, and 24 is a multiple of 8.
        let bytes = unsafe { place.cast::<[u64; 2]>().read_volatile() };
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&bytes[0].to_ne_bytes());
        descriptor[8..].copy_from_slice(&bytes[1].to_ne_bytes());
        Request::decode(Descriptor::decode(&descriptor), self.buffer_bytes)
    }

    /// Serves the requests of `arrived`, or hands them over.
    fn serve(&mut self, arrived: &mut Vec<u16>) -> io::Result<()> {
        let alone = arrived.len() == 1 && self.outstanding == 0;
        let (mut reads, mut others) = (Vec::new(), Vec::new());
        for tag in arrived.drain(..) {
            let request = match self.request_of(tag) {
                Ok(request) => request,
                Err(error) => {
                    self.answer(tag, -error)?;
                    continue;
                }
            };
            self.used = true;
            let offset = usize::from(tag) * self.buffer_bytes;
            // SAFETY: the tag's command has come back, so its memory is ours until it is answered; the mapping stays
            // until every request is (`drop`).
            let buffer = unsafe { Buffer::new(&self.buffers, offset, self.buffer_bytes) };
            let small = request.length <= SMALL_BYTES;
            let work = Work { tag, request, buffer };
            match request.operation {
                Operation::Read | Operation::Write if alone && small && !request.fua => {
                    let Work {
                        request, mut buffer, ..
                    } = work;
                    let result = self.crew.service().serve(&request, buffer.bytes());
                    self.answer(tag, result)?;
                }
                Operation::Read if small => reads.push(work),
                _ => others.push(vec![work]),
            }
        }
        while !reads.is_empty() {
            let rest = reads.split_off(reads.len().min(READS_MAX));
            others.push(std::mem::replace(&mut reads, rest));
        }
        if !others.is_empty() {
            self.outstanding += others.iter().map(Vec::len).sum::<usize>();
            let mailbox = &self.mailbox;
            self.crew.hand_over(others.into_iter().map(|work| Job {
                work,
                mailbox: mailbox.clone(),
            }));
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Workers use the memory of their tags until they have answered.
        while self.outstanding > 0 {
            let mut asked = [PollFd::from_borrowed_fd(self.mailbox.bell(), PollFlags::IN)];
            let _ = poll(&mut asked, None);
            self.outstanding -= self.mailbox.take().len();
        }
    }
}
