//! READDIR and READDIRPLUS. Stateless: the cookie says where to go on.

use terrace_dataset::{DirectoryEntry, FIRST_COOKIE, Tree};

use super::{
    handles::HiddenNames,
    nodes::{Nodes, own_entry},
};
use crate::{
    content::{CONTROL_NODE, Files, PastObject, Place, SNAPSHOTS_NAME, SNAPSHOTS_NODE, inode_of, type_bits},
    errno::Errno,
    protocol::{DirectoryWriter, EntryValues, Header, ROOT_NODE, ReplyBuffer},
};

const SELF_COOKIE: u64 = 1;
const PARENT_COOKIE: u64 = 2;
/// Behind a hidden name, which comes alone: no name's cookie is as high, so that the kernel, which keeps listings, does not
/// put it together with the others.
const HIDDEN_COOKIE: u64 = 1 << 62;
/// Most entries fetched at once.
const ENTRIES_MAX: usize = 1024;

fn directory_type() -> u32 {
    libc::S_IFDIR >> 12
}

pub(super) fn read_directory(
    nodes: &Nodes,
    hidden: &HiddenNames,
    header: &Header,
    from: u64,
    size: u32,
    plus: bool,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let node = header.node;
    let place = nodes.place(node)?;
    let (inode, parent) = inodes_of(nodes, node, &place)?;
    let mut writer = DirectoryWriter::new(reply, size, plus);
    let nothing = EntryValues::default();
    // Whoever did not want it goes on with the names from the start.
    let from = if from == HIDDEN_COOKIE { 0 } else { from };
    if from == 0
        && let Some((name, inode)) = hidden.take(header.pid, node)
    {
        writer.add(inode, HIDDEN_COOKIE, directory_type(), &name, &nothing);
        return Ok(());
    }
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
        Place::Snapshots => list_snapshots(nodes, from, &mut writer),
        Place::Live(dir) => match nodes.live_files() {
            Some(live) if plus => list_with_attributes(nodes, live, *dir, from, &mut writer),
            _ => list(nodes, nodes.tree(), *dir, from, plus, None, &mut writer),
        },
        Place::Past(past) => list(
            nodes,
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
fn inodes_of(nodes: &Nodes, node: u64, place: &Place) -> Result<(u64, u64), Errno> {
    Ok(match place {
        Place::Live(dir) => (*dir, nodes.tree().parent(*dir)?),
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

/// With the attributes of what the kernel does not have already. Of the others it is told the name alone (node 0),
/// which leaves what it has as it is and spares both sides most of the work: a directory that is listed again
/// since one name was added is the usual case. Should it have dropped one of them meanwhile, it asks when somebody
/// uses it.
fn list_with_attributes(
    nodes: &Nodes,
    live: &dyn Files,
    dir: u64,
    from: u64,
    writer: &mut DirectoryWriter<'_>,
) -> Result<(), Errno> {
    let mut from = if from < FIRST_COOKIE { 0 } else { from };
    loop {
        let limit = writer.room().min(ENTRIES_MAX);
        let entries = live.list(dir, from, limit, &|object| !nodes.known().is_shown(object))?;
        for (entry, attributes) in &entries {
            // Before a lookup is counted it must be certain that the entry is sent.
            if !writer.fits(entry.name.len()) {
                return Ok(());
            }
            let values = match attributes {
                Some(attributes) => nodes.live_entry(attributes),
                None => EntryValues::default(),
            };
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
    nodes: &Nodes,
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
                entry_of(nodes, tree, entry, past)
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
fn entry_of(
    nodes: &Nodes,
    tree: &dyn Tree,
    entry: &DirectoryEntry,
    past: Option<&PastObject>,
) -> EntryValues {
    match (tree.attributes(entry.object), past) {
        (Ok(attributes), None) => nodes.live_entry(&attributes),
        (Ok(attributes), Some(past)) => nodes.past_entry(&past.view, &attributes),
        (Err(_), _) => EntryValues::default(),
    }
}

fn list_snapshots(nodes: &Nodes, from: u64, writer: &mut DirectoryWriter<'_>) -> Result<(), Errno> {
    let Some(past) = nodes.past() else { return Ok(()) };
    let mut names = past.snapshots()?;
    names.sort_unstable();
    let skip = (from + 1).saturating_sub(FIRST_COOKIE) as usize;
    for (index, (name, checkpoint)) in names.iter().enumerate().skip(skip) {
        let cookie = FIRST_COOKIE + index as u64;
        // Without attributes: opening the state of every snapshot to list them would not scale.
        let inode = inode_of(*checkpoint, nodes.tree().root());
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace_dataset::{Datasets, Environment, NewDataset};
    use terrace_device::SystemClock;
    use terrace_store::MemoryStore;

    use super::*;
    use crate::{
        content::Content,
        options::MountOptions,
        protocol::{Header, Negotiated, Request},
        server::{Answer, Server},
    };

    fn server() -> Server {
        let store = Arc::new(MemoryStore::new(64 << 20));
        let environment = Environment::new(store, Arc::new(SystemClock::new()));
        let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
        datasets.create("pool/files", &NewDataset::default()).unwrap();
        let negotiated = Negotiated {
            minor: 40,
            features: 0,
            max_readahead: 0,
            max_write: 1 << 20,
            background: 12,
        };
        let content = Content::Live(datasets.filesystem("pool/files").unwrap());
        Server::new(content, None, &MountOptions::default(), negotiated)
    }

    fn ask(server: &Server, node: u64, request: Request<'_>) -> Vec<u8> {
        let header = Header {
            length: 0,
            operation: 0,
            unique: 1,
            node,
            uid: 0,
            gid: 0,
            pid: 0,
            extension_bytes: 0,
            group: None,
        };
        let mut reply = ReplyBuffer::new();
        assert_eq!(server.handle(&header, request, &mut reply), Answer::Reply);
        reply.payload().to_vec()
    }

    fn number(bytes: &[u8]) -> u64 {
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }

    fn make(server: &Server, name: &[u8]) -> u64 {
        let request = Request::MakeNode {
            mode: libc::S_IFREG | 0o644,
            device: 0,
            umask: 0,
            name,
        };
        number(&ask(server, ROOT_NODE, request))
    }

    fn write(server: &Server, node: u64) {
        let request = Request::Write {
            offset: 0,
            data: b"content",
            write_flags: 0,
            flags: 0,
        };
        ask(server, node, request);
    }

    /// The names of the root directory, sorted, and of each whether the kernel is given its node and attributes.
    fn listed(server: &Server) -> Vec<(String, bool)> {
        let request = Request::ReadDirectory {
            offset: 0,
            size: 64 << 10,
            plus: true,
        };
        let reply = ask(server, ROOT_NODE, request);
        let mut rest = &reply[..];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let name_bytes = u32::from_ne_bytes(rest[144..148].try_into().unwrap()) as usize;
            let name = String::from_utf8(rest[152..152 + name_bytes].to_vec()).unwrap();
            if !name.starts_with('.') {
                found.push((name, number(rest) != 0));
            }
            rest = &rest[128 + (24 + name_bytes).next_multiple_of(8)..];
        }
        found.sort();
        found
    }

    fn brought(server: &Server) -> Vec<String> {
        let brought = listed(server).into_iter().filter(|(_, with)| *with);
        brought.map(|(name, _)| name).collect()
    }

    #[test]
    fn a_listing_brings_what_the_kernel_does_not_have() {
        let server = server();
        let nodes: Vec<u64> = [&b"a"[..], b"b", b"c", b"d"]
            .into_iter()
            .map(|name| make(&server, name))
            .collect();
        assert_eq!(listed(&server).len(), 4);
        assert!(brought(&server).is_empty(), "all four were just told");
        write(&server, nodes[0]);
        ask(
            &server,
            ROOT_NODE,
            Request::Link {
                node: nodes[1],
                name: b"e",
            },
        );
        let rename = Request::Rename {
            to_node: ROOT_NODE,
            flags: 0,
            name: b"c",
            to_name: b"f",
        };
        ask(&server, ROOT_NODE, rename);
        // What has two names is brought each time: which of them the kernel has cannot be told.
        assert_eq!(brought(&server), ["a", "b", "e", "f"]);
        assert_eq!(brought(&server), ["b", "e"]);
        ask(&server, ROOT_NODE, Request::Unlink { name: b"e" });
        assert_eq!(brought(&server), ["b"]);
        assert!(brought(&server).is_empty());
        server.outdate(Some(nodes[3]));
        assert_eq!(brought(&server), ["d"]);
        server.outdate(None);
        assert_eq!(brought(&server), ["a", "b", "d", "f"]);
    }

    #[test]
    fn what_the_kernel_forgot_is_brought_again_and_each_time_counts() {
        let server = server();
        let node = make(&server, b"a");
        write(&server, node);
        assert_eq!(brought(&server), ["a"]);
        let forget = |lookups| {
            let header = Header {
                length: 0,
                operation: 0,
                unique: 0,
                node,
                uid: 0,
                gid: 0,
                pid: 0,
                extension_bytes: 0,
                group: None,
            };
            let mut reply = ReplyBuffer::new();
            server.handle(&header, Request::Forget { lookups }, &mut reply);
        };
        // Made and listed with attributes: two. Listed by name alone: none.
        assert!(brought(&server).is_empty());
        forget(1);
        assert_eq!(server.known_objects(), 1);
        forget(1);
        assert_eq!(server.known_objects(), 0);
        assert_eq!(brought(&server), ["a"]);
    }
}
