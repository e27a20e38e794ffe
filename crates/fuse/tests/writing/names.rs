//! Names: linked, renamed, exchanged, removed while open, listed; and as a snapshot shows them.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::Path,
};

use super::content::{pattern, with_both};
use crate::support::{CACHES, with_mount};

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
        let _kept = CACHES.read();
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
