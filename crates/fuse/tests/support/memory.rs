//! A small filesystem in RAM that can be changed: enough POSIX to test what the mount does with it.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::{Condvar, Mutex};
use terrace_dataset::{
    AllocateMode, AttributeMode, Attributes, Context, DirectoryEntry, FileKind, FsError, FsStatistics,
    RenameMode, SeekTarget, SetAttributes, SetId, SetTime, Time, Tree, WriteDone,
};
use terrace_fuse::Files;

struct Object {
    attributes: Attributes,
    content: Vec<u8>,
    children: BTreeMap<Vec<u8>, u64>,
    extended: BTreeMap<Vec<u8>, Vec<u8>>,
    parent: u64,
    held: bool,
}

#[derive(Default)]
struct State {
    objects: hashbrown::HashMap<u64, Object>,
    next: u64,
}

/// See above.
pub struct Memory {
    state: Mutex<State>,
    pub syncs: AtomicU64,
    gated: bool,
}

/// The first byte of what a filesystem made by [`Memory::gated`] writes only while the gate is open.
pub const HELD: u8 = 0xee;

/// Who waits before it, and whether it is open. One for the process, so that a test need not ask through a mount.
#[derive(Default)]
struct Gate {
    waiting: usize,
    open: bool,
}

static GATE: Mutex<Gate> = Mutex::new(Gate {
    waiting: 0,
    open: false,
});
static OPENED: Condvar = Condvar::new();

/// Opens or closes the gate.
pub fn set_gate(open: bool) {
    GATE.lock().open = open;
    OPENED.notify_all();
}

/// How many writes wait before the gate.
pub fn held_writes() -> usize {
    GATE.lock().waiting
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time {
        seconds: since.as_secs() as i64,
        nanos: since.subsec_nanos(),
    }
}

fn cookie(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (hasher.finish() >> 2) | 16
}

impl State {
    fn object(&mut self, object: u64) -> Result<&mut Object, FsError> {
        self.objects.get_mut(&object).ok_or(FsError::NotFound)
    }

    fn child(&self, dir: u64, name: &[u8]) -> Result<u64, FsError> {
        let dir = self.objects.get(&dir).ok_or(FsError::NotFound)?;
        dir.children.get(name).copied().ok_or(FsError::NotFound)
    }

    fn make(&mut self, context: &Context, parent: u64, kind: FileKind, mode: u32) -> u64 {
        self.next += 1;
        let now = now();
        let attributes = Attributes {
            object: self.next,
            kind,
            mode: mode & !context.umask,
            uid: context.uid,
            gid: context.gid,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            size: 0,
            blocks512: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            device: 0,
            generation: 1,
        };
        let (content, children, extended) = Default::default();
        let object = Object {
            attributes,
            content,
            children,
            extended,
            parent,
            held: false,
        };
        self.objects.insert(self.next, object);
        self.next
    }

    fn insert(&mut self, dir: u64, name: &[u8], object: u64) -> Result<(), FsError> {
        let dir = self.object(dir)?;
        if dir.children.contains_key(name) {
            return Err(FsError::Exists);
        }
        dir.children.insert(name.to_vec(), object);
        dir.attributes.modified = now();
        dir.attributes.changed = now();
        Ok(())
    }

    fn add(
        &mut self,
        context: &Context,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
    ) -> Result<Attributes, FsError> {
        if self.child(dir, name).is_ok() {
            return Err(FsError::Exists);
        }
        let object = self.make(context, dir, kind, mode);
        self.insert(dir, name, object)?;
        Ok(self.objects[&object].attributes)
    }

    fn take(&mut self, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        let object = self.child(dir, name)?;
        let victim = self.object(object)?;
        if !victim.children.is_empty() {
            return Err(FsError::NotEmpty);
        }
        let gone = if victim.attributes.kind == FileKind::Directory {
            2
        } else {
            1
        };
        victim.attributes.links = victim.attributes.links.saturating_sub(gone);
        victim.attributes.changed = now();
        victim.held = victim.attributes.links == 0;
        let attributes = victim.attributes;
        let dir = self.object(dir)?;
        dir.children.remove(name);
        dir.attributes.modified = now();
        Ok(attributes)
    }
}

impl Memory {
    pub fn new() -> Arc<Self> {
        Self::with_gate(false)
    }

    /// One that writes without waiting, but for what begins with [`HELD`].
    pub fn gated() -> Arc<Self> {
        Self::with_gate(true)
    }

    fn with_gate(gated: bool) -> Arc<Self> {
        let mut state = State::default();
        state.make(&Context::root(), 1, FileKind::Directory, 0o755);
        Arc::new(Self {
            state: Mutex::new(state),
            syncs: AtomicU64::new(0),
            gated,
        })
    }
}

