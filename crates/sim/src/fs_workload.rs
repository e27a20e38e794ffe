//! What clients do: calls of a filesystem and of a volume, chosen by the seed, done by engine and model alike.
//!
//! Each call is first done to a copy of the model's newest state. Engine and model must agree on whether it succeeds;
//! if the engine fails for a reason outside (power, a failing device), the copy is a state that may be found later.

use std::sync::Arc;

use terrace_dataset::{
    AllocateMode, Attributes, Context, FileKind, Filesystem, FsError, RenameMode, SetAttributes, Tree, Volume,
};

use crate::{
    content::Content,
    ensure,
    fs_dump::{dump, stamps},
    fs_level::{Consequence, Run},
    fs_model::{BlocksModel, Body, Node, Refused, Renaming, TreeModel, UNKNOWN_OBJECT},
    fs_state::{Promise, TreeState},
    outcome::Check,
    trace, violation,
};

/// What a volume is cut into if nothing else is said.
const CHUNK_OF_VOLUME: u64 = 16 << 10;

/// Objects that a filesystem of the run has at most.
const OBJECTS_MAX: usize = 90;
/// Content that a filesystem of the run has at most, blocks.
const BLOCKS_MAX: usize = 1500;

/// From here on a file is long: it is freed in the background.
const LONG_BYTES: u64 = 16 << 20;

/// What one chunk holds at most.
const CHUNK_BYTES: u64 = 128 << 10;

/// What was done: the objects whose times may have changed.
type Touched = Vec<u64>;

