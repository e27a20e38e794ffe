//! Ownership: a folder's fields and locks are its own; a type's methods lie together; nothing is handed the whole.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    FnArg, ImplItem, Item, Type, Visibility,
    visit::{self, Visit},
};

use super::{CIRCLE_MAX, IMPL_FILES_MAX};
use crate::{
    Finding, Source, Workspace,
    graph::{Graph, circles},
};

/// Types that tie a crate together, and where: (crate, type, its file).
const WHOLES: [(&str, &str, &str); 6] = [
    ("chunk", "ChunkStore", "store.rs"),
    ("dataset", "LiveDataset", "live_dataset.rs"),
    ("dataset", "Datasets", "datasets.rs"),
    ("engine", "Engine", "engine.rs"),
    ("pool", "Pool", "pool.rs"),
    ("meta", "Tree", "tree.rs"),
];

/// Fields of these types are state: they may be seen in their own folder alone.
const LOCKS: [&str; 12] = [
    "Mutex",
    "RwLock",
    "Condvar",
    "RankedMutex",
    "RankedRwLock",
    "OnceLock",
    "AtomicBool",
    "AtomicU8",
    "AtomicU32",
    "AtomicU64",
    "AtomicI64",
    "AtomicUsize",
];
const COLLECTIONS: [&str; 8] = [
    "HashMap",
    "BTreeMap",
    "HashSet",
    "BTreeSet",
    "VecDeque",
    "BinaryHeap",
    "ClockMap",
    "IndexMap",
];

/// Inherent methods of a type lie in at most [`IMPL_FILES_MAX`] files.
pub fn methods_lie_together(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in workspace.crates() {
        let mut files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for source in workspace.of(name) {
            for (owner, _) in inherent(source) {
                files.entry(owner).or_default().insert(&source.path);
            }
        }
        let spread = files
            .into_iter()
            .filter(|(_, files)| files.len() > IMPL_FILES_MAX);
        found.extend(spread.map(|(owner, files)| Finding::new("spread", name, owner, files.len())));
    }
    found
}

/// The files of a type whose methods call one another in a circle are at most [`CIRCLE_MAX`].
pub fn methods_call_no_circles(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in workspace.crates() {
        let mut owners: BTreeMap<String, Vec<(&Source, &syn::ItemImpl)>> = BTreeMap::new();
        for source in workspace.of(name) {
            for (owner, item) in inherent(source) {
                owners.entry(owner).or_default().push((source, item));
            }
        }
        for (owner, items) in owners {
            let mut lies_in: BTreeMap<String, &str> = BTreeMap::new();
            for (source, item) in &items {
                for function in functions(item) {
                    lies_in.insert(function.sig.ident.to_string(), &source.path);
                }
            }
            let mut graph = Graph::new();
            for (source, item) in &items {
                let mut calls = SelfCalls::default();
                calls.visit_item_impl(item);
                let from = graph.entry(source.path.clone()).or_default();
                let others = calls.names.iter().filter_map(|name| lies_in.get(name));
                from.extend(
                    others
                        .filter(|path| **path != source.path)
                        .map(ToString::to_string),
                );
            }
            let most = circles(&graph).iter().map(BTreeSet::len).max().unwrap_or(0);
            if most > CIRCLE_MAX {
                found.push(Finding::new("selfcalls", name, owner, most));
            }
        }
    }
    found
}

