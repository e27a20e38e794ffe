//! Streams that are written ahead of their commit: nothing shows of it but speed, whatever happens in between.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use terrace_cache::Budget;
use terrace_dataset::{
    AllocateMode, Context, Datasets, Environment, FileKind, Filesystem, FsError, NewDataset, ROOT,
    SetAttributes, Tree, Volume, check,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Piece, Reservation, Store, StoreError, Written};

const MIB: usize = 1 << 20;
const SLOT: usize = 128 << 10;

type Hook = parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A store that does something of its own before chunks are written or room is set aside, or fails to write them.
struct Hooked {
    memory: MemoryStore,
    fails: AtomicBool,
    before_write: Hook,
    before_reserve: Hook,
}

impl Store for Hooked {
    terrace_store::in_memory!(memory: get scan read_chunk chunk_info commit flush newest reserve_always space rewrite);

    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        let hook = self.before_write.lock().take();
        if let Some(hook) = hook {
            terrace_sync::as_another_thread(hook);
        }
        if self.fails.load(SeqCst) {
            return Err(StoreError::Device("the device is gone".into()));
        }
        self.memory.write_chunks(pieces)
    }
    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        let hook = self.before_reserve.lock().take();
        if let Some(hook) = hook {
            terrace_sync::as_another_thread(hook);
        }
        self.memory.reserve_beside(bytes, own)
    }
}

struct Rig {
    store: Arc<Hooked>,
    environment: Arc<Environment>,
    datasets: Datasets,
    fs: Arc<Filesystem>,
}

fn open(store: &Arc<Hooked>) -> (Arc<Environment>, Datasets) {
    open_with(store, Budget::new(64 << 20).without_delays())
}

fn open_with(store: &Arc<Hooked>, budget: Budget) -> (Arc<Environment>, Datasets) {
    let as_store: Arc<dyn Store> = store.clone();
    let budget = Arc::new(budget);
    let clock = Arc::new(ManualClock::new(1));
    let environment = Arc::new(Environment::with_budget(as_store, clock, budget));
    let datasets = Datasets::open(environment.clone(), "pool").unwrap();
    (environment, datasets)
}

impl Rig {
    fn new(size_bytes: u64) -> Self {
        Self::with(size_bytes, Budget::new(64 << 20).without_delays())
    }

    fn with(size_bytes: u64, budget: Budget) -> Self {
        let store = Arc::new(Hooked {
            memory: MemoryStore::new(size_bytes),
            fails: AtomicBool::new(false),
            before_write: Hook::default(),
            before_reserve: Hook::default(),
        });
        let (environment, datasets) = open_with(&store, budget);
        datasets.create("pool/a", &NewDataset::default()).unwrap();
        let fs = datasets.filesystem("pool/a").unwrap();
        Self {
            store,
            environment,
            datasets,
            fs,
        }
    }

    fn file(&self, name: &[u8]) -> u64 {
        let made = self
            .fs
            .create(&Context::root(), ROOT, name, FileKind::File, 0o644, 0);
        made.unwrap().object
    }

    fn write(&self, object: u64, offset: usize, content: &[u8]) {
        self.fs
            .write(&Context::root(), object, offset as u64, content, false)
            .unwrap();
    }

    fn stream(&self, object: u64, content: &[u8]) {
        for (at, piece) in content.chunks(MIB).enumerate() {
            self.write(object, at * MIB, piece);
        }
    }

    fn ahead(&self) -> u64 {
        while self.datasets.flusher().write_ahead_step() {}
        self.datasets.environment().ahead.bytes()
    }

    fn read(&self, object: u64, length: usize) -> Vec<u8> {
        let mut content = vec![0xEE; length];
        let read = self.fs.read(object, 0, &mut content).unwrap();
        content.truncate(read);
        content
    }

    /// Everything is accounted for, and nothing stays dirty.
    fn commit_and_check(&self) {
        self.fs.sync().unwrap();
        assert_eq!(self.environment.budget.dirty_bytes(), 0);
        assert_eq!(self.datasets.environment().ahead.bytes(), 0);
        let as_store: Arc<dyn Store> = self.store.clone();
        let report = check(&as_store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.references, self.store.memory.references());
    }
}

