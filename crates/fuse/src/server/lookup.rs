//! LOOKUP: live names, the hidden directory, and names with a time.

use terrace_dataset::FsError;

use super::nodes::{Nodes, TRUST_SECONDS, own_entry};
use crate::{
    content::{CONTROL_NODE, KERNEL, Place, SNAPSHOTS_NAME, SNAPSHOTS_NODE, split_name},
    errno::Errno,
    protocol::{EntryValues, ReplyBuffer},
};

pub(super) fn lookup(nodes: &Nodes, node: u64, name: &[u8], reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let entry = match nodes.place(node)? {
        Place::Live(_) if nodes.is_control_name(node, name) => own_entry(CONTROL_NODE),
        Place::Live(dir) => return lookup_live(nodes, dir, name, reply),
        Place::Past(dir) => {
            let attributes = dir.view.tree.lookup(&KERNEL, dir.object, name)?;
            nodes.past_entry(&dir.view, &attributes)
        }
        Place::Control if name == SNAPSHOTS_NAME => own_entry(SNAPSHOTS_NODE),
        Place::Control => return Err(Errno(libc::ENOENT)),
        Place::Snapshots => {
            let past = nodes.past().ok_or(Errno(libc::ENOENT))?;
            let view = match split_name(name) {
                // A state by its number or time.
                Some((b"", when)) => past.at(when)?,
                _ => past.snapshot(std::str::from_utf8(name).map_err(|_| Errno(libc::ENOENT))?)?,
            };
            let attributes = view.tree.attributes(view.tree.root())?;
            nodes.past_entry(&view, &attributes)
        }
    };
    reply.entry(&entry);
    Ok(())
}

fn lookup_live(nodes: &Nodes, dir: u64, name: &[u8], reply: &mut ReplyBuffer) -> Result<(), Errno> {
    match nodes.tree().lookup(&KERNEL, dir, name) {
        Ok(attributes) => {
            reply.entry(&nodes.live_entry(&attributes));
            Ok(())
        }
        Err(FsError::NotFound) => {
            if let Some(entry) = lookup_past(nodes, dir, name)? {
                reply.entry(&entry);
                return Ok(());
            }
            // Node 0: there is no such name, and the kernel need not ask again.
            reply.entry(&EntryValues {
                entry_seconds: TRUST_SECONDS,
                ..EntryValues::default()
            });
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// `name@@WHEN` in a live directory. Such names are never remembered as absent: what they mean moves on.
fn lookup_past(nodes: &Nodes, dir: u64, name: &[u8]) -> Result<Option<EntryValues>, Errno> {
    let Some(past) = nodes.past() else { return Ok(None) };
    let Some((base, when)) = split_name(name) else {
        return Ok(None);
    };
    let view = past.at(when)?;
    let attributes = if base.is_empty() {
        view.tree.attributes(dir)?
    } else {
        view.tree.lookup(&KERNEL, dir, base)?
    };
    Ok(Some(nodes.past_entry(&view, &attributes)))
}
