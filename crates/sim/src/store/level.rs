//! The store under the simulator: batches, chunks, flushes, background steps, cuts, kills and failing devices, against
//! a [`StoreModel`].
//!
//! What is checked after every opening: the records are those of a prefix of the batches that contains every flushed
//! one; every chunk that a record refers to has its content; the full walk (`audit`) finds every count exact. While
//! running: every read answers as the model says, or with an error that a fault explains; a full pool refuses new data,
//! lets go of old data, and takes new data again. At the end, everything is deleted and the room must be back.

use std::sync::Arc;

use super::{
    acts::{
        Audit, AuditRoot, Background, CatchUp, Checkpoint, CloseAndOpen, CommitBatch, Cut, CutOffTwice,
        DeleteEverything, DropHeld, FillUp, Flush, HoldOverDeath, Kill, LookAtMirrors, PlanCut, Read,
        Rewrite, Scrub, UpgradeFormat, Weather,
    },
    world::StoreWorld,
};
use crate::{
    act::{Act, Table},
    hardware::Coverage,
    trace::Trace,
    violation::Check,
};

/// What is done at this level. A new kind of act is a file in `store/acts` and a line here.
fn table(seed: u64) -> Table<StoreWorld> {
    Table {
        before: Vec::new(),
        choices: vec![
            (40, Box::new(CommitBatch)),
            (12, Box::new(Flush)),
            (13, Box::new(Read)),
            (12, Box::new(Background)),
            (3, Box::new(Checkpoint)),
            (4, Box::new(Rewrite)),
            (1, Box::new(Scrub)),
            (2, Box::new(FillUp)),
            (2, Box::new(Weather)),
            (2, Box::new(Audit)),
            (1, Box::new(PlanCut)),
            (3, Box::new(Cut)),
            (2, Box::new(Kill)),
            (1, Box::new(CloseAndOpen)),
            (1, Box::new(DropHeld)),
            (1, Box::new(CutOffTwice)),
        ],
        after: vec![
            Box::new(HoldOverDeath::new(seed)),
            Box::new(UpgradeFormat),
            Box::new(LookAtMirrors),
            Box::new(CatchUp),
            Box::new(AuditRoot),
        ],
    }
}

/// Runs one seed.
pub fn run(seed: u64, coverage: Arc<Coverage>, trace: Trace) -> Check {
    let seed = seed ^ 0x5701_2E00;
    let mut world = StoreWorld::begin(seed, coverage, trace)?;
    let mut table = table(seed);
    table.begin(&mut world)?;
    let length = world.random.between(40, 220);
    let countdown = world.random.chance(1, 2);
    if countdown {
        let after = world.random.between(1, 2500);
        world.rig.machine.cut_power_after(Some(after));
    }
    for _ in 0..length {
        table.turn(&mut world, |world, all| world.random.below(all))?;
        world.rig.machine.check_breach()?;
    }
    if !table.end(&mut world)? {
        DeleteEverything.perform(&mut world)?;
    }
    world.rig.machine.check_breach()
}
