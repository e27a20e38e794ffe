//! Names: rename, with NOREPLACE, EXCHANGE and WHITEOUT.
//!
//! Invariants: one passage of the gate, and the states of both directories locked, so atomic also for who looks; of a
//! whiteout (overlayfs: a name of a lower layer that is gone) nothing is seen before; a directory never becomes its own ancestor, because renames between directories are made one at a time and look at the whole way up.

use super::lookup_create::{Namespace, NewObject, added, check_name, removed};
use crate::{
    objects::{NameKey, Object, State, Target, lock_all},
    posix::{ACCESS_EXECUTE, ACCESS_WRITE, Attributes, Context, FsError, ROOT, RenameMode, file_flags},
    quota::OfReserve,
    records::{FileKind, Old},
};
use std::sync::Arc;

use terrace_sync::{MutexGuard, rank};

/// Directories above one another at most; more means that records are damaged.
const DEPTH_MAX: usize = 1 << 20;

/// What overlayfs and the kernel's other filesystems make.
const WHITEOUT: NewObject<'_> = NewObject {
    kind: FileKind::CharacterDevice,
    mode: 0,
    device: 0,
    target: &[],
};

/// The states of both directories of a rename, locked together, so that who looks sees the names as they were or as they
/// will be: never one object under both names that change places. In the order of their numbers.
struct Both<'a> {
    first: MutexGuard<'a, State, rank::dataset::Object>,
    /// Its number too; `None` if both are one directory.
    second: Option<(u64, MutexGuard<'a, State, rank::dataset::Object>)>,
}

impl<'a> Both<'a> {
    fn lock(one: &'a Object, other: &'a Object) -> Self {
        let (first, second) = match one.number <= other.number {
            true => (one, other),
            false => (other, one),
        };
        Self {
            first: first.state(),
            second: (first.number != second.number).then(|| (second.number, second.state())),
        }
    }

    /// Of one of the two.
    fn of(&mut self, directory: &Object) -> &mut State {
        match &mut self.second {
            Some((number, state)) if *number == directory.number => state,
            _ => &mut self.first,
        }
    }
}

/// One end of a rename.
struct End<'a> {
    directory: &'a Arc<Object>,
    name: &'a [u8],
}

impl Namespace {
    /// Renames; returns what was replaced, as it is afterwards.
    pub(crate) fn rename_name(
        &self,
        context: &Context,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Attributes>, FsError> {
        self.dataset.writable()?;
        for name in [from.1, to.1] {
            check_name(name).map_err(|error| {
                if error == FsError::Exists {
                    FsError::Busy
                } else {
                    error
                }
            })?;
        }
        let (old_dir, new_dir) = (self.table.directory(from.0)?, self.table.directory(to.0)?);
        match mode.leaves_whiteout() {
            true => self.admission.take_metadata(6)?,
            false => self.admission.take_metadata_always(4, OfReserve::Changes)?,
        }
        let replaced = {
            let _one = (old_dir.number != new_dir.number).then(|| self.rename.lock());
            let (old, new) = (
                End {
                    directory: &old_dir,
                    name: from.1,
                },
                End {
                    directory: &new_dir,
                    name: to.1,
                },
            );
            loop {
                if let Some(done) = self.try_rename(context, &old, &new, mode)? {
                    break done;
                }
            }
        };
        if old_dir.number != new_dir.number {
            self.dataset.environment().pins.note_moved(self.dataset.number());
        }
        self.commits.settle()?;
        Ok(replaced)
    }

    /// `None`: a name changed while its object was being locked.
    fn try_rename(
        &self,
        context: &Context,
        old: &End<'_>,
        new: &End<'_>,
        mode: RenameMode,
    ) -> Result<Option<Option<Attributes>>, FsError> {
        self.xattrs.check(context, old.directory, ACCESS_EXECUTE)?;
        self.xattrs.check(context, new.directory, ACCESS_EXECUTE)?;
        let seen = self.directories.find(new.directory, new.name)?;
        let victim_directory = match seen {
            Some(target) if target.kind == FileKind::Directory => Some(self.table.object(target.object)?),
            _ => None,
        };
        let mut locked = vec![old.directory, new.directory];
        locked.extend(victim_directory.as_ref());
        let _names = lock_all(&locked);
        let source = self
            .directories
            .find(old.directory, old.name)?
            .ok_or(FsError::NotFound)?;
        let target = self.directories.find(new.directory, new.name)?;
        if target != seen {
            return Ok(None);
        }
        match target {
            Some(_) if mode.keeps_target() => return Err(FsError::Exists),
            None if mode == RenameMode::Exchange => return Err(FsError::NotFound),
            _ => {}
        }
        let moved = self.victim(context, old.directory, source)?;
        self.xattrs
            .check(context, new.directory, ACCESS_WRITE | ACCESS_EXECUTE)?;
        let other = target
            .map(|target| self.victim(context, new.directory, target))
            .transpose()?;
        let crossing = old.directory.number != new.directory.number;
        if crossing {
            // Moving a directory changes its `..`.
            for object in [
                Some(&moved),
                other.as_ref().filter(|_| mode == RenameMode::Exchange),
            ]
            .into_iter()
            .flatten()
            {
                if object.kind == FileKind::Directory {
                    self.xattrs.check(context, object, ACCESS_WRITE)?;
                }
            }
            if source.kind == FileKind::Directory && self.is_below(new.directory, source.object)? {
                return Err(FsError::Invalid);
            }
            if mode == RenameMode::Exchange
                && let Some(target) = target
                && target.kind == FileKind::Directory
                && self.is_below(old.directory, target.object)?
            {
                return Err(FsError::Invalid);
            }
            if let Some(target) = target
                && mode != RenameMode::Exchange
                && target.kind == FileKind::Directory
                && self.is_below(old.directory, target.object)?
            {
                return Err(FsError::NotEmpty);
            }
        }
        if target.is_some_and(|target| target.object == source.object) {
            return Ok(Some(None));
        }
        if mode == RenameMode::Exchange {
            if let (Some(target), Some(other)) = (target, other) {
                self.exchange(old, new, (source, &moved), (target, &other))?;
            }
            return Ok(Some(None));
        }
        if let (Some(target), Some(other)) = (target, &other) {
            match (
                source.kind == FileKind::Directory,
                target.kind == FileKind::Directory,
            ) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if other.state().inode.size > 0 => return Err(FsError::NotEmpty),
                _ => {}
            }
        }
        let whiteout = match mode.leaves_whiteout() {
            true => Some(self.prepare(context, old.directory, &WHITEOUT)?),
            false => None,
        };
        Ok(Some(self.replace(
            context,
            old,
            new,
            (source, &moved),
            (other.as_ref(), whiteout.as_ref()),
        )?))
    }

