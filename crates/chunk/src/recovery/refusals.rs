//! Refusals: why a store is not opened, in words that say what helps.

use terrace_log::Copies;
use terrace_pool::{DeviceState, Pool, Presence, SegmentId};
use terrace_store::StoreError;

use crate::errors::damaged;

/// What keeps the log from going on where it was left is accepted by who wants to go back behind it; it is said then.
pub(crate) fn give_up(cause: StoreError, rewind: bool) -> Result<String, StoreError> {
    if !rewind {
        return Err(cause);
    }
    tracing::warn!(%cause, "the end of the log is given up, as was asked for");
    Ok(cause.to_string())
}

/// Whether a copy is on a device that is there.
pub(crate) fn is_there(pool: &Pool, copies: Copies) -> bool {
    copies.iter().any(|segment| pool.has_segment(segment))
}

/// Where the log goes on there must be a copy of it: else nobody knows how far it went, and nothing can be written. To be asked
/// before the labels say that the pool is used without the devices that are missing.
pub(crate) fn check_log_is_there(pool: &Pool, copies: Copies) -> Result<(), StoreError> {
    let returned = pool.returned();
    // One that is older than the pool though nobody noted it as away may lack what went to it alone: as good as missing.
    let outdated = pool.outdated_by_label();
    let here = |segment: &SegmentId| pool.has_segment(*segment) && !outdated.contains(&segment.device);
    let is_current = |segment: SegmentId| here(&segment) && !returned.contains(&segment.device);
    let devices = pool.devices();
    let info = |number: u16| devices.iter().find(|device| device.number == number);
    // One that was away may lack what one knows that is missing now and was in use meanwhile, or longer, or just as long.
    let until = |copy: SegmentId| match info(copy.device).map(|device| device.presence) {
        Some(Presence::Absent { since }) => since,
        _ => u64::MAX,
    };
    let known = copies.iter().filter(here).map(until).max();
    let missing = copies.iter().filter(|segment| !here(segment));
    let needed: Vec<SegmentId> = missing.filter(|copy| known <= Some(until(*copy))).collect();
    if copies.iter().any(is_current) || needed.is_empty() && known.is_some() {
        return Ok(());
    }
    let describe = |copy: &SegmentId, seen: &str| match info(copy.device) {
        Some(device) => format!("device {} ({seen}{})", copy.device, device.path),
        None => format!("device {}", copy.device),
    };
    let on: Vec<String> = needed
        .iter()
        .map(|copy| describe(copy, "last seen as "))
        .collect();
    let (on, name) = (on.join(" and "), pool.name());
    let state = match copies.iter().any(|copy| outdated.contains(&copy.device)) {
        true => "missing or out of date",
        false => "missing",
    };
    let lies = match copies.iter().find(here) {
        Some(copy) => format!(
            "may lie only on {on}, which is {state}: {}, which has a copy of it, dropped out before the pool was last in use",
            describe(&copy, "")
        ),
        None => format!("lies only on {on}, which is {state}"),
    };
    Err(StoreError::Device(
        format!(
            "the end of the log of pool '{name}' {lies}; nothing was changed: bring it back and type 'terrace start {name}'; or give up for \
             good what came after the last state that the others have with 'terrace start {name} --rewind', or save what is left with \
             'terrace verify {name} --rebuild NEWPOOL'"
        )
        .into(),
    ))
}

/// Roots are written to some devices only: one of these may be what is missing.
pub(crate) fn without_a_root(pool: &Pool) -> StoreError {
    let devices = pool.devices();
    let missing = devices
        .iter()
        .filter(|device| device.state == DeviceState::Missing);
    let on: Vec<String> = missing
        .map(|device| format!("device {} (last seen as {})", device.number, device.path))
        .collect();
    if on.is_empty() {
        return damaged("the pool has no root record: it was never finished, or its roots were erased");
    }
    let (on, name) = (on.join(", "), pool.name());
    StoreError::Device(
        format!(
            "no device that is there has a root record of pool '{name}'; missing: {on}; nothing was changed: bring one of these back that \
             has it (the fastest four have) and type 'terrace start {name}', or save what is left with 'terrace verify {name} \
             --rebuild NEWPOOL'"
        )
        .into(),
    )
}
