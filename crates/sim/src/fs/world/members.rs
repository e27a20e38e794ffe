//! The disks that are part of the pool now. Those that have left since the last look are wiped, to show that nothing on them
//! is needed.
//!
//! What must hold: nothing refers to a disk that has left, everything can be read without it, and nothing of the pool is on
//! it.

use super::world::World;
use crate::{
    ensure,
    fs::checks::{Audit, Compared, Readable, Tables, Trouble},
    hardware::root_guard,
    trace,
    violation::Check,
};

impl World {
    /// Looks which disks are part of the pool, and checks those that have left.
    pub(crate) fn look_at_members(&mut self) -> Check {
        self.members_now(true)
    }

    /// The same after an opening. A disk may have left just before a cut, which came before it could be wiped.
    pub(super) fn members_after_opening(&mut self) -> Check {
        self.members_now(false)
    }

    fn members_now(&mut self, wiped: bool) -> Check {
        match self.update_members(wiped) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.rig.members.note_left();
                self.check_without_what_left()
            }
            Err(trouble) => self.settle(Err(trouble)),
        }
    }

    /// Whether a disk has left.
    fn update_members(&mut self, wiped: bool) -> Compared<bool> {
        let rig = &mut self.rig;
        if !rig.is_powered() {
            return Ok(false);
        }
        let Some(engine) = rig.engine.clone() else {
            return Ok(false);
        };
        let left = rig.members.update(&engine.pool().devices());
        for gone in &left {
            let disk = gone.disk;
            trace!(rig.trace, "disk {disk} has left the pool");
            let remains = rig.machine.with_disk(disk, |disk, _| root_guard::remains(disk));
            // Nothing can be wiped off one that is not there.
            let away = rig.members.pulled() == Some(disk);
            ensure!(
                remains.is_none() || !wiped || away || rig.condition.is_failing(),
                "disk {disk} has left the pool and holds {} of it still",
                remains.unwrap_or_default()
            );
            if !away {
                rig.machine.with_disk(disk, |disk, _| disk.blank());
            }
            if let Some(number) = gone.number {
                match engine.chunks().claims_on(number) {
                    Ok(claims) => ensure!(
                        claims.is_empty(),
                        "disk {disk} has left the pool, and {}",
                        claims.join("; ")
                    ),
                    Err(error) => return Err(Trouble::refused("asking what is on a device", error)),
                }
            }
        }
        Ok(!left.is_empty())
    }

    /// After a disk has left, and an opening: nothing refers to it, and everything can be read.
    pub(crate) fn check_without_what_left(&mut self) -> Check {
        if self.rig.engine.is_none() || self.rig.condition.is_failing() {
            return Ok(());
        }
        self.check(&Audit)?;
        self.check(&Tables)?;
        self.check(&Readable)
    }
}
