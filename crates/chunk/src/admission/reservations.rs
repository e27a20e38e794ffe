//! Reservations: room that is set aside for what will be written.

use terrace_store::{Reservation, StoreError};

use super::make_room::Admission;
use crate::space::Purpose;

impl Admission {
    /// Sets `bytes` aside beside the caller's `own`, as far into the reserve as the purpose may go.
    pub(crate) fn set_aside(
        &self,
        bytes: u64,
        own: &dyn Fn() -> u64,
        purpose: Purpose,
    ) -> Result<Reservation, StoreError> {
        self.stop.check_running()?;
        let try_once = || self.space.try_reserve(bytes, own(), purpose);
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
