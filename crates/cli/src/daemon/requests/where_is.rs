//! `terrace where`: what lies where of a file, a directory, a volume or a dataset, why, and what the policies do with it next.
//!
//! Invariants: bytes are content as users read it, so that those of all tiers and of what is lost come to the size without the
//! holes, and to the sum of what `--regions` shows; a next move is named only if the settings of now allow it, and what keeps
//! content from one is said.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{FileKind, REGION_BYTES, TierBytes, decode_region, keys};
use terrace_device::format_size;
use terrace_pool::{TierInfo, landing_tier};
use terrace_store::StoreError;

use super::{heat, tiers};
use crate::daemon::{
    open_pool::OpenPool,
    support::{Content, Loss, Parameters, StoredOnce, Subject, failed},
};

/// Regions looked at at once.
const PAGE: usize = 256;

/// What lies where.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) files: u64,
    size_bytes: u64,
    reads: f64,
    writes: f64,
    bytes: TierBytes,
    /// Content by tier that is read often enough to rise from there, and that was not used for so long that it is to sink.
    hot: BTreeMap<u8, u64>,
    old: BTreeMap<u8, u64>,
    /// Content by tier of what lies beneath with another pin.
    pinned_elsewhere: BTreeMap<u8, u64>,
    /// Of what has no other pin, if that is asked for: what moving all of it would write.
    pub(crate) stored: Option<StoredOnce>,
    loss: Loss,
}

/// The pin that something has, and the directory that it is the pin of, if it is not its own.
#[derive(Clone)]
pub(crate) struct Pin {
    pub(crate) tier: String,
    pub(crate) directory: Option<String>,
}

pub(crate) fn where_is(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("path")?;
    let subject = Subject::find(pool.engine(), &name)?;
    let pin = pin_of(pool, &subject);
    let found = found(pool, &subject, pin.as_ref().map(|pin| pin.tier.as_str()), None)?;
    let failure = pool
        .engine()
        .mover()
        .move_failed(subject.number, subject.for_mover());
    let (mut reason, next_move) = reason(pool, &subject, &found, pin.as_ref());
    if let Some(failure) = failure {
        reason = format!("{reason}: {failure}");
    }
    let directory = pin.as_ref().and_then(|pin| pin.directory.clone());
    if let Some(directory) = &directory {
        reason = format!("{reason}; the pin is that of directory '{directory}'");
    }
    if let Some(lost) = found.loss.describe(pool, found.bytes.missing_bytes) {
        reason = format!("{reason}; {lost}");
    }
    let mut answer = json!({
        "path": name,
        "bytes_by_tier": by_name(pool, &found.bytes.by_tier),
        "stored_bytes_by_tier": by_name(pool, &found.bytes.stored_by_tier),
        "lost_bytes": found.bytes.missing_bytes,
        "heat": { "reads": found.reads, "writes": found.writes },
        "pin": pin.map(|pin| pin.tier),
        "pinned_by": directory,
        "reason": reason,
        "next_move": next_move,
        "files": found.files,
        "size_bytes": found.size_bytes,
    });
    found.loss.tell(pool.engine(), &mut answer);
    Ok(answer)
}

/// Bytes by number of tier as bytes by its name.
pub(crate) fn by_name(pool: &OpenPool, bytes: &[u64]) -> BTreeMap<String, u64> {
    let tiers = pool.engine().pool().tiers().into_iter().enumerate();
    let named = tiers.map(|(at, tier)| (tier.settings.name, bytes.get(at).copied().unwrap_or(0)));
    named.collect()
}

