//! `Device`: a disk as the vhost-user library sees it: features, configuration, and its queues.
//!
//! Each queue has a thread, and calls others. Invariants: a queue that was stopped has nothing under way; no event of a
//! guest ends a thread; once `closing` is set, every thread leaves.

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
use vhost_user_backend::{VhostUserBackend, VringRwLock};
use virtio_bindings::{
    virtio_blk::{
        VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_WRITE_ZEROES,
    },
    virtio_config::VIRTIO_F_VERSION_1,
    virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC},
};
use vmm_sys_util::epoll::EventSet;

use crate::{
    config::{self, WRITEBACK_OFFSET},
    queue::{Memory, Queue, Serve},
    request,
};

/// Queues, each with a thread: a guest uses as many as it has processors, up to this.
pub const QUEUES: usize = 8;
/// Most entries of a queue.
const QUEUE_ENTRIES_MAX: usize = 1024;
/// The event that ends a thread; smaller numbers belong to the library.
pub const CLOSING_EVENT: u16 = QUEUES as u16 + 1;

thread_local! {
    /// The library makes the threads of the queues: each asks for this when it first serves.
    static PROMPT: bool = terrace_device::be_prompt();
}

/// See above.
pub struct Device {
    disk: Arc<dyn BlockDevice>,
    /// What the guest sees as the disk's serial number.
    id: String,
    closing: Arc<AtomicBool>,
    cache: Arc<WriteCache>,
    /// Each with the buffer of its own thread.
    queues: Vec<(Queue, Mutex<Vec<u8>>)>,
}

/// Whether the driver lets writes wait for a flush: it knows of flushes, and has not asked for write-through.
struct WriteCache {
    flushes: AtomicBool,
    writeback: AtomicBool,
}

impl WriteCache {
    fn write_through(&self) -> bool {
        !self.flushes.load(Ordering::Acquire) || !self.writeback.load(Ordering::Acquire)
    }
}

impl Device {
    /// For one monitor.
    pub fn new(disk: Arc<dyn BlockDevice>, id: &str, memory: Memory, closing: Arc<AtomicBool>) -> Self {
        let cache = Arc::new(WriteCache {
            flushes: AtomicBool::new(false),
            writeback: AtomicBool::new(true),
        });
        let serve: Arc<Serve> = {
            let (disk, id, cache) = (disk.clone(), id.to_owned(), cache.clone());
            Arc::new(move |chain, buffer| request::serve(&*disk, chain, &id, cache.write_through(), buffer))
        };
        let queue = || Queue::new(memory.clone(), closing.clone(), serve.clone());
        let queues = (0..QUEUES).map(|_| (queue(), Mutex::default())).collect();
        Self {
            disk,
            id: id.to_owned(),
            closing,
            cache,
            queues,
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
        self.cache.flushes.store(flushes, Ordering::Release);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn reset_device(&self) {
        self.cache.writeback.store(true, Ordering::Release);
    }

    fn set_event_idx(&self, _: bool) {
        // The rings know.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let writeback = self.cache.writeback.load(Ordering::Acquire);
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
        self.cache.writeback.store(*writeback != 0, Ordering::Release);
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
        if let Some((queue, _)) = self.queues.get(queue as usize) {
            queue.settle();
        }
        Ok(())
    }

    fn handle_event(&self, event: u16, _: EventSet, vrings: &[VringRwLock], thread: usize) -> io::Result<()> {
        if event == CLOSING_EVENT || self.closing.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        PROMPT.with(|_| ());
        if let (Some(vring), Some((queue, buffer))) =
            (vrings.get(usize::from(event)), self.queues.get(thread))
            && let Err(error) = queue.serve_all(vring, &mut buffer.lock())
        {
            tracing::debug!(
                "vhost-user: queue {thread} of '{}' stands still: {error}",
                self.id
            );
        }
        Ok(())
    }
}
