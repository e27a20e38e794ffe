//! `Modes`: the options of a mount that the server heeds itself; a remount changes them while requests are served.
//! (`ro` is not among them: the kernel passes no change on then, and whoever remounts decides that by telling it.)

use std::sync::atomic::{AtomicU8, Ordering};

use crate::{options::MountOptions, protocol::Request};

const SYNC: u8 = 1;
const SYNC_NAMES: u8 = 2;
const NO_ACCESS_TIMES: u8 = 4;
const CUT_OFF: u8 = 8;

/// See the module.
pub(super) struct Modes {
    bits: AtomicU8,
}

/// What of a filesystem a request may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Changes {
    Nothing,
    /// Names; `made`: the reply names what was made.
    Names {
        made: bool,
    },
    /// Content or attributes.
    Object,
}

impl Changes {
    pub(super) fn of(request: &Request<'_>) -> Self {
        match request {
            Request::Create { .. }
            | Request::TemporaryFile { .. }
            | Request::MakeNode { .. }
            | Request::MakeDirectory { .. }
            | Request::SymbolicLink { .. }
            | Request::Link { .. } => Self::Names { made: true },
            Request::Unlink { .. } | Request::RemoveDirectory { .. } | Request::Rename { .. } => {
                Self::Names { made: false }
            }
            Request::SetAttributes(_)
            | Request::Write { .. }
            | Request::Fallocate { .. }
            | Request::CopyRange { .. }
            | Request::SetExtended { .. }
            | Request::RemoveExtended { .. } => Self::Object,
            _ => Self::Nothing,
        }
    }
}

impl Modes {
    pub(super) fn new(options: &MountOptions) -> Self {
        let modes = Self {
            bits: AtomicU8::new(0),
        };
        modes.set(options);
        modes
    }

    /// Takes over what a remount changes.
    pub(super) fn set(&self, options: &MountOptions) {
        let bits = [
            (options.sync, SYNC),
            (options.sync_names, SYNC_NAMES),
            (options.no_access_times || options.read_only, NO_ACCESS_TIMES),
        ];
        let bits = bits.into_iter().filter(|(set, _)| *set);
        self.bits.store(bits.map(|(_, bit)| bit).sum(), Ordering::Relaxed);
    }

    /// Every request fails from now on.
    pub(super) fn cut_off(&self) {
        self.bits.fetch_or(CUT_OFF, Ordering::Relaxed);
    }

    fn has(&self, bits: u8) -> bool {
        self.bits.load(Ordering::Relaxed) & bits != 0
    }

    pub(super) fn keeps_access_times(&self) -> bool {
        !self.has(NO_ACCESS_TIMES)
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.has(CUT_OFF)
    }

    /// Whether these changes are to be durable before the caller hears of them.
    pub(super) fn makes_durable(&self, changes: Changes) -> bool {
        match changes {
            Changes::Nothing => false,
            Changes::Names { .. } => self.has(SYNC | SYNC_NAMES),
            Changes::Object => self.has(SYNC),
        }
    }
}
