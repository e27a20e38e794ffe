//! Support: what several requests need.

pub(crate) mod allocator;
pub(crate) mod answers;
pub(crate) mod descriptors;
mod device_users;
mod loss;
mod paths;
pub(crate) mod read_ahead;
mod remembered;
mod stored_once;
mod subject;
mod whereabouts;

pub use answers::failed;
pub use whereabouts::device_paths;

pub(crate) use answers::{Parameters, encode, in_progress, refused};
pub(crate) use device_users::users_of;
pub(crate) use loss::Loss;
pub(crate) use paths::{file_failure, find, walk};
pub(crate) use remembered::{Missing, Use, check_identity, identity_of, renamed};
pub(crate) use stored_once::StoredOnce;
pub(crate) use subject::{Content, Subject};
