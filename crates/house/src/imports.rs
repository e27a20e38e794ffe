//! What a file names of its own crate: by `use`, and by paths in its code.

use syn::{
    File, Item, Path, UseTree,
    visit::{self, Visit},
};

/// Paths below the crate's root that a file of the module `here` names: `["gc", "Maintenance"]`. Inline modules are not
/// looked into for `super`.
pub fn imports(file: &File, here: &[String]) -> Vec<Vec<String>> {
    let mut found = Found { paths: Vec::new() };
    found.visit_file(file);
    for item in &file.items {
        if let Item::Use(item) = item {
            leaves(&item.tree, &mut Vec::new(), &mut found.paths);
        }
    }
    found
        .paths
        .into_iter()
        .filter_map(|path| resolve(path, here))
        .collect()
}

struct Found {
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Found {
    fn visit_path(&mut self, path: &'ast Path) {
        let words: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if words.len() > 1 && ["crate", "super", "self"].contains(&words[0].as_str()) {
            self.paths.push(words);
        }
        visit::visit_path(self, path);
    }
}

/// The full paths that a `use` names, after `before`.
pub fn leaves(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => found.push([before.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => found.push([before.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => found.push([before.as_slice(), &["*".to_string()]].concat()),
        UseTree::Group(group) => {
            for tree in &group.items {
                leaves(tree, before, found);
            }
        }
    }
}

/// From the crate's root on; none if it leads out of the crate.
fn resolve(path: Vec<String>, here: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" | "self" => here.to_vec(),
        _ => return None,
    };
    let mut rest = path.as_slice();
    while let Some(("crate" | "self" | "super", left)) =
        rest.split_first().map(|(word, left)| (word.as_str(), left))
    {
        if rest[0] == "super" {
            base.pop()?;
        }
        rest = left;
    }
    base.extend_from_slice(rest);
    Some(base)
}
