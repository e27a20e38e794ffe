//! Folders: how many files lie in one, and that they import downwards only.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use super::FILES_MAX;
use crate::{
    Finding, Source, Workspace,
    graph::{Graph, circles},
    imports::{imports, leaves},
};

/// At most [`FILES_MAX`] files lie in a folder.
pub fn folders_are_small(workspace: &Workspace) -> Vec<Finding> {
    let mut files: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for source in &workspace.sources {
        *files.entry((&source.crate_name, source.folder())).or_default() += 1;
    }
    let crowded = files.into_iter().filter(|(_, count)| *count > FILES_MAX);
    crowded
        .map(|((crate_name, folder), count)| {
            Finding::new("files", crate_name, format!("src/{folder}"), count)
        })
        .collect()
}

/// No two folders of a crate, nor a folder and a file beside it at the crate's root, import one another, directly or by others.
/// Counted for each folder: how many of its neighbours in the circle it imports.
pub fn folders_import_downwards(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in workspace.crates() {
        let sources: Vec<&Source> = workspace.of(name).collect();
        let handed_on = handed_on(&sources);
        for level in levels(&sources) {
            let graph = graph_of(&sources, &level, &handed_on);
            for circle in circles(&graph) {
                for node in &circle {
                    let within = graph[node].intersection(&circle).count();
                    let subject = level.iter().chain([node]).cloned().collect::<Vec<_>>().join("/");
                    found.push(Finding::new("circle", name, subject, within));
                }
            }
        }
    }
    found
}

/// What the crate's root hands on, and of which room: who names `crate::Cut` uses that room.
fn handed_on(sources: &[&Source]) -> BTreeMap<String, String> {
    let mut rooms = BTreeMap::new();
    for source in sources.iter().filter(|source| source.module().is_empty()) {
        for item in &source.file.items {
            let Item::Use(item) = item else { continue };
            let mut paths = Vec::new();
            leaves(&item.tree, &mut Vec::new(), &mut paths);
            for mut path in paths {
                if path[0] == "crate" || path[0] == "self" {
                    path.remove(0);
                }
                if let (Some(name), true) = (path.last(), path.len() > 1) {
                    rooms.insert(name.clone(), path[0].clone());
                }
            }
        }
    }
    rooms
}

/// The crate's root, and every folder that has folders.
fn levels(sources: &[&Source]) -> BTreeSet<Vec<String>> {
    let mut levels = BTreeSet::from([Vec::new()]);
    for source in sources {
        let parts: Vec<String> = source.folder().split('/').map(str::to_string).collect();
        for end in 1..parts.len() {
            levels.insert(parts[..end].to_vec());
        }
    }
    levels
}

/// Who imports whom of what lies side by side at a level; below the root only folders count.
fn graph_of(sources: &[&Source], level: &[String], handed_on: &BTreeMap<String, String>) -> Graph {
    let modules: Vec<Vec<String>> = sources.iter().map(|source| source.module()).collect();
    let counts = |source: &Source| level.is_empty() || source.path.split('/').count() > level.len() + 1;
    let here: BTreeSet<String> = sources
        .iter()
        .zip(&modules)
        .filter(|(source, module)| module.starts_with(level) && counts(source))
        .filter_map(|(_, module)| module.get(level.len()).cloned())
        .collect();
    let mut graph: Graph = here.iter().map(|node| (node.clone(), BTreeSet::new())).collect();
    for (source, module) in sources.iter().zip(&modules) {
        let user = module
            .get(level.len())
            .filter(|user| module.starts_with(level) && here.contains(*user));
        let Some(user) = user else { continue };
        for path in imports(&source.file, module) {
            if !path.starts_with(level) {
                continue;
            }
            let Some(first) = path.get(level.len()) else {
                continue;
            };
            let used = handed_on.get(first).filter(|_| level.is_empty()).unwrap_or(first);
            if used != user && here.contains(used) {
                graph.entry(user.clone()).or_default().insert(used.clone());
            }
        }
    }
    graph
}
