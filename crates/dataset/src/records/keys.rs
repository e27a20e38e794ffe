//! Keys: how every record of floor 5 is named in the store.
//!
//! Invariants: a key starts with its table byte, then (but for pool-wide tables) the dataset number, so that a
//! dataset is a range of each table; integers are big-endian; the keys of one table are prefix-free (names end with
//! a NUL, which no name contains), so that the history key of one record never looks like that of another.

use terrace_codec::{DecodeError, KeyWriter, Reader};

/// Pool-wide facts by name (the newest checkpoint, the next dataset number).
pub const TABLE_POOL: u8 = 0x20;
/// Dataset records by number.
pub const TABLE_DATASET: u8 = 0x21;
/// Held checkpoints (snapshots and retained ones) by dataset and checkpoint.
pub const TABLE_HELD: u8 = 0x22;
/// Background freeing still to be done, by job number.
pub const TABLE_SWEEP: u8 = 0x23;
/// Counters by dataset.
pub const TABLE_COUNTERS: u8 = 0x24;
/// Objects whose content is still to be freed, by dataset and object.
pub const TABLE_ORPHAN: u8 = 0x25;
/// Jobs of the mover.
pub const TABLE_JOB: u8 = 0x26;
/// Heat of regions, by dataset and body.
pub const TABLE_HEAT: u8 = 0x27;
/// Inodes by dataset and object (versioned).
pub const TABLE_INODE: u8 = 0x28;
/// Directory entries by dataset, directory, hash of the name, name (versioned).
pub const TABLE_ENTRY: u8 = 0x29;
/// Extended attributes by dataset, object, name (versioned).
pub const TABLE_XATTR: u8 = 0x2a;
/// Region records by dataset, object, region (versioned).
pub const TABLE_REGION: u8 = 0x2b;
/// Tiers to which single objects are pinned, by dataset and object.
pub const TABLE_PIN: u8 = 0x2c;
/// Regions in pieces, by dataset, body and object.
pub const TABLE_FRAGMENTS: u8 = 0x2d;
/// Old versions: dataset, table, rest of the live key, checkpoint of death.
pub const TABLE_HISTORY: u8 = 0x2e;
/// What is held by whom: dataset, holder, birth, table, rest of the live key, death; no value.
pub const TABLE_HOLDER: u8 = 0x2f;
/// The tables whose records have versions.
pub const VERSIONED_TABLES: [u8; 4] = [TABLE_INODE, TABLE_ENTRY, TABLE_XATTR, TABLE_REGION];

/// Longest name of a directory entry or extended attribute, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Number of the root directory of every filesystem, and of the one object of a volume.
pub const ROOT_OBJECT: u64 = 1;

/// Key of an inode.
pub fn inode(dataset: u32, object: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_INODE).u32(dataset).u64(object).finish()
}

/// The hash under which a name stands in its directory, and its cookie for reading the directory: 16 to 2⁶²−1, from
/// BLAKE3, so that nobody can make many names collide. Two names with one hash stand side by side.
pub fn entry_hash(name: &[u8]) -> u64 {
    let hash = blake3::hash(name);
    let mut first = [0u8; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    (u64::from_be_bytes(first) >> 2).max(16)
}

/// Key of a directory entry.
pub fn entry(dataset: u32, directory: u64, name: &[u8]) -> Vec<u8> {
    entry_from(dataset, directory, entry_hash(name))
        .into_iter()
        .chain(name.iter().copied())
        .chain([0])
        .collect()
}

/// Where the entries with this hash or a larger one start.
pub fn entry_from(dataset: u32, directory: u64, hash: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_ENTRY)
        .u32(dataset)
        .u64(directory)
        .u64(hash)
        .finish()
}

/// The end of a directory's entries.
pub fn entry_end(dataset: u32, directory: u64) -> Vec<u8> {
    KeyWriter::after_prefix(&KeyWriter::table(TABLE_ENTRY).u32(dataset).u64(directory).finish())
}

