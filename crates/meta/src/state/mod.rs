//! State: memory and tables as readers see them; reading (`Reader`) and applying (`Applier`).
//!
//! Owns the current state, behind the lock of `Current`, which is held for a look into memory or an exchange of the state, and
//! the newest sequence, behind that of `Applier`, which is taken before it. Neither is held across I/O.

mod applier;
mod current;
mod reader;

pub use applier::Applier;
pub use reader::Reader;

pub(crate) use applier::SEALED_AT;
pub(crate) use current::{Current, State};
