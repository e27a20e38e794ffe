//! `UblkFace`: a volume as a ublk device.
//!
//! Invariant: the file that says what the next daemon may do with the device is there as long as the device is.

use std::{fs, path::Path, sync::Arc};

use terrace_control::Failure;
use terrace_dataset::BlockDevice;
use terrace_ublk::{Server, is_ublk};

use super::device_names::mark_of;
use crate::{
    daemon::support::failed,
    machine::{Places, make_private},
};

/// See above.
pub struct UblkFace(Server);

impl UblkFace {
    /// Goes on with the device that a dead daemon has left, or makes one; `wanted` if that is free.
    pub fn make(
        places: &Places,
        pool: &str,
        volume: &str,
        disk: Arc<dyn BlockDevice>,
        wanted: Option<&Path>,
    ) -> Result<Self, Failure> {
        let what = format!("attach '{volume}'");
        make_private(&places.volume_directory(pool))
            .map_err(|error| Failure::new(what.clone(), error, "fix the state directory"))?;
        let wanted = wanted.filter(|path| is_ublk(path));
        Server::start(disk, &mark_of(places, pool, volume), wanted)
            .map(Self)
            .map_err(|error| {
                Failure::new(
                    what,
                    error,
                    "'terrace doctor' says more; '--via loop' does without ublk",
                )
            })
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Whether the device still shows the volume; anybody may delete it with other tools.
    pub fn is_live(&self) -> bool {
        self.0.is_live()
    }

    /// Whether whoever used the device has noticed no more of the old daemon's end than a pause.
    pub fn has_continued(&self) -> bool {
        self.0.has_continued()
    }

    /// Takes the device away.
    pub fn take_away(&self, what: &str) -> Result<(), Failure> {
        self.0.stop().map_err(|error| failed(what, &error))
    }

    /// The volume has another size: the kernel is told. `false` if it cannot be.
    pub fn resized(&self, what: &str) -> Result<bool, Failure> {
        self.0.resized().map_err(|error| failed(what, &error))
    }
}

/// Takes away what a dead daemon has left of a volume's device, if it was one of ublk.
pub fn clear_ublk_remains(what: &str, places: &Places, pool: &str, volume: &str) -> Result<(), Failure> {
    let mark = mark_of(places, pool, volume);
    if !fs::exists(&mark).unwrap_or(true) {
        return Ok(());
    }
    terrace_ublk::clear_remains(&mark)
        .map(drop)
        .map_err(|error| failed(what, &error))
}
