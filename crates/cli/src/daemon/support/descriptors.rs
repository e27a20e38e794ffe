//! How many files and sockets the daemon may have open at a time.
//!
//! Programs are started with 1,024 mostly, for the sake of those that use select(2), which nothing here does. A thousand clients
//! of one served volume would use up all of them. Invariant: the limit that the administrator has set (the hard one) stays.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than all clients of many addresses need.
const ENOUGH: u64 = 64 << 10;

/// Raises the limit as far as this process may.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(ENOUGH);
    if limit.current.is_some_and(|now| now < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            ..limit
        };
        // Where it is refused all the same, servers leave some of the few to others (`terrace_nbd`).
        let _ = setrlimit(Resource::Nofile, raised);
    }
}
