//! Properties: their names, what values they take, how they are inherited, and the [`Settings`] they add up to.
//!
//! Invariants: what is stored is canonical text that parses; an unknown property or value is refused with a message
//! that lists what is allowed; quota and reservation belong to one dataset and are not inherited.

use std::{collections::BTreeMap, time::Duration};

use terrace_device::{exact_size, format_duration, parse_seconds, parse_size};
use terrace_store::Compression;

use super::{
    retention::Retention,
    settings::{Durability, Settings},
};
use crate::records::TEXT_BYTES_MAX;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Set on the dataset itself.
    Local,
    /// Nothing was set.
    Default,
    /// Set on this dataset above.
    Inherited(String),
    /// A figure or fact that cannot be set.
    ReadOnly,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Default => f.write_str("default"),
            Self::Inherited(from) => write!(f, "inherited from {from}"),
            Self::ReadOnly => f.write_str("-"),
        }
    }
}

/// One property of one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyValue {
    /// Its name.
    pub name: String,
    /// Its value, canonical.
    pub value: String,
    /// Where that comes from.
    pub source: Source,
}

/// The `chunk_size` that a volume is made with, unless it is given or inherited (docs/decisions/0014, 0051).
pub(crate) const VOLUME_CHUNK_SIZE: &str = AUTO;
/// A `chunk_size` that goes by the content: [`AUTO_BYTES`], or [`AUTO_RAW_BYTES`] of what does not compress.
const AUTO: &str = "auto";
const AUTO_BYTES: u32 = 16 << 10;
const AUTO_RAW_BYTES: u32 = 64 << 10;

struct Definition {
    name: &'static str,
    default: &'static str,
    inherited: bool,
    allowed: &'static str,
}

const fn define(
    name: &'static str,
    default: &'static str,
    inherited: bool,
    allowed: &'static str,
) -> Definition {
    Definition {
        name,
        default,
        inherited,
        allowed,
    }
}

const DEFINITIONS: [Definition; 16] = [
    define("compression", "lz4", true, "off, lz4, zstd or zstd-1 to zstd-19"),
    define("dedup", "on", true, "on or off"),
    define(
        "chunk_size",
        "128K",
        true,
        "4K, 8K, 16K, 32K, 64K or 128K, or auto: 16K of what compresses, 64K of the rest (volumes are made with auto)",
    ),
    define(
        "block_size",
        "4K",
        false,
        "4K or 512 (of volumes that nobody uses)",
    ),
    define("durability", "barrier", true, "ram, timed, barrier or sync"),
    define(
        "commit_interval",
        "auto",
        true,
        "a duration from 1s to 5m, or auto (that of the pool)",
    ),
    define("quota", "none", false, "a size, or none"),
    define("reservation", "none", false, "a size, or none"),
    define(
        "retention",
        "none",
        true,
        "rules such as 'all:1h hourly:2d daily:60d', or none",
    ),
    define("snapshots", "auto", true, "auto or off"),
    define("pin", "none", true, "the name of a tier, or none"),
    define("readonly", "off", true, "on or off"),
    define("atime", "off", true, "on or off"),
    define(
        "xattr",
        "on",
        true,
        "on or off (from the next mount on; off: no ACLs either)",
    ),
    define("encryption", "off", true, "off"),
    define("mountpoint", "none", false, "an absolute path, or none"),
];

/// The names of all properties that can be set, but for `user:KEY`.
pub fn property_names() -> impl Iterator<Item = &'static str> {
    DEFINITIONS.iter().map(|definition| definition.name)
}

/// What values a property takes, in words; `None` if there is no such property.
pub fn property_help(name: &str) -> Option<&'static str> {
    DEFINITIONS
        .iter()
        .find(|definition| definition.name == name)
        .map(|definition| definition.allowed)
}

/// The default of a property; `None` if there is no such property or it has none.
pub fn property_default(name: &str) -> Option<&'static str> {
    DEFINITIONS
        .iter()
        .find(|definition| definition.name == name)
        .map(|definition| definition.default)
}

/// Whether a dataset without a value of its own takes that of the one above.
pub fn is_inherited(name: &str) -> bool {
    is_user(name)
        || DEFINITIONS
            .iter()
            .any(|definition| definition.name == name && definition.inherited)
}

fn is_user(name: &str) -> bool {
    name.strip_prefix("user:").is_some_and(|key| {
        !key.is_empty() && key.len() <= 255 && key.bytes().all(|b| b.is_ascii_graphic() && b != b'=')
    })
}

/// Fails if there is no such property.
pub fn check_name(name: &str) -> Result<(), String> {
    if is_user(name) || property_help(name).is_some() {
        return Ok(());
    }
    if name.starts_with("user:") {
        return Err(format!(
            "'{name}' is not a valid user property: write user:KEY with 1 to 255 printable characters"
        ));
    }
    let names: Vec<_> = property_names().collect();
    Err(format!(
        "there is no property '{name}'; there are {} and user:KEY",
        names.join(", ")
    ))
}