impl Run {
    pub(crate) fn name(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => vec![b'x'; 255],
            1 => format!("näme {}", self.random.below(4)).into_bytes(),
            2 => vec![0xFF, 0xFE, b'0' + self.random.below(4) as u8],
            _ => format!("n{}", self.random.below(40)).into_bytes(),
        }
    }

    /// One call to one filesystem.
    pub(crate) fn filesystem_call(&mut self) -> Check {
        let index = self.random.index(self.filesystems.len());
        let state = self.filesystems[index].history.newest().clone();
        let directories = state.tree.objects(Node::is_directory);
        let files = state.tree.objects(|node| matches!(node.body, Body::File(_)));
        let names = state.tree.names();
        let dir = *self.random.pick(&directories);
        // Mostly names that are there for calls that need one.
        let (old_dir, old_name) = if !names.is_empty() && self.random.chance(9, 10) {
            let (dir, name, _) = self.random.pick(&names).clone();
            (dir, name)
        } else {
            (dir, self.name())
        };
        let file = if files.is_empty() {
            None
        } else {
            Some(*self.random.pick(&files))
        };
        let crowded = state.tree.len() > OBJECTS_MAX || state.tree.used_blocks() > BLOCKS_MAX;
        let choice = if crowded {
            self.random.between(52, 75)
        } else {
            self.random.below(106)
        };
        match choice {
            0..=13 => self.create(index, dir, FileKind::File),
            14..=19 => self.create(index, dir, FileKind::Directory),
            20..=22 => self.create(index, dir, FileKind::SymbolicLink),
            23..=26 => match file {
                Some(object) => {
                    let name = self.name();
                    self.call(
                        index,
                        &format!("link {object} as {dir}/{}", show(&name)),
                        |fs, tree| {
                            let model = tree.link(object, dir, &name);
                            let linked = fs.link(&Context::root(), object, dir, &name);
                            Done::of(linked, model, vec![object, dir])
                                .stamping(&[(object, Change::Attributes), (dir, Change::Content)])
                        },
                    )
                }
                None => Ok(()),
            },
            27..=51 => match file {
                Some(object) => self.write(index, object),
                None => self.create(index, dir, FileKind::File),
            },
            52..=61 => self.unlink(index, old_dir, &old_name),
            62..=70 => self.rename(index, old_dir, &old_name, dir),
            71..=75 => match file {
                Some(object) => self.truncate(index, object),
                None => Ok(()),
            },
            76..=79 => match file {
                Some(object) => self.allocate(index, object),
                None => Ok(()),
            },
            80..=82 => match file {
                Some(object) => self.copy_range(index, object, *self.random.clone().pick(&files)),
                None => Ok(()),
            },
            83..=86 => self.change_attributes(index),
            87..=91 => self.extended_attribute(index),
            92..=93 => match file {
                Some(object) => self.hold_open(index, object),
                None => Ok(()),
            },
            94 => self.release_one(index),
            100..=101 => self.temporary(index, dir),
            102..=103 => self.link_held(index, dir),
            104..=105 => self.set_times(index),
            _ => match file {
                Some(object) => self.read(index, object),
                None => Ok(()),
            },
        }
    }

    /// Does a call on the engine and on a copy of the model, and compares.
    pub(crate) fn call(
        &mut self,
        index: usize,
        words: &str,
        work: impl FnOnce(&Filesystem, &mut TreeModel) -> Done,
    ) -> Check {
        let filesystem = &mut self.filesystems[index];
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        let mut tree = filesystem.history.newest().tree.clone();
        let before = self.rig.machine.clock.clone();
        let earliest = terrace_device::Clock::now_nanoseconds(&*before);
        let done = work(&handle, &mut tree);
        trace!(self.trace, "{}: {words}: {}", filesystem.name, done.words());
        match (done.engine, done.model) {
            (Ok(()), Ok(())) => {
                let filesystem = &mut self.filesystems[index];
                let old = filesystem.history.newest().tree.clone();
                for tree in done.on_the_way {
                    filesystem.history.push(TreeState { tree, exact: false });
                }
                let latest = terrace_device::Clock::now_nanoseconds(&*before);
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
                            let consequence = self.judge("attributes", &error)?;
                            self.filesystems[index]
                                .history
                                .push(TreeState { tree, exact: false });
                            return match consequence {
                                Consequence::Reopen => self.recover(false),
                                Consequence::GoOn => violation!("attributes of object {object}: {error}"),
                            };
                        }
                    }
                }
                let filesystem = &mut self.filesystems[index];
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
                self.accepted_bytes += used.saturating_sub(used_before) * 4096;
                let filesystem = &mut self.filesystems[index];
                if filesystem.promise == Promise::Sync {
                    filesystem.history.synced();
                }
                Ok(())
            }
            (Err(error), model) => {
                let outside = matches!(error, FsError::Io(_) | FsError::NoSpace | FsError::QuotaExceeded);
                if !outside {
                    ensure!(model.is_err(), "{words} failed: {error}");
                    return Ok(());
                }
                if error == FsError::QuotaExceeded {
                    // What was deleted counts until the deletion is committed, and what it frees is freed.
                    let states = self.filesystems[index].history.states();
                    let used = states.map(|state| state.tree.used_blocks() as u64 * 4096).max();
                    let used = used.unwrap_or(0);
                    let quota = self.filesystems[index].quota_bytes;
                    let freeing = self.engine()?.datasets().sweep_pending();
                    let known = self.filesystems[index].quota_certain && !freeing;
                    ensure!(
                        !known || quota.is_some_and(|quota| used * 3 > quota),
                        "{words}: the quota of {quota:?} is used up by {used} bytes"
                    );
                }
                // With durability=sync a deletion is refused when what came before it cannot be made durable.
                let sync = self.filesystems[index].promise == Promise::Sync;
                if error == FsError::NoSpace && done.frees && !sync {
                    violation!("{words} was refused on a full pool");
                }
                match self.judge(words, &error)? {
                    Consequence::GoOn => {
                        if self.filesystems[index].promise == Promise::Sync && model.is_ok() {
                            return self.adopt(index, tree);
                        }
                        Ok(())
                    }
                    Consequence::Reopen => {
                        if model.is_ok() {
                            self.filesystems[index]
                                .history
                                .push(TreeState { tree, exact: false });
                        }
                        self.recover(false)
                    }
                }
            }
            (Ok(()), Err(refused)) => violation!("{words} succeeded, but: {refused}"),
        }
    }

    /// With durability=sync a call on a full pool may have been done and not made durable: looks which.
    fn adopt(&mut self, index: usize, tree: TreeModel) -> Check {
        let Some(handle) = self.filesystems[index].handle.clone() else {
            return Ok(());
        };
        let shown = match dump(&*handle, 16, 64 << 10) {
            Ok(shown) => shown,
            Err(error) => return self.after_error("reading everything", &error),
        };
        if (TreeState { tree, exact: false }).is(&shown) {
            let held = self.filesystems[index].held.clone();
            ensure!(held.is_empty() || !shown.is_empty(), "there is no root");
            self.filesystems[index].history.push(TreeState {
                tree: shown,
                exact: true,
            });
        }
        Ok(())
    }

    fn create(&mut self, index: usize, dir: u64, kind: FileKind) -> Check {
        let name = self.name();
        let mode = *self.random.pick(&[0o644, 0o600, 0o755, 0o777, 0o400]);
        let target = format!("target/{}", "y".repeat(self.random.skewed(300) as usize)).into_bytes();
        let words = format!("create {kind:?} {dir}/{}", show(&name));
        self.call(index, &words, |fs, tree| {
            let context = Context::root();
            let (result, body, mode) = match kind {
                FileKind::Directory => (
                    fs.make_directory(&context, dir, &name, mode),
                    Body::Directory(Default::default()),
                    mode,
                ),
                FileKind::SymbolicLink => (
                    fs.symbolic_link(&context, dir, &name, &target),
                    Body::Symlink(target.clone()),
                    0o777,
                ),
                _ => {
                    let result = fs.create(&context, dir, &name, FileKind::File, mode, 0);
                    (result, Body::File(BlocksModel::default()), mode)
                }
            };
            // The number is the engine's to choose; where there is none, any unused one shows whether it could be.
            let object = result
                .as_ref()
                .map_or(UNKNOWN_OBJECT, |attributes| attributes.object);
            let model = tree.create(dir, &name, object, mode, body);
            Done::of(result, model, vec![object, dir])
                .stamping(&[(object, Change::Content), (dir, Change::Content)])
        })
    }

    fn write(&mut self, index: usize, object: u64) -> Check {
        let size = self.filesystems[index]
            .history
            .newest()
            .tree
            .file(object)
            .map_or(0, |file| file.size);
        let most = *self.random.pick(&[300, 5_000, 70_000, 400_000]);
        let data = if self.random.chance(1, 12) {
            vec![0; self.random.between(1, most) as usize]
        } else {
            Content::choose(&mut self.random, most).bytes()
        };
        if self.random.chance(1, 8) {
            return self.rewrite(index, object, size);
        }
        let offset = match self.random.below(10) {
            0..=3 => size,
            4 => self.random.below(1 << 22),
            5 => self.random.below(200) * 4096,
            // Around the end, in its block or beyond it.
            6 => size.saturating_sub(self.random.below(700)),
            _ => self.random.below(size.max(1)),
        };
        if self.random.chance(1, 6) {
            let words = format!("append {} bytes to {object}", data.len());
            return self.call(index, &words, |fs, tree| {
                let result = fs.append(&Context::root(), object, &data, false);
                let model = tree.write(object, size, &data);
                if let Ok(at) = result
                    && at != size
                {
                    return Done::wrong(format!("appended at {at}, not {size}"));
                }
                Done::of(result, model, vec![object]).stamping(&[(object, Change::Content)])
            });
        }
        let words = format!("write {} bytes at {offset} of {object}", data.len());
        self.call(index, &words, |fs, tree| {
            let result = fs.write(&Context::root(), object, offset, &data, false);
            let written = result.as_ref().map_or(data.len(), |written| *written);
            if written == 0 || written > data.len() {
                return Done::wrong(format!("{written} of {} bytes written", data.len()));
            }
            let model = tree.write(object, offset, &data[..written]);
            Done::of(result, model, vec![object]).stamping(&[(object, Change::Content)])
        })
    }

    /// Writes a stream over what is there, or beyond it, with blocks of zeroes in it.
    fn rewrite(&mut self, index: usize, object: u64, size: u64) -> Check {
        let first = self.random.below(size / CHUNK_BYTES + 1);
        for number in first..first + self.random.between(1, 3) {
            let mut data = Content {
                texture: self.random.below(4) as u8,
                seed: self.random.next(),
                length: CHUNK_BYTES as u32,
            }
            .bytes();
            if self.random.chance(1, 2) {
                let from = self.random.index(CHUNK_BYTES as usize / 4096) * 4096;
                let to = from + self.random.index((CHUNK_BYTES as usize - from) / 4096 + 1) * 4096;
                data[from..to].fill(0);
            }
            let offset = number * CHUNK_BYTES;
            self.call(index, &format!("stream to {offset} of {object}"), |fs, tree| {
                let result = fs.write(&Context::root(), object, offset, &data, false);
                let written = result.as_ref().map_or(data.len(), |written| *written);
                let model = tree.write(object, offset, &data[..written]);
                Done::of(result, model, vec![object])
            })?;
        }
        Ok(())
    }

    pub(crate) fn unlink(&mut self, index: usize, dir: u64, name: &[u8]) -> Check {
        let held = self.filesystems[index].held.clone();
        let tree = &self.filesystems[index].history.newest().tree;
        let target = tree.lookup(dir, name).ok();
        let directory = target
            .and_then(|object| tree.node(object))
            .is_some_and(Node::is_directory);
        // Now and then the wrong call.
        let as_directory = directory != self.random.chance(1, 30);
        let words = format!(
            "{} {dir}/{}",
            if as_directory { "rmdir" } else { "unlink" },
            show(name)
        );
        self.call(index, &words, |fs, tree| {
            let context = Context::root();
            let is_held = |object| held.contains(&object);
            let (result, model) = if as_directory {
                (
                    fs.remove_directory(&context, dir, name).map(drop),
                    tree.remove_directory(dir, name, is_held),
                )
            } else {
                (
                    fs.unlink(&context, dir, name).map(drop),
                    tree.unlink(dir, name, is_held),
                )
            };
            let gone = model.ok();
            let stamped: Vec<_> = gone.iter().map(|object| (*object, Change::Attributes)).collect();
            let touched = gone.into_iter().chain([dir]).collect();
            Done {
                frees: true,
                ..Done::of(result, model.map(drop), touched)
                    .stamping(&stamped)
                    .stamping(&[(dir, Change::Content)])
            }
        })
    }

    fn rename(&mut self, index: usize, dir: u64, name: &[u8], new_dir: u64) -> Check {
        let held = self.filesystems[index].held.clone();
        let names = self.filesystems[index].history.newest().tree.names();
        let (new_dir, new_name) = if !names.is_empty() && self.random.chance(1, 2) {
            let (dir, name, _) = self.random.pick(&names).clone();
            (dir, name)
        } else {
            (new_dir, self.name())
        };
        let (mode, renaming) = *self.random.pick(&[
            (RenameMode::Replace, Renaming::Replace),
            (RenameMode::Replace, Renaming::Replace),
            (RenameMode::NoReplace, Renaming::NoReplace),
            (RenameMode::Exchange, Renaming::Exchange),
        ]);
        let words = format!(
            "rename {dir}/{} to {new_dir}/{} {renaming:?}",
            show(name),
            show(&new_name)
        );
        self.call(index, &words, |fs, tree| {
            let ends = [tree.lookup(dir, name), tree.lookup(new_dir, &new_name)];
            let touched: Vec<u64> = ends.into_iter().flatten().chain([dir, new_dir]).collect();
            // Two names of one object: nothing is done.
            let stamped = match ends {
                [Ok(one), Ok(other)] if one == other => Vec::new(),
                ends => {
                    let objects = ends.into_iter().flatten();
                    let objects = objects.map(|object| (object, Change::Attributes));
                    objects
                        .chain([(dir, Change::Content), (new_dir, Change::Content)])
                        .collect()
                }
            };
            let result = fs.rename(&Context::root(), dir, name, new_dir, &new_name, mode);
            let model = tree.rename(dir, name, new_dir, &new_name, renaming, |object| {
                held.contains(&object)
            });
            Done::of(result, model, touched).stamping(&stamped)
        })
    }

    fn truncate(&mut self, index: usize, object: u64) -> Check {
        let size = self.filesystems[index]
            .history
            .newest()
            .tree
            .file(object)
            .map_or(0, |file| file.size);
        let new = match self.random.below(5) {
            0 => 0,
            1 => size + self.random.below(1 << 20),
            _ => self.random.below(size + 1),
        };
        // Long files have their own way of going away.
        let new = match self.aside.below(16) {
            0 => LONG_BYTES + self.aside.below(LONG_BYTES),
            1..=7 if size > LONG_BYTES => 0,
            _ => new,
        };
        let words = format!("truncate {object} from {size} to {new}");
        self.call(index, &words, |fs, tree| {
            let change = SetAttributes {
                size: Some(new),
                ..SetAttributes::default()
            };
            let result = fs.set_attributes(&Context::root(), object, &change);
            let model = tree.resize(object, new);
            Done {
                frees: new == 0,
                ..Done::of(result, model, vec![object]).stamping(&[(object, Change::Content)])
            }
        })
    }

    fn allocate(&mut self, index: usize, object: u64) -> Check {
        let size = self.filesystems[index]
            .history
            .newest()
            .tree
            .file(object)
            .map_or(0, |file| file.size);
        let offset = self.random.below(size.max(1) + 5000);
        let length = self.random.skewed(300_000).max(1);
        let end = offset + length;
        let keep_size = self.random.chance(1, 2);
        let mode = *self.random.pick(&[
            AllocateMode::Punch,
            AllocateMode::Punch,
            AllocateMode::Zero { keep_size },
            AllocateMode::Reserve { keep_size },
        ]);
        let words = format!("allocate {mode:?} {length} bytes at {offset} of {object}");
        self.call(index, &words, |fs, tree| {
            let result = fs.allocate(&Context::root(), object, mode, offset, length);
            let model = match mode {
                AllocateMode::Punch => tree.zero(object, offset, length, false),
                AllocateMode::Zero { keep_size } => tree.zero(object, offset, length, !keep_size),
                AllocateMode::Reserve { keep_size: false } => tree.reserve(object, end),
                AllocateMode::Reserve { keep_size: true } => Ok(()),
            };
            Done::of(result, model, vec![object])
        })
    }

    fn read(&mut self, index: usize, object: u64) -> Check {
        let filesystem = &self.filesystems[index];
        if filesystem.handle.is_none() {
            return Ok(());
        }
        let Ok(size) = filesystem
            .history
            .newest()
            .tree
            .file(object)
            .map(|file| file.size)
        else {
            return Ok(());
        };
        let offset = self.random.below(size + 4096);
        let length = self.random.skewed(300_000) as usize;
        if self.random.chance(1, 4) {
            return self.seek(index, object, offset);
        }
        self.read_and_compare(index, object, offset, length)?;
        self.read_again(index, object, offset)
    }

    fn read_and_compare(&mut self, index: usize, object: u64, offset: u64, length: usize) -> Check {
        let filesystem = &self.filesystems[index];
        let file = filesystem.history.newest().tree.file(object).cloned();
        let (Some(handle), Ok(file)) = (filesystem.handle.clone(), file) else {
            return Ok(());
        };
        let mut buffer = vec![0xEE; length];
        match handle.read(object, offset, &mut buffer) {
            Ok(read) => {
                ensure!(
                    buffer[..read] == file.read(offset, length),
                    "{read} bytes read at {offset} of object {object} are not those that were written"
                );
                Ok(())
            }
            Err(error) => self.after_error("read", &error),
        }
    }

    /// In some runs the same again and again, past RAM, beside the mover: so it is hot, chunk by chunk.
    fn read_again(&mut self, index: usize, object: u64, offset: u64) -> Check {
        for _ in 1..self.rig.reads_of_the_same {
            let Some(engine) = self.engine.clone() else {
                return Ok(());
            };
            engine.environment().cache.set_capacity(0);
            engine.environment().size_cache();
            if let Err(error) = engine.mover().step() {
                return self.excuse("step of the mover", &error.to_string());
            }
            drop(engine);
            self.read_and_compare(index, object, offset, 4096)?;
        }
        Ok(())
    }

    /// In the same runs, what was moved by hand is moved at once, and some of it then read.
    pub(crate) fn use_what_was_moved(&mut self, index: usize, files: &[u64]) -> Check {
        if self.rig.reads_of_the_same < 2 {
            return Ok(());
        }
        let engine = self.engine()?;
        for _ in 0..64 {
            if let Err(error) = engine.mover().step() {
                return self.excuse("step of the mover", &error.to_string());
            }
        }
        drop(engine);
        for object in files.iter().take(4) {
            self.read_again(index, *object, 0)?;
        }
        Ok(())
    }

    /// One call to a volume.
    pub(crate) fn volume_call(&mut self) -> Check {
        if self.volumes.is_empty() {
            return self.filesystem_call();
        }
        let Some(handle) = self.volumes[0].handle.clone() else {
            return Ok(());
        };
        let mut model = self.volumes[0].history.newest().clone();
        let offset = self.random.below(model.size);
        let offset = if self.random.chance(1, 2) {
            offset / 4096 * 4096
        } else {
            offset
        };
        let length = self.random.skewed(200_000).max(1).min(model.size - offset);
        let choice = self.random.below(10);
        let (words, result) = match choice {
            0..=5 => {
                let mut offset = offset;
                let mut data = Content::choose(&mut self.random, 200_000).bytes();
                if self.random.chance(1, 4) && !data.is_empty() {
                    // Whole chunks, many at once: such writes go past the pages.
                    offset = offset / CHUNK_OF_VOLUME * CHUNK_OF_VOLUME;
                    let length = self.random.between(8, 24) * CHUNK_OF_VOLUME;
                    let length = length.min((model.size - offset) / CHUNK_OF_VOLUME * CHUNK_OF_VOLUME);
                    data = data.iter().copied().cycle().take(length as usize).collect();
                }
                data.truncate((model.size - offset) as usize);
                model.write(offset, &data);
                (
                    format!("write {} at {offset}", data.len()),
                    handle.write(offset, &data),
                )
            }
            6 => {
                model.zero(offset, length);
                (
                    format!("discard {length} at {offset}"),
                    handle.discard(offset, length),
                )
            }
            7 => {
                model.zero(offset, length);
                (
                    format!("write zeroes {length} at {offset}"),
                    handle.write_zeroes(offset, length),
                )
            }
            _ => {
                let mut buffer = vec![0; length as usize];
                let result = handle.read(offset, &mut buffer);
                if result.is_ok() {
                    ensure!(
                        buffer == model.read(offset, length as usize),
                        "{length} bytes read at {offset} of a volume are not those that were written"
                    );
                }
                (format!("read {length} at {offset}"), result)
            }
        };
        trace!(self.trace, "volume: {words}: {}", result.is_ok());
        if choice > 7 && result.is_ok() {
            return Ok(());
        }
        self.volume_written(result, model, handle)
    }

    /// What became of a call that makes the volume this model.
    pub(crate) fn volume_written(
        &mut self,
        result: Result<(), FsError>,
        model: BlocksModel,
        handle: Arc<Volume>,
    ) -> Check {
        match result {
            Ok(()) => {
                self.volumes[0].history.push(model);
                if self.volumes[0].promise == Promise::Sync {
                    self.volumes[0].history.synced();
                }
                Ok(())
            }
            Err(error) => match self
                .check_promised(&error)
                .and_then(|()| self.judge("volume", &error))?
            {
                Consequence::GoOn if self.volumes[0].promise == Promise::Sync => {
                    // Done and not made durable, perhaps.
                    let mut shown = vec![0; model.size as usize];
                    if let Err(error) = handle.read(0, &mut shown) {
                        return self.after_error("reading the volume", &error);
                    }
                    if shown == model.read(0, shown.len()) {
                        self.volumes[0].history.push(model);
                    }
                    Ok(())
                }
                Consequence::GoOn => Ok(()),
                Consequence::Reopen => {
                    self.volumes[0].history.push(model);
                    self.recover(false)
                }
            },
        }
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
    touched: Touched,
    /// Objects whose times it must have set.
    stamped: Vec<(u64, Change)>,
    /// What a crash may find of it, in order: it is made in several pieces.
    on_the_way: Vec<TreeModel>,
    /// It must work on a full pool.
    frees: bool,
    wrong: Option<String>,
}

impl Done {
    pub(crate) fn of<T>(engine: Result<T, FsError>, model: Result<(), Refused>, touched: Touched) -> Self {
        Self {
            engine: engine.map(drop),
            model,
            touched,
            stamped: Vec::new(),
            on_the_way: Vec::new(),
            frees: false,
            wrong: None,
        }
    }

    /// It must have set these times (of what it touched, as far as that is still there).
    pub(crate) fn stamping(mut self, stamped: &[(u64, Change)]) -> Self {
        self.stamped.extend_from_slice(stamped);
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
            engine: Ok(()),
            model: Err("the answer makes no sense"),
            touched: Vec::new(),
            stamped: Vec::new(),
            on_the_way: Vec::new(),
            frees: false,
            wrong: Some(words),
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