/// Content in which no two chunks are alike, with a stretch of zeroes.
fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut content: Vec<u8> = (0..length / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    content[2 * MIB + 8192..2 * MIB + 40_960].fill(0);
    content
}

#[test]
fn a_stream_is_stored_before_its_commit_and_frees_its_memory() {
    let rig = Rig::new(1 << 30);
    let (object, data) = (rig.file(b"a"), content(8 * MIB, 1));
    rig.stream(object, &data);
    assert!(rig.environment.budget.dirty_bytes() >= 8 * MIB as u64);
    assert_eq!(rig.ahead(), 8 * MIB as u64);
    assert!(rig.environment.budget.dirty_bytes() < MIB as u64);
    assert!(rig.read(object, 9 * MIB) == data);
    rig.commit_and_check();
    assert!(rig.read(object, 9 * MIB) == data);
}

#[test]
fn what_changes_after_it_was_written_ahead_is_what_counts() {
    let rig = Rig::new(1 << 30);
    let (object, mut data) = (rig.file(b"a"), content(8 * MIB, 2));
    rig.stream(object, &data);
    rig.ahead();
    // A few bytes, some blocks, a punched hole, a cut end, and one slot again as a whole.
    rig.write(object, 100_000, &[1; 10]);
    data[100_000..100_010].fill(1);
    rig.write(object, 3 * SLOT + 4096, &[2; 8192]);
    data[3 * SLOT + 4096..3 * SLOT + 12_288].fill(2);
    rig.fs
        .allocate(
            &Context::root(),
            object,
            AllocateMode::Punch,
            5 * SLOT as u64,
            SLOT as u64,
        )
        .unwrap();
    data[5 * SLOT..6 * SLOT].fill(0);
    let size = SetAttributes {
        size: Some(7 * MIB as u64 + 5000),
        ..Default::default()
    };
    rig.fs.set_attributes(&Context::root(), object, &size).unwrap();
    data.truncate(7 * MIB + 5000);
    rig.write(object, 7 * SLOT, &content(4 * MIB, 3)[..SLOT]);
    data[7 * SLOT..8 * SLOT].copy_from_slice(&content(4 * MIB, 3)[..SLOT]);
    assert!(rig.read(object, 9 * MIB) == data);
    rig.ahead();
    rig.commit_and_check();
    assert!(rig.read(object, 9 * MIB) == data);
}

#[test]
fn what_changes_while_it_is_on_its_way_stays_dirty() {
    let rig = Rig::new(1 << 30);
    let (object, mut data) = (rig.file(b"a"), content(8 * MIB, 4));
    rig.stream(object, &data);
    let fs = rig.fs.clone();
    *rig.store.before_write.lock() = Some(Box::new(move || {
        fs.write(&Context::root(), object, 5, b"late", false).unwrap();
    }));
    let ahead = rig.ahead();
    assert_eq!(
        ahead,
        (8 * MIB - SLOT) as u64,
        "all but the slot that was changed"
    );
    data[5..9].copy_from_slice(b"late");
    assert!(rig.read(object, 9 * MIB) == data);
    rig.commit_and_check();
    assert!(rig.read(object, 9 * MIB) == data);
}

#[test]
fn a_crash_leaves_nothing_of_it() {
    let rig = Rig::new(1 << 30);
    let object = rig.file(b"a");
    rig.write(object, 0, b"before");
    rig.fs.sync().unwrap();
    rig.stream(object, &content(8 * MIB, 5));
    assert!(rig.ahead() > 0);
    let Rig {
        store,
        environment,
        datasets,
        fs,
    } = rig;
    drop((environment, datasets, fs));
    let (_, datasets) = open(&store);
    let fs = datasets.filesystem("pool/a").unwrap();
    let mut found = vec![0; 100];
    assert_eq!(fs.read(object, 0, &mut found).unwrap(), 6);
    assert_eq!(&found[..6], b"before");
    let as_store: Arc<dyn Store> = store.clone();
    assert_eq!(check(&as_store).unwrap().problems, Vec::<String>::new());
    // The next commit of anything lets go of what was written ahead.
    fs.write(&Context::root(), object, 0, b"after ", false).unwrap();
    fs.sync().unwrap();
    assert_eq!(store.space().chunks, 1);
}