/// The pin that holds for a subject: its own, that of the nearest directory above, or its dataset's.
pub(crate) fn pin_of(pool: &OpenPool, subject: &Subject) -> Option<Pin> {
    let mover = pool.engine().mover();
    let (dataset, object) = (subject.number, subject.for_mover());
    if let Some(tier) = mover.own_pin(dataset, object) {
        return Some(Pin {
            tier,
            directory: None,
        });
    }
    let mut above = subject.directories_above().into_iter();
    let above = above.find_map(|(path, object)| {
        let tier = mover.own_pin(dataset, object)?;
        let directory = Some(path);
        Some(Pin { tier, directory })
    });
    // Of several names it may be another one that counts.
    let directory = match above {
        Some(above) if !subject.has_other_names => Some(above),
        above => match mover.pin_of_directory(dataset, object) {
            Some((tier, _)) if above.as_ref().is_some_and(|above| above.tier == tier) => above,
            Some((tier, directory)) => {
                let directory = subject.path_of_directory(directory);
                Some(Pin { tier, directory })
            }
            None => above,
        },
    };
    directory.or_else(|| {
        let tier = mover.pin_of_object(dataset, object)?;
        Some(Pin {
            tier,
            directory: None,
        })
    })
}

/// What lies where of a subject; `tier`: where its pin, or a move, takes it, but for what has another pin; `stored`: to count
/// what is stored as well.
pub(crate) fn found(
    pool: &OpenPool,
    subject: &Subject,
    tier: Option<&str>,
    stored: Option<StoredOnce>,
) -> Result<Found, Failure> {
    // What is still in memory has no place yet.
    pool.sync()?;
    let tiers = pool.engine().pool().tiers();
    let mut found = Found {
        loss: Loss::of(pool.engine()),
        stored,
        ..Found::default()
    };
    let mover = pool.engine().mover();
    let is_single = matches!(subject.kind, FileKind::File | FileKind::Volume);
    let pins = &pool.engine().environment().pins;
    let number = |name: &str| tiers.iter().position(|tier| tier.settings.name == name);
    let tier = tier.and_then(number).map(|at| at as u8);
    // Of a directory, the pin that a new one would take the place of.
    let replaced = match subject.is_dataset {
        true => None,
        false => pin_of(pool, subject)
            .filter(|pin| pin.directory.is_some() || mover.own_pin(subject.number, subject.object).is_some()),
    };
    let replaced = replaced.and_then(|pin| number(&pin.tier)).map(|at| at as u8);
    subject.contents(|content| {
        let own = || {
            let above = content.directories.iter().rev();
            let mut from_here = std::iter::once(&content.object).chain(above);
            let own = from_here.find_map(|object| pins.tier_of(subject.number, *object));
            // By a name that lies elsewhere.
            own.or_else(|| {
                let known = content
                    .has_other_names
                    .then(|| mover.pin_of_directory(subject.number, content.object));
                let other = known.flatten().and_then(|(name, _)| number(&name))? as u8;
                Some(other).filter(|other| replaced != Some(*other))
            })
        };
        let elsewhere = !is_single && tier.is_some_and(|tier| own().is_some_and(|own| own != tier));
        add_content(pool, subject.number, &content, &tiers, elsewhere, &mut found)
            .map_err(|error| failed(&format!("find '{}'", subject.name), &error))?;
        Ok(true)
    })?;
    Ok(found)
}

