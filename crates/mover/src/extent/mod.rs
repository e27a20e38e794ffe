//! Extents: what is moved: regions, chunks and parts of them, and the step that moves a batch.

mod batch;
pub(crate) mod reader;

pub(crate) use reader::{Chosen, Found, Moving, Page, request_of, slice_of};
