//! Kept seeds: each found something once, and has a name.
//!
//! The file has one per line: `LEVEL SEED NAME`, `#` starts a comment.

use std::{fs, io, path::Path};

use clap::ValueEnum;

use super::outcome::Level;

/// A kept seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regression {
    /// Where it was found.
    pub level: Level,
    /// The seed.
    pub seed: u64,
    /// What it found.
    pub name: String,
}

/// Reads a file of kept seeds.
///
/// # Errors
/// The file cannot be read, or a line is none.
pub fn read(path: &Path) -> io::Result<Vec<Regression>> {
    let text = fs::read_to_string(path)?;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut words = line.split_whitespace();
        let parsed = (|| {
            let level = Level::from_str(words.next()?, true).ok()?;
            let seed = words.next()?.parse().ok()?;
            let name = words.next()?.to_string();
            Some(Regression { level, seed, name })
        })();
        found.push(parsed.ok_or_else(|| {
            let place = format!("{} line {}: write LEVEL SEED NAME", path.display(), number + 1);
            io::Error::new(io::ErrorKind::InvalidData, place)
        })?);
    }
    Ok(found)
}
