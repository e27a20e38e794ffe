//! Making a pool and opening one from its labels.
//!
//! Invariants: the newest label that reached phase two on any device (see `labels`) decides what the pool is; a
//! device that it does not list is left alone; one that was away while the others were in use is taken back if it was not
//! used itself meanwhile, else refused (see `presence`). A pool that opens without all of its devices, or with one that
//! was away, gets a new generation that says so, before anything is changed and only after it proved to open at all; so does
//! one that opens with all of them: what has the generation before is an old copy of a device.
//! A device that was cut short is taken as it is where devices may be missing: nothing new is put on it.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use terrace_device::{AlignedBuffer, Device, Randomness};

use super::roots::{HOLDERS_MAX, Roots};
use crate::{
    Parallelism, Pool, PoolError, PoolState, TierSettings,
    content::Content,
    devices::OpenDevice,
    labels::{LabelCopies, Presence, Standing, standing, write_labels},
    ondisk::{
        DEVICE_BYTES_MIN, Label, Member, SEGMENT_AREA_OFFSET, SEGMENTS_MIN, choose_segment_bytes,
        segment_count,
    },
    space::Allocator,
};

/// A device that was cut short is used if at least this part of it is left.
const CUT_SHORT_PART: u64 = 16;

/// How far the generation jumps when a pool is opened without some of its devices: over all that those which have noted these
/// as absent meanwhile can believe that these knew before.
const UNSEEN_GENERATIONS: u64 = 1 << 16;

/// How to make a pool.
pub struct CreateOptions {
    /// Name, 1–64 of `A-Za-z0-9_.-`, starting with a letter or digit.
    pub name: String,
    /// Tiers, fastest first, each with its devices.
    pub tiers: Vec<(TierSettings, Vec<Arc<dyn Device>>)>,
    /// Properties.
    pub properties: BTreeMap<String, String>,
    /// Segment size in bytes; `None`: chosen by the smallest device.
    pub segment_bytes: Option<u32>,
    /// When, nanoseconds since 1970.
    pub created_nanoseconds: u64,
    /// Use devices although they belong to an active pool or hold something else.
    pub force: bool,
    /// Flushing.
    pub parallelism: Parallelism,
}

/// How to open a pool.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Open although devices are missing, or were cut short.
    pub degraded: bool,
    /// Take also devices of which the labels do not tell, or deny, that they were only away: to save what is left.
    pub accept_stale: bool,
    /// Open an exported pool (and make it active).
    pub exported: bool,
    /// Open a destroyed pool (and make it active).
    pub destroyed: bool,
    /// Change nothing on the devices.
    pub read_only: bool,
    /// Flushing.
    pub parallelism: Parallelism,
}

impl Pool {
    /// Writes labels on the devices and opens the new pool. No root is written: the floor above does that.
    pub fn create(options: CreateOptions, randomness: &dyn Randomness) -> Result<Self, PoolError> {
        let invalid = |reason: String| Err(PoolError::Invalid(reason));
        let (mut smallest, mut all) = (u64::MAX, 0u64);
        for (tier, devices) in &options.tiers {
            if devices.is_empty() {
                return invalid(format!("tier '{}' has no device", tier.name));
            }
            for device in devices {
                check_unused(device.as_ref(), options.force)?;
                smallest = smallest.min(device.size_bytes());
                all = all.saturating_add(device.size_bytes());
            }
        }
        let segment_bytes = options
            .segment_bytes
            .unwrap_or_else(|| choose_segment_bytes(smallest, all));
        let mut members = Vec::new();
        let mut open = Vec::new();
        for (tier, (_, devices)) in options.tiers.iter().enumerate() {
            for device in devices {
                let number = open.len() as u16;
                if let Some(twice) = open
                    .iter()
                    .find(|other: &&Arc<OpenDevice>| other.device.path() == device.path())
                {
                    return invalid(format!("{} is given twice", twice.device.path()));
                }
                let member = new_member(device.as_ref(), number, tier as u8, segment_bytes, randomness)?;
                let segments = segment_count(member.size_bytes, segment_bytes);
                open.push(Arc::new(OpenDevice::new(
                    number,
                    tier as u8,
                    segments,
                    device.clone(),
                )));
                members.push(member);
            }
        }
        let label = Label {
            pool_id: randomness.identifier(),
            pool_name: options.name,
            state: PoolState::Active,
            generation: 1,
            number: 0,
            next_number: members.len() as u16,
            segment_bytes,
            created_nanoseconds: options.created_nanoseconds,
            tiers: options.tiers.into_iter().map(|(tier, _)| tier).collect(),
            members,
            properties: options.properties,
        };
        // Before the first byte is written: whether the label is possible at all.
        label
            .encode()
            .map_err(|error| PoolError::Invalid(error.to_string()))?;
        for device in &open {
            wipe_ends(device)?;
        }
        write_labels(&open, &label, None).map_err(|refused| refused.error)?;
        Ok(Self::assemble(
            label,
            open,
            Roots::default(),
            false,
            options.parallelism,
        ))
    }

