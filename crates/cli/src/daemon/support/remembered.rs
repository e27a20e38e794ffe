//! What a pool should have mounted, attached or served and has not: why, and how to be rid of it.
//!
//! Invariants: a name alone brings nothing back: it must still mean the dataset, or the snapshot, that it meant when it
//! was written down; what could not be brought back stays written down, and is told, until it comes back or its user
//! strikes it off.

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::Datasets;

use super::answers::failed;
use crate::machine::KnownIdentity;

/// What it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Mount,
    Attachment,
    Service,
    /// The list of them, which cannot be read.
    List,
}

impl Use {
    fn kind(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Attachment => "attach",
            Self::Service => "serve",
            Self::List => "list",
        }
    }
}

/// One that is remembered and not there.
#[derive(Debug, Clone, PartialEq)]
pub struct Missing {
    pub kind: Use,
    /// The dataset or snapshot.
    pub name: String,
    /// Directory or address; of an attached volume the device that it was, or nothing.
    pub place: String,
    why: String,
    remedy: String,
}

impl Missing {
    /// That `failure` kept from coming back.
    pub fn new(kind: Use, name: &str, place: String, failure: Failure) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            place,
            why: failure.why,
            remedy: failure.remedy,
        }
    }

    /// That the list of what pool `name` had `used` (mounted, or attached and served) cannot be read.
    pub fn list(pool: &str, used: &str, failure: Failure) -> Self {
        Self {
            kind: Use::List,
            name: pool.to_owned(),
            place: used.to_owned(),
            why: format!("{}: {}", failure.what, failure.why),
            remedy: "remove that file: what it listed is forgotten then".into(),
        }
    }

    /// As users are told.
    pub fn failure(&self, pool: &str) -> Failure {
        let Self {
            name,
            place,
            why,
            remedy,
            ..
        } = self;
        let (what, forget) = match self.kind {
            Use::List => {
                let what = format!("bring back what pool '{name}' had {place}");
                return Failure::new(what, why, remedy);
            }
            Use::Mount => (
                format!("mount '{name}' again at '{place}'"),
                format!("terrace unmount {place}"),
            ),
            Use::Attachment => (format!("attach '{name}' again"), format!("terrace detach {name}")),
            Use::Service => (
                format!("serve '{name}' again at {place}"),
                format!("terrace unserve {name}"),
            ),
        };
        let remedy = match remedy.as_str() {
            "" => format!("'terrace start {pool}' tries again, '{forget}' forgets it"),
            remedy => format!("{remedy}; 'terrace start {pool}' tries again, '{forget}' forgets it"),
        };
        Failure::new(what, why, remedy)
    }

    /// As programs are told.
    pub fn row(&self, pool: &str) -> Value {
        let failure = self.failure(pool);
        json!({
            "kind": self.kind.kind(), "name": self.name, "place": self.place, "what": failure.what, "why": failure.why,
            "remedy": failure.remedy,
        })
    }
}

/// What `name`, a dataset or a snapshot, means now.
pub fn identity_of(datasets: &Datasets, what: &str, name: &str) -> Result<KnownIdentity, Failure> {
    let told = |error| failed(what, &error);
    let (dataset, _) = name.split_once('@').unwrap_or((name, ""));
    Ok(KnownIdentity {
        dataset: datasets.state(dataset).map_err(told)?.number(),
        checkpoint: match name.contains('@') {
            true => Some(datasets.snapshots().info(name).map_err(told)?.checkpoint),
            false => None,
        },
    })
}

/// Fails if `name` means something else than it did.
pub fn check_identity(
    datasets: &Datasets,
    what: &str,
    name: &str,
    before: KnownIdentity,
) -> Result<(), Failure> {
    if identity_of(datasets, what, name)? == before {
        return Ok(());
    }
    let kind = if name.contains('@') { "snapshot" } else { "dataset" };
    Err(Failure::new(
        what,
        format!("'{name}' is another {kind} than it was then"),
        "ask for this one anew if it is wanted",
    ))
}

/// `name` after `from` was renamed to `to`, if that concerns it: itself, what lies below it, its snapshots.
pub fn renamed(name: &str, from: &str, to: &str) -> Option<String> {
    let rest = name.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with(['/', '@'])).then(|| format!("{to}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_concern_what_lies_below() {
        assert_eq!(renamed("p/a", "p/a", "p/b").as_deref(), Some("p/b"));
        assert_eq!(renamed("p/a/c@x", "p/a", "p/b").as_deref(), Some("p/b/c@x"));
        assert_eq!(renamed("p/a@x", "p/a@x", "p/a@y").as_deref(), Some("p/a@y"));
        assert_eq!(renamed("p/ab", "p/a", "p/b"), None);
    }

    #[test]
    fn the_way_out_is_said() {
        let failure = Failure::new("x", "it is gone", "make it");
        let missing = Missing::new(Use::Mount, "p/a", "/mnt".into(), failure);
        assert_eq!(
            missing.failure("p").to_string(),
            "mount 'p/a' again at '/mnt': it is gone; make it; 'terrace start p' tries again, 'terrace unmount /mnt' forgets it"
        );
    }
}
