//! Administration: datasets are opened, made, renamed and destroyed; `Datasets` ties all components together. Owns no lock.

mod datasets;
mod lifecycle;
mod loading;

pub use datasets::Datasets;
pub use lifecycle::NewDataset;