/// Hash and name of the entry at `key`.
pub fn parse_entry(key: &[u8]) -> Result<(u64, &[u8]), DecodeError> {
    let mut reader = Reader::new(key);
    reader.bytes(13, "entry key")?;
    let hash = reader.key_u64("entry hash")?;
    match reader.rest().split_last() {
        Some((0, name)) if !name.is_empty() && name.len() <= NAME_BYTES_MAX => Ok((hash, name)),
        _ => Err(DecodeError::Invalid("entry name")),
    }
}

/// Key of an extended attribute.
pub fn xattr(dataset: u32, object: u64, name: &[u8]) -> Vec<u8> {
    KeyWriter::table(TABLE_XATTR)
        .u32(dataset)
        .u64(object)
        .bytes(name)
        .u8(0)
        .finish()
}

/// The range of an object's extended attributes.
pub fn xattr_range(dataset: u32, object: u64) -> (Vec<u8>, Vec<u8>) {
    let from = KeyWriter::table(TABLE_XATTR).u32(dataset).u64(object).finish();
    let to = KeyWriter::after_prefix(&from);
    (from, to)
}

/// Name of the extended attribute at `key`.
pub fn parse_xattr(key: &[u8]) -> Result<&[u8], DecodeError> {
    match key.get(13..).and_then(|rest| rest.split_last()) {
        Some((0, name)) if !name.is_empty() && name.len() <= NAME_BYTES_MAX => Ok(name),
        _ => Err(DecodeError::Invalid("attribute name")),
    }
}

/// Key of a region record.
pub fn region(dataset: u32, object: u64, region: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_REGION)
        .u32(dataset)
        .u64(object)
        .u64(region)
        .finish()
}

/// The end of an object's region records.
pub fn region_end(dataset: u32, object: u64) -> Vec<u8> {
    KeyWriter::after_prefix(&KeyWriter::table(TABLE_REGION).u32(dataset).u64(object).finish())
}

/// Dataset, object and region of the record at `key`.
pub fn parse_region(key: &[u8]) -> Result<(u32, u64, u64), DecodeError> {
    let mut reader = Reader::new(key);
    if reader.u8("table")? != TABLE_REGION {
        return Err(DecodeError::Invalid("table"));
    }
    let parsed = (
        reader.key_u32("dataset")?,
        reader.key_u64("object")?,
        reader.key_u64("region")?,
    );
    reader.finish()?;
    Ok(parsed)
}

/// The number of the dataset whose versioned record stands at `key`.
pub fn dataset_of(key: &[u8]) -> Result<u32, DecodeError> {
    let mut reader = Reader::new(key);
    reader.u8("table")?;
    reader.key_u32("dataset")
}

/// Key of an orphan record: the number of an unlinked object that is open, or (`freed`) of a body to be freed. An
/// object and its body may have one number, and both an orphan.
pub fn orphan(dataset: u32, number: u64, freed: bool) -> Vec<u8> {
    KeyWriter::table(TABLE_ORPHAN)
        .u32(dataset)
        .u64(number)
        .u8(u8::from(freed))
        .finish()
}

/// Dataset and number of the orphan record at `key`.
pub fn parse_orphan(key: &[u8]) -> Result<(u32, u64), DecodeError> {
    let mut reader = Reader::new(key);
    reader.u8("table")?;
    let parsed = (reader.key_u32("dataset")?, reader.key_u64("number")?);
    reader.u8("kind of orphan")?;
    reader.finish()?;
    Ok(parsed)
}

/// Key of the heat of a body.
pub fn heat(dataset: u32, body: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_HEAT).u32(dataset).u64(body).finish()
}

/// Key of the pin of an object.
pub fn pin(dataset: u32, object: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_PIN).u32(dataset).u64(object).finish()
}

