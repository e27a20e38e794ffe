//! The last act of a run: everything is deleted, and the room must come back; or a device is lost for good; or the pool is
//! rebuilt from its devices.

mod deletion;
mod device_loss;
mod rebuilding;

pub(crate) use deletion::DeleteEverything;
pub(crate) use device_loss::LoseDevice;
pub(crate) use rebuilding::Rebuild;
