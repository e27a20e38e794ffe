//! Requests about tiers and the pool's properties.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_device::parse_duration;
use terrace_pool::{COPIES_MAX, Landing, TierInfo, TierSettings, landing_tier};

use crate::daemon::{
    open_pool::OpenPool,
    support::{Parameters, failed},
};

pub(crate) fn pool_properties(pool: &OpenPool) -> Value {
    let properties = pool.engine().properties().into_iter();
    let rows = properties.map(|(name, value, set)| {
        json!({ "name": pool.name(), "property": name, "value": value, "source": if set { "local" } else { "default" } })
    });
    Value::Array(rows.collect())
}

pub(crate) fn format(pool: &OpenPool) -> Value {
    json!({ "format_version": pool.engine().format_version(), "brings": pool.engine().format_news() })
}

pub(crate) fn upgrade(pool: &OpenPool) -> Result<Value, Failure> {
    let upgraded = pool.engine().upgrade();
    upgraded.map_err(|error| failed(&format!("upgrade pool '{}'", pool.name()), &error))?;
    Ok(format(pool))
}

pub(crate) fn pool_set(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let properties: Vec<(String, String)> = parameters.value("properties")?;
    // All of them or none.
    for (name, value) in &properties {
        let checked = terrace_engine::pool_properties::canonical(name, value);
        checked
            .map_err(|error| failed(&format!("set {name} of pool '{}'", pool.name()), &error).as_usage())?;
    }
    for (name, value) in &properties {
        let outcome = pool.engine().set_property(name, value);
        outcome.map_err(|error| failed(&format!("set {name} of pool '{}'", pool.name()), &error))?;
    }
    Ok(Value::Null)
}

pub(crate) fn tiers(pool: &OpenPool) -> Value {
    let status = pool.engine().status();
    let tiers = pool.engine().pool().tiers();
    let rows = tiers.iter().enumerate().map(|(number, tier)| {
        let usage = status.tiers.get(number).cloned().unwrap_or_default();
        let mut row = tier_json(
            pool.name(),
            number,
            tier,
            usage.size_bytes,
            usage.used_bytes,
            usage.live_bytes,
        );
        row["hold"] = json!(pool.engine().hold_of(&tier.settings.name));
        let lands = |sequential| landing_tier(tiers.iter().map(|tier| &tier.settings), sequential) == number;
        row["lands"] = json!(
            Landing {
                sequential: lands(true),
                random: lands(false),
            }
            .as_str()
        );
        row
    });
    Value::Array(rows.collect())
}

pub(crate) fn tier_set(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("tier")?;
    let what = format!("set tier '{}/{name}'", pool.name());
    let tiers = pool.engine().pool().tiers();
    let Some(tier) = tiers.iter().find(|tier| tier.settings.name == name) else {
        let names: Vec<_> = tiers.iter().map(|tier| tier.settings.name.as_str()).collect();
        return Err(Failure::new(
            what,
            "there is no such tier",
            format!("there are {}", names.join(", ")),
        ));
    };
    let properties: Vec<(String, String)> = parameters.value("properties")?;
    let (settings, hold) = changed_settings(pool, &what, tier, &properties)?;
    let (copies_before, copies) = (tier.settings.copies, settings.copies);
    // Settings of the tier that content leaves.
    let is = |tier: Option<&TierInfo>| tier.is_some_and(|tier| tier.settings.name == name);
    let asks = |property: &str, has: bool| has && properties.iter().any(|(asked, _)| asked == property);
    let idle = [
        (
            is(tiers.first()) && asks("promote_after", settings.promote_after > 0),
            "promote_after",
        ),
        (
            is(tiers.last()) && asks("demote_after", settings.demote_after_seconds > 0),
            "demote_after",
        ),
    ];
    let idle = idle
        .into_iter()
        .filter_map(|(is_idle, property)| is_idle.then_some(property));
    let idle: Vec<_> = idle.collect();
    // All of it or nothing.
    check_hold(pool, &what, &tiers, &settings, hold)?;
    // Who begins to hold does so before other marks are in force, or what is above them would sink meanwhile.
    let first = hold.filter(|level| level.is_some_and(|level| level > tier.settings.low_water));
    let set_hold = |level: Option<Option<f64>>| match level {
        Some(level) => pool
            .engine()
            .set_hold(&name, level)
            .map_err(|error| failed(&what, &error)),
        None => Ok(()),
    };
    set_hold(first)?;
    let taken = pool
        .engine()
        .set_tier(&name, settings)
        .map_err(|error| failed(&what, &error))?;
    set_hold(hold.filter(|_| first.is_none()))?;
    // The tier is set, whatever becomes of this: what it could not do is done later, and `status` says so until then.
    let mirrored = (copies > copies_before).then(|| {
        let mirrored = pool.engine().mirror_metadata();
        mirrored.unwrap_or_else(|error| {
            tracing::warn!(%error, "log and metadata did not get their second copy at once");
            false
        })
    });
    let taken = taken
        .iter()
        .map(|(tier, landing)| json!({ "tier": tier, "landing": landing.as_str() }));
    Ok(json!({
        "landing_taken_from": taken.collect::<Vec<_>>(),
        "copies_before": copies_before,
        "copies": copies,
        "metadata_mirrored": mirrored,
        "without_effect": idle,
    }))
}

