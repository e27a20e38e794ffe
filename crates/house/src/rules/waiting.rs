//! Waiting and the time: the engine locks, waits and looks at the clock through `terrace-sync` alone.
//!
//! Else a lock has no place in the order that tests check, and the simulator neither sees a wait nor decides how long it lasts.

use syn::visit::{self, Visit};

use crate::{Finding, Workspace};

/// The crates that the simulator runs.
const SIMULATED: [&str; 9] = [
    "cache", "chunk", "dataset", "engine", "log", "meta", "mover", "pool", "store",
];
/// What they do without, by the end of a path.
const REFUSED: [&[&str]; 8] = [
    &["parking_lot"],
    &["Instant"],
    &["SystemTime"],
    &["thread", "sleep"],
    &["thread", "park_timeout"],
    &["sync", "Mutex"],
    &["sync", "RwLock"],
    &["sync", "Condvar"],
];

/// What the simulator runs has its locks, its waits and its time from one place. Counted for each folder.
pub fn waiting_goes_through_its_seam(workspace: &Workspace) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for name in SIMULATED {
        for source in workspace.of(name) {
            let mut uses = Uses::default();
            uses.visit_file(&source.file);
            if uses.count > 0 {
                found.push(Finding::new("seam", name, &source.path, uses.count));
            }
        }
    }
    found
}

#[derive(Default)]
struct Uses {
    count: usize,
    /// Names before the part of a `use` that is being looked at.
    before: Vec<String>,
}

impl Uses {
    fn look_at(&mut self, path: &[String]) {
        let is_refused = |refused: &&[&str]| {
            path.windows(refused.len())
                .any(|words| words.iter().zip(refused.iter()).all(|(word, name)| word == name))
        };
        let is_ours = path.first().is_some_and(|first| first == "terrace_sync");
        self.count += usize::from(!is_ours && REFUSED.iter().any(is_refused));
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words = path.segments.iter().map(|segment| segment.ident.to_string());
        self.look_at(&words.collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_use_path(&mut self, tree: &'ast syn::UsePath) {
        self.before.push(tree.ident.to_string());
        visit::visit_use_path(self, tree);
        self.before.pop();
    }

    fn visit_use_name(&mut self, name: &'ast syn::UseName) {
        let whole = [self.before.as_slice(), &[name.ident.to_string()]].concat();
        self.look_at(&whole);
    }

    fn visit_use_rename(&mut self, rename: &'ast syn::UseRename) {
        let whole = [self.before.as_slice(), &[rename.ident.to_string()]].concat();
        self.look_at(&whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_or_a_clock_from_elsewhere_is_found_however_it_is_named() {
        let count = |code: &str| {
            let mut uses = Uses::default();
            uses.visit_file(&syn::parse_str(code).expect("a file"));
            uses.count
        };
        assert_eq!(count("use parking_lot::{Mutex, RwLock};"), 2);
        assert_eq!(count("use std::{sync::Mutex, time::Instant};"), 2);
        assert_eq!(count("fn f() { std::thread::sleep(time) }"), 1);
        assert_eq!(count("use terrace_sync::{Mutex, rank};"), 0);
        assert_eq!(count("use std::{sync::Arc, time::Duration};"), 0);
    }
}
