//! Server: what each request does to the filesystem. Knows nothing of threads or of how requests arrive. Owns, each with a lock of
//! its own: what the kernel knows (`Nodes`), names shown once (`HiddenNames`), options that a remount changes (`Modes`).
//!
//! Invariants: every request but FORGET gets exactly one reply; what is not live is never changed; a reply that
//! names a node has counted a lookup for it.

mod attributes;
mod data;
mod directory;
mod extended;
mod handles;
mod ioctl;
mod lookup;
mod modes;
mod namespace;
mod nodes;

use std::sync::Arc;

use terrace_dataset::FsError;

use self::{
    extended::ExtendedAttributes,
    handles::HiddenNames,
    modes::{Changes, Modes},
    nodes::Nodes,
};
use crate::{
    content::{Content, Past},
    errno::Errno,
    options::MountOptions,
    protocol::{FOPEN_KEEP_CACHE, Header, Negotiated, ROOT_NODE, ReplyBuffer, Request, feature},
};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The reply is in the buffer.
    Reply,
    /// An error is the reply.
    Error(Errno),
    /// There is no reply.
    Silence,
}

/// The nodes whose attributes the kernel no longer relies on once a request is answered: what it changes, and the time of
/// the last access where it reads. (What SETATTR changes its reply tells, and READ and WRITE note it by themselves.)
fn outdated(node: u64, request: &Request<'_>) -> [Option<u64>; 2] {
    match *request {
        Request::ReadLink
        | Request::ReadDirectory { .. }
        | Request::Fallocate { .. }
        | Request::Ioctl { .. }
        | Request::SetExtended { .. }
        | Request::RemoveExtended { .. }
        | Request::Create { .. }
        | Request::MakeNode { .. }
        | Request::MakeDirectory { .. }
        | Request::SymbolicLink { .. }
        | Request::Unlink { .. }
        | Request::RemoveDirectory { .. } => [Some(node), None],
        Request::Link { node: other, .. }
        | Request::Rename { to_node: other, .. }
        | Request::CopyRange { to_node: other, .. } => [Some(node), Some(other)],
        _ => [None, None],
    }
}

/// Serves requests on one filesystem.
pub struct Server {
    nodes: Nodes,
    hidden: HiddenNames,
    modes: Modes,
    extended: ExtendedAttributes,
    negotiated: Negotiated,
}

