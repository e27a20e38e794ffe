//! `Client`: one call to a filesystem, done to the engine and to a copy of the model, and what came of it in both.
//!
//! Invariants: engine and model agree on whether a call succeeds; the times that the engine shows of what was touched lie
//! within the call or are those from before, and those that the call must set are set; a call that fails for a reason
//! outside leaves a state that may be found later; what frees is never refused on a full pool.

use std::sync::Arc;

use terrace_dataset::{Attributes, Filesystem, FsError, Tree};
use terrace_device::Clock;

use crate::{
    ensure,
    fs::{
        checks::{PreallocatedFits, dump, stamps},
        models::{BlocksModel, Body, FilesystemState, Promise, Refused, TreeModel, TreeState},
        world::{Consequence, World},
    },
    hardware::Random,
    trace, violation,
    violation::Check,
};

/// A client of one filesystem of the world.
pub(crate) struct Client<'w> {
    pub(crate) world: &'w mut World,
    pub(crate) index: usize,
}

impl<'w> Client<'w> {
    pub(crate) fn of(world: &'w mut World, index: usize) -> Self {
        Self { world, index }
    }

    /// Chance of the run.
    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.world.rig.random
    }

    /// The other source of chance.
    pub(super) fn aside(&mut self) -> &mut Random {
        &mut self.world.rig.aside
    }

    pub(crate) fn model(&self) -> &FilesystemState {
        &self.world.models.filesystems[self.index]
    }

    fn model_mut(&mut self) -> &mut FilesystemState {
        &mut self.world.models.filesystems[self.index]
    }

    /// The newest state of the model.
    pub(crate) fn tree(&self) -> &TreeModel {
        &self.model().history.newest().tree
    }

    /// The size of a file; 0 if there is none.
    pub(crate) fn size_of(&self, object: u64) -> u64 {
        self.tree().file(object).map_or(0, |file| file.size)
    }

    /// A file's content as the model has it.
    pub(crate) fn file(&self, object: u64) -> Option<BlocksModel> {
        self.tree().file(object).ok().cloned()
    }

    pub(crate) fn handle(&self) -> Option<Arc<Filesystem>> {
        self.world.rig.handles.filesystem(self.index)
    }

    /// What was done so far is committed.
    pub(crate) fn commit(&self) -> Result<(), FsError> {
        self.handle().map_or(Ok(()), |handle| handle.commit().map(drop))
    }

    fn now(&self) -> u64 {
        self.world.rig.machine.clock.now_nanoseconds()
    }

    /// Does a call on the engine and on a copy of the model, and compares.
    pub(crate) fn call(
        &mut self,
        words: &str,
        work: impl FnOnce(&Filesystem, &mut TreeModel) -> Done,
    ) -> Check {
        let Some(handle) = self.handle() else {
            return Ok(());
        };
        let mut tree = self.tree().clone();
        let earliest = self.now();
        let mut done = work(&handle, &mut tree);
        trace!(
            self.world.rig.trace,
            "{}: {words}: {}",
            self.model().name,
            done.words()
        );
        match (std::mem::replace(&mut done.engine, Ok(())), done.model) {
            (Ok(()), Ok(())) => self.succeeded(words, &handle, done, tree, earliest),
            (Err(error), model) => self.failed(words, &error, &done, tree, model),
            (Ok(()), Err(refused)) => violation!("{words} succeeded, but: {refused}"),
        }
    }

    /// Engine and model did it: the model gets the times that the engine shows.
    fn succeeded(
        &mut self,
        words: &str,
        handle: &Filesystem,
        done: Done,
        mut tree: TreeModel,
        earliest: u64,
    ) -> Check {
        let old = self.tree().clone();
        for tree in done.on_the_way {
            self.model_mut().history.push(TreeState { tree, exact: false });
        }
        let latest = self.now();
        for object in done.touched {
            if tree.node(object).is_none() {
                continue;
            }
            match handle.attributes(object) {
                Ok(attributes) => {
                    observe(&mut tree, object, &attributes, earliest, latest)?;
                    let stamped = done.stamped.iter().filter(|(of, _)| *of == object);
                    for (_, change) in stamped {
                        check_stamped(words, object, &attributes, *change, earliest)?;
                    }
                }
                Err(error) => {
                    let consequence = self.world.judge("attributes", &error)?;
                    self.model_mut().history.push(TreeState { tree, exact: false });
                    return match consequence {
                        Consequence::Reopen => self.world.recover(false),
                        Consequence::GoOn => violation!("attributes of object {object}: {error}"),
                    };
                }
            }
        }
        let filesystem = self.model_mut();
        // A file that never gets a name may go again without a trace.
        filesystem.changed |= old.without_unnamed() != tree.without_unnamed();
        let (used, used_before) = (tree.used_blocks() as u64, old.used_blocks() as u64);
        let quota = filesystem.quota_bytes.filter(|_| filesystem.quota_certain);
        let quota = quota.map(|quota| quota + filesystem.quota_slack_bytes);
        ensure!(
            used <= used_before || quota.is_none_or(|quota| used * 4096 <= quota),
            "{words}: {used} blocks are used now, in spite of a quota of {quota:?} bytes"
        );
        filesystem.history.push(TreeState { tree, exact: true });
        if filesystem.promise == Promise::Sync {
            filesystem.history.synced();
        }
        self.world.models.accepted_bytes += used.saturating_sub(used_before) * 4096;
        Ok(())
    }

    /// The engine did not do it: whether it may have refused that, and what may be found of it.
    fn failed(
        &mut self,
        words: &str,
        error: &FsError,
        done: &Done,
        tree: TreeModel,
        model: Result<(), Refused>,
    ) -> Check {
        let outside = matches!(error, FsError::Io(_) | FsError::NoSpace | FsError::QuotaExceeded);
        if !outside {
            ensure!(model.is_err(), "{words} failed: {error}");
            return Ok(());
        }
        if done.promised && *error != FsError::QuotaExceeded {
            self.world.check(&PreallocatedFits { words, error })?;
        }
        if *error == FsError::QuotaExceeded {
            self.check_quota(words, done)?;
        }
        self.check_freed(words, error, done)?;
        match self.world.judge(words, error)? {
            Consequence::GoOn => {
                if self.model().promise == Promise::Sync && model.is_ok() {
                    return self.adopt(tree);
                }
                // Room may have been set aside before it failed.
                self.model_mut().history.amend(|state| {
                    let now = state.tree.clone();
                    state.tree = now.clone().with_promises_of_either(&now, &tree);
                });
                Ok(())
            }
            Consequence::Reopen => {
                if model.is_ok() {
                    self.model_mut().history.push(TreeState { tree, exact: false });
                }
                self.world.recover(false)
            }
        }
    }

    /// A quota refuses what would go beyond it, and nothing for which room is set aside.
    fn check_quota(&self, words: &str, done: &Done) -> Check {
        ensure!(
            !done.promised,
            "{words}: refused by a quota, which counts it already"
        );
        let filesystem = self.model();
        // What was deleted counts until the deletion is committed, and what it frees is freed.
        let counted = |tree: &TreeModel| (tree.used_blocks() + tree.promised_blocks()) as u64;
        let states = filesystem.history.states();
        let used = states.map(|state| counted(&state.tree) * 4096).max();
        let used = used.unwrap_or(0);
        let quota = filesystem.quota_bytes;
        let freeing = self.world.rig.engine()?.datasets().sweeper().is_pending();
        let known = filesystem.quota_certain && !freeing;
        ensure!(
            !known || quota.is_some_and(|quota| used * 3 > quota),
            "{words}: the quota of {quota:?} is used up by {used} bytes"
        );
        Ok(())
    }

    /// A full pool refuses nothing that frees.
    fn check_freed(&self, words: &str, error: &FsError, done: &Done) -> Check {
        let rig = &self.world.rig;
        // With durability=sync a deletion is refused when what came before it cannot be made durable.
        let sync = self.model().promise == Promise::Sync;
        // Below a past state nothing gets free, and what was there stays on record: that goes as long as there is something of
        // the reserve, which a device that was lost takes with it. What destroys snapshots works still.
        let state = rig.engine()?.datasets().state(&self.model().name);
        let is_held = state.is_ok_and(|state| !state.held().is_empty());
        let lost = rig.condition.is_failing() || rig.members.pulled().is_some();
        if *error == FsError::NoSpace && done.frees && !sync && !(is_held && lost) {
            violation!("{words} was refused on a full pool");
        }
        Ok(())
    }

    /// With durability=sync a call on a full pool may have been done and not made durable: looks which.
    fn adopt(&mut self, tree: TreeModel) -> Check {
        let Some(handle) = self.handle() else {
            return Ok(());
        };
        let shown = match dump(&*handle, 16, 64 << 10) {
            Ok(shown) => shown,
            Err(error) => return self.world.after_error("reading everything", &error),
        };
        let state = TreeState { tree, exact: false };
        if state.is(&shown) && state.tree.other_taken(&shown).is_none() {
            // What is written already does not tell whether room is set aside for it.
            let before = self.tree().clone();
            let tree = shown.with_unnamed_of(&state.tree);
            self.model_mut().history.push(TreeState {
                tree: tree.with_promises_of_either(&before, &state.tree),
                exact: true,
            });
        }
        Ok(())
    }
}

