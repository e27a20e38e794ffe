//! Names as users write them: `POOL/DATASET@SNAPSHOT/PATH`.
//!
//! Where the dataset ends and the path in it begins only the daemon knows: here a name is split into pool and rest.

use terrace_control::Failure;

use crate::machine::check_pool_name;

/// `POOL/REST` (the rest may be empty) as pool and rest.
pub fn split_pool(name: &str) -> Result<(&str, &str), Failure> {
    if name.starts_with('/') {
        let why = "it is a path of this machine, where a dataset is meant";
        let remedy = "write POOL/NAME; 'terrace list' shows those that exist";
        return Err(Failure::new(format!("understand '{name}'"), why, remedy).as_usage());
    }
    let end = name.find(['/', '@']).unwrap_or(name.len());
    let (pool, rest) = name.split_at(end);
    check_pool_name(pool)?;
    Ok((pool, rest.strip_prefix('/').unwrap_or(rest)))
}

/// `PROPERTY=VALUE`.
pub fn split_property(text: &str) -> Result<(&str, &str), Failure> {
    text.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| {
            Failure::new(
                format!("understand '{text}'"),
                "a value is missing",
                "write PROPERTY=VALUE",
            )
            .as_usage()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_pool() {
        assert_eq!(split_pool("tank").unwrap(), ("tank", ""));
        assert_eq!(split_pool("tank/a/b").unwrap(), ("tank", "a/b"));
        assert_eq!(split_pool("tank@now").unwrap(), ("tank", "@now"));
        assert_eq!(split_pool("tank/a@now/x").unwrap(), ("tank", "a@now/x"));
        assert!(split_pool("/tank").is_err());
        assert!(split_pool("").is_err());
        assert!(split_property("a=").is_ok());
        assert!(split_property("=a").is_err());
    }
}