#[test]
fn a_removed_file_gives_back_what_was_written_ahead() {
    let rig = Rig::new(64 << 20);
    for round in 0..20 {
        let object = rig.file(b"a");
        rig.stream(object, &content(8 * MIB, 100 + round));
        assert!(rig.ahead() > 0);
        rig.fs.unlink(&Context::root(), ROOT, b"a").unwrap();
        rig.fs.sync().unwrap();
    }
    rig.commit_and_check();
    assert_eq!(rig.store.space().chunks, 0);
}

#[test]
fn a_copy_of_what_was_written_ahead_outlives_its_source() {
    let rig = Rig::new(1 << 30);
    let (source, copy) = (rig.file(b"a"), rig.file(b"b"));
    let data = content(8 * MIB, 6);
    rig.stream(source, &data);
    rig.ahead();
    let copied = rig
        .fs
        .copy_range(&Context::root(), source, 0, copy, 0, 8 * MIB as u64)
        .unwrap();
    assert_eq!(copied, 8 * MIB as u64);
    rig.fs.unlink(&Context::root(), ROOT, b"a").unwrap();
    rig.commit_and_check();
    assert!(rig.read(copy, 9 * MIB) == data);
}

/// Requests that are under way at once come in any order, and need not end where a slot does.
#[test]
fn a_stream_whose_writes_change_places_is_written_ahead() {
    let rig = Rig::new(1 << 30);
    let (object, data) = (rig.file(b"a"), content(24 * MIB, 9));
    let piece = MIB - 64 * 1024;
    let pieces: Vec<_> = data.chunks(piece).enumerate().collect();
    rig.fs
        .set_attributes(
            &Context::root(),
            object,
            &SetAttributes {
                size: Some(25 * MIB as u64),
                ..SetAttributes::default()
            },
        )
        .unwrap();
    for four in pieces.chunks(4) {
        for place in [2, 0, 3, 1] {
            if let Some((at, piece_content)) = four.get(place) {
                rig.write(object, at * piece, piece_content);
            }
        }
    }
    assert!(
        rig.ahead() >= 23 * MIB as u64,
        "{}",
        rig.datasets.environment().ahead.bytes()
    );
    rig.commit_and_check();
    assert!(rig.read(object, 26 * MIB)[..24 * MIB] == data);
}

/// Making room can take long, and what gives room back must not wait for it.
#[test]
fn a_commit_ends_while_a_writer_waits_for_room() {
    let rig = Rig::new(1 << 30);
    let (first, second) = (rig.file(b"a"), rig.file(b"b"));
    let data = content(8 * MIB, 10);
    rig.stream(first, &data);
    rig.ahead();
    let done = Arc::new(AtomicBool::new(false));
    let (fs, committed) = (rig.fs.clone(), done.clone());
    *rig.store.before_reserve.lock() = Some(Box::new(move || {
        fs.sync().unwrap();
        committed.store(true, SeqCst);
    }));
    rig.stream(second, &data);
    assert!(done.load(SeqCst), "no room was asked for");
    rig.commit_and_check();
    assert!(rig.read(first, 9 * MIB) == data && rig.read(second, 9 * MIB) == data);
}

#[test]
fn a_failure_is_reported_by_the_commit_and_made_up_for() {
    let rig = Rig::new(1 << 30);
    let (object, data) = (rig.file(b"a"), content(8 * MIB, 7));
    rig.stream(object, &data);
    rig.store.fails.store(true, SeqCst);
    assert!(!rig.datasets.flusher().write_ahead_step());
    assert_eq!(rig.datasets.environment().ahead.bytes(), 0);
    assert!(matches!(rig.fs.sync(), Err(FsError::Io(_))));
    rig.store.fails.store(false, SeqCst);
    rig.commit_and_check();
    assert!(rig.read(object, 9 * MIB) == data);
}