/// Puts what the engine shows of an object's times into the model; they must lie within the call, or be as before.
fn observe(tree: &mut TreeModel, object: u64, attributes: &Attributes, earliest: u64, latest: u64) -> Check {
    let (modified, changed) = stamps(attributes);
    let Some(node) = tree.node(object) else {
        return Ok(());
    };
    let within = |stamp: (i64, u32)| {
        let nanoseconds = stamp.0 as i128 * 1_000_000_000 + i128::from(stamp.1);
        (i128::from(earliest)..=i128::from(latest)).contains(&nanoseconds)
    };
    for (name, now, before) in [
        ("modified", modified, node.modified),
        ("changed", changed, node.changed),
    ] {
        ensure!(
            now == before || within(now),
            "the {name} time of object {object} is {now:?}, before {before:?}"
        );
    }
    if let Body::File(data) = &node.body {
        let (blocks, promised) = (attributes.blocks512 / 8, data.promised().len() as u64);
        ensure!(
            blocks >= promised,
            "object {object} has {blocks} blocks, and room for {promised} was set aside"
        );
    }
    ensure!(
        attributes.links == node.links,
        "object {object} has {} links, not {}",
        attributes.links,
        node.links
    );
    let _ = tree.change(object, |node| {
        node.modified = modified;
        node.changed = changed;
    });
    Ok(())
}

