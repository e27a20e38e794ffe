//! `Crates`: finds the code that a fault changes, by crate and item.
//!
//! Invariants: an item is found wherever in its crate it lies; code is found if exactly one of the items of that name has it once.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use syn::{spanned::Spanned, visit::Visit};

use crate::fault::{Change, FaultError};

/// Where code lies.
pub struct Place {
    pub path: PathBuf,
    /// The whole file.
    pub text: String,
    pub range: Range<usize>,
}

/// A file of a crate: functions, constants and statics, by name and by `Type::name`.
struct Source {
    path: PathBuf,
    text: String,
    items: Vec<(String, Range<usize>)>,
}

/// The crates of a tree, read as they are asked for.
pub struct Crates {
    tree: PathBuf,
    read: BTreeMap<String, Vec<Source>>,
}

impl Crates {
    /// Of the tree at this directory.
    pub fn of(tree: &Path) -> Self {
        Self {
            tree: tree.into(),
            read: BTreeMap::new(),
        }
    }

    /// Where the code lies that a change replaces.
    pub fn find(&mut self, change: &Change) -> Result<Place, FaultError> {
        let name = &change.crate_name;
        if !self.read.contains_key(name) {
            let mut sources = Vec::new();
            read(&self.tree.join("crates").join(name).join("src"), &mut sources)?;
            self.read.insert(name.clone(), sources);
        }
        let sources = self.read.get(name).map_or(&[][..], Vec::as_slice);
        let mut has_item = false;
        let mut places = Vec::new();
        for source in sources {
            for (_, range) in source.items.iter().filter(|(item, _)| *item == change.item) {
                has_item = true;
                places.extend(matches(&source.text, range, &change.replace).map(|range| (source, range)));
            }
        }
        match places.pop() {
            Some((source, range)) if places.is_empty() => Ok(Place {
                path: source.path.clone(),
                text: source.text.clone(),
                range,
            }),
            None if !has_item => Err(FaultError::NoItem(name.clone(), change.item.clone())),
            found => Err(FaultError::Code {
                crate_name: name.clone(),
                item: change.item.clone(),
                times: places.len() + usize::from(found.is_some()),
            }),
        }
    }
}

/// The ranges in `text`, within `range`, that are `code` but for blanks.
fn matches(text: &str, range: &Range<usize>, code: &str) -> impl Iterator<Item = Range<usize>> {
    let wanted: Vec<char> = code.chars().filter(|letter| !letter.is_whitespace()).collect();
    let letters = text[range.clone()]
        .char_indices()
        .filter(|(_, letter)| !letter.is_whitespace());
    let letters: Vec<(usize, char)> = letters.collect();
    let first = range.start;
    let found: Vec<_> = letters
        .windows(wanted.len().max(1))
        .filter(|window| window.iter().map(|(_, letter)| letter).eq(&wanted))
        .filter_map(|window| {
            let (start, (last, letter)) = (window.first()?.0, *window.last()?);
            Some(first + start..first + last + letter.len_utf8())
        })
        .collect();
    found.into_iter()
}

fn read(directory: &Path, sources: &mut Vec<Source>) -> Result<(), FaultError> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let file = syn::parse_file(&text).map_err(|cause| FaultError::Source {
                path: path.display().to_string(),
                cause,
            })?;
            let mut items = Items::default();
            items.visit_file(&file);
            sources.push(Source {
                path,
                text,
                items: items.found,
            });
        }
    }
    Ok(())
}

/// Collects the items of a file.
#[derive(Default)]
struct Items {
    /// The type whose methods are being looked at.
    owner: Option<String>,
    found: Vec<(String, Range<usize>)>,
}

impl Items {
    fn add(&mut self, name: &syn::Ident, item: &impl Spanned) {
        let name = match &self.owner {
            Some(owner) => format!("{owner}::{name}"),
            None => name.to_string(),
        };
        self.found.push((name, item.span().byte_range()));
    }

    fn within(&mut self, owner: Option<String>, look: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.owner, owner);
        look(self);
        self.owner = before;
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        self.within(owner, |items| syn::visit::visit_item_impl(items, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let owner = Some(item.ident.to_string());
        self.within(owner, |items| syn::visit::visit_item_trait(items, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(None, |items| {
            items.add(&item.sig.ident, item);
            syn::visit::visit_item_fn(items, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, item);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.sig.ident, item);
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.add(&item.ident, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.add(&item.ident, item);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn find(item: &str, replace: &str) -> Result<Place, FaultError> {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("crates/one/src/inner");
        std::fs::create_dir_all(&source).unwrap();
        let text = "const LIMIT: u32 = 4;\nimpl Log {\n    fn end(&self) {\n        a();\n        b(1,\n 2);\n    }\n}\n\
                    impl Trail {\n    fn end(&self) { a(); a(); }\n}\n";
        std::fs::write(source.join("log.rs"), text).unwrap();
        let change = Change {
            crate_name: "one".into(),
            item: item.into(),
            replace: replace.into(),
            with: String::new(),
        };
        Crates::of(directory.path()).find(&change)
    }

    #[test]
    fn code_is_found_by_its_item_whatever_its_blanks() {
        let place = find("Log::end", "\n  b(1, 2);  ").unwrap();
        assert_eq!(&place.text[place.range], "b(1,\n 2);");
        let place = find("LIMIT", "4").unwrap();
        assert_eq!(&place.text[place.range], "4");
    }

    #[test]
    fn absent_or_ambiguous_code_does_not_fit() {
        assert!(matches!(find("Log::begin", "a();"), Err(FaultError::NoItem(..))));
        assert!(matches!(
            find("Log::end", "c();"),
            Err(FaultError::Code { times: 0, .. })
        ));
        assert!(matches!(
            find("Trail::end", "a();"),
            Err(FaultError::Code { times: 2, .. })
        ));
        assert!(matches!(
            find("Trail::end", ""),
            Err(FaultError::Code { times: 0, .. })
        ));
    }
}
