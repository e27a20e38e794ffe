//! `Source` and `Workspace`: the Rust files of the crates, read and parsed once.
//!
//! Invariant: code for tests (`#[cfg(test)]`, `#[cfg(any(test, ...))]`) is not part of a parsed source.

use std::{
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, File, Item};

/// One file below `crates/NAME/src`.
pub struct Source {
    /// The crate's folder name: `chunk`.
    pub crate_name: String,
    /// Below `src`, with `/`: `gc/sweep.rs`.
    pub path: String,
    /// Its items, those for tests apart.
    pub file: File,
}

/// All sources of the workspace.
pub struct Workspace {
    /// Where it lies.
    pub root: PathBuf,
    /// In the order of crates and paths.
    pub sources: Vec<Source>,
}

impl Source {
    /// The folder that it lies in, below `src`; empty for the crate's own.
    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// The modules that lead to it: `["gc", "sweep"]`; a `mod.rs` is its folder.
    pub fn module(&self) -> Vec<String> {
        let path = self.path.trim_end_matches(".rs");
        let mut parts: Vec<_> = path.split('/').map(str::to_string).collect();
        if parts
            .last()
            .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()))
        {
            parts.pop();
        }
        parts
    }

    /// Its first module: the sub-system that it belongs to.
    pub fn room(&self) -> String {
        self.module().into_iter().next().unwrap_or_default()
    }
}

impl Workspace {
    /// Reads and parses all sources. Panics if one cannot be read or is not Rust: then nothing can be said.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .expect("this crate lies two below the root")
            .to_path_buf();
        let mut sources = Vec::new();
        for path in rust_files(&root.join("crates")) {
            let below = path.strip_prefix(root.join("crates")).expect("it lies there");
            let parts: Vec<_> = below
                .components()
                .map(|part| part.as_os_str().to_string_lossy())
                .collect();
            if parts.get(1).is_none_or(|part| part != "src") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("readable");
            let mut file =
                syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if file.attrs.iter().any(is_for_tests) {
                continue;
            }
            without_tests(&mut file.items);
            sources.push(Source {
                crate_name: parts[0].to_string(),
                path: parts[2..].join("/"),
                file,
            });
        }
        leave_out_test_modules(&mut sources);
        assert!(sources.len() > 400, "the walk finds the sources");
        Self { root, sources }
    }

    /// The names of all crates that have sources.
    pub fn crates(&self) -> Vec<&str> {
        let mut names: Vec<_> = self
            .sources
            .iter()
            .map(|source| source.crate_name.as_str())
            .collect();
        names.dedup();
        names
    }

    /// The sources of a crate.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Source> {
        self.sources
            .iter()
            .filter(move |source| source.crate_name == name)
    }
}

/// All Rust files below a directory, in order.
pub fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else {
        return found;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Whether an attribute keeps an item for tests and fuzzing.
fn is_for_tests(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let words = list.tokens.to_string();
    attribute.path().is_ident("cfg")
        && !words.contains("not")
        && (words.contains("test") || words.contains("fuzzing"))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The names of the modules for tests that were taken out are left as empty modules, so that their files can be left out.
fn without_tests(items: &mut Vec<Item>) {
    items.retain(|item| {
        let is_file = matches!(item, Item::Mod(module) if module.content.is_none());
        is_file || !attributes(item).iter().any(is_for_tests)
    });
    for item in items {
        if let Item::Impl(item) = item {
            item.items.retain(|item| match item {
                syn::ImplItem::Fn(function) => !function.attrs.iter().any(is_for_tests),
                _ => true,
            });
        }
    }
}

fn leave_out_test_modules(sources: &mut Vec<Source>) {
    let mut for_tests = Vec::new();
    for source in sources.iter() {
        for item in &source.file.items {
            if let Item::Mod(module) = item
                && module.content.is_none()
                && module.attrs.iter().any(is_for_tests)
            {
                let mut path = source.module();
                path.push(module.ident.to_string());
                for_tests.push((source.crate_name.clone(), path));
            }
        }
    }
    sources.retain(|source| {
        let module = source.module();
        !for_tests
            .iter()
            .any(|(name, path)| *name == source.crate_name && module.starts_with(path))
    });
}
