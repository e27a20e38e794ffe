//! Names of datasets and snapshots: `POOL/a/b`, `POOL/a/b@snapshot`.
//!
//! Invariant: a checked name has 1 to 255 bytes, and each part only letters, digits and `-_.:`, does not start with
//! `-`, and is not `.` or `..`; so names are safe in paths, commands and keys.

use super::dataset_error::DatasetError;

/// Longest full name, bytes.
pub const DATASET_NAME_BYTES_MAX: usize = 255;
/// Most parts of a name.
pub const DATASET_DEPTH_MAX: usize = 50;

/// Checks one part of a name (a pool, a part of a dataset's name, a snapshot, a tag).
pub fn check_part(part: &str) -> Result<(), &'static str> {
    if part.is_empty() {
        return Err("a part of it is empty");
    }
    if part == "." || part == ".." {
        return Err("'.' and '..' mean something else");
    }
    if part.starts_with('-') {
        return Err("a part must not start with '-'");
    }
    if !part
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    {
        return Err("use only letters, digits and '-', '_', '.', ':'");
    }
    Ok(())
}

/// Checks a full dataset name.
pub fn check_dataset(name: &str) -> Result<(), DatasetError> {
    let invalid = |cause| DatasetError::InvalidName {
        name: name.to_owned(),
        cause,
    };
    if name.len() > DATASET_NAME_BYTES_MAX {
        return Err(invalid("it is longer than 255 bytes"));
    }
    if name.split('/').count() > DATASET_DEPTH_MAX {
        return Err(invalid("it has more than 50 parts"));
    }
    name.split('/').try_for_each(check_part).map_err(invalid)
}

/// Splits `DATASET@SNAPSHOT` and checks both.
pub fn split_snapshot(name: &str) -> Result<(&str, &str), DatasetError> {
    let invalid = |cause| DatasetError::InvalidName {
        name: name.to_owned(),
        cause,
    };
    let (dataset, snapshot) = name
        .split_once('@')
        .ok_or_else(|| invalid("a snapshot is written DATASET@NAME"))?;
    check_dataset(dataset)?;
    if snapshot.len() > DATASET_NAME_BYTES_MAX {
        return Err(invalid("it is longer than 255 bytes"));
    }
    check_part(snapshot).map_err(invalid)?;
    Ok((dataset, snapshot))
}

/// The name above: `a/b` for `a/b/c`.
pub fn parent(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["tank", "tank/a", "tank/a-b_c.d:e/2026"] {
            check_dataset(good).unwrap();
        }
        for bad in [
            "", "/", "tank/", "/tank", "tank//a", "tank/..", "tank/a b", "tank/a@b", "tank/-r", "tank/ä",
            "a%",
        ] {
            check_dataset(bad).unwrap_err();
        }
        assert!(check_dataset(&"a".repeat(256)).is_err());
        assert!(check_dataset(&["a"; 51].join("/")).is_err());
        assert_eq!(split_snapshot("tank/a@x").unwrap(), ("tank/a", "x"));
        for bad in ["tank/a", "tank@", "@x", "tank@a@b", "tank@a/b"] {
            split_snapshot(bad).unwrap_err();
        }
        assert_eq!(parent("a/b/c"), Some("a/b"));
        assert_eq!(parent("a"), None);
    }
}
