//! Opening a pool from the labels of its devices.
//!
//! Invariants: a device that the deciding label does not list is left alone; one that was away while the others were in use is
//! taken back if it was not used itself meanwhile, else refused (see `labels/standing.rs`). A pool that opens without all of its
//! devices, or with one that was away, gets a new generation that says so, before anything is changed and only after it proved to
//! open at all; so does one that opens with all of them: what has the generation before is an old copy of a device.
//! A device that was cut short is taken as it is where devices may be missing: nothing new is put on it.

use std::{cmp::Reverse, sync::Arc};

use terrace_device::Device;

use super::agreement::{Found, check_state, choose_label, describe_missing, refuse_apart, root_holders_of};
use crate::{
    PoolError,
    devices::{OpenDevice, Parallelism, note_paths},
    labels::{Standing, standing},
    ondisk::{Label, LabelCopies, LabelError, Member, PoolState, Presence, segment_count},
    roots::KnownRoots,
};

/// A device that was cut short is used if at least this part of it is left.
const CUT_SHORT_PART: u64 = 16;

/// How far the generation jumps when a pool is opened without some of its devices: over all that those which have noted these
/// as absent meanwhile can believe that these knew before.
const UNSEEN_GENERATIONS: u64 = 1 << 16;

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

/// Devices that were away until this opening. It does not change afterwards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Returned {
    /// Those that were in use longest first.
    pub(crate) all: Vec<u16>,
    /// Those of them that are older than the pool though nobody noted them as away.
    pub(crate) outdated: Vec<u16>,
    /// Those of these that were told by their labels.
    pub(crate) with_old_label: Vec<u16>,
}

/// A pool as its devices gave it.
pub(crate) struct Opened {
    /// The label in force.
    pub(crate) label: Label,
    pub(crate) devices: Vec<Arc<OpenDevice>>,
    pub(crate) roots: KnownRoots,
    pub(crate) returned: Returned,
    /// The highest generation of a label on any device.
    pub(crate) generation: u64,
    /// What the labels are to say from now on.
    pub(crate) next: Option<Label>,
    /// Whether that is to be written at once, and not only when the pool proved to open.
    pub(crate) at_once: bool,
    pub(crate) is_read_only: bool,
    pub(crate) parallelism: Parallelism,
}

impl Opened {
    /// A pool with all its devices, and without roots.
    pub(super) fn new(label: Label, devices: Vec<Arc<OpenDevice>>, parallelism: Parallelism) -> Self {
        Self {
            generation: label.generation,
            label,
            devices,
            roots: KnownRoots::default(),
            returned: Returned::default(),
            next: None,
            at_once: false,
            is_read_only: false,
            parallelism,
        }
    }
}

/// Finds out what the pool is that these devices make up; see [`Pool::open`](crate::Pool::open). Nothing is written.
pub(crate) fn open(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Opened, PoolError> {
    let found = read_labels(devices, options.degraded)?;
    let label = choose_label(&found)?;
    check_state(&label, options)?;
    if !options.accept_stale {
        refuse_apart(&label, &found)?;
    }
    let mut chosen = Chosen::new(&label, options, &found);
    for (device, copies) in found {
        chosen.take(device, &copies)?;
    }
    let Chosen {
        generation,
        begun,
        is_complete,
        mut returned,
        mut devices,
        ..
    } = chosen;
    devices.sort_by_key(|device| device.number);
    // Who was in use longest knows best: what one that left before it has besides was given up without that.
    let absent_since = |number: &u16| label.member(*number).and_then(Member::absent_since);
    returned.all.sort_by_key(|number| Reverse(absent_since(number)));
    let is_there = |number: u16| devices.iter().any(|device| device.number == number);
    let missing = label.members.iter().filter(|member| !is_there(member.number));
    let missing: Vec<String> = missing.map(describe_missing).collect();
    if !missing.is_empty() && !options.degraded {
        return Err(PoolError::MissingDevices {
            pool: label.pool_name,
            missing,
        });
    }
    returned.with_old_label = returned.outdated.clone();
    let roots = load_roots(&label, &devices, &mut returned, options.accept_stale);
    let mut changed = !missing.is_empty() || !returned.outdated.is_empty();
    let mut next = Label {
        state: PoolState::Active,
        generation: generation + 1 + if changed { UNSEEN_GENERATIONS } else { 0 },
        ..label.clone()
    };
    for (member, before) in next.members.iter_mut().zip(&label.members) {
        // An old one is taken back by whoever has completed its log: until then a power cut leaves one that was away.
        if returned.outdated.contains(&member.number) || !is_there(member.number) {
            *member = standing::absent(before, &label, &begun);
        } else if returned.all.contains(&member.number) && !before.is_absent() {
            member.set_presence(Presence::Behind);
            changed = true;
        }
    }
    note_paths(&mut next, &devices);
    // Written by whoever finds that the pool opens: what does not open without a device was not used without it. Also where
    // nothing changed: a copy of a device that was made before is told by its older label from then on. Copies that a crash
    // left behind are mended at once.
    let waits = changed || is_complete && label.state == PoolState::Active;
    Ok(Opened {
        roots,
        returned,
        generation,
        next: (!options.read_only).then_some(next),
        at_once: !waits,
        is_read_only: options.read_only,
        ..Opened::new(label, devices, options.parallelism)
    })
}

/// The devices with their labels. Where devices may be missing, those without one are left alone.
fn read_labels(devices: Vec<Arc<dyn Device>>, degraded: bool) -> Result<Vec<Found>, PoolError> {
    let mut found = Vec::with_capacity(devices.len());
    for device in devices {
        let copies = LabelCopies::read(device.as_ref());
        if copies.newest().is_some() {
            found.push((device, copies));
            continue;
        }
        let (path, error) = (device.path(), copies.error());
        if LabelError::is_of_other_version(&error) {
            return Err(PoolError::OtherVersion { path, error });
        }
        if !degraded {
            return Err(PoolError::NoLabel { path, error });
        }
        // Another disk may be in its place by now.
        tracing::warn!(device = path, "no label on it, left alone");
    }
    Ok(found)
}

/// Reads the roots; devices with roots that are older than the pool are added to those that returned.
fn load_roots(
    label: &Label,
    devices: &[Arc<OpenDevice>],
    returned: &mut Returned,
    accept_stale: bool,
) -> KnownRoots {
    let roots = KnownRoots::load(devices, &label.pool_id, &returned.all);
    if accept_stale {
        return roots;
    }
    let lagging = roots.left_behind(&root_holders_of(label, &returned.all));
    if lagging.is_empty() {
        return roots;
    }
    tracing::warn!(devices = ?lagging, "their roots are older than the pool, taken as devices that were away");
    returned.all.extend(&lagging);
    returned.outdated.extend(&lagging);
    KnownRoots::load(devices, &label.pool_id, &returned.all)
}

/// The devices that are taken, one after the other.
struct Chosen<'a> {
    label: &'a Label,
    options: &'a OpenOptions,
    /// Members of which a device was found that is theirs beyond doubt.
    known: Vec<u16>,
    /// The highest generation of a label on any device.
    generation: u64,
    /// Labels above the deciding one on devices that were not away.
    begun: Vec<Label>,
    /// Whether all copies of the label are in place.
    is_complete: bool,
    returned: Returned,
    devices: Vec<Arc<OpenDevice>>,
}