    /// Opens a pool from its devices, in any order. Every segment is free until [`Self::claim`]ed. Devices that are
    /// no longer (or not yet) part of the pool are left alone.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Self, PoolError> {
        let mut found = Vec::with_capacity(devices.len());
        for device in devices {
            let copies = LabelCopies::read(device.as_ref());
            if copies.newest().is_none() {
                let (path, error) = (device.path(), copies.error());
                if error.is_of_other_version() {
                    return Err(PoolError::OtherVersion { path, error });
                }
                if options.degraded {
                    // Another disk may be in its place by now.
                    tracing::warn!(device = path, "no label on it, left alone");
                    continue;
                }
                return Err(PoolError::NoLabel { path, error });
            }
            found.push((device, copies));
        }
        let label = choose_label(&found)?;
        check_state(&label, &options)?;
        if !options.accept_stale {
            refuse_apart(&label, &found)?;
        }
        let mut generation = 0;
        let mut begun = Vec::new();
        let mut complete = true;
        let mut returned = Vec::new();
        let mut outdated = Vec::new();
        let known: Vec<u16> = found
            .iter()
            .filter_map(|(_, copies)| match standing(&label, copies) {
                Some(Standing::Current(member) | Standing::Returned(member)) => Some(member.number),
                _ => None,
            })
            .collect();
        let mut open: Vec<Arc<OpenDevice>> = Vec::new();
        for (device, copies) in found {
            let Some(own) = copies.newest() else { continue };
            generation = generation.max(own.generation);
            let member = match standing(&label, &copies) {
                Some(Standing::Current(member)) => {
                    if own.generation > label.generation {
                        begun.push(own.clone());
                    }
                    member
                }
                Some(Standing::Returned(member)) => {
                    returned.push(member.number);
                    member
                }
                Some(Standing::Apart(member) | Standing::Unknown(member)) if options.accept_stale => {
                    returned.push(member.number);
                    member
                }
                // It is the older one, whatever it was used for, and beside the device itself a copy.
                Some(Standing::Unknown(member)) if options.degraded && known.contains(&member.number) => {
                    tracing::warn!(
                        device = device.path(),
                        "an old copy of a device that is there, left alone"
                    );
                    continue;
                }
                // Content that has no other copy may lie on it, and each read says whether it is what the pool wrote: it
                // is kept, as one that was away, which the labels call it before anything is changed.
                Some(Standing::Unknown(member)) if options.degraded => {
                    tracing::warn!(device = device.path(), "out of date, taken as one that was away");
                    returned.push(member.number);
                    outdated.push(member.number);
                    member
                }
                Some(Standing::Unknown(_)) => {
                    return Err(PoolError::StaleDevice {
                        path: device.path(),
                        pool: label.pool_name.clone(),
                        generation: own.generation,
                        newest: label.generation,
                    });
                }
                Some(Standing::Apart(_) | Standing::Unlisted) | None => {
                    tracing::warn!(
                        device = device.path(),
                        pool = label.pool_name,
                        "not part of the pool, left alone"
                    );
                    continue;
                }
            };
            if let Some(twice) = open.iter().find(|other| other.number == member.number) {
                return Err(PoolError::DuplicateDevice {
                    path: device.path(),
                    other: twice.device.path(),
                    pool: label.pool_name.clone(),
                    number: member.number,
                });
            }
            // What is left of a device that was cut off can be read.
            let cut_short = device.size_bytes() < member.size_bytes;
            let salvage = options.read_only && options.degraded;
            // Books are kept of all that the label claims: it must not be out of all proportion.
            let little_left = device.size_bytes() < member.size_bytes / CUT_SHORT_PART;
            if cut_short && !salvage && (little_left || !options.degraded) {
                return Err(PoolError::Shrunk {
                    path: device.path(),
                    has: device.size_bytes(),
                    wanted: member.size_bytes,
                });
            }
            // One that was away gets a label when it has what that says of it.
            complete &= returned.contains(&member.number) || copies.are_all(&label.pool_id, label.generation);
            let segments = segment_count(member.size_bytes, label.segment_bytes);
            let device = OpenDevice::new(member.number, member.tier, segments, device);
            if cut_short {
                device.mark_cut_short(member.size_bytes);
            }
            open.push(Arc::new(device));
        }
        open.sort_by_key(|device| device.number);
        // Who was in use longest knows best: what one that left before it has besides was given up without that.
        returned.sort_by_key(|number| Reverse(label.member(*number).and_then(Member::absent_since)));
        let absent = |member: &&Member| !open.iter().any(|device| device.number == member.number);
        let missing: Vec<String> = label
            .members
            .iter()
            .filter(absent)
            .map(describe_missing)
            .collect();
        if !missing.is_empty() && !options.degraded {
            return Err(PoolError::MissingDevices {
                pool: label.pool_name,
                missing,
            });
        }
        let with_old_label = outdated.clone();
        let mut roots = Roots::load(&open, &label.pool_id, &returned);
        if !options.accept_stale {
            let lagging = roots.left_behind(&root_holders_of(&label, &returned));
            if !lagging.is_empty() {
                tracing::warn!(devices = ?lagging, "their roots are older than the pool, taken as devices that were away");
                returned.extend(&lagging);
                outdated.extend(&lagging);
                roots = Roots::load(&open, &label.pool_id, &returned);
            }
        }
        let mut changed = !missing.is_empty() || !outdated.is_empty();
        let mut next = Label {
            state: PoolState::Active,
            generation: generation + 1 + if changed { UNSEEN_GENERATIONS } else { 0 },
            ..label.clone()
        };
        for (member, before) in next.members.iter_mut().zip(&label.members) {
            // An old one is taken back by whoever has completed its log: until then a power cut leaves one that was away.
            let is_out = outdated.contains(&member.number);
            if is_out || !open.iter().any(|device| device.number == member.number) {
                *member = standing::absent(before, &label, &begun);
            } else if returned.contains(&member.number) && !before.is_absent() {
                member.set_presence(Presence::Behind);
                changed = true;
            }
        }
        note_paths(&mut next, &open);
        let was_active = label.state == PoolState::Active;
        let pool = Self::assemble(label, open, roots, options.read_only, options.parallelism);
        pool.tried_generation.store(generation, Ordering::Relaxed);
        *pool.returned.lock() = returned;
        *pool.outdated.lock() = outdated;
        *pool.with_old_label.lock() = with_old_label;
        if !options.read_only {
            if changed || complete && was_active {
                // Written by whoever finds that the pool opens: what does not open without a device was not used without it. Also
                // where nothing changed: a copy of a device that was made before is told by its older label from then on.
                *pool.pending.lock() = Some(next);
            } else {
                // Mends copies that a crash left behind.
                pool.replace_label(next)?;
            }
        }
        Ok(pool)
    }

    fn assemble(
        label: Label,
        open: Vec<Arc<OpenDevice>>,
        roots: Roots,
        read_only: bool,
        parallelism: Parallelism,
    ) -> Self {
        let mut allocator = Allocator::default();
        for device in &open {
            let tier = label.member(device.number).map_or(0, |member| member.tier);
            allocator.add(device.number, tier, device.segments.load(Ordering::Relaxed));
        }
        Self {
            updating: Mutex::new(()),
            segment_bytes: label.segment_bytes,
            tried_generation: AtomicU64::new(label.generation),
            lacking: Mutex::default(),
            returned: Mutex::default(),
            outdated: Mutex::default(),
            with_old_label: Mutex::default(),
            pending: Mutex::default(),
            label: RwLock::new(label),
            open: RwLock::new(Arc::new(open)),
            allocator: Mutex::new(allocator),
            holds: Mutex::default(),
            roots: Mutex::new(roots),
            read_only,
            parallelism,
        }
    }
}

