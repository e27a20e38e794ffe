//! `Room`: what may make way in a demotion that makes room for something hotter, as it is kept with its job.
//!
//! Invariant: a heat is no less than nothing.

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
        match colder >= 0.0 {
            true => Ok(Self { colder, gives_way }),
            false => Err(DecodeError::Invalid("heat")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_room_is_made_for_reads_back_if_it_makes_sense() {
        let back = |colder, gives_way| {
            let mut writer = Writer::new();
            Room { colder, gives_way }.encode(&mut writer);
            Room::decode(&mut Reader::new(writer.as_bytes()))
        };
        for (colder, gives_way) in [(25.0, None), (f32::INFINITY, Some(0)), (0.0, Some(1))] {
            assert_eq!(back(colder, gives_way), Ok(Room { colder, gives_way }));
        }
        for colder in [f32::NAN, -1.0] {
            assert!(back(colder, None).is_err());
        }
    }
}
