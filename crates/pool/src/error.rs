//! What goes wrong with a pool, in words that name the thing, the cause and the way out.

use terrace_device::DeviceError;

use crate::{
    SegmentId,
    ondisk::{LabelError, root},
};

/// An operation on a pool that failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PoolError {
    /// A device failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// No valid label on a device.
    #[error(
        "{path} cannot be used as a device of a pool: {error}; put the right device there, or do without what was on it: --degraded"
    )]
    NoLabel {
        /// The device.
        path: String,
        /// What its label copies have.
        error: LabelError,
    },
    /// The label of a device has a format version that is not known here.
    #[error("{path}: {error}")]
    OtherVersion {
        /// The device.
        path: String,
        /// Which version, and what to do.
        error: LabelError,
    },
    /// Devices of different pools were given together.
    #[error("{path} belongs to pool '{other}', not to '{pool}'; leave it out")]
    ForeignDevice {
        /// The device.
        path: String,
        /// The pool on its label.
        other: String,
        /// The pool being opened.
        pool: String,
    },
    /// A device that was absent while the pool was changed.
    #[error(
        "{path} is out of date: its label has generation {generation}, the pool '{pool}' is at {newest}; it was absent \
         while the pool was in use, or is an old copy; if there is a newer one, put that in its place; if not, 'terrace start {pool} \
         --degraded' takes this one in and keeps what it has: what it lacks is read from copies on other devices, or gives errors"
    )]
    StaleDevice {
        /// The device.
        path: String,
        /// The pool.
        pool: String,
        /// Generation on its label.
        generation: u64,
        /// Generation of the others.
        newest: u64,
    },
    /// Devices of which some were used without the others, and these without them.
    #[error(
        "{} and {} were each used without the other, so that each has changes that the other lacks; give only those whose \
         content is to be kept to 'terrace pool import --degraded {}', then 'terrace pool replace {pool} {number} DEVICE \
         --force' for each that was left out: its own changes are lost then",
        these.join(", "), those.join(", "), these.join(" ")
    )]
    UsedApart {
        /// The pool.
        pool: String,
        /// Those with the newest label.
        these: Vec<String>,
        /// Those that were used without them.
        those: Vec<String>,
        /// Number of the last of these.
        number: u16,
    },
    /// The same device twice, or a copy of it.
    #[error("{path} and {other} are both device {number} of pool '{pool}'; one must be a copy: leave it out")]
    DuplicateDevice {
        /// The device.
        path: String,
        /// The one with the same number.
        other: String,
        /// The pool.
        pool: String,
        /// The number.
        number: u16,
    },
    /// Devices that the labels name were not given.
    #[error("pool '{pool}' is not complete: missing {}; give these devices too, or open it degraded", missing.join(", "))]
    MissingDevices {
        /// The pool.
        pool: String,
        /// What is missing: `device N (last seen as PATH)`.
        missing: Vec<String>,
    },
    /// The pool was exported or destroyed.
    #[error("pool '{pool}' is {state}; {advice}")]
    WrongState {
        /// The pool.
        pool: String,
        /// `exported` or `destroyed`.
        state: &'static str,
        /// The way out.
        advice: &'static str,
    },
    /// A device of another pool was to be used for a new one.
    #[error(
        "{path} already belongs to pool '{pool}'; use another device, or --force if that pool may be lost"
    )]
    AlreadyInPool {
        /// The device.
        path: String,
        /// The pool on its label.
        pool: String,
    },
    /// A device that holds something that is not ours.
    #[error("{path} holds {content}; use another device, or --force if its content may be lost")]
    HoldsSomething {
        /// The device.
        path: String,
        /// What it holds, in words.
        content: String,
    },
    /// Too small to be of use.
    #[error("{path} has {has} bytes; this pool needs devices of at least {wanted} bytes: give a larger one")]
    TooSmall {
        /// The device.
        path: String,
        /// Its size in bytes.
        has: u64,
        /// The smallest size in bytes.
        wanted: u64,
    },
    /// Smaller than its label says.
    #[error(
        "{path} has {has} bytes but its label says {wanted}: it was cut short; restore its size, or open the pool without \
         what was at its end (--degraded; where less than a sixteenth is left, take the device away first)"
    )]
    Shrunk {
        /// The device.
        path: String,
        /// Its size in bytes.
        has: u64,
        /// The size on the label in bytes.
        wanted: u64,
    },
    /// No free segment where one was asked for.
    #[error("no free segment left in {0}")]
    NoSpace(String),
    /// No device with this number, or it is missing.
    #[error("device {number} of the pool is {state}")]
    NoDevice {
        /// The number.
        number: u16,
        /// What is the matter.
        state: &'static str,
    },
    /// A segment that does not exist, or is used against its state.
    #[error("segment {segment}: {reason}")]
    Segment {
        /// The segment.
        segment: SegmentId,
        /// What is the matter.
        reason: &'static str,
    },
    /// The device holds segments that are in use.
    #[error("{path} still holds {segments} segments in use; evacuate it first")]
    DeviceInUse {
        /// The device.
        path: String,
        /// Segments in use.
        segments: u32,
    },
    /// No valid root on any device.
    #[error("pool '{0}' has no readable root record; every copy is damaged")]
    NoRoot(String),
    /// A newer program wrote the newest root.
    #[error(
        "pool '{pool}' was made by a newer terrace: its root record has format version {version}, this one knows up to {}; use the \
         newer terrace",
        root::VERSION
    )]
    NewerRoot {
        /// The pool.
        pool: String,
        /// That of the root record.
        version: u32,
    },
    /// The pool is open for reading only.
    #[error("the pool is open for reading only")]
    ReadOnly,
    /// The call itself makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl PoolError {
    /// Whether room on the devices is what was lacking.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace(_))
    }
}
