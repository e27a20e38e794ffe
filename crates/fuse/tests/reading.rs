//! A mount that can only be read: what programs see of it, its past, and how it behaves when it is killed, unmounted or
//! served by code that blocks.

#[allow(dead_code, clippy::unwrap_used)]
mod support;

use std::{
    fs,
    io::{ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    process::Command,
    sync::Arc,
};

use support::{
    Mounted, Transport,
    library::{BIG_BYTES, BOOKS, Library, OldLibrary, big_byte},
    with_mount,
};
use terrace_fuse::{Content, MOUNT_KIND, MountOptions, clear_stale, mount, mount_at};

#[test]
fn serve() {
    support::serve(|content, directory| {
        assert_eq!(content, "library");
        let options = MountOptions {
            read_only: true,
            ..support::options("pool/library")
        };
        let library = Content::ReadOnly(Library::new(b"hello, world\n"));
        mount(directory, library, Some(Arc::new(OldLibrary)), &options)
    });
}

#[test]
fn a_mount_at_rest_gives_back_the_memory_of_long_requests() {
    with_mount("library", |mounted| {
        let memory = |mounted: &mut Mounted| mounted.ask("memory").parse::<u64>().unwrap();
        let before = memory(mounted);
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let big = mounted.path("big");
                std::thread::spawn(move || {
                    let mut options = fs::OpenOptions::new();
                    let file = options.read(true).custom_flags(libc::O_DIRECT).open(big).unwrap();
                    let mut space = vec![0; (1 << 20) + 4096];
                    let start = space.as_ptr().align_offset(4096);
                    assert_eq!(
                        file.read_at(&mut space[start..start + (1 << 20)], 0).unwrap(),
                        1 << 20
                    );
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        let after = memory(mounted);
        assert!(after >= before + (1 << 20), "{before} and {after}");
        // Threads that were started meanwhile stay, with a few pages each; this ends when the memory is back.
        while memory(mounted) > before + (512 << 10) {
            std::thread::yield_now();
        }
        // What comes next is served as ever.
        let read = fs::read(mounted.path("big")).unwrap();
        assert!(
            read.iter()
                .enumerate()
                .all(|(at, byte)| *byte == big_byte(at as u64))
        );
    });
}

#[test]
fn files_links_and_attributes_are_shown() {
    with_mount("library", |mounted| {
        assert_eq!(fs::read(mounted.path("hello")).unwrap(), b"hello, world\n");
        assert_eq!(fs::read_link(mounted.path("link")).unwrap(), Path::new("hello"));
        assert_eq!(fs::read(mounted.path("link")).unwrap(), b"hello, world\n");
        let status = fs::metadata(mounted.path("hello")).unwrap();
        assert_eq!(
            (status.ino(), status.uid(), status.gid(), status.mode()),
            (2, 12, 34, 0o100644)
        );
        assert_eq!((status.mtime(), status.mtime_nsec()), (-1, 123_456_789));
        assert_eq!(
            fs::metadata(mounted.path("nothing")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(
            fs::write(mounted.path("new"), b"x").unwrap_err().kind(),
            ErrorKind::ReadOnlyFilesystem
        );
        let entry = mount_at(&mounted.path("").canonicalize().unwrap())
            .unwrap()
            .unwrap();
        assert_eq!(
            (entry.kind.as_str(), entry.source.as_str()),
            (MOUNT_KIND, "pool/library")
        );
        assert_eq!(mounted.ask("connection"), entry.device.1.to_string());
    });
}

#[test]
fn birth_times_are_shown() {
    with_mount("library", |mounted| {
        let created = fs::metadata(mounted.path("hello")).unwrap().created();
        // Kernels before 6.6 do not ask for it.
        if let Ok(created) = created {
            let since = created.duration_since(std::time::UNIX_EPOCH).unwrap();
            assert_eq!((since.as_secs(), since.subsec_nanos()), (1_000_000_007, 5));
        }
    });
}

#[test]
fn a_large_file_reads_the_same_in_any_order_by_many_at_once() {
    with_mount("library", |mounted| {
        let path = mounted.path("big");
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len() as u64, BIG_BYTES);
        assert!(
            whole
                .iter()
                .zip(0..)
                .all(|(&byte, offset)| byte == big_byte(offset))
        );
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let path = &path;
                scope.spawn(move || {
                    let file = fs::File::open(path).unwrap();
                    let mut part = [0; 5000];
                    for step in 0..200_u64 {
                        let offset = (thread * 7919 + step * 104_729) % (BIG_BYTES - 5000);
                        file.read_exact_at(&mut part, offset).unwrap();
                        assert!(part.iter().zip(offset..).all(|(&byte, at)| byte == big_byte(at)));
                    }
                });
            }
        });
        let mut file = fs::File::open(&path).unwrap();
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), BIG_BYTES);
        assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    });
}

