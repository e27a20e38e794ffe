//! Commands that show how a pool does.

pub(crate) mod events;
pub(crate) mod iostat;
pub(crate) mod jobs;
pub(crate) mod lost;
pub(crate) mod status;
pub(crate) mod top;
mod top_screen;
