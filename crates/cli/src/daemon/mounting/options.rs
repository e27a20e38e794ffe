//! The words of `-o` in `mount`: what each means here. Those of mount(8) and fstab are all known.
//!
//! Invariants: a word that means nothing here is refused by its name; one that has no effect is taken, and said to have
//! none; of two that contradict each other the later one counts.

use terrace_control::Failure;
use terrace_dataset::{At, Time};
use terrace_fuse::{MountEntry, MountOptions};

use crate::daemon::support::failed;

/// Shown where a word is not known.
const KNOWN: &str = "there are ro, at=TIME|@SNAPSHOT|CHECKPOINT, remount, allow_other, nosuid, nodev, noexec, nosymfollow, noatime, \
                     nodiratime, relatime, strictatime, lazytime, sync, dirsync, silent, context=…, ring=off, and what mount(8) and \
                     fstab take; 'terrace help mount' says what they do";

/// Words for who reads fstab, for mount(8), or for what is so here in any case.
const FOR_OTHERS: [&str; 13] = [
    "remount",
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "default_permissions",
    "nomand",
    "noiversion",
];
/// What the mount table shows and mount(8) gives back with a remount.
const OF_THE_TABLE: [&str; 8] = [
    "user_id=",
    "group_id=",
    "rootmode=",
    "fd=",
    "max_read=",
    "blksize=",
    "fsname=",
    "subtype=",
];
const LABELS: [&str; 4] = ["context=", "fscontext=", "defcontext=", "rootcontext="];

/// What the words of a mount mean.
pub(super) struct Understood {
    pub(super) options: MountOptions,
    /// The state to be shown, if not the present one.
    pub(super) at: Option<At>,
    /// Of words that were taken and have no effect.
    pub(super) notes: Vec<String>,
}

/// Whether words ask for a mount that is there to be changed.
pub(super) fn is_remount(words: &[String]) -> bool {
    words.iter().any(|word| word == "remount")
}

/// Whether the words make a mount read-only.
pub(super) fn is_read_only(words: &[String]) -> bool {
    let last = words.iter().rev().find(|word| *word == "ro" || *word == "rw");
    last.is_some_and(|word| word == "ro")
}

/// The words of a mount as the kernel's table has them: mount(8) changes options without asking whoever serves, where it
/// does not find our helper. Whether the mount alone is read-only is left out: by that the property `readonly` is shown.
pub(super) fn as_shown(words: &[String], entry: &MountEntry) -> Vec<String> {
    let (mount, whole) = (&entry.options, &entry.super_options);
    let flags = [
        ("ro", "rw", whole),
        ("sync", "async", whole),
        ("dirsync", "", whole),
        ("lazytime", "nolazytime", whole),
        ("nosuid", "suid", mount),
        ("nodev", "dev", mount),
        ("noexec", "exec", mount),
        ("noatime", "relatime", mount),
        ("nodiratime", "diratime", mount),
        ("nosymfollow", "symfollow", mount),
    ];
    let mut shown = words.to_vec();
    for (flag, opposite, table) in flags {
        let is_set = table.iter().any(|word| word == flag);
        let last = shown.iter().rev().find(|word| *word == flag || *word == opposite);
        let was_set = last.is_some_and(|word| word == flag);
        match (is_set, was_set) {
            (true, false) => shown = remounted(&shown, &[flag.to_owned()]),
            (false, true) if opposite.is_empty() => shown.retain(|word| word != flag),
            (false, true) => shown = remounted(&shown, &[opposite.to_owned()]),
            _ => {}
        }
    }
    shown
}

/// The words of a mount after a remount with others: each counts from now on, and those that say nothing of the mount
/// itself are not kept.
pub(super) fn remounted(before: &[String], given: &[String]) -> Vec<String> {
    let passing =
        |word: &str| word == "remount" || OF_THE_TABLE.iter().any(|prefix| word.starts_with(prefix));
    let mut words: Vec<String> = before.to_vec();
    for word in given.iter().filter(|word| !passing(word)) {
        words.retain(|other| other != word && !is_opposite(other, word));
        words.push(word.clone());
    }
    words
}

/// Whether of two words one undoes the other.
fn is_opposite(one: &str, other: &str) -> bool {
    const TIMES: [&str; 6] = [
        "atime",
        "noatime",
        "relatime",
        "strictatime",
        "norelatime",
        "nostrictatime",
    ];
    let negates = |one: &str, other: &str| one.strip_prefix("no") == Some(other);
    let named = |one: &str| one.split_once('=').map(|(name, _)| name.to_owned());
    matches!(
        (one, other),
        ("ro", "rw") | ("rw", "ro") | ("sync", "async") | ("async", "sync")
    ) || matches!((one, other), ("silent", "loud") | ("loud", "silent"))
        || negates(one, other)
        || negates(other, one)
        || (TIMES.contains(&one) && TIMES.contains(&other))
        || (named(one).is_some() && named(one) == named(other))
}