impl Tree for Memory {
    fn lookup(&self, _: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        let state = self.state.lock();
        let object = state.child(dir, name)?;
        Ok(state.objects[&object].attributes)
    }

    fn attributes(&self, object: u64) -> Result<Attributes, FsError> {
        Ok(self.state.lock().object(object)?.attributes)
    }

    fn read_link(&self, object: u64) -> Result<Vec<u8>, FsError> {
        Ok(self.state.lock().object(object)?.content.clone())
    }

    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        let mut state = self.state.lock();
        let children = state.object(dir)?.children.clone();
        let mut entries: Vec<_> = children
            .into_iter()
            .map(|(name, object)| {
                let kind = state.objects[&object].attributes.kind;
                DirectoryEntry {
                    cookie: cookie(&name),
                    name,
                    object,
                    kind,
                }
            })
            .filter(|entry| entry.cookie > from)
            .collect();
        entries.sort_unstable_by_key(|entry| entry.cookie);
        entries.truncate(limit);
        Ok(entries)
    }

    fn parent(&self, dir: u64) -> Result<u64, FsError> {
        Ok(self.state.lock().object(dir)?.parent)
    }

    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        let mut state = self.state.lock();
        let content = &state.object(object)?.content;
        let part = content.get(offset as usize..).unwrap_or(&[]);
        let length = part.len().min(buffer.len());
        buffer[..length].copy_from_slice(&part[..length]);
        Ok(length)
    }

    fn extended_attribute(&self, object: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.state
            .lock()
            .object(object)?
            .extended
            .get(name)
            .cloned()
            .ok_or(FsError::NoAttribute)
    }

    fn extended_attributes(&self, object: u64) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self
            .state
            .lock()
            .object(object)?
            .extended
            .keys()
            .cloned()
            .collect())
    }

    fn seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        let size = self.attributes(object)?.size;
        match target {
            SeekTarget::Data if offset < size => Ok(offset),
            SeekTarget::Hole if offset < size => Ok(size),
            _ => Err(FsError::NoData),
        }
    }

    fn access(&self, _: &Context, _: u64, _: u32) -> Result<(), FsError> {
        Ok(())
    }

    fn statistics(&self) -> Result<FsStatistics, FsError> {
        let objects = self.state.lock().objects.len() as u64;
        Ok(FsStatistics {
            size_bytes: 1 << 34,
            available_bytes: 1 << 33,
            used_bytes: 0,
            objects,
        })
    }
}

impl Files for Memory {
    fn create(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        let made = state.add(context, dir, name, kind, mode)?;
        let object = state.object(made.object)?;
        object.attributes.device = device;
        Ok(object.attributes)
    }

