//! LOOKUP: live names, the hidden directory, and names with a time.

use terrace_dataset::{Attributes, FsError};

use super::{
    Errno, PAST_TRUST_SECONDS, Server, TRUST_SECONDS,
    attributes::{has_one_name, own_directory, values},
};
use crate::{
    content::{
        CONTROL_NAME, CONTROL_NODE, KERNEL, PastObject, PastView, Place, SNAPSHOTS_NAME, SNAPSHOTS_NODE,
        split_name,
    },
    protocol::{AttributeValues, EntryValues, ROOT_NODE, ReplyBuffer},
};

impl Server {
    pub(super) fn is_control_name(&self, node: u64, name: &[u8]) -> bool {
        node == ROOT_NODE && self.past.is_some() && name == CONTROL_NAME
    }

    pub(super) fn lookup(&self, node: u64, name: &[u8], reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let entry = match self.place(node)? {
            Place::Live(_) if self.is_control_name(node, name) => own_entry(CONTROL_NODE),
            Place::Live(dir) => return self.lookup_live(dir, name, reply),
            Place::Past(dir) => {
                let attributes = dir.view.tree.lookup(&KERNEL, dir.object, name)?;
                self.past_entry(&dir.view, &attributes)
            }
            Place::Control if name == SNAPSHOTS_NAME => own_entry(SNAPSHOTS_NODE),
            Place::Control => return Err(Errno(libc::ENOENT)),
            Place::Snapshots => {
                let past = self.past.as_ref().ok_or(Errno(libc::ENOENT))?;
                let view = match split_name(name) {
                    // A state by its number or time.
                    Some((b"", when)) => past.at(when)?,
                    _ => past.snapshot(std::str::from_utf8(name).map_err(|_| Errno(libc::ENOENT))?)?,
                };
                let attributes = view.tree.attributes(view.tree.root())?;
                self.past_entry(&view, &attributes)
            }
        };
        reply.entry(&entry);
        Ok(())
    }

    fn lookup_live(&self, dir: u64, name: &[u8], reply: &mut ReplyBuffer) -> Result<(), Errno> {
        match self.tree.lookup(&KERNEL, dir, name) {
            Ok(attributes) => {
                reply.entry(&self.live_entry(&attributes));
                Ok(())
            }
            Err(FsError::NotFound) => {
                if let Some(entry) = self.lookup_past(dir, name)? {
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
    fn lookup_past(&self, dir: u64, name: &[u8]) -> Result<Option<EntryValues>, Errno> {
        let Some(past) = &self.past else { return Ok(None) };
        let Some((base, when)) = split_name(name) else {
            return Ok(None);
        };
        let view = past.at(when)?;
        let attributes = if base.is_empty() {
            view.tree.attributes(dir)?
        } else {
            view.tree.lookup(&KERNEL, dir, base)?
        };
        Ok(Some(self.past_entry(&view, &attributes)))
    }

    /// An entry for a live object, its lookup counted.
    pub(super) fn live_entry(&self, attributes: &Attributes) -> EntryValues {
        self.nodes.add(attributes.object, has_one_name(attributes));
        EntryValues {
            node: attributes.object,
            generation: match attributes.object {
                // The kernel takes it so.
                ROOT_NODE => 0,
                _ => u64::from(attributes.generation),
            },
            entry_seconds: TRUST_SECONDS,
            attribute_seconds: TRUST_SECONDS,
            attributes: values(attributes, attributes.object),
        }
    }

    /// An entry for an object of a past state, its lookup counted.
    pub(super) fn past_entry(&self, view: &PastView, attributes: &Attributes) -> EntryValues {
        let past = PastObject {
            view: view.clone(),
            object: attributes.object,
        };
        let (inode, generation) = (past.inode(), past.generation(attributes.generation));
        let node = self.past_nodes.add(past);
        entry(node, generation, values(attributes, inode))
    }
}

pub(super) fn own_entry(node: u64) -> EntryValues {
    entry(node, 1, own_directory(node))
}

fn entry(node: u64, generation: u32, attributes: AttributeValues) -> EntryValues {
    EntryValues {
        node,
        generation: u64::from(generation),
        entry_seconds: PAST_TRUST_SECONDS,
        attribute_seconds: PAST_TRUST_SECONDS,
        attributes,
    }
}
