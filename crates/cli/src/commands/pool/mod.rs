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

pub(crate) use describe::{NOT_ANSWERING, describe_state, failures_of, parse_properties, print_properties};
pub(crate) use running::{
    RunningPools, answered, chosen_pools, describe_names, running_pools, running_pools_of,
};
