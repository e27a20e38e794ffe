//! Labels: reading, writing and comparing the labels of devices.

mod disown;
mod find_copies;
mod front_check;
mod label_io;
mod patient_read;
mod relabel;
pub(crate) mod standing;

pub use disown::mark_destroyed;
pub use front_check::FrontDamage;
pub use standing::Presence;

pub(crate) use label_io::{LabelCopies, write_labels};
pub(crate) use patient_read::read_patiently;
pub(crate) use standing::{Standing, standing};
