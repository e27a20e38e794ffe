//! Filling a pool, or a quota, to its last block, and what clients do while there is no room.
//!
//! Each call is done as in `fs/workload.rs`; what was written to fill is deleted at the end.

use terrace_dataset::{AllocateMode, Context, FileKind, SeekTarget};

use super::{call::Done, copying::copied_in_part};
use crate::{
    fs::{
        level::Run,
        state::{BlocksModel, Body, Promise, ROOT, UNKNOWN_OBJECT},
    },
    hardware::FaultKind,
    models::Content,
    trace,
    violation::Check,
};

impl Run {
    /// Writes until the pool (or the quota) is full, then deletes what was written.
    pub(crate) fn fill_up(&mut self) -> Check {
        let index = self.random.index(self.filesystems.len());
        if self.random.chance(1, 2) || self.filesystems[index].promise == Promise::Sync {
            return Ok(());
        }
        trace!(self.trace, "filling up");
        let name = b"filler".to_vec();
        let uncertain = self.filesystems[index].history.uncertain();
        self.call(index, "create filler", |fs, tree| {
            let result = fs.create(&Context::root(), ROOT, &name, FileKind::File, 0o600, 0);
            let object = result
                .as_ref()
                .map_or(UNKNOWN_OBJECT, |attributes| attributes.object);
            let model = tree.create(ROOT, &name, object, 0o600, Body::File(BlocksModel::default()));
            Done::of(result, model, vec![object, ROOT])
        })?;
        let full = self.coverage.count(FaultKind::PoolFull);
        // With a quota to its last block, in ever smaller pieces.
        let quota = self.filesystems[index].quota_bytes.is_some();
        let mut length = 1 << 20;
        for _ in 0..200 {
            let Ok(object) = self.filesystems[index].history.newest().tree.lookup(ROOT, &name) else {
                break;
            };
            let size = self.filesystems[index]
                .history
                .newest()
                .tree
                .file(object)
                .map_or(0, |file| file.size);
            let data = Content {
                texture: 0,
                seed: self.random.next(),
                length,
            }
            .bytes();
            self.call(index, &format!("fill at {size}"), |fs, tree| {
                let result = fs.write(&Context::root(), object, size, &data, false);
                let written = result.as_ref().map_or(data.len(), |written| *written);
                let model = tree.write(object, size, &data[..written]);
                Done::of(result, model, vec![object])
            })?;
            let now = self.filesystems[index].history.uncertain();
            let refused = self.filesystems[index]
                .history
                .newest()
                .tree
                .file(object)
                .is_ok_and(|file| file.size == size);
            if refused && quota && length > 4096 && self.coverage.count(FaultKind::PoolFull) == full {
                length /= 16;
                continue;
            }
            if self.coverage.count(FaultKind::PoolFull) > full || now < uncertain || refused {
                break;
            }
        }
        self.beside_the_filler(index, &name)?;
        self.write_the_reserved()?;
        self.write_the_preallocated(index)?;
        if self.filesystems[index]
            .history
            .newest()
            .tree
            .lookup(ROOT, &name)
            .is_ok()
        {
            self.unlink(index, ROOT, &name)?;
        }
        Ok(())
    }

    /// With a long file there, and no room beside it: it is copied by sharing, which a quota counts too; and a block is
    /// punched out of it at the start of a region.
    fn beside_the_filler(&mut self, index: usize, name: &[u8]) -> Check {
        let Ok(object) = self.filesystems[index].history.newest().tree.lookup(ROOT, name) else {
            return Ok(());
        };
        let size_of = |run: &Self| {
            run.filesystems[index]
                .history
                .newest()
                .tree
                .file(object)
                .map_or(0, |file| file.size)
        };
        if self.aside.chance(1, 2) {
            if let Some(handle) = self.filesystems[index].handle.clone()
                && let Err(error) = handle.commit()
            {
                return self.after_error("commit", &error);
            }
            let end = size_of(self).next_multiple_of(4096);
            self.call(index, "copy the filler behind itself", |fs, tree| {
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
        if self.aside.chance(1, 2) && size_of(self) > 2 * region {
            self.call(index, "punch a block out of the filler", |fs, tree| {
                let result = fs.allocate(&Context::root(), object, AllocateMode::Punch, region, 4096);
                Done::of(result, tree.punch(object, region, 4096), vec![object])
            })?;
            if size_of(self) > region {
                self.seek_for(index, object, 0, SeekTarget::Hole, true)?;
            }
        }
        Ok(())
    }
}
