//! `Seat`: whether one more client can be taken, and what for.
//!
//! Clients that say nothing keep nobody out: where there is no room, the one that has gone longest without choosing an export
//! makes way. Invariants: at most [`CLIENTS_MAX`] clients of a server; of the descriptors that the process may have, some are
//! left for all that is no client, however many servers and clients there are: without one, the daemon could neither be
//! asked nor stopped.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::process::{Resource, getrlimit};

/// Most clients of a server at a time.
pub const CLIENTS_MAX: usize = 1024;
/// Descriptors that clients leave to others; a quarter of them all where that is less.
const DESCRIPTORS_LEFT: u64 = 256;

/// Descriptors of the clients of all servers of this process.
static SEATED: AtomicU64 = AtomicU64::new(0);

/// Counts a descriptor of a client's as long as it is held.
pub struct Seated(());

impl Seated {
    /// One more.
    pub fn new() -> Self {
        SEATED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        SEATED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What there is for a client that has just come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// Room.
    Free,
    /// The place of another one, if one can be spared.
    AnothersPlace,
    /// Nothing, not even until another one is gone. One is to go all the same, for the next who comes.
    None,
}

impl Seat {
    /// For the client of `socket`, beside so many others.
    pub fn of(socket: impl AsFd, clients: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // The kernel gives the lowest number that is free, so that as many are in use; where some of those have gone, the count
        // says more.
        let number = u64::from(socket.as_fd().as_raw_fd().unsigned_abs());
        Self::with(number.max(SEATED.load(Ordering::Relaxed)), limit, clients)
    }

    fn with(used: u64, limit: u64, clients: usize) -> Self {
        let left = DESCRIPTORS_LEFT.min(limit / 4);
        match used {
            // Who makes way lets go of his descriptor a moment later.
            _ if used >= limit - left / 2 => Self::None,
            _ if used >= limit - left || clients >= CLIENTS_MAX => Self::AnothersPlace,
            _ => Self::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_left_for_others() {
        for (used, limit, clients, seat) in [
            (5, 1024, 0, Seat::Free),
            (767, 1024, 700, Seat::Free),
            (768, 1024, 700, Seat::AnothersPlace),
            (896, 1024, 700, Seat::None),
            (1100, 20_000, 1023, Seat::Free),
            (1100, 20_000, 1024, Seat::AnothersPlace),
            (1100, u64::MAX, 1023, Seat::Free),
            (74, 100, 3, Seat::Free),
            (75, 100, 3, Seat::AnothersPlace),
            (0, 0, 0, Seat::None),
        ] {
            assert_eq!(Seat::with(used, limit, clients), seat, "{used} of {limit}");
        }
    }
}
