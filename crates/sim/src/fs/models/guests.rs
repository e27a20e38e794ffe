//! `Guests`: datasets that come and go beside the others, and what is in the file of each.

use std::collections::BTreeMap;

use crate::{
    models::{Content, History},
    violation::{Check, Violation},
};

/// Every guest has a name that begins so.
pub(crate) const GUEST_PREFIX: &str = "pool/guest";

/// The guests by full name, with what is in the file of each; `None`: that is not known.
type Names = BTreeMap<String, Option<Content>>;

/// See the module.
pub(crate) struct Guests {
    history: History<Names>,
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            history: History::new(Names::new()),
        }
    }
}

impl Guests {
    /// All of them now.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (&String, Option<Content>)> {
        self.history
            .newest()
            .iter()
            .map(|(name, content)| (name, *content))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.history.newest().keys().cloned().collect()
    }

    /// One is made.
    pub(crate) fn add(&mut self, name: &str) {
        let mut names = self.history.newest().clone();
        names.insert(name.to_owned(), None);
        self.history.push(names);
    }

    /// One gets another name, and what is below it moves along.
    pub(crate) fn rename(&mut self, name: &str, to: &str) {
        let moved = |other: &String| match other.strip_prefix(name) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => other.clone(),
        };
        let names = self
            .newest()
            .map(|(other, content)| (moved(other), content))
            .collect();
        self.history.push(names);
    }

    /// One goes, with what is below it.
    pub(crate) fn remove(&mut self, name: &str) {
        let mut names = self.history.newest().clone();
        let below = format!("{name}/");
        names.retain(|other, _| other != name && !other.starts_with(&below));
        self.history.push(names);
    }

    /// The last change is durable.
    pub(crate) fn synced(&mut self) {
        self.history.synced();
    }

    /// Whether it is not known what became of the last change.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.history.uncertain() > 0
    }

    /// What is in the file of one.
    pub(crate) fn know(&mut self, name: &str, content: Option<Content>) {
        self.history.amend(|names| {
            if let Some(known) = names.get_mut(name) {
                *known = content;
            }
        });
    }

    /// These are there: they are those of one of the states that may be found.
    pub(crate) fn found(&mut self, there: &[&String]) -> Check {
        self.history
            .recovered(
                |names| names.keys().eq(there.iter().copied()),
                |names| format!("{:?} are there, not {:?}", there, names.keys()),
            )
            .map_err(|violation| Violation(format!("datasets: {violation}")))?;
        self.history.synced();
        Ok(())
    }
}
