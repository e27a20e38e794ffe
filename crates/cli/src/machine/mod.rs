//! The machine: where pools, sockets and mounts are, what is written down of them, and output to the terminal.

mod kept_events;
pub(crate) mod output;
mod places;
mod registry;
mod tree_copy;
mod volume_interface;

pub(crate) use kept_events::KeptEvents;
pub(crate) use places::{Places, check_pool_name, make_private, own_ids, replace_file};
pub(crate) use registry::{
    KnownAttachment, KnownBlocks, KnownIdentity, KnownMount, KnownPool, KnownService, KnownTls, Registry,
};
pub(crate) use tree_copy::{
    Copied, TreeEntry, TreeWriter, from_wire, send_content, send_tree, to_wire, wire_parts,
};
pub(crate) use volume_interface::{Choice, UblkHere, Via};
