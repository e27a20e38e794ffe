//! `DatasetRecord`: what is stored of a dataset besides its content: name, kind, the properties set on it.

use std::collections::BTreeMap;

use terrace_codec::{DecodeError, Reader, Writer};

use super::{held::text, inode::Time};

/// Most properties set on one dataset.
pub const PROPERTIES_MAX: usize = 256;

/// Filesystem or volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Mounted.
    Filesystem,
    /// Attached or served as a block device of a size.
    Volume {
        /// Bytes, a multiple of 4096.
        size_bytes: u64,
    },
}

impl Kind {
    /// Whether it is a volume.
    pub fn is_volume(self) -> bool {
        matches!(self, Self::Volume { .. })
    }
}

/// One dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRecord {
    /// Full name without the pool: `a/b`; empty for the pool's root dataset.
    pub name: String,
    /// Filesystem or volume.
    pub kind: Kind,
    /// When it was made.
    pub created: Time,
    /// What was set on it, as canonical text.
    pub properties: BTreeMap<String, String>,
}

impl DatasetRecord {
    /// The value of its record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.string(self.name.as_bytes());
        match self.kind {
            Kind::Filesystem => writer.u8(1),
            Kind::Volume { size_bytes } => writer.u8(2).varint(size_bytes),
        };
        self.created.encode(&mut writer);
        writer.varint(self.properties.len() as u64);
        for (name, value) in &self.properties {
            writer.string(name.as_bytes()).string(value.as_bytes());
        }
        writer.into_bytes()
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(value);
        let name = text(&mut reader, "name of a dataset")?;
        let kind = match reader.u8("kind of dataset")? {
            1 => Kind::Filesystem,
            2 => Kind::Volume {
                size_bytes: reader.varint("size of a volume")?,
            },
            _ => return Err(DecodeError::Invalid("kind of dataset")),
        };
        let created = Time::decode(&mut reader)?;
        let count = reader.varint("number of properties")?;
        if count > PROPERTIES_MAX as u64 {
            return Err(DecodeError::Invalid("number of properties"));
        }
        let mut properties = BTreeMap::new();
        for _ in 0..count {
            let name = text(&mut reader, "name of a property")?;
            properties.insert(name, text(&mut reader, "value of a property")?);
        }
        reader.finish()?;
        Ok(Self {
            name,
            kind,
            created,
            properties,
        })
    }
}

/// Largest volume, bytes: as large as any object of a dataset.
pub const VOLUME_BYTES_MAX: u64 = crate::records::FILE_BYTES_MAX;
