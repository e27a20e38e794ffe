//! What more can be said of a format: version, label, size.
//!
//! Invariant: a superblock that makes no sense gives the name alone; a quoted label has no control characters and at most 64 letters.

use terrace_device::format_size;

use super::ends::Ends;

/// Words for a format whose signature lies at an offset; the last argument is its name.
pub(super) type Detail = fn(&Ends, u64, &str) -> String;

/// Letters of a label that are quoted.
const LABEL_LETTERS: usize = 64;

fn le16(ends: &Ends, offset: u64) -> Option<u16> {
    Some(u16::from_le_bytes(ends.at(offset, 2)?.try_into().ok()?))
}

fn le32(ends: &Ends, offset: u64) -> Option<u32> {
    Some(u32::from_le_bytes(ends.at(offset, 4)?.try_into().ok()?))
}

fn le64(ends: &Ends, offset: u64) -> Option<u64> {
    Some(u64::from_le_bytes(ends.at(offset, 8)?.try_into().ok()?))
}

fn be32(ends: &Ends, offset: u64) -> Option<u32> {
    Some(u32::from_be_bytes(ends.at(offset, 4)?.try_into().ok()?))
}

fn be64(ends: &Ends, offset: u64) -> Option<u64> {
    Some(u64::from_be_bytes(ends.at(offset, 8)?.try_into().ok()?))
}

/// Text up to a zero, without what a terminal would obey or a message ends a part by.
fn quoted(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    let clean: String = text
        .trim()
        .chars()
        .map(|letter| match letter {
            letter if letter.is_control() => '\u{fffd}',
            ';' => ',',
            '\'' => '’',
            letter => letter,
        })
        .take(LABEL_LETTERS)
        .collect();
    (!clean.is_empty()).then_some(clean)
}

fn label(ends: &Ends, offset: u64, length: usize) -> Option<String> {
    quoted(ends.at(offset, length)?)
}

/// The name, with label and size in brackets where these are known.
fn told(name: &str, label: Option<String>, size_bytes: Option<u64>) -> String {
    let label = label.map(|label| format!("'{label}'"));
    let size = size_bytes.filter(|bytes| *bytes > 0).map(format_size);
    let known: Vec<String> = label.into_iter().chain(size).collect();
    match known.is_empty() {
        true => name.to_owned(),
        false => format!("{name} ({})", known.join(", ")),
    }
}

/// Blocks of a size, bytes; `None` if that cannot be.
fn blocks(count: Option<u64>, block_bytes: Option<u64>) -> Option<u64> {
    let block_bytes = block_bytes.filter(|bytes| (512..=1 << 20).contains(bytes))?;
    count?.checked_mul(block_bytes).filter(|bytes| *bytes < 1 << 62)
}

/// Which of the family, by its features.
pub(super) fn ext(ends: &Ends, at: u64, name: &str) -> String {
    const JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    // What ext3 does not know: extents, 64bit, flex_bg, and more; huge files, checksums of groups, and more.
    const EXT4_INCOMPATIBLE: u32 = !(0x2 | 0x4 | 0x8 | 0x10);
    const EXT4_READ_ONLY: u32 = !(0x1 | 0x2 | 0x4);
    let start = at - 56;
    let (compatible, incompatible, read_only) = (
        le32(ends, start + 0x5c).unwrap_or(0),
        le32(ends, start + 0x60).unwrap_or(0),
        le32(ends, start + 0x64).unwrap_or(0),
    );
    if le32(ends, start + 0x4c).unwrap_or(0) > 1 {
        return name.to_owned();
    }
    let name = match (incompatible, compatible & JOURNAL != 0) {
        (features, _) if features & JOURNAL_DEVICE != 0 => "an external journal of ext4",
        (features, _) if features & EXT4_INCOMPATIBLE != 0 || read_only & EXT4_READ_ONLY != 0 => {
            "an ext4 filesystem"
        }
        (_, true) => "an ext3 filesystem",
        (0, false) if compatible == 0 && read_only == 0 => name,
        (_, false) => "an ext2 filesystem",
    };
    let shift = le32(ends, start + 24).filter(|shift| *shift <= 6);
    let size = blocks(
        le32(ends, start + 4).map(u64::from),
        shift.map(|shift| 1024 << shift),
    );
    told(name, label(ends, start + 0x78, 16), size)
}

pub(super) fn xfs(ends: &Ends, at: u64, name: &str) -> String {
    let size = blocks(be64(ends, at + 8), be32(ends, at + 4).map(u64::from));
    told(name, label(ends, at + 0x6c, 12), size)
}

pub(super) fn btrfs(ends: &Ends, at: u64, name: &str) -> String {
    let start = at - 64;
    let size = le64(ends, start + 0x70).filter(|bytes| *bytes < 1 << 62);
    told(name, label(ends, start + 0x12b, 256), size)
}

pub(super) fn bcachefs(ends: &Ends, at: u64, name: &str) -> String {
    told(name, label(ends, at - 24 + 72, 32), None)
}