fn add_content(
    pool: &OpenPool,
    dataset: u32,
    content: &Content,
    tiers: &[TierInfo],
    elsewhere: bool,
    found: &mut Found,
) -> Result<(), StoreError> {
    let store = pool.engine().store();
    found.files += 1;
    found.size_bytes += content.size_bytes;
    let minutes = heat::minutes(pool);
    let body = terrace_dataset::body_of_object(store, dataset, content.object)?.unwrap_or(content.object);
    // Those regions that hold anything: a sparse volume may be of any size.
    let (mut from, end) = (keys::region(dataset, body, 0), keys::region_end(dataset, body));
    loop {
        let page = store.scan(&from, &end, PAGE)?;
        for (key, value) in &page {
            let region = keys::parse_region(key).map_or(0, |(_, _, region)| region);
            let heat = &pool.engine().environment().heat;
            let heat = heat.of(dataset, body, u32::try_from(region).unwrap_or(u32::MAX), minutes);
            found.reads += f64::from(heat.reads);
            found.writes += f64::from(heat.writes);
            let record = decode_region(value)?.record;
            let mut bytes = TierBytes::default();
            let most = content.size_bytes.saturating_sub(region * REGION_BYTES);
            let engine = pool.engine();
            let loss = &mut found.loss;
            let place = (dataset, body, region);
            bytes.add_region_but(&**store, place, record.clone(), most, &mut |id, bytes| {
                loss.count(engine, id, bytes)
            })?;
            let unused_seconds = u64::from(minutes.saturating_sub(heat.touched_minutes)) * 60;
            for (tier, bytes) in (0u8..).zip(&bytes.by_tier).filter(|(_, bytes)| **bytes > 0) {
                let Some(policy) = tiers.get(usize::from(tier)).map(|tier| &tier.settings) else {
                    continue;
                };
                if policy.promote_after > 0 && heat.reads >= policy.promote_after as f32 {
                    *found.hot.entry(tier).or_default() += bytes;
                }
                let after = policy.demote_after_seconds;
                if after > 0 && unused_seconds >= after {
                    *found.old.entry(tier).or_default() += bytes;
                }
            }
            found.bytes.add(&bytes);
            if elsewhere {
                for (tier, bytes) in (0u8..).zip(&bytes.by_tier) {
                    *found.pinned_elsewhere.entry(tier).or_default() += bytes;
                }
                continue;
            }
            if let Some(stored) = &mut found.stored {
                for run in record.runs() {
                    stored.add(run.chunk, || store.chunk_info(run.chunk))?;
                }
            }
        }
        match page.last() {
            Some((last, _)) if page.len() == PAGE => from = last.iter().copied().chain([0]).collect(),
            _ => return Ok(()),
        }
    }
}

/// Why it lies where it does, and where it goes next.
fn reason(pool: &OpenPool, subject: &Subject, found: &Found, pin: Option<&Pin>) -> (String, Option<String>) {
    let tiers = pool.engine().pool().tiers();
    let mover = pool.engine().mover();
    let name = |tier| name_of(&tiers, tier);
    let by_tier = (0u8..).zip(found.bytes.by_tier.iter().copied());
    let by_tier: Vec<(u8, u64)> = by_tier.filter(|(_, bytes)| *bytes > 0).collect();
    let Some((most, _)) = by_tier.iter().max_by_key(|(_, bytes)| *bytes).copied() else {
        let why = match found.bytes.missing_bytes {
            0 => "it has no data on a device yet: it is empty, or still in memory",
            _ => "nothing of it is on a device that is there",
        };
        return (why.into(), None);
    };
    let (number, object) = (subject.number, subject.for_mover());
    let above = || {
        let mut above = subject.directories_above().into_iter();
        above.find_map(|(_, directory)| mover.move_of(number, directory))
    };
    let under_way = mover
        .move_of(number, object)
        .or_else(above)
        .filter(|job| by_tier.iter().any(|(tier, _)| name(*tier) != job.target));
    if let Some(pin) = pin {
        let tier = &pin.tier;
        // What has another pin beneath it is no part of this one's.
        let elsewhere = |on: &u8| found.pinned_elsewhere.get(on).copied().unwrap_or(0);
        if by_tier
            .iter()
            .all(|(on, bytes)| name(*on) == tier || *bytes <= elsewhere(on))
        {
            let others: u64 = found.pinned_elsewhere.values().sum();
            let others = match others {
                0 => String::new(),
                others => format!("; {} beneath it have other pins", format_size(others)),
            };
            return (format!("it is pinned to tier '{tier}'{others}"), None);
        }
        if let Some(full) = tiers::pin_has_no_room(pool, tier) {
            let why =
                format!("it is pinned to tier '{tier}', {full}: what has no room there lies on other tiers");
            return (why, None);
        }
        let why = format!("it is pinned to tier '{tier}', and not all of it is there yet");
        return match under_way.filter(|job| job.target == *tier) {
            Some(job) if job.obstacle.is_none() => (why, Some(format!("move to '{tier}' (job {})", job.id))),
            Some(job) => {
                let obstacle = job.obstacle.unwrap_or_default();
                (format!("{why}; job {} is to move it: {obstacle}", job.id), None)
            }
            None if mover.is_looking_beneath() => {
                let soon =
                    "pins or names changed a moment ago: what is beneath is looked for, and moved then";
                (format!("{why}; {soon}"), None)
            }
            None => (format!("{why}; no job moves it: pin it again"), None),
        };
    }
    if let Some(job) = under_way {
        let why = format!("job {} moves it to tier '{}'", job.id, job.target);
        return match job.obstacle {
            None => (why, Some(format!("move to '{}' (job {})", job.target, job.id))),
            Some(obstacle) => (format!("{why}: {obstacle}"), None),
        };
    }
    by_policy(pool, subject, found, &tiers, most)
}

