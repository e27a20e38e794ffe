//! Objects that somebody holds open: they live on without a name, and one made without a name may get one.

use terrace_dataset::Context;

use super::{
    call::{Change, Client, Done, show},
    names::any_name,
    workload::{Chosen, FileCall},
};
use crate::{fs::models::UNKNOWN_OBJECT, trace, violation::Check};

/// A file is opened.
pub(crate) struct HoldOpen;

impl FileCall for HoldOpen {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(object) = chosen.file else {
            return Ok(());
        };
        let (index, rig) = (client.index, &mut client.world.rig);
        if rig.handles.held(index).contains(&object) {
            return Ok(());
        }
        let Some(handle) = rig.handles.filesystem(index) else {
            return Ok(());
        };
        trace!(
            rig.trace,
            "{}: open {object}", client.world.models.filesystems[index].name
        );
        match handle.open_object(object) {
            Ok(()) => {
                rig.handles.hold(index, object);
                Ok(())
            }
            Err(error) => client.world.after_error("open", &error),
        }
    }
}

/// What was opened last is closed.
pub(crate) struct Release;

impl FileCall for Release {
    fn perform(&self, client: &mut Client<'_>, _chosen: &Chosen) -> Check {
        let (index, world) = (client.index, &mut *client.world);
        let Some(object) = world.rig.handles.release_last(index) else {
            return Ok(());
        };
        let Some(handle) = world.rig.handles.filesystem(index) else {
            return Ok(());
        };
        let filesystem = &mut world.models.filesystems[index];
        trace!(world.rig.trace, "{}: release {object}", filesystem.name);
        handle.release_object(object);
        filesystem.history.amend(|state| state.tree.released(object));
        Ok(())
    }
}

/// A file without a name, held.
pub(crate) struct Temporary;

impl FileCall for Temporary {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let dir = chosen.dir;
        let mut made = None;
        client.call(&format!("make a file without a name in {dir}"), |fs, tree| {
            let result = fs.temporary(&Context::root(), dir, 0o600);
            made = result.as_ref().ok().map(|attributes| attributes.object);
            let model = tree.create_unnamed(dir, made.unwrap_or(UNKNOWN_OBJECT), 0o600);
            Done::of(result, model, made.into_iter().collect())
        })?;
        // Gone if the pool had to be opened again.
        if let Some(object) = made.filter(|object| client.tree().node(*object).is_some()) {
            client.world.rig.handles.hold(client.index, object);
        }
        Ok(())
    }
}

/// What is held gets a name, or another one.
pub(crate) struct LinkHeld;

impl FileCall for LinkHeld {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let dir = chosen.dir;
        let name = any_name(client.random());
        let Some(object) = client.world.rig.handles.held(client.index).last().copied() else {
            return Ok(());
        };
        let words = format!("link {object}, which is held, as {dir}/{}", show(&name));
        client.call(&words, |fs, tree| {
            let model = tree.link(object, dir, &name);
            let linked = fs.link(&Context::root(), object, dir, &name);
            Done::of(linked, model, vec![object, dir])
                .stamping(&[(object, Change::Attributes), (dir, Change::Content)])
        })
    }
}
