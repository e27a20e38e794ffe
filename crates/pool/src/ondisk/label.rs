//! What every device of a pool says about itself and its pool, so that the devices alone are enough to import it.
//!
//! Invariants: the BLAKE3 sum covers all of the 64 KiB, so that any changed byte is found; a label that decodes is
//! complete and consistent (its own device is a member, numbers ascend, tiers exist, sizes hold segments); one that
//! was encoded decodes to the same value. Layout byte by byte: docs/format.md.

use std::{cmp::Ordering, collections::BTreeMap};

use terrace_codec::{DecodeError, Reader, Writer};
use terrace_device::AlignedBuffer;

use super::{
    layout::{DEVICE_BYTES_MIN, LABEL_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN},
    presence::Presence,
    tier::{TierSettings, check_name, text},
};
use crate::PoolId;

/// Bytes that the properties of a pool may take in the label.
pub const PROPERTIES_BYTES_MAX: usize = 16 * 1024;
/// Devices of a pool, at most.
pub(crate) const MEMBERS_MAX: usize = 128;
/// Tiers of a pool, at most.
pub(crate) const TIERS_MAX: usize = 16;

const MAGIC: [u8; 8] = *b"TERRLABL";
/// The only version that is read and written; lower ones came before the first release.
const VERSION: u32 = 4;
const HEAD_BYTES: usize = 16;
const SUM_BYTES: usize = 32;
const NAME_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 200;
/// Largest device that is believed, bytes: beyond, sums of sizes could overflow.
const DEVICE_BYTES_MAX: u64 = 1 << 56;
const PRESENCE_ABSENT: u8 = 1;
const PRESENCE_BEHIND: u8 = 2;

/// Labels that may be listed as begun for one device; of more than these the oldest are forgotten, and the device is refused if
/// it took one of them.
const BEGUN_MAX: usize = 8;

/// What a label says, in short.
pub type LabelIdentity = [u8; 16];

/// Highest generation that is believed: counting on from it cannot overflow.
pub(crate) const GENERATION_MAX: u64 = 1 << 62;

/// Whether a pool is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// In use by this machine, or was when it stopped.
    Active,
    /// Closed for good by `pool export`; `import` makes it active again.
    Exported,
    /// Given up by `pool destroy`.
    Destroyed,
}

impl PoolState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Exported => "exported",
            Self::Destroyed => "destroyed",
        }
    }
}

/// A device as every label of the pool lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Number in the pool, never used twice.
    pub number: u16,
    /// Identity of the device.
    pub id: [u8; 16],
    /// Tier, 0 is the fastest.
    pub tier: u8,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Where it was last seen (at most its last 200 bytes); a hint for messages only.
    pub path: String,
    /// Whether it has all that is to be on it.
    pub presence: Presence,
    /// Of one that is absent: sums of labels that were begun while it was there, so that it may have taken them; at most 8.
    pub begun: Vec<LabelIdentity>,
}

impl Member {
    /// Says something else of it.
    pub(crate) fn set_presence(&mut self, presence: Presence) {
        self.presence = presence;
        self.begun.clear();
    }

    /// It may have taken these labels too.
    pub(crate) fn add_begun(&mut self, begun: &[LabelIdentity]) {
        self.begun.retain(|known| !begun.contains(known));
        self.begun.extend_from_slice(begun);
        let surplus = self.begun.len().saturating_sub(BEGUN_MAX);
        self.begun.drain(..surplus);
    }

    /// Whether a label that it has is one of those.
    pub(crate) fn may_have_taken(&self, label: &Label) -> bool {
        !self.begun.is_empty()
            && label
                .identity()
                .is_some_and(|identity| self.begun.contains(&identity))
    }

    /// Whether the pool is in use without it.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.presence, Presence::Absent { .. })
    }

    /// The newest generation that it can know of, where the pool is in use without it.
    pub(crate) fn absent_since(&self) -> Option<u64> {
        match self.presence {
            Presence::Absent { since } => Some(since),
            Presence::Whole | Presence::Behind => None,
        }
    }
}

