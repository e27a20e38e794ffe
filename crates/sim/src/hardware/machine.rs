//! `Machine`: the disks, the clock and the power of a simulated computer, and what is done to them from outside: cuts,
//! storms, repairs. An engine sees the disks through `simulated_device`.
//!
//! Invariants: after a cut or a kill every device handed out before is dead (it answers `Gone`), so that nothing of an
//! old engine reaches the disks of a new one; all chance comes from the machine's own stream, in the order of
//! operations.

mod simulated_device;

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use terrace_device::{Clock, Device, ManualClock};

use self::simulated_device::SimulatedDevice;
use super::{
    disk::{Disk, Rates},
    fault::{Coverage, FaultKind},
    label_guard::LabelGuard,
    random::Random,
    root_guard,
};
use crate::{
    trace::Trace,
    violation::{Check, Violation},
};

/// What an entry of the log and a table of the metadata begin with.
const LOG_MAGIC: &[u8] = b"TerrLog1";
const TABLE_MAGIC: &[u8] = b"TMT2";
/// What lies in front of the first segment, bytes.
pub(crate) const FRONT_BYTES: u64 = terrace_pool::SEGMENT_AREA_OFFSET;

/// What is counted until the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Every operation.
    Operations,
    /// Flushes: what was written before them is not durable.
    Flushes,
    /// Discards, and then one more operation: what was discarded is gone, what says why need not be durable.
    Discards,
}

/// What a power cut leaves of what a disk had not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// What chance has it.
    Any,
    /// All but the newest write.
    Oldest,
    /// The newest write alone.
    Newest,
}

struct State {
    disks: Vec<Disk>,
    random: Random,
    /// Grows with each start; devices of an earlier one are dead.
    session: u64,
    powered: bool,
    /// Operations of a kind until the power goes or the process ends.
    countdown: Option<(Counted, u64)>,
    /// Only the process ended: what it wrote is there.
    only_process: bool,
    /// What the next cut leaves.
    survivors: Survivors,
    /// Device operations so far.
    operations: u64,
    /// Disks whose root slots were read wrong in this session, or whose writing or flushing failed: what is newest there
    /// is not what was acknowledged.
    blurred: BTreeSet<usize>,
    labels: LabelGuard,
    /// The first thing that no engine may do to a disk and this one did.
    breach: Option<String>,
}

/// What a machine had at one moment.
pub struct Frozen {
    disks: Vec<Disk>,
    random: Random,
}

/// A simulated computer.
pub struct Machine {
    state: Mutex<State>,
    /// What took effect.
    pub coverage: Arc<Coverage>,
    /// What happened.
    pub trace: Trace,
    /// Its time.
    pub clock: Arc<ManualClock>,
}

impl Machine {
    /// A computer with disks of these sizes in bytes; `true`: the disk stands for a directory of slot files.
    pub fn new(sizes: &[(u64, bool)], random: Random, coverage: Arc<Coverage>, trace: Trace) -> Arc<Self> {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
        // Whoever waits moves the time, also where nothing runs beside him.
        clock.drive_with(Arc::new(|| {}));
        Arc::new(Self {
            state: Mutex::new(State {
                disks: sizes
                    .iter()
                    .map(|(size, slots)| Disk::new(*size, *slots))
                    .collect(),
                random,
                session: 0,
                powered: true,
                countdown: None,
                only_process: false,
                survivors: Survivors::Any,
                operations: 0,
                blurred: BTreeSet::new(),
                labels: LabelGuard::default(),
                breach: None,
            }),
            coverage,
            trace,
            clock,
        })
    }

    /// The disks as devices of a new session; those of earlier sessions are dead from now on. Disks that vanished are
    /// left out.
    pub fn plug_in(self: &Arc<Self>) -> Vec<Arc<dyn Device>> {
        let mut state = self.state.lock();
        state.session += 1;
        state.powered = true;
        state.blurred.clear();
        let State { disks, labels, .. } = &mut *state;
        labels.begin(disks.iter().filter(|disk| !disk.vanished));
        let session = state.session;
        (0..state.disks.len())
            .filter(|disk| !state.disks[*disk].vanished)
            .map(|disk| self.device_of(disk, session))
            .collect()
    }

    /// A disk as a device of the running session.
    pub fn device(self: &Arc<Self>, disk: usize) -> Arc<dyn Device> {
        let session = self.state.lock().session;
        self.device_of(disk, session)
    }

