//! A mount that can be changed, of a dataset and of the tests' own filesystem: what programs do to files comes out as
//! POSIX says.

#[allow(dead_code, clippy::unwrap_used)]
mod support;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::Path,
    sync::Arc,
};

use support::{Mounted, memory::Memory, with_mount};
use terrace_cache::Budget;
use terrace_dataset::{Datasets, Environment, NewDataset};
use terrace_device::SystemClock;
use terrace_fuse::{Content, DatasetPast, Past, VolumeFile, mount};
use terrace_store::MemoryStore;

#[test]
fn serve() {
    support::serve(|content, directory| match content {
        "memory" => mount(
            directory,
            Content::Live(Memory::new()),
            None,
            &support::options("memory"),
        ),
        "dataset" => {
            let store = Arc::new(MemoryStore::new(1 << 30));
            let budget = Arc::new(Budget::new(256 << 20));
            let environment = Environment::with_budget(store, Arc::new(SystemClock::new()), budget);
            let datasets = Arc::new(Datasets::open(Arc::new(environment), "pool").unwrap());
            datasets.create("pool/files", &NewDataset::default()).unwrap();
            let past: Arc<dyn Past> = Arc::new(DatasetPast::new(datasets.clone(), "pool/files").unwrap());
            let files = datasets.filesystem("pool/files").unwrap();
            // What is asked of a running pool: a snapshot whenever a file of this name is looked for.
            let past = Arc::new(SnapshotsOnDemand { past, datasets });
            mount(
                directory,
                Content::Live(files),
                Some(past),
                &support::options("pool/files"),
            )
        }
        "volume" => {
            let store = Arc::new(MemoryStore::new(1 << 30));
            let environment = Environment::new(store, Arc::new(SystemClock::new()));
            let datasets = Datasets::open(Arc::new(environment), "pool").unwrap();
            let size = NewDataset {
                volume_bytes: Some(64 << 20),
                ..NewDataset::default()
            };
            datasets.create("pool/disk", &size).unwrap();
            let volume = VolumeFile::new(datasets.volume("pool/disk").unwrap());
            mount(
                directory,
                Content::Live(volume),
                None,
                &support::options("pool/disk"),
            )
        }
        other => panic!("there is no content '{other}'"),
    })
}

/// Takes the snapshot `NAME` when `@@take NAME` is looked up, so that tests need no other way to ask for one.
struct SnapshotsOnDemand {
    past: Arc<dyn Past>,
    datasets: Arc<Datasets>,
}

impl Past for SnapshotsOnDemand {
    fn snapshots(&self) -> Result<Vec<String>, terrace_dataset::FsError> {
        self.past.snapshots()
    }

    fn snapshot(&self, name: &str) -> Result<terrace_fuse::PastView, terrace_dataset::FsError> {
        self.past.snapshot(name)
    }

    fn at(&self, when: &str) -> Result<terrace_fuse::PastView, terrace_dataset::FsError> {
        if let Some(name) = when.strip_prefix("take ") {
            self.datasets
                .snapshot(&format!("pool/files@{name}"), false, "")
                .map_err(terrace_dataset::FsError::io)?;
            return self.snapshot(name);
        }
        self.past.at(when)
    }
}

/// The same test on both.
fn with_both(body: fn(&mut Mounted)) {
    with_mount("memory", body);
    with_mount("dataset", body);
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at * 31 + at / 4096 * 7 + seed) % 253) as u8)
        .collect()
}

#[test]
fn files_are_written_read_and_removed() {
    with_both(|mounted| {
        let path = mounted.path("file");
        for length in [0, 1, 4095, 4096, 70_000, 3 << 20] {
            let content = pattern(length, length);
            fs::write(&path, &content).unwrap();
            assert!(fs::read(&path).unwrap() == content, "{length} bytes");
            assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
    });
}

#[test]
fn appending_truncating_and_writing_in_the_middle() {
    with_both(|mounted| {
        let path = mounted.path("log");
        let mut expected = Vec::new();
        let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        for line in 0..500 {
            let line = format!("line {line}\n");
            log.write_all(line.as_bytes()).unwrap();
            expected.extend_from_slice(line.as_bytes());
        }
        assert!(fs::read(&path).unwrap() == expected);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"MIDDLE", 1000).unwrap();
        expected[1000..1006].copy_from_slice(b"MIDDLE");
        file.set_len(2000).unwrap();
        expected.truncate(2000);
        assert!(fs::read(&path).unwrap() == expected);
        file.set_len(10_000).unwrap();
        expected.resize(10_000, 0);
        assert!(fs::read(&path).unwrap() == expected);
        assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    });
}

