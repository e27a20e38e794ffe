//! A guest of our own: its memory in a memfd, its queues and requests written byte by byte, against a server over a disk
//! in RAM.

#![allow(clippy::unwrap_used)]

use std::{
    fs::File,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, memfd_create};
use terrace_dataset::{BlockDevice, BlockStatus, FsError};
use terrace_vhost_user::Server;
use vhost::{
    VhostBackend, VhostUserMemoryRegionInfo, VringConfigData,
    vhost_user::{
        Frontend, VhostUserFrontend,
        message::{VhostUserConfigFlags, VhostUserProtocolFeatures, VhostUserVirtioFeatures},
    },
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

const MIB: usize = 1 << 20;
const MEMORY: usize = 16 * MIB;
const ENTRIES: u16 = 64;
/// Where a queue's parts lie in the guest's memory; the next queue's a MiB further.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const STATUS: u64 = 0x8000;
const DATA: u64 = 8 << 20;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

#[derive(Default)]
struct Disk {
    content: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    discarded: Mutex<Vec<(u64, u64)>>,
    read_only: bool,
    /// While shut, writes wait.
    gate: (Mutex<bool>, Condvar),
}

impl Disk {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            content: Mutex::new(vec![0; bytes]),
            ..Self::default()
        })
    }

    fn shut(&self, shut: bool) {
        *self.gate.0.lock() = shut;
        self.gate.1.notify_all();
    }
}

impl BlockDevice for Disk {
    fn size_bytes(&self) -> u64 {
        self.content.lock().len() as u64
    }
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
        let content = self.content.lock();
        let from = content.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(from.ok_or(FsError::Invalid)?);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        if self.read_only {
            return Err(FsError::ReadOnly);
        }
        let mut shut = self.gate.0.lock();
        while *shut {
            self.gate.1.wait(&mut shut);
        }
        let mut content = self.content.lock();
        let place = content.get_mut(offset as usize..offset as usize + data.len());
        place.ok_or(FsError::Invalid)?.copy_from_slice(data);
        Ok(())
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.content.lock()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), FsError> {
        self.discarded.lock().push((offset, length));
        self.write_zeroes(offset, length)
    }
    fn flush(&self) -> Result<(), FsError> {
        self.durable.lock().clone_from(&self.content.lock());
        Ok(())
    }
    fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
        Ok(Vec::new())
    }
}

/// A descriptor: address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

/// A guest and its monitor in one.
struct Guest {
    frontend: Option<Frontend>,
    memory: GuestMemoryMmap,
    file: File,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// How many requests each queue was given.
    given: Vec<u16>,
    features: u64,
}