impl Server {
    /// For `content`, with its earlier states reachable through `past`.
    pub fn new(
        content: Content,
        past: Option<Arc<dyn Past>>,
        options: &MountOptions,
        negotiated: Negotiated,
    ) -> Self {
        Self {
            nodes: Nodes::new(content, past, options.memory_count.bytes()),
            hidden: HiddenNames::default(),
            modes: Modes::new(options),
            extended: ExtendedAttributes::new(options.extended_attributes),
            negotiated,
        }
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// How many live objects the kernel knows.
    pub fn known_objects(&self) -> usize {
        self.nodes.known().len()
    }

    /// Does what a request asks. `reply` is empty.
    pub fn handle(&self, header: &Header, request: Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        let nodes = &self.nodes;
        match request {
            Request::Forget { lookups } => {
                nodes.forget(header.node, lookups);
                Answer::Silence
            }
            Request::BatchForget(items) => {
                items
                    .iter()
                    .for_each(|(node, lookups)| nodes.forget(node, lookups));
                Answer::Silence
            }
            _ if self.modes.is_cut_off() => Answer::Error(Errno(libc::ENOTCONN)),
            request => {
                let outdated = outdated(header.node, &request);
                let changes = Changes::of(&request);
                let mut done = match changes {
                    Changes::Nothing => self.ask(header, request, reply),
                    _ => self.change(header, request, reply),
                };
                if done.is_ok() && self.modes.makes_durable(changes) {
                    done = self.settle(changes, reply);
                }
                let answer = match done {
                    Ok(()) => Answer::Reply,
                    Err(error) => Answer::Error(error),
                };
                // Whether it succeeded or not: the kernel goes by what it asked.
                outdated
                    .into_iter()
                    .flatten()
                    .for_each(|node| nodes.known().outdate(node));
                answer
            }
        }
    }

    /// An object changed other than through the mount, or everything did if it is `None`: listings bring its attributes
    /// again.
    pub fn outdate(&self, object: Option<u64>) {
        match object {
            Some(object) => self.nodes.known().outdate(object),
            None => self.nodes.known().outdate_all(),
        }
    }

    /// Answers what changes nothing that a remount could ask to be durable ([`Changes::Nothing`]).
    fn ask(&self, header: &Header, request: Request<'_>, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let (node, nodes) = (header.node, &self.nodes);
        match request {
            Request::Lookup { name: b"." } => handles::lookup_itself(nodes, node, reply),
            Request::Lookup { name: b".." } => handles::lookup_parent(nodes, &self.hidden, header, reply),
            Request::Lookup { name } => lookup::lookup(nodes, node, name, reply),
            Request::GetAttributes => attributes::get_attributes(nodes, node, reply),
            Request::Statx { .. } => attributes::statx(nodes, node, reply),
            Request::ReadLink => attributes::read_link(nodes, node, reply),
            Request::StatFs => attributes::statfs(nodes, reply),
            Request::Read {
                offset,
                size,
                read_flags,
                ..
            } => data::read(nodes, &self.modes, header, offset, size, read_flags, reply),
            Request::ReadDirectory { offset, size, plus } => {
                directory::read_directory(nodes, &self.hidden, header, offset, size, plus, reply)
            }
            Request::Fsync { .. } | Request::FsyncDirectory { .. } => data::fsync(nodes, node),
            Request::SyncFs => data::fsync(nodes, ROOT_NODE),
            Request::Seek { offset, whence } => data::seek(nodes, node, offset, whence, reply),
            Request::GetExtended { name, size } => self.extended.get(nodes, node, name, size, reply),
            Request::ListExtended { size } => self.extended.list(nodes, header, size, reply),
            // The kernel, once told that these do not exist, opens without asking: two messages less per file.
            Request::Open { .. } if self.negotiated.has(feature::NO_OPEN_SUPPORT) => Err(Errno(libc::ENOSYS)),
            Request::OpenDirectory if self.negotiated.has(feature::NO_OPENDIR_SUPPORT) => {
                Err(Errno(libc::ENOSYS))
            }
            Request::Open { .. } | Request::OpenDirectory => {
                reply.open(FOPEN_KEEP_CACHE);
                Ok(())
            }
            Request::Release | Request::ReleaseDirectory | Request::Destroy => Ok(()),
            Request::Ioctl {
                command,
                data,
                out_bytes,
            } => ioctl::ioctl(nodes, header, command, data, out_bytes, reply),
            // FLUSH, ACCESS, INTERRUPT and whatever we do not know: the kernel stops asking. (Our operations are
            // short, so that there is nothing to interrupt; permissions it checks itself.)
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Does what changes names, content or attributes.
    fn change(&self, header: &Header, request: Request<'_>, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let (node, nodes) = (header.node, &self.nodes);
        match request {
            Request::SetAttributes(change) => attributes::set_attributes(nodes, header, &change, reply),
            Request::Write {
                offset,
                data,
                write_flags,
                flags,
            } => data::write(nodes, header, offset, data, write_flags, flags, reply),
            // The kernel, once told that there is no CREATE, sends MKNOD and opens without asking: no RELEASE either.
            Request::Create { .. } if self.negotiated.has(feature::NO_OPEN_SUPPORT) => {
                Err(Errno(libc::ENOSYS))
            }
            Request::Create {
                flags,
                mode,
                umask,
                name,
            } => namespace::create(nodes, header, name, flags, mode, umask, reply),
            Request::TemporaryFile { mode, umask, .. } => {
                namespace::temporary(nodes, header, mode, umask, reply)
            }
            Request::MakeNode {
                mode,
                device,
                umask,
                name,
            } => namespace::make_node(nodes, header, name, mode, device, umask, reply),
            Request::MakeDirectory { mode, umask, name } => {
                namespace::make_directory(nodes, header, name, mode, umask, reply)
            }
            Request::SymbolicLink { name, target } => {
                namespace::symbolic_link(nodes, header, name, target, reply)
            }
            Request::Link { node: from, name } => namespace::link(nodes, from, node, name, reply),
            Request::Unlink { name } => namespace::unlink(nodes, node, name),
            Request::RemoveDirectory { name } => namespace::remove_directory(nodes, node, name),
            Request::Rename {
                to_node,
                flags,
                name,
                to_name,
            } => namespace::rename(nodes, header, name, to_node, to_name, flags),
            Request::Fallocate { offset, length, mode } => {
                data::allocate(nodes, header, offset, length, mode, reply)
            }
            Request::CopyRange {
                offset,
                to_node,
                to_offset,
                length,
                wide,
            } => data::copy_range(nodes, header, offset, (to_node, to_offset), length, wide, reply),
            Request::SetExtended {
                name,
                value,
                flags,
                kill_setgid,
            } => self.extended.set(nodes, node, name, value, flags, kill_setgid),
            Request::RemoveExtended { name } => self.extended.remove(nodes, node, name),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Makes what a request has just done durable. If that fails the caller gets an error, and does not hear of what was
    /// made.
    fn settle(&self, changes: Changes, reply: &ReplyBuffer) -> Result<(), Errno> {
        let settled = self.nodes.sync();
        if settled.is_err()
            && changes == (Changes::Names { made: true })
            && let Some(node) = reply.payload().first_chunk::<8>()
        {
            self.nodes.forget(u64::from_ne_bytes(*node), 1);
        }
        Ok(settled?)
    }

    /// Lets go of everything the kernel knew, when the mount has ended.
    pub fn end(&self) {
        self.nodes.clear();
    }

    /// Takes over one hold of an object that has no name any more; false if the kernel does not know it, or it is held
    /// already.
    #[must_use]
    pub fn hold(&self, object: u64) -> bool {
        self.nodes.hold(object)
    }

    /// Takes over what a remount changes.
    pub fn set_modes(&self, options: &MountOptions) {
        self.modes.set(options);
    }

    /// Has every request fail from now on with ENOTCONN, as if the server had ended: another mount takes its place.
    pub fn cut_off(&self) {
        self.modes.cut_off();
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<(), FsError> {
        self.nodes.sync()
    }
}
