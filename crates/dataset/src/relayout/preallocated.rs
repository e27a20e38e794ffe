//! What a relayout has to know of preallocated ranges: what stands for a promise goes on to do so.

use super::relayout::Relayouter;
use crate::{
    live::Fragment,
    posix::FsError,
    records::{Preallocated, REGION_BLOCKS, RegionRecord},
};

const PER_REGION: u64 = REGION_BLOCKS as u64;

impl Relayouter {
    /// What an object has preallocated as of the newest commit, as it counts after the newest snapshot.
    fn counted(&self, number: u64) -> Result<Option<Preallocated>, FsError> {
        let object = self.table.object(number)?;
        let mut counted = match &object.state().recorded_preallocated {
            Some(recorded) => Preallocated::clone(recorded),
            None => return Ok(None),
        };
        counted.since = counted.since.max(self.dataset.newest_snapshot());
        Ok(Some(counted))
    }

    /// Whether what is stored anew of a region is stored in its full size, as what room is set aside for; `None`: it is left as it is,
    /// for some of it would stand for a promise from then on.
    pub(crate) fn stored_plain(
        &self,
        fragment: &Fragment,
        record: &RegionRecord,
    ) -> Result<Option<bool>, FsError> {
        let first = fragment.region * PER_REGION;
        let counted = self.counted(fragment.object)?;
        let Some(counted) = counted.filter(|counted| counted.intersects(first, first + PER_REGION)) else {
            return Ok(Some(false));
        };
        let (mapped, own) = counted.count(fragment.region, record);
        Ok((mapped == own).then_some(true))
    }

    /// Whether as much of a region stands for promises in another layout. The commit lock is held.
    pub(crate) fn stays_own(
        &self,
        fragment: &Fragment,
        old: &RegionRecord,
        laid_out: &RegionRecord,
    ) -> Result<bool, FsError> {
        let counted = self.counted(fragment.object)?;
        Ok(counted.is_none_or(|counted| {
            counted.count(fragment.region, old) == counted.count(fragment.region, laid_out)
        }))
    }
}
