//! `chattr` and `lsattr`: what the flags forbid is forbidden as on ext4, for root too, and they stay.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, PermissionsExt, symlink},
    },
    path::Path,
};

use crate::support::{
    Mounted,
    actor::{ALL_CAPABILITIES, Actor, CAP_LINUX_IMMUTABLE},
    ext4::Ext4,
    with_mount,
};

const GET: libc::Ioctl = 0x8008_6601_u32 as libc::Ioctl;
const SET: libc::Ioctl = 0x4008_6602_u32 as libc::Ioctl;
const GET_XATTR: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
const SET_XATTR: libc::Ioctl = 0x401c_5820_u32 as libc::Ioctl;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NO_DUMP: u32 = 0x40;
const NO_ACCESS_TIME: u32 = 0x80;
const ALL: u32 = IMMUTABLE | APPEND | NO_DUMP | NO_ACCESS_TIME;

fn asked<T>(path: &Path, command: libc::Ioctl, data: &mut T) -> io::Result<()> {
    let file = File::open(path)?;
    // SAFETY: the command reads or writes as many bytes as the data has.
    match unsafe { libc::ioctl(file.as_raw_fd(), command, std::ptr::from_mut(data)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn flags(path: &Path) -> u32 {
    let mut flags = 0_u32;
    asked(path, GET, &mut flags).unwrap();
    flags & ALL
}

/// Sets these and leaves others that there may be (ext4 has one for extents).
fn set(path: &Path, wanted: u32) -> io::Result<()> {
    let mut flags = 0_u32;
    asked(path, GET, &mut flags)?;
    asked(path, SET, &mut (flags & !ALL | wanted))
}

/// Something done to `file` in a directory in which there are also `other`, `directory`, and `empty` in that.
type Deed = (&'static str, fn(&Path) -> io::Result<()>);

fn written(path: &Path, append: bool) -> io::Result<()> {
    use io::Write;
    let mut file = OpenOptions::new().write(true).append(append).open(path)?;
    file.write_all(b"more")
}

fn fallocated(path: &Path, mode: i32) -> io::Result<()> {
    let file = OpenOptions::new().append(true).open(path)?;
    // SAFETY: plain system call.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 100) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn with_xattr(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::setxattr(
        path,
        "user.color",
        b"green",
        rustix::fs::XattrFlags::empty(),
    )?)
}

const DEEDS: &[Deed] = &[
    ("read", |file| fs::read(file).map(drop)),
    ("write", |file| written(file, false)),
    ("append", |file| written(file, true)),
    ("truncate", |file| {
        OpenOptions::new().write(true).truncate(true).open(file).map(drop)
    }),
    ("fallocate", |file| fallocated(file, libc::FALLOC_FL_KEEP_SIZE)),
    ("punch", |file| {
        fallocated(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
    }),
    ("chmod", |file| {
        fs::set_permissions(file, fs::Permissions::from_mode(0o711))
    }),
    ("chown", |file| std::os::unix::fs::chown(file, Some(12), Some(34))),
    ("touch", |file| {
        Ok(rustix::fs::utimensat(
            rustix::fs::CWD,
            file,
            &NOW,
            rustix::fs::AtFlags::empty(),
        )?)
    }),
    ("set times", |file| {
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        File::open(file)?.set_times(times)
    }),
    ("setxattr", with_xattr),
    ("removexattr", |file| {
        Ok(rustix::fs::removexattr(file, "user.old")?)
    }),
    ("link", |file| fs::hard_link(file, file.with_file_name("linked"))),
    ("rename", |file| fs::rename(file, file.with_file_name("renamed"))),
    ("rename onto", |file| {
        fs::rename(file.with_file_name("other"), file)
    }),
    ("exchange", |file| {
        let (cwd, other) = (rustix::fs::CWD, file.with_file_name("other"));
        Ok(rustix::fs::renameat_with(
            cwd,
            file,
            cwd,
            other,
            rustix::fs::RenameFlags::EXCHANGE,
        )?)
    }),
    ("unlink", |file| fs::remove_file(file)),
    ("create in", |file| {
        File::create(file.with_file_name("directory/new")).map(drop)
    }),
    ("mkdir in", |file| {
        fs::create_dir(file.with_file_name("directory/new"))
    }),
    ("symlink in", |file| {
        symlink("to", file.with_file_name("directory/new"))
    }),
    ("link in", |file| {
        fs::hard_link(file.with_file_name("other"), file.with_file_name("directory/new"))
    }),
    ("rename into", |file| {
        fs::rename(file.with_file_name("other"), file.with_file_name("directory/new"))
    }),
    ("unlink in", |file| {
        fs::remove_file(file.with_file_name("directory/empty"))
    }),
    ("rename within", |file| {
        fs::rename(
            file.with_file_name("directory/empty"),
            file.with_file_name("directory/new"),
        )
    }),
    ("write in", |file| {
        fs::write(file.with_file_name("directory/empty"), b"content")
    }),
    ("rmdir", |file| {
        fs::remove_file(file.with_file_name("directory/empty"))?;
        fs::remove_dir(file.with_file_name("directory"))
    }),
    ("chmod of the directory", |file| {
        fs::set_permissions(
            file.with_file_name("directory"),
            fs::Permissions::from_mode(0o711),
        )
    }),
];

const NOW: rustix::fs::Timestamps = rustix::fs::Timestamps {
    last_access: rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    },
    last_modification: rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    },
};

/// What comes of every deed with these flags on the file and the directory: 0 or an error number.
fn outcomes(root: &Path) -> Vec<(String, i32)> {
    let mut all = Vec::new();
    for wanted in [0, IMMUTABLE, APPEND] {
        for (name, deed) in DEEDS {
            let place = root.join("place");
            fs::create_dir(&place).unwrap();
            let (file, directory) = (place.join("file"), place.join("directory"));
            fs::write(&file, vec![1; 10_000]).unwrap();
            rustix::fs::setxattr(&file, "user.old", b"1", rustix::fs::XattrFlags::empty()).unwrap();
            fs::write(place.join("other"), b"other").unwrap();
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("empty"), b"").unwrap();
            for path in [&file, &directory] {
                set(path, wanted).unwrap();
                assert_eq!(flags(path), wanted);
            }
            let outcome = deed(&file).map_or_else(|error| error.raw_os_error().unwrap(), |()| 0);
            all.push((format!("{name} with {wanted:x}"), outcome));
            for path in [&file, &directory, &place.join("renamed"), &place.join("other")] {
                if path.exists() {
                    set(path, 0).unwrap();
                }
            }
            fs::remove_dir_all(&place).unwrap();
        }
    }
    all
}

