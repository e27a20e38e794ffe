//! `Violation`: something that must not be, which ends a run; and the macros that find one.

use std::fmt;

/// Something that must not be.
#[derive(Debug, Clone)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A result that fails by a [`Violation`].
pub type Check<T = ()> = Result<T, Violation>;

/// Ends the run with a violation.
#[macro_export]
macro_rules! violation {
    ($($words:tt)*) => { return Err($crate::violation::Violation(format!($($words)*)).into()) };
}

/// Ends the run with a violation unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($words:tt)*) => { if !$condition { $crate::violation!($($words)*) } };
}
