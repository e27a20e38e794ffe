//! `Fault`: what a deliberate fault breaks, how, and what noticed it.
//!
//! ```toml
//! breaks = "A chunk that was written ahead is let go before the commit that refers to it."
//! noticed = "fs 12"            # a level of the simulator and a seed, or: test CRATE NAME
//!
//! [[change]]
//! crate = "dataset"
//! item = "Layer::written"      # a function, constant or static; of a method with its type
//! replace = '''self.ahead.insert(written.id, written);'''
//! with = '''drop(written);'''
//! ```
//!
//! Invariants: a fault changes something, and says what it breaks.

use std::path::Path;

use serde::Deserialize;

/// See the module.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub breaks: String,
    pub noticed: Option<String>,
    pub change: Vec<Change>,
}

/// Code that stands for other code.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    #[serde(rename = "crate")]
    pub crate_name: String,
    pub item: String,
    /// Compared without regard to blanks and line ends.
    pub replace: String,
    pub with: String,
}

/// Why a fault cannot be planted.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("it is not a fault: {0}")]
    Form(#[from] toml::de::Error),
    #[error("it changes nothing, or does not say what it breaks")]
    Empty,
    #[error("{path} is not Rust: {cause}")]
    Source { path: String, cause: syn::Error },
    #[error("crate '{0}' has no item '{1}'")]
    NoItem(String, String),
    #[error("'{item}' of crate '{crate_name}' has the code to be replaced {times} times, not once")]
    Code {
        crate_name: String,
        item: String,
        times: usize,
    },
    #[error("a change of '{0}' meets another one")]
    Meet(String),
}

impl Fault {
    /// Reads it.
    pub fn read(path: &Path) -> Result<Self, FaultError> {
        let fault: Self = toml::from_str(&std::fs::read_to_string(path)?)?;
        match fault.change.is_empty() || fault.breaks.trim().is_empty() {
            true => Err(FaultError::Empty),
            false => Ok(fault),
        }
    }
}
