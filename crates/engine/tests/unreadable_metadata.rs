//! Metadata that cannot be read from any copy, on a device that is there: `status` and the events say where and what to do, what does
//! not need it goes on, and neither merges nor a scrub stand still for it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_dataset::{Context, FileKind, Filesystem, FsError, NewDataset, ROOT, Tree};
use terrace_device::{AlignedBuffer, Device, ManualClock, MemoryDevice};
use terrace_engine::{Engine, OpenOptions, PoolSpec, TierSpec};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const FILES: u64 = 3000;
const DATASETS: [&str; 2] = ["tank/one", "tank/two"];

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Long, so that some thousands fill many blocks of tables.
fn name(dataset: usize, number: u64) -> Vec<u8> {
    let seed = number + dataset as u64 * 1_000_000;
    noise(seed, 200).iter().map(|byte| b'a' + byte % 26).collect()
}

fn content(dataset: usize, number: u64) -> Vec<u8> {
    noise(number + 10_000_000 * (dataset as u64 + 1), 500)
}

fn read(files: &Filesystem, dataset: usize, number: u64) -> Result<(), FsError> {
    let file = files.lookup(&Context::root(), ROOT, &name(dataset, number))?;
    let mut found = vec![0; 500];
    assert_eq!(files.read(file.object, 0, &mut found)?, 500);
    assert!(found == content(dataset, number), "wrong content");
    Ok(())
}

/// A pool at rest whose records lie in tables.
fn pool() -> (Arc<MemoryDevice>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let device = Arc::new(MemoryDevice::new("/device", 160 * MIB));
    let spec = PoolSpec {
        name: "tank".into(),
        tiers: vec![TierSpec {
            name: "disk".into(),
            devices: vec![device.path().parse().unwrap()],
            copies: 1,
        }],
        ..PoolSpec::default()
    };
    let given: Vec<Arc<dyn Device>> = vec![device.clone()];
    let engine = Engine::create_on(&spec, vec![given], OpenOptions::driven(clock.clone(), 1)).unwrap();
    for (at, dataset) in DATASETS.into_iter().enumerate() {
        engine.datasets().create(dataset, &NewDataset::default()).unwrap();
        let files = engine.datasets().filesystem(dataset).unwrap();
        for number in 0..FILES {
            let root = Context::root();
            let file = files
                .create(&root, ROOT, &name(at, number), FileKind::File, 0o600, 0)
                .unwrap();
            files
                .write(&root, file.object, 0, &content(at, number), false)
                .unwrap();
        }
        files.sync().unwrap();
    }
    engine.chunks().checkpoint().unwrap();
    rest(&engine);
    engine.close().unwrap();
    (device, clock)
}

/// Steps until there is nothing to do, which comes.
fn rest(engine: &Engine) {
    let worked = (0..20_000).take_while(|_| engine.step().unwrap()).count();
    assert!(worked < 20_000, "it never ends");
}

fn open(device: &Arc<MemoryDevice>, clock: &Arc<ManualClock>) -> Arc<Engine> {
    Engine::open(vec![device.clone()], OpenOptions::driven(clock.clone(), 2)).unwrap()
}

/// Spoils the blocks of the device that hold these bytes, but for those that hold `not` as well.
fn spoil(device: &MemoryDevice, bytes: &[u8], not: &[u8]) -> usize {
    let length = device.size_bytes() as usize;
    let mut image = AlignedBuffer::with_capacity(length);
    device.read_at(0, image.reuse(length)).unwrap();
    let mut blocks: Vec<usize> = Vec::new();
    let first = bytes[0];
    for at in MIB as usize..length - bytes.len() {
        if image[at] == first && image[at..].starts_with(bytes) {
            blocks.push(at / BLOCK * BLOCK);
        }
    }
    blocks.retain(|block| {
        let around = &image[*block..block + 2 * BLOCK];
        not.is_empty() || !around.windows(not.len()).any(|here| here == not)
    });
    for block in &blocks {
        let mut bad = AlignedBuffer::zeroed(BLOCK);
        bad.copy_from_slice(&noise(1, BLOCK));
        device.write_at(*block as u64, &bad).unwrap();
    }
    blocks.len()
}

#[test]
fn it_is_told_with_its_device_and_what_does_not_need_it_goes_on() {
    let (device, clock) = pool();
    assert!(spoil(&device, &name(0, 7), b"") > 0);
    let engine = open(&device, &clock);
    assert_eq!(engine.status().state, "online");
    let [one, two] = DATASETS.map(|dataset| engine.datasets().filesystem(dataset).unwrap());
    let error = read(&one, 0, 7).unwrap_err();
    assert!(matches!(error, FsError::Io(_)), "{error:?}");
    let status = engine.status();
    assert_eq!(status.state, "degraded", "{}", status.state_detail);
    for words in [
        "of '/device'",
        "terrace scrub tank",
        "terrace verify tank --rebuild",
    ] {
        assert!(status.state_detail.contains(words), "{}", status.state_detail);
    }
    rest(&engine);
    let told = || {
        let events = engine.events(0).unwrap();
        let lost = events.into_iter().filter(|event| event.kind == "lost");
        lost.map(|event| event.text).collect::<Vec<_>>()
    };
    assert!(
        told().len() == 1 && told()[0].contains("'/device'"),
        "{:?}",
        told()
    );
    let readable = (0..FILES).filter(|number| read(&one, 0, *number).is_ok()).count();
    assert!(readable > FILES as usize / 2, "{readable}");
    for round in 0..20u64 {
        for number in 0..FILES / 10 {
            read(&two, 1, number).unwrap();
            let new = name(1, FILES + round * FILES + number);
            two.create(&Context::root(), ROOT, &new, FileKind::File, 0o600, 0)
                .unwrap();
        }
        two.sync().unwrap();
        engine.tick().unwrap();
        engine.chunks().checkpoint().unwrap();
        rest(&engine);
    }
    // Once for each segment.
    assert!(told().len() <= 3, "{:?}", told());
    engine.close().unwrap();
}

#[test]
fn a_scrub_passes_over_what_it_cannot_read_of_its_list_and_says_so() {
    scrub_without_the_record_of(content(0, 1500), FILES);
}

#[test]
fn a_scrub_that_cannot_read_the_end_of_its_list_says_so_and_goes_on_with_the_tables() {
    scrub_without_the_record_of(content(1, FILES - 1), FILES / 2);
}

/// The block of the list with the chunk of this content cannot be read; so many chunks are looked at.
fn scrub_without_the_record_of(content: Vec<u8>, chunks: u64) {
    let (device, clock) = pool();
    let hash = blake3::hash(&content);
    assert!(spoil(&device, hash.as_bytes(), &content[..64]) > 0);
    let engine = open(&device, &clock);
    assert!(engine.start_scrub().unwrap());
    rest(&engine);
    let scrub = engine.status().scrub.unwrap();
    assert_eq!(scrub.state, "done", "{scrub:?}");
    assert!(scrub.errors > 0, "{scrub:?}");
    assert!(
        scrub.damage.iter().any(|line| line.contains("records of chunks")),
        "{scrub:?}"
    );
    assert!(scrub.chunks > chunks, "{scrub:?}");
    assert_eq!(engine.status().state, "degraded");
    engine.close().unwrap();
}
