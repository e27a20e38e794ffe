//! Attributes, extended attributes, and who may do what.

use std::{
    fs::{self, OpenOptions},
    io::ErrorKind,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use super::content::{pattern, with_both};

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