#[derive(Default)]
struct SelfCalls {
    names: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for SelfCalls {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let syn::Expr::Path(path) = &*call.receiver
            && path.path.is_ident("self")
        {
            self.names.insert(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() == 2 && path.segments[0].ident == "Self" {
            self.names.insert(path.segments[1].ident.to_string());
        }
        visit::visit_path(self, path);
    }
}

/// No lock, atomic or collection is a field that other folders see. Counted for each type.
pub fn state_is_private(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in &workspace.sources {
        for item in &source.file.items {
            let Item::Struct(item) = item else { continue };
            let open = item
                .fields
                .iter()
                .filter(|field| is_seen_outside(&field.vis, source) && is_state(&field.ty, &item.vis));
            let count = open.count();
            if count > 0 {
                let subject = format!("{}:{}", source.path.trim_end_matches(".rs"), item.ident);
                found.push(Finding::new("open", &source.crate_name, subject, count));
            }
        }
    }
    found
}

/// Whether a field is seen beyond the folder of its file. `pub(super)` is the folder, unless the file is a folder itself.
fn is_seen_outside(visibility: &Visibility, source: &Source) -> bool {
    match visibility {
        Visibility::Public(_) => true,
        Visibility::Restricted(restricted) => {
            let is_folder = source.path.ends_with("/mod.rs");
            !(restricted.path.is_ident("self") || restricted.path.is_ident("super") && !is_folder)
        }
        Visibility::Inherited => false,
    }
}

/// Locks and atomics are; collections are in types that the crate keeps to itself: what is handed out is a value.
fn is_state(field: &Type, owner: &Visibility) -> bool {
    let mut words = Words::default();
    words.visit_type(field);
    let has = |names: &[&str]| words.found.iter().any(|word| names.contains(&word.as_str()));
    has(&LOCKS) || !matches!(owner, Visibility::Public(_)) && has(&COLLECTIONS)
}

#[derive(Default)]
struct Words {
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for Words {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.found.push(segment.ident.to_string());
        visit::visit_path_segment(self, segment);
    }
}

/// No function outside of its own file takes a type that ties a crate together, as an argument or as `self`. Counted for
/// each folder.
pub fn the_whole_is_not_passed(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for (crate_name, whole, file) in WHOLES {
        let mut takers: BTreeMap<String, usize> = BTreeMap::new();
        for source in workspace.of(crate_name) {
            if source.path.rsplit('/').next() == Some(file) || is_in_its_folder(source, file) {
                continue;
            }
            let mut taking = Taking { whole, count: 0 };
            taking.visit_file(&source.file);
            let methods: usize = inherent(source)
                .filter(|(owner, _)| owner == whole)
                .map(|(_, item)| {
                    functions(item)
                        .filter(|function| function.sig.receiver().is_some())
                        .count()
                })
                .sum();
            let count = taking.count + methods;
            if count > 0 {
                *takers.entry(source.room()).or_default() += count;
            }
        }
        for (room, count) in takers {
            found.push(Finding::new(
                "whole",
                crate_name,
                format!("{whole}:{room}"),
                count,
            ));
        }
    }
    found
}

/// Whether a file lies in the folder that goes with a facade's file: `store/contract.rs` with `store.rs`.
fn is_in_its_folder(source: &Source, file: &str) -> bool {
    file.strip_suffix("rs")
        .is_some_and(|stem| source.folder().rsplit('/').next() == stem.strip_suffix('.'))
}

struct Taking<'a> {
    whole: &'a str,
    count: usize,
}

impl<'ast> Visit<'ast> for Taking<'_> {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        for argument in &signature.inputs {
            if let FnArg::Typed(argument) = argument {
                let mut words = Words::default();
                words.visit_type(&argument.ty);
                self.count += usize::from(words.found.iter().any(|word| word == self.whole));
            }
        }
    }
}

/// No field holds, by `Arc` or `Weak`, the whole that it is a part of, or an "inner" that several share.
pub fn facades_hold_nothing_above(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in &workspace.sources {
        for item in &source.file.items {
            let Item::Struct(item) = item else { continue };
            let mut count = 0;
            for field in &item.fields {
                let mut words = Words::default();
                words.visit_type(&field.ty);
                let is_held = words.found.iter().any(|word| word == "Arc" || word == "Weak");
                let is_above = words.found.iter().any(|word| {
                    let is_whole = WHOLES.iter().any(|(name, whole, file)| {
                        *name == source.crate_name
                            && word == whole
                            && !source.path.ends_with(file)
                            && item.ident != *whole
                    });
                    let is_inner = word.ends_with("Inner") && !declares(source, word);
                    is_whole || is_inner
                });
                count += usize::from(is_held && is_above);
            }
            if count > 0 {
                let subject = format!("{}:{}", source.path.trim_end_matches(".rs"), item.ident);
                found.push(Finding::new("above", &source.crate_name, subject, count));
            }
        }
    }
    found
}

fn declares(source: &Source, name: &str) -> bool {
    source
        .file
        .items
        .iter()
        .any(|item| matches!(item, Item::Struct(item) if item.ident == name))
}

/// The inherent `impl`s of a file, with the name of their type.
fn inherent(source: &Source) -> impl Iterator<Item = (String, &syn::ItemImpl)> {
    source.file.items.iter().filter_map(|item| match item {
        Item::Impl(item) if item.trait_.is_none() => match &*item.self_ty {
            Type::Path(path) => Some((path.path.segments.last()?.ident.to_string(), item)),
            _ => None,
        },
        _ => None,
    })
}

fn functions(item: &syn::ItemImpl) -> impl Iterator<Item = &syn::ImplItemFn> {
    item.items.iter().filter_map(|item| match item {
        ImplItem::Fn(function) => Some(function),
        _ => None,
    })
}
