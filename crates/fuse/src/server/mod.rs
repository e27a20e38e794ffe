//! `Server`: what each request does to the filesystem. Knows nothing of threads or of how requests arrive.
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

use std::sync::{Arc, atomic::AtomicU64};

use self::{
    handles::HiddenNames,
    modes::{Changes, Modes},
};
use terrace_dataset::{FsError, Tree};

use crate::{
    content::{
        CONTROL_NODE, Files, LiveNodes, Past, PastNodes, PastObject, Place, SNAPSHOTS_NODE, SecurityLabels,
        VIRTUAL, numbered,
    },
    mount::MountOptions,
    protocol::{FOPEN_KEEP_CACHE, Header, Negotiated, ReplyBuffer, Request, feature},
};

/// How long the kernel may rely on names and attributes, seconds: we are the only writer, and tell it of the
/// changes that do not come through it.
const TRUST_SECONDS: u64 = 365 * 24 * 3600;
/// The same for names that stand for past states: snapshots come and go.
const PAST_TRUST_SECONDS: u64 = 1;

/// A positive Linux error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<FsError> for Errno {
    fn from(error: FsError) -> Self {
        if let FsError::Io(cause) = &error {
            tracing::warn!("input/output error: {cause}");
        }
        Errno(error.errno())
    }
}

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

/// What a mount shows.
#[derive(Clone)]
pub enum Content {
    /// A filesystem that can be changed.
    Live(Arc<dyn Files>),
    /// A state that can only be read.
    ReadOnly(Arc<dyn Tree>),
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
    tree: Arc<dyn Tree>,
    live: Option<Arc<dyn Files>>,
    past: Option<Arc<dyn Past>>,
    /// Where memory of the mount counts, bytes.
    memory_count: Arc<AtomicU64>,
    nodes: LiveNodes,
    past_nodes: PastNodes,
    hidden: HiddenNames,
    modes: Modes,
    labels: SecurityLabels,
    negotiated: Negotiated,
    /// Whether there are extended attributes.
    extended: bool,
}

