//! What the report of a rebuilding says of each object: saved, damaged, found without its name, or lost.
//!
//! Invariants: what is damaged is told with its path and the number of blocks that are missing; a list ends at its bound,
//! and then says that it is not complete.

use terrace_dataset::keys;

use super::{
    super::{
        LINES_MAX, RebuiltFile,
        objects::{Object, Objects},
        regions::Body,
    },
    Pass,
};

impl Pass<'_, '_> {
    /// Says what became of each object.
    pub(super) fn tell(&mut self, objects: &Objects) {
        for (number, object) in &objects.all {
            let body = self.body(object);
            let damaged = damage(object, &body);
            if let Some((reason, missing_blocks)) = damaged
                && !self.found.contains(number)
            {
                let path = self.path(*number);
                let lists_complete = &mut self.report.lists_complete;
                if let Some(file) = note(&mut self.report.damaged, lists_complete, path, reason) {
                    file.missing_blocks = missing_blocks;
                }
                continue;
            }
            if self.found.contains(number) || object.orphan {
                continue;
            }
            if body.lost_in_history > 0 {
                let path = self.path(*number);
                let reason = "older versions of its content are not whole".to_owned();
                if let Some(file) = note(
                    &mut self.report.damaged,
                    &mut self.report.lists_complete,
                    path,
                    reason,
                ) {
                    (file.missing_blocks, file.only_history) = (body.lost_in_history, true);
                }
            }
            self.report.saved += 1;
            if self.options.list_saved {
                let path = self.path(*number);
                self.report.saved_files.push(RebuiltFile {
                    path,
                    ..RebuiltFile::default()
                });
            }
        }
        for number in objects
            .unreadable
            .iter()
            .filter(|number| !objects.all.contains_key(number))
        {
            let path = self.path(*number);
            let reason = "its inode and its content are lost".to_owned();
            note(
                &mut self.report.lost,
                &mut self.report.lists_complete,
                path,
                reason,
            );
        }
        let gone = self.placed.bodies.iter().filter(|(body, facts)| {
            facts.lost_in_history > 0 && !objects.all.contains_key(&objects.object_of(**body))
        });
        for (body, facts) in gone {
            let path = self
                .known
                .path(&format!("(deleted object {})", objects.object_of(*body)));
            let reason = "older versions of its content are not whole".to_owned();
            if let Some(file) = note(
                &mut self.report.damaged,
                &mut self.report.lists_complete,
                path,
                reason,
            ) {
                (file.missing_blocks, file.only_history) = (facts.lost_in_history, true);
            }
        }
    }

    fn path(&self, number: u64) -> String {
        let mut parts = Vec::new();
        let mut at = number;
        while at != keys::ROOT_OBJECT && parts.len() < 4096 {
            let Some((directory, name)) = self.names.get(&at) else {
                parts.push(format!("(object {at})"));
                break;
            };
            parts.push(String::from_utf8_lossy(name).into_owned());
            at = *directory;
        }
        parts.reverse();
        self.known.path(&parts.join("/"))
    }
}

/// What is wrong with an object, and how many blocks are missing; `None`: nothing.
pub(super) fn damage(object: &Object, body: &Body) -> Option<(String, u64)> {
    let unmapped = if object.made_up {
        0
    } else {
        object.blocks.saturating_sub(body.mapped)
    };
    let missing = body.lost + unmapped;
    let reason = if missing > 0 {
        "parts of its content are lost: they read as zeroes"
    } else if body.made_up > 0 {
        "parts of its content are put together from single chunks and may be older"
    } else if object.made_up {
        "its owner, mode, times and size are lost"
    } else if object.attributes < object.attributes_said {
        "extended attributes of it are lost"
    } else if object.entries < object.entries_said {
        "names in it are lost"
    } else {
        return None;
    };
    Some((reason.into(), missing))
}

pub(super) fn note<'a>(
    list: &'a mut Vec<RebuiltFile>,
    complete: &mut bool,
    path: String,
    reason: String,
) -> Option<&'a mut RebuiltFile> {
    if list.len() >= LINES_MAX {
        *complete = false;
        return None;
    }
    list.push(RebuiltFile {
        path,
        reason,
        ..RebuiltFile::default()
    });
    list.last_mut()
}