    fn device_of(self: &Arc<Self>, disk: usize, session: u64) -> Arc<dyn Device> {
        Arc::new(SimulatedDevice::new(self.clone(), disk, session))
    }

    /// The power goes, or now and then the process alone ends, after this many more device operations; `None`: it stays.
    pub fn cut_power_after(&self, operations: Option<u64>) {
        self.state.lock().countdown = operations.map(|left| (Counted::Operations, left));
    }

    /// As [`cut_power_after`](Self::cut_power_after), counting one kind of operations only.
    pub fn cut_power_at(&self, counted: Counted, after: u64) {
        self.state.lock().countdown = Some((counted, after));
    }

    /// Plans a stop within `most` operations, or at one of the next flushes or discards.
    pub fn plan_stop(&self, most: u64, random: &mut Random) {
        let (counted, after) = match random.below(6) {
            0 | 1 => {
                // What a flush was to make durable before what came last, or the reverse.
                self.survivors(*random.pick(&[Survivors::Any, Survivors::Oldest, Survivors::Newest]));
                (Counted::Flushes, random.skewed(8))
            }
            2 => (Counted::Discards, random.between(1, 3)),
            _ => (Counted::Operations, random.skewed(most)),
        };
        self.trace
            .event(format_args!("power goes after {after} {counted:?}"));
        self.cut_power_at(counted, after);
    }

    /// What the next power cut leaves, of every disk.
    pub fn survivors(&self, survivors: Survivors) {
        self.state.lock().survivors = survivors;
    }

    /// The power goes now, unless the machine has stopped already.
    pub fn cut_power(&self) {
        let mut state = self.state.lock();
        state.countdown = None;
        state.only_process &= !state.powered;
        state.powered = false;
    }

    /// Whether the machine runs: the power is on, and the process has not ended by itself.
    pub fn is_powered(&self) -> bool {
        self.state.lock().powered
    }

