//! A tree against the model: attributes, content, names, holes and extended attributes of every object.

use std::collections::BTreeMap;

use terrace_dataset::{Context, FileKind, FsError, SeekTarget, Tree};

use super::model::{Body, Model, text};

pub(super) fn compare(tree: &dyn Tree, model: &Model, live: bool) {
    let context = Context::root();
    for (id, node) in &model.nodes {
        if node.links == 0 && !live {
            continue;
        }
        let attributes = tree.attributes(*id).unwrap();
        assert_eq!(
            (attributes.links, attributes.mode),
            (node.links, node.mode),
            "object {id}"
        );
        match &node.body {
            Body::File(data) => {
                assert_eq!(attributes.size, data.len() as u64, "size of {id}");
                let mut read = vec![0xee; data.len() + 100];
                assert_eq!(tree.read(*id, 0, &mut read), Ok(data.len()));
                if let Some(at) = (0..data.len()).find(|at| read[*at] != data[*at]) {
                    panic!(
                        "object {id} differs at {at}: {} instead of {}",
                        read[at], data[at]
                    );
                }
                let mut part = [0u8; 777];
                let from = data.len() / 3;
                let length = tree.read(*id, from as u64, &mut part).unwrap();
                assert_eq!(part[..length], data[from..(from + 777).min(data.len())]);
                compare_seek(tree, *id, data);
            }
            Body::Whiteout => assert_eq!(
                (attributes.kind, attributes.device),
                (FileKind::CharacterDevice, 0)
            ),
            Body::Link(target) => assert_eq!(&tree.read_link(*id).unwrap(), target),
            Body::Directory(names) => {
                assert_eq!(attributes.size, names.len() as u64);
                let mut listed = BTreeMap::new();
                let mut from = 0;
                loop {
                    let entries = tree.read_directory(*id, from, 2).unwrap();
                    let Some(last) = entries.last() else { break };
                    from = last.cookie;
                    for entry in entries {
                        assert!(listed.insert(entry.name, entry.object).is_none());
                    }
                }
                assert_eq!(&listed, names, "names of {id}");
                for name in (0..6).map(text) {
                    let found = tree
                        .lookup(&context, *id, &name)
                        .map(|attributes| attributes.object);
                    assert_eq!(found.ok(), names.get(&name).copied());
                }
                if node.links > 0 {
                    assert_eq!(tree.parent(*id).unwrap(), model.parent(*id));
                }
            }
        }
        let names = tree.extended_attributes(*id).unwrap();
        assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>());
        for (name, value) in &node.xattrs {
            assert_eq!(&tree.extended_attribute(*id, name).unwrap(), value);
        }
    }
}

/// Holes are zero, and data and holes follow each other to the end.
fn compare_seek(tree: &dyn Tree, id: u64, data: &[u8]) {
    let size = data.len() as u64;
    assert_eq!(tree.seek(id, size, SeekTarget::Data), Err(FsError::NoData));
    let mut at = 0;
    while at < size {
        let start = match tree.seek(id, at, SeekTarget::Data) {
            Ok(start) => start,
            Err(FsError::NoData) => size,
            Err(error) => panic!("{error}"),
        };
        assert!(start >= at && data[at as usize..start as usize].iter().all(|byte| *byte == 0));
        if start == size {
            break;
        }
        let end = tree.seek(id, start, SeekTarget::Hole).unwrap();
        assert!(end > start && end <= size);
        at = end;
    }
}
