//! What changes names: CREATE, TMPFILE, MKNOD, MKDIR, SYMLINK, LINK, UNLINK, RMDIR, RENAME.

use terrace_dataset::{FileKind, FsError, RenameMode, SetAttributes};

use super::nodes::Nodes;
use crate::{
    content::{KERNEL, caller},
    errno::Errno,
    protocol::{FOPEN_KEEP_CACHE, Header, ReplyBuffer},
};

pub(super) fn create(
    nodes: &Nodes,
    header: &Header,
    name: &[u8],
    flags: u32,
    mode: u32,
    umask: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, dir) = nodes.live(header.node)?;
    nodes.check_name(dir, name)?;
    let has = |flag: i32| flags & flag as u32 != 0;
    let made = live.create(
        &caller(header, umask),
        dir,
        name,
        FileKind::File,
        mode & 0o7777,
        0,
    );
    let attributes = match made {
        // Made below the kernel since it looked: without O_EXCL this is an open.
        Err(FsError::Exists) if !has(libc::O_EXCL) => {
            let found = live.lookup(&KERNEL, dir, name)?;
            if has(libc::O_TRUNC) && found.kind == FileKind::File {
                let change = SetAttributes {
                    size: Some(0),
                    through_handle: true,
                    ..SetAttributes::default()
                };
                live.set_attributes(&KERNEL, found.object, &change)?
            } else {
                found
            }
        }
        made => made?,
    };
    reply.entry(&nodes.live_entry(&attributes));
    reply.open(FOPEN_KEEP_CACHE);
    Ok(())
}

pub(super) fn temporary(
    nodes: &Nodes,
    header: &Header,
    mode: u32,
    umask: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, dir) = nodes.live(header.node)?;
    let attributes = live.temporary(&caller(header, umask), dir, mode & 0o7777)?;
    reply.entry(&nodes.live_entry(&attributes));
    reply.open(FOPEN_KEEP_CACHE);
    nodes.keep(live, attributes.object);
    Ok(())
}

pub(super) fn make_node(
    nodes: &Nodes,
    header: &Header,
    name: &[u8],
    mode: u32,
    device: u32,
    umask: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, dir) = nodes.live(header.node)?;
    nodes.check_name(dir, name)?;
    let kind = match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => FileKind::File,
        libc::S_IFBLK => FileKind::BlockDevice,
        libc::S_IFCHR => FileKind::CharacterDevice,
        libc::S_IFIFO => FileKind::Pipe,
        libc::S_IFSOCK => FileKind::Socket,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let attributes = live.create(&caller(header, umask), dir, name, kind, mode & 0o7777, device)?;
    reply.entry(&nodes.live_entry(&attributes));
    Ok(())
}

pub(super) fn make_directory(
    nodes: &Nodes,
    header: &Header,
    name: &[u8],
    mode: u32,
    umask: u32,
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, dir) = nodes.live(header.node)?;
    nodes.check_name(dir, name)?;
    let attributes = live.make_directory(&caller(header, umask), dir, name, mode & 0o7777)?;
    reply.entry(&nodes.live_entry(&attributes));
    Ok(())
}

pub(super) fn symbolic_link(
    nodes: &Nodes,
    header: &Header,
    name: &[u8],
    target: &[u8],
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, dir) = nodes.live(header.node)?;
    nodes.check_name(dir, name)?;
    let attributes = live.symbolic_link(&caller(header, 0), dir, name, target)?;
    reply.entry(&nodes.live_entry(&attributes));
    Ok(())
}

pub(super) fn link(
    nodes: &Nodes,
    from: u64,
    dir: u64,
    name: &[u8],
    reply: &mut ReplyBuffer,
) -> Result<(), Errno> {
    let (live, dir) = nodes.live(dir)?;
    let (_, from) = nodes.live(from).map_err(|_| Errno(libc::EXDEV))?;
    nodes.check_name(dir, name)?;
    let attributes = live.link(&KERNEL, from, dir, name)?;
    reply.entry(&nodes.live_entry(&attributes));
    Ok(())
}

pub(super) fn unlink(nodes: &Nodes, dir: u64, name: &[u8]) -> Result<(), Errno> {
    let (live, dir) = nodes.live(dir)?;
    nodes.check_name(dir, name)?;
    let removed = live.unlink(&KERNEL, dir, name)?;
    if removed.links == 0 {
        nodes.keep(live, removed.object);
    } else {
        nodes.known().outdate(removed.object);
    }
    Ok(())
}

pub(super) fn remove_directory(nodes: &Nodes, dir: u64, name: &[u8]) -> Result<(), Errno> {
    let (live, dir) = nodes.live(dir)?;
    nodes.check_name(dir, name)?;
    let removed = live.remove_directory(&KERNEL, dir, name)?;
    nodes.keep(live, removed.object);
    Ok(())
}

pub(super) fn rename(
    nodes: &Nodes,
    header: &Header,
    name: &[u8],
    to_dir: u64,
    to_name: &[u8],
    flags: u32,
) -> Result<(), Errno> {
    const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    let (live, dir) = nodes.live(header.node)?;
    let (_, to_dir) = nodes.live(to_dir)?;
    nodes.check_name(dir, name)?;
    nodes.check_name(to_dir, to_name)?;
    let mode = match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        libc::RENAME_WHITEOUT => RenameMode::Whiteout,
        WHITEOUT_NOREPLACE => RenameMode::WhiteoutNoReplace,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let context = match mode.leaves_whiteout() {
        true => caller(header, 0),
        false => KERNEL,
    };
    match live.rename(&context, dir, name, to_dir, to_name, mode)? {
        Some(replaced) if replaced.links == 0 => nodes.keep(live, replaced.object),
        Some(replaced) => nodes.known().outdate(replaced.object),
        None => {}
    }
    // The kernel takes the times of what was renamed for unknown.
    let exchanged = (mode == RenameMode::Exchange).then_some((dir, name));
    for (dir, name) in [Some((to_dir, to_name)), exchanged].into_iter().flatten() {
        if let Ok(renamed) = live.lookup(&KERNEL, dir, name) {
            nodes.known().outdate(renamed.object);
        }
    }
    Ok(())
}