    /// After the power went or the process ended: decides what the disks kept.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let survivors = std::mem::replace(&mut state.survivors, Survivors::Any);
        for (number, disk) in state.disks.iter_mut().enumerate() {
            let mut random = state.random.fork(number as u64);
            if !state.only_process {
                disk.lose_power(survivors, &mut random, &self.coverage);
            }
        }
        state.only_process = false;
        state.countdown = None;
        state.session += 1;
    }

    /// The process ends: its devices are dead, what it wrote stays where it is.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        state.session += 1;
        state.countdown = None;
        self.coverage.hit(FaultKind::Kill);
    }

    /// Everything that the disks hold, and the machine's chance, to come back to with [`thaw`](Self::thaw).
    pub fn freeze(&self) -> Frozen {
        let state = self.state.lock();
        Frozen {
            disks: state.disks.clone(),
            random: state.random.clone(),
        }
    }

    /// All is as it was when it was frozen; the devices of what was tried meanwhile are dead.
    pub fn thaw(&self, frozen: Frozen) {
        let mut state = self.state.lock();
        state.session += 1;
        (state.disks, state.random) = (frozen.disks, frozen.random);
        (state.powered, state.only_process, state.countdown) = (true, false, None);
        state.survivors = Survivors::Any;
    }

    /// Whether a disk is gone.
    pub fn lacks_a_disk(&self) -> bool {
        self.state.lock().disks.iter().any(|disk| disk.vanished)
    }

    /// A violation if the engine did something to a disk that it may never do, whatever came of it.
    pub fn check_breach(&self) -> Check {
        match self.state.lock().breach.take() {
            Some(words) => Err(Violation(words)),
            None => Ok(()),
        }
    }

    /// Device operations so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Number of disks.
    pub fn disk_count(&self) -> usize {
        self.state.lock().disks.len()
    }

    /// Devices begin to fail by chance, operations up to `most` times in 10,000; some stop altogether: they take no
    /// more writes, or nothing new, or are gone.
    pub fn begin_storm(&self, most: u64, random: &mut Random) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for disk in &mut state.disks {
            let mut rate = |of: u64| {
                if random.chance(1, 3) {
                    random.skewed(most) / of
                } else {
                    0
                }
            };
            disk.rates = Rates {
                read_error: rate(1),
                read_flip: rate(1),
                read_misdirected: rate(2),
                read_stale: rate(2),
                write_error: rate(2),
                flush_error: rate(1),
                slow: rate(1),
                ..Rates::default()
            };
            disk.backing_full = random.chance(1, 35);
            disk.unwritable = random.chance(1, 6).then(|| {
                // Where labels and roots are, or anywhere.
                let of_front = random.chance(2, 3);
                let start = if of_front {
                    0
                } else {
                    random.below(disk.size_bytes())
                };
                start..start + FRONT_BYTES
            });
            disk.writes_fail = random.chance(1, 40);
            if random.chance(1, 40) {
                // Without its power, mostly: what it had not flushed is gone in part.
                if random.chance(2, 3) {
                    disk.lose_power(Survivors::Any, &mut state.random, &self.coverage);
                }
                disk.vanished = true;
            }
        }
    }

    /// Devices work again, but for those that are gone.
    pub fn end_storm(&self) {
        for disk in &mut self.state.lock().disks {
            disk.rates = Rates::default();
            disk.writes_fail = false;
            disk.backing_full = false;
            disk.unwritable = None;
        }
    }

    /// Between two sessions: every device works again, and one that was gone is back with what it had then, unless it was pulled.
    pub fn repair(&self) {
        self.end_storm();
        for disk in &mut self.state.lock().disks {
            if !disk.pulled && std::mem::take(&mut disk.vanished) {
                self.coverage.hit(FaultKind::CameBackOld);
            }
            disk.unspoil();
        }
    }

    /// Reads fail now and then while the pool is opened: errors on all disks, flipped bits on one of several.
    pub fn trouble_reads(&self, random: &mut Random) {
        let mut state = self.state.lock();
        let several = state.disks.len() > 1;
        let flips = random.index(state.disks.len());
        for (number, disk) in state.disks.iter_mut().enumerate() {
            disk.rates.read_error = random.between(0, 400);
            if several && number == flips {
                // Rarely: what is wrong three times in a row counts as damaged for good.
                disk.rates.read_flip = random.between(0, 60);
            }
        }
    }

    /// Some pages of one kind cannot be read until the next [`repair`](Self::repair): tables, on one disk or on all; or
    /// entries of the log on one disk, and only if `whole`: no copy of an entry is missing because a write failed, or the
    /// one that cannot be read may be the only one. Only when nothing was lost: what looks like a table may lie where data
    /// was, and an opening believes that data which cannot be read is there. Whether there were any.
    pub fn spoil_for_opening(&self, whole: bool, random: &mut Random) -> bool {
        let mut state = self.state.lock();
        let one = random.index(state.disks.len());
        let (all, of_log, odds) = (random.chance(1, 2), random.chance(1, 2), random.between(1, 4));
        let mut spoiled = false;
        for (number, disk) in state.disks.iter_mut().enumerate() {
            if disk.vanished || (of_log || !all) && number != one {
                continue;
            }
            let pages = match of_log {
                true if !whole => Vec::new(),
                true => disk.pages_that_begin_with(LOG_MAGIC),
                false => disk.pages_that_begin_with(TABLE_MAGIC),
            };
            for page in pages {
                if random.chance(odds, 4) {
                    disk.spoil(page);
                    spoiled = true;
                }
            }
        }
        self.trace.event(format_args!(
            "cannot be read while opening: log {of_log}, {spoiled}"
        ));
        spoiled
    }

    /// On how many of these disks the newest root that any of them holds is durable.
    pub fn root_holders(&self, disks: impl Iterator<Item = usize>) -> usize {
        let state = self.state.lock();
        root_guard::holders(disks.filter_map(|disk| state.disks.get(disk)))
    }

    /// How many of these disks have the newest root that any of them holds in one copy of its slot only.
    pub fn half_roots(&self, disks: impl Iterator<Item = usize>) -> usize {
        let state = self.state.lock();
        root_guard::halves(disks.filter_map(|disk| state.disks.get(disk)))
    }

    /// A fresh disk is put in; its number.
    pub fn add_disk(&self, size_bytes: u64) -> usize {
        let mut state = self.state.lock();
        state.disks.push(Disk::new(size_bytes, false));
        state.disks.len() - 1
    }

    /// Works on a disk directly, below the engine, with the machine's chance.
    pub fn with_disk<T>(&self, disk: usize, work: impl FnOnce(&mut Disk, &mut Random) -> T) -> T {
        let mut state = self.state.lock();
        let state = &mut *state;
        work(&mut state.disks[disk], &mut state.random)
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Machine at {} ns", self.clock.now_nanoseconds())
    }
}
