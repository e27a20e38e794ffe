//! The whole engine under the simulator: filesystems and volumes, several clients, snapshots, background work, cuts,
//! kills and failing devices, against plain models.
//!
//! What is checked after every opening: each dataset is in one of the states that it was in since its last fsync,
//! wholly; every snapshot that was acknowledged is there and shows exactly what it showed when it was taken; a full
//! walk of the store finds every count exact. While running, every call answers as the model says, or with an error
//! that a fault explains. At the end everything is deleted and the room must come back.

use std::sync::Arc;

use super::{
    admin::{
        AdministerSnapshots, BrowseSnapshot, ChangeProperty, DestroySnapshot, MakeDatasets, MakeSnapshot,
        ResizeVolume,
    },
    background::{Background, ComeAndGo, Fsync, Raise, Relayout, Serving, StoreCheckpoint, Tick},
    checks::{Audit, FilesystemShown},
    clients::{FilesystemCall, FillUp, VolumeCall},
    endings::{DeleteEverything, LoseDevice, Rebuild},
    machine::{
        ChangeDevices, ChangeTier, CloseAndOpen, Cut, CutAfterLeaving, Kill, MoveByHand, PlanCut, PullDisks,
        ReplaceDisks, Weather,
    },
    world::{Judged, World},
};
use crate::{
    act::{Act, Table},
    hardware::Coverage,
    trace::Trace,
    violation::Check,
};

/// What is done at this level, with missing disks replaced or not. A new kind of act is a file with a struct that implements
/// `Act`, and a line here.
fn table(seed: u64, replaces: bool, world: &mut World) -> Table<World> {
    Table {
        before: vec![Box::new(Relayout::new(seed)), Box::new(Raise::new(seed))],
        choices: vec![
            (102, Box::new(FilesystemCall)),
            (12, Box::new(VolumeCall)),
            (13, Box::new(Fsync)),
            (15, Box::new(Background)),
            (8, Box::new(Tick)),
            (6, Box::new(MakeSnapshot::default())),
            (4, Box::new(DestroySnapshot)),
            (3, Box::new(AdministerSnapshots)),
            (5, Box::new(BrowseSnapshot)),
            (4, Box::new(Judged(FilesystemShown))),
            (3, Box::new(Weather)),
            (2, Box::new(FillUp::new(seed))),
            (2, Box::new(PlanCut)),
            (3, Box::new(Cut)),
            (3, Box::new(Kill)),
            (2, Box::new(CloseAndOpen)),
            (2, Box::new(StoreCheckpoint)),
            (2, Box::new(Judged(Audit))),
            (3, Box::new(ChangeDevices::default())),
            (1, Box::new(ChangeTier)),
            (2, Box::new(MoveByHand)),
            (2, Box::new(ChangeProperty)),
            (1, Box::new(ResizeVolume)),
        ],
        after: vec![
            Box::new(ComeAndGo::new(seed)),
            Box::new(Serving::new(seed)),
            Box::new(PullDisks::new(seed, world)),
            Box::new(ReplaceDisks::new(seed, replaces)),
            Box::new(CutAfterLeaving),
        ],
    }
}

/// Runs one seed, with missing disks replaced or not.
pub fn run(seed: u64, replaces: bool, coverage: Arc<Coverage>, trace: Trace) -> Check {
    let mut world = World::new(seed, coverage, trace)?;
    world.look_at_members()?;
    let mut table = table(seed, replaces, &mut world);
    MakeDatasets.perform(&mut world)?;
    table.begin(&mut world)?;
    if world.rig.random.chance(1, 2) {
        let after = world.rig.random.between(1, 1500);
        world.rig.machine.cut_power_after(Some(after));
    }
    let length = world.rig.random.between(60, 300);
    for _ in 0..length {
        table.turn(&mut world, |world, all| world.rig.random.below(all))?;
        world.rig.machine.check_breach()?;
    }
    if !table.end(&mut world)? {
        finish(&mut world)?;
    }
    world.rig.machine.check_breach()
}

/// The last act: everything is deleted, and the room must come back; or one of those of which nothing can.
fn finish(world: &mut World) -> Check {
    match world.rig.random.below(20) {
        0 if LoseDevice.end(world)? => Ok(()),
        1 => Rebuild.perform(world),
        _ => DeleteEverything.perform(world),
    }
}
