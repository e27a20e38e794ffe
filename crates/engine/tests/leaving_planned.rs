//! Devices that are to leave tight pools, over many small geometries: what the plan says can be ends well, if nothing else is
//! written.

#![allow(clippy::unwrap_used)]

use crate::full_pool;

use std::sync::Arc;

use full_pool::{BLOCK, MIB, Random, Rig};
use terrace_dataset::{Context, FileKind, Filesystem, NewDataset, ROOT, Tree};
use terrace_pool::{DeviceInfo, SegmentRange};

/// Tiers of devices of these sizes, MiB, and how many copies each keeps.
fn geometry(random: &mut Random) -> Vec<(Vec<u64>, u8)> {
    let tiers = 1 + random.below(3);
    let tier = |_| {
        let devices = 1 + random.below(4);
        let copies = 1 + random.below(devices.min(3)) as u8;
        let sizes = (0..devices).map(|_| (32 + 4 * random.below(25)) * MIB);
        (sizes.collect(), copies)
    };
    (0..tiers).map(tier).collect()
}

/// What users have in a pool.
struct Contents {
    data: Arc<Filesystem>,
    /// Names that are there.
    files: Vec<String>,
    made: u64,
    piece: u64,
    /// What is written compresses so far: each block has so many bytes that do not.
    density: u64,
    file_bytes: u64,
}

impl Contents {
    fn new(rig: &mut Rig) -> Self {
        let data = rig.filesystem("tank/data");
        Self {
            data,
            files: Vec::new(),
            made: 0,
            piece: [MIB, 256 << 10, 64 << 10, 4 << 10][rig.random.below(4) as usize],
            density: [4096, 4096, 2048, 512][rig.random.below(4) as usize],
            file_bytes: [4 * MIB, MIB, 256 << 10][rig.random.below(3) as usize],
        }
    }

    fn bytes(&self, random: &mut Random, length: u64) -> Vec<u8> {
        let mut content = random.bytes(length);
        content
            .chunks_mut(BLOCK as usize)
            .for_each(|block| block[self.density as usize..].fill(0));
        content
    }

    /// One more file, as far as there is room; whether there was.
    fn add(&mut self, rig: &mut Rig) -> bool {
        let root = Context::root();
        let name = format!("file{}", self.made);
        self.made += 1;
        let made = self
            .data
            .create(&root, ROOT, name.as_bytes(), FileKind::File, 0o600, 0);
        let Ok(made) = made else { return false };
        self.files.push(name);
        for at in 0..self.file_bytes.div_ceil(self.piece) {
            let content = self.bytes(&mut rig.random, self.piece.min(self.file_bytes));
            let at = at * self.piece;
            if self.data.write(&root, made.object, at, &content, false).is_err() {
                return false;
            }
        }
        self.data.sync().is_ok()
    }

    fn take(&mut self, at: usize) {
        let name = self.files.swap_remove(at);
        let _ = self.data.unlink(&Context::root(), ROOT, name.as_bytes());
    }

    /// Some go, so that segments are half empty.
    fn thin_out(&mut self, rig: &mut Rig) {
        let odds = rig.random.below(60);
        for at in (0..self.files.len()).rev() {
            if rig.random.below(100) < odds {
                self.take(at);
            }
        }
        let _ = self.data.sync();
    }

    fn write_over(&self, rig: &mut Rig) {
        let root = Context::root();
        for _ in 0..rig.random.below(400).min(self.files.len() as u64 * 20) {
            let file = &self.files[rig.random.below(self.files.len() as u64) as usize];
            let found = self.data.lookup(&root, ROOT, file.as_bytes()).unwrap();
            let at = rig.random.below(self.file_bytes / BLOCK) * BLOCK;
            let content = self.bytes(&mut rig.random, BLOCK);
            let _ = self.data.write(&root, found.object, at, &content, false);
        }
        let _ = self.data.sync();
    }
}

