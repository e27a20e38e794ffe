//! `Models`: all that must be true of the pool of a run.

use super::{
    dataset::{FilesystemState, Promise, VolumeState},
    guests::Guests,
    settings::Settings,
};

/// Room that is set aside for the first volume.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// It was acknowledged.
    pub(crate) holds: bool,
    /// A disk is away that has left less room than is promised: nobody can keep that until it is back.
    pub(crate) is_short: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Models {
    pub(crate) filesystems: Vec<FilesystemState>,
    pub(crate) volumes: Vec<VolumeState>,
    /// What was set and must stay so.
    pub(crate) settings: Settings,
    pub(crate) reservation: Reservation,
    /// Datasets that come and go.
    pub(crate) guests: Guests,
    /// New content that was accepted since something was made durable, about.
    pub(crate) accepted_bytes: u64,
    /// A tick or a pruning failed since the pool was opened.
    pub(crate) tick_failed: bool,
}

impl Models {
    /// The engine is gone: what it had accepted and not made durable no longer counts.
    pub(crate) fn stopped(&mut self) {
        for filesystem in &mut self.filesystems {
            filesystem.quota_slack_bytes = 0;
        }
        self.accepted_bytes = 0;
    }

    /// Everything that was done so far is durable.
    pub(crate) fn flushed(&mut self) {
        self.filesystems
            .iter_mut()
            .for_each(|filesystem| filesystem.released.clear());
        self.held_is_durable();
    }

    /// The checkpoints that are held are, durably.
    pub(crate) fn held_is_durable(&mut self) {
        self.accepted_bytes = 0;
        for filesystem in &mut self.filesystems {
            filesystem
                .retained
                .values_mut()
                .for_each(|retained| retained.durable = true);
        }
    }

    /// The commit interval is over: nothing older is ever lost, whatever fsync promises; but for what is kept in RAM alone.
    pub(crate) fn committed(&mut self) {
        let kept = |promise: Promise| promise != Promise::Ram;
        for filesystem in self.filesystems.iter_mut().filter(|one| kept(one.promise)) {
            filesystem.history.synced();
        }
        for volume in self.volumes.iter_mut().filter(|one| kept(one.promise)) {
            volume.history.synced();
        }
    }

    /// The pool was closed: all of it is durable.
    pub(crate) fn closed(&mut self) {
        for filesystem in &mut self.filesystems {
            filesystem.history.synced();
        }
        for volume in &mut self.volumes {
            volume.history.synced();
        }
        self.flushed();
    }
}
