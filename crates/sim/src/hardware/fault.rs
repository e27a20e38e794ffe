//! `FaultKind` and `Coverage`: what can go wrong with a device, and how often it really did.
//!
//! Invariant: a kind is counted where it takes effect (bytes were lost, an error was returned), not where it was
//! planned; a run over many seeds in which a kind was never hit is a failure of the test itself.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $words:literal,)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultKind { $($(#[$doc])* $name,)* }

        impl FaultKind {
            /// All of them.
            pub const ALL: &'static [FaultKind] = &[$(FaultKind::$name,)*];

            /// As it is shown.
            pub fn words(self) -> &'static str {
                match self { $(FaultKind::$name => $words,)* }
            }
        }
    };
}

kinds! {
    /// Power went while the engine was running.
    PowerCut = "power cut",
    /// Power went again while the engine was opening.
    PowerCutInRecovery = "power cut in recovery",
    /// The process ended without warning; what it had written stays.
    Kill = "kill",
    /// The process ended in the middle of a device operation.
    KillMidway = "kill in the middle of an operation",
    /// A write that was not flushed is not there after a cut.
    LostWrite = "unflushed write lost",
    /// A later write survived a cut that an earlier one did not.
    Reordered = "unflushed writes reordered",
    /// Some sectors of a write survived a cut, others did not.
    Torn = "write torn at 512 bytes",
    /// A whole unsynced slot file of a directory device is as it was before.
    LostSlot = "unsynced slot file lost",
    /// A read failed once.
    ReadErrorOnce = "read error, once",
    /// A range fails to be read until it is written again.
    ReadErrorForGood = "read error, for good",
    /// A write failed once, having written some sectors or none.
    WriteErrorOnce = "write error, once",
    /// All writes fail from here on.
    WriteErrorForGood = "write error, for good",
    /// Writes to one range fail, while all else works.
    WriteErrorRange = "write error, one range",
    /// A flush failed.
    FlushError = "flush error",
    /// A bit of a sector is another.
    Flip = "flipped bit",
    /// Sectors read as zero.
    Zeroed = "sectors zeroed",
    /// A sector has the content of another address.
    Misdirected = "misdirected content",
    /// A sector has content that it had before.
    Stale = "stale content",
    /// A read returned the content of another address; the medium is sound.
    MisdirectedRead = "misdirected read",
    /// A read returned what was there earlier; the medium is sound.
    StaleRead = "stale read",
    /// A write was acknowledged and landed at another address.
    MisdirectedWrite = "misdirected write",
    /// A write was acknowledged, and flushed, and never made.
    PhantomWrite = "write acknowledged and not made",
    /// The end of the device is gone.
    Truncated = "device truncated",
    /// A device is gone while the engine runs.
    Vanished = "device vanished",
    /// A device comes back with what it had some time ago.
    CameBackOld = "device came back old",
    /// The backing of a device is full.
    BackingFull = "backing of a device full",
    /// A device takes very long.
    Slow = "device slow",
    /// A device is pulled, and the pool used without it.
    Pulled = "device pulled",
    /// A device is gone for good, and given up.
    LostForGood = "device lost for good",
    /// A device that is missing was replaced by a fresh one.
    Replaced = "missing device replaced",
    /// A pool was rebuilt from what lies on its devices.
    Rebuilt = "pool rebuilt",
    /// The pool is full.
    PoolFull = "pool full",
}

/// How often each kind took effect.
#[derive(Debug)]
pub struct Coverage {
    counts: Vec<AtomicU64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            counts: FaultKind::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Coverage {
    /// Counts one.
    pub fn hit(&self, kind: FaultKind) {
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often it took effect.
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Adds all of `other`.
    pub fn add(&self, other: &Coverage) {
        for (mine, theirs) in self.counts.iter().zip(&other.counts) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The kinds that never took effect.
    pub fn missing(&self) -> Vec<FaultKind> {
        FaultKind::ALL
            .iter()
            .copied()
            .filter(|kind| self.count(*kind) == 0)
            .collect()
    }
}
