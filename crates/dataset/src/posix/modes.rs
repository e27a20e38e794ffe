//! Modes: how `rename`, `fallocate` and `setxattr` treat what is there already.

/// How `rename` treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// `Exists` if there is one (RENAME_NOREPLACE).
    NoReplace,
    /// Both must exist and change places (RENAME_EXCHANGE).
    Exchange,
    /// Replaces it and leaves a whiteout, a character device 0:0, where the name was (RENAME_WHITEOUT).
    Whiteout,
    /// The same; `Exists` if there is a target (RENAME_WHITEOUT with RENAME_NOREPLACE).
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Whether a whiteout takes the place of the old name.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }

    /// Whether there may be no target.
    pub fn keeps_target(self) -> bool {
        matches!(self, Self::NoReplace | Self::WhiteoutNoReplace)
    }
}

/// What `allocate` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Makes room; `keep_size` leaves the size even if the range ends behind it.
    Reserve {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// FALLOC_FL_PUNCH_HOLE.
    Punch,
    /// FALLOC_FL_ZERO_RANGE.
    Zero {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
}

/// How `set_extended_attribute` treats an existing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeMode {
    /// Creates or replaces.
    Set,
    /// XATTR_CREATE: `Exists` if there is one.
    Create,
    /// XATTR_REPLACE: `NoAttribute` if there is none.
    Replace,
}
