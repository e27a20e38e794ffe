//! `Pool`: an open pool. Wiring only: each question goes to the component that owns the answer.
//!
//! Order of locks: labels, roots, devices, space. Those of devices and space are held across no I/O; changes of labels and roots
//! are serialised across theirs.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use terrace_device::{DEVICE_BLOCK_BYTES, Device, Randomness, Stray};

use crate::{
    ContentRoom, CreateOptions, DeviceAdd, DeviceInfo, Freed, FrontDamage, Landing, OpenOptions, PoolError,
    PoolId, PoolState, Request, SegmentId, SegmentRange, SegmentRead, SegmentWrite, TierInfo, TierSettings,
    devices::{Members, OpenDevice},
    labels::{self, FrontCheck, Labels, edits},
    lifecycle::{self, DeviceChanges, Opened, Returned},
    ondisk::segment_count,
    roots::Roots,
    space::FreeSpace,
};

/// An open pool. All methods may be called from any thread.
pub struct Pool {
    members: Arc<Members>,
    space: FreeSpace,
    roots: Arc<Roots>,
    labels: Labels,
    returned: Returned,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} generation {})", self.name(), self.generation())
    }
}

/// Making and opening.
impl Pool {
    /// Writes labels on the devices and opens the new pool. No root is written: the floor above does that.
    pub fn create(options: CreateOptions, randomness: &dyn Randomness) -> Result<Self, PoolError> {
        Ok(Self::assemble(lifecycle::create(options, randomness)?))
    }

    /// Opens a pool from its devices, in any order. Every segment is free until [`Self::claim`]ed. Devices that are
    /// no longer (or not yet) part of the pool are left alone.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Self, PoolError> {
        let opened = lifecycle::open(devices, &options)?;
        let at_once = opened.at_once;
        let pool = Self::assemble(opened);
        if at_once {
            pool.labels.settle()?;
        }
        Ok(pool)
    }

    fn assemble(opened: Opened) -> Self {
        let space = FreeSpace::new(&opened.devices);
        let members = Arc::new(Members::new(
            opened.label,
            opened.devices,
            opened.is_read_only,
            opened.parallelism,
        ));
        let roots = Arc::new(Roots::new(members.clone(), opened.roots));
        Self {
            labels: Labels::new(members.clone(), roots.clone(), opened.generation, opened.next),
            members,
            space,
            roots,
            returned: opened.returned,
        }
    }

    /// The number of the device of this pool that is at `path`, whatever its age, by its label.
    pub fn member_at(&self, path: &Path) -> Option<u16> {
        lifecycle::member_at(path, &self.members.label())
    }
}

/// What the labels say.
impl Pool {
    /// Identity.
    pub fn id(&self) -> PoolId {
        self.members.read().label().pool_id
    }

    /// Name.
    pub fn name(&self) -> String {
        self.members.read().label().pool_name.clone()
    }

    /// State in the labels.
    pub fn state(&self) -> PoolState {
        self.members.read().label().state
    }

    /// Generation of the labels.
    pub fn generation(&self) -> u64 {
        self.members.read().label().generation
    }

    /// When the pool was made, nanoseconds since 1970.
    pub fn created_nanoseconds(&self) -> u64 {
        self.members.read().label().created_nanoseconds
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.members.is_read_only()
    }

    /// Segment size in bytes, a power of two from 1 MiB to 64 MiB; the same on every device.
    pub fn segment_bytes(&self) -> u32 {
        self.members.segment_bytes()
    }

    /// How many tiers there are.
    pub fn tier_count(&self) -> usize {
        self.members.read().label().tiers.len()
    }

    /// How many devices the pool has, missing ones included.
    pub fn device_count(&self) -> usize {
        self.members.read().label().members.len()
    }

    /// Tier of a device.
    pub fn tier_of(&self, device: u16) -> Option<u8> {
        self.members.read().tier_of(device)
    }

    /// How many copies a tier keeps of content.
    pub fn copies_in(&self, tier: u8) -> u8 {
        let members = self.members.read();
        let settings = members.label().tiers.get(usize::from(tier));
        settings.map_or(1, |settings| settings.copies)
    }

