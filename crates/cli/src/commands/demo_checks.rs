//! The demo's data: a bounded sample of real files, and the comparison of a copy with it.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use terrace_control::Failure;

/// Files that were gathered.
pub struct Sample {
    /// Those of 64 KiB to 8 MiB, relative to the root: good to be read and moved.
    pub files: Vec<String>,
}

fn fail(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("demo: {what} '{}'", path.display()), error, "")
}

/// Gathers at most `bytes` of files below `roots` (shared evenly) into `target`, by hard links where they can be
/// made, else by copies.
pub fn gather(target: &Path, roots: &[&Path], bytes: u64) -> Result<Sample, Failure> {
    fs::create_dir_all(target).map_err(|error| fail("make", target, &error))?;
    let mut sample = Sample { files: Vec::new() };
    for root in roots {
        let mut left = bytes / roots.len() as u64;
        let mut stack = vec![root.to_path_buf()];
        while let Some(directory) = stack.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            entries.sort();
            for path in entries {
                let Ok(metadata) = fs::symlink_metadata(&path) else {
                    continue;
                };
                let Ok(relative) = path.strip_prefix("/") else {
                    continue;
                };
                let to = target.join(relative);
                if metadata.is_dir() {
                    stack.push(path);
                    continue;
                }
                if metadata.len() > left || !(metadata.is_file() || metadata.is_symlink()) {
                    continue;
                }
                if take(&path, &to, &metadata).is_err() {
                    // Not readable by this user: another one will do.
                    continue;
                }
                left -= metadata.len();
                if metadata.is_file()
                    && (64 << 10..8 << 20).contains(&metadata.len())
                    && let Some(name) = relative.to_str()
                {
                    sample.files.push(name.to_owned());
                }
            }
        }
    }
    if sample.files.len() < 10 {
        return Err(Failure::new(
            "demo: gather files",
            "/usr/share and /usr/lib hold too few that this user may read",
            "give more with --size",
        ));
    }
    Ok(sample)
}

fn take(from: &Path, to: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    if let Some(above) = to.parent() {
        fs::create_dir_all(above)?;
    }
    if metadata.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(_) => fs::copy(from, to).map(drop),
    }
}

/// What a comparison found.
#[derive(Default)]
pub struct Compared {
    /// Files that are the same.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first few differences, in words.
    pub differences: Vec<String>,
}

/// Compares names, kinds, modes, targets and content; `missing` are files that the copy lost on purpose.
pub fn compare(original: &Path, copy: &Path, missing: &[String]) -> Result<Compared, Failure> {
    let mut compared = Compared::default();
    let mut stack = vec![PathBuf::new()];
    while let Some(relative) = stack.pop() {
        let (a, b) = (original.join(&relative), copy.join(&relative));
        let (mut names, others) = (names(&a)?, names(&b)?);
        for name in others.difference(&names) {
            compared
                .differences
                .push(format!("'{}' is too much", b.join(name).display()));
        }
        names.retain(|name| !missing.iter().any(|gone| Path::new(gone) == relative.join(name)));
        for name in names {
            let below = relative.join(&name);
            let (a, b) = (original.join(&below), copy.join(&below));
            let first = fs::symlink_metadata(&a).map_err(|error| fail("look at", &a, &error))?;
            let second = match fs::symlink_metadata(&b) {
                Ok(found) => found,
                Err(error) => {
                    compared.differences.push(format!("'{}': {error}", b.display()));
                    continue;
                }
            };
            if first.file_type() != second.file_type() || (first.is_file() && mode(&first) != mode(&second)) {
                compared
                    .differences
                    .push(format!("'{}' has another type or mode", b.display()));
            } else if first.is_dir() {
                stack.push(below);
            } else if first.is_symlink() {
                if fs::read_link(&a).ok() != fs::read_link(&b).ok() {
                    compared
                        .differences
                        .push(format!("'{}' points elsewhere", b.display()));
                }
            } else if !same_content(&a, &b).map_err(|error| fail("compare", &b, &error))? {
                compared
                    .differences
                    .push(format!("'{}' has another content", b.display()));
            } else {
                compared.files += 1;
                compared.bytes += first.size();
            }
            if compared.differences.len() > 20 {
                return Ok(compared);
            }
        }
    }
    Ok(compared)
}

fn mode(metadata: &fs::Metadata) -> u32 {
    metadata.permissions().mode() & 0o7777
}

fn names(directory: &Path) -> Result<BTreeSet<std::ffi::OsString>, Failure> {
    let entries = fs::read_dir(directory).map_err(|error| fail("list", directory, &error))?;
    entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<_>>()
        .map_err(|error| fail("list", directory, &error))
}

fn same_content(a: &Path, b: &Path) -> io::Result<bool> {
    use std::io::Read;
    let (mut a, mut b) = (fs::File::open(a)?, fs::File::open(b)?);
    let mut buffers = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = a.read(&mut buffers.0)?;
        if read == 0 {
            return Ok(b.read(&mut buffers.1)? == 0);
        }
        match b.read_exact(&mut buffers.1[..read]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            outcome => outcome?,
        }
        if buffers.0[..read] != buffers.1[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        for root in [&a, &b] {
            fs::create_dir_all(root.join("x")).unwrap();
            fs::write(root.join("x/file"), b"same").unwrap();
            fs::write(root.join("gone"), b"1").unwrap();
        }
        assert!(compare(&a, &b, &[]).unwrap().differences.is_empty());
        fs::remove_file(b.join("gone")).unwrap();
        assert_eq!(compare(&a, &b, &[]).unwrap().differences.len(), 1);
        assert!(compare(&a, &b, &["gone".into()]).unwrap().differences.is_empty());
        fs::write(b.join("x/file"), b"sama").unwrap();
        fs::write(b.join("more"), b"").unwrap();
        assert_eq!(compare(&a, &b, &["gone".into()]).unwrap().differences.len(), 2);
    }
}
