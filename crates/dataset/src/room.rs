//! `Usage` and `Room`: quotas and reservations, checked when data is written and not when it is flushed.
//!
//! Invariants: a dataset's usage counts into every dataset above it; `Room` gives back exactly what it took.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock};
use terrace_store::{BLOCK_BYTES, Reservation, Store, StoreError};

use crate::{dataset_error::DatasetError, error::FsError};

const UNLIMITED: u64 = u64::MAX;

/// What a dataset and those below it use, against its quota; its own reservation.
#[derive(Debug)]
pub struct Usage {
    /// Live blocks of this dataset and those below.
    live_blocks: AtomicI64,
    /// Of this dataset alone.
    own_blocks: AtomicI64,
    /// Dirty bytes that are not committed yet, with those below.
    pending_bytes: AtomicU64,
    quota_bytes: AtomicU64,
    reservation_bytes: AtomicU64,
    set_aside: Mutex<Option<Reservation>>,
    above: RwLock<Option<Arc<Usage>>>,
}

impl Usage {
    pub(crate) fn new(above: Option<Arc<Usage>>) -> Arc<Self> {
        Arc::new(Self {
            live_blocks: AtomicI64::new(0),
            own_blocks: AtomicI64::new(0),
            pending_bytes: AtomicU64::new(0),
            quota_bytes: AtomicU64::new(UNLIMITED),
            reservation_bytes: AtomicU64::new(0),
            set_aside: Mutex::new(None),
            above: RwLock::new(above),
        })
    }

    /// Live blocks of this dataset and of those below it, bytes.
    pub fn live_bytes(&self) -> u64 {
        blocks_to_bytes(self.live_blocks.load(Ordering::Relaxed))
    }

    /// What is set aside for this dataset and not used yet, bytes.
    pub fn set_aside_bytes(&self) -> u64 {
        self.set_aside.lock().as_ref().map_or(0, Reservation::bytes)
    }

    /// Room that the quotas here and above leave, bytes; `None` without a quota.
    pub fn quota_left_bytes(&self) -> Option<u64> {
        let own = match self.quota_bytes.load(Ordering::Relaxed) {
            UNLIMITED => None,
            quota => {
                Some(quota.saturating_sub(self.live_bytes() + self.pending_bytes.load(Ordering::Relaxed)))
            }
        };
        let above = self
            .above
            .read()
            .as_ref()
            .and_then(|above| above.quota_left_bytes());
        match (own, above) {
            (Some(own), Some(above)) => Some(own.min(above)),
            (own, above) => own.or(above),
        }
    }

    pub(crate) fn add_live_blocks(&self, change: i64) {
        self.own_blocks.fetch_add(change, Ordering::Relaxed);
        self.add_tree_blocks(change);
    }

    fn add_tree_blocks(&self, change: i64) {
        let above = self.above.read();
        self.live_blocks.fetch_add(change, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.add_tree_blocks(change);
        }
    }

    /// Puts it below another dataset, with everything it counts.
    pub(crate) fn move_below(&self, above: Option<Arc<Usage>>) {
        // Whoever counts holds the link for reading, so that nothing is counted on one side only.
        let mut link = self.above.write();
        let blocks = self.live_blocks.load(Ordering::Relaxed);
        let pending = self.pending_bytes.load(Ordering::Relaxed);
        if let Some(old) = &*link {
            old.add_tree_blocks(-blocks);
            old.sub_pending(pending);
        }
        if let Some(new) = &above {
            new.add_tree_blocks(blocks);
            new.add_pending(pending);
        }
        *link = above;
    }