/// The label that decides: of one pool, the newest that reached phase two; where no such copy is left, the newest.
fn choose_label(found: &[(Arc<dyn Device>, LabelCopies)]) -> Result<Label, PoolError> {
    let Some(first) = found.first().and_then(|(_, copies)| copies.newest()) else {
        return Err(PoolError::Invalid(
            "no device was given; a pool needs at least one".into(),
        ));
    };
    for (device, copies) in found {
        if let Some(label) = copies.newest()
            && label.pool_id != first.pool_id
        {
            return Err(PoolError::ForeignDevice {
                path: device.path(),
                other: label.pool_name.clone(),
                pool: first.pool_name.clone(),
            });
        }
    }
    let newest = |label: fn(&LabelCopies) -> Option<&Label>| {
        let labels = found.iter().filter_map(move |(_, copies)| label(copies));
        labels
            .filter(|label| label.pool_id == first.pool_id)
            .max_by_key(|label| label.generation)
    };
    let label = newest(LabelCopies::confirmed).or_else(|| newest(LabelCopies::newest));
    Ok(label.unwrap_or(first).clone())
}

/// The devices that roots are written to as long as all are there that were, and were not away.
fn root_holders_of(label: &Label, returned: &[u16]) -> Vec<u16> {
    let mut holders: Vec<&Member> = label
        .members
        .iter()
        .filter(|member| !member.is_absent())
        .collect();
    holders.sort_by_key(|member| (member.tier, member.number));
    holders.truncate(HOLDERS_MAX);
    let numbers = holders.into_iter().map(|member| member.number);
    numbers.filter(|number| !returned.contains(number)).collect()
}

