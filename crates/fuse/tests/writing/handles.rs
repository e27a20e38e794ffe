//! File handles: good when the kernel has forgotten what they name, `ESTALE` when that is gone, never another file.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::support::{CACHES, Mounted, handle::Handle, with_mount};

/// Has the kernel forget all that is not open; false where that is not allowed.
fn forget(mounted: &mut Mounted) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let _alone = CACHES.write();
        if fs::write("/proc/sys/vm/drop_caches", "2").is_err() {
            println!("skipped: /proc/sys/vm/drop_caches cannot be written here");
            return false;
        }
        // Word of it comes later.
        if mounted.ask("known") == "0" {
            return true;
        }
        assert!(Instant::now() < until, "the kernel does not forget");
        std::thread::yield_now();
    }
}

fn text(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Where an open file or directory lies, as the kernel sees it.
fn place(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

#[test]
fn handles_stay_good_when_the_kernel_has_forgotten() {
    with_mount("dataset", |mounted| {
        let deep = (0..20).fold(mounted.path(""), |path, level| path.join(format!("d{level}")));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "deep").unwrap();
        fs::write(mounted.path("file"), "flat").unwrap();
        fs::hard_link(mounted.path("file"), deep.join("second")).unwrap();
        symlink("nowhere", mounted.path("link")).unwrap();
        let of = |path: PathBuf| Handle::of(&path).unwrap();
        let handles = [
            of(mounted.path("file")),
            of(deep.join("second")),
            of(deep.join("file")),
        ];
        let (directory, link, top) = (of(deep.clone()), of(mounted.path("link")), of(mounted.path("")));
        let numbers = (
            fs::metadata(&deep).unwrap().ino(),
            fs::metadata(mounted.path("file")).unwrap().ino(),
        );
        if !forget(mounted) {
            return;
        }
        let root = File::open(mounted.path("")).unwrap();
        let opened = handles.map(|handle| handle.open(&root, libc::O_RDWR).unwrap());
        assert_eq!(opened[0].metadata().unwrap().ino(), numbers.1);
        assert_eq!(opened.map(text), ["flat", "flat", "deep"]);
        let listed = directory.open(&root, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        assert_eq!(listed.metadata().unwrap().ino(), numbers.0);
        assert_eq!(place(&listed), deep, "it is connected to the root");
        assert_eq!(names(&place(&listed)), ["file", "second"]);
        let opened = link.open(&root, libc::O_PATH).unwrap();
        assert!(opened.metadata().unwrap().file_type().is_symlink());
        assert_eq!(
            top.open(&root, libc::O_RDONLY).unwrap().metadata().unwrap().ino(),
            1
        );
        // A name gone or changed is nothing to a handle, as long as there is another.
        let [first, second] = [of(mounted.path("file")), of(deep.clone())];
        fs::remove_file(mounted.path("file")).unwrap();
        fs::rename(mounted.path("d0"), mounted.path("moved")).unwrap();
        drop((root, listed, opened));
        assert!(forget(mounted));
        let root = File::open(mounted.path("")).unwrap();
        assert_eq!(text(first.open(&root, libc::O_RDONLY).unwrap()), "flat");
        let opened = second.open(&root, libc::O_RDONLY).unwrap();
        assert!(
            place(&opened).starts_with(mounted.path("moved")),
            "{:?}",
            place(&opened)
        );
    });
}

#[test]
fn handle_of_a_deleted_object_is_stale() {
    with_mount("dataset", |mounted| {
        fs::write(mounted.path("file"), "content").unwrap();
        fs::write(mounted.path("open"), "content").unwrap();
        fs::create_dir(mounted.path("directory")).unwrap();
        let of = |name: &str| Handle::of(&mounted.path(name)).unwrap();
        let (file, open, directory) = (of("file"), of("open"), of("directory"));
        let kept = File::open(mounted.path("open")).unwrap();
        let root = File::open(mounted.path("")).unwrap();
        assert_eq!(file.of_another_generation().refusal(&root), Some(libc::ESTALE));
        fs::remove_file(mounted.path("file")).unwrap();
        fs::remove_file(mounted.path("open")).unwrap();
        fs::remove_dir(mounted.path("directory")).unwrap();
        fs::write(mounted.path("file"), "another").unwrap();
        fs::create_dir(mounted.path("directory")).unwrap();
        for gone in [&file, &directory] {
            assert_eq!(gone.refusal(&root), Some(libc::ESTALE));
        }
        // As on ext4: what is open without a name is still there, until it is closed.
        assert_eq!(text(open.open(&root, libc::O_RDONLY).unwrap()), "content");
        drop(kept);
        // The kernel says so, of its own accord, a moment later.
        while open.refusal(&root).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(open.refusal(&root), Some(libc::ESTALE));
        drop(root);
        if !forget(mounted) {
            return;
        }
        let root = File::open(mounted.path("")).unwrap();
        for gone in [&file, &directory, &open, &file.of_another_generation()] {
            assert_eq!(gone.refusal(&root), Some(libc::ESTALE));
        }
        let again = Handle::of(&mounted.path("file")).unwrap();
        drop(root);
        assert!(forget(mounted));
        let root = File::open(mounted.path("")).unwrap();
        assert_eq!(again.of_another_generation().refusal(&root), Some(libc::ESTALE));
        assert_eq!(text(again.open(&root, libc::O_RDONLY).unwrap()), "another");
    });
}

#[test]
fn handles_into_past_states_stay_good() {
    with_mount("dataset", |mounted| {
        fs::create_dir_all(mounted.path("a/b")).unwrap();
        fs::write(mounted.path("a/b/file"), "old").unwrap();
        assert!(fs::metadata(mounted.path("@@take one")).is_ok());
        fs::write(mounted.path("a/b/file"), "new").unwrap();
        fs::write(mounted.path("a/b/later"), "new").unwrap();
        let snapshot = mounted.path(".terrace/snapshots/one");
        let past = [
            snapshot.join("a/b/file"),
            mounted.path("a/b/file@@@one"),
            mounted.path("a@@@one/b/file"),
        ];
        let files = past.each_ref().map(|path| Handle::of(path).unwrap());
        let directories = [
            snapshot.join("a/b"),
            mounted.path("a/b@@@one"),
            snapshot.clone(),
            mounted.path(".terrace/snapshots"),
            mounted.path(".terrace"),
        ];
        let numbers = directories
            .each_ref()
            .map(|path| fs::metadata(path).unwrap().ino());
        let handles = directories.each_ref().map(|path| Handle::of(path).unwrap());
        // The kernel keeps this list, without the hidden name.
        assert_eq!(names(&mounted.path("")), ["a"]);
        for turn in 0..3 {
            if !forget(mounted) {
                return;
            }
            let root = File::open(mounted.path("")).unwrap();
            if turn == 1 {
                assert_eq!(names(&mounted.path("")), ["a"]);
            }
            for file in &files {
                assert_eq!(text(file.open(&root, libc::O_RDONLY).unwrap()), "old");
                assert_eq!(file.of_another_generation().refusal(&root), Some(libc::ESTALE));
            }
            let order: Vec<usize> = if turn == 2 {
                (0..5).rev().collect()
            } else {
                (0..5).collect()
            };
            for at in order {
                let opened = handles[at]
                    .open(&root, libc::O_RDONLY | libc::O_DIRECTORY)
                    .unwrap();
                assert_eq!(
                    opened.metadata().unwrap().ino(),
                    numbers[at],
                    "{:?}",
                    directories[at]
                );
                match at {
                    0 | 1 => assert_eq!(names(&place(&opened)), ["file"]),
                    2 => assert_eq!(names(&place(&opened)), ["a"]),
                    3 => assert_eq!(names(&place(&opened)), ["one"]),
                    _ => assert_eq!(names(&place(&opened)), ["snapshots"]),
                }
            }
            // Hidden it stays.
            assert_eq!(names(&mounted.path("")), ["a"]);
            assert_eq!(names(&mounted.path("")), ["a"]);
        }
    });
}
