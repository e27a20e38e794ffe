//! SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR.

use terrace_dataset::{AttributeMode, SetAttributes};

use super::nodes::Nodes;
use crate::{
    content::{KERNEL, SecurityLabels, is_administrator},
    errno::Errno,
    protocol::{Header, ReplyBuffer},
};

const TRUSTED: &[u8] = b"trusted.";
const NAMESPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];
const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Refuses names outside the namespaces that a local filesystem has. Who may use which the kernel has checked.
fn check_namespace(name: &[u8]) -> Result<(), Errno> {
    let known = ACL_NAMES.contains(&name)
        || NAMESPACES
            .iter()
            .any(|prefix| name.strip_prefix(*prefix).is_some_and(|rest| !rest.is_empty()));
    if known {
        Ok(())
    } else {
        Err(Errno(libc::EOPNOTSUPP))
    }
}

/// Answers a question for a value in a buffer of `size` bytes; 0 asks for its length.
fn answer(value: &[u8], size: u32, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    if size == 0 {
        reply.u32(value.len() as u32);
        reply.u32(0);
    } else if value.len() > size as usize {
        return Err(Errno(libc::ERANGE));
    } else {
        reply.bytes(value);
    }
    Ok(())
}

/// Whether there are any, and what is told of labels.
pub(super) struct ExtendedAttributes {
    are_offered: bool,
    labels: SecurityLabels,
}

impl ExtendedAttributes {
    pub(super) fn new(are_offered: bool) -> Self {
        Self {
            are_offered,
            labels: SecurityLabels::of_kernel(),
        }
    }

    /// Refuses every question where there are none, so that the kernel does not ask again.
    fn check_offered(&self) -> Result<(), Errno> {
        match self.are_offered {
            true => Ok(()),
            false => Err(Errno(libc::ENOSYS)),
        }
    }

    pub(super) fn get(
        &self,
        nodes: &Nodes,
        node: u64,
        name: &[u8],
        size: u32,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.check_offered()?;
        check_namespace(name)?;
        let place = nodes.place(node)?;
        let (tree, object) = place.object(nodes.tree()).ok_or(Errno(libc::ENODATA))?;
        let value = tree
            .extended_attribute(object, name)
            .map_err(|error| self.labels.refusal(name, error))?;
        self.labels.note(name);
        answer(&value, size, reply)
    }

    pub(super) fn list(
        &self,
        nodes: &Nodes,
        header: &Header,
        size: u32,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.check_offered()?;
        let place = nodes.place(header.node)?;
        let names = match place.object(nodes.tree()) {
            Some((tree, object)) => tree.extended_attributes(object)?,
            None => Vec::new(),
        };
        names.iter().for_each(|name| self.labels.note(name));
        let mut list = Vec::new();
        // Who asks is looked for only where it matters.
        let is_told = |name: &&Vec<u8>| !name.starts_with(TRUSTED) || is_administrator(header);
        for name in names.iter().filter(is_told) {
            list.extend_from_slice(name);
            list.push(0);
        }
        answer(&list, size, reply)
    }

    pub(super) fn set(
        &self,
        nodes: &Nodes,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_setgid: bool,
    ) -> Result<(), Errno> {
        self.check_offered()?;
        let (live, object) = nodes.live(node)?;
        check_namespace(name)?;
        let mode = match flags as i32 {
            0 => AttributeMode::Set,
            libc::XATTR_CREATE => AttributeMode::Create,
            libc::XATTR_REPLACE => AttributeMode::Replace,
            _ => return Err(Errno(libc::EINVAL)),
        };
        live.set_extended_attribute(&KERNEL, object, name, value, mode)?;
        self.labels.note(name);
        if kill_setgid {
            let mode = live.attributes(object)?.mode;
            if mode & libc::S_ISGID != 0 {
                let change = SetAttributes {
                    mode: Some(mode & !libc::S_ISGID),
                    ..SetAttributes::default()
                };
                live.set_attributes(&KERNEL, object, &change)?;
            }
        }
        Ok(())
    }

    pub(super) fn remove(&self, nodes: &Nodes, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.check_offered()?;
        let (live, object) = nodes.live(node)?;
        check_namespace(name)?;
        Ok(live.remove_extended_attribute(&KERNEL, object, name)?)
    }
}
