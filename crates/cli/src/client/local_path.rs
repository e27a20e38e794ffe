//! Paths of this machine that may lie on a mount of Terrace: who touches one of a daemon that does not answer waits in the kernel, where
//! nothing gets him out.
//!
//! Invariant: no path is touched before its daemon has given a sign of life; where that is asked for, nothing but the kernel's table of
//! mounts is read.

use std::path::Path;

use terrace_control::Failure;

use super::client::{ANSWER_PATIENCE, Client, Unanswered};
use crate::{
    arguments::split_pool,
    machine::{Places, Registry},
};

/// Refuses a path on a mount whose daemon gives no sign of life. One that is dead is none of those: the kernel says so at once.
pub fn check_answers(places: &Places, path: &Path) -> Result<(), Failure> {
    let Ok(absolute) = std::path::absolute(path) else {
        return Ok(());
    };
    let mounts = terrace_fuse::mounts().unwrap_or_default();
    let over = mounts
        .iter()
        .filter(|mount| absolute.starts_with(&mount.directory));
    // Of several at one place the last is on top.
    let Some(mount) = over.max_by_key(|mount| mount.directory.components().count()) else {
        return Ok(());
    };
    if !mount.kind.ends_with("terrace") {
        return Ok(());
    }
    let Ok((pool, _)) = split_pool(&mount.source) else {
        return Ok(());
    };
    // A pool of another user's state directory is not to be found here.
    if Registry::new(places).find(pool)?.is_none() {
        return Ok(());
    }
    match Client::find(places, pool, ANSWER_PATIENCE) {
        Err(silent @ Unanswered::Silent(_)) => {
            let what = format!("look at '{}', on a mount of pool '{pool}'", path.display());
            Err(silent.into_failure(places, pool, &what))
        }
        _ => Ok(()),
    }
}
