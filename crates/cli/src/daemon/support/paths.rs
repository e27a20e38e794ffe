//! `POOL/DATASET[@SNAPSHOT]/PATH[@@TIME]`: finding the dataset and the object in it that a name means.
//!
//! Invariants: the longest dataset wins; symbolic links are followed inside the dataset only, at most 40 times.

use std::sync::Arc;

use terrace_control::Failure;
use terrace_dataset::{At, Attributes, Context, FileKind, Filesystem, FsError, Tree};
use terrace_engine::Engine;

use super::answers::failed;

/// Most symbolic links followed in one path.
const LINKS_MAX: usize = 40;

/// What a name means.
pub struct Place {
    /// The dataset.
    pub dataset: String,
    /// Its content, live or as it was.
    pub tree: Arc<dyn Tree>,
    /// The live filesystem, if it is live.
    pub live: Option<Arc<Filesystem>>,
    /// Path in it, as parts.
    pub parts: Vec<Vec<u8>>,
}

/// A dataset, the time that is named, and the path in it, as parts.
pub type Located = (String, Option<At>, Vec<Vec<u8>>);

/// What a name means, without opening it.
pub fn locate(engine: &Engine, name: &str) -> Result<Located, Failure> {
    let what = format!("find '{name}'");
    let datasets = engine.datasets();
    let now = engine.environment().now();
    let (plain, at) = match name.rsplit_once("@@") {
        Some((plain, time)) if !time.contains('/') => {
            let at = At::parse(time, now).map_err(|why| Failure::new(what.clone(), why, ""))?;
            (plain, Some(at))
        }
        _ => (name, None),
    };
    let words: Vec<&str> = plain.split('/').collect();
    let mut dataset = String::new();
    let mut taken = 0;
    let mut at = at;
    for (index, word) in words.iter().enumerate() {
        let longer = if index == 0 {
            (*word).to_owned()
        } else {
            format!("{dataset}/{word}")
        };
        if datasets.info(&longer).is_ok() {
            dataset = longer;
            taken = index + 1;
            continue;
        }
        if let Some((before, snapshot)) = word.split_once('@') {
            let longer = if index == 0 {
                before.to_owned()
            } else {
                format!("{dataset}/{before}")
            };
            if datasets.info(&longer).is_ok() {
                dataset = longer;
                taken = index + 1;
                at = Some(At::Snapshot(snapshot.to_owned()));
            }
        }
        break;
    }
    if taken == 0 {
        return Err(Failure::new(
            what,
            "there is no such dataset",
            "'terrace list' shows those that exist",
        ));
    }
    let parts = words[taken..]
        .iter()
        .filter(|word| !word.is_empty())
        .map(|word| word.as_bytes().to_vec())
        .collect();
    Ok((dataset, at, parts))
}

/// Finds the dataset of a name and opens its content.
pub fn find(engine: &Engine, name: &str) -> Result<Place, Failure> {
    let what = format!("find '{name}'");
    let datasets = engine.datasets();
    let (dataset, at, parts) = locate(engine, name)?;
    if let Some(at) = at {
        let view = datasets
            .view(&dataset, &at)
            .map_err(|error| failed(&what, &error))?;
        return Ok(Place {
            dataset,
            tree: view,
            live: None,
            parts,
        });
    }
    let filesystem = datasets
        .filesystem(&dataset)
        .map_err(|error| failed(&what, &error))?;
    Ok(Place {
        dataset,
        tree: filesystem.clone(),
        live: Some(filesystem),
        parts,
    })
}

/// Walks to the object; the last part's link is followed only if `follow`.
pub fn walk(tree: &dyn Tree, parts: &[Vec<u8>], follow: bool) -> Result<Attributes, FsError> {
    let context = Context::root();
    let mut stack = vec![tree.root()];
    let mut left: Vec<Vec<u8>> = parts.iter().rev().cloned().collect();
    let mut links = 0;
    let mut current = tree.attributes(tree.root())?;
    while let Some(part) = left.pop() {
        if part.is_empty() || part == b"." {
            continue;
        }
        if part == b".." {
            if stack.len() > 1 {
                stack.pop();
            }
            current = tree.attributes(stack.last().copied().unwrap_or_else(|| tree.root()))?;
            continue;
        }
        let directory = stack.last().copied().unwrap_or_else(|| tree.root());
        current = tree.lookup(&context, directory, &part)?;
        match current.kind {
            FileKind::Directory => stack.push(current.object),
            FileKind::SymbolicLink if follow || !left.is_empty() => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(FsError::LoopDetected);
                }
                let target = tree.read_link(current.object)?;
                if target.first() == Some(&b'/') {
                    stack.truncate(1);
                }
                left.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                current = tree.attributes(stack.last().copied().unwrap_or_else(|| tree.root()))?;
            }
            _ if left.iter().all(|part| part.is_empty()) => {}
            _ => return Err(FsError::NotDirectory),
        }
    }
    Ok(current)
}

/// An error of a filesystem call in words that name the file; some have their own way out.
pub fn file_failure(what: &str, name: &str, error: &FsError) -> Failure {
    let failure = failed(&format!("{what} '{name}'"), error);
    let remedy = match error {
        _ if !failure.remedy.is_empty() => return failure,
        FsError::NotFound => "'terrace ls' shows what is there",
        FsError::ReadOnly => "write to the live dataset, or set readonly=off",
        FsError::Io(_) => "'terrace status' says what is damaged or missing, and what to do",
        FsError::IsDirectory if what == "read" => {
            &format!("'terrace ls {name}' lists it, 'terrace get {name} DIR' copies all of it")
        }
        FsError::IsDirectory => "name a file in it",
        _ => return failure,
    };
    Failure {
        remedy: remedy.into(),
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_one_way_out() {
        let said = file_failure("write", "tank/a", &FsError::QuotaExceeded).to_string();
        assert_eq!(said.matches("delete files").count(), 1, "{said}");
        assert!(
            said.contains("'tank/a'") && said.contains("terrace set quota"),
            "{said}"
        );
        let said = file_failure("write", "tank/a", &FsError::NoSpace).to_string();
        assert_eq!(said.matches("delete files").count(), 1, "{said}");
        assert!(said.contains("terrace pool add"), "{said}");
        let said = file_failure("read", "tank/a", &FsError::NotFound).to_string();
        assert!(said.contains("terrace ls"), "{said}");
    }
}
