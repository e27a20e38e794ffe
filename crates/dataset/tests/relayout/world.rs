//! A dataset in memory with files whose blocks were written anew here and there, and the laying out of their regions.
//!
//! Invariant: content is noise from a number, so that nothing is shared by chance and nothing compresses.

use std::sync::Arc;

use terrace_dataset::{
    Context, Cut, Datasets, Environment, FileKind, Filesystem, Fragment, FsError, Layout, NewDataset, ROOT,
    RegionRecord, Relaid, Tree, check, read_region,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) struct World {
    pub(super) clock: Arc<ManualClock>,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) datasets: Datasets,
    pub(super) fs: Arc<Filesystem>,
    pub(super) number: u32,
}

pub(super) fn world_of(size_bytes: u64) -> World {
    let memory = Arc::new(MemoryStore::new(size_bytes));
    world_over(memory.clone(), memory)
}

/// `store`: the one that datasets see, over `memory`.
pub(super) fn world_over(memory: Arc<MemoryStore>, store: Arc<dyn Store>) -> World {
    let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
    let datasets = Datasets::open(Arc::new(Environment::new(store, clock.clone())), "pool").unwrap();
    datasets.create("pool/a", &NewDataset::default()).unwrap();
    let fs = datasets.filesystem("pool/a").unwrap();
    let number = datasets.info("pool/a").unwrap().number;
    World {
        clock,
        memory,
        datasets,
        fs,
        number,
    }
}

/// Lays one region out.
pub(super) fn relayout(
    datasets: &Datasets,
    fragment: Fragment,
    cut: Cut,
    wanted: &dyn Fn(&Layout) -> bool,
    most_bytes: u64,
) -> Result<Relaid, FsError> {
    let wanted = |_: &Fragment, layout: &Layout| wanted(layout);
    let mut done = datasets.relayout(&[fragment], cut, &wanted, most_bytes);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

pub(super) fn world() -> World {
    world_of(1 << 30)
}

pub(super) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

impl World {
    fn store(&self) -> Arc<dyn Store> {
        self.memory.clone()
    }

    /// What was in RAM of the dataset is not any more.
    pub(super) fn close_and_open(&mut self) {
        // The last handle closes with it.
        let other = self.datasets.create("pool/b", &NewDataset::default());
        other.unwrap();
        self.fs = self.datasets.filesystem("pool/b").unwrap();
        self.datasets.close("pool/a").unwrap();
        self.fs = self.datasets.filesystem("pool/a").unwrap();
    }

    pub(super) fn file(&self, name: &str, content: &[u8]) -> u64 {
        let root = Context::root();
        let object = self
            .fs
            .create(&root, ROOT, name.as_bytes(), FileKind::File, 0o644, 0);
        let object = object.unwrap().object;
        self.fs.write(&root, object, 0, content, false).unwrap();
        self.datasets.commit_all().unwrap();
        object
    }

    pub(super) fn write(&self, object: u64, offset: u64, data: &[u8]) {
        self.fs
            .write(&Context::root(), object, offset, data, false)
            .unwrap();
    }

    /// Every `every`th block is written anew, each in a commit of its own with 16 others.
    pub(super) fn scatter(&self, object: u64, content: &mut [u8], every: usize) {
        let blocks = content.len() / 4096;
        // Not in order, so that neighbours do not come together.
        let places: Vec<usize> = (0..blocks).step_by(every).collect();
        for (count, at) in (0..places.len()).map(|at| (at, places[at * 7 % places.len()])) {
            let data = noise((count + 1000 * every) as u64, 4096);
            content[at * 4096..(at + 1) * 4096].copy_from_slice(&data);
            self.write(object, at as u64 * 4096, &data);
            if count % 16 == 15 {
                self.datasets.commit_all().unwrap();
            }
        }
        self.datasets.commit_all().unwrap();
    }

    pub(super) fn fragment(&self, object: u64, region: u64) -> Fragment {
        Fragment {
            dataset: self.number,
            body: object,
            region,
            object,
        }
    }

    pub(super) fn relayout(&self, object: u64, region: u64) -> Result<Relaid, FsError> {
        self.relayout_of(object, region, Cut::InOrder, MIB)
    }

    pub(super) fn relayout_of(
        &self,
        object: u64,
        region: u64,
        cut: Cut,
        most_bytes: u64,
    ) -> Result<Relaid, FsError> {
        let fragment = self.fragment(object, region);
        relayout(&self.datasets, fragment, cut, &Layout::is_gain, most_bytes)
    }

    pub(super) fn record(&self, object: u64, region: u64) -> (u64, RegionRecord) {
        let found = read_region(self.memory.as_ref(), self.number, object, region)
            .unwrap()
            .unwrap();
        (found.birth, found.record)
    }

    pub(super) fn read(&self, object: u64) -> Vec<u8> {
        let mut buffer = vec![0xEE; 8 << 20];
        let length = self.fs.read(object, 0, &mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        // Lets go of what nothing refers to.
        self.memory.references();
        self.memory.space().used_bytes
    }

    /// A full walk finds every count exact, and no chunk without a reference.
    pub(super) fn audit(&self) {
        let report = check(&self.store()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(
            self.memory.references(),
            report.references,
            "references are not what a walk finds"
        );
    }
}
