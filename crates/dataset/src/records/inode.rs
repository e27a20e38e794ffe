//! `InodeRecord`: what is stored of an object besides its content.
//!
//! Invariants: decoding is bounded and total; a symbolic link's target is stored here and at most 4095 bytes long.

use terrace_codec::{DecodeError, Reader, Writer};

use super::preallocated::Preallocated;

/// Longest target of a symbolic link, bytes.
pub const TARGET_BYTES_MAX: usize = 4095;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub enum FileKind {
    #[default]
    File,
    Directory,
    SymbolicLink,
    BlockDevice,
    CharacterDevice,
    Pipe,
    Socket,
    /// The content of a volume.
    Volume,
}

impl FileKind {
    /// Its byte in records.
    pub fn code(self) -> u8 {
        match self {
            Self::File => 1,
            Self::Directory => 2,
            Self::SymbolicLink => 3,
            Self::BlockDevice => 4,
            Self::CharacterDevice => 5,
            Self::Pipe => 6,
            Self::Socket => 7,
            Self::Volume => 8,
        }
    }

    /// The kind with this byte.
    pub fn from_code(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::SymbolicLink,
            4 => Self::BlockDevice,
            5 => Self::CharacterDevice,
            6 => Self::Pipe,
            7 => Self::Socket,
            8 => Self::Volume,
            _ => return Err(DecodeError::Invalid("kind of object")),
        })
    }
}

/// Seconds and nanoseconds since 1970-01-01 UTC; `nanos` is below 10⁹ and counts forward also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
#[allow(missing_docs)]
pub struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

impl Time {
    /// From nanoseconds since 1970.
    pub fn from_nanos(nanos: i128) -> Self {
        let seconds = nanos
            .div_euclid(1_000_000_000)
            .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self {
            seconds: seconds as i64,
            nanos: nanos.rem_euclid(1_000_000_000) as u32,
        }
    }

    /// Nanoseconds since 1970.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }

    /// Appends it to a record.
    pub fn encode(self, writer: &mut Writer) {
        writer.signed_varint(self.seconds).varint(u64::from(self.nanos));
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let seconds = reader.signed_varint("time")?;
        let nanos = reader.varint("nanoseconds")?;
        if nanos >= 1_000_000_000 {
            return Err(DecodeError::Invalid("nanoseconds"));
        }
        Ok(Self {
            seconds,
            nanos: nanos as u32,
        })
    }
}

/// What is stored of an object besides its content, entries and extended attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InodeRecord {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names it has (directories: 2 + subdirectories).
    pub links: u32,
    /// Bytes (directories: entries).
    pub size: u64,
    /// Mapped blocks of 4 KiB.
    pub blocks: u64,
    /// Device number of a device node.
    pub device: u32,
    /// The number under which its region records stand: its own, or a fresh one since content was dropped at once.
    pub body: u64,
    /// How many extended attributes it has.
    pub xattrs: u32,
    /// The directory that a directory lies in; 0 otherwise.
    pub parent: u64,
    /// Bits kept for the live half (for example: has extended attributes, has an ACL).
    pub flags: u32,
    /// Last read.
    pub accessed: Time,
    /// Last change of content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
    /// When it was made.
    pub created: Time,
    /// Target of a symbolic link; empty otherwise.
    pub target: Vec<u8>,
    /// Of a file with room set aside for it.
    pub preallocated: Option<Box<Preallocated>>,
}

impl InodeRecord {
    /// A fresh object of a kind, all times `now`, no links, no body number yet.
    pub fn new(kind: FileKind, mode: u32, uid: u32, gid: u32, now: Time) -> Self {
        Self {
            kind,
            mode,
            uid,
            gid,
            links: 0,
            size: 0,
            blocks: 0,
            device: 0,
            body: 0,
            xattrs: 0,
            parent: 0,
            flags: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            target: Vec::new(),
            preallocated: None,
        }
    }

    /// The payload of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64 + self.target.len());
        writer.u8(self.kind.code()).varint(u64::from(self.mode));
        writer
            .varint(u64::from(self.uid))
            .varint(u64::from(self.gid))
            .varint(u64::from(self.links));
        writer
            .varint(self.size)
            .varint(self.blocks)
            .varint(u64::from(self.device));
        writer
            .varint(self.body)
            .varint(u64::from(self.xattrs))
            .varint(self.parent)
            .varint(u64::from(self.flags));
        for time in [self.accessed, self.modified, self.changed, self.created] {
            time.encode(&mut writer);
        }
        writer.string(&self.target);
        if let Some(preallocated) = &self.preallocated {
            preallocated.encode(&mut writer);
        }
        writer.into_bytes()
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let kind = FileKind::from_code(reader.u8("kind of object")?)?;
        let mode = small(&mut reader, "mode")?;
        if mode & !0o7777 != 0 {
            return Err(DecodeError::Invalid("mode"));
        }
        let mut record = Self {
            kind,
            mode,
            uid: small(&mut reader, "uid")?,
            gid: small(&mut reader, "gid")?,
            links: small(&mut reader, "links")?,
            size: reader.varint("size")?,
            blocks: reader.varint("blocks")?,
            device: small(&mut reader, "device")?,
            body: reader.varint("body")?,
            xattrs: small(&mut reader, "number of attributes")?,
            parent: reader.varint("parent")?,
            flags: small(&mut reader, "flags")?,
            accessed: Time::decode(&mut reader)?,
            modified: Time::decode(&mut reader)?,
            changed: Time::decode(&mut reader)?,
            created: Time::decode(&mut reader)?,
            target: reader.string(TARGET_BYTES_MAX, "target")?.to_vec(),
            preallocated: None,
        };
        if reader.remaining() > 0 {
            record.preallocated = Some(Box::new(Preallocated::decode(&mut reader)?));
        }
        reader.finish()?;
        Ok(record)
    }
}

fn small(reader: &mut Reader<'_>, field: &'static str) -> Result<u32, DecodeError> {
    u32::try_from(reader.varint(field)?).map_err(|_| DecodeError::Invalid(field))
}

/// Largest file: 4 PiB.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 52;
