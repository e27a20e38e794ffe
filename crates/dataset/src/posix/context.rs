//! `Context`: on whose behalf an operation runs.

use std::sync::Arc;

/// The caller's supplementary groups: known, or asked for when a check needs them (a FUSE request does not carry
/// them; `/proc/PID/status` does, at a cost that most operations need not pay).
#[derive(Clone, Default)]
pub enum Groups {
    /// None.
    #[default]
    None,
    /// These.
    List(Arc<[u32]>),
    /// Asked for by process number.
    Lazy(fn(u32) -> Vec<u32>),
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Groups::None => f.write_str("None"),
            Groups::List(groups) => write!(f, "{groups:?}"),
            Groups::Lazy(_) => f.write_str("Lazy"),
        }
    }
}

/// Who asks: ids as the kernel gives them.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
    /// Process, 0 if unknown.
    pub pid: u32,
    /// Permission bits that new objects do not get (unless the directory has a default ACL).
    pub umask: u32,
    /// Supplementary groups.
    pub groups: Groups,
    /// The kernel asks, and has checked permissions already (FUSE `default_permissions`): no permission is checked
    /// again, ids serve only for ownership and inheritance. An object whose last name such a caller takes away stays
    /// held as if opened, because the kernel may still know it: call `release_object` when it forgets it.
    pub trusted: bool,
    /// What goes as the caller changes the content of a file.
    pub strip: Strip,
}

/// What a change of a file's content takes away of the rights that the file gives to those who run it: set-id bits and
/// `security.capability`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strip {
    /// Capabilities, and set-id bits if the caller is neither trusted nor root.
    #[default]
    ByUser,
    /// Capabilities and set-id bits: the caller has no CAP_FSETID, says the kernel.
    SetId,
    /// Nothing: written back from a mapping, of which Linux takes no note.
    Nothing,
}

impl Context {
    /// User 0, no umask.
    pub fn root() -> Self {
        Self::default()
    }

    /// A user and group, with no supplementary groups and a umask of 022.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            umask: 0o022,
            ..Self::default()
        }
    }

    /// Whether all checks pass (CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_CHOWN, CAP_FSETID: user 0).
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether set-id bits fall off a file when the caller changes its content.
    pub fn strips_set_id(&self) -> bool {
        match self.strip {
            Strip::ByUser => !self.trusted && !self.is_root(),
            Strip::SetId => true,
            Strip::Nothing => false,
        }
    }

    /// Whether the caller is in `group`.
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group
            || match &self.groups {
                Groups::None => false,
                Groups::List(groups) => groups.contains(&group),
                Groups::Lazy(ask) => ask(self.pid).contains(&group),
            }
    }
}