    /// Properties of the pool.
    pub fn properties(&self) -> BTreeMap<String, String> {
        self.members.read().label().properties.clone()
    }

    /// One property.
    pub fn property(&self, name: &str) -> Option<String> {
        self.members.read().label().properties.get(name).cloned()
    }

    /// Sets (or with `None` removes) a property; durable when it returns.
    pub fn set_property(&self, name: &str, value: Option<&str>) -> Result<(), PoolError> {
        self.labels
            .update(|label| edits::set_property(label, name, value))
    }

    /// Replaces the settings of the tier of this name; durable when it returns. What lands there does not land on others any
    /// more: returns the names of those, and what each took until now.
    pub fn set_tier(&self, name: &str, settings: TierSettings) -> Result<Vec<(String, Landing)>, PoolError> {
        self.labels.update(|label| edits::set_tier(label, name, settings))
    }

    /// Takes a tier without devices out of the order; the slower ones move up by one. Returns where it was.
    pub fn remove_tier(&self, name: &str) -> Result<u8, PoolError> {
        self.labels.update(|label| edits::remove_tier(label, name))
    }

    /// Changes the state in the labels; durable when it returns. The caller stops using the pool after `Exported`
    /// and `Destroyed`.
    pub fn set_state(&self, state: PoolState) -> Result<(), PoolError> {
        self.labels.update(|label| {
            label.state = state;
            Ok(())
        })
    }

    /// Changes the name; durable when it returns.
    pub fn rename(&self, name: &str) -> Result<(), PoolError> {
        self.labels.update(|label| {
            label.pool_name = name.to_owned();
            Ok(())
        })
    }
}

