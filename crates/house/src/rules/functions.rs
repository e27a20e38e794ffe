//! Length: of functions, and of lines in documents.

use std::fs;

use syn::{
    spanned::Spanned,
    visit::{self, Visit},
};

use super::{DOC_LINE_MAX, FUNCTION_LINES_MAX};
use crate::{Finding, Workspace};

/// Tables written as one `match` or one list, and rendering: (crate, function).
const TABLES: [(&str, &str); 0] = [];

/// A function has at most [`FUNCTION_LINES_MAX`] lines.
pub fn functions_are_short(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in &workspace.sources {
        let mut long = Long::default();
        long.visit_file(&source.file);
        for (name, lines) in long.found {
            if !TABLES.contains(&(&source.crate_name, &name)) {
                let subject = format!("{}:{name}", source.path.trim_end_matches(".rs"));
                found.push(Finding::new("long", &source.crate_name, subject, lines));
            }
        }
    }
    found
}

#[derive(Default)]
struct Long {
    found: Vec<(String, usize)>,
}

impl Long {
    fn look(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = block.span().end().line + 1 - signature.span().start().line;
        if lines > FUNCTION_LINES_MAX {
            self.found.push((signature.ident.to_string(), lines));
        }
    }
}

impl<'ast> Visit<'ast> for Long {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.look(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.look(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

/// A line in `docs/` and in the README has at most [`DOC_LINE_MAX`] characters, tables apart. Counted for each folder.
pub fn documents_have_short_lines(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for folder in ["docs", "docs/decisions", "."] {
        let mut long = 0;
        let entries = fs::read_dir(workspace.root.join(folder)).expect("it is there");
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).expect("readable");
                let is_long = |line: &&str| line.chars().count() > DOC_LINE_MAX && !line.starts_with('|');
                long += text.lines().filter(is_long).count();
            }
        }
        if long > 0 {
            found.push(Finding::new("line", "docs", folder, long));
        }
    }
    found
}
