//! All copies of labels and roots, one by one: for verifying a pool that is at rest, and for rebuilding one whose newest
//! root is damaged.
//!
//! Invariant: nothing is written; what cannot be read is reported, not an error.

use crate::{
    devices::Members,
    ondisk::{Label, LabelCopies, ROOT_OFFSETS, Slot, read_slot},
    roots::Roots,
};

/// The payloads of all valid roots in all slots, each once, newest first; and whether every slot of every device
/// could be read and none is damaged, so that there can have been no newer one.
pub(crate) fn root_payloads(members: &Members) -> (Vec<Vec<u8>>, bool) {
    let (open, label) = (members.open(), members.label());
    let mut found = Vec::new();
    let mut sound = open.len() == label.members.len();
    for device in open.iter() {
        for offset in ROOT_OFFSETS.iter().flatten() {
            match read_slot(device.raw(), *offset, &label.pool_id) {
                Slot::Root(root) => found.push((root.generation, root.payload)),
                Slot::Unreadable(_) | Slot::Damaged(_) | Slot::Newer(_) => sound = false,
                Slot::Empty => {}
            }
        }
    }
    found.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
    found.dedup();
    // Zeroed slots look like those that were never used.
    sound &= !found.is_empty();
    (found.into_iter().map(|(_, payload)| payload).collect(), sound)
}

/// Reads every copy of the label and every root slot of every device that is there; returns what is wrong, in
/// words, and how many copies were looked at.
pub(crate) fn check_copies(members: &Members, roots: &Roots) -> (Vec<String>, u64) {
    let (open, label) = (members.open(), members.label());
    let (mut problems, mut looked_at) = (Vec::new(), 0);
    for device in open.iter() {
        let path = device.path();
        for (number, copy) in LabelCopies::read(device.raw()).copies.iter().enumerate() {
            looked_at += 1;
            match copy {
                Ok(found) => {
                    let own = Label {
                        number: device.number,
                        ..label.clone()
                    };
                    if *found != own {
                        let (has, wanted) = (found.generation, label.generation);
                        problems.push(format!(
                                "label copy {number} of {path} has generation {has}, not what the others say ({wanted})"
                            ));
                    }
                }
                Err(error) => problems.push(format!("label copy {number} of {path}: {error}")),
            }
        }
    }
    let mut newest: Vec<(String, Option<u64>)> = Vec::new();
    for device in open.iter() {
        let path = device.path();
        let mut own = None;
        for (slot, copies) in ROOT_OFFSETS.iter().enumerate() {
            for (copy, offset) in copies.iter().enumerate() {
                looked_at += 1;
                match read_slot(device.raw(), *offset, &label.pool_id) {
                        Slot::Empty => {}
                        Slot::Root(root) => own = own.max(Some(root.generation)),
                        Slot::Newer(newer) => problems.push(format!(
                            "root slot {slot}, copy {copy}, of {path}: a newer terrace wrote it (version {})",
                            newer.version
                        )),
                        Slot::Unreadable(cause) | Slot::Damaged(cause) => problems.push(format!(
                            "root slot {slot}, copy {copy}, of {path}: {cause} (the next checkpoints write it anew)"
                        )),
                    }
            }
        }
        newest.push((path, own));
    }
    let best = newest.iter().filter_map(|(_, own)| *own).max();
    for holder in roots.holders() {
        let path = holder.path();
        if best.is_some() && !newest.contains(&(path.clone(), best)) {
            problems.push(format!("{path} does not hold the newest root"));
        }
    }
    (problems, looked_at)
}
