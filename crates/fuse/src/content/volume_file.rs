//! `VolumeFile`: a volume, or a snapshot of one, shown as the one file `volume` of a filesystem, to be attached to a
//! loop device.
//!
//! Invariants: a snapshot is never changed; reads and writes go to the volume as they come; FSYNC flushes it,
//! FALLOCATE punches and zeroes, LSEEK finds what is stored; names never change. After `Volume::resize` the kernel must
//! be told: `Session::invalidate_object(VOLUME_OBJECT, false)`.

use std::sync::Arc;

use terrace_dataset::{
    AllocateMode, AttributeMode, Attributes, Context, DirectoryEntry, FIRST_COOKIE, FileKind, FsError,
    FsStatistics, RenameMode, SeekTarget, SetAttributes, SetId, Time, Tree, View, Volume, WriteDone,
};

use super::files::Files;

/// The name of the file.
pub const VOLUME_NAME: &[u8] = b"volume";
/// Its object number.
pub const VOLUME_OBJECT: u64 = 2;
const ROOT: u64 = 1;

enum Source {
    Live(Arc<Volume>),
    Past(Arc<View>),
}

/// See above.
pub struct VolumeFile {
    source: Source,
}

impl VolumeFile {
    /// Shows `volume`.
    pub fn new(volume: Arc<Volume>) -> Arc<Self> {
        Arc::new(Self {
            source: Source::Live(volume),
        })
    }

    /// Shows a volume as it was; to be mounted read-only.
    pub fn past(view: Arc<View>) -> Arc<Self> {
        Arc::new(Self {
            source: Source::Past(view),
        })
    }

    fn size_bytes(&self) -> Result<u64, FsError> {
        match &self.source {
            Source::Live(volume) => Ok(volume.size_bytes()),
            Source::Past(view) => Ok(view.attributes(ROOT)?.size),
        }
    }

    fn volume(&self) -> Result<&Volume, FsError> {
        match &self.source {
            Source::Live(volume) => Ok(volume),
            Source::Past(_) => Err(FsError::ReadOnly),
        }
    }

    fn check(object: u64) -> Result<(), FsError> {
        if object == VOLUME_OBJECT {
            Ok(())
        } else {
            Err(FsError::IsDirectory)
        }
    }
}

impl Tree for VolumeFile {
    fn lookup(&self, _: &Context, dir: u64, name: &[u8]) -> Result<Attributes, FsError> {
        if dir == ROOT && name == VOLUME_NAME {
            self.attributes(VOLUME_OBJECT)
        } else {
            Err(FsError::NotFound)
        }
    }

    fn attributes(&self, object: u64) -> Result<Attributes, FsError> {
        let (kind, mode, links, size) = match object {
            ROOT => (FileKind::Directory, 0o700, 2, 0),
            VOLUME_OBJECT => (FileKind::File, 0o600, 1, self.size_bytes()?),
            _ => return Err(FsError::NotFound),
        };
        let time = Time::default();
        Ok(Attributes {
            object,
            kind,
            mode,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            links,
            size,
            blocks512: size / 512,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
            device: 0,
            generation: 1,
        })
    }

    fn read_link(&self, _: u64) -> Result<Vec<u8>, FsError> {
        Err(FsError::Invalid)
    }

    fn read_directory(&self, dir: u64, from: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FsError> {
        if dir != ROOT {
            return Err(FsError::NotDirectory);
        }
        let entry = DirectoryEntry {
            name: VOLUME_NAME.to_vec(),
            object: VOLUME_OBJECT,
            kind: FileKind::File,
            cookie: FIRST_COOKIE,
        };
        Ok(if from < FIRST_COOKIE && limit > 0 {
            vec![entry]
        } else {
            Vec::new()
        })
    }

    fn parent(&self, _: u64) -> Result<u64, FsError> {
        Ok(ROOT)
    }

    fn read(&self, object: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        Self::check(object)?;
        match &self.source {
            Source::Past(view) => view.read(ROOT, offset, buffer),
            Source::Live(volume) => {
                let left = volume.size_bytes().saturating_sub(offset);
                let length = (buffer.len() as u64).min(left) as usize;
                if length > 0 {
                    volume.read(offset, &mut buffer[..length])?;
                }
                Ok(length)
            }
        }
    }

    fn extended_attribute(&self, _: u64, _: &[u8]) -> Result<Vec<u8>, FsError> {
        Err(FsError::NoAttribute)
    }

    fn extended_attributes(&self, _: u64) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(Vec::new())
    }