/// A pool that is about as full as it may be for a device to leave; its number.
fn used(random: &mut Random) -> (Rig, Contents, DeviceInfo) {
    let tiers = geometry(random);
    let mut rig = Rig::of(&tiers);
    rig.random = Random(random.next() | 1);
    let mut contents = Contents::new(&mut rig);
    let devices = rig.engine.pool().devices();
    let number = devices[rig.random.below(devices.len() as u64) as usize].number;
    let leaving = |rig: &Rig| rig.engine.find_device(&number.to_string()).unwrap();
    let may_leave = |rig: &Rig| rig.engine.plan_leaving(&leaving(rig), 0).obstacle.is_empty();
    let (thins, writes_over) = (rig.random.below(3) == 0, rig.random.below(3) == 0);
    let ticks = 1 + rig.random.below(12);
    if rig.random.below(4) == 0 {
        let new = NewDataset {
            volume_bytes: Some((1 + rig.random.below(8)) * 4 * MIB),
            ..NewDataset::default()
        };
        let _ = rig.engine.datasets().create("tank/thick", &new);
    }
    for _ in 0..1 + u64::from(thins) {
        while may_leave(&rig) && contents.add(&mut rig) {
            if contents.made.is_multiple_of(ticks) {
                rig.tick();
            }
        }
        if thins {
            contents.thin_out(&mut rig);
        }
    }
    if writes_over {
        contents.write_over(&mut rig);
    }
    (0..rig.random.below(3)).for_each(|_| rig.tick());
    // The last that came go again, one by one.
    for _ in 0..2000 {
        if may_leave(&rig) || contents.files.is_empty() {
            break;
        }
        contents.take(contents.files.len() - 1);
        let _ = contents.data.sync();
        (0..1 + rig.random.below(2)).for_each(|_| rig.tick());
    }
    let info = leaving(&rig);
    (rig, contents, info)
}

/// Lets a device leave if the plan says that it can; whether it did, and what went wrong.
fn leave(seed: u64) -> (bool, Option<String>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    random.bytes(32);
    let (rig, _contents, leaving) = used(&mut random);
    let engine = &rig.engine;
    let plan = engine.plan_leaving(&leaving, 0);
    let how = random.below(2);
    let begun = match how {
        0 => engine.remove_device(&leaving.path),
        _ => engine.evacuate_device(&leaving.path),
    };
    let job = match (begun, plan.obstacle.is_empty()) {
        (Ok(job), true) => job,
        (Err(_), false) => return (false, None),
        (begun, _) => return (false, Some(format!("seed {seed}: {plan:?}, and {begun:?}"))),
    };
    for count in 0..20_000 {
        if !engine.is_leaving(job) {
            break;
        }
        engine.step().unwrap();
        if count % 64 == 63 {
            rig.tick();
        }
    }
    let jobs = engine.jobs();
    let ended = jobs.iter().find(|entry| entry.id == job).unwrap();
    let is_gone = match engine.find_device(&leaving.number.to_string()) {
        Ok(info) => how == 1 && info.free_segments == info.segments,
        Err(_) => how == 0,
    };
    let wrong = ended.state != "done" || !is_gone;
    let told = || format!("seed {seed}: {plan:?}\n {ended:?}\n {}", rig.figures());
    (true, wrong.then(told))
}

/// More of them by `TERRACE_LEAVING_SEEDS=1-500`.
#[test]
fn what_is_planned_to_leave_a_tight_pool_leaves_it() {
    let seeds = std::env::var("TERRACE_LEAVING_SEEDS").unwrap_or_else(|_| "24-35".into());
    let (from, to) = seeds.split_once('-').unwrap();
    let outcomes = (from.parse::<u64>().unwrap()..=to.parse().unwrap()).map(leave);
    let (left, wrong): (Vec<bool>, Vec<Option<String>>) = outcomes.unzip();
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    let yes = left.iter().filter(|left| **left).count();
    println!("{yes} of {} left", left.len());
    assert!(yes > left.len() / 2, "too few to tell anything: {yes}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_the_ends_of_small_segments_leave_unused_is_counted() {
    let mut rig = Rig::of(&[(vec![160 * MIB; 2], 1), (vec![64 * MIB], 1)]);
    let segment = u64::from(rig.engine.pool().segment_bytes());
    assert_eq!(segment, MIB, "seven chunks of 128 KiB in each");
    let data = rig.filesystem("tank/data");
    rig.is_room_for(&data, "file", 140 * MIB).unwrap();
    rig.tick();
    for number in 0..2u16 {
        let load = rig.engine.chunks().load_of(SegmentRange::whole(number));
        let device = &rig.engine.pool().devices()[usize::from(number)];
        let claimed = u64::from(device.segments - device.free_segments) * segment;
        let taken = claimed - load.metadata_bytes - segment;
        let counted = load.live_bytes + rig.engine.chunks().unused_ends(load.live_bytes);
        assert!(
            counted >= taken,
            "{} take {taken}, counted are {counted}",
            load.live_bytes
        );
    }
}
