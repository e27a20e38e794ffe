//! Lifecycle: pools are found, made and opened, and devices join and leave.
//!
//! Owns nothing: it uses the labels, roots, space and devices of a pool.

mod agreement;
mod change_devices;
mod create;
mod find_pools;
mod joining;
mod open;

pub use change_devices::DeviceAdd;
pub use create::CreateOptions;
pub use find_pools::{FoundDevice, FoundPool, is_pool_member, scan};
pub use joining::check_device_size;
pub use open::OpenOptions;

pub(crate) use change_devices::DeviceChanges;
pub(crate) use create::create;
pub(crate) use find_pools::member_at;
pub(crate) use open::{Opened, Returned, open};
