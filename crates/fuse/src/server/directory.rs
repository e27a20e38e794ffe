//! READDIR and READDIRPLUS. Stateless: the cookie says where to go on.

use terrace_dataset::{DirectoryEntry, FIRST_COOKIE, Tree};

use super::{Errno, Server, attributes::type_bits, lookup::own_entry};
use crate::{
    files::Files,
    nodes::{CONTROL_NODE, PastObject, Place, SNAPSHOTS_NODE},
    past::SNAPSHOTS_NAME,
    protocol::{DirectoryWriter, EntryValues, ROOT_NODE, ReplyBuffer},
};

const SELF_COOKIE: u64 = 1;
const PARENT_COOKIE: u64 = 2;
/// Most entries fetched at once.
const ENTRIES_MAX: usize = 1024;

fn directory_type() -> u32 {
    libc::S_IFDIR >> 12
}

impl Server {
    pub(super) fn read_directory(
        &self,
        node: u64,
        from: u64,
        size: u32,
        plus: bool,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let place = self.place(node)?;
        let (inode, parent) = self.inodes_of(node, &place)?;
        let mut writer = DirectoryWriter::new(reply, size, plus);
        let nothing = EntryValues::default();
        // The kernel makes no use of attributes of these two.
        if from < SELF_COOKIE && !writer.add(inode, SELF_COOKIE, directory_type(), b".", &nothing) {
            return Ok(());
        }
        if from < PARENT_COOKIE && !writer.add(parent, PARENT_COOKIE, directory_type(), b"..", &nothing) {
            return Ok(());
        }
        match &place {
            Place::Control => {
                if from < FIRST_COOKIE {
                    let entry = own_entry(SNAPSHOTS_NODE);
                    writer.add(
                        SNAPSHOTS_NODE,
                        FIRST_COOKIE,
                        directory_type(),
                        SNAPSHOTS_NAME,
                        &entry,
                    );
                }
                Ok(())
            }
            Place::Snapshots => self.list_snapshots(from, &mut writer),
            Place::Live(dir) => match &self.live {
                Some(live) if plus => self.list_with_attributes(live.as_ref(), *dir, from, &mut writer),
                _ => self.list(self.tree.as_ref(), *dir, from, plus, None, &mut writer),
            },
            Place::Past(past) => self.list(
                past.view.tree.as_ref(),
                past.object,
                from,
                plus,
                Some(past),
                &mut writer,
            ),
        }
    }

    /// The inode numbers of a directory and the one above it.
    fn inodes_of(&self, node: u64, place: &Place) -> Result<(u64, u64), Errno> {
        Ok(match place {
            Place::Live(dir) => (*dir, self.tree.parent(*dir)?),
            Place::Past(past) => {
                let parent = past.view.tree.parent(past.object)?;
                (
                    past.inode(),
                    PastObject {
                        object: parent,
                        ..past.clone()
                    }
                    .inode(),
                )
            }
            Place::Control => (node, ROOT_NODE),
            Place::Snapshots => (node, CONTROL_NODE),
        })
    }

    fn list_with_attributes(
        &self,
        live: &dyn Files,
        dir: u64,
        from: u64,
        writer: &mut DirectoryWriter<'_>,
    ) -> Result<(), Errno> {
        let mut from = if from < FIRST_COOKIE { 0 } else { from };
        loop {
            let limit = writer.room().min(ENTRIES_MAX);
            let entries = live.list(dir, from, limit)?;
            for (entry, attributes) in &entries {
                if !writer.fits(entry.name.len()) {
                    return Ok(());
                }
                let values = self.live_entry(attributes);
                writer.add(
                    entry.object,
                    entry.cookie,
                    type_bits(entry.kind) >> 12,
                    &entry.name,
                    &values,
                );
                from = entry.cookie;
            }
            if entries.len() < limit {
                return Ok(());
            }
        }
    }

    fn list(
        &self,
        tree: &dyn Tree,
        dir: u64,
        from: u64,
        plus: bool,
        past: Option<&PastObject>,
        writer: &mut DirectoryWriter<'_>,
    ) -> Result<(), Errno> {
        let mut from = if from < FIRST_COOKIE { 0 } else { from };
        loop {
            let limit = writer.room().min(ENTRIES_MAX);
            let entries = tree.read_directory(dir, from, limit)?;
            for entry in &entries {
                // Before a lookup is counted it must be certain that the entry is sent.
                if !writer.fits(entry.name.len()) {
                    return Ok(());
                }
                let inode = match past {
                    None => entry.object,
                    Some(past) => PastObject {
                        object: entry.object,
                        ..past.clone()
                    }
                    .inode(),
                };
                let values = if plus {
                    self.entry_of(tree, entry, past)
                } else {
                    EntryValues::default()
                };
                writer.add(
                    inode,
                    entry.cookie,
                    type_bits(entry.kind) >> 12,
                    &entry.name,
                    &values,
                );
                from = entry.cookie;
            }
            if entries.len() < limit {
                return Ok(());
            }
        }
    }

    /// What the kernel is told of an entry beyond its name; nothing if it was removed in between.
    fn entry_of(&self, tree: &dyn Tree, entry: &DirectoryEntry, past: Option<&PastObject>) -> EntryValues {
        match (tree.attributes(entry.object), past) {
            (Ok(attributes), None) => self.live_entry(&attributes),
            (Ok(attributes), Some(past)) => self.past_entry(&past.view, &attributes),
            (Err(_), _) => EntryValues::default(),
        }
    }

    fn list_snapshots(&self, from: u64, writer: &mut DirectoryWriter<'_>) -> Result<(), Errno> {
        let Some(past) = &self.past else { return Ok(()) };
        let mut names = past.snapshots()?;
        names.sort_unstable();
        let skip = (from + 1).saturating_sub(FIRST_COOKIE) as usize;
        for (index, name) in names.iter().enumerate().skip(skip) {
            let cookie = FIRST_COOKIE + index as u64;
            // Without attributes: opening the state of every snapshot to list them would not scale.
            let inode = SNAPSHOTS_NODE + 1 + index as u64;
            if !writer.add(
                inode,
                cookie,
                directory_type(),
                name.as_bytes(),
                &EntryValues::default(),
            ) {
                break;
            }
        }
        Ok(())
    }
}
