//! Calls that make, remove and move names.
//!
//! Invariant: model and engine do the same to a copy, also where the call is wrong on purpose.

use terrace_dataset::{Context, FileKind, RenameMode, Tree};

use super::{
    call::{Change, Client, Done, show},
    workload::{Chosen, FileCall},
};
use crate::{
    fs::models::{BlocksModel, Body, Node, Renaming, UNKNOWN_OBJECT},
    hardware::Random,
    violation::Check,
};

/// Some name; now and then a long one, or one that is no text.
pub(super) fn any_name(random: &mut Random) -> Vec<u8> {
    match random.below(20) {
        0 => vec![b'x'; 255],
        1 => format!("näme {}", random.below(4)).into_bytes(),
        2 => vec![0xFF, 0xFE, b'0' + random.below(4) as u8],
        _ => format!("n{}", random.below(40)).into_bytes(),
    }
}

/// A new file, directory or symbolic link.
pub(crate) struct Create(pub(crate) FileKind);

impl FileCall for Create {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let (dir, kind) = (chosen.dir, self.0);
        let name = any_name(client.random());
        let mode = *client.random().pick(&[0o644, 0o600, 0o755, 0o777, 0o400]);
        let target = format!("target/{}", "y".repeat(client.random().skewed(300) as usize)).into_bytes();
        let words = format!("create {kind:?} {dir}/{}", show(&name));
        client.call(&words, |fs, tree| {
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
}

/// Another name for a file.
pub(crate) struct Link;

impl FileCall for Link {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let Some(object) = chosen.file else {
            return Ok(());
        };
        let dir = chosen.dir;
        let name = any_name(client.random());
        client.call(&format!("link {object} as {dir}/{}", show(&name)), |fs, tree| {
            let model = tree.link(object, dir, &name);
            let linked = fs.link(&Context::root(), object, dir, &name);
            Done::of(linked, model, vec![object, dir])
                .stamping(&[(object, Change::Attributes), (dir, Change::Content)])
        })
    }
}

/// A name is removed.
pub(crate) struct Unlink;

impl FileCall for Unlink {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        Self::unlink(client, chosen.old.0, &chosen.old.1)
    }
}

impl Unlink {
    /// This name is removed.
    pub(super) fn unlink(client: &mut Client<'_>, dir: u64, name: &[u8]) -> Check {
        let held = client.world.rig.handles.held(client.index).to_vec();
        let tree = client.tree();
        let target = tree.lookup(dir, name).ok();
        let directory = target
            .and_then(|object| tree.node(object))
            .is_some_and(Node::is_directory);
        // Now and then the wrong call.
        let as_directory = directory != client.random().chance(1, 30);
        let words = format!(
            "{} {dir}/{}",
            if as_directory { "rmdir" } else { "unlink" },
            show(name)
        );
        client.call(&words, |fs, tree| {
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
            Done::of(result, model.map(drop), touched)
                .stamping(&stamped)
                .stamping(&[(dir, Change::Content)])
                .freeing(true)
        })
    }
}

/// A name is moved, in one of several ways.
pub(crate) struct Rename;

impl FileCall for Rename {
    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check {
        let (dir, name) = (chosen.old.0, chosen.old.1.as_slice());
        let held = client.world.rig.handles.held(client.index).to_vec();
        let names = client.tree().names();
        let (new_dir, new_name) = if !names.is_empty() && client.random().chance(1, 2) {
            let (dir, name, _) = client.random().pick(&names).clone();
            (dir, name)
        } else {
            (chosen.dir, any_name(client.random()))
        };
        let (mode, renaming) = *client.random().pick(&[
            (RenameMode::Replace, Renaming::Replace),
            (RenameMode::Replace, Renaming::Replace),
            (RenameMode::NoReplace, Renaming::NoReplace),
            (RenameMode::Exchange, Renaming::Exchange),
            (RenameMode::Whiteout, Renaming::Whiteout),
            (RenameMode::WhiteoutNoReplace, Renaming::WhiteoutNoReplace),
        ]);
        let words = format!(
            "rename {dir}/{} to {new_dir}/{} {renaming:?}",
            show(name),
            show(&new_name)
        );
        client.call(&words, |fs, tree| {
            let ends = [tree.lookup(dir, name), tree.lookup(new_dir, &new_name)];
            let mut touched: Vec<u64> = ends.into_iter().flatten().chain([dir, new_dir]).collect();
            // Two names of one object: nothing is done.
            let is_same = matches!(ends, [Ok(one), Ok(other)] if one == other);
            let mut stamped = match ends {
                _ if is_same => Vec::new(),
                ends => {
                    let objects = ends.into_iter().flatten();
                    let objects = objects.map(|object| (object, Change::Attributes));
                    objects
                        .chain([(dir, Change::Content), (new_dir, Change::Content)])
                        .collect()
                }
            };
            let context = Context::root();
            let result = fs.rename(&context, dir, name, new_dir, &new_name, mode);
            let mut model = tree.rename(dir, name, new_dir, &new_name, renaming, |object| {
                held.contains(&object)
            });
            if model.is_ok() && renaming.leaves_whiteout() && !is_same {
                let left = result
                    .as_ref()
                    .ok()
                    .and_then(|_| fs.lookup(&context, dir, name).ok());
                let whiteout = left.map_or(UNKNOWN_OBJECT, |attributes| attributes.object);
                model = tree.create(dir, name, whiteout, 0, Body::Whiteout);
                touched.push(whiteout);
                stamped.push((whiteout, Change::Content));
            }
            Done::of(result, model, touched).stamping(&stamped)
        })
    }
}