/// Devices that are there, were away, fail or do not answer.
impl Pool {
    /// Devices, ascending by number, missing ones too.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.space.devices(&self.members.read())
    }

    /// Devices that count as failing since the pool was opened: number, path, and why.
    pub fn failing(&self) -> Vec<(u16, String, String)> {
        self.members.failing()
    }

    /// Open devices that their paths do not lead to any more, with these paths.
    pub fn strays(&self) -> Vec<(String, Stray)> {
        self.members.strays()
    }

    /// Whether this device is part of the pool and there.
    pub fn has_device(&self, device: u16) -> bool {
        self.members.is_there_and(device, |_| true)
    }

    /// Whether this device is there and takes something new: it neither fails nor is being emptied.
    pub fn takes_new(&self, device: u16) -> bool {
        self.members.is_there_and(device, OpenDevice::is_usable)
    }

    /// Whether this device is there and gave errors.
    pub fn is_failing(&self, device: u16) -> bool {
        self.members
            .is_there_and(device, |device| device.failure().is_some())
    }

    /// Whether what this device has counts at the next opening, also what no other has: it works, and the labels neither call it
    /// absent nor will for what it lacks. Who opens the pool without a device that does not count misses nothing that it has alone.
    pub fn counts_alone(&self, device: u16) -> bool {
        self.members.counts_alone(device)
    }

    /// Whether this segment is there: its device is, and was not cut short before it.
    pub fn has_segment(&self, segment: SegmentId) -> bool {
        self.members.has_segment(segment)
    }

    /// Devices that were away until this very opening, those that were in use longest first: what they have of the log beyond
    /// the others, and beyond those before them here, was given up.
    pub fn returned(&self) -> Vec<u16> {
        self.returned.all.clone()
    }

    /// Those of the returned that no label had called absent: a copy of the device that was made some time ago, or one that lost
    /// what was written to it.
    pub fn outdated(&self) -> Vec<u16> {
        self.returned.outdated.clone()
    }

    /// Those of them that have an older label, so that they lack whatever came after the opening that wrote it. One that is told by
    /// its root alone may have refused that root, and have all else.
    pub fn outdated_by_label(&self) -> Vec<u16> {
        self.returned.with_old_label.clone()
    }

    /// Those that were away until this opening, and those that were before and have not got yet what they missed.
    pub fn returning(&self) -> Vec<u16> {
        let mut numbers = self.returned();
        numbers.retain(|number| self.has_device(*number));
        numbers.extend(self.members.behind());
        numbers
    }

    /// How many devices of a tier are there and may get something new.
    pub fn usable_devices(&self, tier: u8) -> usize {
        self.members.read().usable_in(tier).count()
    }

    /// Nothing new is put on a draining device. Not kept in the labels: whoever drains says so again after opening.
    pub fn set_draining(&self, device: u16, draining: bool) -> Result<(), PoolError> {
        self.members.device(device)?.set_draining(draining);
        Ok(())
    }

    /// Looks at all devices, whether they answer what they were asked for; those that have not for `timeout` are asked for nothing more
    /// until they do, as long as another one answers. To be called several times within it, by a thread that asks no device for anything. Nanoseconds, by a clock that only
    /// goes on and since 1970. Whether that changed for any.
    pub fn look_at_devices(&self, monotonic: u64, now: u64, timeout: u64) -> bool {
        self.members.look(monotonic, now, timeout)
    }

    /// Whether there are devices, and none of them answers.
    pub fn is_silent(&self) -> bool {
        self.members.are_silent()
    }

    /// When the first of the devices that do not answer now was found not to.
    pub fn first_found_silent(&self) -> Option<u64> {
        self.members.first_found_silent()
    }

    /// Devices that do not answer: number, path, and since when, nanoseconds since 1970.
    pub fn silent(&self) -> Vec<(u16, String, u64)> {
        self.members.silent()
    }

    /// Counts content that did not match its checksum.
    pub fn note_checksum_error(&self, device: u16) {
        if let Ok(device) = self.members.device(device) {
            device.note_checksum_error();
        }
    }

    /// Devices that the labels call absent, and which are there, have a whole copy now of what of the log is to be on them; they
    /// get the newest root, and from here on can stand for the others; one that does not take it stays absent. What else they
    /// missed is still to be brought to them.
    ///
    /// # Errors
    /// If no device takes the root or the label.
    pub fn take_back(&self, devices: &[u16]) -> Result<(), PoolError> {
        self.labels.take_back(devices)
    }

    /// A device did not take what another one has, and is otherwise in use: the next
    /// [`note_failing`](Self::note_failing) says so on the labels. One that is missing is known to be.
    pub fn note_lacking(&self, device: u16) {
        self.members.note_lacking(device);
    }

    /// Notes devices on the labels of the others that fail, or lack what others have: without these they are of the past.
    ///
    /// # Errors
    /// If no other device takes the label.
    pub fn note_failing(&self) -> Result<(), PoolError> {
        self.labels.note_failing()
    }

    /// A device that came back has all again that is to be on it.
    ///
    /// # Errors
    /// If no device takes the label.
    pub fn note_whole(&self, device: u16) -> Result<(), PoolError> {
        self.labels.note_whole(device)
    }
}

