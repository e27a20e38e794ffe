//! `Engine`: an open pool and everything that runs in it. It ties the components together; what they do is theirs.
//!
//! Invariants: what was acknowledged before [`Engine::close`] returned `Ok` is on the devices; after it nothing is
//! written any more; the threads only call what [`Engine::tick`] and [`Engine::step`] call.

use std::{sync::Arc, time::Duration};

use terrace_chunk::ChunkStore;
use terrace_dataset::{Datasets, Environment};
use terrace_device::{Clock, Device, DeviceSpec};
use terrace_mover::Mover;
use terrace_pool::{DeviceInfo, Landing, Pool, PoolState, TierSettings};
use terrace_store::Store;

use crate::{
    AddedDevice, DamagedFile, EngineError, Entry, FormatNews, IoCounters, JobStatus, JoiningDevice,
    LeavingPlan, OpenOptions, PoolSpec, RebuildOptions, RebuildReport, Status, TierPlace,
    background::Clockwork,
    devices::{DeviceManager, by_tier, undo},
    floors::Floors,
    integrity::Integrity,
    lifecycle::{
        Lifecycle, create_pool, open_floors, open_pool, plan_creating, rehearsal_devices, wants_rehearsal,
    },
    open_flag::OpenFlag,
    pool_properties,
    rebuild::{self, Progress},
    reporting::{Alarms, Complaints, EventLog, Ring},
    status::StatusBuilder,
};

/// An open pool. All methods may be called from any thread.
pub struct Engine {
    floors: Floors,
    events: Arc<EventLog>,
    integrity: Arc<Integrity>,
    devices: Arc<DeviceManager>,
    clockwork: Arc<Clockwork>,
    status: StatusBuilder,
    lifecycle: Lifecycle,
}

impl Engine {
    /// Makes a pool: opens or makes the devices of the spec, labels them, and opens it. Devices that hold anything are
    /// refused unless `force` is set, before any of them is touched.
    ///
    /// # Errors
    /// `Invalid` for a spec that makes no sense, `Device` and `Pool` for what the devices say.
    pub fn create(spec: &PoolSpec, force: bool, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        let joining = plan_creating(spec, force)?;
        Self::rehearse(spec, &joining.devices())?;
        let made = joining.make()?;
        let tiers = by_tier(&made, spec.tiers.iter().map(|tier| tier.devices.len()));
        let created = Self::create_with(spec, tiers, force, options);
        if created.is_err() {
            undo(made);
        }
        created
    }

    /// What [`create`](Self::create) would make devices of, in the order of the spec; nothing is made or changed.
    ///
    /// # Errors
    /// As `create`, as far as the devices go.
    pub fn plan(spec: &PoolSpec, force: bool) -> Result<Vec<JoiningDevice>, EngineError> {
        let planned = plan_creating(spec, force)?.devices();
        Self::rehearse(spec, &planned)?;
        Ok(planned)
    }

    /// Makes the pool in memory first, where that is worth it.
    fn rehearse(spec: &PoolSpec, planned: &[JoiningDevice]) -> Result<(), EngineError> {
        if !wants_rehearsal(spec) {
            return Ok(());
        }
        let options = OpenOptions {
            threads: false,
            ..OpenOptions::default()
        };
        Self::create_with(spec, rehearsal_devices(spec, planned), false, options)?.close()
    }

