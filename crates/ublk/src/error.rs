//! Why there is no ublk device.

use std::io;

/// See above. Nothing is left of a device that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// A step towards it failed.
    #[error("cannot {doing} {path}: {cause}")]
    Failed {
        /// What was being done, as a verb.
        doing: &'static str,
        /// To which device or file.
        path: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The kernel cannot keep a device whose server died.
    #[error("this kernel's ublk cannot take over the devices of a server that died; Linux 6.1 and newer can")]
    NoRecovery,
}

impl UblkError {
    pub(crate) fn new(doing: &'static str, path: impl Into<String>, cause: io::Error) -> Self {
        Self::Failed {
            doing,
            path: path.into(),
            cause,
        }
    }

    /// The error number, if the kernel gave one.
    pub(crate) fn number(&self) -> Option<i32> {
        match self {
            Self::Failed { cause, .. } => cause.raw_os_error(),
            Self::NoRecovery => None,
        }
    }
}
