//! Locks whose order is checked, waiting that the simulator can drive, and the time.
//!
//! Every lock of Terrace has a [`Rank`]: its place in the one order in which locks are taken ([`rank`]). Builds with debug
//! assertions, so all tests and the simulator, end at once where a thread takes a lock out of that order, or asks a
//! device while it holds a lock that is never held across device I/O. Other builds do not look.
//!
//! The idea is that of FreeBSD's `witness(4)`: one list states the order, and every run of every test checks it.

mod clock;
mod condvar;
mod held;
mod mutex;
pub mod rank;
mod raw;
mod rounds;
mod rw_lock;
pub mod trace;

pub use clock::{Clock, Driver, ManualClock, Others, Stopwatch, SystemClock};
pub use condvar::Condvar;
pub use held::{about_to_do_io, as_another_thread};
pub use mutex::{Mutex, MutexGuard};
pub use rank::Rank;
pub use rounds::{Round, Rounds};
pub use rw_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