    fn replace(
        &self,
        context: &Context,
        old: &End<'_>,
        new: &End<'_>,
        (source, moved): (Target, &Arc<Object>),
        (victim, whiteout): (Option<&Arc<Object>>, Option<&Arc<Object>>),
    ) -> Result<Option<Attributes>, FsError> {
        let (old_key, new_key) = (NameKey::new(old.name), NameKey::new(new.name));
        let now = self.dataset.now();
        let is_directory = source.kind == FileKind::Directory;
        let crossing = old.directory.number != new.directory.number;
        let recorded = match victim {
            Some(_) => Old::Unknown,
            None => Old::Absent,
        };
        let _gate = self.epoch.enter();
        {
            let mut both = Both::lock(old.directory, new.directory);
            let state = both.of(new.directory);
            if state.inode.links == 0 {
                return Err(FsError::NotFound);
            }
            file_flags::may_gain_names(&state.inode)?;
            let left = whiteout.map(|whiteout| self.place_whiteout(whiteout));
            if let Some(entries) = &mut state.entries {
                entries.change(new_key, Some(source), recorded);
            }
            added(state, now);
            if let Some(victim) = victim {
                removed(state, now);
                if victim.kind == FileKind::Directory {
                    state.inode.links = state.inode.links.saturating_sub(1);
                }
            }
            if is_directory && crossing {
                state.inode.links = state.inode.links.saturating_add(1);
            }
            self.epoch.mark_inode(new.directory, state);
            let state = both.of(old.directory);
            if let Some(entries) = &mut state.entries {
                entries.change(old_key, left, Old::Unknown);
            }
            removed(state, now);
            if left.is_some() {
                added(state, now);
            }
            if is_directory && crossing {
                state.inode.links = state.inode.links.saturating_sub(1);
            }
            self.epoch.mark_inode(old.directory, state);
        }
        self.moved_to(moved, new.directory.number, now);
        Ok(victim.map(|victim| self.lifetimes.unlink(context, victim, now)))
    }

    /// Has the object that takes the place of the old name. The gate is held.
    fn place_whiteout(&self, whiteout: &Arc<Object>) -> Target {
        let mut state = whiteout.state();
        state.inode.links = 1;
        self.epoch.mark_inode(whiteout, &mut state);
        self.table.insert(whiteout.clone());
        Target {
            object: whiteout.number,
            kind: whiteout.kind,
        }
    }

    fn exchange(
        &self,
        old: &End<'_>,
        new: &End<'_>,
        (source, moved): (Target, &Arc<Object>),
        (target, other): (Target, &Arc<Object>),
    ) -> Result<(), FsError> {
        let (old_key, new_key) = (NameKey::new(old.name), NameKey::new(new.name));
        let now = self.dataset.now();
        let crossing = old.directory.number != new.directory.number;
        let difference =
            i64::from(source.kind == FileKind::Directory) - i64::from(target.kind == FileKind::Directory);
        let _gate = self.epoch.enter();
        let mut both = Both::lock(old.directory, new.directory);
        for (end, key, becomes, links) in [
            (new, new_key, source, difference),
            (old, old_key, target, -difference),
        ] {
            let state = both.of(end.directory);
            if let Some(entries) = &mut state.entries {
                entries.change(key, Some(becomes), Old::Unknown);
            }
            state.inode.modified = now;
            state.inode.changed = now;
            if crossing {
                state.inode.links = state.inode.links.saturating_add_signed(links as i32);
            }
            self.epoch.mark_inode(end.directory, state);
        }
        drop(both);
        self.moved_to(moved, new.directory.number, now);
        self.moved_to(other, old.directory.number, now);
        Ok(())
    }

    fn moved_to(&self, object: &Arc<Object>, directory: u64, now: crate::records::Time) {
        let mut state = object.state();
        state.inode.changed = now;
        state.found_in = directory;
        if object.kind == FileKind::Directory {
            state.inode.parent = directory;
        }
        self.epoch.mark_inode(object, &mut state);
    }

    /// Whether `directory` is `above` or lies below it.
    fn is_below(&self, directory: &Arc<Object>, above: u64) -> Result<bool, FsError> {
        let mut at = directory.number;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = self.table.parent_of(&self.table.directory(at)?);
        }
        Err(FsError::io(
            "the directories above one another form a ring; run 'terrace scrub'",
        ))
    }
}
