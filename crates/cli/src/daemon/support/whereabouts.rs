//! Where the devices of a known pool are, by what this machine noted and by what their labels say.
//!
//! Invariants: the note is a hint: what the labels list belongs to the pool, wherever the note has it, and what they do not
//! list does not, so that a process that ended between a change of the labels and that of the note does no harm; nothing is
//! written, and no device is held.

use std::path::{Path, PathBuf};

use terrace_pool::FoundPool;

use crate::machine::KnownPool;

/// The paths to open a pool with: those that its labels list, as far as they are found where they were last or where the
/// note has them; and, as long as one is missing, all others of the note, so that their errors are told.
pub fn device_paths(known: &KnownPool) -> Vec<PathBuf> {
    let is_wanted = |path: &PathBuf| !known.left_out.contains(path);
    let mut paths: Vec<PathBuf> = known
        .devices
        .iter()
        .filter(|path| is_wanted(path))
        .cloned()
        .collect();
    let noted = paths.clone();
    // A device that is found may tell of another one.
    loop {
        let Some(found) = find(known, &paths) else {
            return noted;
        };
        let more: Vec<PathBuf> = found
            .missing_paths
            .iter()
            .filter(|path| is_wanted(path) && path.is_absolute() && !is_among(path, &paths))
            .cloned()
            .collect();
        if more.is_empty() {
            let mut listed = found.paths();
            let stale = found.devices.iter().filter(|device| device.stale);
            let stale = stale.map(|device| device.path.clone());
            let others: Vec<PathBuf> = stale.filter(|path| !is_among(path, &listed)).collect();
            listed.extend(others);
            if !found.missing.is_empty() {
                let others = noted.into_iter().filter(|path| !is_among(path, &listed));
                let others: Vec<PathBuf> = others.collect();
                listed.extend(others);
            }
            return listed;
        }
        paths.extend(more);
    }
}

fn find(known: &KnownPool, paths: &[PathBuf]) -> Option<FoundPool> {
    let (found, _) = terrace_pool::scan(&[], paths);
    found
        .into_iter()
        .find(|pool| terrace_pool::format_id(&pool.id) == known.id)
}

fn is_among(path: &Path, paths: &[PathBuf]) -> bool {
    paths.iter().any(|other| other == path)
}
