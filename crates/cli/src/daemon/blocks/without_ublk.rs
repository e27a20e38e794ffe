//! What stands in the place of `ublk_face` in a program that was built without ublk: nothing can be made.

use std::{path::Path, sync::Arc};

use terrace_control::Failure;
use terrace_dataset::BlockDevice;

use crate::machine::Places;

/// There is none.
pub enum UblkFace {}

impl UblkFace {
    /// Never succeeds.
    pub fn make(
        _: &Places,
        _: &str,
        volume: &str,
        _: Arc<dyn BlockDevice>,
        _: Option<&Path>,
    ) -> Result<Self, Failure> {
        let what = format!("attach '{volume}'");
        Err(Failure::new(
            what,
            "this terrace was built without ublk",
            "use '--via loop'",
        ))
    }

    /// There is none.
    pub fn path(&self) -> &Path {
        match *self {}
    }

    /// There is none.
    pub fn is_live(&self) -> bool {
        match *self {}
    }

    /// There is none.
    pub fn has_continued(&self) -> bool {
        match *self {}
    }

    /// There is none.
    pub fn take_away(&self, _: &str) -> Result<(), Failure> {
        match *self {}
    }

    /// There is none.
    pub fn resized(&self, _: &str) -> Result<bool, Failure> {
        match *self {}
    }
}

/// Nothing is left where nothing was made.
pub fn clear_ublk_remains(_: &str, _: &Places, _: &str, _: &str) -> Result<(), Failure> {
    Ok(())
}