/// The settings that a tier is to have, and the fill level that it is to hold, if that is asked for.
fn changed_settings(
    pool: &OpenPool,
    what: &str,
    tier: &TierInfo,
    properties: &[(String, String)],
) -> Result<(TierSettings, Option<Option<f64>>), Failure> {
    let name = &tier.settings.name;
    let mut settings = tier.settings.clone();
    let devices = pool.engine().pool().devices();
    let stays = |number: &&u16| {
        let mut others = devices.iter().filter(|device| !device.draining);
        others.any(|device| device.number == **number)
    };
    let staying = tier.devices.iter().filter(stays).count();
    let mut hold = None;
    for (property, value) in properties {
        if property == "hold" {
            let level = match value.as_str() {
                "off" | "none" => None,
                _ => Some(parse_level(value).ok_or_else(|| {
                    let why = format!("hold cannot be '{value}'; it takes a fill level such as 90%, or off");
                    Failure::new(what, why, "").as_usage()
                })?),
            };
            hold = Some(level);
            continue;
        }
        change_tier(&mut settings, property, value).map_err(|why| Failure::new(what, why, "").as_usage())?;
    }
    if settings.copies != tier.settings.copies && usize::from(settings.copies) > staying {
        return Err(Failure::new(
            what,
            format!(
                "copies cannot be {}: each lies on a device of its own, and the tier has {staying}",
                settings.copies
            ),
            format!(
                "add devices first: 'terrace pool add {} {name}=DEVICE'",
                pool.name()
            ),
        ));
    }
    if settings.low_water > settings.high_water {
        return Err(Failure::new(
            what,
            format!(
                "low_water would be {:.0}%, above high_water, {:.0}%",
                settings.low_water * 100.0,
                settings.high_water * 100.0
            ),
            "set both in one command, low_water not above high_water",
        ));
    }
    Ok((settings, hold))
}

/// Refuses a level to hold that has no meaning with these settings.
fn check_hold(
    pool: &OpenPool,
    what: &str,
    tiers: &[TierInfo],
    settings: &TierSettings,
    hold: Option<Option<f64>>,
) -> Result<(), Failure> {
    let name = &settings.name;
    if hold.flatten().is_some() && tiers.last().is_some_and(|last| last.settings.name == *name) {
        let faster = tiers.iter().rev().nth(1);
        let remedy = match faster {
            Some(faster) => format!(
                "set it on the tier that is to hold what is written, such as {}/{}",
                pool.name(),
                faster.settings.name
            ),
            None => format!(
                "add a slower tier first: 'terrace pool add {} NAME=DEVICE --after {name}'",
                pool.name()
            ),
        };
        let why =
            format!("tier '{name}' is the slowest, from which nothing moves down: there is nothing to hold");
        return Err(Failure::new(what, why, remedy));
    }
    let level = hold.unwrap_or_else(|| pool.engine().hold_of(name));
    if let Some(level) = level.filter(|level| *level <= settings.low_water) {
        let why = format!(
            "hold ({:.0}%) must be above low_water ({:.0}%), down to which the tier is emptied when it is reached",
            level * 100.0,
            settings.low_water * 100.0
        );
        return Err(Failure::new(what, why, "set both in one command, or hold=off"));
    }
    Ok(())
}

/// Why nothing more goes to the tier of a pin, if so.
pub(crate) fn pin_has_no_room(pool: &OpenPool, pin: &str) -> Option<String> {
    let tiers = pool.engine().pool().tiers();
    let Some(tier) = tiers.iter().find(|tier| tier.settings.name == pin) else {
        return Some("which the pool does not have any more".into());
    };
    // The last segments are not for what is moved there: log and metadata need them.
    (tier.free_segments * 10 <= tier.segments).then(|| "which is full".to_owned())
}

fn tier_json(pool: &str, number: usize, tier: &TierInfo, size: u64, used: u64, live: u64) -> Value {
    let settings = &tier.settings;
    json!({
        "pool": pool,
        "name": settings.name,
        "number": number,
        "size_bytes": size,
        "used_bytes": used,
        "live_bytes": live,
        "devices": tier.devices.len(),
        "copies": settings.copies,
        "high_water": settings.high_water,
        "low_water": settings.low_water,
        "landing": settings.landing.sequential,
        "landing_writes": settings.landing.as_str(),
        "promote_after": settings.promote_after,
        "demote_after": settings.demote_after_seconds,
        "rate_limit": settings.rate_limit,
        "window": settings.window,
    })
}

/// The least that a tier's rate may be limited to, bytes per second.
const RATE_LIMIT_MIN: u64 = 64 << 10;

