//! What the model knows of room that `fallocate` set aside. A dump shows only how many blocks a file takes, so a state that was found
//! has the promises of the one that it was recognised as.

use std::sync::Arc;

use super::tree::{Body, Node, TreeModel};

impl TreeModel {
    /// Room is set aside as in another state: who looks sees only how many blocks a file takes.
    pub fn with_promises_of(mut self, other: &Self) -> Self {
        for object in other.objects(|node| matches!(node.body, Body::File(_))) {
            let Ok(theirs) = other.file(object) else { continue };
            if theirs.preallocated.is_empty() && !theirs.may_take_more {
                continue;
            }
            if let Ok(file) = self.file_mut(object) {
                file.preallocated = theirs.preallocated.clone();
                file.may_take_more = theirs.may_take_more;
            }
        }
        self
    }

    /// Room is set aside where it is in both states, and perhaps where it is in one.
    pub fn with_promises_of_either(self, one: &Self, other: &Self) -> Self {
        let mut tree = self.with_promises_of(one);
        for object in tree.objects(|node| matches!(node.body, Body::File(_))) {
            let theirs = other
                .file(object)
                .map(|file| file.preallocated.clone())
                .unwrap_or_default();
            let Ok(file) = tree.file_mut(object) else { continue };
            if file.preallocated != theirs {
                Arc::make_mut(&mut file.preallocated).retain(|block| theirs.contains(block));
                file.may_take_more = true;
            }
        }
        tree
    }

    /// A file of which a dump shows another number of blocks taken.
    pub fn other_taken(&self, dump: &Self) -> Option<String> {
        self.named()
            .find_map(|(object, node)| match (&node.body, dump.file(object)) {
                (Body::File(file), Ok(shown)) => {
                    let (taken, shown) = (file.taken_blocks() as u64, shown.shown_taken?);
                    (!file.is_taken(shown))
                        .then(|| format!("object {object} takes {shown} blocks, not {taken}"))
                }
                _ => None,
            })
    }

    /// Blocks of all files for which room is set aside.
    pub fn promised_blocks(&self) -> usize {
        let bodies = self.nodes.values().map(|node| &node.body);
        let files = bodies.filter_map(|body| match body {
            Body::File(data) => Some(data.promised().len()),
            _ => None,
        });
        files.sum()
    }

    /// Files for which room is set aside.
    pub fn promised_files(&self) -> Vec<u64> {
        let has_some = |node: &Node| matches!(&node.body, Body::File(data) if !data.promised().is_empty());
        self.objects(has_some)
    }
}