    pub(crate) fn set_quota(&self, quota_bytes: Option<u64>) {
        self.quota_bytes
            .store(quota_bytes.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    /// Changes the reservation; `NoRoom` (and nothing changed) if the pool cannot hold it.
    pub(crate) fn set_reservation(&self, store: &Arc<dyn Store>, bytes: u64) -> Result<(), DatasetError> {
        let mut set_aside = self.set_aside.lock();
        let have = set_aside.as_ref().map_or(0, Reservation::bytes);
        let want = self.wanted(bytes);
        if want > have {
            let more = set_aside_of(store, want - have)?;
            match &mut *set_aside {
                Some(reservation) => reservation.join(more),
                none => *none = Some(more),
            }
        } else if let Some(reservation) = &mut *set_aside {
            reservation.shrink_to(want);
        }
        self.reservation_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Follows what was written and freed: as much stays set aside as is reserved and not used.
    pub(crate) fn adjust_reservation(&self, store: &Arc<dyn Store>) {
        let reserved = self.reservation_bytes.load(Ordering::Relaxed);
        if reserved > 0 {
            // Fails only when others filled the pool before this dataset freed something: tried again later.
            let _ = self.set_reservation(store, reserved);
        }
    }

    fn wanted(&self, reservation_bytes: u64) -> u64 {
        let own = blocks_to_bytes(self.own_blocks.load(Ordering::Relaxed));
        reservation_bytes.saturating_sub(own + self.pending_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn reserve(usage: &Arc<Self>, store: &Arc<dyn Store>, bytes: u64) -> Result<Room, FsError> {
        let charge = Charge::take(usage, bytes)?;
        if let Some(reservation) = &mut *usage.set_aside.lock() {
            let left = reservation.bytes().saturating_sub(bytes);
            reservation.shrink_to(left);
        }
        let reservation = store.reserve(bytes)?;
        Ok(Room { reservation, charge })
    }

    fn add_pending(&self, bytes: u64) {
        let above = self.above.read();
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.add_pending(bytes);
        }
    }

    fn sub_pending(&self, bytes: u64) {
        let above = self.above.read();
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(above) = &*above {
            above.sub_pending(bytes);
        }
    }
}

/// Takes so much of the pool for a reservation; `NoRoom` if it has not as much.
pub(crate) fn set_aside_of(store: &Arc<dyn Store>, bytes: u64) -> Result<Reservation, DatasetError> {
    store.reserve(bytes).map_err(|error| match error {
        StoreError::NoSpace if bytes > 0 => DatasetError::NoRoom {
            wanted_bytes: bytes,
            available_bytes: store.space().available_bytes,
        },
        other => other.into(),
    })
}

fn blocks_to_bytes(blocks: i64) -> u64 {
    (blocks.max(0) as u64).saturating_mul(BLOCK_BYTES as u64)
}

/// What counts against the quotas until it is dropped: dirty data, or content that was mapped once more, which the live
/// blocks count from the commit on.
#[derive(Debug)]
pub(crate) struct Charge {
    usage: Arc<Usage>,
    bytes: u64,
}

impl Charge {
    /// `QuotaExceeded` if the quotas do not leave as much.
    pub(crate) fn take(usage: &Arc<Usage>, bytes: u64) -> Result<Self, FsError> {
        if usage.quota_left_bytes().is_some_and(|left| left < bytes) {
            return Err(FsError::QuotaExceeded);
        }
        usage.add_pending(bytes);
        Ok(Self {
            usage: usage.clone(),
            bytes,
        })
    }
}

impl Charge {
    /// Joins `other`, of the same dataset, to this one.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.usage.sub_pending(self.bytes);
    }
}

/// Room for dirty data: within the quotas and within the pool. Dropping it gives the room back; drop it when the
/// data was committed.
#[derive(Debug)]
pub struct Room {
    reservation: Reservation,
    charge: Charge,
}

impl Room {
    /// How much counts against the quotas.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes
    }

    /// Gives `bytes` back, as far as they are there: to the quotas and to the pool.
    pub fn shrink_by(&mut self, bytes: u64) {
        self.shrink_charge_by(bytes);
        self.shrink_reservation_by(bytes);
    }

    /// How much is held of the pool or counts against the quotas.
    pub fn held_bytes(&self) -> u64 {
        self.reservation.bytes().max(self.charge.bytes)
    }

    /// How much of it the quotas count.
    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes
    }

    /// Gives `bytes` back to the quotas only.
    pub fn shrink_charge_by(&mut self, bytes: u64) {
        let bytes = bytes.min(self.charge.bytes);
        self.charge.usage.sub_pending(bytes);
        self.charge.bytes -= bytes;
    }

    /// Gives `bytes` back to the pool only: the data is stored, and waits for the commit that refers to it.
    pub fn shrink_reservation_by(&mut self, bytes: u64) {
        let left = self.reservation.bytes().saturating_sub(bytes);
        self.reservation.shrink_to(left);
    }

    /// Joins `other`, of the same dataset, to this one.
    pub fn join(&mut self, mut other: Room) {
        let rest = Reservation::new(0, Arc::new(|_| {}));
        self.reservation
            .join(std::mem::replace(&mut other.reservation, rest));
        self.charge.bytes += std::mem::take(&mut other.charge.bytes);
    }
}
