//! Lifecycle: pools are found, made, opened and changed; roots are written.

mod change_devices;
pub(crate) mod find_pools;
mod open;
mod roots;

pub use change_devices::DeviceAdd;
pub use find_pools::{FoundDevice, FoundPool, is_pool_member, scan};
pub use open::{CreateOptions, OpenOptions, check_device_size};

pub(crate) use open::note_paths;
pub(crate) use roots::{Roots, Slots};
