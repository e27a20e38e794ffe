//! Which devices of a pool have all that it has: what the labels say of those that were away while it was in use.
//!
//! Invariants: a pool that is changed without one of its devices says on the labels of the others up to which generation
//! that device may know of it; so a device that comes back and knows of nothing newer was only away, and one that does was
//! used apart, which no opening takes for the other; a device that came back stays marked until somebody brought what it
//! missed back to it. See docs/decisions/0022.

use crate::ondisk::{Label, LabelCopies, Member, Presence};

/// What a device is to the pool that a label describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// Not part of it: it left, or never quite joined.
    Unlisted,
    /// It has what the others have.
    Current(&'a Member),
    /// It was away while the others were in use, and was not used meanwhile.
    Returned(&'a Member),
    /// It knows older labels only, and nobody noted that it was away: an old copy of the device.
    Unknown(&'a Member),
    /// It was used without those whose label this is, and they without it.
    Apart(&'a Member),
}

/// What the device with these label copies is to the pool that `label` describes; `None` without any label.
pub(crate) fn standing<'a>(label: &'a Label, copies: &LabelCopies) -> Option<Standing<'a>> {
    let newest = copies.newest()?;
    let listed = newest
        .own()
        .and_then(|own| label.members.iter().find(|member| member.id == own.id));
    let Some(member) = listed else {
        return Some(Standing::Unlisted);
    };
    // A copy 0 that got no further was in force nowhere.
    let used = copies.confirmed().unwrap_or(newest);
    let agrees = used.generation == label.generation && used.says_the_same(label);
    Some(match member.presence {
        Presence::Absent { since } if used.generation <= since || agrees || member.may_have_taken(used) => {
            Standing::Returned(member)
        }
        Presence::Absent { .. } => Standing::Apart(member),
        _ if used.generation == label.generation && !agrees => Standing::Apart(member),
        _ if newest.generation < label.generation => Standing::Unknown(member),
        _ => Standing::Current(member),
    })
}

/// The entry of a device that is not there in the next label. `begun`: the labels above `label` that were found on devices that
/// were not away: of what they are built on nothing is missing here, and they may be in force on the device, unless they were
/// made without it. Their generations alone would not tell them from what it did by itself.
pub(crate) fn absent(member: &Member, label: &Label, begun: &[Label]) -> Member {
    let since = match member.presence {
        Presence::Absent { since } => since,
        _ => label.generation,
    };
    let mut next = member.clone();
    next.presence = Presence::Absent { since };
    for label in begun {
        match label.member(member.number) {
            Some(other) if other.is_absent() => next.add_begun(&other.begun),
            Some(_) => next.add_begun(&label.identity().into_iter().collect::<Vec<_>>()),
            None => {}
        }
    }
    next
}