#[test]
fn many_writers_append_without_overwriting_each_other() {
    with_both(|mounted| {
        let path = mounted.path("shared log");
        File::create(&path).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).open(path).unwrap();
                    for line in 0..200 {
                        log.write_all(format!("writer {writer} line {line:03}\n").as_bytes())
                            .unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        let lines: BTreeSet<_> = text.lines().collect();
        assert_eq!((text.lines().count(), lines.len()), (800, 800));
        assert!(lines.iter().all(|line| line.len() == "writer 0 line 000".len()));
    });
}

#[test]
fn a_removed_open_file_lives_until_it_is_closed() {
    with_both(|mounted| {
        let path = mounted.path("doomed");
        let content = pattern(100_000, 1);
        fs::write(&path, &content).unwrap();
        let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all_at(b"still here", 0).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read[..10] == *b"still here" && read[10..] == content[10..]);
        // A new file of the name is another one.
        fs::write(&path, b"new").unwrap();
        assert_ne!(file.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
        // The same for one that is replaced.
        let replaced = File::open(&path).unwrap();
        fs::write(mounted.path("other"), b"other").unwrap();
        fs::rename(mounted.path("other"), &path).unwrap();
        let mut text = String::new();
        (&replaced).read_to_string(&mut text).unwrap();
        assert_eq!(
            (text.as_str(), fs::read_to_string(&path).unwrap().as_str()),
            ("new", "other")
        );
    });
}

#[test]
fn a_file_without_a_name_can_be_given_one() {
    with_both(|mounted| {
        let mut file = OpenOptions::new()
            .write(true)
            .read(true)
            .custom_flags(libc::O_TMPFILE)
            .open(mounted.path(""))
            .unwrap();
        file.write_all(b"appears complete").unwrap();
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
        let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let to = std::ffi::CString::new(mounted.path("named").to_str().unwrap()).unwrap();
        // SAFETY: both are strings that end with a NUL.
        let result = unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        drop(file);
        assert_eq!(fs::read(mounted.path("named")).unwrap(), b"appears complete");
        assert_eq!(fs::metadata(mounted.path("named")).unwrap().nlink(), 1);
    });
}

#[test]
fn names_are_linked_renamed_and_exchanged() {
    with_both(|mounted| {
        let at = |name: &str| mounted.path(name);
        fs::create_dir(at("a")).unwrap();
        fs::create_dir(at("b")).unwrap();
        fs::write(at("a/one"), b"1").unwrap();
        fs::hard_link(at("a/one"), at("b/two")).unwrap();
        assert_eq!(fs::metadata(at("a/one")).unwrap().nlink(), 2);
        assert_eq!(
            fs::metadata(at("a/one")).unwrap().ino(),
            fs::metadata(at("b/two")).unwrap().ino()
        );
        symlink("../a/one", at("b/link")).unwrap();
        assert_eq!(fs::read(at("b/link")).unwrap(), b"1");
        fs::rename(at("a/one"), at("b/three")).unwrap();
        assert!(!at("a/one").exists());
        assert_eq!(fs::read(at("b/three")).unwrap(), b"1");
        assert_eq!(
            fs::remove_dir(at("b")).unwrap_err().raw_os_error(),
            Some(libc::ENOTEMPTY)
        );
        fs::rename(at("b"), at("a/b")).unwrap();
        assert_eq!(fs::metadata(at("a")).unwrap().nlink(), 3);
        fs::write(at("a/x"), b"x").unwrap();
        fs::write(at("a/y"), b"y").unwrap();
        let rename = |from: &Path, to: &Path, flags| {
            let text = |path: &Path| std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let (from, to) = (text(from), text(to));
            // SAFETY: both are strings that end with a NUL.
            let result =
                unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
            if result == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error().raw_os_error().unwrap())
            }
        };
        assert_eq!(
            rename(&at("a/x"), &at("a/y"), libc::RENAME_NOREPLACE),
            Err(libc::EEXIST)
        );
        rename(&at("a/x"), &at("a/y"), libc::RENAME_EXCHANGE).unwrap();
        assert_eq!(
            (fs::read(at("a/x")).unwrap(), fs::read(at("a/y")).unwrap()),
            (b"y".to_vec(), b"x".to_vec())
        );
        fs::remove_dir_all(at("a")).unwrap();
        assert_eq!(fs::read_dir(at("")).unwrap().count(), 0);
    });
}