/// Refuses devices of which some were used without the others, and these without them: each has what the others lack.
fn refuse_apart(label: &Label, found: &[(Arc<dyn Device>, LabelCopies)]) -> Result<(), PoolError> {
    let (mut these, mut those, mut number) = (Vec::new(), Vec::new(), 0);
    for (device, copies) in found {
        match standing(label, copies) {
            Some(Standing::Current(_)) => these.push(device.path()),
            Some(Standing::Apart(member)) => {
                number = member.number;
                those.push(device.path());
            }
            _ => {}
        }
    }
    match those.is_empty() {
        true => Ok(()),
        false => Err(PoolError::UsedApart {
            pool: label.pool_name.clone(),
            these,
            those,
            number,
        }),
    }
}

fn check_state(label: &Label, options: &OpenOptions) -> Result<(), PoolError> {
    let (refused, advice) = match label.state {
        PoolState::Active => return Ok(()),
        PoolState::Exported => (!options.exported, "use 'terrace pool import' to take it in again"),
        PoolState::Destroyed => (
            !options.destroyed,
            "its data may be recoverable: 'terrace pool import --destroyed' with its devices takes it in again",
        ),
    };
    if !refused || options.read_only && label.state == PoolState::Exported {
        return Ok(());
    }
    Err(PoolError::WrongState {
        pool: label.pool_name.clone(),
        state: label.state.as_str(),
        advice,
    })
}

