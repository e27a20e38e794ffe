//! What the labels of the devices that were found say together.
//!
//! Invariants: the newest label that reached phase two on any device (see `labels`) decides what the pool is; devices that were
//! used apart from each other are refused together.

use std::sync::Arc;

use terrace_device::Device;

use super::open::OpenOptions;
use crate::{
    PoolError, PoolState,
    labels::{Standing, standing},
    ondisk::{Label, LabelCopies, Member},
    roots::HOLDERS_MAX,
};

/// A device and its labels.
pub(super) type Found = (Arc<dyn Device>, LabelCopies);

/// The label that decides: of one pool, the newest that reached phase two; where no such copy is left, the newest.
pub(super) fn choose_label(found: &[Found]) -> Result<Label, PoolError> {
    let Some(first) = found.first().and_then(|(_, copies)| copies.newest()) else {
        return Err(PoolError::Invalid(
            "no device was given; a pool needs at least one".into(),
        ));
    };
    for (device, copies) in found {
        if let Some(label) = copies.newest()
            && label.pool_id != first.pool_id
        {
            return Err(PoolError::ForeignDevice {
                path: device.path(),
                other: label.pool_name.clone(),
                pool: first.pool_name.clone(),
            });
        }
    }
    let newest = |label: fn(&LabelCopies) -> Option<&Label>| {
        let labels = found.iter().filter_map(move |(_, copies)| label(copies));
        labels
            .filter(|label| label.pool_id == first.pool_id)
            .max_by_key(|label| label.generation)
    };
    let label = newest(LabelCopies::confirmed).or_else(|| newest(LabelCopies::newest));
    Ok(label.unwrap_or(first).clone())
}

/// The devices that roots are written to as long as all are there that were, and were not away.
pub(super) fn root_holders_of(label: &Label, returned: &[u16]) -> Vec<u16> {
    let mut holders: Vec<&Member> = label
        .members
        .iter()
        .filter(|member| !member.is_absent())
        .collect();
    holders.sort_by_key(|member| (member.tier, member.number));
    holders.truncate(HOLDERS_MAX);
    let numbers = holders.into_iter().map(|member| member.number);
    numbers.filter(|number| !returned.contains(number)).collect()
}

/// Refuses devices of which some were used without the others, and these without them: each has what the others lack.
pub(super) fn refuse_apart(label: &Label, found: &[Found]) -> Result<(), PoolError> {
    let (mut these, mut those, mut number) = (Vec::new(), Vec::new(), 0);
    for (device, copies) in found {
        match standing(label, copies) {
            Some(Standing::Current(_)) => these.push(device.path()),
            Some(Standing::Apart(member)) => {
                number = member.number;
                those.push(device.path());
            }
            _ => {}
        }
    }
    match those.is_empty() {
        true => Ok(()),
        false => Err(PoolError::UsedApart {
            pool: label.pool_name.clone(),
            these,
            those,
            number,
        }),
    }
}

pub(super) fn check_state(label: &Label, options: &OpenOptions) -> Result<(), PoolError> {
    let (refused, advice) = match label.state {
        PoolState::Active => return Ok(()),
        PoolState::Exported => (!options.exported, "use 'terrace pool import' to take it in again"),
        PoolState::Destroyed => (
            !options.destroyed,
            "its data may be recoverable: 'terrace pool import --destroyed' with its devices takes it in again",
        ),
    };
    if !refused || options.read_only && label.state == PoolState::Exported {
        return Ok(());
    }
    Err(PoolError::WrongState {
        pool: label.pool_name.clone(),
        state: label.state.as_str(),
        advice,
    })
}

pub(super) fn describe_missing(member: &Member) -> String {
    format!("device {} (last seen as {})", member.number, member.path)
}