/// What a label says.
#[derive(Debug, Clone, PartialEq)]
pub struct Label {
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Name of the pool.
    pub pool_name: String,
    /// State of the pool.
    pub state: PoolState,
    /// Grows with every change of the labels.
    pub generation: u64,
    /// Number of the device that carries this label.
    pub number: u16,
    /// Number that the next device added gets.
    pub next_number: u16,
    /// Segment size in bytes.
    pub segment_bytes: u32,
    /// When the pool was made, nanoseconds since 1970.
    pub created_nanoseconds: u64,
    /// Tiers, fastest first.
    pub tiers: Vec<TierSettings>,
    /// All devices, ascending by number.
    pub members: Vec<Member>,
    /// Properties of the pool.
    pub properties: BTreeMap<String, String>,
}

/// Why bytes are not a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The device does not give it: its error.
    #[error("its label cannot be read: {0}")]
    Unreadable(String),
    /// No magic.
    #[error("there is no Terrace label on it")]
    NotALabel,
    /// The sum does not match.
    #[error("its label is damaged in every copy")]
    Damaged,
    /// Written by a newer program.
    #[error(
        "its pool was made by a newer terrace: its label has format version {0}, this one knows up to {VERSION}; use the newer terrace"
    )]
    Newer(u32),
    /// Written before the first release.
    #[error(
        "its pool comes from before the first release: its label has format version {0}, this terrace knows {VERSION}; copy its files \
         with the terrace that made it ('terrace get'), then make the pool anew"
    )]
    Older(u32),
    /// Sum right, content wrong.
    #[error("its label makes no sense: {0}")]
    Invalid(String),
}

impl LabelError {
    /// Whether it is sound, and of a version that is not known here.
    pub(crate) fn is_of_other_version(&self) -> bool {
        matches!(self, Self::Newer(_) | Self::Older(_))
    }
}

impl From<DecodeError> for LabelError {
    fn from(error: DecodeError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl Label {
    /// The member that carries this label.
    pub fn own(&self) -> Option<&Member> {
        self.member(self.number)
    }

    /// The member with this number.
    pub fn member(&self, number: u16) -> Option<&Member> {
        self.members.iter().find(|member| member.number == number)
    }

    /// Whether it says the same as another one, whichever devices carry them.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        let carried = |label: &Self| Self {
            number: 0,
            ..label.clone()
        };
        carried(self) == carried(other)
    }

    /// A sum over what it says, whichever device carries it; `None` for one that no device could carry.
    pub(crate) fn identity(&self) -> Option<LabelIdentity> {
        let carried = Self {
            number: self.members.first()?.number,
            ..self.clone()
        };
        let sum = blake3::hash(&carried.encode().ok()?);
        sum.as_bytes()[..16].try_into().ok()
    }