/// Dataset and object of the pin or heat at `key`.
pub fn parse_pin(key: &[u8]) -> Result<(u32, u64), DecodeError> {
    let mut reader = Reader::new(key);
    reader.u8("table")?;
    let parsed = (reader.key_u32("dataset")?, reader.key_u64("number")?);
    reader.finish()?;
    Ok(parsed)
}

/// Key of the regions in pieces of an object.
pub fn fragments(dataset: u32, body: u64, object: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_FRAGMENTS)
        .u32(dataset)
        .u64(body)
        .u64(object)
        .finish()
}

/// Dataset, body and object of the fragments at `key`.
pub fn parse_fragments(key: &[u8]) -> Result<(u32, u64, u64), DecodeError> {
    let mut reader = Reader::new(key);
    reader.u8("table")?;
    let parsed = (
        reader.key_u32("dataset")?,
        reader.key_u64("body")?,
        reader.key_u64("object")?,
    );
    reader.finish()?;
    Ok(parsed)
}

/// The range of a dataset in a table.
pub fn dataset_range(table: u8, dataset: u32) -> (Vec<u8>, Vec<u8>) {
    let from = KeyWriter::table(table).u32(dataset).finish();
    let to = KeyWriter::after_prefix(&from);
    (from, to)
}

/// The range of a whole table.
pub fn table_range(table: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![table], KeyWriter::after_prefix(&[table]))
}

/// Key of the version of the record at `live` that died in checkpoint `death`.
pub fn history(live: &[u8], death: u64) -> Vec<u8> {
    let mut key = history_prefix(live);
    key.extend_from_slice(&death.to_be_bytes());
    key
}

/// What the history keys of all versions of the record at `live` start with. `live` has a table and a dataset.
pub fn history_prefix(live: &[u8]) -> Vec<u8> {
    let (head, rest) = live.split_at(live.len().min(5));
    let mut key = Vec::with_capacity(live.len() + 9);
    key.push(TABLE_HISTORY);
    key.extend_from_slice(head.get(1..).unwrap_or_default());
    key.extend_from_slice(&head[..head.len().min(1)]);
    key.extend_from_slice(rest);
    key
}

/// The live key and the death of the version at `key`.
pub fn parse_history(key: &[u8]) -> Result<(Vec<u8>, u64), DecodeError> {
    let mut reader = Reader::new(key);
    if reader.u8("table")? != TABLE_HISTORY {
        return Err(DecodeError::Invalid("table"));
    }
    let dataset: [u8; 4] = reader.array("dataset")?;
    let table = reader.u8("table of the version")?;
    let rest = reader.rest();
    let (rest, death) = rest.split_last_chunk::<8>().ok_or(DecodeError::Short("death"))?;
    Ok((live_key(table, dataset, rest), u64::from_be_bytes(*death)))
}

/// Key of the index record that says that `holder` holds the version of `live` from `birth` until `death`.
pub fn holder(live: &[u8], holder: u64, birth: u64, death: u64) -> Vec<u8> {
    let (head, rest) = live.split_at(live.len().min(5));
    let mut key = Vec::with_capacity(live.len() + 25);
    key.push(TABLE_HOLDER);
    key.extend_from_slice(head.get(1..).unwrap_or_default());
    key.extend_from_slice(&holder.to_be_bytes());
    key.extend_from_slice(&birth.to_be_bytes());
    key.extend_from_slice(&head[..head.len().min(1)]);
    key.extend_from_slice(rest);
    key.extend_from_slice(&death.to_be_bytes());
    key
}

/// Where the index records of a dataset with this holder and this birth or later start.
pub fn holder_from(dataset: u32, holder: u64, birth: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_HOLDER)
        .u32(dataset)
        .u64(holder)
        .u64(birth)
        .finish()
}

/// What an index record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Newest checkpoint held when the version died.
    pub holder: u64,
    /// Checkpoint in which the version was made.
    pub birth: u64,
    /// Checkpoint in which it was replaced or deleted.
    pub death: u64,
    /// Key of the live record.
    pub live: Vec<u8>,
}