#[test]
fn what_flags_forbid_is_forbidden_as_on_ext4() {
    with_mount("dataset", |mounted: &mut Mounted| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root");
        }
        let seen = outcomes(&mounted.path(""));
        let of = |words: &str| seen.iter().find(|(found, _)| found == words).unwrap().1;
        for refused in [
            "write with 10",
            "append with 10",
            "unlink with 10",
            "write with 20",
            "create in with 10",
        ] {
            assert_eq!(of(refused), libc::EPERM, "{refused}");
        }
        for done in [
            "append with 20",
            "create in with 20",
            "write with 0",
            "read with 10",
        ] {
            assert_eq!(of(done), 0, "{done}");
        }
        let Some(ext4) = Ext4::mounted() else { return };
        assert_eq!(seen, outcomes(&ext4.root()));
    });
}

#[test]
fn flags_stay_and_are_inherited_and_only_some_may_set_them() {
    with_mount("dataset", |mounted: &mut Mounted| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root");
        }
        fs::set_permissions(mounted.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let path = mounted.path("file");
        fs::write(&path, b"content").unwrap();
        set(&path, NO_DUMP | IMMUTABLE).unwrap();
        // What a snapshot keeps, it keeps with its flags.
        let _ = fs::metadata(mounted.path("@@take flagged"));
        assert_eq!(
            flags(&mounted.path(".terrace/snapshots/flagged/file")),
            NO_DUMP | IMMUTABLE
        );
        let mut xattr = [0_u32; 7];
        asked(&path, GET_XATTR, &mut xattr).unwrap();
        assert_eq!(xattr, [0x88, 0, 0, 0, 0, 0, 0]);
        asked(&path, SET_XATTR, &mut [0x10_u32 | 0x40, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(flags(&path), APPEND | NO_ACCESS_TIME);
        let refused = |error: io::Result<()>| error.unwrap_err().raw_os_error().unwrap();
        assert_eq!(
            refused(asked(&path, SET, &mut 0x1_u32)),
            libc::EOPNOTSUPP,
            "it is not kept"
        );
        assert_eq!(
            refused(asked(&path, SET_XATTR, &mut [0_u32, 0, 0, 5, 0, 0, 0])),
            libc::EOPNOTSUPP,
            "there are no projects"
        );
        let without = Actor {
            name: "root without CAP_LINUX_IMMUTABLE",
            uid: 0,
            gid: 0,
            groups: &[],
            capabilities: Some(ALL_CAPABILITIES & !CAP_LINUX_IMMUTABLE),
        };
        assert_eq!(refused(without.act(|| set(&path, 0))), libc::EPERM);
        set(&path, 0).unwrap();
        without.act(|| set(&path, NO_DUMP)).unwrap();
        let directory = mounted.path("directory");
        fs::create_dir(&directory).unwrap();
        set(&directory, NO_DUMP | NO_ACCESS_TIME | APPEND).unwrap();
        fs::create_dir(directory.join("below")).unwrap();
        assert_eq!(flags(&directory.join("below")), NO_DUMP | NO_ACCESS_TIME);
        set(&directory, 0).unwrap();
        // A file that was open before takes no more either.
        let open = OpenOptions::new().write(true).open(&path).unwrap();
        set(&path, IMMUTABLE).unwrap();
        assert_eq!(
            open.write_all_at(b"x", 0).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        set(&path, 0).unwrap();
    });
}