/// Checks a value and returns its canonical form. Which tiers there are to pin to is for each pool to say ([`check_pin`]).
pub fn canonical(name: &str, value: &str) -> Result<String, String> {
    check_name(name)?;
    let value = value.trim();
    if value.len() > TEXT_BYTES_MAX {
        return Err(format!(
            "the value of '{name}' is longer than {TEXT_BYTES_MAX} bytes"
        ));
    }
    if is_user(name) {
        return Ok(value.to_owned());
    }
    let wrong = || {
        let allowed = property_help(name).unwrap_or_default();
        format!("'{value}' is not a value of '{name}'; it takes {allowed}")
    };
    let canonical = match name {
        "compression" => match value {
            "on" => "lz4".to_owned(),
            "off" | "lz4" | "zstd" => value.to_owned(),
            _ => {
                let level = value
                    .strip_prefix("zstd-")
                    .and_then(|level| level.parse::<u8>().ok());
                format!(
                    "zstd-{}",
                    level.filter(|level| (1..=19).contains(level)).ok_or_else(wrong)?
                )
            }
        },
        "dedup" | "readonly" | "atime" | "xattr" => match value {
            "on" | "off" => value.to_owned(),
            _ => return Err(wrong()),
        },
        "chunk_size" if value == AUTO => value.to_owned(),
        "chunk_size" => {
            let bytes = size_of(value)?;
            if !bytes.is_power_of_two() || !(4096..=128 * 1024).contains(&bytes) {
                return Err(wrong());
            }
            exact_size(bytes)
        }
        "block_size" => match size_of(value)? {
            bytes @ (512 | 4096) => exact_size(bytes),
            _ => return Err(wrong()),
        },
        "durability" => match value {
            "ram" | "timed" | "barrier" | "sync" => value.to_owned(),
            _ => return Err(wrong()),
        },
        "commit_interval" if value == "auto" => value.to_owned(),
        "commit_interval" => {
            let seconds = parse_seconds(value)?;
            if !(1..=300).contains(&seconds) {
                return Err(wrong());
            }
            format_duration(Duration::from_secs(seconds))
        }
        "quota" | "reservation" => match value {
            "none" | "0" => "none".to_owned(),
            _ => exact_size(size_of(value)?),
        },
        "retention" => Retention::parse(value)?.to_string(),
        "snapshots" => match value {
            "auto" | "off" => value.to_owned(),
            _ => return Err(wrong()),
        },
        "pin" if value.is_empty() => return Err(wrong()),
        "pin" => value.to_owned(),
        "encryption" => match value {
            "off" => value.to_owned(),
            _ => {
                return Err(
                    "encryption is not built yet; only 'encryption=off' is accepted, so that nobody \
                            believes data to be encrypted that is not"
                        .to_owned(),
                );
            }
        },
        "mountpoint" => match value {
            "none" => value.to_owned(),
            _ if value.starts_with('/') => value.to_owned(),
            _ => return Err(wrong()),
        },
        _ => return Err(wrong()),
    };
    Ok(canonical)
}

/// Fails if `pin` names a tier that is none of `tiers`, the pool's.
pub fn check_pin(pin: &str, tiers: &[String]) -> Result<(), String> {
    if pin == "none" || tiers.iter().any(|tier| tier == pin) {
        return Ok(());
    }
    let tiers = if tiers.is_empty() {
        "none".to_owned()
    } else {
        tiers.join(", ")
    };
    Err(format!(
        "the pool has no tier '{pin}'; its tiers are {tiers}; 'pin=none' unpins"
    ))
}

/// Finds the value of a property: `chain` holds names and settings of the dataset itself and then each one above.
pub fn resolve(name: &str, chain: &[(String, BTreeMap<String, String>)]) -> Option<PropertyValue> {
    for (at, (owner, properties)) in chain.iter().enumerate() {
        if at > 0 && !is_inherited(name) {
            break;
        }
        if let Some(value) = properties.get(name) {
            let source = if at == 0 {
                Source::Local
            } else {
                Source::Inherited(owner.clone())
            };
            return Some(PropertyValue {
                name: name.to_owned(),
                value: value.clone(),
                source,
            });
        }
    }
    let value = property_default(name)?.to_owned();
    Some(PropertyValue {
        name: name.to_owned(),
        value,
        source: Source::Default,
    })
}

fn size_of(value: &str) -> Result<u64, String> {
    parse_size(value).map_err(|error| error.to_string())
}

