//! Room that is set aside for a volume, and for ranges of files.
//!
//! What must hold: a write there finds room while nothing fails, and no disk is away that leaves less than was promised.

use terrace_dataset::FsError;

use super::invariant::{Compared, Invariant};
use crate::{
    ensure,
    fs::{models::Models, rig::Rig},
    trace, violation,
};

/// Whether what is promised can be kept, after an opening.
pub(crate) struct Shortage;

impl Invariant for Shortage {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let space = rig.engine()?.store().space();
        models.reservation.is_short =
            rig.members.pulled().is_some() && space.set_aside_bytes > space.room_bytes;
        trace!(
            rig.trace,
            "{} bytes of room, {} set aside", space.room_bytes, space.set_aside_bytes
        );
        Ok(())
    }
}

/// Whether something explains that there is no room where it was set aside.
fn is_excused(rig: &Rig, models: &Models) -> bool {
    rig.condition.is_failing() || models.reservation.is_short || !rig.is_powered()
}

/// A write to a volume failed like that; for the first one room may be reserved.
pub(crate) struct ReservedFits<'a> {
    pub(crate) index: usize,
    pub(crate) error: &'a FsError,
}

impl Invariant for ReservedFits<'_> {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let is_promised = self.index == 0 && models.reservation.holds;
        if *self.error != FsError::NoSpace || !is_promised || is_excused(rig, models) {
            return Ok(());
        }
        let engine = rig.engine()?;
        let space = engine.store().space();
        let volumes = models.volumes.iter();
        let states = volumes.filter_map(|volume| engine.datasets().state(&volume.name).ok());
        let promised: Vec<(u64, u64)> = states
            .map(|state| (state.usage().reservation_bytes(), state.usage().set_aside_bytes()))
            .collect();
        violation!(
            "a volume for which room is reserved found none: of {} bytes of room {} are set aside, of its reservation (all and \
             set aside) {promised:?}, {} bytes are to be freed",
            space.room_bytes,
            space.set_aside_bytes,
            space.pending_free_bytes
        )
    }
}

/// A write to a file failed like that, for all of which room is set aside.
pub(crate) struct PreallocatedFits<'a> {
    pub(crate) words: &'a str,
    pub(crate) error: &'a FsError,
}

impl Invariant for PreallocatedFits<'_> {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        if *self.error != FsError::NoSpace || is_excused(rig, models) {
            return Ok(());
        }
        let space = rig.engine()?.store().space();
        violation!(
            "{}: refused, and room was set aside for it: of {} bytes of room {} are set aside, {} are to be freed",
            self.words,
            space.room_bytes,
            space.set_aside_bytes,
            space.pending_free_bytes
        )
    }
}

/// A full pool refuses the writer; what it has accepted it also takes. (Small change apart: on a pool without any room a
/// truncated block is kept in the reserve as long as that lasts.)
pub(crate) struct AcceptedFits {
    pub(crate) doing: &'static str,
    /// It was refused as too much.
    pub(crate) full: bool,
}

impl Invariant for AcceptedFits {
    fn check(&self, rig: &mut Rig, models: &mut Models) -> Compared {
        let much = models.accepted_bytes > 256 << 10;
        ensure!(
            !self.full || !much || rig.condition.is_failing() || !rig.is_powered(),
            "{}: the pool is too full for {} bytes that it had accepted",
            self.doing,
            models.accepted_bytes
        );
        Ok(())
    }
}