/// Devices that join, leave, grow or shrink.
impl Pool {
    fn changes(&self) -> DeviceChanges<'_> {
        DeviceChanges {
            members: &self.members,
            space: &self.space,
            roots: &self.roots,
            labels: &self.labels,
        }
    }

    /// Whether [`add_device`](Self::add_device) would take a device of this size to a tier that there is, behind so many others,
    /// whatever it holds now; nothing is changed.
    ///
    /// # Errors
    /// Those of `add_device`.
    pub fn check_joining(&self, path: &str, size_bytes: u64, others: u16) -> Result<(), PoolError> {
        self.changes().check_joining(path, size_bytes, others)
    }

    /// Whether [`add_device`](Self::add_device) would make one more tier.
    ///
    /// # Errors
    /// `Invalid` if there are as many as there can be.
    pub fn check_new_tier(&self) -> Result<(), PoolError> {
        edits::has_tier_left(self.members.read().label())
    }

    /// Adds a device; returns its number. Refuses one that belongs to a pool or holds something else, unless `force`.
    pub fn add_device(
        &self,
        device: Arc<dyn Device>,
        place: DeviceAdd,
        force: bool,
        randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        self.changes().add(device, place, force, randomness)
    }

    /// Adds a device to the tier of `old`, to take its place: nothing new is put on `old` any more. The floors above
    /// move what is on it and then call [`Self::remove_device`] (at once, if it is missing). Returns the new number.
    pub fn replace_device(
        &self,
        old: u16,
        device: Arc<dyn Device>,
        force: bool,
        randomness: &dyn Randomness,
    ) -> Result<u16, PoolError> {
        self.changes().replace(old, device, force, randomness)
    }

    /// Takes a device without claimed segments out of the pool; its labels and roots are wiped, and the rest of both ends, so
    /// that it counts as empty. A missing device
    /// (see [`crate::OpenOptions::degraded`]) is struck from the list.
    pub fn remove_device(&self, number: u16) -> Result<(), PoolError> {
        self.changes().take_out(number, false)
    }

    /// As [`Self::remove_device`], also with segments in use: what is in them is given up.
    pub fn abandon_device(&self, number: u16) -> Result<(), PoolError> {
        self.changes().take_out(number, true)
    }

    /// Uses what a device's backing has grown by; returns the new number of segments.
    pub fn resize_device(&self, number: u16) -> Result<u32, PoolError> {
        self.changes().resize(number)
    }

    /// What a device would have if it were cut off at `size_bytes`: the size itself, in whole blocks, and segments.
    ///
    /// # Errors
    /// `TooSmall`, and `Invalid` if that is not smaller than it is.
    pub fn measure_shrunk(&self, number: u16, size_bytes: u64) -> Result<(u64, u32), PoolError> {
        self.changes().measure_shrunk(number, size_bytes)
    }

    /// Segments of a device of this size.
    pub fn segments_in(&self, size_bytes: u64) -> u32 {
        segment_count(size_bytes, self.segment_bytes())
    }

    /// Takes no more segments of a device from this index on, or (`None`) all again. Not kept in the labels: whoever
    /// shrinks says so again after opening.
    pub fn limit_device(&self, number: u16, segments: Option<u32>) {
        self.space.set_limit(number, segments);
    }

    /// Cuts the end off a device on which nothing is in use any more: the labels first, then the backing, if it can be
    /// cut. May be repeated after it failed or was interrupted.
    ///
    /// # Errors
    /// `DeviceInUse`, or what the devices say. The device may be smaller then, and its backing not be cut.
    pub fn shrink_device(&self, number: u16, size_bytes: u64) -> Result<(), PoolError> {
        self.changes().shrink(number, size_bytes)
    }
}

/// Segments: which are free, and for whom.
impl Pool {
    /// Tiers, fastest first.
    pub fn tiers(&self) -> Vec<TierInfo> {
        self.space.tiers(&self.members.read())
    }

    /// Takes a free segment. It holds unspecified bytes. `NoSpace` when no device that fits has one.
    pub fn allocate(&self, request: &Request<'_>) -> Result<SegmentId, PoolError> {
        self.members.check_writable()?;
        self.space.allocate(request, &self.members.read())
    }

    /// Up to these fill levels (one entry per tier, fastest first) tiers keep what is written, also what would land on
    /// a slower one. Not kept in the labels: whoever holds says so again after opening, and when the tiers change.
    pub fn set_holds(&self, levels: Vec<Option<f64>>) {
        self.space.set_holds(levels);
    }

    /// Marks a segment as in use when the pool is opened; an error if it does not exist or is in use already.
    pub fn claim(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.space.claim(segment)
    }

    /// Gives a segment back; it may be handed out again at once.
    pub fn release(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.space.release(segment)
    }

    /// Whether a segment is in use.
    pub fn is_claimed(&self, segment: SegmentId) -> bool {
        self.space.is_claimed(segment)
    }

    /// Free segments on all devices that new data may be put on.
    pub fn free_segments(&self) -> u64 {
        self.usable_segments().0
    }

    /// Free segments, and all, of the devices that can be written.
    pub fn usable_segments(&self) -> (u64, u64) {
        self.space.usable_segments(&self.members.read())
    }

