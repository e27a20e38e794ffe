//! How fast a live filesystem is over the store in RAM: names, small files, pages, streams, fsync.
//! `cargo run --release -p terrace-dataset --example live_speed`

use std::{sync::Arc, time::Instant};

use terrace_cache::Budget;
use terrace_dataset::{Context, Datasets, Environment, FileKind, FsError, NewDataset, ROOT, Tree};
use terrace_device::SystemClock;
use terrace_store::{MemoryStore, Store};

fn measure(what: &str, count: u64, work: impl FnOnce() -> Result<(), FsError>) {
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed();
    let each = elapsed.as_nanos() as f64 / count as f64;
    println!(
        "{what:40} {count:8} in {:8.1} ms, {each:9.0} ns each",
        elapsed.as_secs_f64() * 1e3
    );
    if let Err(error) = result {
        println!("  {error}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(16 << 30));
    let budget = Arc::new(Budget::new(2 << 30).without_delays());
    let environment = Environment::with_budget(store, Arc::new(SystemClock::new()), budget);
    let datasets = Datasets::open(Arc::new(environment), "pool")?;
    datasets.create(
        "pool/a",
        &NewDataset {
            properties: vec![("dedup".into(), "off".into())],
            ..Default::default()
        },
    )?;
    let fs = datasets.filesystem("pool/a")?;
    let root = Context {
        trusted: true,
        ..Context::root()
    };
    let names: Vec<Vec<u8>> = (0..100_000).map(|at| format!("file-{at}").into_bytes()).collect();
    let count = names.len() as u64;
    let mut objects = Vec::new();
    measure("create", count, || {
        for name in &names {
            objects.push(fs.create(&root, ROOT, name, FileKind::File, 0o644, 0)?.object);
        }
        Ok(())
    });
    measure("lookup", count, || {
        names
            .iter()
            .try_for_each(|name| fs.lookup(&root, ROOT, name).map(|_| ()))
    });
    measure("lookup of nothing", count, || {
        names
            .iter()
            .for_each(|name| drop(fs.lookup(&root, ROOT, &name[1..])));
        Ok(())
    });
    measure("attributes", count, || {
        objects
            .iter()
            .try_for_each(|object| fs.attributes(*object).map(|_| ()))
    });
    let page = [7u8; 4096];
    measure("write 1 KiB each", 20_000, || {
        objects[..20_000]
            .iter()
            .try_for_each(|object| fs.write(&root, *object, 0, &page[..1024], false).map(|_| ()))
    });
    measure("commit of it all", count, || fs.commit().map(|_| ()));
    measure("list", count, || {
        let mut from = 0;
        loop {
            let entries = fs.read_directory(ROOT, from, 512)?;
            let Some(last) = entries.last() else { return Ok(()) };
            from = last.cookie;
        }
    });
    let big = fs.create(&root, ROOT, b"big", FileKind::File, 0o644, 0)?.object;
    let mib: Vec<u8> = (0..1u32 << 20).map(|at| (at >> 10) as u8 | 1).collect();
    for _ in 0..2 {
        measure("write 1 MiB", 256, || {
            (0..256u64).try_for_each(|at| fs.write(&root, big, at << 20, &mib, false).map(|_| ()))
        });
        measure("commit of 256 MiB", 256, || fs.commit().map(|_| ()));
    }
    let mut random = 1u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % 65_536
    };
    measure("write 4 KiB anywhere", 50_000, || {
        (0..50_000).try_for_each(|_| fs.write(&root, big, next() * 4096, &page, false).map(|_| ()))
    });
    measure("write 4 KiB in sequence", 50_000, || {
        (0..50_000u64).try_for_each(|at| fs.write(&root, big, at * 4096, &page, false).map(|_| ()))
    });
    measure("commit of it", 65_536, || fs.commit().map(|_| ()));
    let mut buffer = vec![0; 1 << 20];
    measure("read 4 KiB anywhere", 100_000, || {
        (0..100_000).try_for_each(|_| fs.read(big, next() * 4096, &mut buffer[..4096]).map(|_| ()))
    });
    measure("read 4 KiB in sequence", 65_536, || {
        (0..65_536u64).try_for_each(|at| fs.read(big, at * 4096, &mut buffer[..4096]).map(|_| ()))
    });
    measure("read 1 MiB", 256, || {
        (0..256u64).try_for_each(|at| fs.read(big, at << 20, &mut buffer).map(|_| ()))
    });
    measure("write 4 KiB and fsync", 20_000, || {
        (0..20_000).try_for_each(|_| {
            fs.write(&root, big, next() * 4096, &page, false)?;
            fs.sync()
        })
    });
    measure("unlink", count, || {
        names
            .iter()
            .try_for_each(|name| fs.unlink(&root, ROOT, name).map(|_| ()))
    });
    measure("release and commit", count, || {
        objects.iter().for_each(|object| fs.release_object(*object));
        fs.commit().map(|_| ())
    });
    Ok(())
}
