//! `PoolSpec`: what a new pool shall be, and what the device arguments of the command line mean.
//!
//! Invariant: a spec that parses names at least one device per tier, every tier once, and no device twice.

use std::collections::{BTreeMap, BTreeSet};

use terrace_device::DeviceSpec;

use crate::{
    EngineError,
    pool_properties::{canonical, check_name, is_pool_property},
};

/// A tier of a new pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierSpec {
    /// Its name: letters, digits, `-`, `_`.
    pub name: String,
    /// Its devices.
    pub devices: Vec<DeviceSpec>,
    /// How many devices of the tier hold each chunk.
    pub copies: u8,
}

/// A new pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// Its tiers, fastest first.
    pub tiers: Vec<TierSpec>,
    /// Properties of the pool, or of its root that datasets inherit.
    pub properties: BTreeMap<String, String>,
    /// Unit of allocation, bytes; `None`: chosen from the smallest device.
    pub segment_bytes: Option<u32>,
}

impl PoolSpec {
    /// From the words of the command line: `NAME=DEV[,DEV…]` per tier, `TIER=N` per `--copies`, `PROP=VALUE`.
    ///
    /// # Errors
    /// `Invalid` with a sentence for the user.
    pub fn parse(
        name: &str,
        tiers: &[String],
        copies: &[String],
        properties: &[String],
    ) -> Result<Self, EngineError> {
        check_name("pool", name)?;
        let mut spec = Self {
            name: name.into(),
            ..Self::default()
        };
        let mut seen = BTreeSet::new();
        for text in tiers {
            let (tier, devices) = text.split_once('=').ok_or_else(|| {
                EngineError::Invalid(format!(
                    "--tier '{text}': write NAME=DEVICE[,DEVICE…], for example fast=/dev/nvme0n1"
                ))
            })?;
            check_name("tier", tier)?;
            if spec.tiers.iter().any(|other| other.name == tier) {
                return Err(EngineError::Invalid(format!(
                    "tier '{tier}' is given twice; name all its devices in one --tier, separated by commas"
                )));
            }
            let devices = parse_devices(devices)?;
            for device in &devices {
                if !seen.insert(device.path.clone()) {
                    return Err(EngineError::Invalid(format!(
                        "device '{}' is given twice",
                        device.path.display()
                    )));
                }
            }
            spec.tiers.push(TierSpec {
                name: tier.into(),
                devices,
                copies: 1,
            });
        }
        if spec.tiers.is_empty() {
            return Err(EngineError::Invalid(
                "a pool needs at least one tier; add --tier NAME=DEVICE, fastest first".into(),
            ));
        }
        let tier_names: Vec<String> = spec.tiers.iter().map(|tier| tier.name.clone()).collect();
        for text in copies {
            let bad = || EngineError::Invalid(format!("--copies '{text}': write TIER=N, for example slow=2"));
            let (tier, count) = text.split_once('=').ok_or_else(bad)?;
            let count: u8 = count.parse().map_err(|_| bad())?;
            let tier = spec
                .tiers
                .iter_mut()
                .find(|other| other.name == tier)
                .ok_or_else(|| {
                    EngineError::Invalid(format!(
                        "--copies '{text}': there is no tier '{tier}'; there are {}",
                        tier_names.join(", ")
                    ))
                })?;
            if count == 0 || usize::from(count) > tier.devices.len() {
                return Err(EngineError::Invalid(format!(
                    "--copies '{text}': tier '{}' has {} device(s); give 1 to that many copies",
                    tier.name,
                    tier.devices.len()
                )));
            }
            tier.copies = count;
        }
        for text in properties {
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| EngineError::Invalid(format!("-o '{text}': write PROPERTY=VALUE")))?;
            // Not only when it is set, on a pool that is made already: what was on the devices would be lost for a wrong word.
            if is_pool_property(name) {
                canonical(name, value)?;
            } else {
                terrace_dataset::check_for_new_pool(name, value, &tier_names)?;
            }
            spec.properties.insert(name.into(), value.into());
        }
        Ok(spec)
    }
}

fn parse_devices(text: &str) -> Result<Vec<DeviceSpec>, EngineError> {
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let parse = |word: &str| {
        word.parse::<DeviceSpec>()
            .map(|device| device.absolute(&here))
            .map_err(|error| EngineError::Invalid(error.to_string()))
    };
    text.split(',').map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_string()).collect()
    }

    #[test]
    fn a_spec_of_two_tiers() {
        let spec = PoolSpec::parse(
            "tank",
            &words(&["fast=/x/a:512M", "slow=/x/b:4G,/x/c:4G"]),
            &words(&["slow=2"]),
            &words(&["memory=1G"]),
        )
        .unwrap();
        assert_eq!(spec.tiers.len(), 2);
        assert_eq!(spec.tiers[0].devices[0].size_bytes, Some(512 << 20));
        assert_eq!(spec.tiers[1].copies, 2);
        assert_eq!(spec.properties["memory"], "1G");
    }

    #[test]
    fn mistakes_are_named() {
        let error = |tiers: &[&str], copies: &[&str]| {
            PoolSpec::parse("tank", &words(tiers), &words(copies), &[])
                .unwrap_err()
                .to_string()
        };
        assert!(error(&[], &[]).contains("at least one tier"));
        assert!(error(&["fast"], &[]).contains("NAME=DEVICE"));
        assert!(error(&["f=/x/a:1G", "f=/x/b:1G"], &[]).contains("twice"));
        assert!(error(&["f=/x/a:1G,/x/a:1G"], &[]).contains("twice"));
        assert!(error(&["f=/x/a:1Q"], &[]).contains("not a size"));
        assert!(error(&["f=s3://bucket/x"], &[]).contains("bucket"));
        assert!(error(&["f=/x/a:1G"], &["f=2"]).contains("1 device"));
        assert!(error(&["f=/x/a:1G"], &["g=1"]).contains("no tier 'g'; there are f"));
        assert!(PoolSpec::parse("../x", &words(&["f=/x/a:1G"]), &[], &[]).is_err());
        for property in [
            "nonsense=1",
            "compression=best",
            "memory=1",
            "pin=slow",
            "used=1",
            "size=1G",
            "block_size=512",
            "compression",
        ] {
            let tiers = words(&["f=/x/a:1G"]);
            PoolSpec::parse("tank", &tiers, &[], &words(&[property])).expect_err(property);
        }
    }
}
