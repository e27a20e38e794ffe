//! The check of what files have preallocated: each inode must say what its regions say, and the sums are the dataset's.
//!
//! Invariant: of files nothing is kept; one is compared as it is met.

use std::{collections::BTreeSet, sync::Arc};

use terrace_store::{Store, StoreError};

use super::{CheckReport, Place, object_of};
use crate::records::{
    Counters, InodeRecord, Preallocated, damaged, decode_region, for_each, keys, split_value,
};

/// Compares each file's record with its regions, and sums them up for `check_counters`.
pub(crate) fn check_preallocated(
    store: &Arc<dyn Store>,
    existing: &BTreeSet<u32>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut unknown = None;
    for_each(store, keys::TABLE_INODE, |key, value| {
        let place = object_of(key)?;
        // One that does not decode is named where names are compared.
        let inode = split_value(value).and_then(|(_, payload)| InodeRecord::decode(payload));
        if let Ok(inode) = inode
            && let Some(preallocated) = &inode.preallocated
            && existing.contains(&place.0)
            && let Err(error) = check_file(store, place, inode.body, preallocated, report)
        {
            unknown = unknown.take().or(Some(error));
        }
        Ok(())
    })?;
    unknown.map_or(Ok(()), Err)
}

fn check_file(
    store: &Arc<dyn Store>,
    place: Place,
    body: u64,
    preallocated: &Preallocated,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let newest_snapshot = match store.get(&keys::counters(place.0))? {
        Some(value) => {
            let counters =
                Counters::decode(&value).map_err(|cause| damaged("a dataset's counters", &cause))?;
            counters.preallocated.since
        }
        None => 0,
    };
    let (mut mapped, mut own) = (0, 0);
    let mut from = keys::region(place.0, body, 0);
    let to = keys::region_end(place.0, body);
    loop {
        let records = store.scan(&from, &to, 1024)?;
        for (key, value) in &records {
            let region = keys::parse_region(key)
                .map_err(|cause| damaged("a key", &cause))?
                .2;
            let (of_mapped, of_own) = preallocated.count(region, &decode_region(value)?.record);
            mapped += of_mapped;
            own += of_own;
        }
        let Some((last, _)) = records.last() else { break };
        from = last.to_vec();
        from.push(0);
    }
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
    totals.own_blocks += preallocated.own_blocks_since(newest_snapshot);
    Ok(())
}