impl Guest {
    fn new(queues: usize) -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(MEMORY as u64).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), MEMORY, Some(offset));
        Self {
            frontend: None,
            memory: GuestMemoryMmap::from_ranges_with_files([range]).unwrap(),
            file,
            kicks: (0..queues).map(|_| EventFd::new(0).unwrap()).collect(),
            calls: (0..queues)
                .map(|_| EventFd::new(libc_nonblock()).unwrap())
                .collect(),
            given: vec![0; queues],
            features: 0,
        }
    }

    fn connected(path: &Path, queues: usize) -> Self {
        let mut guest = Self::new(queues);
        guest.connect(path);
        guest
    }

    /// Connects, as a monitor does at the start, and again when its back-end came back.
    fn connect(&mut self, path: &Path) {
        use std::os::fd::AsRawFd;
        let queues = self.given.len();
        let mut frontend = Frontend::connect(path, queues as u64).unwrap();
        frontend.set_owner().unwrap();
        self.features = frontend.get_features().unwrap();
        frontend.set_features(self.features).unwrap();
        let wanted = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ;
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(wanted));
        frontend.set_protocol_features(wanted).unwrap();
        assert!(frontend.get_queue_num().unwrap() as usize >= queues);
        let userspace = self.memory.get_host_address(GuestAddress(0)).unwrap() as u64;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: userspace,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        for queue in 0..queues {
            let at = userspace + Self::base(queue);
            frontend.set_vring_num(queue, ENTRIES).unwrap();
            let rings = VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: at + DESCRIPTORS,
                used_ring_addr: at + USED,
                avail_ring_addr: at + AVAILABLE,
                log_addr: None,
            };
            frontend.set_vring_addr(queue, &rings).unwrap();
            // After a back-end that vanished a monitor goes on behind the last answer.
            frontend.set_vring_base(queue, self.answered(queue)).unwrap();
            frontend.set_vring_call(queue, &self.calls[queue]).unwrap();
            frontend.set_vring_kick(queue, &self.kicks[queue]).unwrap();
            frontend.set_vring_enable(queue, true).unwrap();
        }
        self.frontend = Some(frontend);
    }

    fn base(queue: usize) -> u64 {
        (queue as u64) << 20
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn answered(&self, queue: usize) -> u16 {
        let bytes = self.get(Self::base(queue) + USED + 2, 2);
        u16::from_le_bytes(bytes.try_into().unwrap())
    }

    fn descriptor(&self, queue: usize, index: u16, (address, length, flags, next): Descriptor) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(Self::base(queue) + DESCRIPTORS + u64::from(index) * 16, &bytes);
    }

    /// Puts the chain that begins at `head` into the queue, without a word to the device.
    fn offer(&mut self, queue: usize, head: u16) {
        let slot = u64::from(self.given[queue] % ENTRIES);
        let available = Self::base(queue) + AVAILABLE;
        self.put(available + 4 + slot * 2, &head.to_le_bytes());
        self.given[queue] = self.given[queue].wrapping_add(1);
        self.put(available + 2, &self.given[queue].to_le_bytes());
    }

    /// Builds a request of three descriptors, and offers it. Its slot is told by how many were given before.
    fn request(&mut self, queue: usize, kind: u32, sector: u64, data: (u64, u32, u16)) -> u16 {
        let slot = self.given[queue] % (ENTRIES / 4);
        let (base, head) = (Self::base(queue), slot * 4);
        let (header, status) = (
            base + HEADERS + u64::from(slot) * 16,
            base + STATUS + u64::from(slot),
        );
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        self.put(header, &bytes);
        self.put(status, &[0xff]);
        self.descriptor(queue, head, (header, 16, NEXT, head + 1));
        let last = if data.1 == 0 {
            head + 1
        } else {
            self.descriptor(queue, head + 1, (data.0, data.1, data.2 | NEXT, head + 2));
            head + 2
        };
        self.descriptor(queue, last, (status, 1, WRITE, 0));
        self.offer(queue, head);
        slot
    }

    fn status(&self, queue: usize, slot: u16) -> u8 {
        self.get(Self::base(queue) + STATUS + u64::from(slot), 1)[0]
    }

    fn kick(&self, queue: usize) {
        self.kicks[queue].write(1).unwrap();
    }

    /// Waits until every request of a queue is answered.
    fn wait(&self, queue: usize) {
        self.wait_for(queue, self.given[queue]);
    }

    fn wait_for(&self, queue: usize, count: u16) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.answered(queue) != count {
            assert!(
                Instant::now() < deadline,
                "{} of {count} answered",
                self.answered(queue)
            );
            std::thread::yield_now();
        }
    }

    /// One request, done.
    fn ask(&mut self, queue: usize, kind: u32, sector: u64, data: (u64, u32, u16)) -> u8 {
        let slot = self.request(queue, kind, sector, data);
        self.kick(queue);
        self.wait(queue);
        self.status(queue, slot)
    }

    fn write(&mut self, queue: usize, sector: u64, data: &[u8]) -> u8 {
        self.put(DATA, data);
        self.ask(queue, 1, sector, (DATA, data.len() as u32, 0))
    }

    fn read(&mut self, queue: usize, sector: u64, length: usize) -> Vec<u8> {
        let place = DATA + (4 << 20);
        assert_eq!(self.ask(queue, 0, sector, (place, length as u32, WRITE)), 0);
        self.get(place, length)
    }

    fn flush(&mut self, queue: usize) -> u8 {
        self.ask(queue, 4, 0, (0, 0, 0))
    }

    fn config(&mut self) -> Vec<u8> {
        let flags = VhostUserConfigFlags::WRITABLE;
        let frontend = self.frontend.as_mut().unwrap();
        frontend.get_config(0, 60, flags, &[0; 60]).unwrap().1
    }
}

