//! Commands on pools and devices.

mod describe;
pub(crate) mod devices;
mod import;
pub(crate) mod pools;
mod rebuild;
pub(crate) mod rewind;
mod running;
pub(crate) mod stop;
pub(crate) mod tiers;
pub(crate) mod upgrade;
pub(crate) mod verify;

pub(crate) use describe::{NOT_ANSWERING, failures_of, parse_properties, print_properties, state_in_words};
pub(crate) use running::{
    RunningPools, answered, chosen_pools, names_in_words, running_pools, running_pools_of,
};
