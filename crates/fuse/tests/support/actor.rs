//! `Actor`: somebody with a user, groups and capabilities of his own, in whose name a thread does something.
//!
//! The identities of Linux are those of a thread; the C library changes those of all threads together, so the system calls are
//! made here.

/// See above.
#[derive(Debug, Clone, Copy)]
pub struct Actor {
    pub name: &'static str,
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
    /// Of capabilities; `None`: those that a user has by being root or not.
    pub capabilities: Option<u64>,
}

pub const CAP_FSETID: u64 = 1 << 4;
pub const CAP_LINUX_IMMUTABLE: u64 = 1 << 9;
/// All that there are for now.
pub const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

impl Actor {
    /// Whether all checks are left out for him.
    pub fn has(&self, capability: u64) -> bool {
        match self.capabilities {
            Some(capabilities) => capabilities & capability != 0,
            None => self.uid == 0,
        }
    }

    /// Whether he is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Does something in his name. The caller is root.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.become_him();
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn become_him(&self) {
        // SAFETY: system calls that change the credentials of this thread alone, which ends soon; what is pointed to outlives
        // each call.
        unsafe {
            let done = |result: libc::c_long| assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            done(libc::syscall(
                libc::SYS_setgroups,
                self.groups.len(),
                self.groups.as_ptr(),
            ));
            done(libc::syscall(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0));
            done(libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid));
            done(libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid));
            let wanted = self
                .capabilities
                .unwrap_or(if self.uid == 0 { ALL_CAPABILITIES } else { 0 });
            let header: [u32; 2] = [0x2008_0522, 0];
            let (low, high) = (wanted as u32, (wanted >> 32) as u32);
            let mut had = [0_u32; 6];
            done(libc::syscall(libc::SYS_capget, header.as_ptr(), had.as_mut_ptr()));
            // What the thread had is the most that it can have.
            let data: [u32; 6] = [low & had[1], low & had[1], 0, high & had[4], high & had[4], 0];
            done(libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()));
        }
    }
}
