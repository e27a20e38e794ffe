//! Properties of datasets: read, set, inherited, and put in force by `PropertyService`. Owns no lock.

mod figures;
mod property_service;
mod quota_checks;

pub use figures::{check_for_new_pool, check_readable};
pub use property_service::PropertyService;

pub(crate) use quota_checks::above_quota;