/// The same of what has no pin and is not moved: `most` of it lies on that tier.
fn by_policy(
    pool: &OpenPool,
    subject: &Subject,
    found: &Found,
    tiers: &[TierInfo],
    most: u8,
) -> (String, Option<String>) {
    let mover = pool.engine().mover();
    let name = |tier| name_of(tiers, tier);
    // What is hot on the slowest tier rises first.
    if let Some((tier, _)) = found.hot.iter().rev().find(|(tier, _)| **tier > 0) {
        let why = format!("it is read often, and lies on tier '{}'", name(*tier));
        if mover.is_kept_down(subject.number, subject.for_mover()) {
            let why = format!(
                "{why}: it was moved down by hand, and stays for half an hour or until it is read half as much as before"
            );
            return (why, None);
        }
        return match mover.rises_to(*tier) {
            Ok(target) => (why, Some(format!("promote to '{}'", name(target)))),
            Err(obstacle) => (format!("{why}: {obstacle}"), None),
        };
    }
    if let Some((tier, _)) = found.old.iter().next() {
        let why = format!(
            "it was not used for as long as tier '{}' says in demote_after",
            name(*tier)
        );
        match mover.ages_to(*tier) {
            Ok(target) => return (why, Some(format!("demote to '{}'", name(target)))),
            Err(obstacle) if most == *tier => return (format!("{why}: {obstacle}"), None),
            Err(_) => {}
        }
    }
    let warm = (found.reads + found.writes) / found.files.max(1) as f64;
    let lands = |sequential| {
        let at = landing_tier(tiers.iter().map(|tier| &tier.settings), sequential);
        at == usize::from(most)
    };
    let why = match (lands(true), lands(false)) {
        (true, true) => "new data lands on this tier",
        (true, false) => "long streams land on this tier",
        (false, true) => "small and scattered writes land on this tier",
        (false, false) if most == 0 => "it rose to this tier, or landed there before 'landing' was set",
        (false, false) => "it is read rarely",
    };
    let why = format!("{why}, and most of it lies on tier '{}'", name(most));
    if usize::from(most) + 1 == tiers.len() {
        return (why, None);
    }
    match mover.sinks_to(most) {
        Ok(target) if found.hot.contains_key(&most) => {
            let why = format!(
                "{why}, which is too full: what is colder goes down to '{}' before it",
                name(target)
            );
            (why, None)
        }
        Ok(target) if warm < COLD => {
            let why = format!("{why}, which is too full: the coldest goes down first");
            (why, Some(format!("demote to '{}'", name(target))))
        }
        Ok(target) => {
            let why = format!(
                "{why}, which is too full: the coldest goes down to '{}' first, and this was used of late",
                name(target)
            );
            (why, None)
        }
        Err(obstacle) => (format!("{why}: {obstacle}"), None),
    }
}

fn name_of(tiers: &[TierInfo], tier: u8) -> &str {
    let tier = tiers.get(usize::from(tier));
    tier.map_or("?", |tier| tier.settings.name.as_str())
}

/// Reads and writes a file, decayed, below which it counts as cold here.
const COLD: f64 = 1.0;
