//! A relayout and a reflink of what it lays out, one in the middle of the other: at each call of the store that the one makes the
//! other one happens as a whole. Whatever comes first, both files keep their content when the source is written over.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_dataset::{Context, FileKind, Progress, ROOT, Tree};
use terrace_store::{
    Batch, ChunkId, ChunkInfo, MemoryStore, Piece, Reservation, Sequence, Store, StoreError, Written,
};

use super::world::{MIB, World, noise, world_over};

type Happens = Box<dyn FnOnce() + Send>;

/// A store that does something of its own before one of its calls.
struct Hooked {
    memory: Arc<MemoryStore>,
    before: Mutex<Option<(u32, Happens)>>,
}

impl Hooked {
    fn call(&self) {
        let happens = {
            let mut before = self.before.lock();
            match &mut *before {
                Some((0, _)) => before.take(),
                Some((others, _)) => {
                    *others -= 1;
                    None
                }
                None => None,
            }
        };
        if let Some((_, happens)) = happens {
            terrace_sync::as_another_thread(happens);
        }
    }

    /// `happens` before a call to come, once so many others were made.
    fn before(&self, others: u32, happens: impl FnOnce() + Send + 'static) {
        *self.before.lock() = Some((others, Box::new(happens)));
    }

    /// Nothing more happens; whether it has.
    fn none_awaited(&self) -> bool {
        self.before.lock().take().is_none()
    }
}

impl Store for Hooked {
    terrace_store::in_memory!(memory: flush newest reserve_always space rewrite);

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.call();
        self.memory.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.call();
        self.memory.scan(from, to, limit)
    }
    fn write_chunks(&self, pieces: &[Piece<'_>]) -> Result<Vec<Written>, StoreError> {
        self.call();
        self.memory.write_chunks(pieces)
    }
    fn read_chunk(&self, id: ChunkId) -> Result<Bytes, StoreError> {
        self.call();
        self.memory.read_chunk(id)
    }
    fn chunk_info(&self, id: ChunkId) -> Result<Option<ChunkInfo>, StoreError> {
        self.call();
        self.memory.chunk_info(id)
    }
    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.call();
        self.memory.commit(batch)
    }
    fn reserve_beside(&self, bytes: u64, own: &dyn Fn() -> u64) -> Result<Reservation, StoreError> {
        self.call();
        self.memory.reserve_beside(bytes, own)
    }
}

/// A file in many pieces, and one that is to share its content; nothing of the first one's regions is in RAM.
fn scattered() -> (Arc<World>, Arc<Hooked>, u64, u64, Vec<u8>) {
    let memory = Arc::new(MemoryStore::new(1 << 30));
    let hooked = Arc::new(Hooked {
        memory: memory.clone(),
        before: Mutex::default(),
    });
    let mut world = world_over(memory, hooked.clone());
    let mut content = noise(1, MIB as usize);
    let source = world.file("f", &content);
    let target = world
        .fs
        .create(&Context::root(), ROOT, b"g", FileKind::File, 0o644, 0);
    let target = target.unwrap().object;
    world.scatter(source, &mut content, 2);
    world.close_and_open();
    // Who looks for a name has the inodes in RAM, and not the regions.
    for name in [b"f", b"g"] {
        world.fs.lookup(&Context::root(), ROOT, name).unwrap();
    }
    (Arc::new(world), hooked, source, target, content)
}

fn share(world: &World, source: u64, target: u64) {
    let copied = world.fs.copy_range(&Context::root(), source, 0, target, 0, MIB);
    assert_eq!(copied, Ok(MIB));
}

/// The source is written over and what it referred to is freed: what the target refers to is its own.
fn check(world: &World, source: u64, target: u64, content: &[u8], what: &str) {
    world.datasets.commit_all().unwrap();
    assert!(world.read(source) == content, "{what}: the source");
    let other = noise(99, MIB as usize);
    world.write(source, 0, &other);
    world.datasets.commit_all().unwrap();
    while world.datasets.sweeper().step(100).unwrap() == Progress::More {}
    // Frees what nothing refers to.
    world.audit();
    assert!(world.read(source) == other, "{what}: the source, written over");
    assert!(world.read(target) == content, "{what}: the target");
}

#[test]
fn a_reflink_in_the_middle_of_a_relayout_keeps_its_content() {
    let mut at = 0;
    loop {
        let what = format!("a reflink before call {at} of a relayout");
        let (world, hooked, source, target, content) = scattered();
        let other = world.clone();
        hooked.before(at, move || share(&other, source, target));
        world.relayout(source, 0).unwrap();
        if !hooked.none_awaited() {
            break;
        }
        check(&world, source, target, &content, &what);
        at += 1;
    }
    assert!(
        at >= 5,
        "{at} calls: records and chunks are read, written and committed"
    );
}

#[test]
fn a_relayout_in_the_middle_of_a_reflink_leaves_it_its_content() {
    let mut at = 0;
    loop {
        let what = format!("a relayout before call {at} of a reflink");
        let (world, hooked, source, target, content) = scattered();
        let other = world.clone();
        hooked.before(at, move || {
            other.relayout(source, 0).unwrap();
        });
        share(&world, source, target);
        if !hooked.none_awaited() {
            break;
        }
        check(&world, source, target, &content, &what);
        at += 1;
    }
    assert!(at >= 1, "the region's record is read");
}