/// Reads the words of a mount of `source`; `now` is for times ago.
pub(super) fn understand(
    what: &str,
    source: &str,
    words: &[String],
    now: Time,
) -> Result<Understood, Failure> {
    let mut understood = Understood {
        options: MountOptions::of(source),
        at: None,
        notes: Vec::new(),
    };
    for word in words.iter().filter(|word| !word.is_empty()) {
        if let Some(when) = word.strip_prefix("at=") {
            let at = At::parse(when, now).map_err(|why| failed(what, &why).as_usage())?;
            understood.at = Some(at);
        } else if !understood.takes(word) {
            return Err(Failure::new(what, format!("there is no mount option '{word}'"), KNOWN).as_usage());
        }
    }
    Ok(understood)
}

impl Understood {
    /// Whether the word means something.
    fn takes(&mut self, word: &str) -> bool {
        let options = &mut self.options;
        match word {
            "ro" | "rw" => options.read_only = word == "ro",
            "suid" | "nosuid" => options.no_set_id = word == "nosuid",
            "dev" | "nodev" => options.no_devices = word == "nodev",
            "exec" | "noexec" => options.no_execute = word == "noexec",
            "symfollow" | "nosymfollow" => options.no_symbolic_links = word == "nosymfollow",
            "atime" | "noatime" | "relatime" | "strictatime" | "norelatime" | "nostrictatime" => {
                options.no_access_times = word == "noatime";
                options.strict_access_times = word == "strictatime";
            }
            "diratime" | "nodiratime" => options.no_directory_access_times = word == "nodiratime",
            "lazytime" | "nolazytime" => options.lazy_times = word == "lazytime",
            "sync" | "async" => options.sync = word == "sync",
            "dirsync" => options.sync_names = true,
            "silent" | "loud" => options.silent = word == "silent",
            "allow_other" => options.allow_other = Some(true),
            "ring=off" | "ring=on" => options.ring = word == "ring=on",
            "user" | "users" => {
                options.no_execute = true;
                (options.no_set_id, options.no_devices) = (true, true);
            }
            "owner" | "group" => (options.no_set_id, options.no_devices) = (true, true),
            "mand" => self
                .notes
                .push("'mand' has no effect: Linux has no mandatory locks since 5.15".into()),
            "iversion" => self
                .notes
                .push("'iversion' has no effect: FUSE passes no versions on".into()),
            _ if FOR_OTHERS.contains(&word) => {}
            _ if word.starts_with("x-") || word.starts_with("X-") => {}
            _ if word.starts_with("comment=") || word.starts_with("user=") => {}
            _ if OF_THE_TABLE.iter().any(|prefix| word.starts_with(prefix)) => {}
            _ if LABELS.iter().any(|prefix| word.starts_with(prefix)) => match labels_are_kept() {
                true => options.labels.push(word.to_owned()),
                false => self
                    .notes
                    .push(format!("'{word}' has no effect: SELinux is not active here")),
            },
            _ => return false,
        }
        true
    }
}

/// Whether the kernel labels files by SELinux.
fn labels_are_kept() -> bool {
    std::path::Path::new("/sys/fs/selinux/enforce").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    fn understood(text: &str) -> Understood {
        let now = Time {
            seconds: 1_700_000_000,
            nanos: 0,
        };
        understand("mount", "tank/data", &words(text), now).unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[test]
    fn what_mount_and_fstab_know_is_taken() {
        let all = "defaults,rw,auto,noauto,nofail,_netdev,user,users,owner,group,nouser,suid,dev,exec,async,atime,diratime,\
                   nodiratime,relatime,norelatime,strictatime,nostrictatime,lazytime,nolazytime,sync,dirsync,mand,nomand,silent,\
                   loud,iversion,noiversion,symfollow,default_permissions,allow_other,x-systemd.automount,X-mount.mkdir,\
                   comment=mine,user=me,context=system_u:object_r:mnt_t:s0,user_id=0,group_id=0,ring=off";
        let taken = understood(all);
        let told = taken.notes.join(" ");
        assert!(told.contains("'mand'") && told.contains("'iversion'"), "{told}");
        assert!(taken.options.sync && taken.options.sync_names);
        assert!(!understood("silent,loud").options.silent);
        assert!(!understood("noatime,relatime").options.no_access_times);
        assert!(understood("user").options.no_execute && !understood("user,exec").options.no_execute);
        let failure = understand("mount", "tank/data", &words("ro,nonsense"), Time::default());
        let told = failure.map(drop).unwrap_err().to_string();
        assert!(
            told.contains("'nonsense'") && told.contains("nodiratime"),
            "{told}"
        );
    }

    #[test]
    fn a_remount_changes_what_it_names() {
        let after = remounted(
            &words("ro,noatime,x-mine,at=@one"),
            &words("remount,rw,relatime,sync,user_id=0,x-mine"),
        );
        assert_eq!(after, words("at=@one,rw,relatime,sync,x-mine"));
        assert_eq!(
            remounted(&words("sync,nosuid"), &words("async,suid,remount")),
            words("async,suid")
        );
        assert!(is_remount(&words("ro,remount")) && !is_remount(&words("ro")));
    }
}
