//! Everything at once on pools that are full most of the time: thick and sparse volumes, filesystems with quotas, snapshots, discards,
//! other sizes, restarts. Whatever happens, a volume with a reservation takes every write, and nothing that was written is lost.
//!
//! `TERRACE_STORM_SEEDS=FROM-TO` runs other seeds.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use std::sync::Arc;

use full_pool::{BLOCK, MIB, Modelled, Random, Rig};
use terrace_dataset::{Context, DatasetError, FileKind, FsError, NewDataset, ROOT, Tree};
use terrace_device::Device;

struct Storm {
    rig: Rig,
    thick: Vec<(String, Modelled)>,
    sparse: Option<Modelled>,
    snapshots: Vec<String>,
    made: u64,
    trace: Vec<String>,
}

const SPARSE: &str = "tank/sparse";

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let sizes = [64, 80, 128, 192];
        let tiers = match random.below(3) {
            0 => vec![sizes[random.below(4) as usize] * MIB, 96 * MIB],
            _ => vec![sizes[random.below(4) as usize] * MIB],
        };
        let mut rig = Rig::new(&tiers);
        rig.random = random;
        let mut storm = Self {
            rig,
            thick: Vec::new(),
            sparse: None,
            snapshots: Vec::new(),
            made: 0,
            trace: vec![format!("tiers {tiers:?}")],
        };
        storm.make_thick();
        for (name, quota) in [("tank/a", None), ("tank/a/b", Some("12M")), ("tank/c", None)] {
            let properties = quota.map(|quota: &str| ("quota".to_owned(), quota.to_owned()));
            let new = NewDataset {
                properties: properties.into_iter().collect(),
                ..NewDataset::default()
            };
            storm.rig.engine.datasets().create(name, &new).unwrap();
        }
        let new = NewDataset {
            volume_bytes: Some(64 * MIB),
            sparse: true,
            ..NewDataset::default()
        };
        storm.rig.engine.datasets().create(SPARSE, &new).unwrap();
        let sparse = storm.rig.engine.datasets().volume(SPARSE).unwrap();
        storm.sparse = Some(Modelled::new(sparse));
        storm
    }

    fn say(&mut self, what: impl Into<String>) {
        self.trace.push(what.into());
    }

    fn make_thick(&mut self) {
        self.made += 1;
        let name = format!("tank/v{}", self.made);
        let size = (2 + self.rig.random.below(14)) * MIB;
        let chunk_size = ["4K", "auto", "auto", "128K"][self.rig.random.below(4) as usize];
        let new = NewDataset {
            volume_bytes: Some(size),
            properties: vec![
                ("compression".into(), "off".into()),
                ("chunk_size".into(), chunk_size.into()),
            ],
            ..NewDataset::default()
        };
        let made = self.rig.engine.datasets().create(&name, &new);
        self.say(format!(
            "make {name} of {} MiB, {chunk_size}: {}",
            size / MIB,
            made.is_ok()
        ));
        match made {
            Ok(()) => {
                let volume = self.rig.engine.datasets().volume(&name).unwrap();
                self.thick.push((name, Modelled::new(volume)));
            }
            Err(DatasetError::NoRoom {
                wanted_bytes,
                available_bytes,
            }) => assert!(wanted_bytes > available_bytes),
            Err(error) => panic!("{error}"),
        }
    }

    /// Some writes of one kind to a volume to which they are promised.
    fn write_thick(&mut self) {
        if self.thick.is_empty() {
            return;
        }
        let at = self.rig.random.below(self.thick.len() as u64) as usize;
        let kind = self.rig.random.below(4);
        let name = self.thick[at].0.clone();
        self.say(format!("write {name}, {kind}"));
        let size = self.thick[at].1.model.len() as u64;
        let length = [BLOCK, BLOCK, 16 << 10, 256 << 10][kind as usize].min(size);
        let count = (size / length * (1 + self.rig.random.below(3)) / 2).clamp(1, 3000);
        for number in 0..count {
            let offset = match kind {
                3 => number * length % (size - length + 1),
                _ => self.rig.random.below((size - length) / BLOCK + 1) * BLOCK,
            };
            let written = self.thick[at].1.write(&mut self.rig.random, offset, length);
            if let Err(error) = written {
                panic!(
                    "write {number} of {count} to {name}: {error}: {}",
                    self.rig.figures()
                );
            }
            if number % 89 == 88 {
                self.thick[at].1.volume.flush().unwrap();
            }
        }
        self.thick[at].1.volume.flush().unwrap();
    }

    fn write_sparse(&mut self) {
        let mut volume = self.sparse.take().unwrap();
        let mut written = 0;
        for _ in 0..400 {
            let offset = self.rig.random.below(64 * MIB / BLOCK) * BLOCK;
            let length = [BLOCK, 64 << 10][self.rig.random.below(2) as usize].min(64 * MIB - offset);
            match volume.write(&mut self.rig.random, offset, length) {
                Ok(()) => written += 1,
                // What was begun of it may be there.
                Err(FsError::NoSpace) => {
                    let now = &mut volume.model[offset as usize..(offset + length) as usize];
                    volume.volume.read(offset, now).unwrap();
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.say(format!("{written} writes to the sparse one"));
        volume.volume.flush().unwrap();
        self.sparse = Some(volume);
    }

    fn discard(&mut self) {
        let sparse = self.sparse.as_mut();
        let volumes: Vec<&mut Modelled> = self
            .thick
            .iter_mut()
            .map(|(_, volume)| volume)
            .chain(sparse)
            .collect();
        let chosen = self.rig.random.below(volumes.len() as u64) as usize;
        let volume = volumes.into_iter().nth(chosen).unwrap();
        let size = volume.model.len() as u64;
        for _ in 0..40 {
            let offset = self.rig.random.below(size / BLOCK) * BLOCK;
            let length = (self.rig.random.below(64) + 1) * BLOCK;
            let length = length.min(size - offset);
            volume.volume.discard(offset, length).unwrap();
            volume.model[offset as usize..(offset + length) as usize].fill(0);
        }
        volume.volume.flush().unwrap();
        self.say(format!("discards of {chosen}"));
    }

    fn fill(&mut self) {
        let name = ["tank/a", "tank/a/b", "tank/c"][self.rig.random.below(3) as usize];
        let filesystem = self.rig.engine.datasets().filesystem(name).unwrap();
        self.made += 1;
        let filled = self.rig.fill(&filesystem, &format!("f{}", self.made));
        self.say(format!("{name} filled with {} KiB", filled >> 10));
        if name == "tank/a/b" {
            assert!(filesystem.statistics().unwrap().used_bytes <= 12 * MIB);
        }
    }

    /// Deletes a file; as much as was its own can be written at once by another dataset.
    fn delete(&mut self) {
        let name = ["tank/a", "tank/a/b", "tank/c"][self.rig.random.below(3) as usize];
        let filesystem = self.rig.engine.datasets().filesystem(name).unwrap();
        let entries = filesystem.read_directory(ROOT, 0, 100).unwrap();
        let files: Vec<_> = entries
            .into_iter()
            .filter(|entry| entry.kind == FileKind::File)
            .collect();
        if files.is_empty() {
            return;
        }
        let file = &files[self.rig.random.below(files.len() as u64) as usize];
        let size = filesystem.attributes(file.object).unwrap().size;
        filesystem.unlink(&Context::root(), ROOT, &file.name).unwrap();
        self.say(format!("{name}: deleted {} KiB", size >> 10));
        // A snapshot may hold what it had, a reservation or what waits to be written may have a claim to it.
        if size >= 2 * MIB && self.snapshots.is_empty() && self.thick.is_empty() {
            let other = self.rig.engine.datasets().filesystem("tank/c").unwrap();
            self.made += 1;
            self.rig
                .is_room_for(&other, &format!("n{}", self.made), size / 2)
                .unwrap();
        }
    }

    fn snapshot(&mut self) {
        let mut names: Vec<String> = self.thick.iter().map(|(name, _)| name.clone()).collect();
        names.extend([SPARSE.to_owned(), "tank/a".to_owned(), "tank".to_owned()]);
        let dataset = names[self.rig.random.below(names.len() as u64) as usize].clone();
        self.made += 1;
        let name = format!("{dataset}@s{}", self.made);
        let taken = self
            .rig
            .engine
            .datasets()
            .snapshots()
            .take(&name, dataset == "tank", "");
        self.say(format!("snapshot {name}: {}", taken.is_ok()));
        match taken {
            Ok(_) => self.snapshots.push(name),
            Err(DatasetError::NoRoomForSnapshot {
                wanted_bytes,
                available_bytes,
                ..
            }) => {
                assert!(wanted_bytes > available_bytes);
            }
            Err(
                DatasetError::Store(terrace_store::StoreError::NoSpace)
                | DatasetError::Filesystem(FsError::NoSpace),
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn destroy_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let at = self.rig.random.below(self.snapshots.len() as u64) as usize;
        let name = self.snapshots.swap_remove(at);
        self.say(format!("destroy {name}"));
        let recursive = name.starts_with("tank@");
        match self
            .rig
            .engine
            .datasets()
            .snapshots()
            .destroy(&name, recursive, false)
        {
            Ok(_) | Err(DatasetError::NoSnapshot(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn resize(&mut self) {
        if self.thick.is_empty() {
            return;
        }
        let at = self.rig.random.below(self.thick.len() as u64) as usize;
        let size = (1 + self.rig.random.below(16)) * MIB;
        let name = self.thick[at].0.clone();
        let resized = self.rig.engine.datasets().resize_volume(&name, size);
        self.say(format!(
            "resize {name} to {} MiB: {}",
            size / MIB,
            resized.is_ok()
        ));
        match resized {
            Ok(()) => self.thick[at].1.model.resize(size as usize, 0),
            Err(DatasetError::NoRoom { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn destroy_thick(&mut self) {
        if self.thick.len() < 2 {
            return;
        }
        let at = self.rig.random.below(self.thick.len() as u64) as usize;
        let (name, volume) = self.thick.swap_remove(at);
        drop(volume);
        self.say(format!("destroy {name}"));
        self.rig
            .engine
            .datasets()
            .destroy(&name, true, true, false)
            .unwrap();
        self.snapshots
            .retain(|snapshot| !snapshot.starts_with(&format!("{name}@")));
    }

    fn verify(&self) {
        for (_, volume) in &self.thick {
            volume.verify();
        }
        self.sparse.as_ref().unwrap().verify();
    }

    fn reopen(&mut self, cleanly: bool) {
        self.say(format!("reopen, {cleanly}"));
        let thick = std::mem::take(&mut self.thick);
        let models: Vec<_> = thick
            .into_iter()
            .map(|(name, volume)| (name, volume.model))
            .collect();
        let sparse = self.sparse.take().unwrap().model;
        self.rig.reopen(cleanly);
        if cleanly {
            self.audit();
        }
        let datasets = self.rig.engine.datasets();
        let open = |name: &str, model| Modelled {
            volume: datasets.volume(name).unwrap(),
            model,
        };
        self.thick = models
            .into_iter()
            .map(|(name, model)| (name.clone(), open(&name, model)))
            .collect();
        self.sparse = Some(open(SPARSE, sparse));
        self.verify();
    }

    /// What `verify` says of the devices as they are.
    fn audit(&mut self) {
        let devices = self
            .rig
            .devices
            .iter()
            .map(|device| full_pool::copy_of(device) as Arc<dyn Device>);
        let report = terrace_engine::verify(devices.collect(), &mut |_, _| {}).unwrap();
        assert!(report.clean, "{:?}", report.problems);
    }

    fn turn(&mut self) {
        match self.rig.random.below(40) {
            0..=9 => self.write_thick(),
            10..=13 => self.write_sparse(),
            14..=17 => self.discard(),
            18..=22 => self.fill(),
            23..=25 => self.delete(),
            26..=28 => self.snapshot(),
            29..=31 => self.destroy_snapshot(),
            32 => self.resize(),
            33 => self.make_thick(),
            34 => self.destroy_thick(),
            35 => self.verify(),
            36 => self.reopen(true),
            37 => self.reopen(false),
            _ => self.rig.tick(),
        }
    }
}

fn run(seed: u64) {
    let mut storm = Storm::new(seed);
    for _ in 0..60 {
        let turned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm.turn()));
        if let Err(panic) = turned {
            eprintln!("seed {seed}: {:#?}", storm.trace);
            std::panic::resume_unwind(panic);
        }
    }
    storm.verify();
    storm.reopen(true);
    // Everything goes, and the room comes back.
    for name in std::mem::take(&mut storm.snapshots) {
        let _ = storm
            .rig
            .engine
            .datasets()
            .snapshots()
            .destroy(&name, name.starts_with("tank@"), false);
    }
    let names: Vec<String> = storm.thick.drain(..).map(|(name, _)| name).collect();
    storm.sparse = None;
    for name in names
        .iter()
        .map(String::as_str)
        .chain([SPARSE, "tank/a", "tank/c"])
    {
        storm
            .rig
            .engine
            .datasets()
            .destroy(name, true, true, false)
            .unwrap();
    }
    for _ in 0..200 {
        storm.rig.tick();
    }
    let space = terrace_store::Store::space(&**storm.rig.engine.chunks());
    assert_eq!(
        (space.pending_free_bytes, space.set_aside_bytes),
        (0, 0),
        "seed {seed}: {space:?}"
    );
    assert!(space.chunks < 100, "seed {seed}: {space:?}");
}

#[test]
fn a_storm_of_space() {
    let seeds = std::env::var("TERRACE_STORM_SEEDS").unwrap_or_else(|_| "1-4".into());
    let (from, to) = seeds.split_once('-').unwrap();
    for seed in from.parse::<u64>().unwrap()..=to.parse().unwrap() {
        run(seed);
    }
}
