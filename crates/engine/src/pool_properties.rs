//! Properties of a pool: their names, defaults and what values they take. Kept in the labels (floor 1). And what names pools and tiers
//! may have.
//!
//! Invariant: a value that is stored parses; an unknown name or bad value is refused with what is allowed.

use std::time::Duration;

use terrace_device::{format_duration, format_size, parse_duration, parse_size};
use terrace_pool::Pool;

use crate::EngineError;

/// Least memory budget, bytes.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Most memory budget that is chosen by itself, bytes.
const MEMORY_BYTES_DEFAULT_MAX: u64 = 4 << 30;

/// A property of a pool.
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// Its value if none was set.
    pub default: &'static str,
    /// What values it takes, in words.
    pub allowed: &'static str,
}

/// All properties that can be set.
pub const DEFINITIONS: [Definition; 6] = [
    Definition {
        name: "memory",
        default: "auto",
        allowed: "a size of at least 32M, or auto (a quarter of RAM, at most 4G)",
    },
    Definition {
        name: "commit_interval",
        default: "5s",
        allowed: "a duration from 100ms to 5m",
    },
    Definition {
        name: "device_timeout",
        default: "30s",
        allowed: "a duration from 1s to 10m (a device that has answered nothing for so long is asked for nothing more until it does)",
    },
    Definition {
        name: "migration",
        default: "on",
        allowed: "on or off",
    },
    Definition {
        name: "polling",
        default: "on",
        allowed: "on (short waits are spent looking for what comes, by half of the processors at most) or off",
    },
    Definition {
        name: "comment",
        default: "",
        allowed: "up to 1000 characters",
    },
];

/// Whether the pool has a property of this name.
pub fn is_pool_property(name: &str) -> bool {
    DEFINITIONS.iter().any(|definition| definition.name == name)
}

fn definition(name: &str) -> Result<&'static Definition, EngineError> {
    DEFINITIONS.iter().find(|definition| definition.name == name).ok_or_else(|| {
        let names: Vec<_> = DEFINITIONS.iter().map(|definition| definition.name).collect();
        EngineError::Invalid(format!(
            "there is no pool property '{name}'; there are {} (those of datasets are set by 'terrace set')",
            names.join(", ")
        ))
    })
}

/// The canonical form of a value.
pub fn canonical(name: &str, value: &str) -> Result<String, EngineError> {
    let definition = definition(name)?;
    let wrong = || {
        EngineError::Invalid(format!(
            "{name} cannot be '{value}'; it takes {}",
            definition.allowed
        ))
    };
    match name {
        "memory" if value == "auto" => Ok(value.into()),
        "memory" => {
            let bytes = parse_size(value).map_err(|_| wrong())?;
            if bytes < MEMORY_BYTES_MIN {
                Err(wrong())
            } else {
                Ok(format_exact(bytes))
            }
        }
        "commit_interval" => {
            let interval = parse_duration(value).map_err(|_| wrong())?;
            if (Duration::from_millis(100)..=Duration::from_secs(300)).contains(&interval) {
                Ok(format_duration(interval))
            } else {
                Err(wrong())
            }
        }
        "device_timeout" => {
            let timeout = parse_duration(value).map_err(|_| wrong())?;
            if (Duration::from_secs(1)..=Duration::from_secs(600)).contains(&timeout) {
                Ok(format_duration(timeout))
            } else {
                Err(wrong())
            }
        }
        "migration" | "polling" => match value {
            "on" | "off" => Ok(value.into()),
            _ => Err(wrong()),
        },
        _ if value.len() <= 1000 && !value.contains(['\n', '\0']) => Ok(value.into()),
        _ => Err(wrong()),
    }
}

/// A size that parses back to the same number.
fn format_exact(bytes: u64) -> String {
    let short = format_size(bytes);
    if parse_size(&short) == Ok(bytes) {
        short
    } else {
        bytes.to_string()
    }
}

/// The default of a property.
pub fn default_of(name: &str) -> Result<&'static str, EngineError> {
    definition(name).map(|definition| definition.default)
}

/// Whether the mover may move data.
pub(crate) fn allows_migration(pool: &Pool) -> bool {
    pool.property("migration").as_deref() != Some("off")
}

/// The memory budget in bytes for a stored value.
pub fn memory_bytes(value: &str) -> u64 {
    parse_size(value)
        .unwrap_or_else(|_| (total_memory_bytes() / 4).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT_MAX))
}

/// RAM of this machine, bytes; a bound set on this process's group counts.
fn total_memory_bytes() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let total = total.map_or(1 << 30, |kibibytes| kibibytes * 1024);
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    limit.map_or(total, |limit: u64| limit.min(total))
}

/// Names of pools and tiers: 1–64 letters, digits, `-`, `_`, `.`, starting with a letter or digit.
pub(crate) fn check_name(kind: &str, name: &str) -> Result<(), EngineError> {
    let good = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good {
        Ok(())
    } else {
        Err(EngineError::Invalid(format!(
            "'{name}' is no name for a {kind}; use 1 to 64 letters, digits, '-', '_' or '.', starting with a letter or digit"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_made_canonical() {
        assert_eq!(canonical("memory", "1024M").unwrap(), "1G");
        assert_eq!(canonical("memory", "auto").unwrap(), "auto");
        assert_eq!(canonical("commit_interval", "60s").unwrap(), "1m");
        assert_eq!(canonical("device_timeout", "90s").unwrap(), "90s");
        assert_eq!(canonical("migration", "off").unwrap(), "off");
        for (name, value) in [
            ("memory", "1M"),
            ("memory", "lots"),
            ("commit_interval", "0s"),
            ("commit_interval", "1h"),
            ("device_timeout", "0s"),
            ("device_timeout", "1h"),
            ("migration", "maybe"),
            ("polling", "1"),
            ("comment", "two\nlines"),
        ] {
            let error = canonical(name, value).unwrap_err().to_string();
            assert!(error.contains("takes"), "{error}");
        }
        assert!(
            canonical("nonsense", "1")
                .unwrap_err()
                .to_string()
                .contains("commit_interval")
        );
    }

    #[test]
    fn defaults_are_allowed_values() {
        for definition in DEFINITIONS {
            assert_eq!(
                canonical(definition.name, definition.default).unwrap(),
                definition.default
            );
        }
        assert!((MEMORY_BYTES_MIN..=MEMORY_BYTES_DEFAULT_MAX).contains(&memory_bytes("auto")));
    }
}
