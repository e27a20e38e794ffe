//! The full walk of the store, and what the newest root leads to.

use crate::{act::Act, store::world::StoreWorld, violation::Check};

/// The full walk finds every count exact, and every copy good.
pub(crate) struct Audit;

impl Act<StoreWorld> for Audit {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.audit()
    }
}

/// What the newest root needs is still held, whatever fails.
pub(crate) struct AuditRoot;

impl Act<StoreWorld> for AuditRoot {
    fn perform(&mut self, world: &mut StoreWorld) -> Check {
        world.audit_root()
    }
}
