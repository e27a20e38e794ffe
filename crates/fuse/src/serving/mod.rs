//! Serving: the threads of a mount, which take requests from the transport and have the server answer them. Owns who receives
//! (`Crew`), who serves which queue (`RingCrew`), and how a mount ends (`Serving`), each with a lock of its own.

mod dispatch;
pub(crate) mod read_loop;
mod threads;
pub(crate) mod uring_threads;

pub(crate) use dispatch::Serving;
pub(crate) use threads::Crew;