/// Sets one property of a tier.
fn change_tier(settings: &mut TierSettings, property: &str, value: &str) -> Result<(), String> {
    let wrong = |allowed: &str| format!("{property} cannot be '{value}'; it takes {allowed}");
    match property {
        "high_water" => {
            settings.high_water =
                parse_level(value).ok_or_else(|| wrong("a fill level such as 85% or 0.85"))?
        }
        "low_water" => {
            settings.low_water =
                parse_level(value).ok_or_else(|| wrong("a fill level such as 75% or 0.75"))?
        }
        "landing" => {
            settings.landing = Landing::parse(value).ok_or_else(|| {
                wrong("sequential (long streams land here), random (all other writes do), all, or off")
            })?
        }
        "promote_after" => {
            settings.promote_after = match value {
                "never" | "off" | "none" => 0,
                // 0 would be never, and reads like at once.
                _ => value
                    .parse()
                    .ok()
                    .filter(|reads| *reads > 0)
                    .ok_or_else(|| wrong("a number of reads, 1 at least, or never"))?,
            }
        }
        "demote_after" => {
            settings.demote_after_seconds = match value {
                "never" | "off" | "none" => 0,
                _ => parse_duration(value)
                    .map(|duration| duration.as_secs())
                    .ok()
                    .filter(|seconds| *seconds > 0)
                    .ok_or_else(|| wrong("a duration such as 7d, 1s at least, or never"))?,
            }
        }
        "rate_limit" => {
            settings.rate_limit = match value {
                "none" | "off" => 0,
                // 0 would be no limit, and reads like nothing; next to nothing is a unit forgotten.
                _ => terrace_device::parse_size(value)
                    .ok()
                    .filter(|limit| *limit >= RATE_LIMIT_MIN)
                    .ok_or_else(|| {
                        wrong(
                            "bytes per second such as 50M, 64K at least, or none for no limit; 'terrace pool set migration=off POOL' \
                             stops moving",
                        )
                    })?,
            }
        }
        "copies" => {
            settings.copies = value
                .parse()
                .ok()
                .filter(|copies| (1..=COPIES_MAX).contains(copies))
                .ok_or_else(|| wrong(&format!("a number from 1 to {COPIES_MAX}")))?
        }
        "window" => {
            settings.window = parse_window(value).ok_or_else(|| {
                wrong("HH:MM-HH:MM, two local times from 00:00 to 23:59 such as 22:00-06:00, or always")
            })?
        }
        _ => {
            return Err(format!(
                "a tier has no property '{property}'; there are promote_after, demote_after, high_water, low_water, \
                 landing, rate_limit, window, hold and copies"
            ));
        }
    }
    Ok(())
}

fn parse_level(value: &str) -> Option<f64> {
    let level = match value.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None => value.parse::<f64>().ok()?,
    };
    (0.01..=1.0).contains(&level).then_some(level)
}

fn parse_window(value: &str) -> Option<String> {
    if matches!(value, "always" | "none" | "off") {
        return Some(String::new());
    }
    let good = |time: &str| {
        time.split_once(':').is_some_and(|(hour, minute)| {
            time.len() == 5
                && !time.starts_with('+')
                && hour.parse::<u8>().is_ok_and(|hour| hour < 24)
                && minute.parse::<u8>().is_ok_and(|minute| minute < 60)
        })
    };
    let (from, to) = value.split_once('-')?;
    // From a time to itself is no time, or always: which, nobody says.
    (good(from) && good(to) && from != to).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_properties_are_checked() {
        let mut settings = TierSettings::named("fast");
        for (property, value) in [
            ("high_water", "90%"),
            ("low_water", "0.5"),
            ("landing", "on"),
            ("landing", "all"),
            ("landing", "off"),
            ("landing", "random"),
            ("promote_after", "7"),
            ("demote_after", "1d"),
            ("rate_limit", "50M"),
            ("copies", "4"),
            ("window", "22:00-06:00"),
        ] {
            change_tier(&mut settings, property, value).unwrap();
        }
        assert_eq!(settings.high_water, 0.9);
        assert_eq!(settings.demote_after_seconds, 86_400);
        assert_eq!((settings.rate_limit, settings.copies), (50 << 20, 4));
        change_tier(&mut settings, "window", "always").unwrap();
        assert_eq!(settings.window, "");
        for (property, value) in [
            ("high_water", "0"),
            ("high_water", "101%"),
            ("high_water", "NaN"),
            ("landing", "maybe"),
            ("window", "25:00-06:00"),
            ("window", "22:00-22:00"),
            ("window", "+5:00-22:00"),
            ("promote_after", "0"),
            ("demote_after", "0s"),
            ("demote_after", "500ms"),
            ("rate_limit", "0"),
            ("rate_limit", "50"),
            ("copies", "0"),
            ("copies", "5"),
            ("copies", "-1"),
            ("nonsense", "1"),
        ] {
            assert!(
                change_tier(&mut settings, property, value).is_err(),
                "{property}={value}"
            );
        }
        let refused = change_tier(&mut settings, "window", "22:00-24:00").unwrap_err();
        assert!(
            refused.contains("local times from 00:00 to 23:59") && refused.contains("22:00-06:00"),
            "{refused}"
        );
    }
}
