//! `Device`: a disk as the vhost-user library sees it: features, configuration, and the loop over a queue.
//!
//! Each queue has a thread. Invariants: a request is taken, done and answered under the queue's `turn`, so that a queue
//! that was stopped has nothing under way; no event of a guest ends a thread; once `closing` is set, every thread leaves.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use terrace_dataset::BlockDevice;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringRwLock, VringT};
use virtio_bindings::{
    virtio_blk::{
        VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_WRITE_ZEROES,
    },
    virtio_config::VIRTIO_F_VERSION_1,
    virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC},
};
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::{
    config::{self, WRITEBACK_OFFSET},
    request,
};

/// Queues, each with a thread: a guest uses as many as it has processors, up to this.
pub const QUEUES: usize = 8;
/// Most entries of a queue.
const QUEUE_ENTRIES_MAX: usize = 1024;
/// The event that ends a thread; smaller numbers belong to the library.
pub const CLOSING_EVENT: u16 = QUEUES as u16 + 1;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// See above.
pub struct Device {
    disk: Arc<dyn BlockDevice>,
    /// What the guest sees as the disk's serial number.
    id: String,
    memory: Memory,
    closing: Arc<AtomicBool>,
    /// The driver knows of flushes, and has not asked for write-through.
    flushes: AtomicBool,
    writeback: AtomicBool,
    /// One for each queue, with its buffer: held while a request is served.
    turns: [Mutex<Vec<u8>>; QUEUES],
}

impl Device {
    /// For one monitor.
    pub fn new(disk: Arc<dyn BlockDevice>, id: &str, memory: Memory, closing: Arc<AtomicBool>) -> Self {
        Self {
            disk,
            id: id.to_owned(),
            memory,
            closing,
            flushes: AtomicBool::new(false),
            writeback: AtomicBool::new(true),
            turns: Default::default(),
        }
    }

    /// Takes the next request of a queue, does it and answers; whether there was one.
    fn serve_next(&self, vring: &VringRwLock, queue: usize) -> io::Result<bool> {
        let mut buffer = self.turns[queue].lock();
        if self.closing.load(Ordering::Acquire) {
            return Ok(false);
        }
        let memory = self.memory.memory();
        let chain = {
            let mut state = vring.get_mut();
            let enabled = state.is_enabled();
            let queue = state.get_queue_mut();
            if !enabled || !queue.ready() {
                return Ok(false);
            }
            // An index that makes no sense, or rings outside of the memory: the queue stands still.
            match queue.iter(memory) {
                Ok(mut chains) => chains.next(),
                Err(error) => return Err(io::Error::other(error)),
            }
        };
        let Some(chain) = chain else { return Ok(false) };
        let head = chain.head_index();
        let write_through = !self.flushes.load(Ordering::Acquire) || !self.writeback.load(Ordering::Acquire);
        let written = request::serve(&*self.disk, chain, &self.id, write_through, &mut buffer);
        vring.add_used(head, written).map_err(io::Error::other)?;
        if vring.needs_notification().map_err(io::Error::other)? {
            vring.signal_used_queue()?;
        }
        Ok(true)
    }

    /// Serves a queue until it is empty.
    fn serve_queue(&self, vring: &VringRwLock, queue: usize) -> io::Result<()> {
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            let mut served = false;
            while self.serve_next(vring, queue)? {
                served = true;
            }
            // Something may have come between the last look and asking to be told.
            if !vring.enable_notification().map_err(io::Error::other)? || !served {
                return Ok(());
            }
        }
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_ENTRIES_MAX
    }

    fn features(&self) -> u64 {
        let mut features = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        for bit in [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_MQ,
            // A write cache is said to be there: otherwise Linux sends no flushes.
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_CONFIG_WCE,
            VIRTIO_BLK_F_DISCARD,
            VIRTIO_BLK_F_WRITE_ZEROES,
        ] {
            features |= 1 << bit;
        }
        if self.disk.read_only() {
            features |= 1 << VIRTIO_BLK_F_RO;
        }
        features
    }

    fn acked_features(&self, features: u64) {
        let flushes = features & (1 << VIRTIO_BLK_F_FLUSH) != 0;
        self.flushes.store(flushes, Ordering::Release);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn reset_device(&self) {
        self.writeback.store(true, Ordering::Release);
    }

    fn set_event_idx(&self, _: bool) {
        // The rings know.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let writeback = self.writeback.load(Ordering::Acquire);
        let (size_bytes, block_bytes) = (self.disk.size_bytes(), self.disk.block_bytes());
        let space = config::space(size_bytes, block_bytes, QUEUES as u16, writeback);
        let from = (offset as usize).min(space.len());
        let until = from.saturating_add(size as usize).min(space.len());
        let mut part = space[from..until].to_vec();
        // Monitors of another age know more or fewer fields.
        part.resize(size.min(256) as usize, 0);
        part
    }

    fn set_config(&self, offset: u32, values: &[u8]) -> io::Result<()> {
        let place = (WRITEBACK_OFFSET.checked_sub(offset)).and_then(|at| values.get(at as usize));
        let Some(writeback) = place else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.writeback.store(*writeback != 0, Ordering::Release);
        // What was written under the promise of a flush to come has none now.
        self.disk
            .flush()
            .map_err(|error| io::Error::other(error.to_string()))
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        // The same object: each request takes the memory as it is then.
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..QUEUES).map(|queue| 1 << queue).collect()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        if let Some(turn) = self.turns.get(queue as usize) {
            drop(turn.lock());
        }
        Ok(())
    }

    fn handle_event(&self, event: u16, _: EventSet, vrings: &[VringRwLock], thread: usize) -> io::Result<()> {
        if event == CLOSING_EVENT || self.closing.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some(vring) = vrings.get(usize::from(event))
            && let Err(error) = self.serve_queue(vring, thread)
        {
            tracing::debug!(
                "vhost-user: queue {thread} of '{}' stands still: {error}",
                self.id
            );
        }
        Ok(())
    }
}
