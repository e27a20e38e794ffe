//! Reservations: room that is set aside for what will be written.

use terrace_store::{Reservation, StoreError};

use super::make_room::Admission;

impl Admission {
    /// Sets `bytes` aside beside the caller's `own`, leaving so many segments free, or what writers leave.
    pub(crate) fn set_aside(
        &self,
        bytes: u64,
        own: &dyn Fn() -> u64,
        leave_free: Option<u64>,
    ) -> Result<Reservation, StoreError> {
        self.stop.check_running()?;
        let try_once = || {
            // Records of new content would only take metadata further beyond what a root can list.
            let is_listable = self.space.is_listable();
            is_listable
                .then(|| self.space.try_reserve(bytes, own(), leave_free))
                .flatten()
        };
        if let Some(given) = try_once() {
            return Ok(given);
        }
        let mut given = None;
        let made = self.make_room(|| {
            given = try_once();
            given.is_some()
        });
        match (made, given) {
            (Ok(_), Some(given)) => Ok(given),
            (Err(error), _) if self.space.is_listable() => Err(error),
            _ => Err(StoreError::NoSpace),
        }
    }
}
