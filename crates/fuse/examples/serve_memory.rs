//! Mounts a filesystem in RAM until it is unmounted: `serve_memory DIRECTORY [bare]`. With `bare` it is the tests'
//! simple one, which shows what the mount alone costs; else a dataset over a store in RAM.

#[path = "../tests/support/failing.rs"]
#[allow(dead_code, missing_docs, clippy::unwrap_used)]
mod failing;
#[path = "../tests/support/memory.rs"]
#[allow(dead_code, missing_docs, clippy::unwrap_used)]
mod memory;

use std::{path::Path, sync::Arc, time::Duration};

use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, NewDataset};
use terrace_device::SystemClock;
use terrace_fuse::{Content, DatasetPast, MountOptions, Past, mount};
use terrace_store::MemoryStore;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name a directory to mount at")?;
    let directory = Path::new(&directory);
    if std::env::args().nth(2).as_deref() == Some("bare") {
        mount(
            directory,
            Content::Live(memory::Memory::new()),
            None,
            &MountOptions::of("memory"),
        )?
        .wait();
        return Ok(());
    }
    let store = Arc::new(MemoryStore::new(8 << 30));
    let budget = Arc::new(Budget::new(2 << 30));
    let environment = Environment::with_budget(store, Arc::new(SystemClock::new()), budget);
    let datasets = Arc::new(Datasets::open(Arc::new(environment), "memory")?);
    datasets.create("memory/files", &NewDataset::default())?;
    let past: Arc<dyn Past> = Arc::new(DatasetPast::new(datasets.clone(), "memory/files")?);
    let files = datasets.filesystem("memory/files")?;
    let session = mount(
        directory,
        Content::Live(files),
        Some(past),
        &MountOptions::of("memory/files"),
    )?;
    while !session.wait_for(Duration::from_secs(5)) {
        datasets.commit_all()?;
    }
    Ok(())
}
