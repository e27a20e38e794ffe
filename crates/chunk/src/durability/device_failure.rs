//! Devices that fail while the store is open: the log leaves them, and then the labels call them absent.
//!
//! Invariants: an opening does not ask for what only devices have that the labels call absent, so nothing is acknowledged that
//! lies on such ones alone as long as another one has room for the log; where two others have room it has both its copies on these,
//! and a root that starts there follows.

use terrace_log::Copies;
use terrace_pool::{Presence, SegmentRange};
use terrace_store::StoreError;

use super::group_commit::Journal;

impl Journal {
    /// Makes the log go on in new segments if it goes on a device that fails; whether it does now.
    pub(crate) fn leave_failing(&self) -> Result<bool, StoreError> {
        let mut left = false;
        for _ in 0..LOG_LEAVES_MAX {
            if !self.is_to_leave() || !self.renew_log()? {
                break;
            }
            left = true;
        }
        Ok(left)
    }

    /// Whether the log goes on a device that fails and that the labels call absent: there was no room to leave it, and only a
    /// device that was in use just as long can stand for it.
    pub(crate) fn is_stuck_on_failing(&self) -> bool {
        let devices = self.pool.devices();
        let mut noted = devices
            .iter()
            .filter(|device| device.failure.is_some() && matches!(device.presence, Presence::Absent { .. }));
        noted.any(|device| self.log.goes_to(SegmentRange::whole(device.number)))
    }

    fn is_to_leave(&self) -> bool {
        let position = self.log.position();
        let parts = [position.segment, position.next];
        let fails = |copies: &Copies| copies.iter().any(|copy| self.pool.is_failing(copy.device));
        if !parts.iter().any(fails) {
            return false;
        }
        let counts = |copies: &Copies| copies.iter().any(|copy| self.pool.counts_alone(copy.device));
        let devices = self.pool.devices().into_iter();
        let with_room = devices.filter(|device| device.takes_new && device.free_segments > 0);
        // Two copies of which one counts are better than one.
        with_room.count() > 1 || !parts.iter().all(|copies| copies.is_empty() || counts(copies))
    }
}

/// How often the log goes on elsewhere until it has left some segments.
pub(crate) const LOG_LEAVES_MAX: u32 = 4;
