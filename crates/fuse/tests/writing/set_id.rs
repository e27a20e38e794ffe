//! Set-id bits and `security.capability` fall as Linux wants it, whoever changes a file and by whichever call, and this is seen at
//! once: by who asks for the mode alone, and by who runs the file. Each cell is compared with the rule of the kernel
//! (`setattr_should_drop_suidgid`) and, where one can be mounted, with an ext4.

#[path = "set_id/calls.rs"]
mod calls;

use std::{
    fs::{self, File},
    io::Read,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};

use self::calls::{CALLS, Call, EMPTYING, PADDING_BYTES, PROGRAM_BYTES};
use crate::support::{
    Mounted,
    actor::{ALL_CAPABILITIES, Actor, CAP_FSETID},
    ext4::Ext4,
    with_mount,
};

const OWNER: u32 = 1001;
const GROUP: u32 = 500;
const CAPABILITY: &str = "security.capability";
/// `cap_net_raw=ep`, revision 2.
const CAPABILITY_VALUE: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const fn actor(name: &'static str, uid: u32, gid: u32, groups: &'static [u32]) -> Actor {
    Actor {
        name,
        uid,
        gid,
        groups,
        capabilities: None,
    }
}

const ACTORS: [Actor; 7] = [
    actor("owner", OWNER, OWNER, &[]),
    actor("member", 1002, 1002, &[GROUP, 7]),
    actor("primary member", 1002, GROUP, &[]),
    actor("other", 1003, 1003, &[]),
    actor("root", 0, 0, &[]),
    Actor {
        capabilities: Some(ALL_CAPABILITIES & !CAP_FSETID),
        ..actor("root without CAP_FSETID", 0, 0, &[])
    },
    Actor {
        capabilities: Some(CAP_FSETID),
        ..actor("other with CAP_FSETID", 1003, 1003, &[])
    },
];

/// A mode, and whether the file has a capability as well.
const FILES: [(u32, bool); 6] = [
    (0o4777, false),
    (0o2777, false),
    (0o6777, true),
    (0o2767, false),
    (0o6767, false),
    (0o777, true),
];

/// What is seen of a file afterwards.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    has_capability: bool,
    /// User and group that somebody else becomes by running it, where it still is a program.
    runs_as: Option<(u32, u32)>,
}

/// The mode, of which nothing else is asked: so the kernel answers from what it keeps.
fn mode_of(path: &Path) -> u32 {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let status = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(status.stx_mode) & 0o7777
}

fn has_capability(path: &Path) -> bool {
    rustix::fs::getxattr(path, CAPABILITY, &mut [0_u8; 64][..]).is_ok()
}

/// Runs it as somebody who has nothing to do with it.
fn runs_as(path: &Path) -> (u32, u32) {
    let output = loop {
        match Command::new(path).uid(1004).gid(1004).output() {
            Ok(output) => break output,
            // A process that another test just begins has, for a moment, copies of our files that were open for writing.
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => std::thread::yield_now(),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    };
    assert!(output.status.success(), "{output:?}");
    // "uid=1004 gid=1004 euid=1001(name) egid=500 groups=...": effective ones only where they differ.
    let text = String::from_utf8(output.stdout).unwrap();
    let id = |names: [&str; 2]| {
        let word = |name| {
            text.split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(name))
        };
        let digits = names.into_iter().find_map(word).unwrap();
        digits.split('(').next().unwrap().parse().unwrap()
    };
    (id(["euid=", "uid="]), id(["egid=", "gid="]))
}

/// The rule.
fn expected(actor: &Actor, call: &Call, (mode, has_capability): (u32, bool)) -> (u32, bool) {
    if call.is_mapping {
        return (mode, has_capability);
    }
    let mut left = mode;
    if !actor.has(CAP_FSETID) {
        left &= !0o4000;
        if mode & 0o010 != 0 || !actor.is_in(GROUP) {
            left &= !0o2000;
        }
    }
    (left, false)
}

/// Makes the file, has the kernel know it well, makes the call, and looks.
fn cell(root: &Path, actor: &Actor, call: &Call, (mode, with_capability): (u32, bool)) -> Seen {
    let path = root.join("program");
    let _ = fs::remove_file(&path);
    fs::copy(root.join("source"), &path).unwrap();
    std::os::unix::fs::chown(&path, Some(OWNER), Some(GROUP)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    if with_capability {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, CAPABILITY, &CAPABILITY_VALUE, flags).unwrap();
    }
    assert_eq!((mode_of(&path), has_capability(&path)), (mode, with_capability));
    let made = actor.act(|| (call.make)(&path));
    made.unwrap_or_else(|error| panic!("{} by {}: {error}", call.name, actor.name));
    // Whichever looks first has the kernel ask for the attributes, for both.
    let run = || (call.name != EMPTYING && mode & 0o6000 != 0).then(|| runs_as(&path));
    let (left, runs_as) = match actor.gid % 2 {
        0 => (mode_of(&path), run()),
        _ => {
            let runs_as = run();
            (mode_of(&path), runs_as)
        }
    };
    Seen {
        mode: left,
        has_capability: has_capability(&path),
        runs_as,
    }
}

