//! Comparing the store with the model: everything after an opening, the full walk, every copy, and the pool's version.
//!
//! What must hold: whatever fails, what the newest root needs is still held; the full walk finds every count exact.

use std::collections::BTreeSet;

use terrace_chunk::{FORMAT_NEWEST, ScrubCursor};
use terrace_store::{ChunkId, Store, StoreError};

use super::world::{StoreWorld, Upgrade};
use crate::{
    ensure,
    store::model::{MARKER_KEY, marker_number},
    trace, violation,
    violation::{Check, Violation},
};

impl StoreWorld {
    /// Everything in the store against the model; the number of batches is read from the store.
    pub(crate) fn check_all(&mut self) -> Check {
        self.check_version()?;
        let store = self.store()?;
        let wrong = |doing: &str| {
            let doing = doing.to_string();
            move |error: StoreError| Violation(format!("after opening, {doing} failed: {error}"))
        };
        let number = marker_number(store.get(MARKER_KEY).map_err(wrong("get"))?.as_deref())?;
        trace!(
            self.trace,
            "recovered {number} of {} batches, {} durable",
            self.model.newest(),
            self.model.durable()
        );
        self.model.recovered(number, store.newest())?;
        self.log_copies.recovered(self.model.references().into_keys());
        let mut from = vec![0x20];
        let mut found = 0;
        let mut expected = self.model.live().iter();
        loop {
            let records = store.scan(&from, &[], 64).map_err(wrong("scan"))?;
            let Some((last, _)) = records.last() else { break };
            from = [&last[..], &[0]].concat();
            for (key, value) in &records {
                let Some((wanted, of_model)) = expected.next() else {
                    violation!("a record too many: {key:02x?}");
                };
                ensure!(
                    &key[..] == wanted.as_slice(),
                    "the store has {key:02x?} where the model has {wanted:02x?}"
                );
                ensure!(
                    value[..] == of_model.encode(),
                    "{key:02x?} has another value than batch {number} left"
                );
                found += 1;
            }
        }
        ensure!(
            expected.next().is_none(),
            "only {found} of {} records are there",
            self.model.live().len()
        );
        let mut seen = BTreeSet::new();
        for chunk in self.model.live().values().flat_map(|value| &value.uses) {
            if seen.insert(chunk.id) {
                let bytes = store.read_chunk(chunk.id).map_err(wrong("reading a chunk"))?;
                ensure!(
                    bytes == chunk.content.bytes(),
                    "chunk {} has other content than was written",
                    chunk.id
                );
            }
        }
        self.audit()
    }

    pub(crate) fn audit(&mut self) -> Check {
        let store = self.store()?;
        let references = self.model.references();
        let expected = |tell: &mut dyn FnMut(ChunkId, i64)| {
            for (id, blocks) in &references {
                tell(*id, *blocks);
            }
            Ok(())
        };
        match store.audit(Some(&expected)) {
            Ok(report) => {
                ensure!(
                    report.discrepancies.is_empty() || self.is_explained(),
                    "the audit found: {}",
                    report
                        .discrepancies
                        .iter()
                        .take(5)
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("; ")
                );
            }
            Err(error) => return self.after_error("audit", &error),
        }
        self.check_copies()
    }

    /// What the newest root needs is still held, whatever fails.
    pub(crate) fn audit_root(&mut self) -> Check {
        if !self.rig.machine.is_powered() {
            return Ok(());
        }
        match self.store()?.audit_root() {
            Ok(wrong) => ensure!(wrong.is_empty(), "{}", wrong.join("; ")),
            Err(error) => return self.after_error("audit of the root", &error),
        }
        Ok(())
    }

    /// Every copy of every chunk is good, unless something outside may have taken one.
    pub(crate) fn check_copies(&mut self) -> Check {
        if self.condition.storm
            || self.condition.ragged
            || !self.rig.machine.is_powered()
            || self.rig.machine.lacks_a_disk()
        {
            return Ok(());
        }
        let progress = self.store()?.verify_step(&mut ScrubCursor::default(), u64::MAX);
        ensure!(
            progress.damaged_copies == 0 || !self.rig.machine.is_powered(),
            "{} of {} copies of chunks are bad, and nothing damaged them",
            progress.damaged_copies,
            progress.copies
        );
        // A table goes on with one copy where a device fails; a scrub makes the other anew.
        ensure!(
            progress.damaged_tables.is_empty() || self.condition.scarred || !self.rig.machine.is_powered(),
            "nothing damaged the tables: {}",
            progress.damaged_tables.lines().join("; ")
        );
        Ok(())
    }

    /// The pool has the version that is known.
    pub(crate) fn check_version(&mut self) -> Check {
        let version = self.store()?.format_version();
        match self.upgrade {
            Upgrade::Unasked => ensure!(
                version == self.rig.format_version,
                "version {version}, and nobody asked for that"
            ),
            Upgrade::Done => ensure!(version == FORMAT_NEWEST, "version {version} after an upgrade"),
            // A checkpoint or an opening finds out.
            Upgrade::Begun if version == FORMAT_NEWEST => self.upgrade = Upgrade::Done,
            Upgrade::Begun => {}
        }
        Ok(())
    }
}