/// What the properties of a chain (see [`resolve`]) add up to. A value that does not parse (of a newer version, or
/// damaged) counts as its default.
pub fn settings(chain: &[(String, BTreeMap<String, String>)], tiers: &[String]) -> Settings {
    let text = |name: &str| {
        resolve(name, chain)
            .map(|property| property.value)
            .unwrap_or_default()
    };
    let defaults = Settings::default();
    let size = |name: &str| {
        Some(text(name))
            .filter(|value| value != "none")
            .and_then(|value| parse_size(&value).ok())
    };
    let compression = match text("compression").as_str() {
        "off" => Compression::Off,
        "zstd" => Compression::Zstd(3),
        other => match other.strip_prefix("zstd-").and_then(|level| level.parse().ok()) {
            Some(level @ 1..=19) => Compression::Zstd(level),
            _ => Compression::Lz4,
        },
    };
    let chunk_bytes = size("chunk_size")
        .filter(|bytes| bytes.is_power_of_two() && (4096..=131_072).contains(bytes))
        .map_or(defaults.chunk_bytes, |bytes| bytes as u32);
    let (chunk_bytes, raw_chunk_bytes) = match text("chunk_size") == AUTO {
        true => (AUTO_BYTES, AUTO_RAW_BYTES),
        false => (chunk_bytes, chunk_bytes),
    };
    let pin = Some(text("pin")).filter(|tier| tier != "none");
    let retention = if text("snapshots") == "off" {
        "none".to_owned()
    } else {
        text("retention")
    };
    Settings {
        compression,
        dedup: text("dedup") != "off",
        chunk_bytes,
        raw_chunk_bytes,
        block_bytes: size("block_size")
            .filter(|bytes| *bytes == 512)
            .map_or(defaults.block_bytes, |bytes| bytes as u32),
        durability: match text("durability").as_str() {
            "ram" => Durability::Ram,
            "timed" => Durability::Timed,
            "sync" => Durability::Sync,
            _ => Durability::Barrier,
        },
        commit_interval_seconds: parse_seconds(&text("commit_interval"))
            .ok()
            .map(|seconds| seconds.clamp(1, 300)),
        quota_bytes: size("quota"),
        reservation_bytes: size("reservation").unwrap_or(0),
        retention: Retention::parse(&retention).unwrap_or_default(),
        pin_tier: pin
            .as_ref()
            .and_then(|pin| tiers.iter().position(|tier| tier == pin))
            .map(|at| at as u8),
        pin,
        readonly: text("readonly") == "on",
        access_time: text("atime") == "on",
        extended_attributes: text("xattr") != "off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(own: &[(&str, &str)], above: &[(&str, &str)]) -> Vec<(String, BTreeMap<String, String>)> {
        let map = |list: &[(&str, &str)]| {
            list.iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        vec![("pool/a".into(), map(own)), ("pool".into(), map(above))]
    }

    #[test]
    fn the_nearest_value_wins_and_quota_is_not_inherited() {
        let chain = chain(
            &[("compression", "zstd-9")],
            &[("compression", "off"), ("dedup", "off"), ("quota", "1G")],
        );
        let settings = settings(&chain, &[]);
        assert_eq!(settings.compression, Compression::Zstd(9));
        assert!(!settings.dedup);
        assert_eq!(settings.quota_bytes, None);
        assert_eq!(
            resolve("dedup", &chain).unwrap().source,
            Source::Inherited("pool".into())
        );
        assert_eq!(resolve("compression", &chain).unwrap().source, Source::Local);
        assert_eq!(resolve("atime", &chain).unwrap().source, Source::Default);
        assert_eq!(resolve("user:none", &chain), None);
    }

    #[test]
    fn every_default_is_canonical() {
        for name in property_names() {
            let default = property_default(name).unwrap();
            assert_eq!(canonical(name, default).unwrap(), default, "{name}");
        }
        assert_eq!(settings(&[], &[]), Settings::default());
    }

    #[test]
    fn wrong_values_are_refused_with_what_is_allowed() {
        for (name, value) in [
            ("compression", "gzip"),
            ("compression", "zstd-20"),
            ("chunk_size", "5000"),
            ("chunk_size", "1M"),
            ("block_size", "1K"),
            ("durability", "maybe"),
            ("commit_interval", "0s"),
            ("quota", "much"),
            ("retention", "sometimes:1d"),
            ("pin", ""),
            ("encryption", "on"),
            ("readonly", "yes"),
            ("nonsense", "1"),
            ("user:", "1"),
        ] {
            let message = canonical(name, value).unwrap_err();
            assert!(message.len() > 20, "{name}={value}: {message}");
        }
        assert_eq!(canonical("quota", "1024M").unwrap(), "1G");
        assert_eq!(canonical("pin", "hdd").unwrap(), "hdd");
        let tiers = ["ssd".to_owned(), "hdd".to_owned()];
        assert!(check_pin("hdd", &tiers).is_ok() && check_pin("none", &[]).is_ok());
        let message = check_pin("tape", &tiers).unwrap_err();
        assert!(message.contains("'tape'; its tiers are ssd, hdd"), "{message}");
        assert_eq!(canonical("block_size", "4096").unwrap(), "4K");
        let small = canonical("block_size", "512").unwrap();
        let own = chain(&[("block_size", &small)], &[]);
        assert_eq!(super::settings(&own, &[]).block_bytes, 512);
        assert_eq!(
            canonical("retention", "all:60m,24h:2d").unwrap(),
            "all:1h daily:2d"
        );
        assert_eq!(canonical("user:owner", "me").unwrap(), "me");
    }
}