    /// Free segments that content can have, with as many copies as its tier keeps, each on a device of its own: what is
    /// free on a device that no other of its tier can match does not count.
    pub fn free_for_content(&self) -> u64 {
        self.content_room().raw
    }

    /// What content can still get, by what each tier keeps of it.
    pub fn content_room(&self) -> ContentRoom {
        self.space.content_room(&self.members.read())
    }

    /// The same if the tier of this name kept so many copies.
    pub fn content_room_with(&self, tier: &str, copies: u8) -> ContentRoom {
        self.space.content_room_with(tier, copies, &self.members.read())
    }

    /// What content can get without these segments: what there would be if the device ended before them, now and with nothing in use
    /// anywhere.
    pub fn for_content_without(&self, range: SegmentRange) -> (ContentRoom, ContentRoom) {
        self.space.for_content_without(range, &self.members.read())
    }

    /// What content could get without a device, and perhaps with one more of `joining` segments in its place. `freed`: segments
    /// that what lies on it frees on another one of its tier when it moves, as its other copies move with it; `anywhere`: so
    /// many more in all.
    pub fn for_content_leaving(
        &self,
        leaving: u16,
        joining: Option<u64>,
        freed: impl Fn(u16) -> Freed,
        anywhere: u64,
    ) -> ContentRoom {
        let members = self.members.read();
        self.space
            .for_content_leaving(leaving, joining, freed, anywhere, &members)
    }

    /// Segments on all devices that are there.
    pub fn total_segments(&self) -> u64 {
        self.space.total_segments()
    }

    /// Segments on all devices that are there but those that are being emptied, and but that one.
    pub fn staying_segments(&self, without: Option<u16>) -> u64 {
        self.space.staying_segments(without, &self.members.read())
    }

    /// How many of these segments are in use, and how many free segments the device has before them.
    pub fn usage_of(&self, range: SegmentRange) -> (u32, u32) {
        self.space.usage_of(range)
    }
}

/// Bytes of segments.
impl Pool {
    /// What offsets and lengths of reads of a device must be multiples of, bytes; divides 4096.
    pub fn read_unit_bytes(&self, device: u16) -> usize {
        let device = self.members.device(device);
        device.map_or(DEVICE_BLOCK_BYTES, |device| device.raw().read_unit_bytes())
    }