pub(crate) fn describe_missing(member: &Member) -> String {
    format!("device {} (last seen as {})", member.number, member.path)
}

/// Takes over where the devices are now.
pub(crate) fn note_paths(label: &mut Label, open: &[Arc<OpenDevice>]) {
    for member in &mut label.members {
        if let Some(device) = open.iter().find(|device| device.number == member.number) {
            member.path = device.device.path();
        }
    }
}

/// Refuses a device that belongs to an active pool or holds something else, unless forced.
pub(crate) fn check_unused(device: &dyn Device, force: bool) -> Result<(), PoolError> {
    check_device_size(&device.path(), device.size_bytes())?;
    match force {
        true => Ok(()),
        false => check_content(device),
    }
}

/// Refuses what is too small for a device of any pool.
///
/// # Errors
/// `TooSmall`.
pub fn check_device_size(path: &str, size_bytes: u64) -> Result<(), PoolError> {
    check_smallest(path, size_bytes, DEVICE_BYTES_MIN)
}

fn check_smallest(path: &str, has: u64, wanted: u64) -> Result<(), PoolError> {
    match has < wanted {
        true => Err(PoolError::TooSmall {
            path: path.into(),
            has,
            wanted,
        }),
        false => Ok(()),
    }
}

/// Refuses devices with so few segments that there is nothing to be done with them.
pub(crate) fn check_size(path: &str, size_bytes: u64, segment_bytes: u32) -> Result<(), PoolError> {
    check_smallest(path, size_bytes, DEVICE_BYTES_MIN)?;
    if segment_count(size_bytes, segment_bytes) < SEGMENTS_MIN {
        let segments = u64::from(SEGMENTS_MIN) * u64::from(segment_bytes);
        let wanted = SEGMENT_AREA_OFFSET + segments + crate::LABEL_BYTES as u64;
        return check_smallest(path, size_bytes, wanted);
    }
    Ok(())
}

/// Refuses devices that hold something.
fn check_content(device: &dyn Device) -> Result<(), PoolError> {
    let path = device.path();
    match Content::of_device(device)? {
        None => Ok(()),
        Some(content) => Err(match content.pool() {
            Some(pool) => PoolError::AlreadyInPool {
                pool: pool.to_owned(),
                path,
            },
            None => PoolError::HoldsSomething {
                path,
                content: content.to_string(),
            },
        }),
    }
}

/// The entry of a device that is about to join.
pub(crate) fn new_member(
    device: &dyn Device,
    number: u16,
    tier: u8,
    segment_bytes: u32,
    randomness: &dyn Randomness,
) -> Result<Member, PoolError> {
    let size_bytes = device.size_bytes();
    check_size(&device.path(), size_bytes, segment_bytes)?;
    Ok(Member {
        number,
        id: randomness.identifier(),
        tier,
        size_bytes,
        path: device.path(),
        presence: Presence::Whole,
        begun: Vec::new(),
    })
}

/// Zeroes labels and roots of an earlier life, and all that others would recognise the device by: its first and last MiB.
pub(crate) fn wipe_ends(device: &OpenDevice) -> Result<(), PoolError> {
    let zeroes = AlignedBuffer::zeroed(SEGMENT_AREA_OFFSET as usize);
    device.write_front(0, &zeroes)?;
    let size_bytes = device.device.size_bytes();
    device.write_front(size_bytes.saturating_sub(SEGMENT_AREA_OFFSET), &zeroes)?;
    device.flush()
}
