//! Content: what a mount shows, as the kernel numbers it: live datasets, their past, volumes.

mod attribute_values;
mod credentials;
mod dataset_history;
mod files;
mod history_paths;
mod known_objects;
mod node_numbers;
mod security_labels;
mod volume_file;

pub use dataset_history::DatasetPast;
pub use files::{Content, Files};
pub use history_paths::{Past, PastView, split_name};
pub use volume_file::{VOLUME_NAME, VOLUME_OBJECT, VolumeFile};

pub(crate) use attribute_values::{attribute_values, has_one_name, own_directory, type_bits};
pub(crate) use credentials::{KERNEL, MAPPING, caller, has_fsetid, is_administrator};
pub(crate) use history_paths::{CONTROL_NAME, SNAPSHOTS_NAME};
pub(crate) use node_numbers::{
    CONTROL_NODE, LiveNodes, PastNodes, PastObject, Place, SNAPSHOTS_NODE, VIRTUAL, inode_of, numbered,
};
pub(crate) use security_labels::SecurityLabels;
