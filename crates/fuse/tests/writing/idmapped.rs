//! A mount seen through another mapping of users (`mount_setattr` with MOUNT_ATTR_IDMAP), as containers use it.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt, PermissionsExt},
            process::CommandExt,
        },
    },
    path::Path,
    process::{Child, Command},
};

use crate::support::{Mounted, actor::Actor, with_mount};

/// On disk, and through the mapping.
const INSIDE: u32 = 1000;
const OUTSIDE: u32 = 2000;

/// A process with a user namespace of its own, which gives the mapping.
struct Namespace(Child);

impl Namespace {
    fn made() -> io::Result<Self> {
        let mut command = Command::new("sleep");
        command.arg("600");
        // SAFETY: a plain system call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::unshare(libc::CLONE_NEWUSER) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let this = Self(command.spawn()?);
        for map in ["uid_map", "gid_map"] {
            let lines = format!("0 0 1\n{INSIDE} {OUTSIDE} 1\n");
            fs::write(format!("/proc/{}/{map}", this.0.id()), lines)?;
        }
        Ok(this)
    }

    fn descriptor(&self) -> io::Result<File> {
        File::open(format!("/proc/{}/ns/user", self.0.id()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is at `from`, mounted at `to` as well, through the mapping; until this is dropped.
struct Mapped(CString);

impl Mapped {
    fn mounted(from: &Path, to: &Path, namespace: &Namespace) -> io::Result<Self> {
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
        let (from, to) = (path(from)?, path(to)?);
        let users = namespace.descriptor()?;
        let change = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_IDMAP,
            attr_clr: 0,
            propagation: 0,
            userns_fd: users.as_raw_fd() as u64,
        };
        let done = |result: libc::c_long| match result < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(result),
        };
        // SAFETY: paths end in a zero, the kernel reads one `mount_attr`, and all outlives the calls.
        unsafe {
            let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
            let tree = done(libc::syscall(
                libc::SYS_open_tree,
                libc::AT_FDCWD,
                from.as_ptr(),
                flags,
            ))?;
            let tree = OwnedFd::from_raw_fd(tree as i32);
            done(libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const change,
                size_of::<libc::mount_attr>(),
            ))?;
            done(libc::syscall(
                libc::SYS_move_mount,
                tree.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::MOVE_MOUNT_F_EMPTY_PATH,
            ))?;
        }
        Ok(Self(to))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the path ends in a zero.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

fn names_of_attributes(path: &Path) -> Vec<u8> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    names.truncate(length);
    names
}

#[test]
fn users_are_mapped_both_ways() {
    with_mount("dataset", |mounted: &mut Mounted| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root");
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release
            .split('.')
            .map(|number| number.parse::<u32>().unwrap_or(0));
        if (numbers.next(), numbers.next()) < (Some(6), Some(12)) {
            return println!("skipped: Linux {release} does not map users of FUSE mounts");
        }
        let namespace = match Namespace::made() {
            Ok(namespace) => namespace,
            Err(error) => return println!("skipped: no user namespaces here: {error}"),
        };
        let plain = mounted.path("");
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o777)).unwrap();
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mapped = place.path().join("mapped");
        fs::create_dir(&mapped).unwrap();
        let _mapped = Mapped::mounted(&plain, &mapped, &namespace).unwrap();
        let owners = |path: &Path| {
            let status = fs::metadata(path).unwrap();
            (status.uid(), status.gid())
        };
        let user = Actor {
            name: "user",
            uid: OUTSIDE,
            gid: OUTSIDE,
            groups: &[],
            capabilities: None,
        };
        // What is made through the mapping.
        user.act(|| fs::write(mapped.join("made"), b"content")).unwrap();
        user.act(|| fs::create_dir(mapped.join("directory"))).unwrap();
        for name in ["made", "directory"] {
            assert_eq!(owners(&plain.join(name)), (INSIDE, INSIDE), "{name}");
            assert_eq!(owners(&mapped.join(name)), (OUTSIDE, OUTSIDE), "{name}");
        }
        // What is given away through it, and who may use it then.
        fs::write(plain.join("given"), b"content").unwrap();
        fs::set_permissions(plain.join("given"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(user.act(|| fs::read(mapped.join("given"))).is_err());
        std::os::unix::fs::chown(mapped.join("given"), Some(OUTSIDE), Some(OUTSIDE)).unwrap();
        assert_eq!(owners(&plain.join("given")), (INSIDE, INSIDE));
        assert_eq!(user.act(|| fs::read(mapped.join("given"))).unwrap(), b"content");
        // Requests tell no user now; the rules that go by one hold all the same.
        let program = plain.join("made");
        let punch = |path: &Path| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: plain system call.
            assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 4) }, 0);
        };
        let write = |path: &Path| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(b"content", 0).unwrap();
        };
        for deed in [&punch as &(dyn Fn(&Path) + Sync), &write] {
            fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
            deed(&mapped.join("made"));
            assert_eq!(fs::metadata(&program).unwrap().mode() & 0o7777, 0o6777, "by root");
            user.act(|| deed(&mapped.join("made")));
            assert_eq!(
                fs::metadata(&program).unwrap().mode() & 0o7777,
                0o777,
                "by the user"
            );
        }
        rustix::fs::setxattr(&program, "trusted.t", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(names_of_attributes(&program), b"trusted.t\0");
        assert_eq!(user.act(|| names_of_attributes(&program)), b"");
    });
}
