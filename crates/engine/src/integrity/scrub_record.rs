//! What the last scrub that ended found, as a record of the pool: `status` tells it after a restart too.
//!
//! Invariants: one record, of at most [`BYTES_MAX`] bytes and some lists' ends, whatever was found; what does not fit is left
//! out, and then the files are not said to be all; bytes that are no record of a version known here are as none.

use terrace_codec::{DecodeError, Reader, Writer};

use super::damaged_files::DamagedFile;
use crate::{
    ScrubStatus,
    reporting::{ScrubbedDevice, cut},
};

/// Key of the record: a table of its own (after those of the journal), with nothing else in it.
pub(crate) const KEY: [u8; 1] = [0xf2];
/// Version of the record.
const VERSION: u8 = 1;
/// Beyond this nothing is added to a list, bytes; half of what a value may have.
const BYTES_MAX: usize = 64 << 10;
/// Of it, what lines of damage may take.
const LINES_BYTES_MAX: usize = 16 << 10;
/// Longest time, line and path, bytes.
const TIME_BYTES_MAX: usize = 64;
const LINE_BYTES_MAX: usize = 512;
const PATH_BYTES_MAX: usize = 4096;
/// Most of each list.
pub(crate) const LIST_MAX: u64 = 4096;

/// A scrub that ended.
pub(crate) struct Outcome {
    pub(crate) status: ScrubStatus,
    pub(crate) damaged: Vec<DamagedFile>,
    /// Whether these are surely all.
    pub(crate) all_named: bool,
}

impl Outcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let status = &self.status;
        let mut writer = Writer::new();
        writer.u8(VERSION);
        for time in [&status.started, &status.ended] {
            writer.string(cut(time, TIME_BYTES_MAX).as_bytes());
        }
        writer
            .varint(status.chunks)
            .varint(status.done_bytes)
            .varint(status.errors)
            .varint(status.repaired);
        list(&mut writer, &status.devices, LINES_BYTES_MAX, |entry, device| {
            entry
                .string(cut(&device.path, PATH_BYTES_MAX).as_bytes())
                .varint(device.read_errors)
                .varint(device.checksum_errors);
        });
        let so_far = writer.len();
        list(
            &mut writer,
            &status.damage,
            so_far + LINES_BYTES_MAX,
            |entry, line| {
                entry.string(cut(line, LINE_BYTES_MAX).as_bytes());
            },
        );
        let written = list(&mut writer, &self.damaged, BYTES_MAX, |entry, file| {
            entry
                .string(cut(&file.path, PATH_BYTES_MAX).as_bytes())
                .varint(file.blocks)
                .u8(u8::from(file.only_history))
                .varint(file.snapshots.len() as u64);
            for snapshot in &file.snapshots {
                entry.string(cut(snapshot, LINE_BYTES_MAX).as_bytes());
            }
        });
        let all = self.all_named && written == self.damaged.len();
        writer.u8(u8::from(all));
        writer.varint(status.short).varint(status.unmended);
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8("version")? != VERSION {
            return Err(DecodeError::Invalid("version of the scrub's record"));
        }
        let mut status = ScrubStatus {
            state: "done".into(),
            started: text(&mut reader, TIME_BYTES_MAX)?,
            ended: text(&mut reader, TIME_BYTES_MAX)?,
            chunks: reader.varint("chunks")?,
            done_bytes: reader.varint("bytes")?,
            errors: reader.varint("errors")?,
            repaired: reader.varint("repaired")?,
            eta_seconds: Some(0.0),
            ..ScrubStatus::default()
        };
        status.total_bytes = status.done_bytes;
        for _ in 0..count(&mut reader)? {
            status.devices.push(ScrubbedDevice {
                path: text(&mut reader, PATH_BYTES_MAX)?,
                read_errors: reader.varint("read errors")?,
                checksum_errors: reader.varint("checksum errors")?,
            });
        }
        for _ in 0..count(&mut reader)? {
            status.damage.push(text(&mut reader, LINE_BYTES_MAX)?);
        }
        let mut damaged = Vec::new();
        for _ in 0..count(&mut reader)? {
            let mut file = DamagedFile {
                path: text(&mut reader, PATH_BYTES_MAX)?,
                blocks: reader.varint("blocks")?,
                only_history: reader.u8("only in history")? != 0,
                snapshots: Vec::new(),
            };
            for _ in 0..count(&mut reader)? {
                file.snapshots.push(text(&mut reader, LINE_BYTES_MAX)?);
            }
            damaged.push(file);
        }
        let all_named = reader.u8("all are named")? != 0;
        status.short = reader.varint("short")?;
        status.unmended = reader.varint("unmended")?;
        reader.finish()?;
        status.files = damaged.iter().map(|file| file.path.clone()).collect();
        Ok(Self {
            status,
            damaged,
            all_named,
        })
    }
}

