//! A mount that can be changed, of a dataset and of the tests' own filesystem: what programs do to files comes out as
//! POSIX says.

#![allow(clippy::unwrap_used)]

mod attributes;
mod content;
mod data;
mod direct;
mod failed_syncs;
mod flags;
mod handles;
mod idmapped;
mod names;
mod set_id;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use self::{
    content::SnapshotsOnDemand,
    support::{failing::Failing, memory::Memory},
};
use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, NewDataset};
use terrace_device::SystemClock;
use terrace_fuse::{Content, DatasetPast, Past, VolumeFile, mount};
use terrace_store::{MemoryStore, Store};

#[test]
fn serve() {
    support::serve(|content, directory| match content {
        "memory" => mount(
            directory,
            Content::Live(Memory::new()),
            None,
            &support::options("memory"),
        ),
        "gated" => mount(
            directory,
            Content::Live(Memory::gated()),
            None,
            &support::options("memory"),
        ),
        "dataset" => {
            let store = Arc::new(MemoryStore::new(1 << 30));
            let budget = Arc::new(Budget::new(256 << 20));
            let environment = Environment::with_budget(store, Arc::new(SystemClock::new()), budget);
            let datasets = Arc::new(Datasets::open(Arc::new(environment), "pool").unwrap());
            datasets.create("pool/files", &NewDataset::default()).unwrap();
            let past: Arc<dyn Past> = Arc::new(DatasetPast::new(datasets.clone(), "pool/files").unwrap());
            let files = datasets.filesystem("pool/files").unwrap();
            // What is asked of a running pool: a snapshot whenever a file of this name is looked for.
            let past = Arc::new(SnapshotsOnDemand { past, datasets });
            mount(
                directory,
                Content::Live(files),
                Some(past),
                &support::options("pool/files"),
            )
        }
        "failing" => {
            let environment = Environment::new(Arc::new(Failing::new(1 << 30)), Arc::new(SystemClock::new()));
            let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
            datasets.create("pool/files", &NewDataset::default()).unwrap();
            let files = datasets.filesystem("pool/files").unwrap();
            mount(
                directory,
                Content::Live(files),
                None,
                &support::options("pool/files"),
            )
        }
        "volume" | "failing volume" => {
            let store: Arc<dyn Store> = match content {
                "volume" => Arc::new(MemoryStore::new(1 << 30)),
                _ => Arc::new(Failing::new(1 << 30)),
            };
            let environment = Environment::new(store, Arc::new(SystemClock::new()));
            let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
            let size = NewDataset {
                volume_bytes: Some(64 << 20),
                ..NewDataset::default()
            };
            datasets.create("pool/disk", &size).unwrap();
            let volume = VolumeFile::new(datasets.volume("pool/disk").unwrap());
            mount(
                directory,
                Content::Live(volume),
                None,
                &support::options("pool/disk"),
            )
        }
        other => panic!("there is no content '{other}'"),
    })
}
