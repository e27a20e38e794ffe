//! Changes of what a label says of the pool and its tiers.
//!
//! Invariant: a label that is refused is left as it was, or thrown away by the caller.

use crate::{
    PoolError,
    ondisk::{Label, Landing, TIERS_MAX, TierSettings, take_from_others},
};

/// Sets (or with `None` removes) a property.
pub(crate) fn set_property(label: &mut Label, name: &str, value: Option<&str>) -> Result<(), PoolError> {
    if name.is_empty() {
        return Err(PoolError::Invalid("a property needs a name".into()));
    }
    match value {
        Some(value) => label.properties.insert(name.to_owned(), value.to_owned()),
        None => label.properties.remove(name),
    };
    Ok(())
}

/// Replaces the settings of the tier of this name; returns the names of those on which does not land any more what did, and what.
pub(crate) fn set_tier(
    label: &mut Label,
    name: &str,
    settings: TierSettings,
) -> Result<Vec<(String, Landing)>, PoolError> {
    let at = find_tier(label, name)?;
    label.tiers[at] = settings;
    Ok(take_from_others(&mut label.tiers, at))
}

/// Puts a tier in the order, or behind the last one; returns where it is.
pub(crate) fn insert_tier(
    label: &mut Label,
    position: usize,
    settings: TierSettings,
) -> Result<usize, PoolError> {
    has_tier_left(label)?;
    let position = position.min(label.tiers.len());
    label.tiers.insert(position, settings);
    for member in &mut label.members {
        member.tier += u8::from(usize::from(member.tier) >= position);
    }
    Ok(position)
}

/// Takes a tier without devices out of the order; the slower ones move up by one. Returns where it was.
pub(crate) fn remove_tier(label: &mut Label, name: &str) -> Result<u8, PoolError> {
    let at = find_tier(label, name)?;
    if label.members.iter().any(|member| usize::from(member.tier) == at) {
        return Err(PoolError::Invalid(format!(
            "tier '{name}' still has devices; remove them first"
        )));
    }
    label.tiers.remove(at);
    for member in &mut label.members {
        member.tier -= u8::from(usize::from(member.tier) > at);
    }
    Ok(at as u8)
}

/// The place of the tier of this name.
pub(crate) fn find_tier(label: &Label, name: &str) -> Result<usize, PoolError> {
    let at = label.tiers.iter().position(|tier| tier.name == name);
    at.ok_or_else(|| {
        PoolError::Invalid(format!(
            "the pool has no tier called '{name}'; 'terrace tier list' shows them"
        ))
    })
}

/// Whether a label has a place for one more tier.
pub(crate) fn has_tier_left(label: &Label) -> Result<(), PoolError> {
    match label.tiers.len() >= TIERS_MAX {
        true => Err(PoolError::Invalid(format!(
            "a pool has at most {TIERS_MAX} tiers"
        ))),
        false => Ok(()),
    }
}