#[test]
fn a_full_pool_refuses_before_it_accepts_too_much() {
    let rig = Rig::new(24 << 20);
    let object = rig.file(b"a");
    let data = content(32 * MIB, 8);
    let mut accepted = 0;
    for piece in data.chunks(MIB) {
        match rig
            .fs
            .write(&Context::root(), object, accepted as u64, piece, false)
        {
            Ok(written) => accepted += written,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        rig.datasets.flusher().write_ahead_step();
    }
    assert!((8 * MIB..32 * MIB).contains(&accepted), "{accepted}");
    rig.commit_and_check();
    assert!(rig.read(object, 33 * MIB) == data[..accepted]);
}

impl Rig {
    fn volume(&self) -> Arc<Volume> {
        let new = NewDataset {
            volume_bytes: Some(64 * MIB as u64),
            sparse: true,
            ..NewDataset::default()
        };
        self.datasets.create("pool/v", &new).unwrap();
        self.datasets.volume("pool/v").unwrap()
    }

    fn end(&self, volume: &Volume, data: &[u8]) {
        assert!(image(volume, data.len()) == data);
        volume.flush().unwrap();
        self.commit_and_check();
        assert_eq!(volume.leaked_room_bytes(), 0);
        assert!(image(volume, data.len()) == data);
    }
}

fn image(volume: &Volume, length: usize) -> Vec<u8> {
    let mut content = vec![0xEE; length];
    volume.read(0, &mut content).unwrap();
    content
}

fn stream_to(volume: &Volume, content: &[u8]) {
    for (at, piece) in content.chunks(MIB).enumerate() {
        volume.write((at * MIB) as u64, piece).unwrap();
    }
}

#[test]
fn a_stream_to_a_volume_never_becomes_dirty() {
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    let data = content(24 * MIB, 11);
    stream_to(&volume, &data);
    let dirty = rig.environment.budget.dirty_bytes();
    assert!(dirty < 4 * MIB as u64, "{dirty} bytes");
    assert!(rig.datasets.environment().ahead.bytes() >= 20 * MIB as u64);
    rig.end(&volume, &data);
    // Over what is committed, and once more before the next commit.
    let [second, third] = [12, 13].map(|seed| content(24 * MIB, seed));
    stream_to(&volume, &second);
    stream_to(&volume, &third);
    rig.end(&volume, &third);
}

#[test]
fn large_writes_anywhere_never_become_dirty_but_for_what_is_written_over_again() {
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    let mut data = content(24 * MIB, 21);
    let places: Vec<usize> = (0..24 * MIB / SLOT).map(|at| at * 77 % 192 * SLOT).collect();
    for at in &places {
        volume.write(*at as u64, &data[*at..at + SLOT]).unwrap();
    }
    let dirty = || rig.environment.budget.dirty_bytes();
    // What its chunks take in memory counts.
    assert!(dirty() < 2 * MIB as u64, "{} bytes", dirty());
    assert_eq!(rig.datasets.environment().ahead.bytes(), 24 * MIB as u64);
    // Before the next commit: again, and a part of it.
    let before = dirty();
    let again = content(4 * MIB, 22);
    for at in &places[..8] {
        volume.write(*at as u64, &again[..SLOT]).unwrap();
        data[*at..at + SLOT].copy_from_slice(&again[..SLOT]);
    }
    assert_eq!(rig.datasets.environment().ahead.bytes(), 24 * MIB as u64);
    assert_eq!(dirty() - before, 8 * SLOT as u64);
    rig.end(&volume, &data);
    // What does not begin and end where chunks do.
    for at in &places[..8] {
        volume.write(*at as u64 + 4096, &again[..SLOT - 4096]).unwrap();
        data[at + 4096..at + SLOT].copy_from_slice(&again[..SLOT - 4096]);
    }
    assert_eq!(rig.datasets.environment().ahead.bytes(), 0);
    rig.end(&volume, &data);
}

#[test]
fn who_is_alone_writes_pages_until_writers_are_slowed() {
    let rig = Rig::with(1 << 30, Budget::new(64 << 20));
    let volume = rig.volume();
    let data = content(32 * MIB, 23);
    let half = (64 / 8 * 3 / 2) * MIB as u64;
    let write = |at: usize| volume.write(at as u64, &data[at..at + SLOT]).unwrap();
    (0..32 * MIB).step_by(2 * SLOT).for_each(write);
    let dirty = rig.environment.budget.dirty_bytes();
    assert!((half..half + MIB as u64).contains(&dirty), "{dirty} bytes");
    assert_eq!(
        rig.datasets.environment().ahead.bytes(),
        16 * MIB as u64 - half - SLOT as u64
    );
    // Beside one who does so others do.
    let (other, datasets) = (volume.clone(), rig.datasets.environment().ahead.bytes());
    let budget = rig.environment.budget.clone();
    let piece = data[SLOT..2 * SLOT].to_vec();
    let wrote = Arc::new(AtomicBool::new(false));
    let done = wrote.clone();
    *rig.store.before_write.lock() = Some(Box::new(move || {
        other.flush().unwrap();
        let before = budget.dirty_bytes();
        assert!(before < half / 2, "{before} bytes");
        other.write(SLOT as u64, &piece).unwrap();
        let more = budget.dirty_bytes() - before;
        assert!(more < SLOT as u64, "{more} bytes");
        done.store(true, SeqCst);
    }));
    write(3 * SLOT);
    assert!(rig.store.before_write.lock().take().is_none(), "it became pages");
    assert!(wrote.load(SeqCst) && datasets > 0);
    (5 * SLOT..32 * MIB).step_by(2 * SLOT).for_each(write);
    rig.end(&volume, &data);
}

/// A kernel cuts large requests for a block device where their memory happens to lie, and has both parts under way at once.
#[test]
fn what_is_cut_between_chunks_is_written_through_but_for_its_ends() {
    const CUTS: [usize; 8] = [129, 127, 141, 115, 128, 128, 133, 123];
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    for (seed, swapped) in [(31, false), (32, true)] {
        let data = content(24 * MIB, seed);
        let mut parts = Vec::new();
        let mut at = 0;
        for blocks in CUTS.iter().cycle() {
            if at == data.len() {
                break;
            }
            let end = (at + blocks * 4096).min(data.len());
            parts.push((at, &data[at..end]));
            at = end;
        }
        if swapped {
            parts.chunks_mut(2).for_each(<[_]>::reverse);
        }
        // The second time over ends that are dirty, for which room was taken before.
        for _ in 0..2 {
            for (at, part) in &parts {
                volume.write(*at as u64, part).unwrap();
            }
        }
        let (dirty, ahead) = (
            rig.environment.budget.dirty_bytes(),
            rig.datasets.environment().ahead.bytes(),
        );
        assert!(dirty < 5 * MIB as u64, "{dirty} bytes");
        assert!(ahead >= 20 * MIB as u64, "{ahead} bytes");
        // Once more over two ends that met: dirty already, and in part.
        volume.write(128 * 4096, &data[128 * 4096..130 * 4096]).unwrap();
        volume
            .write(129 * 4096 + 7, &data[129 * 4096 + 7..129 * 4096 + 99])
            .unwrap();
        rig.end(&volume, &data);
        let chunks = rig.store.space().chunks;
        // One of them would be all zeroes.
        let whole = 24 * MIB as u64 / (16 << 10) - 1;
        assert_eq!(chunks, whole, "ends that met are one chunk");
    }
}

#[test]
fn what_is_written_through_and_what_is_not_take_turns() {
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    let mut data = content(24 * MIB, 14);
    // Dirty pages give way to it, it to dirty pages and to holes.
    volume.write(10 * MIB as u64 + 5000, &[1; 70_000]).unwrap();
    volume
        .write(12 * MIB as u64, &content(4 * MIB, 15)[..MIB])
        .unwrap();
    stream_to(&volume, &data);
    volume.write(9 * MIB as u64 + 100, &[2; 5000]).unwrap();
    data[9 * MIB + 100..9 * MIB + 5100].fill(2);
    volume.discard(14 * MIB as u64 + 4096, 300_000).unwrap();
    data[14 * MIB + 4096..14 * MIB + 304_096].fill(0);
    rig.end(&volume, &data);
    // What does not begin and end where chunks do.
    let tail = content(6 * MIB, 16);
    for (at, piece) in tail.chunks(MIB - 4096).enumerate() {
        let at = 24 * MIB + at * (MIB - 4096);
        volume.write(at as u64, piece).unwrap();
    }
    data.extend_from_slice(&tail);
    rig.end(&volume, &data);
}

#[test]
fn what_cannot_be_written_through_stays_in_ram_and_is_committed_later() {
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    let data = content(24 * MIB, 17);
    let (first, rest) = data.split_at(8 * MIB);
    stream_to(&volume, first);
    rig.store.fails.store(true, SeqCst);
    let ahead = rig.datasets.environment().ahead.bytes();
    for (at, piece) in rest.chunks(MIB).enumerate().take(4) {
        volume.write(((8 + at) * MIB) as u64, piece).unwrap();
    }
    assert_eq!(rig.datasets.environment().ahead.bytes(), ahead);
    rig.store.fails.store(false, SeqCst);
    for (at, piece) in rest.chunks(MIB).enumerate().skip(4) {
        volume.write(((8 + at) * MIB) as u64, piece).unwrap();
    }
    rig.end(&volume, &data);
}

#[test]
fn a_commit_and_a_write_while_content_is_on_its_way_lose_nothing() {
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    let data = content(24 * MIB, 18);
    let (first, rest) = data.split_at(16 * MIB);
    stream_to(&volume, first);
    let other = volume.clone();
    *rig.store.before_write.lock() = Some(Box::new(move || {
        // Done before the one on its way is: that one is the later.
        other.write(16 * MIB as u64 + 8192, &[9; 4096]).unwrap();
        other.write(40 * MIB as u64, &[8; 4096]).unwrap();
        other.flush().unwrap();
    }));
    for (at, piece) in rest.chunks(MIB).enumerate() {
        volume.write(((16 + at) * MIB) as u64, piece).unwrap();
    }
    let mut block = [0; 4096];
    volume.read(40 * MIB as u64, &mut block).unwrap();
    assert_eq!(block, [8; 4096]);
    rig.end(&volume, &data);
}

#[test]
fn a_crash_leaves_nothing_of_what_was_written_through() {
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    let old = content(24 * MIB, 19);
    stream_to(&volume, &old);
    volume.flush().unwrap();
    let chunks = rig.store.space().chunks;
    stream_to(&volume, &content(24 * MIB, 20));
    assert!(rig.datasets.environment().ahead.bytes() > 0);
    let Rig {
        store,
        environment,
        datasets,
        fs,
    } = rig;
    drop((environment, datasets, fs, volume));
    let (_, datasets) = open(&store);
    let volume = datasets.volume("pool/v").unwrap();
    assert!(image(&volume, old.len()) == old);
    volume.write(0, &old[..4096]).unwrap();
    volume.flush().unwrap();
    assert!(store.space().chunks <= chunks + 1, "{}", store.space().chunks);
}

/// Writers of whole blocks work beside one another; who changes a part of a block sees the rest as it was last written.
#[test]
fn writers_of_whole_blocks_and_of_parts_beside_one_another() {
    const WRITERS: usize = 4;
    const BLOCKS: usize = 256;
    let rig = Rig::new(1 << 30);
    let volume = rig.volume();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let volume = &volume;
            scope.spawn(move || {
                for round in 1..=6u8 {
                    for block in (writer..BLOCKS).step_by(WRITERS) {
                        let at = (block * 4096) as u64;
                        volume.write(at, &[round; 4096]).unwrap();
                        // The first bytes of the same block, by the same writer; neighbours change meanwhile.
                        if round % 2 == 0 {
                            volume.write(at + 10, &[round + 100; 20]).unwrap();
                        }
                    }
                }
            });
        }
        let volume = &volume;
        scope.spawn(move || (0..20).for_each(|_| volume.flush().unwrap()));
    });
    let mut expected = vec![6; BLOCKS * 4096];
    for block in expected.chunks_mut(4096) {
        block[10..30].fill(106);
    }
    rig.end(&volume, &expected);
}
