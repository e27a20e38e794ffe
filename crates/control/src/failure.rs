//! `Failure`: an error as users see it: what failed, why, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One line: `what: why; remedy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was being done.
    pub what: String,
    /// Why it did not work.
    pub why: String,
    /// What to do about it; may be empty.
    #[serde(default)]
    pub remedy: String,
    /// Whether the request itself was wrong (exit status 2).
    #[serde(default)]
    pub usage: bool,
}

impl Failure {
    /// A failure with a way out.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            remedy: remedy.into(),
            usage: false,
        }
    }

    /// The same as a mistake in the request.
    pub fn as_usage(mut self) -> Self {
        self.usage = true;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line whatever the parts hold.
        let line = |text: &str| text.replace(['\n', '\r'], " ");
        write!(f, "{}: {}", line(&self.what), line(&self.why))?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", line(&self.remedy))?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_always_one_line() {
        let failure = Failure::new("open\nx", "a\r\nb", "try\nc");
        assert_eq!(failure.to_string(), "open x: a  b; try c");
        assert_eq!(Failure::new("open", "gone", "").to_string(), "open: gone");
    }
}