/// A place for the cells, with a program in it that tells who it runs as.
fn prepare(root: &Path) {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let mut program = Vec::new();
    File::open("/usr/bin/id")
        .unwrap()
        .read_to_end(&mut program)
        .unwrap();
    assert!((program.len() as u64) < PROGRAM_BYTES);
    program.resize((PROGRAM_BYTES + PADDING_BYTES) as usize, 0);
    fs::write(root.join("source"), program).unwrap();
}

fn wrong_cells(root: &Path, what: &str, calls: &[Call]) -> Vec<String> {
    prepare(root);
    let mut wrong = Vec::new();
    for call in calls {
        for actor in &ACTORS {
            for file in FILES {
                let seen = cell(root, actor, call, file);
                let (mode, has_capability) = expected(actor, call, file);
                let ran = |(user, group)| {
                    let by_group = mode & 0o2010 == 0o2010;
                    user == if mode & 0o4000 != 0 { OWNER } else { 1004 }
                        && group == if by_group { GROUP } else { 1004 }
                };
                if (seen.mode, seen.has_capability) != (mode, has_capability) || !seen.runs_as.is_none_or(ran)
                {
                    wrong.push(format!(
                        "{what}: {} by {} on {:o}, capability {}: {:o}, capability {}, runs as {:?}; wanted {mode:o}, {has_capability}",
                        call.name, actor.name, file.0, file.1, seen.mode, seen.has_capability, seen.runs_as
                    ));
                }
            }
        }
    }
    wrong
}

#[test]
fn the_rule_of_set_id_bits_is_that_of_ext4() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    let Some(ext4) = Ext4::mounted() else { return };
    let wrong = wrong_cells(&ext4.root(), "ext4", CALLS);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check_mount(calls: fn() -> &'static [Call]) -> impl Fn(&mut Mounted) {
    move |mounted| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root");
        }
        let wrong = wrong_cells(&mounted.path(""), "terrace", calls());
        assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
    }
}

// In two halves, each with the time that a test has.
#[test]
fn set_id_bits_and_capabilities_fall_with_every_write() {
    with_mount("dataset", |mounted| {
        check_mount(|| &CALLS[..CALLS.len() / 2])(mounted)
    });
}

#[test]
fn set_id_bits_and_capabilities_fall_with_every_other_change_of_content() {
    with_mount("dataset", |mounted| {
        check_mount(|| &CALLS[CALLS.len() / 2..])(mounted)
    });
}

/// What becomes of modes as owner and group change, of files, pipes and directories.
fn changes_of_owner(root: &Path) -> Vec<(String, u32)> {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let in_other_group = Actor {
        groups: &[501],
        ..ACTORS[0]
    };
    let in_both_groups = Actor {
        groups: &[GROUP, 501],
        ..ACTORS[0]
    };
    let changes = [
        (ACTORS[4], Some(1005), None),
        (ACTORS[4], None, Some(501)),
        (ACTORS[5], Some(1005), Some(501)),
        (in_other_group, None, Some(501)),
        (in_both_groups, None, Some(501)),
        (in_other_group, Some(OWNER), None),
    ];
    let mut seen = Vec::new();
    for (actor, uid, gid) in changes {
        for (kind, make) in KINDS {
            for mode in [0o6777, 0o4767, 0o2767] {
                let path = root.join(kind);
                make(&path).unwrap();
                std::os::unix::fs::chown(&path, Some(OWNER), Some(GROUP)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                actor.act(|| std::os::unix::fs::chown(&path, uid, gid)).unwrap();
                let words = format!(
                    "{kind} {mode:o} to {uid:?} {gid:?} by {} {:?}",
                    actor.name, actor.groups
                );
                seen.push((words, mode_of(&path)));
                fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
            }
        }
    }
    // And with chmod: setgid does not stick for who is not in the group.
    for actor in &ACTORS {
        let path = root.join("file");
        fs::write(&path, b"content").unwrap();
        std::os::unix::fs::chown(&path, Some(actor.uid), Some(GROUP)).unwrap();
        for mode in [0o6777, 0o2767] {
            actor
                .act(|| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
                .unwrap();
            seen.push((format!("chmod {mode:o} by {}", actor.name), mode_of(&path)));
        }
    }
    seen
}

type Kind = (&'static str, fn(&Path) -> std::io::Result<()>);

const KINDS: [Kind; 3] = [
    ("file", |path| fs::write(path, b"content")),
    ("directory", |path| fs::create_dir(path)),
    ("pipe", |path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        Ok(rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0)?)
    }),
];

#[test]
fn set_id_bits_follow_a_change_of_owner_as_on_ext4() {
    with_mount("dataset", |mounted: &mut Mounted| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root");
        }
        let seen = changes_of_owner(&mounted.path(""));
        let of = |words: &str| seen.iter().find(|(found, _)| found == words).unwrap().1;
        assert_eq!(of("file 6777 to Some(1005) None by root []"), 0o777);
        assert_eq!(of("file 2767 to Some(1005) None by root []"), 0o2767);
        assert_eq!(of("directory 6777 to Some(1005) None by root []"), 0o6777);
        assert_eq!(of("chmod 6777 by other"), 0o4777);
        let Some(ext4) = Ext4::mounted() else { return };
        assert_eq!(seen, changes_of_owner(&ext4.root()));
    });
}
