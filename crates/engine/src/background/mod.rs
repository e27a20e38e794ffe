//! Background: the steps that work while nobody asks for anything, the threads that call them, and how they make way for users.
//! [`Clockwork`] owns when what is due, [`Workers`] the threads; neither holds a lock while it works.

mod clockwork;
mod jobs;
mod memory;
mod resident;
mod throttle;
mod workers;

pub(crate) use clockwork::Clockwork;
pub(crate) use resident::resident_bytes;
pub(crate) use workers::Workers;
