//! GETATTR, STATX, SETATTR, STATFS, READLINK.

use terrace_dataset::{Context, SetAttributes, SetTime, Strip, Time};

use super::nodes::{Nodes, PAST_TRUST_SECONDS, TRUST_SECONDS};
use crate::{
    content::{KERNEL, Place, attribute_values, caller, has_fsetid, has_one_name, own_directory},
    errno::Errno,
    protocol::{AttributeValues, Header, ReplyBuffer, SetAttributesIn, StatfsValues, set_attribute},
};

const BLOCK_BYTES: u64 = 4096;

/// The attributes of a node and how long they may be relied on.
pub(super) fn attributes_of(nodes: &Nodes, node: u64) -> Result<(AttributeValues, u64), Errno> {
    Ok(match nodes.place(node)? {
        Place::Live(object) => {
            let attributes = nodes.tree().attributes(object)?;
            nodes.known().show(object, has_one_name(&attributes));
            (attribute_values(&attributes, object), TRUST_SECONDS)
        }
        Place::Past(past) => (
            attribute_values(&past.view.tree.attributes(past.object)?, past.inode()),
            PAST_TRUST_SECONDS,
        ),
        Place::Control | Place::Snapshots => (own_directory(node), PAST_TRUST_SECONDS),
    })
}

pub(super) fn get_attributes(nodes: &Nodes, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let (values, seconds) = attributes_of(nodes, node)?;
    reply.attributes_reply(seconds, &values);
    Ok(())
}

pub(super) fn statx(nodes: &Nodes, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let (values, seconds) = attributes_of(nodes, node)?;
    reply.statx(seconds, &values);
    Ok(())
}

pub(super) fn set_attributes(
    nodes: &Nodes,
    header: &Header,
    change: &SetAttributesIn,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, object) = nodes.live(header.node)?;
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
    nodes.known().show(object, has_one_name(&attributes));
    reply.attributes_reply(TRUST_SECONDS, &attribute_values(&attributes, object));
    Ok(())
}

pub(super) fn statfs(nodes: &Nodes, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let statistics = nodes.tree().statistics()?;
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

pub(super) fn read_link(nodes: &Nodes, node: u64, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let place = nodes.place(node)?;
    let (tree, object) = place.object(nodes.tree()).ok_or(Errno(libc::EINVAL))?;
    reply.bytes(&tree.read_link(object)?);
    Ok(())
}
