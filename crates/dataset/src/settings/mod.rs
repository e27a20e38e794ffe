//! Settings: names, properties, retention and times, as users write them.

mod dataset_error;
pub(crate) mod name;
mod past_time;
pub(crate) mod properties;
mod retention;
mod settings;

pub use dataset_error::DatasetError;
pub use name::{check_dataset, check_part, split_snapshot};
pub use past_time::{At, format_time};
pub use properties::{PropertyValue, Source, property_default, property_help, property_names, settings};
pub use retention::{Every, Retention, Rule};
pub use settings::{Durability, Settings};

pub(crate) use name::parent;
pub(crate) use properties::VOLUME_CHUNK_SIZE;
