//! A pool of datasets in memory, on a clock that stands still.

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::{
    Context, Datasets, Environment, FileKind, FsError, NewDataset, Progress, PropertyService, SnapshotStore,
    Tree, check,
};
use terrace_device::ManualClock;
use terrace_store::{MemoryStore, Store};

pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) struct Pool {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) datasets: Datasets,
}

pub(super) fn open(memory: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> Datasets {
    let store: Arc<dyn Store> = memory.clone();
    Datasets::open(Arc::new(Environment::new(store, clock.clone())), "pool").unwrap()
}

impl Pool {
    pub(super) fn new() -> Self {
        let memory = Arc::new(MemoryStore::new(1 << 30));
        let clock = Arc::new(ManualClock::new(1_800_000_000 * SECOND));
        let datasets = open(&memory, &clock);
        Self {
            memory,
            clock,
            datasets,
        }
    }

    pub(super) fn snapshots(&self) -> &SnapshotStore {
        self.datasets.snapshots()
    }

    pub(super) fn properties(&self) -> &PropertyService {
        self.datasets.properties()
    }

    pub(super) fn create(&self, name: &str) {
        self.datasets.create(name, &NewDataset::default()).unwrap();
    }

    pub(super) fn write(&self, dataset: &str, name: &[u8], content: &[u8]) {
        let filesystem = self.datasets.filesystem(dataset).unwrap();
        let root = Context::root();
        let object = match filesystem.lookup(&root, 1, name) {
            Ok(found) => found.object,
            Err(FsError::NotFound) => {
                filesystem
                    .create(&root, 1, name, FileKind::File, 0o644, 0)
                    .unwrap()
                    .object
            }
            Err(error) => panic!("{error}"),
        };
        filesystem.write(&root, object, 0, content, false).unwrap();
    }

    pub(super) fn read(tree: &dyn Tree, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let found = tree.lookup(&Context::root(), 1, name)?;
        let mut content = vec![0; found.size as usize];
        assert_eq!(tree.read(found.object, 0, &mut content)?, content.len());
        Ok(content)
    }

    pub(super) fn sweep(&self) {
        for _ in 0..100_000 {
            if self.datasets.sweeper().step(7).unwrap() == Progress::Idle {
                return;
            }
        }
        panic!("the sweep does not end");
    }

    pub(super) fn audit(&self) {
        let report = check(&(self.memory.clone() as Arc<dyn Store>)).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(report.lost_bodies.is_empty(), "{:?}", report.lost_bodies);
        let real: BTreeMap<_, _> = self
            .memory
            .references()
            .into_iter()
            .filter(|(_, n)| *n != 0)
            .collect();
        assert_eq!(report.references, real);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.datasets
            .list(None)
            .unwrap()
            .into_iter()
            .map(|info| info.name)
            .collect()
    }
}
