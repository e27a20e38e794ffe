//! The labels of a pool that is given up and cannot be opened: each device is told by itself that its pool is destroyed.
//!
//! Invariants: only a device with a label of that pool is written to, and nothing but labels; a device for which this succeeds has no
//! label left that says that the pool is in use.

use terrace_device::Device;

use crate::{
    PoolError, PoolState, format_id,
    ondisk::{LABEL_OFFSETS, Label, LabelCopies, LabelError, end_label_offset},
};

/// Marks the pool of this identity (as of [`format_id`]) destroyed on a device; false if that has no label of it.
///
/// # Errors
/// If a copy of the label cannot be written, or none can be read: then nobody knows what is there.
pub fn mark_destroyed(device: &dyn Device, id: &str) -> Result<bool, PoolError> {
    let copies = LabelCopies::read(device);
    let Some(newest) = copies.newest() else {
        return match copies.error() {
            error @ LabelError::Unreadable(_) => Err(PoolError::NoLabel {
                path: device.path(),
                error,
            }),
            _ => Ok(false),
        };
    };
    if format_id(&newest.pool_id) != id {
        return Ok(false);
    }
    let is_destroyed = newest.state == PoolState::Destroyed;
    if is_destroyed && copies.are_all(&newest.pool_id, newest.generation) {
        return Ok(true);
    }
    // Newer than what this device, or a copy of its label that another one has, may say.
    let label = Label {
        state: PoolState::Destroyed,
        generation: newest.generation.saturating_add(1),
        ..newest.clone()
    };
    let bytes = label
        .encode()
        .map_err(|error| PoolError::Invalid(error.to_string()))?;
    let ends = label.own().map_or(0, |own| own.size_bytes);
    let end = (1..=device.size_bytes())
        .contains(&ends)
        .then(|| end_label_offset(ends));
    // What refuses one copy may take another, and each that it takes is one less to be found by.
    let mut outcome = Ok(());
    for offset in LABEL_OFFSETS.into_iter().chain(end) {
        let written = device.write_at(offset, &bytes).and_then(|()| device.flush());
        outcome = outcome.and(written);
    }
    outcome?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_device::SeededRandomness;

    use crate::{LABEL_BYTES, scan};

    #[test]
    fn only_the_pool_that_is_meant_is_destroyed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let device = terrace_device::open_path(&path).unwrap();
        assert!(!mark_destroyed(&*device, "").unwrap(), "there is no label");
        let create = crate::CreateOptions {
            name: "tank".into(),
            tiers: vec![(crate::TierSettings::named("only"), vec![device.clone()])],
            properties: Default::default(),
            segment_bytes: None,
            created_nanoseconds: 1,
            force: false,
            parallelism: crate::Parallelism::Sequential,
        };
        let pool = crate::Pool::create(create, &SeededRandomness::new(7)).unwrap();
        let id = format_id(&pool.id());
        drop(pool);
        assert!(!mark_destroyed(&*device, "0123").unwrap());
        let state = || {
            let (found, _) = scan(&[], std::slice::from_ref(&path));
            found.first().map(|found| found.state)
        };
        assert_eq!(state(), Some(PoolState::Active));
        assert!(mark_destroyed(&*device, &id).unwrap());
        assert_eq!(state(), Some(PoolState::Destroyed));
        let generation = LabelCopies::read(&*device).newest().unwrap().generation;
        assert!(mark_destroyed(&*device, &id).unwrap());
        let copies = LabelCopies::read(&*device);
        assert_eq!(
            copies.newest().unwrap().generation,
            generation,
            "it was done already"
        );
        // A copy that is left behind is done as well.
        device
            .write_at(0, &terrace_device::AlignedBuffer::zeroed(LABEL_BYTES))
            .unwrap();
        assert!(mark_destroyed(&*device, &id).unwrap());
        let copies = LabelCopies::read(&*device);
        let all = copies.copies.iter();
        let mut states = all.map(|copy| copy.as_ref().unwrap().state);
        assert!(states.all(|state| state == PoolState::Destroyed));
    }
}