#[test]
fn many_files_are_made_listed_and_removed() {
    with_both(|mounted| {
        let dir = mounted.path("many");
        fs::create_dir(&dir).unwrap();
        for number in 0..1500 {
            fs::write(dir.join(format!("file {number}")), format!("{number}")).unwrap();
        }
        let names: BTreeSet<_> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 1500);
        for number in (0..1500).step_by(2) {
            fs::remove_file(dir.join(format!("file {number}"))).unwrap();
        }
        let left = fs::read_dir(&dir).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert_eq!(fs::read_to_string(entry.path()).unwrap(), name["file ".len()..]);
            assert_eq!(entry.metadata().unwrap().len(), name.len() as u64 - 5);
        });
        assert_eq!(left.count(), 750);
        fs::remove_dir_all(&dir).unwrap();
    });
}

/// Whatever was done to files before: once they are listed, looking at each asks nothing.
#[test]
fn a_listing_leaves_nothing_to_be_asked() {
    with_both(|mounted| {
        let dir = mounted.path("changed");
        fs::create_dir(&dir).unwrap();
        let path = |name: &str| dir.join(name);
        for round in 0..2 {
            for name in [
                "written", "linked", "unlinked", "renamed", "cut", "mode", "named", "read", "replaced",
            ] {
                fs::write(path(name), pattern(5000, round)).unwrap();
            }
            fs::create_dir_all(path("directory")).unwrap();
            File::create(path("empty")).unwrap();
            let list = || fs::read_dir(&dir).unwrap().count();
            list();
            // Of what the listing has told, much is no longer so.
            let append = OpenOptions::new().append(true).open(path("written")).unwrap();
            (&append).write_all(b"more").unwrap();
            fs::hard_link(path("linked"), path("second")).unwrap();
            fs::hard_link(path("unlinked"), path("third")).unwrap();
            list();
            fs::remove_file(path("third")).unwrap();
            fs::rename(path("renamed"), path("replaced")).unwrap();
            OpenOptions::new()
                .write(true)
                .open(path("cut"))
                .unwrap()
                .set_len(7)
                .unwrap();
            fs::set_permissions(path("mode"), fs::Permissions::from_mode(0o600 + round as u32)).unwrap();
            rustix::fs::setxattr(path("named"), "user.a", b"1", rustix::fs::XattrFlags::empty()).unwrap();
            fs::read(path("read")).unwrap();
            File::create(path("directory/below")).unwrap();
            assert_eq!(list(), 11);
            let before: u64 = mounted.ask("requests").parse().unwrap();
            // (The standard library also wants the time of birth, which listings do not bring.)
            let stat = |name: &str| rustix::fs::lstat(path(name)).unwrap();
            assert_eq!(stat("written").st_size, 5004);
            assert_eq!((stat("linked").st_nlink, stat("second").st_nlink), (2, 2));
            assert_eq!(stat("unlinked").st_nlink, 1);
            assert_eq!(stat("replaced").st_size, 5000);
            assert_eq!(stat("cut").st_size, 7);
            assert_eq!(stat("mode").st_mode & 0o777, 0o600 + round as u32);
            for name in ["named", "read", "directory", "empty"] {
                stat(name);
            }
            let after: u64 = mounted.ask("requests").parse().unwrap();
            assert_eq!(after, before, "questions after a listing");
            fs::remove_file(path("second")).unwrap();
            fs::remove_file(path("directory/below")).unwrap();
        }
    });
}

