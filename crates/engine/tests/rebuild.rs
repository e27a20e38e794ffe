//! Rebuilding a damaged pool: what comes back is what was there, byte by byte; what does not is named; nothing panics.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use terrace_dataset::{At, AttributeMode, Context, FileKind, NewDataset, ROOT, SetAttributes, Tree};
use terrace_device::{Device, ManualClock, MemoryDevice};
use terrace_engine::{
    Engine, OpenOptions, PoolSpec, RebuildOptions, RebuildReport, TierSpec, rebuild, verify,
};

const MIB: u64 = 1 << 20;

/// A pool on devices in RAM.
struct Bay {
    devices: Vec<Arc<MemoryDevice>>,
}

fn options(seed: u64) -> OpenOptions {
    OpenOptions::driven(Arc::new(ManualClock::new(1_700_000_000_000_000_000)), seed)
}

impl Bay {
    fn new(sizes: &[u64]) -> Self {
        let device =
            |(index, size): (usize, &u64)| Arc::new(MemoryDevice::new(format!("disk{index}"), size * MIB));
        Self {
            devices: sizes.iter().enumerate().map(device).collect(),
        }
    }

    fn all(&self) -> Vec<Arc<dyn Device>> {
        self.devices
            .iter()
            .map(|device| device.clone() as Arc<dyn Device>)
            .collect()
    }

    fn create(&self, name: &str) -> Arc<Engine> {
        let tier = |name: &str| TierSpec {
            name: name.into(),
            devices: Vec::new(),
            copies: 1,
        };
        let spec = PoolSpec {
            name: name.into(),
            tiers: vec![tier("fast"), tier("slow")],
            properties: BTreeMap::new(),
            segment_bytes: Some(MIB as u32),
        };
        let (slow, fast) = self.devices.split_last().unwrap();
        let fast = fast
            .iter()
            .map(|device| device.clone() as Arc<dyn Device>)
            .collect();
        Engine::create_on(&spec, vec![fast, vec![slow.clone()]], options(7)).unwrap()
    }

    /// The content of all devices.
    fn image(&self) -> Vec<Vec<u8>> {
        let read = |device: &Arc<MemoryDevice>| {
            let mut bytes = vec![0; device.size_bytes() as usize];
            device.read_at(0, &mut bytes).unwrap();
            bytes
        };
        self.devices.iter().map(read).collect()
    }

    fn restore(&self, image: &[Vec<u8>]) {
        for (device, bytes) in self.devices.iter().zip(image) {
            device.write_at(0, bytes).unwrap();
        }
    }

    fn wipe_roots(&self) {
        for device in &self.devices {
            device.write_at(256 << 10, &vec![0; 512 << 10]).unwrap();
        }
    }

