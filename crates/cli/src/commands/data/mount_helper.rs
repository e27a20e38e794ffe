//! `/sbin/mount.terrace`, a link to this program or a copy of it: what `mount -t terrace DATASET DIR -o …` and fstab call.
//!
//! `mount.terrace DATASET DIR [-sfnv] [-o OPTIONS]` becomes `terrace mount DATASET DIR -o OPTIONS`; with `-f` nothing is mounted.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use terrace_control::Failure;

/// The words of `terrace …`; unchanged unless the program was called as `mount.terrace` (or `mount.fuse.terrace`). None if nothing
/// is to be done.
pub fn translate(words: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let name = words
        .first()
        .map(Path::new)
        .and_then(Path::file_name)
        .unwrap_or_default();
    let is_helper = name == "mount.terrace" || name == "mount.fuse.terrace" || is_from_mount_fuse(words);
    if !is_helper {
        return Ok(words.to_vec());
    }
    let mut places = Vec::new();
    let mut options = Vec::new();
    let mut fake = false;
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => options.extend(rest.next().cloned()),
            Some("-t" | "-N") => drop(rest.next()),
            Some(flag) if flag.starts_with("-o") => options.push(flag[2..].into()),
            // -f: everything but the mount itself.
            Some(flag) if flag.starts_with('-') && flag.len() > 1 => fake |= flag.contains('f'),
            _ => places.push(word.clone()),
        }
    }
    let [dataset, directory] = places.as_slice() else {
        return Err(Failure::new(
            "mount",
            "a dataset and a directory are needed",
            "write 'mount -t terrace POOL/NAME DIRECTORY'",
        )
        .as_usage());
    };
    if fake {
        return Ok(Vec::new());
    }
    let mut translated: Vec<OsString> = ["terrace", "mount"].map(OsString::from).to_vec();
    for option in options {
        translated.push("-o".into());
        translated.push(without_resolved(&option));
    }
    translated.push(OsStr::new("--").into());
    translated.push(dataset.clone());
    translated.push(directory.clone());
    Ok(translated)
}

/// Whether `mount.fuse` calls, which runs `terrace POOL/NAME /DIRECTORY -o …` for what the mount table shows as of type
/// `fuse.terrace`. No command has a slash in its name.
fn is_from_mount_fuse(words: &[OsString]) -> bool {
    let is =
        |at: usize, test: fn(&str) -> bool| words.get(at).and_then(|word| word.to_str()).is_some_and(test);
    is(1, |word| word.contains('/') && !word.starts_with('-')) && is(2, |word| word.starts_with('/'))
}

/// Without the words that mount(8) has already resolved into others, and perhaps undone by a later one (`users,exec`).
fn without_resolved(option: &OsStr) -> OsString {
    let Some(text) = option.to_str() else {
        return option.to_owned();
    };
    let kept = text
        .split(',')
        .filter(|word| !["user", "users", "owner", "group"].contains(word));
    kept.collect::<Vec<_>>().join(",").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn mount_s_words_become_ours() {
        let plain = words("terrace status tank");
        assert_eq!(translate(&plain).unwrap(), plain);
        assert_eq!(
            translate(&words("/sbin/mount.terrace tank/data /mnt/x -n -o rw,noatime")).unwrap(),
            words("terrace mount -o rw,noatime -- tank/data /mnt/x")
        );
        // By mount.fuse, for what the table shows; and what mount(8) has resolved.
        assert_eq!(
            translate(&words("terrace tank/data /mnt/x -o rw,users,nosuid,remount")).unwrap(),
            words("terrace mount -o rw,nosuid,remount -- tank/data /mnt/x")
        );
        assert!(
            translate(&words("mount.terrace tank/data /mnt/x -sf -o ro"))
                .unwrap()
                .is_empty()
        );
        for missing in [
            "/sbin/mount.terrace tank/data",
            "/sbin/mount.terrace -f tank/data",
        ] {
            assert!(translate(&words(missing)).unwrap_err().usage);
        }
    }
}