#[test]
fn a_large_directory_lists_each_name_once() {
    with_mount("library", |mounted| {
        for _ in 0..2 {
            let mut names: Vec<_> = fs::read_dir(mounted.path("shelf"))
                .unwrap()
                .map(|entry| {
                    let entry = entry.unwrap();
                    assert!(entry.metadata().unwrap().is_file());
                    entry.file_name().into_string().unwrap()
                })
                .collect();
            names.sort_unstable();
            let expected: Vec<_> = (0..BOOKS).map(|book| format!("book {book:04}")).collect();
            assert_eq!(names, expected);
        }
        assert_eq!(fs::read(mounted.path("shelf/book 4321")).unwrap(), b"book 4321");
    });
}

#[test]
fn opening_reading_and_closing_again_costs_few_messages() {
    with_mount("library", |mounted| {
        let path = mounted.path("hello");
        fs::read(&path).unwrap();
        let before: u64 = mounted.ask("requests").parse().unwrap();
        for _ in 0..100 {
            fs::read(&path).unwrap();
        }
        let after: u64 = mounted.ask("requests").parse().unwrap();
        // Everything is remembered by the kernel: nothing is opened, looked up, read or closed over the wire. The
        // attributes may be asked for, since reading changes the time of access.
        assert!(after - before < 200, "{} messages for 100 reads", after - before);
    });
}

#[test]
fn extended_attributes_are_shown() {
    with_mount("library", |mounted| {
        let path = std::ffi::CString::new(mounted.path("hello").to_str().unwrap()).unwrap();
        let get = |name: &std::ffi::CStr, size: usize| {
            let mut value = vec![0_u8; size];
            // SAFETY: the buffer has `size` bytes, the strings end with a NUL.
            let length =
                unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), size) };
            let error = std::io::Error::last_os_error().raw_os_error();
            if length < 0 {
                Err(error.unwrap())
            } else {
                Ok((length as usize, value))
            }
        };
        assert_eq!(get(c"user.colour", 0).unwrap().0, 4);
        assert_eq!(get(c"user.colour", 10).unwrap().1[..4], *b"blue");
        assert_eq!(get(c"user.colour", 2).unwrap_err(), libc::ERANGE);
        assert_eq!(get(c"user.size", 10).unwrap_err(), libc::ENODATA);
    });
}

#[test]
fn the_past_is_reached_by_names() {
    with_mount("library", |mounted| {
        let names: Vec<_> = fs::read_dir(mounted.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(names.iter().all(|name| name != ".terrace"));
        let snapshots = mounted.path(".terrace/snapshots");
        let listed: Vec<_> = fs::read_dir(&snapshots)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(listed, ["first"]);
        for old in [
            ".terrace/snapshots/first/hello",
            "hello@@10",
            "hello@@-1h",
            ".terrace/snapshots/first/link",
        ] {
            assert_eq!(fs::read(mounted.path(old)).unwrap(), b"good old days\n", "{old}");
        }
        let old = fs::metadata(mounted.path("hello@@10")).unwrap();
        assert_ne!(old.ino(), fs::metadata(mounted.path("hello")).unwrap().ino());
        assert_eq!(
            old.ino(),
            fs::metadata(snapshots.join("first/hello")).unwrap().ino()
        );
        let books = fs::read_dir(mounted.path("shelf@@10")).unwrap().count();
        assert_eq!(books as u64, BOOKS);
        for missing in [
            "hello@@11",
            "nothing@@10",
            ".terrace/other",
            ".terrace/snapshots/second",
        ] {
            assert_eq!(
                fs::metadata(mounted.path(missing)).unwrap_err().kind(),
                ErrorKind::NotFound,
                "{missing}"
            );
        }
        assert_eq!(fs::metadata(mounted.path("shelf/@@10")).unwrap().mode(), 0o40755);
    });
}

#[test]
fn sizes_are_shown() {
    with_mount("library", |mounted| {
        let output = Command::new("stat")
            .args(["-f", "-c", "%S %b %a %l"])
            .arg(mounted.path(""))
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap().trim(),
            "4096 262144 131072 255"
        );
    });
}