    /// Fills `buffer` from `offset` bytes into the segment (multiples of [`Self::read_unit_bytes`]). Tried twice before it
    /// fails.
    pub fn read(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> Result<(), PoolError> {
        self.members.read_segment(segment, offset, buffer)
    }

    /// Several reads of segments of one device, at once where it can; each gets an outcome of its own.
    pub fn read_many(&self, device: u16, reads: &mut [SegmentRead<'_>]) {
        self.members.read_many(device, reads);
    }

    /// Writes at `offset` bytes into the segment (multiples of 4096). Durable after [`Self::flush`].
    pub fn write(&self, segment: SegmentId, offset: u64, data: &[u8]) -> Result<(), PoolError> {
        self.write_vectored(segment, offset, &[data])
    }

    /// As [`Self::write`], the parts one after the other.
    pub fn write_vectored(&self, segment: SegmentId, offset: u64, parts: &[&[u8]]) -> Result<(), PoolError> {
        debug_assert!(
            self.may_be_written(segment),
            "segment {segment} is written to but was not allocated"
        );
        self.members.write_segment(segment, offset, parts)
    }

    /// Several writes of segments, which do not overlap, those of one device at once and in any order; each is tried and
    /// gets an outcome of its own.
    pub fn write_many(&self, writes: &mut [SegmentWrite<'_>]) {
        debug_assert!(
            writes.iter().all(|write| self.may_be_written(write.segment)),
            "a segment is written to but was not allocated"
        );
        self.members.write_many(writes);
    }

    /// Whether it is in use, or refuses to be written anyway.
    fn may_be_written(&self, segment: SegmentId) -> bool {
        self.is_read_only() || self.is_claimed(segment) || !self.has_device(segment.device)
    }

    /// Makes durable what was written to these devices (numbers; twice the same is fine). The first error is
    /// returned after all were tried.
    pub fn flush(&self, devices: &[u16]) -> Result<(), PoolError> {
        self.flush_each(devices).into_values().next().map_or(Ok(()), Err)
    }

    /// The same; which of them failed, and why.
    pub fn flush_each(&self, devices: &[u16]) -> BTreeMap<u16, PoolError> {
        self.members.flush_each(devices)
    }

    /// Flushes every device that is there.
    pub fn flush_all(&self) -> Result<(), PoolError> {
        self.members.flush_all()
    }

    /// Tells the device that the content of a segment is not needed. Only while it is still the caller's, just before
    /// [`Self::release`]: afterwards somebody else may be writing to it.
    pub fn discard(&self, segment: SegmentId) -> Result<(), PoolError> {
        self.members.discard(segment)
    }
}

/// Roots, and whether labels and roots are whole.
impl Pool {
    /// The payload of the newest valid root; `None` if none was ever written. `NoRoot` when all are damaged, `NewerRoot`
    /// when a newer program wrote the newest one.
    pub fn read_root(&self) -> Result<Option<Vec<u8>>, PoolError> {
        self.roots.read()
    }

    /// The newest roots that devices have which were away until this opening, each with the number of the device.
    pub fn past_roots(&self) -> Vec<(u16, Vec<u8>)> {
        self.roots.past()
    }

    /// Writes a root to up to four devices (fastest first) and flushes them: durable when it returns. What it refers
    /// to must be durable before. Fails when fewer than two devices took it, if the pool has two that work and lack nothing.
    pub fn write_root(&self, payload: &[u8]) -> Result<(), PoolError> {
        self.roots.write(payload)
    }

    /// Writes the newest root into the other slots too, at the end of an opening: a copy of a device that was made before then has
    /// an older root than any slot of the others, by which the next opening tells it.
    ///
    /// # Errors
    /// As [`write_root`](Self::write_root); nothing relies on it.
    pub fn repeat_last_root(&self) -> Result<(), PoolError> {
        self.roots.repeat(None)
    }

    /// Makes the root that [`read_root`](Self::read_root) gave the one that every later opening finds. To be called by
    /// whoever opened the pool, once that root proved to lead to a whole state, and before a segment is allocated: from
    /// then on a root that is older, or that could not be read, leads to segments that were written over.
    ///
    /// Before that, labels are written that say which devices are away, or came back: without them nothing is changed.
    ///
    /// Such another root would come back where a crash came between two devices, when the one that has the newest is
    /// lost; where it came between the two copies on a device, when the one that has the newest goes bad; or where a
    /// slot could not be read this time; or where a device that is not there has a newer one, and is taken back later.
    ///
    /// # Errors
    /// If no root can be written: nothing was changed then that an older or newer root relies on.
    pub fn settle_roots(&self) -> Result<(), PoolError> {
        self.labels.settle()?;
        self.roots.settle()
    }

    /// The payloads of all valid roots in all slots, each once, newest first; and whether every slot of every device
    /// could be read and none is damaged, so that there can have been no newer one.
    pub fn root_payloads(&self) -> (Vec<Vec<u8>>, bool) {
        labels::root_payloads(&self.members)
    }

    /// Reads every copy of the label and every root slot of every device that is there; returns what is wrong, in
    /// words, and how many copies were looked at.
    pub fn check_copies(&self) -> (Vec<String>, u64) {
        labels::check_copies(&self.members, &self.roots)
    }

    /// Reads every copy of label and root of every device that is there, and writes anew what is not as it should be (nothing where
    /// the pool is open for reading). Reads 8 times 64 KiB of each device; labels do not change meanwhile.
    ///
    /// # Errors
    /// If no device takes a label or root.
    pub fn mend_fronts(&self) -> Result<Vec<FrontDamage>, PoolError> {
        let check = FrontCheck {
            members: &self.members,
            labels: &self.labels,
            roots: &self.roots,
        };
        check.mend()
    }

    /// Whether a root is being written.
    #[cfg(test)]
    pub(crate) fn is_writing_root(&self) -> bool {
        self.roots.is_locked()
    }
}
