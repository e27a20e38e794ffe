//! IOCTL: what `lsattr` and `chattr` ask. The kernel has checked that the caller owns the file and, where the flags want it, that
//! he has CAP_LINUX_IMMUTABLE.

use terrace_dataset::FileFlags;

use super::nodes::Nodes;
use crate::{
    content::KERNEL,
    errno::Errno,
    protocol::{Header, ReplyBuffer, ioctl::*},
};

/// The flags that there are, each with its two numbers.
fn each(flags: &mut FileFlags) -> [(&mut bool, (u32, u32)); 4] {
    [
        (&mut flags.immutable, IMMUTABLE),
        (&mut flags.append_only, APPEND),
        (&mut flags.no_dump, NO_DUMP),
        (&mut flags.no_access_time, NO_ACCESS_TIME),
    ]
}

/// As `FS_*_FL` and as `FS_XFLAG_*`.
fn numbers(mut flags: FileFlags) -> (u32, u32) {
    let set = each(&mut flags).into_iter().filter(|(set, _)| **set);
    set.fold((0, 0), |sum, (_, bits)| (sum.0 | bits.0, sum.1 | bits.1))
}

/// From numbers of which `bit` gives one; `None` if others are set too.
fn flags_of(wanted: u32, bit: fn((u32, u32)) -> u32) -> Option<FileFlags> {
    let (mut flags, mut left) = (FileFlags::default(), wanted);
    for (set, bits) in each(&mut flags) {
        *set = wanted & bit(bits) != 0;
        left &= !bit(bits);
    }
    (left == 0).then_some(flags)
}

fn number(data: &[u8], at: usize) -> Result<u32, Errno> {
    data.get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u32::from_ne_bytes)
        .ok_or(Errno(libc::EINVAL))
}

pub(super) fn ioctl(
    nodes: &Nodes,
    header: &Header,
    command: u32,
    data: &[u8],
    out_bytes: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let unsupported = Errno(libc::EOPNOTSUPP);
    match command {
        GET_FLAGS | GET_XATTR | GET_VERSION => {
            let place = nodes.place(header.node)?;
            let (tree, object) = place.object(nodes.tree()).ok_or(Errno(libc::ENOTTY))?;
            let (flags, extended) = numbers(tree.file_flags(object)?);
            let mut answer = [0; XATTR_BYTES];
            let first = match command {
                GET_FLAGS => flags,
                GET_XATTR => extended,
                _ => tree.attributes(object)?.generation,
            };
            answer[..4].copy_from_slice(&first.to_ne_bytes());
            reply.ioctl();
            reply.bytes(answer.get(..out_bytes as usize).ok_or(Errno(libc::EINVAL))?);
            Ok(())
        }
        SET_FLAGS | SET_XATTR => {
            let (live, object) = nodes.live(header.node)?;
            let wanted = number(data, 0)?;
            let flags = match command {
                SET_FLAGS => flags_of(wanted, |bits| bits.0),
                // Sizes of extents and projects: there are none.
                _ if (4..XATTR_BYTES)
                    .step_by(4)
                    .any(|at| at != 8 && number(data, at) != Ok(0)) =>
                {
                    None
                }
                _ => flags_of(wanted, |bits| bits.1),
            };
            live.set_file_flags(&KERNEL, object, flags.ok_or(unsupported)?)?;
            // The time of the last change, which the kernel does not take to be another.
            reply.outdate(header.node);
            reply.ioctl();
            Ok(())
        }
        _ => Err(Errno(libc::ENOTTY)),
    }
}