#[test]
fn a_request_that_blocks_holds_up_nobody() {
    with_mount("library", |mounted| {
        let path = mounted.path("waits");
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8)
                .map(|_| {
                    let path = &path;
                    scope.spawn(move || fs::read(path).unwrap())
                })
                .collect();
            // Served while the others wait: by other threads, called in when the first one got stuck.
            for book in 0..200 {
                assert_eq!(
                    fs::read(mounted.path(&format!("shelf/book {book:04}")))
                        .unwrap()
                        .len(),
                    9
                );
            }
            assert!(fs::metadata(mounted.path("let it go")).is_err());
            for reader in readers {
                assert_eq!(reader.join().unwrap(), b"let it go!");
            }
        });
    });
}

#[test]
fn a_mount_in_use_is_not_unmounted_but_lazily() {
    with_mount("library", |mounted| {
        let file = fs::File::open(mounted.path("big")).unwrap();
        assert!(mounted.ask("unmount").contains("in use"));
        assert_eq!(fs::read(mounted.path("hello")).unwrap(), b"hello, world\n");
        assert_eq!(mounted.ask("unmount lazily"), "ok");
        assert!(!mounted.path("hello").exists());
        let mut byte = [0];
        file.read_exact_at(&mut byte, BIG_BYTES - 1).unwrap();
        assert_eq!(byte[0], big_byte(BIG_BYTES - 1));
        drop(file);
        assert_eq!(mounted.ask("ended"), "true");
    });
}

#[test]
fn unmounting_under_load_ends_cleanly() {
    with_mount("library", |mounted| {
        let path = mounted.path("shelf");
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let path = &path;
                    scope.spawn(move || {
                        let mut served = 0_u64;
                        for book in 0.. {
                            let name = format!("book {:04}", (thread * 1237 + book) % BOOKS);
                            if fs::read(path.join(name)).is_err() {
                                break;
                            }
                            served += 1;
                        }
                        served
                    })
                })
                .collect();
            // In use again and again: only the lazy way is certain to succeed.
            while mounted.ask("requests").parse::<u64>().unwrap() < 2000 {}
            assert_eq!(mounted.ask("unmount lazily"), "ok");
            for worker in workers {
                assert!(worker.join().unwrap() > 0);
            }
        });
        assert_eq!(mounted.ask("ended"), "true");
        mounted.unmount();
    });
}

#[test]
fn an_unused_mount_is_unmounted_and_all_is_forgotten() {
    with_mount("library", |mounted| {
        fs::read(mounted.path("hello")).unwrap();
        fs::metadata(mounted.path("hello@@10")).unwrap();
        assert_ne!(mounted.ask("known"), "0");
        mounted.unmount();
        assert_eq!(mounted.ask("ended"), "true");
        assert_eq!(mounted.ask("known"), "0");
        assert!(!mounted.path("hello").exists());
    });
}

#[test]
fn what_a_killed_server_leaves_is_found_and_cleared() {
    let Some(mounted) = Mounted::start("library", Transport::Rings) else {
        return;
    };
    assert!(
        !clear_stale(&mounted.path("")).unwrap(),
        "a mount that is served is left alone"
    );
    assert!(mounted.path("hello").exists());
    let directory = mounted.kill();
    let error = fs::read(directory.path().join("hello")).unwrap_err();
    // With rings the kernel lets go of the dead process's a moment later: whoever comes first is told of the end, or
    // that a dying ring took the request with it.
    let told = error.raw_os_error();
    assert!(
        matches!(told, Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)),
        "{error}"
    );
    assert!(clear_stale(directory.path()).unwrap());
    assert!(!clear_stale(directory.path()).unwrap());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut again = Mounted::start_at("library", Transport::Rings, directory).unwrap();
    assert_eq!(fs::read(again.path("hello")).unwrap(), b"hello, world\n");
    again.unmount();
}