fn libc_nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits() as i32
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

fn serve(disk: &Arc<Disk>) -> (tempfile::TempDir, std::path::PathBuf, Server) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.sock");
    let server = Server::start(&path, "tank/vm", disk.clone()).unwrap();
    (dir, path, server)
}

#[test]
fn a_guest_reads_writes_flushes_and_gives_back() {
    let disk = Disk::new(8 * MIB);
    let (_dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 1);
    for feature in [
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_DISCARD,
        VIRTIO_BLK_F_WRITE_ZEROES,
        VIRTIO_BLK_F_MQ,
    ] {
        assert_ne!(guest.features & (1 << feature), 0, "feature {feature}");
    }
    assert_eq!(guest.features & (1 << VIRTIO_BLK_F_RO), 0);
    let config = guest.config();
    assert_eq!(config[..8], (8 * MIB as u64 / 512).to_le_bytes());
    assert_eq!((&config[20..24], config[32]), (&4096_u32.to_le_bytes()[..], 1));

    let data = pattern(1, 3 * MIB + 512);
    assert_eq!(guest.write(0, 8, &data), 0);
    assert!(disk.content.lock()[4096..4096 + data.len()] == data);
    assert!(
        disk.durable.lock().is_empty(),
        "a write alone makes nothing durable"
    );
    assert_eq!(guest.flush(0), 0);
    assert!(*disk.durable.lock() == *disk.content.lock());
    assert!(guest.read(0, 8, data.len()) == data);

    // Discard and write zeroes: sector, sectors, flags.
    let mut range = 16_u64.to_le_bytes().to_vec();
    range.extend(8_u32.to_le_bytes());
    range.extend([0; 4]);
    guest.put(DATA, &range);
    assert_eq!(guest.ask(0, 11, 0, (DATA, 16, 0)), 0);
    assert_eq!(*disk.discarded.lock(), [(8192, 4096)]);
    assert_eq!(guest.read(0, 16, 4096), vec![0; 4096]);
    guest.put(DATA + 12, &1_u32.to_le_bytes());
    assert_eq!(guest.ask(0, 11, 0, (DATA, 16, 0)), 2, "a discard knows no flags");
    guest.put(DATA, &24_u64.to_le_bytes());
    assert_eq!(guest.ask(0, 13, 0, (DATA, 16, 0)), 0);
    assert_eq!(guest.read(0, 24, 4096), vec![0; 4096]);
    assert_eq!(guest.read(0, 32, 512), data[12288..12800]);

    assert_eq!(guest.ask(0, 8, 0, (DATA, 20, WRITE)), 0);
    assert_eq!(guest.get(DATA, 8), b"tank/vm\0");
    assert_eq!(
        guest.ask(0, 99, 0, (0, 0, 0)),
        2,
        "an unknown kind is unsupported"
    );
    // The driver asks for write-through: from then on every write is durable when it is answered.
    let frontend = guest.frontend.as_mut().unwrap();
    let flags = VhostUserConfigFlags::WRITABLE;
    frontend.set_config(32, flags, &[0]).unwrap();
    assert_eq!(guest.config()[32], 0);
    assert_eq!(guest.write(0, 0, &[7; 512]), 0);
    assert_eq!(disk.durable.lock()[..512], [7; 512]);
    server.stop();
    assert!(!path.exists());
}