    /// Makes a pool on devices that are open already, one list per tier of the spec (whose own device lists are
    /// ignored): for the simulator.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_on(
        spec: &PoolSpec,
        devices: Vec<Vec<Arc<dyn Device>>>,
        options: OpenOptions,
    ) -> Result<Arc<Self>, EngineError> {
        Self::create_with(spec, devices, false, options)
    }

    fn create_with(
        spec: &PoolSpec,
        devices: Vec<Vec<Arc<dyn Device>>>,
        force: bool,
        options: OpenOptions,
    ) -> Result<Arc<Self>, EngineError> {
        let (pool, properties) = create_pool(spec, devices, force, &options)?;
        let engine = Self::start(pool, true, options)?;
        for (name, value) in properties {
            engine.datasets().properties().set(&spec.name, name, value)?;
        }
        Ok(engine)
    }

    /// Opens the pool that these devices make up, given in any order.
    ///
    /// # Errors
    /// `Pool` if labels or roots do not agree or devices are missing, `Store` if its tables cannot be read.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        Self::start(open_pool(devices, &options)?, false, options)
    }

    fn start(pool: Arc<Pool>, new: bool, options: OpenOptions) -> Result<Arc<Self>, EngineError> {
        let (floors, events) = open_floors(pool, new, &options)?;
        let (events, open) = (Arc::new(events), Arc::new(OpenFlag::default()));
        let complaints = Arc::new(Complaints::new(events.clone()));
        let alarms = Arc::new(Alarms::new(&floors, &events));
        let integrity = Arc::new(Integrity::new(&floors, &open, &events, &complaints));
        let devices = DeviceManager::new(
            &floors,
            options.randomness,
            &open,
            &events,
            &complaints,
            &integrity,
        );
        let devices = Arc::new(devices);
        let reports = (&complaints, &alarms);
        let clockwork = Clockwork::new(
            &floors,
            &open,
            reports,
            &integrity,
            &devices,
            options.owns_process,
        );
        let clockwork = Arc::new(clockwork);
        let reports = (&events, &alarms);
        let memory = options.memory_bytes;
        let lifecycle = Lifecycle::new(&floors, &open, reports, &integrity, &devices, &clockwork, memory);
        lifecycle.begin(new, options.threads)?;
        Ok(Arc::new(Self {
            status: StatusBuilder::new(&floors, &integrity, &devices, &clockwork),
            floors,
            events,
            integrity,
            devices,
            clockwork,
            lifecycle,
        }))
    }

    /// Name of the pool.
    pub fn name(&self) -> String {
        self.floors.pool.name()
    }

    /// The pool below.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.floors.pool
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.floors.store
    }

    /// The same store with its maintenance.
    pub fn chunks(&self) -> &Arc<ChunkStore> {
        &self.floors.chunks
    }

    /// The datasets.
    pub fn datasets(&self) -> &Arc<Datasets> {
        &self.floors.datasets
    }

    /// Caches, budget and heat.
    pub fn environment(&self) -> &Arc<Environment> {
        &self.floors.environment
    }

    /// The mover.
    pub fn mover(&self) -> &Arc<Mover> {
        &self.floors.mover
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.floors.clock
    }

    /// Commits and flushes all that was written, and goes on.
    ///
    /// # Errors
    /// `Closed`, and what could not be made durable.
    pub fn save(&self) -> Result<(), EngineError> {
        self.lifecycle.save()
    }

    /// Commits, flushes and writes a checkpoint, ends the threads. Later calls of other methods fail or do nothing.
    /// After an error it may be called again: it succeeds only when everything is saved.
    ///
    /// # Errors
    /// What could not be made durable.
    pub fn close(&self) -> Result<(), EngineError> {
        self.lifecycle.close()
    }

    /// Closes the pool and marks it on the labels, so that only `pool import` takes it up again.
    ///
    /// # Errors
    /// As [`close`](Self::close), and if the labels cannot be written.
    pub fn close_as(&self, state: PoolState) -> Result<(), EngineError> {
        self.lifecycle.close_as(state)
    }

    /// A property of the pool.
    ///
    /// # Errors
    /// `Invalid` if there is none of this name.
    pub fn property(&self, name: &str) -> Result<String, EngineError> {
        self.lifecycle.property(name)
    }

    /// All properties of the pool: name, value, whether it was set.
    pub fn properties(&self) -> Vec<(String, String, bool)> {
        self.lifecycle.properties()
    }

    /// Sets a property of the pool; it takes effect at once and is kept.
    ///
    /// # Errors
    /// `Invalid` for names and values that there are not.
    pub fn set_property(&self, name: &str, value: &str) -> Result<(), EngineError> {
        self.lifecycle.set_property(name, value)
    }

    /// Whether the mover may move data.
    pub fn migration(&self) -> bool {
        pool_properties::allows_migration(&self.floors.pool)
    }

    /// How often datasets without a `commit_interval` of their own are committed.
    pub fn commit_interval(&self) -> Duration {
        self.clockwork.commit_interval()
    }

    /// How long a device may answer nothing of what it is asked for.
    pub fn device_timeout(&self) -> Duration {
        self.clockwork.device_timeout()
    }

    /// The format version of the pool.
    pub fn format_version(&self) -> u32 {
        self.lifecycle.format_version()
    }

    /// What the versions bring that are newer than that of the pool; nothing if it has the newest.
    pub fn format_news(&self) -> Vec<FormatNews> {
        self.lifecycle.format_news()
    }

    /// Gives the pool the newest format version, durably: older programs cannot open it from then on.
    ///
    /// # Errors
    /// `Closed`, and what the store says.
    pub fn upgrade(&self) -> Result<(), EngineError> {
        self.lifecycle.upgrade()
    }

    /// Forgets all heat; of how many objects some was known.
    ///
    /// # Errors
    /// `Closed`; `Pool` or `Store` if that cannot be written: what is known in RAM is forgotten then, and may come back with a
    /// restart.
    pub fn clear_heat(&self) -> Result<usize, EngineError> {
        self.lifecycle.clear_heat()
    }

    /// One commit interval: commits all datasets at one moment and makes that durable, so that nothing older than the
    /// interval can be lost; returns the checkpoint that it closed.
    ///
    /// # Errors
    /// What the store says.
    pub fn tick(&self) -> Result<u64, EngineError> {
        self.clockwork.tick()
    }

    /// Commits and makes durable what is due by the `commit_interval` of its dataset or of the pool, and brings the copy of
    /// the log on a slower device up to date before it is behind for as long as that of the pool. Returns for how long nothing
    /// will be due.
    ///
    /// # Errors
    /// What the store says.
    pub fn commit_due(&self) -> Result<Duration, EngineError> {
        self.clockwork.commit_due()
    }

    /// One bounded step of background work: store, history and scrub, mover, writing ahead in turn. Returns whether
    /// there was any.
    ///
    /// # Errors
    /// What the store says.
    pub fn step(&self) -> Result<bool, EngineError> {
        self.clockwork.step()
    }

    /// Looks whether the devices answer; says how long to wait until the next look. Asks none of them for anything, and takes no lock
    /// that somebody may hold who waits for one.
    pub fn watch_devices(&self) -> Duration {
        self.clockwork.watch_devices()
    }

    /// Work in the background.
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.clockwork.jobs()
    }

    /// Pauses, resumes or cancels a job.
    ///
    /// # Errors
    /// `Invalid` if there is no such job or it cannot do that.
    pub fn job_action(&self, id: u64, action: &str) -> Result<(), EngineError> {
        self.clockwork.change_job(id, action)
    }

    /// Notes that something happened.
    pub fn event(&self, kind: &str, text: &str) {
        self.events.add(kind, text);
    }

    /// Notes a command that changed the pool.
    pub fn log_command(&self, user: &str, words: &str) {
        self.events.add_command(user, words);
    }

    /// Events with a number of at least `from`, oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub fn events(&self, from: u64) -> Result<Vec<Entry>, EngineError> {
        Ok(self.events.read(Ring::Events, from, usize::MAX)?)
    }

    /// The command log, oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub fn commands(&self) -> Result<Vec<Entry>, EngineError> {
        Ok(self.events.read(Ring::Commands, 0, usize::MAX)?)
    }

    /// The pool as it is now.
    pub fn status(&self) -> Status {
        self.status.status()
    }

    /// I/O counters of each device since the pool was opened.
    pub fn io_counters(&self) -> Vec<IoCounters> {
        self.status.io_counters()
    }

    /// What `status`, and whoever finds no room, is told of history that retention keeps; empty where it is next to nothing.
    pub fn describe_retained(&self) -> String {
        self.status.describe_retained()
    }

    /// What `status`, and whoever finds no room, is told of devices that take nothing new although they are there; empty if
    /// there are none.
    pub fn describe_set_aside(&self) -> String {
        self.devices.goals.describe_set_aside()
    }

    /// What `status` says while devices are behind; empty if none is.
    pub fn describe_behind(&self) -> String {
        self.devices.resilver.describe_behind()
    }

    /// Paths of the devices that do not answer. Waits for nothing.
    pub fn silent_devices(&self) -> Vec<String> {
        let silent = self.floors.pool.silent().into_iter();
        silent.map(|(_, path, _)| path).collect()
    }

    /// Starts a scrub in the background; false if one is running already.
    ///
    /// # Errors
    /// `Closed`.
    pub fn start_scrub(&self) -> Result<bool, EngineError> {
        self.integrity.start_scrub()
    }

    /// What is known to be lost with devices that are gone, could not be read when one was emptied, or was found damaged by
    /// the last scrub: files from number `from` on, and whether there are more.
    pub fn lost_files(&self, from: usize, limit: usize) -> (Vec<DamagedFile>, bool) {
        self.integrity.lost_files(from, limit)
    }

    /// Whether [`lost_files`](Self::lost_files) are surely all that the last scrub found.
    pub fn all_damaged_are_named(&self) -> bool {
        self.integrity.all_damaged_are_named()
    }

    /// A device by its path or number (`2`, `device:2`).
    ///
    /// # Errors
    /// `Invalid` if there is none, or if there are several at that path: a device that is gone, and the one in its place.
    pub fn find_device(&self, name: &str) -> Result<DeviceInfo, EngineError> {
        self.devices.names.find(name)
    }

    /// Adds devices to a tier, or to a new one at `place`: all of them are looked at before the first is touched. What was made for one
    /// that could not join is removed.
    ///
    /// # Errors
    /// `Invalid` for a tier that makes no sense, `Busy`, `Device` and `Pool` for what the devices say.
    pub fn add_devices(
        &self,
        tier: &str,
        devices: &[DeviceSpec],
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<Vec<AddedDevice>, EngineError> {
        self.devices.add_devices(tier, devices, place, copies, force)
    }

    /// What [`add_devices`](Self::add_devices) would add; nothing is made or changed.
    ///
    /// # Errors
    /// As `add_devices`.
    pub fn plan_adding(
        &self,
        tier: &str,
        devices: &[DeviceSpec],
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<Vec<JoiningDevice>, EngineError> {
        self.devices.plan_adding(tier, devices, place, copies, force)
    }

    /// Adds a device that is open already: for the simulator.
    ///
    /// # Errors
    /// As [`add_devices`](Self::add_devices).
    pub fn add_opened(
        &self,
        tier: &str,
        device: Arc<dyn Device>,
        place: Option<&TierPlace>,
        copies: u8,
        force: bool,
    ) -> Result<AddedDevice, EngineError> {
        self.devices.add_opened(tier, device, place, copies, force)
    }

    /// Whether the other devices can hold what is on this one. `joining_bytes`: what a device about to join adds.
    pub fn plan_leaving(&self, info: &DeviceInfo, joining_bytes: u64) -> LeavingPlan {
        self.devices.plans.leaving(info, joining_bytes)
    }

    /// The same for who only asks: emptying a device that is missing would fail at its end if it has something that no other one has.
    ///
    /// # Errors
    /// What the store says.
    pub fn plan_leaving_whole(
        &self,
        info: &DeviceInfo,
        plan: LeavingPlan,
    ) -> Result<LeavingPlan, EngineError> {
        self.devices.plans.check_alone(info, plan)
    }

    /// Empties a device in the background; it stays in the pool and takes nothing new. Returns the job.
    ///
    /// # Errors
    /// `Invalid` with figures if the other devices cannot hold what is on it.
    pub fn evacuate_device(&self, name: &str) -> Result<u64, EngineError> {
        self.devices.evacuate(name)
    }

    /// Lets a device that was emptied, or is being, take content again; only says whether it could if `dry_run`.
    ///
    /// # Errors
    /// `Invalid` if it was not emptied, `Busy` if it is being taken out or shrunk.
    pub fn use_device_again(&self, name: &str, dry_run: bool) -> Result<(), EngineError> {
        self.devices.use_again(name, dry_run)
    }

    /// Empties a device in the background and takes it out of the pool. Returns the job.
    ///
    /// # Errors
    /// As [`evacuate_device`](Self::evacuate_device).
    pub fn remove_device(&self, name: &str) -> Result<u64, EngineError> {
        self.devices.remove(name)
    }

    /// Moves what can be read off a device, or was copied elsewhere, and takes it out of the pool with the rest, which is
    /// lost. Returns the job; none if the device is missing and there is no room to copy anything anew: then it is
    /// struck from the pool at once.
    ///
    /// # Errors
    /// As [`evacuate_device`](Self::evacuate_device), for a device that is there.
    pub fn give_up_device(&self, name: &str) -> Result<Option<u64>, EngineError> {
        self.devices.give_up(name)
    }

    /// What [`replace_device`](Self::replace_device) would come to, in figures; nothing is made or changed.
    ///
    /// # Errors
    /// `Invalid` or `Device` if the new device cannot be used.
    pub fn plan_replacing(
        &self,
        info: &DeviceInfo,
        new: &DeviceSpec,
        force: bool,
    ) -> Result<LeavingPlan, EngineError> {
        self.devices.plan_replacing(info, new, force)
    }

    /// Puts a new device in the place of another one, which is emptied and taken out. Returns the job.
    ///
    /// # Errors
    /// As [`add_devices`](Self::add_devices) and [`evacuate_device`](Self::evacuate_device).
    pub fn replace_device(&self, old: &str, new: &DeviceSpec, force: bool) -> Result<u64, EngineError> {
        self.devices.replace_device(old, new, force)
    }

    /// Replaces by a device that is open already: for the simulator.
    ///
    /// # Errors
    /// As [`replace_device`](Self::replace_device).
    pub fn replace_opened(
        &self,
        old: &str,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<u64, EngineError> {
        self.devices.replace_opened(old, device, force)
    }

    /// The old and the new device of the replacement that a job does.
    pub fn replacement_of(&self, job: u64) -> Option<(u16, u16)> {
        self.devices.drains.replacement_of(job)
    }

    /// What is in the pool behind a replacement that did not come to its end, and what to type.
    pub fn after_replacing(&self, old: u16, new: u16) -> String {
        self.devices.drains.after_replacing(old, new)
    }

    /// Whether a device can be shrunk to this size, in figures: what lies at its end, and the room for it elsewhere.
    ///
    /// # Errors
    /// `Invalid` for a size that is none for it, or a device that is not well.
    pub fn plan_shrinking(&self, info: &DeviceInfo, size_bytes: u64) -> Result<LeavingPlan, EngineError> {
        self.devices.plans.shrinking(info, size_bytes)
    }

    /// Empties the end of a device in the background and cuts it off: labels first, then a file or directory itself.
    /// Returns the job.
    ///
    /// # Errors
    /// As [`plan_shrinking`](Self::plan_shrinking), with figures if there is no room for what lies there.
    pub fn shrink_device(&self, name: &str, size_bytes: u64) -> Result<u64, EngineError> {
        self.devices.shrink(name, size_bytes)
    }

    /// Uses what a device has grown by; returns its size before and now, bytes.
    ///
    /// # Errors
    /// `Invalid` for a device that is missing, `Busy` while it is emptied, `Device` if it cannot be measured.
    pub fn resize_device(&self, name: &str) -> Result<(u64, u64), EngineError> {
        self.devices.resize(name)
    }

    /// Whether nothing empties a device yet, so that it could be told to leave.
    ///
    /// # Errors
    /// `Busy` with the job that does.
    pub fn check_stays(&self, device: u16) -> Result<(), EngineError> {
        self.devices.drains.check_stays(device)
    }

    /// Whether a job still has something to do with a device, although its own steps may be over.
    pub fn is_leaving(&self, job: u64) -> bool {
        self.devices.drains.is_leaving(job)
    }

    /// What is set aside for content that still has to move off devices that are being emptied, bytes.
    pub fn leaving_room_bytes(&self) -> u64 {
        self.devices.drains.set_aside_bytes()
    }

    /// Draws the consequences of jobs that ended: takes devices out that are empty, lets those be used again whose
    /// job was given up. Cheap when nothing is being emptied.
    ///
    /// # Errors
    /// If the labels cannot be written; what is left is done by the next call.
    pub fn settle_leaving(&self) -> Result<(), EngineError> {
        self.devices.drains.settle()
    }

    /// The job that brings devices up to date, until what follows from its end is done.
    pub fn resilver_job(&self) -> Option<u64> {
        self.devices.resilver.job()
    }

    /// Changes the settings of a tier; in force at once. Returns the tiers on which something lands no more, as it lands on this
    /// one now.
    ///
    /// # Errors
    /// `Pool` if there is no such tier or the labels cannot be written; `Invalid` with figures if more copies would take what is
    /// set aside.
    pub fn set_tier(
        &self,
        name: &str,
        settings: TierSettings,
    ) -> Result<Vec<(String, Landing)>, EngineError> {
        self.devices.tiers.set(name, settings)
    }

    /// Gives log and metadata their second copy now, as far as there is a device with room for it; whether they have it. Who asks
    /// for copies does not wait for the next segment of the log. Takes as long as copying what metadata lies on one device.
    ///
    /// # Errors
    /// `Store` if a device fails.
    pub fn mirror_metadata(&self) -> Result<bool, EngineError> {
        self.devices.tiers.mirror_metadata()
    }

    /// Fill level up to which a tier keeps what is written, so that the disks below may sleep.
    pub fn hold_of(&self, tier: &str) -> Option<f64> {
        self.devices.tiers.hold_of(tier)
    }

    /// Sets it; in force at once.
    ///
    /// # Errors
    /// `Invalid` for a level below the low-water mark, `Pool` if there is no such tier or the labels cannot be written.
    pub fn set_hold(&self, tier: &str, level: Option<f64>) -> Result<(), EngineError> {
        self.devices.tiers.set_hold(tier, level)
    }

    /// The steps, for tests of one of them.
    #[cfg(test)]
    pub(crate) fn clockwork(&self) -> &Clockwork {
        &self.clockwork
    }
}

/// Rebuilds the pool on these devices, which may be open for reading only, into `target`, a fresh pool that is open
/// without threads; afterwards `target` must be dropped and opened anew. Without a target it only says what it would do.
///
/// # Errors
/// `Pool` if no device has a label; `Invalid` if the target is not fresh; what the target says, `NoSpace` above all.
pub fn rebuild_pool<'a>(
    devices: Vec<Arc<dyn Device>>,
    target: Option<&'a Arc<Engine>>,
    options: RebuildOptions,
    progress: &'a mut Progress<'a>,
) -> Result<RebuildReport, EngineError> {
    rebuild::run(devices, target.map(|target| &target.floors), options, progress)
}