    /// Zeroes the block in front of each thing that starts with `magic`, if `choose` says so; returns how many.
    fn wipe(&self, magic: &[u8], choose: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let mut wiped = 0;
        for device in &self.devices {
            let mut block = vec![0; 4096];
            for offset in (MIB..device.size_bytes() - 4096).step_by(4096) {
                device.read_at(offset, &mut block).unwrap();
                if block.starts_with(magic) && choose(&block) {
                    device.write_at(offset, &[0; 4096]).unwrap();
                    wiped += 1;
                }
            }
        }
        wiped
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn write(engine: &Engine, dataset: &str, directory: u64, name: &str, content: &[u8]) -> u64 {
    let tree = engine.datasets().filesystem(dataset).unwrap();
    let root = Context::root();
    let file = tree
        .create(&root, directory, name.as_bytes(), FileKind::File, 0o640, 0)
        .unwrap();
    for (index, piece) in content.chunks(256 << 10).enumerate() {
        tree.write(&root, file.object, (index << 18) as u64, piece, false)
            .unwrap();
    }
    file.object
}

/// Settles background work.
fn settle(engine: &Engine) {
    engine.tick().unwrap();
    engine.chunks().checkpoint().unwrap();
    for _ in 0..500 {
        if !engine.step().unwrap() {
            break;
        }
    }
}

/// Files of many kinds, a snapshot of an earlier state, a volume; some of it only in the log. Ends as in a crash.
fn populate(bay: &Bay) -> Contents {
    let engine = bay.create("tank");
    let datasets = engine.datasets();
    let root = Context::root();
    for name in ["tank/data", "tank/data/inner"] {
        datasets.create(name, &NewDataset::default()).unwrap();
    }
    let volume = NewDataset {
        volume_bytes: Some(8 * MIB),
        sparse: true,
        ..NewDataset::default()
    };
    datasets.create("tank/vm", &volume).unwrap();
    let tree = datasets.filesystem("tank/data").unwrap();
    let deep = tree.make_directory(&root, ROOT, b"deep", 0o755).unwrap().object;
    let deeper = tree.make_directory(&root, deep, b"deeper", 0o700).unwrap().object;
    let big = write(&engine, "tank/data", ROOT, "big", &noise(1, 3_000_001));
    write(
        &engine,
        "tank/data",
        deep,
        "text",
        &b"words and words ".repeat(9000),
    );
    let gone = write(&engine, "tank/data", deeper, "gone", &noise(2, 200_000));
    for number in 0..150 {
        write(
            &engine,
            "tank/data",
            deeper,
            &format!("small-{number}"),
            &noise(100 + number, 900),
        );
    }
    tree.link(&root, big, deep, b"hard").unwrap();
    tree.symbolic_link(&root, deep, b"symbolic", b"../big").unwrap();
    tree.set_extended_attribute(&root, big, b"user.note", b"a value", AttributeMode::Set)
        .unwrap();
    tree.write(&root, gone, 5 * MIB, b"behind a hole", false).unwrap();
    settle(&engine);
    datasets
        .snapshots()
        .take("tank/data@one", false, "before")
        .unwrap();
    tree.unlink(&root, deeper, b"gone").unwrap();
    tree.write(&root, big, 1_000_000, &noise(3, 300_000), false)
        .unwrap();
    write(&engine, "tank/data/inner", ROOT, "inside", &noise(4, 70_000));
    let vm = datasets.volume("tank/vm").unwrap();
    vm.write(MIB, &noise(5, 1 << 20)).unwrap();
    vm.flush().unwrap();
    settle(&engine);
    // What is being freed stays gone: a dataset, a snapshot between others, a truncated file.
    datasets.create("tank/doomed", &NewDataset::default()).unwrap();
    write(&engine, "tank/doomed", ROOT, "doomed", &noise(8, 50_000));
    let cut = write(&engine, "tank/data", ROOT, "cut", &noise(9, 400_000));
    settle(&engine);
    datasets.snapshots().take("tank/data@two", false, "").unwrap();
    tree.write(&root, cut, 0, b"changed", false).unwrap();
    settle(&engine);
    datasets.snapshots().take("tank/data@three", false, "").unwrap();
    let empty = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    tree.set_attributes(&root, cut, &empty).unwrap();
    datasets.destroy("tank/doomed", false, false, false).unwrap();
    datasets
        .snapshots()
        .destroy("tank/data@two", false, false)
        .unwrap();
    // What is durable by the log alone.
    write(&engine, "tank/data", deep, "late", &noise(6, 100_000));
    tree.unlink(&root, deeper, b"small-3").unwrap();
    tree.sync().unwrap();
    contents(&engine)
}

/// Everything that can be read: `dataset[@snapshot]:path` → what it is.
type Contents = BTreeMap<String, String>;

fn walk(tree: &dyn Tree, prefix: &str, all: &mut Contents) {
    let mut todo = vec![(ROOT, String::new())];
    while let Some((object, path)) = todo.pop() {
        let attributes = tree.attributes(object).unwrap();
        let mut said = format!(
            "{:?} {:o} {} {} links {} size {} {:?} {:?}",
            attributes.kind,
            attributes.mode,
            attributes.uid,
            attributes.gid,
            attributes.links,
            attributes.size,
            attributes.modified,
            attributes.changed
        );
        for name in tree.extended_attributes(object).unwrap() {
            let value = tree.extended_attribute(object, &name).unwrap();
            said.push_str(&format!(" {name:?}={value:?}"));
        }
        match attributes.kind {
            FileKind::Directory => {
                let mut from = 0;
                loop {
                    let entries = tree.read_directory(object, from, 64).unwrap();
                    let Some(last) = entries.last() else { break };
                    from = last.cookie;
                    for entry in entries {
                        let name = String::from_utf8(entry.name).unwrap();
                        todo.push((entry.object, format!("{path}/{name}")));
                    }
                }
            }
            FileKind::SymbolicLink => said.push_str(&format!(" {:?}", tree.read_link(object).unwrap())),
            _ => said.push_str(&format!(" hash {}", hash(&read(tree, object, attributes.size)))),
        }
        all.insert(format!("{prefix}:{path}"), said);
    }
}

fn read(tree: &dyn Tree, object: u64, size: u64) -> Vec<u8> {
    let mut content = vec![0; size as usize];
    let mut at = 0;
    while at < content.len() {
        let read = tree.read(object, at as u64, &mut content[at..]).unwrap();
        assert!(read > 0);
        at += read;
    }
    content
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn contents(engine: &Engine) -> Contents {
    let mut all = Contents::new();
    for dataset in engine.datasets().list(None).unwrap() {
        let (_, inside) = dataset.name.split_once('/').unwrap_or(("", ""));
        if dataset.kind.is_volume() {
            let volume = engine.datasets().volume(&dataset.name).unwrap();
            let mut bytes = vec![0; volume.size_bytes() as usize];
            volume.read(0, &mut bytes).unwrap();
            all.insert(inside.to_owned(), format!("volume {}", hash(&bytes)));
            continue;
        }
        let tree = engine.datasets().filesystem(&dataset.name).unwrap();
        walk(&*tree, inside, &mut all);
        for snapshot in engine
            .datasets()
            .snapshots()
            .list(Some(&dataset.name), false)
            .unwrap()
        {
            if snapshot.dataset != dataset.name {
                continue;
            }
            let (_, name) = snapshot.name.split_once('@').unwrap();
            let at = At::Snapshot(name.to_owned());
            let view = engine.datasets().view(&dataset.name, &at).unwrap();
            walk(&*view, &format!("{inside}@{name}"), &mut all);
        }
    }
    all
}

/// Rebuilds, opens the new pool, finds nothing wrong with it.
fn rebuilt(bay: &Bay) -> (RebuildReport, Contents) {
    let before: Vec<u64> = bay.image().iter().map(|bytes| hash(bytes)).collect();
    let dry = rebuild(bay.all(), None, RebuildOptions::default(), &mut |_, _, _| {}).unwrap();
    let new = Bay::new(&[40, 40, 64]);
    let engine = new.create("fresh");
    let mut last = (0, 0);
    let report = rebuild(
        bay.all(),
        Some(&engine),
        RebuildOptions { list_saved: true },
        &mut |_, done, total| {
            assert!(done <= total);
            last = (done, total);
        },
    )
    .unwrap();
    assert_eq!(last.0, last.1, "the progress ends at 100 %");
    drop(engine);
    let after: Vec<u64> = bay.image().iter().map(|bytes| hash(bytes)).collect();
    assert_eq!(before, after, "the source was written to");
    assert_eq!(report.saved as usize, report.saved_files.len());
    let said = |report: &RebuildReport| {
        (
            report.saved,
            report.damaged.clone(),
            report.lost.clone(),
            report.found.clone(),
        )
    };
    assert_eq!(said(&dry), said(&report), "a dry run says the same");
    let verified = verify(new.all(), &mut |_, _| {}).unwrap();
    assert!(verified.clean, "{verified:#?}\n{report:#?}");
    let engine = Engine::open(new.all(), options(9)).unwrap();
    let all = contents(&engine);
    // It is a pool like any other.
    let tree = engine.datasets().filesystem("fresh").unwrap();
    tree.make_directory(&Context::root(), ROOT, b"new", 0o755)
        .unwrap();
    settle(&engine);
    engine.close().unwrap();
    (report, all)
}

#[test]
fn without_roots_everything_comes_back() {
    let bay = Bay::new(&[24, 24, 48]);
    let wanted = populate(&bay);
    bay.wipe_roots();
    assert!(Engine::open(bay.all(), options(8)).is_err());
    let (report, found) = rebuilt(&bay);
    assert_eq!(report.state, "whole", "{:?}", report.problems);
    assert_eq!(found, wanted);
    assert!(report.complete, "{report:#?}");
    // So does a pool that has nothing wrong with it, and one whose labels are gone but for those at the end.
    let bay = Bay::new(&[24, 24, 48]);
    let wanted = populate(&bay);
    let (report, found) = rebuilt(&bay);
    assert!(report.complete && found == wanted);
    for device in &bay.devices {
        device.write_at(0, &vec![0; 1 << 20]).unwrap();
    }
    let (report, found) = rebuilt(&bay);
    assert!(report.complete && found == wanted, "{:?}", report.problems);
}

#[test]
fn without_any_root_tables_and_log_tell() {
    let bay = Bay::new(&[24, 24, 48]);
    let wanted = populate(&bay);
    bay.wipe_roots();
    assert!(bay.wipe(b"TerrRtCp", &mut |_| true) > 0);
    let (report, found) = rebuilt(&bay);
    assert_eq!(report.state, "tables");
    for (path, said) in &wanted {
        // A directory may have got lost+found besides.
        if !said.starts_with("Directory") {
            assert_eq!(found.get(path), Some(said), "{path}\n{:?}", report.problems);
        }
    }
    assert!(report.damaged.is_empty() && report.lost.is_empty(), "{report:#?}");
    assert_eq!(report.lost_chunks, 0);
}

#[test]
fn chunks_alone_give_contents_without_names() {
    let bay = Bay::new(&[24, 24, 48]);
    populate(&bay);
    bay.wipe_roots();
    for magic in [&b"TerrRtCp"[..], b"TMT2", b"TerrLog1"] {
        assert!(bay.wipe(magic, &mut |_| true) > 0);
    }
    let (report, found) = rebuilt(&bay);
    assert_eq!(report.state, "chunks");
    assert!(!report.complete && report.saved <= 8, "{report:#?}");
    let hashes: Vec<&str> = found
        .values()
        .filter_map(|said| said.split(" hash ").nth(1))
        .collect();
    let mut whole = 0;
    for content in [
        noise(4, 70_000),
        noise(6, 100_000),
        noise(101, 900),
        b"words and words ".repeat(9000),
    ] {
        whole += usize::from(hashes.contains(&hash(&content).to_string().as_str()));
    }
    assert_eq!(whole, 4, "{found:#?}");
    assert!(
        found.keys().any(|path| path.contains("/lost+found/object-")),
        "{found:#?}"
    );
}

#[test]
fn whatever_is_missing_what_is_called_saved_is_whole() {
    let origin = Bay::new(&[24, 24, 48]);
    let wanted = populate(&origin);
    let image = origin.image();
    // Every state that a file had, by its path.
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, said) in &wanted {
        let (dataset, path) = path.split_once(':').unwrap_or((path, ""));
        let dataset = dataset.split('@').next().unwrap();
        versions
            .entry(format!("{dataset}{path}"))
            .or_default()
            .push(said.clone());
    }
    // Its state in the snapshot that was destroyed; older tables still tell of it.
    let destroyed = format!(" hash {}", hash(&noise(9, 400_000)));
    versions.entry("data/cut".into()).or_default().push(destroyed);
    let (mut saved, mut tried) = (0, 0);
    for seed in 0..10u64 {
        let bay = Bay::new(&[24, 24, 48]);
        bay.restore(&image);
        let mut random = StdRng::seed_from_u64(seed);
        let share = random.random_range(0.05..0.9);
        // Both copies of a table bear the same number.
        let mut chosen: BTreeMap<u64, bool> = BTreeMap::new();
        bay.wipe(b"TMT2", &mut |block| {
            let number = u64::from_le_bytes(block[20..28].try_into().unwrap());
            *chosen.entry(number).or_insert_with(|| random.random_bool(share))
        });
        if seed % 2 == 0 {
            bay.wipe_roots();
        }
        if seed % 3 == 0 {
            bay.wipe(b"TerrLog1", &mut |_| seed % 2 == 0);
            bay.wipe(b"TChk", &mut |block| block[16] % 5 == 0);
        }
        let (report, found) = rebuilt(&bay);
        for file in &report.saved_files {
            tried += 1;
            let path = file.path.trim_end_matches('/');
            let Some(states) = versions.get(path) else {
                continue;
            };
            let (dataset, inside) = found
                .keys()
                .filter_map(|key| key.split_once(':'))
                .find(|(dataset, inside)| format!("{dataset}{inside}") == path)
                .unwrap_or((path, ""));
            let Some(said) = found.get(&format!("{dataset}:{inside}")) else {
                continue;
            };
            if let Some((_, content)) = said.split_once(" hash ") {
                let known = states
                    .iter()
                    .any(|state| state.ends_with(&format!(" hash {content}")));
                assert!(
                    known,
                    "seed {seed}: {path} is {said}, was {states:?}\n{report:#?}"
                );
                saved += 1;
            }
        }
    }
    assert!(saved > 50 && tried >= saved, "{saved} of {tried}");
}

#[test]
fn a_gap_in_the_log_costs_what_lies_in_it() {
    let bay = Bay::new(&[24, 24, 48]);
    let engine = bay.create("tank");
    engine
        .datasets()
        .create("tank/data", &NewDataset::default())
        .unwrap();
    write(&engine, "tank/data", ROOT, "before", &noise(1, 50_000));
    settle(&engine);
    let tree = engine.datasets().filesystem("tank/data").unwrap();
    for (number, name) in ["one", "two", "three", "four"].iter().enumerate() {
        write(
            &engine,
            "tank/data",
            ROOT,
            name,
            &noise(10 + number as u64, 30_000),
        );
        tree.sync().unwrap();
    }
    let wanted = contents(&engine);
    drop((tree, engine));
    // The log entry that has the second file, in both copies.
    let mut entries = std::collections::BTreeSet::new();
    let first = |block: &[u8]| u64::from_le_bytes(block[32..40].try_into().unwrap());
    bay.wipe(b"TerrLog1", &mut |block| {
        entries.insert(first(block));
        false
    });
    let hit = *entries.iter().rev().nth(2).unwrap();
    assert_eq!(bay.wipe(b"TerrLog1", &mut |block| first(block) == hit), 2);
    assert!(
        Engine::open(bay.all(), options(8)).is_err(),
        "proof of damage behind the gap"
    );
    let (report, found) = rebuilt(&bay);
    assert_eq!(report.state, "gap", "{report:#?}");
    assert!(!report.complete && report.newest_batch > report.batch);
    for name in ["data:/before", "data:/one", "data:/three", "data:/four"] {
        assert_eq!(found.get(name), wanted.get(name), "{report:#?}");
    }
    assert!(!found.contains_key("data:/two"));
}

#[test]
fn a_lost_chunk_costs_its_file_alone() {
    let bay = Bay::new(&[24, 24, 48]);
    let wanted = populate(&bay);
    let content = noise(4, 70_000);
    let mut hit = 0;
    for device in &bay.devices {
        let mut bytes = vec![0; device.size_bytes() as usize];
        device.read_at(0, &mut bytes).unwrap();
        let places: Vec<usize> = bytes
            .windows(32)
            .enumerate()
            .filter(|(_, window)| *window == &content[30_000..30_032])
            .map(|(at, _)| at)
            .collect();
        for at in places {
            bytes[at] ^= 1;
            device.write_at(0, &bytes).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 0);
    bay.wipe_roots();
    let (report, found) = rebuilt(&bay);
    assert!(!report.complete);
    let damaged: Vec<&str> = report.damaged.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(damaged, ["data/inner/inside"], "{report:#?}");
    assert!(report.damaged[0].missing_blocks > 0);
    for (path, said) in &wanted {
        if path != "data/inner:/inside" {
            assert_eq!(found.get(path), Some(said), "{path}");
        }
    }
}

#[test]
fn garbage_neither_panics_nor_hangs_nor_gets_believed() {
    let origin = Bay::new(&[24, 24, 48]);
    populate(&origin);
    let image = origin.image();
    for seed in 0..6u64 {
        let bay = Bay::new(&[24, 24, 48]);
        bay.restore(&image);
        let mut random = StdRng::seed_from_u64(seed);
        for device in &bay.devices {
            let segments = (device.size_bytes() - 2 * MIB) / MIB;
            for _ in 0..segments * 4 {
                let offset = MIB + random.random_range(0..segments * 256) * 4096;
                let mut block = vec![0; 4096];
                match random.random_range(0..4) {
                    // A header of some kind with lengths of chance behind it.
                    0 => {
                        random.fill_bytes(&mut block);
                        let magics: [&[u8]; 4] = [b"TMT2", b"TChk", b"TerrLog1", b"TerrRtCp"];
                        let magic = magics[random.random_range(0..4)];
                        block[..magic.len()].copy_from_slice(magic);
                    }
                    1 => random.fill_bytes(&mut block),
                    2 => {}
                    // A piece of something else, in the wrong place.
                    _ => {
                        let from = MIB + random.random_range(0..segments * 256) * 4096;
                        device.read_at(from, &mut block).unwrap();
                    }
                }
                device.write_at(offset, &block).unwrap();
            }
        }
        if seed % 2 == 0 {
            bay.wipe_roots();
        }
        let (report, _) = rebuilt(&bay);
        assert!(!report.complete);
    }
}
