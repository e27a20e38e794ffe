//! The demo's data: a bounded sample of real files, and the comparison of a copy with it.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use parking_lot::{Condvar, Mutex};
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

/// Threads that compare: most of the time goes into waiting for the answers of the mount.
const THREADS: usize = 4;
/// Differences after which it is enough.
const DIFFERENCES_MAX: usize = 20;

/// Directories that are still to be compared, and how many are being compared now.
struct Work {
    waiting: Vec<PathBuf>,
    busy: usize,
}

/// Compares names, kinds, modes, targets and content; `missing` are files that the copy lost on purpose.
pub fn compare(original: &Path, copy: &Path, missing: &[String]) -> Result<Compared, Failure> {
    let work = Mutex::new(Work {
        waiting: vec![PathBuf::new()],
        busy: 0,
    });
    let changed = Condvar::new();
    let result = Mutex::new(Ok(Compared::default()));
    let next = || {
        let mut work = work.lock();
        loop {
            if let Some(directory) = work.waiting.pop() {
                work.busy += 1;
                return Some(directory);
            }
            if work.busy == 0 {
                return None;
            }
            changed.wait(&mut work);
        }
    };
    let help = || {
        while let Some(directory) = next() {
            let mut below = Vec::new();
            let found = compare_directory(original, copy, &directory, missing, &mut below);
            let mut result = result.lock();
            match (&mut *result, found) {
                (Ok(all), Ok(found)) => {
                    all.files += found.files;
                    all.bytes += found.bytes;
                    all.differences.extend(found.differences);
                    if all.differences.len() > DIFFERENCES_MAX {
                        below.clear();
                    }
                }
                (Ok(_), Err(error)) => *result = Err(error),
                (Err(_), _) => below.clear(),
            }
            drop(result);
            let mut work = work.lock();
            work.waiting.append(&mut below);
            work.busy -= 1;
            changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..THREADS {
            scope.spawn(help);
        }
        help();
    });
    result.into_inner()
}

/// Compares what is in one directory; the directories in it are left to the caller.
fn compare_directory(
    original: &Path,
    copy: &Path,
    relative: &Path,
    missing: &[String],
    directories: &mut Vec<PathBuf>,
) -> Result<Compared, Failure> {
    let mut compared = Compared::default();
    let (a, b) = (original.join(relative), copy.join(relative));
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
            directories.push(below);
        } else if first.is_symlink() {
            if fs::read_link(&a).ok() != fs::read_link(&b).ok() {
                compared
                    .differences
                    .push(format!("'{}' points elsewhere", b.display()));
            }
        } else if first.size() != second.size()
            || !same_content(&a, &b, first.size()).map_err(|error| fail("compare", &b, &error))?
        {
            compared
                .differences
                .push(format!("'{}' has another content", b.display()));
        } else {
            compared.files += 1;
            compared.bytes += first.size();
        }
        if compared.differences.len() > DIFFERENCES_MAX {
            break;
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

/// Whether the first `length` bytes of both files are the same.
fn same_content(a: &Path, b: &Path, length: u64) -> io::Result<bool> {
    use std::io::Read;
    let (mut a, mut b) = (fs::File::open(a)?, fs::File::open(b)?);
    let mut left = length;
    let size = left.min(1 << 20) as usize;
    let mut buffers = (vec![0; size], vec![0; size]);
    while left > 0 {
        let now = left.min(1 << 20) as usize;
        let (first, second) = (&mut buffers.0[..now], &mut buffers.1[..now]);
        for (file, buffer) in [(&mut a, &mut *first), (&mut b, &mut *second)] {
            match file.read_exact(buffer) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                outcome => outcome?,
            }
        }
        if first != second {
            return Ok(false);
        }
        left -= now as u64;
    }
    Ok(true)
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