pub(super) fn f2fs(ends: &Ends, at: u64, name: &str) -> String {
    let size = blocks(le64(ends, at + 0x24), Some(4096));
    let wide: Vec<u16> = ends.at(at + 0x7c, 2 * LABEL_LETTERS).map_or(Vec::new(), |bytes| {
        let units = bytes
            .chunks_exact(2)
            .map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        units.take_while(|unit| *unit != 0).collect()
    });
    told(name, quoted(String::from_utf16_lossy(&wide).as_bytes()), size)
}

pub(super) fn fat32(ends: &Ends, at: u64, name: &str) -> String {
    fat(ends, at - 82 + 71, name)
}

pub(super) fn fat16(ends: &Ends, at: u64, name: &str) -> String {
    fat(ends, at - 54 + 43, name)
}

fn fat(ends: &Ends, label_offset: u64, name: &str) -> String {
    let label = label(ends, label_offset, 11).filter(|label| label != "NO NAME");
    let small = le16(ends, 19).map(u64::from).filter(|sectors| *sectors > 0);
    let sectors = small.or_else(|| le32(ends, 32).map(u64::from));
    told(name, label, blocks(sectors, le16(ends, 11).map(u64::from)))
}

pub(super) fn swap(ends: &Ends, at: u64, name: &str) -> String {
    let page = at + 10;
    let size = le32(ends, 1028).and_then(|last| blocks(Some(u64::from(last) + 1), Some(page)));
    told(name, label(ends, 1052, 16), size)
}

pub(super) fn luks(ends: &Ends, at: u64, name: &str) -> String {
    let version = ends
        .at(at + 6, 2)
        .map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    match version {
        1 => "a LUKS1 volume".into(),
        2 => told("a LUKS2 volume", label(ends, at + 24, 48), None),
        _ => name.to_owned(),
    }
}

/// Version 1 names the array; version 0 has no name.
pub(super) fn md(ends: &Ends, at: u64, name: &str) -> String {
    let label = match le32(ends, at + 4) {
        Some(1) => label(ends, at + 32, 32),
        _ => None,
    };
    told(name, label, None)
}

/// The name of the pool, from the list of names and values before the uberblocks.
pub(super) fn zfs(ends: &Ends, at: u64, name: &str) -> String {
    const LABEL_BYTES: u64 = 256 * 1024;
    const LIST_OFFSET: u64 = 16 * 1024;
    const LIST_BYTES: usize = 112 * 1024;
    // In XDR: the length of the name, the name, the type (string), one of it, its length.
    const NAME: &[u8] = b"\0\0\0\x04name\0\0\0\x09\0\0\0\x01";
    let list = ends.at(at / LABEL_BYTES * LABEL_BYTES + LIST_OFFSET, LIST_BYTES);
    let pool = list.and_then(|list| {
        let found = list.windows(NAME.len()).position(|window| window == NAME)?;
        let value = &list[found + NAME.len()..];
        let length = u32::from_be_bytes(value.get(..4)?.try_into().ok()?) as usize;
        quoted(value.get(4..)?.get(..length.min(256))?)
    });
    told(name, pool, None)
}

pub(super) fn squashfs(ends: &Ends, at: u64, name: &str) -> String {
    told(name, None, le64(ends, at + 40).filter(|bytes| *bytes < 1 << 62))
}

pub(super) fn erofs(ends: &Ends, at: u64, name: &str) -> String {
    told(name, label(ends, at + 64, 16), None)
}

pub(super) fn iso(ends: &Ends, at: u64, name: &str) -> String {
    let start = at - 1;
    let size = blocks(
        le32(ends, start + 80).map(u64::from),
        le16(ends, start + 128).map(u64::from),
    );
    told(name, label(ends, start + 40, 32), size)
}

pub(super) fn qcow(ends: &Ends, at: u64, name: &str) -> String {
    told(name, None, be64(ends, at + 24).filter(|bytes| *bytes < 1 << 62))
}

/// How many partitions there are.
pub(super) fn gpt(ends: &Ends, at: u64, name: &str) -> String {
    // By the size of a sector: the header is in the second one.
    let entries = le64(ends, at + 72).and_then(|sector| sector.checked_mul(at));
    let (count, bytes) = (le32(ends, at + 80).unwrap_or(0), le32(ends, at + 84).unwrap_or(0));
    let Some(entries) = entries.filter(|_| bytes >= 128 && count <= 1024) else {
        return name.to_owned();
    };
    let is_used = |number: u32| {
        let offset = entries.checked_add(u64::from(number) * u64::from(bytes));
        let kind = offset.and_then(|offset| ends.at(offset, 16));
        kind.is_some_and(|kind| kind.iter().any(|byte| *byte != 0))
    };
    with_partitions(name, (0..count).filter(|number| is_used(*number)).count())
}

pub(super) fn mbr(ends: &Ends, at: u64, name: &str) -> String {
    let kind = |number: u64| {
        ends.at(at - 64 + 16 * number + 4, 1)
            .is_some_and(|kind| kind[0] != 0)
    };
    with_partitions(name, (0..4).filter(|number| kind(*number)).count())
}

fn with_partitions(name: &str, count: usize) -> String {
    match count {
        0 => name.to_owned(),
        1 => format!("{name} with 1 partition"),
        count => format!("{name} with {count} partitions"),
    }
}