/// Writes as many as fit before the record has `end_bytes`; returns how many these are.
pub(crate) fn list<T>(
    writer: &mut Writer,
    items: &[T],
    end_bytes: usize,
    encode: impl Fn(&mut Writer, &T),
) -> usize {
    let mut entries = Writer::new();
    let mut count = 0;
    for item in items.iter().take(LIST_MAX as usize) {
        let mut entry = Writer::new();
        encode(&mut entry, item);
        if writer.len() + entries.len() + entry.len() > end_bytes {
            break;
        }
        entries.bytes(entry.as_bytes());
        count += 1;
    }
    writer.varint(count as u64).bytes(entries.as_bytes());
    count
}

pub(crate) fn count(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match reader.varint("count")? {
        count if count <= LIST_MAX => Ok(count),
        _ => Err(DecodeError::Invalid("count")),
    }
}

fn text(reader: &mut Reader<'_>, limit: usize) -> Result<String, DecodeError> {
    Ok(String::from_utf8_lossy(reader.string(limit, "text")?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(files: usize) -> Outcome {
        let damaged: Vec<DamagedFile> = (0..files)
            .map(|number| DamagedFile {
                path: format!("tank/files/{}/{number}", "d".repeat(200)),
                blocks: number as u64,
                only_history: number % 2 == 1,
                snapshots: vec!["before".into()],
            })
            .collect();
        Outcome {
            status: ScrubStatus {
                state: "done".into(),
                started: "2026-11-25T08:00:00.000Z".into(),
                ended: "2026-11-25T08:01:00.000Z".into(),
                chunks: 70_000,
                done_bytes: 1 << 33,
                total_bytes: 1 << 33,
                errors: 5,
                repaired: 2,
                unmended: 2,
                short: 9,
                eta_seconds: Some(0.0),
                damage: (0..100).map(|_| "l".repeat(1000)).collect(),
                devices: vec![ScrubbedDevice {
                    path: "/disk/a".into(),
                    read_errors: 1,
                    checksum_errors: 4,
                }],
                files: damaged.iter().map(|file| file.path.clone()).collect(),
                ..ScrubStatus::default()
            },
            damaged,
            all_named: true,
        }
    }

    #[test]
    fn what_was_found_comes_back() {
        let mut told = outcome(7);
        told.status.damage.truncate(3);
        told.status.damage.iter_mut().for_each(|line| line.truncate(100));
        let back = Outcome::decode(&told.encode()).unwrap();
        assert_eq!(back.status, told.status);
        assert_eq!((back.damaged, back.all_named), (told.damaged, true));
    }

    #[test]
    fn a_record_is_bounded_and_says_that_names_are_left_out() {
        let bytes = outcome(1000).encode();
        assert!(bytes.len() <= BYTES_MAX + 16, "{}", bytes.len());
        let back = Outcome::decode(&bytes).unwrap();
        assert!(!back.all_named);
        assert!(back.damaged.len() > 100 && back.damaged.len() < 1000);
        assert_eq!(back.status.errors, 5);
    }

    #[test]
    fn a_record_of_any_bytes_is_one_or_none() {
        let known = outcome(3).encode();
        terrace_fuzz::fuzz(
            env!("CARGO_MANIFEST_DIR"),
            "scrub_record",
            vec![known],
            None,
            &mut crate::fuzzing::scrub_record,
        );
    }
}
