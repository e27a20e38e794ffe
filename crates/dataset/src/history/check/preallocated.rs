//! The check of what files have preallocated: each inode must say what its regions say, and the sums are the dataset's.
//!
//! Invariant: of files nothing is kept; one is compared as it is met.

use std::collections::BTreeSet;

use terrace_store::StoreError;

use super::{CheckReport, Place, object_of};
use crate::records::{InodeRecord, PoolRecords, Preallocated, RegionRecord, keys, split_value};

/// Compares each file's record with its regions, and sums them up for `check_counters`.
pub(crate) fn check_preallocated(
    records: PoolRecords<'_>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut unknown = None;
    records.for_each(keys::TABLE_INODE, |key, value| {
        let place = object_of(key)?;
        // One that does not decode is named where names are compared.
        let inode = split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload));
        if let Ok(inode) = inode
            && let Some(preallocated) = &inode.preallocated
            && existing.contains(&place.0)
            && let Err(error) = check_file(records, place, inode.body, preallocated, report)
        {
            unknown = unknown.take().or(Some(error));
        }
        Ok(())
    })?;
    unknown.map_or(Ok(()), Err)
}

fn check_file(
    records: PoolRecords<'_>,
    place: Place,
    body: u64,
    preallocated: &Preallocated,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let counters = records.dataset(place.0).counters()?.unwrap_or_default();
    let (mut mapped, mut own) = (0, 0);
    let (from, to) = (keys::region(place.0, body, 0), keys::region_end(place.0, body));
    records.for_range(from, &to, |key, value| {
        let (.., region) = keys::parse_region(key)?;
        let (_, payload) = split_value(value)?;
        let (of_mapped, of_own) = preallocated.count(region, &RegionRecord::decode(payload)?);
        mapped += of_mapped;
        own += of_own;
        Ok(())
    })?;
    if (mapped, own) != (preallocated.mapped_blocks, preallocated.own_blocks) {
        report.problem(|| {
            format!(
                "inode {place:?} has {mapped} blocks mapped of what is preallocated, {own} of them own; it says {} and {}",
                preallocated.mapped_blocks, preallocated.own_blocks
            )
        });
    }
    let totals = &mut report.counters(place.0, place.1).preallocated;
    totals.blocks += preallocated.blocks();
    totals.mapped_blocks += preallocated.mapped_blocks;
    totals.own_blocks += preallocated.own_blocks_since(counters.preallocated.since);
    Ok(())
}