    /// The 64 KiB for a device. `Invalid` says what a label cannot hold (too many properties, bad names).
    pub fn encode(&self) -> Result<AlignedBuffer, LabelError> {
        self.validate()?;
        let mut body = Writer::with_capacity(4096);
        body.bytes(&self.pool_id).string(self.pool_name.as_bytes());
        body.u8(match self.state {
            PoolState::Active => 1,
            PoolState::Exported => 2,
            PoolState::Destroyed => 3,
        });
        body.u64(self.generation).u16(self.number).u16(self.next_number);
        body.u32(self.segment_bytes).u64(self.created_nanoseconds);
        body.u8(self.tiers.len() as u8);
        for tier in &self.tiers {
            tier.encode(&mut body);
        }
        body.u16(self.members.len() as u16);
        for member in &self.members {
            body.u16(member.number)
                .bytes(&member.id)
                .u8(member.tier)
                .u64(member.size_bytes);
            body.string(path_hint(&member.path).as_bytes());
        }
        body.u16(self.properties.len() as u16);
        for (name, value) in &self.properties {
            body.string(name.as_bytes()).string(value.as_bytes());
        }
        let marked: Vec<&Member> = self
            .members
            .iter()
            .filter(|member| member.presence != Presence::Whole)
            .collect();
        body.u16(marked.len() as u16);
        for member in &marked {
            let (kind, since) = match member.presence {
                Presence::Absent { since } => (PRESENCE_ABSENT, since),
                Presence::Whole | Presence::Behind => (PRESENCE_BEHIND, 0),
            };
            body.u16(member.number).u8(kind).u64(since);
            body.u8(member.begun.len() as u8);
            member.begun.iter().for_each(|begun| {
                body.bytes(begun);
            });
        }
        let mut bytes = AlignedBuffer::zeroed(LABEL_BYTES);
        if HEAD_BYTES + body.len() + SUM_BYTES > LABEL_BYTES {
            return Err(LabelError::Invalid(format!(
                "{} bytes do not fit into a label",
                body.len()
            )));
        }
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        bytes[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(body.as_bytes());
        let sum = blake3::hash(&bytes[..LABEL_BYTES - SUM_BYTES]);
        bytes[LABEL_BYTES - SUM_BYTES..].copy_from_slice(sum.as_bytes());
        Ok(bytes)
    }

    /// The label in 64 KiB from a device.
    pub fn decode(bytes: &[u8]) -> Result<Self, LabelError> {
        if bytes.len() != LABEL_BYTES || bytes[..8] != MAGIC {
            return Err(LabelError::NotALabel);
        }
        let sum = blake3::hash(&bytes[..LABEL_BYTES - SUM_BYTES]);
        if sum != bytes[LABEL_BYTES - SUM_BYTES..] {
            return Err(LabelError::Damaged);
        }
        let mut head = Reader::new(&bytes[8..HEAD_BYTES]);
        let version = head.u32("version")?;
        match version.cmp(&VERSION) {
            Ordering::Less => return Err(LabelError::Older(version)),
            Ordering::Greater => return Err(LabelError::Newer(version)),
            Ordering::Equal => {}
        }
        let length = head.u32("body length")? as usize;
        let Some(body) = bytes[HEAD_BYTES..LABEL_BYTES - SUM_BYTES].get(..length) else {
            return Err(LabelError::Invalid(format!("a body of {length} bytes")));
        };
        let label = Self::decode_body(Reader::new(body))?;
        label.validate()?;
        Ok(label)
    }

    fn decode_body(mut body: Reader<'_>) -> Result<Self, LabelError> {
        let pool_id = body.array("pool id")?;
        let pool_name = text(body.string(NAME_BYTES_MAX, "pool name")?);
        let state = match body.u8("state")? {
            1 => PoolState::Active,
            2 => PoolState::Exported,
            3 => PoolState::Destroyed,
            other => return Err(LabelError::Invalid(format!("state {other}"))),
        };
        let generation = body.u64("generation")?;
        let number = body.u16("device number")?;
        let next_number = body.u16("next number")?;
        let segment_bytes = body.u32("segment size")?;
        let created_nanoseconds = body.u64("creation time")?;
        let mut tiers = Vec::new();
        for _ in 0..body.u8("tier count")? {
            tiers.push(TierSettings::decode(&mut body)?);
        }
        let mut members = Vec::new();
        for _ in 0..body.u16("device count")? {
            members.push(Member {
                number: body.u16("device number")?,
                id: body.array("device id")?,
                tier: body.u8("tier")?,
                size_bytes: body.u64("size")?,
                path: text(body.string(PATH_BYTES_MAX, "path")?),
                presence: Presence::Whole,
                begun: Vec::new(),
            });
        }
        let mut properties = BTreeMap::new();
        for _ in 0..body.u16("property count")? {
            let name = text(body.string(PROPERTIES_BYTES_MAX, "property name")?);
            properties.insert(name, text(body.string(PROPERTIES_BYTES_MAX, "property value")?));
        }
        decode_presence(&mut body, &mut members)?;
        body.finish()?;
        Ok(Self {
            pool_id,
            pool_name,
            state,
            generation,
            number,
            next_number,
            segment_bytes,
            created_nanoseconds,
            tiers,
            members,
            properties,
        })
    }

    /// What makes a label consistent; asked before writing and after reading.
    fn validate(&self) -> Result<(), LabelError> {
        let wrong = |reason: String| Err(LabelError::Invalid(reason));
        if let Err(reason) = check_name(&self.pool_name, NAME_BYTES_MAX) {
            return wrong(format!("pool name '{}': {reason}", self.pool_name));
        }
        if self.tiers.is_empty() || self.tiers.len() > TIERS_MAX {
            return wrong(format!("{} tiers; a pool has 1 to {TIERS_MAX}", self.tiers.len()));
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            tier.validate().map_err(LabelError::Invalid)?;
            if self.tiers[..index].iter().any(|other| other.name == tier.name) {
                return wrong(format!("two tiers are called '{}'", tier.name));
            }
        }
        if !self.segment_bytes.is_power_of_two()
            || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
        {
            return wrong(format!("a segment size of {} bytes", self.segment_bytes));
        }
        if self.generation > GENERATION_MAX {
            return wrong(format!("generation {}", self.generation));
        }
        if self.members.len() > MEMBERS_MAX {
            return wrong(format!(
                "{} devices; a pool has at most {MEMBERS_MAX}",
                self.members.len()
            ));
        }
        let ascending = self
            .members
            .windows(2)
            .all(|pair| pair[0].number < pair[1].number);
        if !ascending || self.own().is_none() {
            return wrong("the list of devices is out of order or lacks the device itself".into());
        }
        for member in &self.members {
            if member.number >= self.next_number
                || usize::from(member.tier) >= self.tiers.len()
                || !(DEVICE_BYTES_MIN..=DEVICE_BYTES_MAX).contains(&member.size_bytes)
            {
                return wrong(format!("device {}", member.number));
            }
        }
        let properties: usize = self
            .properties
            .iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum();
        if properties > PROPERTIES_BYTES_MAX {
            return wrong(format!(
                "properties of {properties} bytes; at most {PROPERTIES_BYTES_MAX} fit"
            ));
        }
        Ok(())
    }
}

/// What is said of devices that are or were away.
fn decode_presence(body: &mut Reader<'_>, members: &mut [Member]) -> Result<(), LabelError> {
    for _ in 0..body.u16("presence count")? {
        let number = body.u16("device number")?;
        let presence = match (body.u8("presence")?, body.u64("generation")?) {
            (PRESENCE_ABSENT, since) if since <= GENERATION_MAX => Presence::Absent { since },
            (PRESENCE_BEHIND, 0) => Presence::Behind,
            other => return Err(LabelError::Invalid(format!("presence {other:?}"))),
        };
        let member = members
            .iter_mut()
            .find(|member| member.number == number && member.presence == Presence::Whole);
        let Some(member) = member else {
            return Err(LabelError::Invalid(format!("presence of device {number}")));
        };
        member.set_presence(presence);
        let begun = body.u8("begun labels")?;
        if usize::from(begun) > BEGUN_MAX || begun > 0 && !member.is_absent() {
            return Err(LabelError::Invalid(format!(
                "{begun} begun labels for device {number}"
            )));
        }
        for _ in 0..begun {
            member.begun.push(body.array("begun label")?);
        }
    }
    Ok(())
}

/// The last 200 bytes of a path, cut between characters: the end tells more than the start.
fn path_hint(path: &str) -> &str {
    let mut start = path.len().saturating_sub(PATH_BYTES_MAX);
    while !path.is_char_boundary(start) {
        start += 1;
    }
    &path[start..]
}
