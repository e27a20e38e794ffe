//! `Room`: what may make way in a demotion that makes room for something hotter, as it is kept with its job.
//!
//! Invariants: a heat is no less than nothing; what jobs kept of it in the place of a body, before it had fields of its own,
//! reads as the same.

use terrace_codec::{DecodeError, Reader, Writer};

/// Room that a demotion makes for something hotter, instead of going by the marks: what may make way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Room {
    /// Reads and writes of a region, decayed, above which it stays; infinite: goes by chunks alone.
    pub(crate) colder: f32,
    /// Reads of late above which a single chunk stays, if room is made for chunks.
    pub(crate) gives_way: Option<u8>,
}

impl Room {
    /// In the place of `gives_way`: room for regions.
    const NO_CHUNKS: u8 = u8::MAX;

    pub(crate) fn encode(self, writer: &mut Writer) {
        writer
            .u32(self.colder.to_bits())
            .u8(self.gives_way.unwrap_or(Self::NO_CHUNKS));
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let colder = f32::from_bits(reader.u32("heat")?);
        let gives_way = Some(reader.u8("reads")?).filter(|reads| *reads != Self::NO_CHUNKS);
        Self::sound(colder, gives_way)
    }

    /// As it was kept in the place of a body: the bits of the heat, and above them the reads and one more.
    pub(crate) fn of_body(body: u64) -> Result<Option<Self>, DecodeError> {
        if body == 0 {
            return Ok(None);
        }
        let reads = u8::try_from(body >> 32).map_err(|_| DecodeError::Invalid("reads"))?;
        Self::sound(f32::from_bits(body as u32), reads.checked_sub(1)).map(Some)
    }

    fn sound(colder: f32, gives_way: Option<u8>) -> Result<Self, DecodeError> {
        match colder >= 0.0 {
            true => Ok(Self { colder, gives_way }),
            false => Err(DecodeError::Invalid("heat")),
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_dataset::Time;

    use super::*;
    use crate::job::{Job, JobKind, JobState};

    #[test]
    fn what_room_is_made_for_reads_back_also_as_it_was_kept_before() {
        let mut job = Job {
            kind: JobKind::Demote,
            state: JobState::Running,
            reason: String::new(),
            started: Time { seconds: 5, nanos: 6 },
            done_bytes: 7,
            total_bytes: 100,
            source: 0,
            target: 1,
            dataset: 0,
            body: 0,
            pass: 2,
            cursor: vec![1, 2, 3],
            is_directory: false,
            room: None,
            for_pin: false,
            left: crate::left::Left::default(),
        };
        assert_eq!(Job::decode(&job.encode()).as_ref(), Ok(&job));
        (job.kind, job.is_directory) = (JobKind::Move, true);
        assert_eq!(Job::decode(&job.encode()).as_ref(), Ok(&job));
        (job.kind, job.is_directory) = (JobKind::Demote, false);
        for (body, colder, gives_way) in [
            (u64::from(25f32.to_bits()), 25.0, None),
            (
                u64::from(f32::INFINITY.to_bits()) | 1 << 32,
                f32::INFINITY,
                Some(0),
            ),
            (
                u64::from(f32::INFINITY.to_bits()) | 2 << 32,
                f32::INFINITY,
                Some(1),
            ),
        ] {
            (job.body, job.room) = (body, None);
            let before = Job::decode(&job.encode()).unwrap();
            assert_eq!((before.body, before.room), (0, Some(Room { colder, gives_way })));
            assert_eq!(Job::decode(&before.encode()), Ok(before));
        }
        for body in [
            u64::from(f32::NAN.to_bits()),
            1 << 62,
            u64::from((-1f32).to_bits()),
        ] {
            (job.body, job.room) = (body, None);
            assert!(Job::decode(&job.encode()).is_err());
        }
    }
}
