//! Objects that somebody holds open: they live on without a name, and one made without a name may get one.

use terrace_dataset::Context;

use crate::{
    fs::{
        clients::{Change, Done, show},
        level::Run,
        state::UNKNOWN_OBJECT,
    },
    trace,
    violation::Check,
};

impl Run {
    pub(crate) fn hold_open(&mut self, index: usize, object: u64) -> Check {
        let filesystem = &mut self.filesystems[index];
        if filesystem.held.contains(&object) {
            return Ok(());
        }
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        trace!(self.trace, "{}: open {object}", filesystem.name);
        match handle.open_object(object) {
            Ok(()) => {
                filesystem.held.push(object);
                Ok(())
            }
            Err(error) => self.after_error("open", &error),
        }
    }

    pub(crate) fn release_one(&mut self, index: usize) -> Check {
        let filesystem = &mut self.filesystems[index];
        let Some(object) = filesystem.held.pop() else {
            return Ok(());
        };
        let Some(handle) = filesystem.handle.clone() else {
            return Ok(());
        };
        trace!(self.trace, "{}: release {object}", filesystem.name);
        handle.release_object(object);
        filesystem.history.amend(|state| state.tree.released(object));
        Ok(())
    }

    /// A file without a name, held.
    pub(crate) fn temporary(&mut self, index: usize, dir: u64) -> Check {
        let mut made = None;
        self.call(
            index,
            &format!("make a file without a name in {dir}"),
            |fs, tree| {
                let result = fs.temporary(&Context::root(), dir, 0o600);
                made = result.as_ref().ok().map(|attributes| attributes.object);
                let model = tree.create_unnamed(dir, made.unwrap_or(UNKNOWN_OBJECT), 0o600);
                Done::of(result, model, made.into_iter().collect())
            },
        )?;
        let filesystem = &mut self.filesystems[index];
        // Gone if the pool had to be opened again.
        let object = made.filter(|object| filesystem.history.newest().tree.node(*object).is_some());
        filesystem.held.extend(object);
        Ok(())
    }

    /// What is held gets a name, or another one.
    pub(crate) fn link_held(&mut self, index: usize, dir: u64) -> Check {
        let name = self.name();
        let Some(object) = self.filesystems[index].held.last().copied() else {
            return Ok(());
        };
        let words = format!("link {object}, which is held, as {dir}/{}", show(&name));
        self.call(index, &words, |fs, tree| {
            let model = tree.link(object, dir, &name);
            let linked = fs.link(&Context::root(), object, dir, &name);
            Done::of(linked, model, vec![object, dir])
                .stamping(&[(object, Change::Attributes), (dir, Change::Content)])
        })
    }
}