#[test]
fn attributes_are_changed_and_kept() {
    with_both(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode(), 0o104751);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 987_654_321);
        file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time))
            .unwrap();
        let status = fs::metadata(&path).unwrap();
        assert_eq!(
            (status.mtime(), status.mtime_nsec()),
            (1_234_567_890, 987_654_321)
        );
        assert_eq!(
            (status.atime(), status.atime_nsec()),
            (1_234_567_890, 987_654_321)
        );
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
            let status = fs::metadata(&path).unwrap();
            assert_eq!((status.uid(), status.gid()), (1234, 4321));
        }
    });
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    with_both(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        let set = |name: &str, value: &[u8], flags| {
            rustix::fs::setxattr(&path, name, value, flags).map_err(|error| error.raw_os_error())
        };
        use rustix::fs::XattrFlags;
        set("user.a", b"1", XattrFlags::empty()).unwrap();
        set("user.long", &pattern(2000, 3), XattrFlags::CREATE).unwrap();
        assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(libc::EEXIST));
        assert_eq!(set("user.b", b"2", XattrFlags::REPLACE), Err(libc::ENODATA));
        assert_eq!(
            set("system.other", b"2", XattrFlags::empty()),
            Err(libc::EOPNOTSUPP)
        );
        let mut value = [0_u8; 4096];
        assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut value[..]).unwrap(), 1);
        let length = rustix::fs::getxattr(&path, "user.long", &mut value[..]).unwrap();
        assert!(value[..length] == pattern(2000, 3));
        let length = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
        let mut names: Vec<_> = value[..length]
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
            .collect();
        names.sort_unstable();
        assert_eq!(names, [&b"user.a"[..], b"user.long"]);
        rustix::fs::removexattr(&path, "user.a").unwrap();
        assert_eq!(
            rustix::fs::getxattr(&path, "user.a", &mut value[..])
                .unwrap_err()
                .raw_os_error(),
            libc::ENODATA
        );
    });
}

#[test]
fn files_have_holes_and_ranges_are_copied() {
    with_both(|mounted| {
        let path = mounted.path("sparse");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all_at(&pattern(8192, 9), 1 << 20).unwrap();
        let mut start = vec![1; 4096];
        file.read_exact_at(&mut start, 4096).unwrap();
        assert!(start.iter().all(|&byte| byte == 0));
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 2 << 20, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 1 << 20, 4096).unwrap();
        let mut both = vec![1; 8192];
        file.read_exact_at(&mut both, 1 << 20).unwrap();
        assert!(both[..4096].iter().all(|&byte| byte == 0) && both[4096..] == pattern(8192, 9)[4096..]);
        let copy = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mounted.path("copy"))
            .unwrap();
        let (mut from, mut to, mut left) = (0_u64, 0_u64, (2 << 20) + 4096);
        while left > 0 {
            let copied =
                rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left).unwrap();
            assert!(copied > 0);
            left -= copied;
        }
        assert!(fs::read(mounted.path("copy")).unwrap() == fs::read(&path).unwrap());
    });
}

#[test]
fn holes_are_found() {
    with_mount("dataset", |mounted| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mounted.path("f"))
            .unwrap();
        file.write_all_at(&pattern(4096, 5), 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
        let seek = |offset, data: bool| {
            let whence = if data { libc::SEEK_DATA } else { libc::SEEK_HOLE };
            // SAFETY: a plain system call on an open file.
            unsafe { libc::lseek(file.as_raw_fd(), offset, whence) }
        };
        assert_eq!((seek(0, true), seek(0, false)), (1 << 20, 0));
        assert_eq!(seek(1 << 20, false), (1 << 20) + 4096);
        assert_eq!(seek((1 << 20) + 4096, true), -1);
        file.seek(SeekFrom::Start(0)).unwrap();
    });
}

#[test]
fn a_mapped_file_is_read_and_written() {
    with_both(|mounted| {
        let path = mounted.path("mapped");
        fs::write(&path, pattern(20_000, 2)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // SAFETY: a new mapping of an open file; it is used within its length and unmapped below.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                20_000,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        // SAFETY: the mapping is 20,000 bytes long, and no one else has a reference into it.
        let mapped = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), 20_000) };
        assert!(mapped == pattern(20_000, 2));
        mapped[5000..5010].copy_from_slice(b"by mapping");
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::msync(address, 20_000, libc::MS_SYNC) }, 0);
        let mut read = [0; 10];
        file.read_exact_at(&mut read, 5000).unwrap();
        assert_eq!(&read, b"by mapping");
        // SAFETY: the mapping made above; `mapped` is not used any more.
        assert_eq!(unsafe { libc::munmap(address, 20_000) }, 0);
    });
}

