//! Kinds of devices: files and block devices, directories of slots, memory.

pub(crate) mod directory;
pub(crate) mod file;
mod memory;
mod stray;
mod volatile;

pub use directory::DirectoryDevice;
pub use file::FileDevice;
pub use memory::MemoryDevice;
pub use stray::Stray;
pub use volatile::{VOLATILE_VARIABLE, VolatileDevice};
