//! GETATTR, STATX, SETATTR, STATFS, READLINK.

use terrace_dataset::{Attributes, Context, FileKind, SetAttributes, SetTime, Strip, Time};

use super::{Errno, PAST_TRUST_SECONDS, Server, TRUST_SECONDS};
use crate::{
    content::{KERNEL, Place, caller, has_fsetid},
    protocol::{AttributeValues, Header, ReplyBuffer, SetAttributesIn, StatfsValues, set_attribute},
};

const BLOCK_BYTES: u64 = 4096;

/// The type's bits in a mode (S_IFMT).
pub(super) fn type_bits(kind: FileKind) -> u32 {
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
pub(super) fn values(attributes: &Attributes, inode: u64) -> AttributeValues {
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
pub(super) fn has_one_name(attributes: &Attributes) -> bool {
    attributes.links == 1 || attributes.kind == FileKind::Directory
}

/// What our own directories look like.
pub(super) fn own_directory(node: u64) -> AttributeValues {
    AttributeValues {
        inode: node,
        mode: libc::S_IFDIR | 0o555,
        links: 2,
        ..AttributeValues::default()
    }
}

impl Server {
    /// The attributes of a node and how long they may be relied on.
    pub(super) fn attributes_of(&self, node: u64) -> Result<(AttributeValues, u64), Errno> {
        Ok(match self.place(node)? {
            Place::Live(object) => {
                let attributes = self.tree.attributes(object)?;
                self.nodes.show(object, has_one_name(&attributes));
                (values(&attributes, object), TRUST_SECONDS)
            }
            Place::Past(past) => (
                values(&past.view.tree.attributes(past.object)?, past.inode()),
                PAST_TRUST_SECONDS,
            ),
            Place::Control | Place::Snapshots => (own_directory(node), PAST_TRUST_SECONDS),
        })
    }

    pub(super) fn get_attributes(&self, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let (values, seconds) = self.attributes_of(node)?;
        reply.attributes_reply(seconds, &values);
        Ok(())
    }

    pub(super) fn statx(&self, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let (values, seconds) = self.attributes_of(node)?;
        reply.statx(seconds, &values);
        Ok(())
    }

    pub(super) fn set_attributes(
        &self,
        header: &Header,
        change: &SetAttributesIn,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let (live, object) = self.live(header.node)?;
        let has = |bit: u32| change.valid & bit != 0;
        let time = |set: u32, now: u32, seconds: i64, nanos: u32| {
            if has(now) {
                Some(SetTime::Now)
            } else if has(set) {
                Some(SetTime::To(Time {
                    seconds,
                    nanos: nanos.min(999_999_999),
                }))
            } else {
                None
            }
        };
        use set_attribute as bit;
        let change = SetAttributes {
            mode: has(bit::MODE).then_some(change.mode & 0o7777),
            uid: has(bit::UID).then_some(change.uid),
            gid: has(bit::GID).then_some(change.gid),
            size: has(bit::SIZE).then_some(change.size),
            accessed: time(
                bit::ATIME,
                bit::ATIME_NOW,
                change.accessed_seconds,
                change.accessed_nanos,
            ),
            modified: time(
                bit::MTIME,
                bit::MTIME_NOW,
                change.modified_seconds,
                change.modified_nanos,
            ),
            through_handle: true,
        };
        // The kernel has checked that the caller may, and has taken out the bits that it may not set. It asks that set-id bits
        // fall with a change of size if the caller has no CAP_FSETID, and with any change of owner.
        let strips = has(bit::KILL_SUIDGID) && (change.size.is_some() || !has_fsetid(header));
        let context = match strips {
            true => Context {
                strip: Strip::SetId,
                ..caller(header, 0)
            },
            false => KERNEL,
        };
        let attributes = live.set_attributes(&context, object, &change)?;
        self.nodes.show(object, has_one_name(&attributes));
        reply.attributes_reply(TRUST_SECONDS, &values(&attributes, object));
        Ok(())
    }

    pub(super) fn statfs(&self, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let statistics = self.tree.statistics()?;
        let available = statistics.available_bytes / BLOCK_BYTES;
        reply.statfs(&StatfsValues {
            blocks: statistics.size_bytes / BLOCK_BYTES,
            blocks_free: available,
            blocks_available: available,
            // There is no table of inodes; each needs far less than a block.
            files: statistics.objects.saturating_add(available),
            files_free: available,
            block_bytes: BLOCK_BYTES as u32,
            name_bytes_max: 255,
        });
        Ok(())
    }

    pub(super) fn read_link(&self, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let place = self.place(node)?;
        let (tree, object) = place.object(self.tree.as_ref()).ok_or(Errno(libc::EINVAL))?;
        reply.bytes(&tree.read_link(object)?);
        Ok(())
    }
}