impl Server {
    /// For `content`, with its earlier states reachable through `past`.
    pub fn new(
        content: Content,
        past: Option<Arc<dyn Past>>,
        options: &MountOptions,
        negotiated: Negotiated,
    ) -> Self {
        let (tree, live): (Arc<dyn Tree>, _) = match content {
            Content::Live(filesystem) => (filesystem.clone(), Some(filesystem)),
            Content::ReadOnly(tree) => (tree, None),
        };
        let memory_count = options.memory_count.0.clone();
        Self {
            tree,
            live,
            past,
            nodes: LiveNodes::counted_in(&memory_count),
            memory_count,
            past_nodes: PastNodes::default(),
            hidden: HiddenNames::default(),
            modes: Modes::new(options),
            labels: SecurityLabels::of_kernel(),
            negotiated,
            extended: options.extended_attributes,
        }
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Where memory of the mount counts, bytes.
    pub fn memory_count(&self) -> Arc<AtomicU64> {
        self.memory_count.clone()
    }

    /// How many live objects the kernel knows.
    pub fn known_objects(&self) -> usize {
        self.nodes.len()
    }

    /// Does what a request asks. `reply` is empty.
    pub fn handle(&self, header: &Header, request: Request<'_>, reply: &mut ReplyBuffer) -> Answer {
        match request {
            Request::Forget { lookups } => {
                self.forget(header.node, lookups);
                Answer::Silence
            }
            Request::BatchForget(items) => {
                items
                    .iter()
                    .for_each(|(node, lookups)| self.forget(node, lookups));
                Answer::Silence
            }
            _ if self.modes.is_cut_off() => Answer::Error(Errno(libc::ENOTCONN)),
            request => {
                let outdated = outdated(header.node, &request);
                let changes = Changes::of(&request);
                let mut done = self.answer(header, request, reply);
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
                    .for_each(|node| self.nodes.outdate(node));
                answer
            }
        }
    }

    /// An object changed other than through the mount, or everything did if it is `None`: listings bring its attributes
    /// again.
    pub fn outdate(&self, object: Option<u64>) {
        match object {
            Some(object) => self.nodes.outdate(object),
            None => self.nodes.outdate_all(),
        }
    }

    fn answer(&self, header: &Header, request: Request<'_>, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let node = header.node;
        match request {
            Request::Lookup { name: b"." } => self.lookup_itself(node, reply),
            Request::Lookup { name: b".." } => self.lookup_parent(header, reply),
            Request::Lookup { name } => self.lookup(node, name, reply),
            Request::GetAttributes => self.get_attributes(node, reply),
            Request::Statx { .. } => self.statx(node, reply),
            Request::SetAttributes(change) => self.set_attributes(header, &change, reply),
            Request::ReadLink => self.read_link(node, reply),
            Request::StatFs => self.statfs(reply),
            Request::Read {
                offset,
                size,
                read_flags,
                ..
            } => self.read(header, offset, size, read_flags, reply),
            Request::Write {
                offset,
                data,
                write_flags,
                flags,
            } => self.write(header, offset, data, write_flags, flags, reply),
            // The kernel, once told that there is no CREATE, sends MKNOD and opens without asking: no RELEASE either.
            Request::Create { .. } if self.negotiated.has(feature::NO_OPEN_SUPPORT) => {
                Err(Errno(libc::ENOSYS))
            }
            Request::Create {
                flags,
                mode,
                umask,
                name,
            } => self.create(header, name, flags, mode, umask, reply),
            Request::TemporaryFile { mode, umask, .. } => self.temporary(header, mode, umask, reply),
            Request::MakeNode {
                mode,
                device,
                umask,
                name,
            } => self.make_node(header, name, mode, device, umask, reply),
            Request::MakeDirectory { mode, umask, name } => {
                self.make_directory(header, name, mode, umask, reply)
            }
            Request::SymbolicLink { name, target } => self.symbolic_link(header, name, target, reply),
            Request::Link { node: from, name } => self.link(from, node, name, reply),
            Request::Unlink { name } => self.unlink(node, name),
            Request::RemoveDirectory { name } => self.remove_directory(node, name),
            Request::Rename {
                to_node,
                flags,
                name,
                to_name,
            } => self.rename(header, name, to_node, to_name, flags),
            Request::ReadDirectory { offset, size, plus } => {
                self.read_directory(header, offset, size, plus, reply)
            }
            Request::Fsync { .. } | Request::FsyncDirectory { .. } => self.fsync(node),
            Request::SyncFs => self.fsync(crate::protocol::ROOT_NODE),
            Request::Fallocate { offset, length, mode } => self.allocate(header, offset, length, mode, reply),
            Request::Seek { offset, whence } => self.seek(node, offset, whence, reply),
            Request::CopyRange {
                offset,
                to_node,
                to_offset,
                length,
                wide,
            } => self.copy_range(header, offset, (to_node, to_offset), length, wide, reply),
            Request::GetExtended { .. }
            | Request::ListExtended { .. }
            | Request::SetExtended { .. }
            | Request::RemoveExtended { .. }
                if !self.extended =>
            {
                // The kernel does not ask again.
                Err(Errno(libc::ENOSYS))
            }
            Request::GetExtended { name, size } => self.get_extended(node, name, size, reply),
            Request::ListExtended { size } => self.list_extended(header, size, reply),
            Request::SetExtended {
                name,
                value,
                flags,
                kill_setgid,
            } => self.set_extended(node, name, value, flags, kill_setgid),
            Request::RemoveExtended { name } => self.remove_extended(node, name),
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
            } => self.ioctl(header, command, data, out_bytes, reply),
            // FLUSH, ACCESS, INTERRUPT and whatever we do not know: the kernel stops asking. (Our operations are
            // short, so that there is nothing to interrupt; permissions it checks itself.)
            Request::Flush
            | Request::Access { .. }
            | Request::Interrupt { .. }
            | Request::Init(_)
            | Request::Unknown
            | Request::Forget { .. }
            | Request::BatchForget(_) => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Lets go of everything the kernel knew, when the mount has ended.
    pub fn end(&self) {
        let held = self.nodes.clear();
        if let Some(live) = &self.live {
            held.into_iter().for_each(|object| live.release(object));
        }
        self.past_nodes.clear();
    }

    fn forget(&self, node: u64, lookups: u64) {
        if node & VIRTUAL != 0 {
            self.past_nodes.forget(node, lookups);
        } else if self.nodes.forget(node, lookups)
            && let Some(live) = &self.live
        {
            live.release(node);
        }
    }

    /// Keeps an object that has no name any more until the kernel forgets it.
    fn keep(&self, live: &dyn Files, object: u64) {
        if !self.nodes.hold(object) {
            live.release(object);
        }
    }

    /// Takes over one hold of an object that has no name any more; false if the kernel does not know it, or it is held
    /// already.
    #[must_use]
    pub fn hold(&self, object: u64) -> bool {
        self.live.is_some() && self.nodes.hold(object)
    }

    fn place(&self, node: u64) -> Result<Place, Errno> {
        if node & VIRTUAL == 0 {
            return Ok(Place::Live(node));
        }
        match node {
            CONTROL_NODE => Ok(Place::Control),
            SNAPSHOTS_NODE => Ok(Place::Snapshots),
            _ => match self.past_nodes.get(node) {
                Some(past) => Ok(Place::Past(past)),
                None => self.forgotten(node),
            },
        }
    }

    /// The place of a past node that the kernel has forgotten, and has from a file handle now.
    fn forgotten(&self, node: u64) -> Result<Place, Errno> {
        let stale = Errno(libc::ESTALE);
        let past = self.past.as_ref().ok_or(stale)?;
        let numbered = numbered(node).ok_or(stale)?;
        let view = match past.held(numbered.checkpoint, numbered.mask) {
            Err(FsError::NotFound) => return Err(stale),
            view => view?,
        };
        let object = numbered.object;
        Ok(Place::Past(PastObject { view, object }))
    }

    /// The filesystem and the object in it that a node stands for, if both can be changed.
    fn live(&self, node: u64) -> Result<(&dyn Files, u64), Errno> {
        match &self.live {
            Some(live) if node & VIRTUAL == 0 => Ok((live.as_ref(), node)),
            _ => Err(Errno(libc::EROFS)),
        }
    }

    /// Refuses changes to the name by which past states are reached.
    fn check_name(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        if self.is_control_name(node, name) {
            Err(Errno(libc::EPERM))
        } else {
            Ok(())
        }
    }
}
