//! Room that is set aside for a volume, in some of the runs, and for ranges of files: what others do, and how full the pool is, is no
//! reason to refuse a write there.
//!
//! What must hold: setting it aside is refused with figures or holds from then on, over restarts, snapshots, other sizes and whatever is done
//! to the devices; a write to the volume finds room while nothing fails, and no disk is away that leaves less than was promised.

use terrace_dataset::FsError;

use crate::{fs::level::Run, hardware::Random, models::Content, trace, violation, violation::Check};

/// Writes to the volume while the pool is full.
const WRITES: u64 = 12;

/// The reservation of a run's volume.
pub(crate) struct Reserving {
    /// Chance of its own, so that it does not change what else a seed does.
    random: Random,
    is_meant: bool,
    pub(crate) holds: bool,
    /// A disk is away that has left less room than is promised: nobody can keep that until it is back.
    is_short: bool,
}

impl Reserving {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x7E5E_12E0_0000);
        Self {
            is_meant: random.chance(1, 3),
            random,
            holds: false,
            is_short: false,
        }
    }
}

impl Run {
    /// Reserves room for the volume that was made just now.
    pub(crate) fn reserve(&mut self) -> Check {
        let Some(volume) = self.volumes.first().filter(|_| self.reserving.is_meant) else {
            return Ok(());
        };
        let size = volume.history.newest().size.to_string();
        let set = self.engine()?.datasets().set(&volume.name, "reservation", &size);
        trace!(self.trace, "reserve {size} for {}: {}", volume.name, set.is_ok());
        match set {
            Ok(()) => {
                self.reserving.holds = true;
                Ok(())
            }
            Err(error) => self.excuse("reserving", &error.to_string()),
        }
    }

    /// Whether what is promised can be kept, after an opening.
    pub(crate) fn note_shortage(&mut self) -> Check {
        let space = self.engine()?.store().space();
        self.reserving.is_short = self.absence.pulled().is_some() && space.set_aside_bytes > space.room_bytes;
        trace!(
            self.trace,
            "{} bytes of room, {} set aside", space.room_bytes, space.set_aside_bytes
        );
        Ok(())
    }

    /// A write to one of the volumes failed like that; for the first one room may be reserved.
    pub(crate) fn check_promised(&self, index: usize, error: &FsError) -> Check {
        let excused = self.storm || self.hurt || self.reserving.is_short || !self.rig.machine.is_powered();
        if *error != FsError::NoSpace || index != 0 || !self.reserving.holds || excused {
            return Ok(());
        }
        let engine = self.engine()?;
        let space = engine.store().space();
        let volumes = self.volumes.iter();
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

    /// A write to a file failed like that, for all of which room is set aside.
    pub(crate) fn check_preallocated(&self, words: &str, error: &FsError) -> Check {
        let excused = self.storm || self.hurt || self.reserving.is_short || !self.rig.machine.is_powered();
        if *error != FsError::NoSpace || excused {
            return Ok(());
        }
        let space = self.engine()?.store().space();
        violation!(
            "{words}: refused, and room was set aside for it: of {} bytes of room {} are set aside, {} are to be freed",
            space.room_bytes,
            space.set_aside_bytes,
            space.pending_free_bytes
        )
    }

    /// Some writes to the volume, while there is a file that fills the pool.
    pub(crate) fn write_the_reserved(&mut self) -> Check {
        if !self.reserving.holds {
            return Ok(());
        }
        for _ in 0..self.reserving.random.below(WRITES) {
            let Some(handle) = self.volumes.first().and_then(|volume| volume.handle.clone()) else {
                return Ok(());
            };
            let mut model = self.volumes[0].history.newest().clone();
            let offset = self.reserving.random.below(model.size) / 4096 * 4096;
            let most = [4096, 20_000, 200_000][self.reserving.random.index(3)];
            let mut data = Content::choose(&mut self.reserving.random, most).bytes();
            data.truncate((model.size - offset) as usize);
            model.write(offset, &data);
            let written = handle.write(offset, &data);
            trace!(
                self.trace,
                "volume: write {} at {offset} on a full pool: {}",
                data.len(),
                written.is_ok()
            );
            self.volume_written(0, written, model, handle)?;
        }
        Ok(())
    }
}
