//! Attributes of objects as the protocol has them.

use terrace_dataset::{Attributes, FileKind, Time};

use crate::protocol::AttributeValues;

/// The type's bits in a mode (S_IFMT).
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File | FileKind::Volume => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::SymbolicLink => libc::S_IFLNK,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::Pipe => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

/// As the kernel wants them, under the inode number to be shown.
pub(crate) fn attribute_values(attributes: &Attributes, inode: u64) -> AttributeValues {
    let time = |time: Time| (time.seconds, time.nanos);
    AttributeValues {
        inode,
        size: attributes.size,
        blocks512: attributes.blocks512,
        accessed: time(attributes.accessed),
        modified: time(attributes.modified),
        changed: time(attributes.changed),
        created: time(attributes.created),
        mode: type_bits(attributes.kind) | (attributes.mode & 0o7777),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: attributes.device,
    }
}

/// Whether an object has no more than one name: then the kernel has one directory entry of it at most.
pub(crate) fn has_one_name(attributes: &Attributes) -> bool {
    attributes.links == 1 || attributes.kind == FileKind::Directory
}

/// What our own directories look like.
pub(crate) fn own_directory(node: u64) -> AttributeValues {
    AttributeValues {
        inode: node,
        mode: libc::S_IFDIR | 0o555,
        links: 2,
        ..AttributeValues::default()
    }
}