#[test]
fn several_queues_at_once() {
    let disk = Disk::new(8 * MIB);
    let (_dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 4);
    guest.put(DATA, &pattern(9, MIB));
    let mut slots = Vec::new();
    for round in 0..12_u64 {
        for queue in 0..4 {
            let sector = (queue as u64 * 12 + round) * 8;
            let slot = guest.request(queue, 1, sector, (DATA + sector * 512 % MIB as u64, 4096, 0));
            slots.push((queue, slot));
        }
    }
    (0..4).for_each(|queue| guest.kick(queue));
    (0..4).for_each(|queue| guest.wait(queue));
    assert!(slots.iter().all(|(queue, slot)| guest.status(*queue, *slot) == 0));
    assert!(disk.content.lock()[..48 * 4096] == pattern(9, MIB)[..48 * 4096]);
    // A flush of one queue covers the writes of the others.
    assert_eq!(guest.flush(2), 0);
    assert!(disk.durable.lock()[..48 * 4096] == pattern(9, MIB)[..48 * 4096]);
    server.stop();
}

#[test]
fn a_guest_that_lies_gets_errors_and_the_server_lives_on() {
    let disk = Disk::new(MIB);
    let (_dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 1);
    let outside = MIB as u64 / 512;
    // Behind the end, over the end, at an offset that overflows; half a sector.
    for (kind, sector, length) in [
        (1, outside, 512),
        (1, outside - 1, 1024),
        (0, u64::MAX, 512),
        (0, 0, 100),
    ] {
        let flags = if kind == 0 { WRITE } else { 0 };
        assert_eq!(
            guest.ask(0, kind, sector, (DATA, length, flags)),
            1,
            "{kind} at {sector}"
        );
    }
    // A range outside; one that is far too long; half of a range.
    for (sector, sectors, length) in [(outside, 1_u32, 16), (0, u32::MAX, 16), (0, 1, 12)] {
        let mut range = sector.to_le_bytes().to_vec();
        range.extend(sectors.to_le_bytes());
        range.extend([0; 4]);
        guest.put(DATA, &range);
        assert_eq!(guest.ask(0, 11, 0, (DATA, length, 0)), 1);
    }
    assert!(disk.discarded.lock().is_empty());
    // Each is answered, or not, but none is done, and none ends the server: data outside of the memory, a chain that is
    // a circle, one that leaves the table, one without a status, a header of three bytes, an endless length.
    let header = Guest::base(0) + HEADERS + 0x3000;
    guest.put(header, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let chains: [&[Descriptor]; 6] = [
        &[
            (header, 16, NEXT, 1),
            (u64::MAX - 100, 512, NEXT, 2),
            (header + 32, 1, WRITE, 0),
        ],
        &[(header, 16, NEXT, 1), (DATA, 512, NEXT, 0)],
        &[(header, 16, NEXT, 60_000)],
        &[(header, 16, NEXT, 1), (DATA, 512, 0, 0)],
        &[(header, 3, NEXT, 1), (header + 32, 1, WRITE, 0)],
        &[
            (header, 16, NEXT, 1),
            (DATA, u32::MAX, NEXT, 2),
            (header + 32, 1, WRITE, 0),
        ],
    ];
    for chain in chains {
        for (index, descriptor) in chain.iter().enumerate() {
            guest.descriptor(0, index as u16, *descriptor);
        }
        guest.offer(0, 0);
        guest.kick(0);
        guest.wait(0);
    }
    assert!(
        disk.content.lock().iter().all(|byte| *byte == 0),
        "nothing was written"
    );
    assert_eq!(guest.write(0, 0, &[5; 512]), 0, "the next request is served");
    // An index that is far ahead: the queue stands still, the monitor can still speak, the next guest is served.
    guest.put(
        Guest::base(0) + AVAILABLE + 2,
        &guest.given[0].wrapping_add(30_000).to_le_bytes(),
    );
    guest.kick(0);
    assert_eq!(guest.config().len(), 60);
    drop(guest);
    let mut next = Guest::connected(&path, 1);
    assert_eq!(next.read(0, 0, 512), [5; 512]);
    server.stop();
}

#[test]
fn what_was_not_answered_is_served_by_the_server_that_comes_next() {
    let disk = Disk::new(MIB);
    let (dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 1);
    assert_eq!(guest.write(0, 0, &[1; 512]), 0);
    guest.frontend = None;
    server.stop();
    // While nobody is there the guest goes on asking.
    let data = pattern(3, 8192);
    guest.put(DATA, &data);
    let slots = [
        guest.request(0, 1, 8, (DATA, 4096, 0)),
        guest.request(0, 1, 16, (DATA + 4096, 4096, 0)),
    ];
    guest.kick(0);
    let server = Server::start(&dir.path().join("disk.sock"), "tank/vm", disk.clone()).unwrap();
    guest.connect(&path);
    guest.wait(0);
    assert!(slots.iter().all(|slot| guest.status(0, *slot) == 0));
    assert!(disk.content.lock()[4096..4096 + 8192] == data);
    server.stop();
}

#[test]
fn a_guest_that_is_killed_leaves_the_place_to_the_next() {
    let disk = Disk::new(MIB);
    let (_dir, path, server) = serve(&disk);
    for round in 0..20_u8 {
        let mut guest = Guest::connected(&path, 2);
        assert_eq!(guest.write(1, u64::from(round) * 8, &[round; 512]), 0);
        // Gone with requests in its queue.
        guest.request(0, 1, 1024, (DATA, 512, 0));
        guest.kick(0);
    }
    let mut guest = Guest::connected(&path, 2);
    for round in 0..20_u8 {
        assert_eq!(guest.read(0, u64::from(round) * 8, 512), [round; 512]);
    }
    server.stop();
}

#[test]
fn a_queue_that_was_stopped_has_nothing_under_way() {
    let disk = Disk::new(MIB);
    let (_dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 1);
    disk.shut(true);
    guest.put(DATA, &[4; 1024]);
    for sector in 0..2 {
        guest.request(0, 1, sector, (DATA, 512, 0));
    }
    guest.kick(0);
    // The first write is in the disk, waiting: stopping the queue waits for it, and takes no other.
    std::thread::scope(|scope| {
        let frontend = guest.frontend.take().unwrap();
        let stopping = scope.spawn(move || frontend.get_vring_base(0).unwrap());
        disk.shut(false);
        let next = stopping.join().unwrap();
        assert_eq!(next, u32::from(guest.answered(0)), "what was taken was answered");
    });
    server.stop();
}

#[test]
fn a_slow_request_holds_up_the_answers_behind_it_but_not_their_work() {
    let disk = Disk::new(MIB);
    *disk.content.lock() = pattern(6, MIB);
    let (_dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 1);
    disk.shut(true);
    guest.put(DATA, &[8; 512]);
    guest.request(0, 1, 0, (DATA, 512, 0));
    let reads: Vec<u16> = (1..=12)
        .map(|at| guest.request(0, 0, at * 8, (DATA + at * 4096, 4096, WRITE)))
        .collect();
    guest.kick(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while reads.iter().any(|slot| guest.status(0, *slot) != 0) {
        assert!(Instant::now() < deadline, "reads wait for the write before them");
        std::thread::yield_now();
    }
    assert_eq!(guest.answered(0), 0, "answers come in order");
    disk.shut(false);
    guest.wait(0);
    // The heads of the chains in the used ring, as they were given.
    for (at, slot) in (0..13).enumerate() {
        let used = guest.get(Guest::base(0) + USED + 4 + at as u64 * 8, 4);
        assert_eq!(used, (slot * 4_u32).to_le_bytes());
    }
    for at in 1..=12 {
        assert!(guest.get(DATA + at as u64 * 4096, 4096) == pattern(6, MIB)[at * 4096..][..4096]);
    }
    server.stop();
}

#[test]
fn a_read_only_disk_says_so_and_refuses() {
    let disk = Arc::new(Disk {
        content: Mutex::new(vec![3; MIB]),
        read_only: true,
        ..Disk::default()
    });
    let (_dir, path, server) = serve(&disk);
    let mut guest = Guest::connected(&path, 1);
    assert_ne!(guest.features & (1 << VIRTIO_BLK_F_RO), 0);
    assert_ne!(
        guest.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(),
        0
    );
    assert_eq!(guest.write(0, 0, &[1; 512]), 1);
    assert_eq!(guest.read(0, 0, 512), [3; 512]);
    server.stop();
}
