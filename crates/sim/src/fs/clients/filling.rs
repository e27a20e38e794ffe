//! Filling a pool, or a quota, to its last block, and what clients do while there is no room.
//!
//! What was written to fill is deleted at the end.

use terrace_dataset::{AllocateMode, Context, FileKind, SeekTarget};

use super::{
    call::{Client, Done},
    copying::copied_in_part,
    file_data::Write,
    names::Unlink,
    reserved_volume::ReservedVolume,
    seek::Seek,
};
use crate::{
    act::Act,
    fs::{
        models::{BlocksModel, Body, Promise, ROOT, UNKNOWN_OBJECT},
        world::World,
    },
    hardware::FaultKind,
    models::Content,
    trace,
    violation::Check,
};

/// The file that fills.
const NAME: &[u8] = b"filler";

/// Writes until the pool (or the quota) is full, then deletes what was written.
pub(crate) struct FillUp {
    reserved: ReservedVolume,
}

impl FillUp {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            reserved: ReservedVolume::new(seed),
        }
    }

    /// Writes to one file until there is no room.
    fn fill(client: &mut Client<'_>) -> Check {
        let uncertain = client.model().history.uncertain();
        client.call("create filler", |fs, tree| {
            let result = fs.create(&Context::root(), ROOT, NAME, FileKind::File, 0o600, 0);
            let object = result
                .as_ref()
                .map_or(UNKNOWN_OBJECT, |attributes| attributes.object);
            let model = tree.create(ROOT, NAME, object, 0o600, Body::File(BlocksModel::default()));
            Done::of(result, model, vec![object, ROOT])
        })?;
        let coverage = client.world.rig.coverage.clone();
        let full = coverage.count(FaultKind::PoolFull);
        // With a quota to its last block, in ever smaller pieces.
        let quota = client.model().quota_bytes.is_some();
        let mut length = 1 << 20;
        for _ in 0..200 {
            let Ok(object) = client.tree().lookup(ROOT, NAME) else {
                break;
            };
            let size = client.size_of(object);
            let content = Content {
                texture: 0,
                seed: client.random().next(),
                length,
            };
            let data = content.bytes();
            client.call(&format!("fill at {size}"), |fs, tree| {
                let result = fs.write(&Context::root(), object, size, &data, false);
                let written = result.as_ref().map_or(data.len(), |written| *written);
                let model = tree.write(object, size, &data[..written]);
                Done::of(result, model, vec![object])
            })?;
            let now = client.model().history.uncertain();
            let refused = client.tree().file(object).is_ok_and(|file| file.size == size);
            if refused && quota && length > 4096 && coverage.count(FaultKind::PoolFull) == full {
                length /= 16;
                continue;
            }
            if coverage.count(FaultKind::PoolFull) > full || now < uncertain || refused {
                break;
            }
        }
        Ok(())
    }

    /// With a long file there, and no room beside it: it is copied by sharing, which a quota counts too; and a block is
    /// punched out of it at the start of a region.
    fn beside_the_filler(client: &mut Client<'_>) -> Check {
        let Ok(object) = client.tree().lookup(ROOT, NAME) else {
            return Ok(());
        };
        if client.aside().chance(1, 2) {
            if let Err(error) = client.commit() {
                return client.world.after_error("commit", &error);
            }
            let end = client.size_of(object).next_multiple_of(4096);
            client.call("copy the filler behind itself", |fs, tree| {
                let result = fs.copy_range(&Context::root(), object, 0, object, end, 300_000);
                let copied = result.as_ref().map_or(300_000, |copied| *copied as usize);
                let data = tree
                    .file(object)
                    .map(|file| file.read(0, copied))
                    .unwrap_or_default();
                let pieces = copied_in_part(tree, (0, object), end, &data);
                let model = tree.write(object, end, &data);
                Done::of(result, model, vec![object]).by_way_of(pieces)
            })?;
        }
        let region = 1 << 20;
        if client.aside().chance(1, 2) && client.size_of(object) > 2 * region {
            client.call("punch a block out of the filler", |fs, tree| {
                let result = fs.allocate(&Context::root(), object, AllocateMode::Punch, region, 4096);
                Done::of(result, tree.punch(object, region, 4096), vec![object])
            })?;
            if client.size_of(object) > region {
                let seek = Seek {
                    offset: 0,
                    target: SeekTarget::Hole,
                    exact: true,
                };
                seek.within(client, object)?;
            }
        }
        Ok(())
    }
}

impl Act<World> for FillUp {
    fn begin(&mut self, world: &mut World) -> Check {
        self.reserved.reserve(world)
    }

    fn perform(&mut self, world: &mut World) -> Check {
        let random = &mut world.rig.random;
        let index = random.index(world.models.filesystems.len());
        if random.chance(1, 2) || world.models.filesystems[index].promise == Promise::Sync {
            return Ok(());
        }
        trace!(world.rig.trace, "filling up");
        Self::fill(&mut Client::of(world, index))?;
        Self::beside_the_filler(&mut Client::of(world, index))?;
        self.reserved.write(world)?;
        let mut client = Client::of(world, index);
        Write::write_the_preallocated(&mut client)?;
        if client.tree().lookup(ROOT, NAME).is_ok() {
            Unlink::unlink(&mut client, ROOT, NAME)?;
        }
        Ok(())
    }
}
