//! Room that is set aside for a volume, in some of the runs: what others do, and how full the pool is, is no reason to refuse
//! a write there.
//!
//! What must hold: setting it aside is refused with figures or holds from then on, over restarts, snapshots, other sizes and
//! whatever is done to the devices.

use super::volume_data::VolumeClient;
use crate::{fs::world::World, hardware::Random, models::Content, trace, violation::Check};

/// Writes to the volume while the pool is full.
const WRITES: u64 = 12;

/// The client that reserves.
pub(super) struct ReservedVolume {
    /// Chance of its own, so that it does not change what else a seed does.
    random: Random,
    is_meant: bool,
}

impl ReservedVolume {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x7E5E_12E0_0000);
        Self {
            is_meant: random.chance(1, 3),
            random,
        }
    }

    /// Reserves room for the volume that was made just now.
    pub(super) fn reserve(&mut self, world: &mut World) -> Check {
        let Some(volume) = world.models.volumes.first().filter(|_| self.is_meant) else {
            return Ok(());
        };
        let size = volume.history.newest().size.to_string();
        let engine = world.rig.engine()?;
        let set = engine
            .datasets()
            .properties()
            .set(&volume.name, "reservation", &size);
        trace!(
            world.rig.trace,
            "reserve {size} for {}: {}",
            volume.name,
            set.is_ok()
        );
        match set {
            Ok(()) => {
                world.models.reservation.holds = true;
                Ok(())
            }
            Err(error) => world.excuse("reserving", &error.to_string()),
        }
    }

    /// Some writes to the volume, while there is a file that fills the pool.
    pub(super) fn write(&mut self, world: &mut World) -> Check {
        if !world.models.reservation.holds {
            return Ok(());
        }
        for _ in 0..self.random.below(WRITES) {
            let mut client = VolumeClient::of(world, 0);
            let Some(handle) = client.handle() else {
                return Ok(());
            };
            let mut model = client.content().clone();
            let offset = self.random.below(model.size) / 4096 * 4096;
            let most = [4096, 20_000, 200_000][self.random.index(3)];
            let mut data = Content::choose(&mut self.random, most).bytes();
            data.truncate((model.size - offset) as usize);
            model.write(offset, &data);
            let written = handle.write(offset, &data);
            trace!(
                client.world.rig.trace,
                "volume: write {} at {offset} on a full pool: {}",
                data.len(),
                written.is_ok()
            );
            client.written(written, model, &handle)?;
        }
        Ok(())
    }
}
