//! Records: what datasets have in the store is read through one door.

use syn::{
    Expr, Member,
    visit::{self, Visit},
};

use crate::{Finding, Workspace};

/// Where the door is: (crate, folder).
const DOOR: (&str, &str) = ("dataset", "records");
/// What reads records of a store.
const READS: [&str; 3] = ["get", "get_many", "scan"];

/// Outside its folder nothing asks the store itself for records by their keys. Counted for each folder.
pub fn records_are_read_through_their_door(workspace: &Workspace) -> Vec<Finding> {
    let (crate_name, folder) = DOOR;
    let mut found: Vec<Finding> = Vec::new();
    for source in workspace.of(crate_name).filter(|source| source.room() != folder) {
        let mut reads = Reads { count: 0 };
        reads.visit_file(&source.file);
        if reads.count == 0 {
            continue;
        }
        let subject = source.room();
        match found.iter_mut().find(|finding| finding.subject == subject) {
            Some(finding) => finding.count += reads.count,
            None => found.push(Finding::new("reads", crate_name, subject, reads.count)),
        }
    }
    found
}

struct Reads {
    count: usize,
}

impl<'ast> Visit<'ast> for Reads {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let is_read = READS.iter().any(|name| call.method == name);
        self.count += usize::from(is_read && is_store(&call.receiver));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // `Store::get` as a function.
        let words: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if let [.., owner, name] = words.as_slice() {
            self.count += usize::from(owner == "Store" && READS.contains(&name.as_str()));
        }
        visit::visit_path(self, path);
    }
}

/// Whether an expression ends with the name `store`: a variable, a field or a method, also behind `&`, `as_ref()` and the like.
fn is_store(expression: &Expr) -> bool {
    match expression {
        Expr::Path(path) => path.path.is_ident("store"),
        Expr::Field(field) => matches!(&field.member, Member::Named(name) if name == "store"),
        Expr::MethodCall(call) => {
            let is_handed_on = ["as_ref", "clone", "deref"]
                .iter()
                .any(|name| call.method == name);
            call.method == "store" || is_handed_on && is_store(&call.receiver)
        }
        Expr::Reference(reference) => is_store(&reference.expr),
        Expr::Paren(paren) => is_store(&paren.expr),
        Expr::Unary(unary) => is_store(&unary.expr),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_known_by_its_name_however_it_is_reached() {
        let count = |code: &str| {
            let mut reads = Reads { count: 0 };
            reads.visit_expr(&syn::parse_str(code).expect("an expression"));
            reads.count
        };
        assert_eq!(count("store.get(&key)"), 1);
        assert_eq!(count("self.environment.store.scan(&from, &to, 1)"), 1);
        assert_eq!(count("state.store().as_ref().get_many(&keys)"), 1);
        assert_eq!(count("store.commit(batch)"), 0);
        assert_eq!(count("state.records().get(&key)"), 0);
    }
}
