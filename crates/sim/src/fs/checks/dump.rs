//! `dump`: reads a whole filesystem, live or as of a snapshot, into a [`TreeModel`], the way a user would: by names,
//! directories in pages, files in pieces.

use std::{collections::BTreeMap, sync::Arc};

use terrace_dataset::{Attributes, Context, FileKind, FsError, SeekTarget, Tree};

use crate::fs::models::{BLOCK, BlocksModel, Body, Node, ROOT, Stamp, TreeModel};

/// Files up to this size are read whole; of larger ones what is not a hole.
const WHOLE_BYTES: u64 = 2 << 20;

/// Times as the model keeps them.
pub fn stamps(attributes: &Attributes) -> (Stamp, Stamp) {
    let (modified, changed) = (attributes.modified, attributes.changed);
    (
        (modified.seconds, modified.nanos),
        (changed.seconds, changed.nanos),
    )
}

fn file(tree: &dyn Tree, object: u64, size: u64, piece: usize) -> Result<BlocksModel, FsError> {
    let mut data = BlocksModel::default();
    let mut buffer = vec![0; piece.next_multiple_of(BLOCK)];
    let mut at = 0;
    while at < size {
        if size > WHOLE_BYTES {
            match tree.seek(object, at, SeekTarget::Data) {
                Ok(found) => at = found / BLOCK as u64 * BLOCK as u64,
                Err(FsError::NoData) => break,
                Err(error) => return Err(error),
            }
        }
        let read = tree.read(object, at, &mut buffer)?;
        let expected = (size - at).min(buffer.len() as u64) as usize;
        if read != expected {
            return Err(FsError::io(format_args!(
                "a read of {expected} bytes at {at} of {size} gave {read}"
            )));
        }
        data.write(at, &buffer[..read]);
        at += read as u64;
    }
    data.size = size;
    Ok(data)
}

/// Reads everything below the root. `page` is how many names are asked for at once, `piece` how many bytes.
pub fn dump(tree: &dyn Tree, page: usize, piece: usize) -> Result<TreeModel, FsError> {
    let mut nodes: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
    let mut todo = vec![(ROOT, ROOT)];
    while let Some((object, above)) = todo.pop() {
        if nodes.contains_key(&object) {
            continue;
        }
        let attributes = tree.attributes(object)?;
        let body = match attributes.kind {
            FileKind::Directory => {
                let parent = tree.lookup(&Context::root(), object, b"..")?.object;
                if parent != above {
                    return Err(FsError::io(format_args!(
                        "the directory above object {object} is {above}, its '..' says {parent}"
                    )));
                }
                let mut entries = BTreeMap::new();
                let mut from = 0;
                loop {
                    let found = tree.read_directory(object, from, page)?;
                    let Some(last) = found.last() else { break };
                    if last.cookie <= from {
                        return Err(FsError::io("the cookies of a directory do not grow"));
                    }
                    from = last.cookie;
                    for entry in found {
                        todo.push((entry.object, object));
                        if entries.insert(entry.name, entry.object).is_some() {
                            return Err(FsError::io("a directory lists a name twice"));
                        }
                    }
                }
                Body::Directory(entries)
            }
            FileKind::SymbolicLink => Body::Symlink(tree.read_link(object)?),
            FileKind::CharacterDevice if attributes.device == 0 => Body::Whiteout,
            _ => {
                let mut data = file(tree, object, attributes.size, piece)?;
                data.shows_taken(attributes.blocks512 / 8);
                Body::File(data)
            }
        };
        let mut extended = BTreeMap::new();
        for name in tree.extended_attributes(object)? {
            let value = tree.extended_attribute(object, &name)?;
            extended.insert(name, value);
        }
        let (modified, changed) = stamps(&attributes);
        nodes.insert(
            object,
            Arc::new(Node {
                mode: attributes.mode,
                uid: attributes.uid,
                gid: attributes.gid,
                links: attributes.links,
                body,
                flags: tree.file_flags(object)?,
                attributes: extended,
                modified,
                changed,
            }),
        );
    }
    Ok(TreeModel::from_nodes(nodes))
}