#[test]
fn direct_and_synchronous_writes() {
    with_both(|mounted| {
        let path = mounted.path("direct");
        let options = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .custom_flags(flags)
                .open(&path)
        };
        let file = options(libc::O_DIRECT).unwrap();
        let mut space = vec![0_u8; 8192 + 4096];
        let start = space.as_ptr().align_offset(4096);
        let block = &mut space[start..start + 8192];
        block.copy_from_slice(&pattern(8192, 4));
        file.write_all_at(block, 4096).unwrap();
        block.fill(0);
        file.read_exact_at(block, 4096).unwrap();
        assert!(*block == pattern(8192, 4));
        options(libc::O_SYNC)
            .unwrap()
            .write_all_at(b"synchronous", 100)
            .unwrap();
        options(libc::O_DSYNC)
            .unwrap()
            .write_all_at(b"data", 200)
            .unwrap();
        let file = options(0).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        File::open(mounted.path("")).unwrap().sync_all().unwrap();
        let mut read = [0; 11];
        file.read_exact_at(&mut read, 100).unwrap();
        assert_eq!(&read, b"synchronous");
    });
}

#[test]
fn a_snapshot_shows_files_as_they_were() {
    with_mount("dataset", |mounted| {
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/file"), b"before").unwrap();
        fs::write(mounted.path("dir/gone"), pattern(50_000, 6)).unwrap();
        assert!(mounted.path("@@take first").exists());
        fs::write(mounted.path("dir/file"), b"after, and longer").unwrap();
        fs::remove_file(mounted.path("dir/gone")).unwrap();
        let old = mounted.path(".terrace/snapshots/first/dir");
        assert_eq!(fs::read(old.join("file")).unwrap(), b"before");
        assert!(fs::read(old.join("gone")).unwrap() == pattern(50_000, 6));
        assert_eq!(fs::read(mounted.path("dir@@@first/file")).unwrap(), b"before");
        assert_eq!(fs::read(mounted.path("dir/file")).unwrap(), b"after, and longer");
        assert_eq!(
            fs::write(old.join("file"), b"x").unwrap_err().kind(),
            ErrorKind::ReadOnlyFilesystem
        );
        assert_eq!(
            fs::remove_file(old.join("file")).unwrap_err().kind(),
            ErrorKind::ReadOnlyFilesystem
        );
        assert_eq!(
            fs::create_dir(mounted.path(".terrace")).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        let names: Vec<_> = fs::read_dir(&old)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 2);
        let listed: Vec<_> = fs::read_dir(mounted.path(".terrace/snapshots"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(listed, ["first"]);
    });
}

#[test]
fn users_are_kept_apart() {
    with_both(|mounted| {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::set_permissions(mounted.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let path = mounted.path("secret");
        fs::write(&path, b"secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let open = mounted.path("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        // The identity for filesystem checks is that of a thread alone.
        // SAFETY: plain system calls; the thread ends right after.
        let (secret, made) = std::thread::spawn(move || unsafe {
            libc::setfsgid(1000);
            libc::setfsuid(1000);
            (fs::read(path), fs::write(open.join("mine"), b"mine"))
        })
        .join()
        .unwrap();
        assert_eq!(secret.unwrap_err().kind(), ErrorKind::PermissionDenied);
        // The directory above the mount is closed to others in some environments; then nothing could be made.
        if made.is_ok() {
            let status = fs::metadata(mounted.path("open/mine")).unwrap();
            assert_eq!((status.uid(), status.gid()), (1000, 1000));
        }
    });
}

#[test]
fn a_volume_is_one_file_of_fixed_size() {
    with_mount("volume", |mounted| {
        let path = mounted.path("volume");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        assert_eq!(file.metadata().unwrap().len(), 64 << 20);
        let mut space = vec![0_u8; (1 << 20) + 4096];
        let start = space.as_ptr().align_offset(4096);
        let part = &mut space[start..start + (1 << 20)];
        part.copy_from_slice(&pattern(1 << 20, 8));
        file.write_all_at(part, 3 << 20).unwrap();
        file.sync_all().unwrap();
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, (3 << 20) + 4096, 8192).unwrap();
        part.fill(1);
        file.read_exact_at(part, 3 << 20).unwrap();
        let mut expected = pattern(1 << 20, 8);
        expected[4096..4096 + 8192].fill(0);
        assert!(*part == expected);
        assert!(file.write_at(part, 64 << 20).is_err());
        assert!(file.set_len(1 << 20).is_err());
        assert!(fs::write(mounted.path("other"), b"x").is_err());
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 1);
    });
}