impl<'a> Chosen<'a> {
    fn new(label: &'a Label, options: &'a OpenOptions, found: &[Found]) -> Self {
        let known = found
            .iter()
            .filter_map(|(_, copies)| match standing(label, copies) {
                Some(Standing::Current(member) | Standing::Returned(member)) => Some(member.number),
                _ => None,
            });
        Self {
            label,
            options,
            known: known.collect(),
            generation: 0,
            begun: Vec::new(),
            is_complete: true,
            returned: Returned::default(),
            devices: Vec::new(),
        }
    }

    /// Takes a device, unless it is to be left alone.
    fn take(&mut self, device: Arc<dyn Device>, copies: &LabelCopies) -> Result<(), PoolError> {
        let (label, options) = (self.label, self.options);
        let Some(own) = copies.newest() else { return Ok(()) };
        self.generation = self.generation.max(own.generation);
        let Some(member) = self.member_of(&*device, copies, own)? else {
            return Ok(());
        };
        if let Some(twice) = self.devices.iter().find(|other| other.number == member.number) {
            return Err(PoolError::DuplicateDevice {
                path: device.path(),
                other: twice.path(),
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
        self.is_complete &=
            self.returned.all.contains(&member.number) || copies.are_all(&label.pool_id, label.generation);
        let segments = segment_count(member.size_bytes, label.segment_bytes);
        let device = OpenDevice::new(member.number, segments, device);
        if cut_short {
            device.mark_cut_short(member.size_bytes);
        }
        self.devices.push(Arc::new(device));
        Ok(())
    }

    /// The member that a device is taken for; `None` if it is to be left alone.
    fn member_of(
        &mut self,
        device: &dyn Device,
        copies: &LabelCopies,
        own: &Label,
    ) -> Result<Option<&'a Member>, PoolError> {
        let (label, options) = (self.label, self.options);
        match standing(label, copies) {
            Some(Standing::Current(member)) => {
                if own.generation > label.generation {
                    self.begun.push(own.clone());
                }
                Ok(Some(member))
            }
            Some(Standing::Returned(member)) => {
                self.returned.all.push(member.number);
                Ok(Some(member))
            }
            Some(Standing::Apart(member) | Standing::Unknown(member)) if options.accept_stale => {
                self.returned.all.push(member.number);
                Ok(Some(member))
            }
            // It is the older one, whatever it was used for, and beside the device itself a copy.
            Some(Standing::Unknown(member)) if options.degraded && self.known.contains(&member.number) => {
                tracing::warn!(
                    device = device.path(),
                    "an old copy of a device that is there, left alone"
                );
                Ok(None)
            }
            // Content that has no other copy may lie on it, and each read says whether it is what the pool wrote: it
            // is kept, as one that was away, which the labels call it before anything is changed.
            Some(Standing::Unknown(member)) if options.degraded => {
                tracing::warn!(device = device.path(), "out of date, taken as one that was away");
                self.returned.all.push(member.number);
                self.returned.outdated.push(member.number);
                Ok(Some(member))
            }
            Some(Standing::Unknown(_)) => Err(PoolError::StaleDevice {
                path: device.path(),
                pool: label.pool_name.clone(),
                generation: own.generation,
                newest: label.generation,
            }),
            Some(Standing::Apart(_) | Standing::Unlisted) | None => {
                tracing::warn!(
                    device = device.path(),
                    pool = label.pool_name,
                    "not part of the pool, left alone"
                );
                Ok(None)
            }
        }
    }
}