/// What the call must have set of an object's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The time of the last change of anything.
    Attributes,
    /// That of the last change of the content too.
    Content,
}

fn check_stamped(words: &str, object: u64, attributes: &Attributes, change: Change, earliest: u64) -> Check {
    let (modified, changed) = stamps(attributes);
    let is_old =
        |stamp: (i64, u32)| stamp.0 as i128 * 1_000_000_000 + i128::from(stamp.1) < i128::from(earliest);
    ensure!(
        !is_old(changed) && (change == Change::Attributes || !is_old(modified)),
        "{words}: object {object} changed, and its times say that it did not: {modified:?}, {changed:?}"
    );
    Ok(())
}

pub(crate) fn show(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if text.len() > 24 {
        format!("({} bytes)", name.len())
    } else {
        text.into_owned()
    }
}

/// What came of a call in engine and model.
pub(crate) struct Done {
    engine: Result<(), FsError>,
    model: Result<(), Refused>,
    /// Objects whose times may have changed.
    touched: Vec<u64>,
    /// Objects whose times it must have set.
    stamped: Vec<(u64, Change)>,
    /// What a crash may find of it, in order: it is made in several pieces.
    on_the_way: Vec<TreeModel>,
    /// It must work on a full pool.
    frees: bool,
    /// Room is set aside for it.
    promised: bool,
    wrong: Option<String>,
}

impl Done {
    pub(crate) fn of<T>(engine: Result<T, FsError>, model: Result<(), Refused>, touched: Vec<u64>) -> Self {
        Self {
            engine: engine.map(drop),
            model,
            touched,
            stamped: Vec::new(),
            on_the_way: Vec::new(),
            frees: false,
            promised: false,
            wrong: None,
        }
    }

    /// It must have set these times (of what it touched, as far as that is still there).
    pub(crate) fn stamping(mut self, stamped: &[(u64, Change)]) -> Self {
        self.stamped.extend_from_slice(stamped);
        self
    }

    /// Whether it must work on a full pool.
    pub(crate) fn freeing(mut self, frees: bool) -> Self {
        self.frees = frees;
        self
    }

    /// Whether room is set aside for all that it writes.
    pub(crate) fn promised(mut self, promised: bool) -> Self {
        self.promised = promised;
        self
    }

    /// A crash may find it half done, as one of these.
    pub(crate) fn by_way_of(mut self, trees: Vec<TreeModel>) -> Self {
        self.on_the_way = trees;
        self
    }

    /// Something that no model is needed to see is wrong.
    pub(crate) fn wrong(words: String) -> Self {
        Self {
            wrong: Some(words),
            ..Self::of(Ok(()), Err("the answer makes no sense"), Vec::new())
        }
    }

    fn words(&self) -> String {
        match (&self.wrong, &self.engine) {
            (Some(words), _) => words.clone(),
            (None, Ok(())) => "ok".into(),
            (None, Err(error)) => error.to_string(),
        }
    }
}
