//! The host: who else uses a device or its space, and what the system log is told.

mod claim;
mod complaint;
mod holders;
mod host_shortage;
mod served_request;
mod spare_memory;
mod unix_socket;

pub use claim::{Claim, Made};
pub use complaint::Complaint;
pub use holders::{holders_of, partitions_of};
pub use host_shortage::HostShortage;
pub use served_request::{ServedRequest, Serving};
pub use spare_memory::give_spare_memory_back;
pub use unix_socket::{SocketFile, listen_at};