/// Takes the key of an index record apart.
pub fn parse_holder(key: &[u8]) -> Result<Holding, DecodeError> {
    let mut reader = Reader::new(key);
    if reader.u8("table")? != TABLE_HOLDER {
        return Err(DecodeError::Invalid("table"));
    }
    let dataset: [u8; 4] = reader.array("dataset")?;
    let holder = reader.key_u64("holder")?;
    let birth = reader.key_u64("birth")?;
    let table = reader.u8("table of the version")?;
    let (rest, death) = reader
        .rest()
        .split_last_chunk::<8>()
        .ok_or(DecodeError::Short("death"))?;
    Ok(Holding {
        holder,
        birth,
        death: u64::from_be_bytes(*death),
        live: live_key(table, dataset, rest),
    })
}

fn live_key(table: u8, dataset: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let mut live = Vec::with_capacity(5 + rest.len());
    live.push(table);
    live.extend_from_slice(&dataset);
    live.extend_from_slice(rest);
    live
}

/// Key of a pool-wide fact.
pub fn pool(name: &str) -> Vec<u8> {
    KeyWriter::table(TABLE_POOL).bytes(name.as_bytes()).finish()
}

/// Key of a dataset record.
pub fn dataset(number: u32) -> Vec<u8> {
    KeyWriter::table(TABLE_DATASET).u32(number).finish()
}

/// Key of a held checkpoint.
pub fn held(dataset: u32, checkpoint: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_HELD).u32(dataset).u64(checkpoint).finish()
}

/// Dataset and checkpoint of the held checkpoint at `key`.
pub fn parse_held(key: &[u8]) -> Result<(u32, u64), DecodeError> {
    let mut reader = Reader::new(key);
    reader.u8("table")?;
    Ok((reader.key_u32("dataset")?, reader.key_u64("checkpoint")?))
}

/// Key of a sweep job.
pub fn sweep(job: u64) -> Vec<u8> {
    KeyWriter::table(TABLE_SWEEP).u64(job).finish()
}

/// Key of a dataset's counters.
pub fn counters(dataset: u32) -> Vec<u8> {
    KeyWriter::table(TABLE_COUNTERS).u32(dataset).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_and_holder_keys_name_their_live_record() {
        let live = entry(7, 1, b"name");
        assert_eq!(parse_history(&history(&live, 9)).unwrap(), (live.clone(), 9));
        assert!(history(&live, 9).starts_with(&history_prefix(&live)));
        let holding = parse_holder(&holder(&live, 5, 4, 9)).unwrap();
        assert_eq!(
            holding,
            Holding {
                holder: 5,
                birth: 4,
                death: 9,
                live
            }
        );
        assert_eq!(
            parse_entry(&entry(7, 1, b"name")).unwrap(),
            (entry_hash(b"name"), &b"name"[..])
        );
        assert_eq!(parse_xattr(&xattr(7, 1, b"user.x")).unwrap(), b"user.x");
        assert_eq!(parse_region(&region(1, 2, 3)).unwrap(), (1, 2, 3));
    }

    #[test]
    fn no_entry_key_is_a_prefix_of_another() {
        assert!(!entry(1, 1, b"ab").starts_with(&entry(1, 1, b"a")));
        assert!(!xattr(1, 1, b"user.ab").starts_with(&xattr(1, 1, b"user.a")));
    }

    #[test]
    fn hostile_keys_are_refused() {
        for length in 0..40 {
            let bytes = vec![TABLE_HOLDER; length];
            let _ = (
                parse_holder(&bytes),
                parse_entry(&bytes),
                parse_xattr(&bytes),
                parse_region(&bytes),
            );
            let _ = (
                parse_history(&vec![TABLE_HISTORY; length]),
                parse_orphan(&bytes),
                history_prefix(&bytes),
            );
        }
    }
}
