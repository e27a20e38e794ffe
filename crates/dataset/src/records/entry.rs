//! `EntryRecord` and `OrphanRecord`: what a name refers to, and what is left to free of an object without names.
//!
//! Invariant: object numbers are never used twice within a dataset, so that an orphan can be freed at leisure.

use terrace_codec::{DecodeError, Reader, Writer};

use super::inode::FileKind;

/// The value of a directory entry; directory and name are its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRecord {
    /// The object.
    pub object: u64,
    /// What it is, so that listing needs no inodes.
    pub kind: FileKind,
}

impl EntryRecord {
    /// The payload of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(12);
        writer.u8(self.kind.code()).varint(self.object);
        writer.into_bytes()
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let kind = FileKind::from_code(reader.u8("kind of entry")?)?;
        let object = reader.varint("object")?;
        reader.finish()?;
        if object == 0 {
            Err(DecodeError::Invalid("object"))
        } else {
            Ok(Self { object, kind })
        }
    }
}

/// Something that nothing names any more. Orphan records have no versions; their key is a number of the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanRecord {
    /// The object with this number is unlinked but open; opening the dataset turns this into `Freed`.
    Open,
    /// The body with this number (and, if `object` is not 0, the extended attributes of that object) is to be freed
    /// in the background, as if everything had died in checkpoint `death`.
    Freed {
        /// The object whose extended attributes go too; 0 when only content was dropped.
        object: u64,
        /// Checkpoint in which it died.
        death: u64,
        /// Blocks that it maps, for "pending" figures; a hint.
        blocks: u64,
    },
}

impl OrphanRecord {
    /// The value of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(16);
        match self {
            Self::Open => writer.u8(0),
            Self::Freed {
                object,
                death,
                blocks,
            } => writer.u8(1).varint(*object).varint(*death).varint(*blocks),
        };
        writer.into_bytes()
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let record = match reader.u8("kind of orphan")? {
            0 => Self::Open,
            1 => Self::Freed {
                object: reader.varint("object")?,
                death: reader.varint("death")?,
                blocks: reader.varint("blocks")?,
            },
            _ => return Err(DecodeError::Invalid("kind of orphan")),
        };
        reader.finish()?;
        Ok(record)
    }
}
