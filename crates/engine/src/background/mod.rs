//! Background: the threads that work while nobody asks for anything, and how they make way for users.

mod background_pacing;
mod clear_heat;
mod steps;
mod workers;

pub(crate) use background_pacing::Standing;
pub(crate) use workers::Workers;
