//! Models: what content and states must be, without the engine.

mod content;
mod history;

pub(crate) use content::Content;
pub(crate) use history::History;