    fn make_directory(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        mode: u32,
    ) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        let made = state.add(context, dir, name, FileKind::Directory, mode)?;
        state.object(dir)?.attributes.links += 1;
        Ok(made)
    }

    fn symbolic_link(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        let made = state.add(context, dir, name, FileKind::SymbolicLink, 0o777)?;
        let object = state.object(made.object)?;
        object.content = target.to_vec();
        object.attributes.size = target.len() as u64;
        Ok(object.attributes)
    }

    fn link(&self, _: &Context, object: u64, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        state.insert(dir, name, object)?;
        let object = state.object(object)?;
        object.attributes.links += 1;
        Ok(object.attributes)
    }

    fn unlink(&self, _: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        self.state.lock().take(dir, name)
    }

    fn remove_directory(&self, _: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        let removed = state.take(dir, name)?;
        state.object(dir)?.attributes.links -= 1;
        Ok(removed)
    }

    fn rename(
        &self,
        context: &Context,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<Attributes>, FsError> {
        let mut state = self.state.lock();
        let object = state.child(dir, name)?;
        let target = state.child(new_dir, new_name).ok();
        match (mode, target) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                state.object(dir)?.children.insert(name.to_vec(), target);
                state.object(new_dir)?.children.insert(new_name.to_vec(), object);
                return Ok(None);
            }
            _ => {}
        }
        if target == Some(object) {
            return Ok(None);
        }
        let replaced = target.map(|_| state.take(new_dir, new_name)).transpose()?;
        state.object(dir)?.children.remove(name);
        if mode.leaves_whiteout() {
            let whiteout = state.make(context, dir, FileKind::CharacterDevice, 0);
            state.insert(dir, name, whiteout)?;
        }
        state.insert(new_dir, new_name, object)?;
        let moved = state.object(object)?;
        moved.parent = new_dir;
        if moved.attributes.kind == FileKind::Directory && dir != new_dir {
            state.object(dir)?.attributes.links -= 1;
            state.object(new_dir)?.attributes.links += 1;
        }
        Ok(replaced)
    }

    fn temporary(&self, context: &Context, dir: u64, mode: u32) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        let object = state.make(context, dir, FileKind::File, mode);
        let object = state.object(object)?;
        object.attributes.links = 0;
        object.held = true;
        Ok(object.attributes)
    }

    fn release(&self, object: u64) {
        let mut state = self.state.lock();
        let found = state.object(object).unwrap();
        assert!(found.held, "object {object} is released but not held");
        found.held = false;
        if found.attributes.links == 0 {
            state.objects.remove(&object);
        }
    }

    fn set_attributes(
        &self,
        context: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError> {
        let mut state = self.state.lock();
        let object = state.object(object)?;
        let attributes = &mut object.attributes;
        attributes.mode = change.mode.unwrap_or(attributes.mode);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        if context.strips_set_id() {
            attributes.mode &= !0o6000;
        }
        if let Some(size) = change.size {
            object.content.resize(size as usize, 0);
            attributes.size = size;
            attributes.modified = now();
        }
        for (time, set) in [
            (&mut attributes.accessed, change.accessed),
            (&mut attributes.modified, change.modified),
        ] {
            match set {
                Some(SetTime::Now) => *time = now(),
                Some(SetTime::To(to)) => *time = to,
                None => {}
            }
        }
        attributes.changed = now();
        Ok(*attributes)
    }

    fn write(&self, context: &Context, object: u64, offset: u64, data: &[u8]) -> Result<WriteDone, FsError> {
        if self.gated && data.first() == Some(&HELD) {
            let mut gate = GATE.lock();
            gate.waiting += 1;
            OPENED.wait_while(&mut gate, |gate| !gate.open);
            gate.waiting -= 1;
        }
        let mut state = self.state.lock();
        let object = state.object(object)?;
        let (start, end) = (offset as usize, offset as usize + data.len());
        if object.content.len() < end {
            object.content.resize(end, 0);
        }
        object.content[start..end].copy_from_slice(data);
        let attributes = &mut object.attributes;
        attributes.size = object.content.len() as u64;
        attributes.blocks512 = attributes.size.div_ceil(4096) * 8;
        attributes.modified = now();
        let falls = context.strips_set_id() && attributes.mode & 0o6000 != 0;
        if falls {
            attributes.mode &= !0o6000;
        }
        Ok(WriteDone {
            bytes: data.len(),
            set_id: if falls { SetId::Fell } else { SetId::Kept },
        })
    }

    fn allocate(
        &self,
        context: &Context,
        object: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        let size = self.attributes(object)?.size;
        match mode {
            AllocateMode::Reserve { keep_size: false } if offset + length > size => {
                let change = SetAttributes {
                    size: Some(offset + length),
                    ..SetAttributes::default()
                };
                self.set_attributes(context, object, &change).map(|_| ())
            }
            AllocateMode::Reserve { .. } => Ok(()),
            AllocateMode::Punch | AllocateMode::Zero { .. } => {
                let mut state = self.state.lock();
                let content = &mut state.object(object)?.content;
                let end = (offset + length).min(size) as usize;
                content[offset.min(size) as usize..end].fill(0);
                Ok(())
            }
        }
    }

    fn copy_range(
        &self,
        context: &Context,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<u64, FsError> {
        let mut part = vec![0; length as usize];
        let length = self.read(from.0, from.1, &mut part)?;
        self.write(context, to.0, to.1, &part[..length])?;
        Ok(length as u64)
    }

    fn set_extended_attribute(
        &self,
        _: &Context,
        object: u64,
        name: &[u8],
        value: &[u8],
        mode: AttributeMode,
    ) -> Result<(), FsError> {
        let mut state = self.state.lock();
        let extended = &mut state.object(object)?.extended;
        match (mode, extended.contains_key(name)) {
            (AttributeMode::Create, true) => return Err(FsError::Exists),
            (AttributeMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        extended.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_extended_attribute(&self, _: &Context, object: u64, name: &[u8]) -> Result<(), FsError> {
        self.state
            .lock()
            .object(object)?
            .extended
            .remove(name)
            .map(|_| ())
            .ok_or(FsError::NoAttribute)
    }

    fn sync(&self, _: u64) -> Result<(), FsError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        match super::failing::flushes_fail() {
            true => Err(FsError::io("the device is gone")),
            false => Ok(()),
        }
    }

    fn list(
        &self,
        dir: u64,
        from: u64,
        limit: usize,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<(DirectoryEntry, Option<Attributes>)>, FsError> {
        let entries = self.read_directory(dir, from, limit)?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match wanted(entry.object) {
                true => {
                    let attributes = self.attributes(entry.object).ok()?;
                    Some((entry, Some(attributes)))
                }
                false => Some((entry, None)),
            })
            .collect())
    }
}