    fn seek(&self, object: u64, offset: u64, target: SeekTarget) -> Result<u64, FsError> {
        Self::check(object)?;
        match &self.source {
            Source::Live(volume) => volume.seek(offset, target),
            Source::Past(view) => view.seek(ROOT, offset, target),
        }
    }

    fn access(&self, _: &Context, _: u64, _: u32) -> Result<(), FsError> {
        Ok(())
    }

    fn statistics(&self) -> Result<FsStatistics, FsError> {
        let size_bytes = self.size_bytes()?;
        Ok(FsStatistics {
            size_bytes,
            available_bytes: 0,
            used_bytes: size_bytes,
            objects: 1,
        })
    }
}

impl Files for VolumeFile {
    fn create(
        &self,
        _: &Context,
        _: u64,
        _: &[u8],
        _: FileKind,
        _: u32,
        _: u32,
    ) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn make_directory(&self, _: &Context, _: u64, _: &[u8], _: u32) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn symbolic_link(&self, _: &Context, _: u64, _: &[u8], _: &[u8]) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn link(&self, _: &Context, _: u64, _: u64, _: &[u8]) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn unlink(&self, _: &Context, _: u64, _: &[u8]) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn remove_directory(&self, _: &Context, _: u64, _: &[u8]) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn rename(
        &self,
        _: &Context,
        _: u64,
        _: &[u8],
        _: u64,
        _: &[u8],
        _: RenameMode,
    ) -> Result<Option<Attributes>, FsError> {
        Err(FsError::NotPermitted)
    }

    fn temporary(&self, _: &Context, _: u64, _: u32) -> Result<Attributes, FsError> {
        Err(FsError::NotPermitted)
    }

    fn release(&self, _: u64) {}

    /// Sizes are changed by `terrace volume resize` alone; the rest is accepted and not kept.
    fn set_attributes(
        &self,
        _: &Context,
        object: u64,
        change: &SetAttributes,
    ) -> Result<Attributes, FsError> {
        let attributes = self.attributes(object)?;
        if change.size.is_some_and(|size| size != attributes.size) {
            return Err(FsError::NotPermitted);
        }
        Ok(attributes)
    }

    fn write(&self, _: &Context, object: u64, offset: u64, data: &[u8]) -> Result<WriteDone, FsError> {
        Self::check(object)?;
        let volume = self.volume()?;
        let end = offset.checked_add(data.len() as u64).ok_or(FsError::FileTooBig)?;
        if end > volume.size_bytes() {
            return Err(FsError::NoSpace);
        }
        volume.write(offset, data).map_err(of_a_device)?;
        Ok(WriteDone {
            bytes: data.len(),
            set_id: SetId::Kept,
        })
    }

    fn allocate(
        &self,
        _: &Context,
        object: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        Self::check(object)?;
        let volume = self.volume()?;
        let end = offset.checked_add(length).ok_or(FsError::FileTooBig)?;
        if end > volume.size_bytes() {
            return Err(FsError::NoSpace);
        }
        match mode {
            AllocateMode::Reserve { .. } => Err(FsError::NotSupported),
            AllocateMode::Punch => volume.discard(offset, length).map_err(of_a_device),
            AllocateMode::Zero { .. } => volume.write_zeroes(offset, length).map_err(of_a_device),
        }
    }

    fn copy_range(&self, _: &Context, _: (u64, u64), _: (u64, u64), _: u64) -> Result<u64, FsError> {
        Err(FsError::NotSupported)
    }

    fn set_extended_attribute(
        &self,
        _: &Context,
        _: u64,
        _: &[u8],
        _: &[u8],
        _: AttributeMode,
    ) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    fn remove_extended_attribute(&self, _: &Context, _: u64, _: &[u8]) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    fn sync(&self, _: u64) -> Result<(), FsError> {
        match &self.source {
            Source::Live(volume) => volume.flush().map_err(of_a_device),
            Source::Past(_) => Ok(()),
        }
    }

    fn list(
        &self,
        dir: u64,
        from: u64,
        limit: usize,
        _: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<(DirectoryEntry, Option<Attributes>)>, FsError> {
        let attributes = self.attributes(VOLUME_OBJECT)?;
        let entries = self.read_directory(dir, from, limit)?;
        Ok(entries
            .into_iter()
            .map(|entry| (entry, Some(attributes)))
            .collect())
    }
}

/// The block layer knows no quotas: of EDQUOT the loop device would make an I/O error.
fn of_a_device(error: FsError) -> FsError {
    match error {
        FsError::QuotaExceeded => FsError::NoSpace,
        other => other,
    }
}
