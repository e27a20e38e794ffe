//! Trials in which a disk is lost for good: at any opening, of a copy of the machine, so that the run goes on as if nothing
//! had happened.
//!
//! What must hold: where log and tables had two copies, the pool opens without any one of its disks; it shows one whole
//! state that has everything acknowledged, or, without the only disk of the fastest tier, at least everything from before
//! the copy of the log on a slower one was last brought up to date, and every acknowledged batch with content that does not
//! lie on the lost disk; what has a copy on a disk that is there can be read, everything else is an
//! error; and what is written then is there at the next opening.

use terrace_chunk::ChunkStore;
use terrace_pool::OpenOptions;
use terrace_store::{Batch, Store};

use crate::{
    ensure,
    rig::Rig,
    store::model::{MARKER_KEY, StoreModel, Value, marker_number},
    violation,
    violation::{Check, Violation},
};

/// Opens the pool without a disk, and compares what it shows and takes.
pub(super) fn open_without(rig: &mut Rig, lost: usize, mut model: StoreModel, ragged: bool) -> Check {
    rig.machine.cut_power_after(None);
    rig.machine.with_disk(lost, |disk, _| disk.vanished = true);
    let failed = |doing: &str, error: &dyn std::fmt::Display| {
        Violation(format!("without disk {lost}, {doing} failed: {error}"))
    };
    let store = rig.open(true).map_err(|error| failed("opening", &error))?;
    let check_outdated = |store: &ChunkStore| -> Check {
        let outdated = store.pool().outdated();
        ensure!(
            outdated.is_empty(),
            "without disk {lost}, or with it again, devices {outdated:?} count as old copies"
        );
        Ok(())
    };
    check_outdated(&store)?;
    let marker = store.get(MARKER_KEY).map_err(|error| failed("get", &error))?;
    let number = marker_number(marker.as_deref())?;
    model.recovered(number, store.newest())?;
    let found = store
        .scan(&[0x20], &[], usize::MAX >> 1)
        .map_err(|error| failed("scan", &error))?;
    let expected = model
        .live()
        .iter()
        .map(|(key, value)| (key.clone(), value.encode()));
    ensure!(
        found
            .iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .eq(expected),
        "without disk {lost} the records are not those of batch {number}"
    );
    for chunk in model.live().values().flat_map(|value| &value.uses) {
        match store.read_chunk(chunk.id) {
            Ok(bytes) => ensure!(
                bytes == chunk.content.bytes(),
                "without disk {lost} chunk {} reads as something else",
                chunk.id
            ),
            Err(error) => {
                let gone = store
                    .is_gone(chunk.id)
                    .map_err(|error| failed("a look at a record", &error))?;
                ensure!(
                    gone || ragged,
                    "chunk {} is not on disk {lost}, which is lost, and cannot be read: {error}",
                    chunk.id
                );
            }
        }
    }
    let newest = store.newest();
    let mut batch = Batch::new();
    let key = [&[0x22, 8][..], b"after the loss"].concat();
    let value = Value {
        uses: Vec::new(),
        padding: vec![7; 900],
    };
    batch.put(key.clone(), value.encode());
    // On a full pool it may be refused.
    let Ok(sequence) = store.commit(batch) else {
        return Ok(());
    };
    store.flush(sequence).map_err(|error| failed("a flush", &error))?;
    drop(store);
    rig.machine.kill();
    for back in [false, true] {
        // The lost disk is found again, with what it had.
        rig.machine.with_disk(lost, |disk, _| disk.vanished = !back);
        let options = OpenOptions {
            degraded: !back,
            ..OpenOptions::default()
        };
        let store = rig
            .open_with(options)
            .map_err(|error| failed("opening again", &error))?;
        check_outdated(&store)?;
        ensure!(
            store.newest() >= sequence && sequence > newest,
            "what was flushed without disk {lost} is gone (back: {back})"
        );
        match store.get(&key) {
            Ok(Some(found)) if found[..] == value.encode() => {}
            other => violation!(
                "what was written without disk {lost} reads as {:?} (back: {back})",
                other.map(|value| value.map(|value| value.len()))
            ),
        }
        drop(store);
        rig.machine.kill();
    }
    Ok(())
}
