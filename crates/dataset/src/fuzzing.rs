//! Records of this floor, keys, values, and the words of users, one parser a function: what must hold of any bytes. The harness of the tests
//! (`hostile_bytes.rs`) and the coverage-guided targets (`fuzz/`) call the same functions.
//!
//! Invariant: a function panics only where something is wrong with the parser.

use std::fmt::Debug;

use terrace_codec::DecodeError;

use crate::{
    posix::Acl,
    records::{
        Counters, DatasetRecord, EntryRecord, HeldRecord, InodeRecord, Job, OrphanRecord, RegionRecord, Time,
        keys, split_value,
    },
    registry::Facts,
    settings::{At, Retention, properties},
};

/// Decodes, encodes and decodes again.
fn round<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    encode: fn(&T) -> Vec<u8>,
) {
    if let Ok(record) = decode(bytes) {
        assert_eq!(decode(&encode(&record)), Ok(record));
    }
}

/// An inode.
pub fn inode(bytes: &[u8]) {
    round(bytes, InodeRecord::decode, InodeRecord::encode);
}

/// An entry of a directory.
pub fn entry(bytes: &[u8]) {
    round(bytes, EntryRecord::decode, EntryRecord::encode);
}

/// Something without a name.
pub fn orphan(bytes: &[u8]) {
    round(bytes, OrphanRecord::decode, OrphanRecord::encode);
}

/// A dataset.
pub fn dataset(bytes: &[u8]) {
    round(bytes, DatasetRecord::decode, DatasetRecord::encode);
}

/// A held state.
pub fn held(bytes: &[u8]) {
    round(bytes, HeldRecord::decode, HeldRecord::encode);
}

/// The counters of a dataset.
pub fn counters(bytes: &[u8]) {
    round(bytes, Counters::decode, Counters::encode);
}

/// What holds of all datasets.
pub fn facts(bytes: &[u8]) {
    round(bytes, Facts::decode, |facts| facts.encode());
}

/// A job of the sweep.
pub fn sweep(bytes: &[u8]) {
    round(bytes, Job::decode, Job::encode);
}

/// A region: it has no more blocks than there are, and can be changed.
pub fn region(bytes: &[u8]) {
    if let Ok(record) = RegionRecord::decode(bytes) {
        assert_eq!(RegionRecord::decode(&record.encode()), Ok(record.clone()));
        assert!(record.mapped_blocks() <= crate::REGION_BLOCKS && record.runs().len() <= 256);
        let mut changed = record.clone();
        changed.overwrite(100, 9, terrace_store::ChunkId(77), 1);
        changed.punch(7, 103);
        assert_eq!(RegionRecord::decode(&changed.encode()), Ok(changed));
    }
}

/// An access control list, from anybody who may set an attribute.
pub fn acl(bytes: &[u8]) {
    let Ok(mut acl) = Acl::parse(bytes) else { return };
    // Entries without an id are written without one.
    let again = |acl: &Acl| Acl::parse(&acl.encode()).map(|acl| acl.encode());
    assert_eq!(again(&acl), Ok(acl.encode()));
    assert!(acl.mode() <= 0o777);
    let (_, inherited) = acl.inherit(0o754);
    acl.apply_mode(0o640);
    for list in inherited.iter().chain([&acl]) {
        assert_eq!(again(list), Ok(list.encode()));
    }
    assert_eq!(acl.mode(), 0o640);
}

/// What users write: times, sizes, rules of retention, values of properties.
pub fn words(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(retention) = Retention::parse(text) {
        assert_eq!(Retention::parse(&retention.to_string()), Ok(retention));
    }
    let now = Time::from_nanos(1_700_000_000_000_000_000);
    if let Ok(at) = At::parse(text, now) {
        let _ = at.to_string();
    }
    let _ = (
        terrace_device::parse_size(text),
        terrace_device::parse_duration(text),
    );
    property(text);
}

/// `NAME=VALUE`: what is taken is kept in a form that is taken again, and unchanged.
fn property(text: &str) {
    let Some((name, value)) = text.split_once('=') else {
        return;
    };
    let _ = properties::check_name(name);
    if let Ok(kept) = properties::canonical(name, value) {
        assert_eq!(properties::canonical(name, &kept), Ok(kept), "{name}");
    }
}

/// A key of any table, or a value: what is taken apart is put together again.
pub fn key(bytes: &[u8]) {
    let _ = (
        split_value(bytes),
        keys::dataset_of(bytes),
        keys::parse_pin(bytes),
        keys::parse_orphan(bytes),
    );
    let _ = (
        keys::parse_entry(bytes),
        keys::parse_xattr(bytes),
        keys::history_prefix(bytes),
    );
    if let Ok((dataset, body, region)) = keys::parse_region(bytes) {
        assert_eq!(keys::region(dataset, body, region), bytes);
    }
    if let Ok((live, death)) = keys::parse_history(bytes) {
        assert_eq!(keys::history(&live, death), bytes);
    }
    if let Ok(holding) = keys::parse_holder(bytes) {
        let again = keys::holder(&holding.live, holding.holder, holding.birth, holding.death);
        assert_eq!(again, bytes);
    }
}
