//! Calls that change what is known of an object and not its content: mode and owner, times, extended attributes.

use terrace_dataset::{AttributeMode, Context, FileFlags, SetAttributes, SetTime, Time};

use super::{
    call::{Change, Client, Done, show},
    workload::{Chosen, FileCall},
};
use crate::{
    fs::models::{Body, ROOT, without_set_id},
    violation::Check,
};

/// Another mode, owner or group, or other flags.
pub(crate) struct ChangeAttributes;

impl FileCall for ChangeAttributes {
    fn perform(&self, client: &mut Client<'_>, _chosen: &Chosen) -> Check {
        let objects = client
            .tree()
            .objects(|node| !matches!(node.body, Body::Symlink(_) | Body::Whiteout));
        let object = *client.random().pick(&objects);
        let mode = client
            .random()
            .chance(1, 2)
            .then(|| client.random().below(0o1000) as u32);
        // Not of directories, whose setgid is passed on.
        let is_file = client.tree().file(object).is_ok();
        let mode = mode.map(|mode| mode | if is_file { (mode * 5) & 0o6000 } else { 0 });
        let uid = client
            .random()
            .chance(1, 3)
            .then(|| client.random().below(5) as u32);
        let gid = client
            .random()
            .chance(1, 3)
            .then(|| client.random().below(5) as u32);
        if mode.is_none() && uid.is_none() && gid.is_none() {
            return Ok(());
        }
        if let (Some(mode), None, None) = (mode, uid, gid)
            && mode % 4 == 0
            && object != ROOT
        {
            let flags = FileFlags {
                no_dump: mode & 4 != 0,
                no_access_time: mode & 8 != 0,
                ..FileFlags::default()
            };
            return client.call(&format!("{flags:?} of {object}"), |fs, tree| {
                let result = fs.set_file_flags(&Context::root(), object, flags);
                let model = tree.change(object, |node| node.flags = flags);
                Done::of(result, model, vec![object]).stamping(&[(object, Change::Attributes)])
            });
        }
        let words = format!("mode {mode:?} owner {uid:?} group {gid:?} of {object}");
        client.call(&words, |fs, tree| {
            let change = SetAttributes {
                mode,
                uid,
                gid,
                ..SetAttributes::default()
            };
            let result = fs.set_attributes(&Context::root(), object, &change);
            let model = tree.change(object, |node| {
                let changes_owner = uid.is_some() || gid.is_some();
                if changes_owner && !matches!(node.body, Body::Directory(_)) {
                    node.mode = without_set_id(node.mode, node.mode & 0o010 != 0);
                }
                node.mode = mode.unwrap_or(node.mode);
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
            });
            Done::of(result, model, vec![object]).stamping(&[(object, Change::Attributes)])
        })
    }
}

/// An extended attribute is set or removed.
pub(crate) struct ExtendedAttribute;

impl FileCall for ExtendedAttribute {
    fn perform(&self, client: &mut Client<'_>, _chosen: &Chosen) -> Check {
        let objects = client
            .tree()
            .objects(|node| !matches!(node.body, Body::Symlink(_) | Body::Whiteout));
        let object = *client.random().pick(&objects);
        let name = format!("user.a{}", client.random().below(5)).into_bytes();
        if client.random().chance(1, 4) {
            let words = format!("remove attribute {} of {object}", show(&name));
            return client.call(&words, |fs, tree| {
                let result = fs.remove_extended_attribute(&Context::root(), object, &name);
                let mut there = false;
                let model = tree.change(object, |node| there = node.attributes.remove(&name).is_some());
                let model = if there { model } else { Err("no such attribute") };
                Done::of(result, model, vec![object]).stamping(&[(object, Change::Attributes)])
            });
        }
        let long = client.random().chance(1, 15);
        let value = vec![
            client.random().next() as u8;
            client.random().skewed(if long { 20_000 } else { 200 }) as usize
        ];
        let (mode, must) = *client.random().pick(&[
            (AttributeMode::Set, None),
            (AttributeMode::Set, None),
            (AttributeMode::Create, Some(false)),
            (AttributeMode::Replace, Some(true)),
        ]);
        let words = format!(
            "{mode:?} attribute {} of {object} to {} bytes",
            show(&name),
            value.len()
        );
        client.call(&words, |fs, tree| {
            let result = fs.set_extended_attribute(&Context::root(), object, &name, &value, mode);
            let there = tree
                .node(object)
                .is_some_and(|node| node.attributes.contains_key(&name));
            let model = if must.is_some_and(|must| must != there) {
                Err("the attribute is there, or is not")
            } else {
                tree.change(object, |node| {
                    node.attributes.insert(name.clone(), value.clone());
                })
            };
            Done::of(result, model, vec![object]).stamping(&[(object, Change::Attributes)])
        })
    }
}

/// The times of the last change of content and of the last read as somebody wants it, of any year.
pub(crate) struct SetTimes;

impl FileCall for SetTimes {
    fn perform(&self, client: &mut Client<'_>, _chosen: &Chosen) -> Check {
        let objects = client.tree().objects(|_| true);
        let object = *client.random().pick(&objects);
        let nanoseconds = client.random().next() as i64;
        let time = Time::from_nanos(i128::from(nanoseconds));
        client.call(
            &format!("set the time of {object} to {nanoseconds}"),
            |fs, tree| {
                let change = SetAttributes {
                    modified: Some(SetTime::To(time)),
                    accessed: Some(SetTime::To(time)),
                    ..SetAttributes::default()
                };
                let result = fs.set_attributes(&Context::root(), object, &change);
                if let Ok(shown) = &result
                    && (shown.modified != time || shown.accessed != time)
                {
                    return Done::wrong(format!(
                        "they are {:?} and {:?} then",
                        shown.modified, shown.accessed
                    ));
                }
                let model = tree.change(object, |node| node.modified = (time.seconds, time.nanos));
                Done::of(result, model, vec![object]).stamping(&[(object, Change::Attributes)])
            },
        )
    }
}
