//! `terrace doctor`: looks at this machine and says what to change. Changes nothing itself.

use std::{fs, path::Path, process::ExitCode};

use serde::Serialize;
use terrace_control::{Failure, RunLock};
use terrace_device::format_size;
use terrace_fuse::RingSwitch;

use crate::{
    commands::Session,
    machine::{Registry, UblkHere, output},
};

#[derive(Serialize)]
struct Check {
    name: String,
    /// `ok`, `warning` or `failed`.
    state: &'static str,
    found: String,
    advice: String,
}

impl Check {
    fn new(name: &str, good: bool, found: impl Into<String>, advice: &str) -> Self {
        let advice = if good { String::new() } else { advice.to_owned() };
        Self {
            name: name.into(),
            state: if good { "ok" } else { "warning" },
            found: found.into(),
            advice,
        }
    }

    fn fatal(mut self) -> Self {
        if self.state != "ok" {
            self.state = "failed";
        }
        self
    }
}

/// Exit status 1 if something failed; warnings alone are 0.
pub fn run(session: &Session) -> Result<ExitCode, Failure> {
    let mut checks = vec![kernel()];
    checks.extend(fuse());
    checks.push(attaching());
    checks.extend([open_files(), memory(), state_directory(session)]);
    for known in Registry::new(&session.places).pools()? {
        for device in &known.devices {
            let name = format!("device of pool '{}'", known.name);
            let advice = "bring it back, or run 'terrace pool import --search DIRECTORY' if it has moved";
            let size = fs::metadata(device).map(|metadata| metadata.len());
            let found = match &size {
                Ok(_) => device.display().to_string(),
                Err(error) => format!("{}: {error}", device.display()),
            };
            checks.push(Check::new(&name, size.is_ok(), found, advice).fatal());
        }
        let holder = RunLock::holder(&session.places.lock_file(&known.name));
        let found = holder.map_or_else(|| "stopped".into(), |holder| format!("process {}", holder.pid));
        checks.push(Check::new(
            &format!("daemon of pool '{}'", known.name),
            true,
            found,
            "",
        ));
        for attached in Registry::new(&session.places).blocks(&known.name)?.attached {
            let advice = format!(
                "run 'terrace start {0}': it brings the device back ('terrace stop {0}' takes it away)",
                known.name
            );
            let device = attached.device.unwrap_or_default();
            checks.push(Check::new(
                &format!("attached volume of pool '{}'", known.name),
                holder.is_some(),
                format!("{} as {}", attached.volume, device.display()),
                &advice,
            ));
        }
        for mount in Registry::new(&session.places).mounts(&known.name)? {
            let advice = format!("run 'terrace start {}': it brings the mount back", known.name);
            let found = format!("{} at {}", mount.dataset, mount.directory.display());
            checks.push(Check::new(
                &format!("mount of pool '{}'", known.name),
                holder.is_some(),
                found,
                &advice,
            ));
        }
    }
    if session.json {
        output::json(&checks)?;
    } else {
        for check in &checks {
            output::line(&format!("{:>8}  {}: {}", check.state, check.name, check.found))?;
            if !check.advice.is_empty() {
                output::line(&format!("          -> {}", check.advice))?;
            }
        }
    }
    let failed = checks.iter().any(|check| check.state == "failed");
    Ok(if failed {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Check::new(
        "kernel",
        version >= (5, 4),
        release,
        "Linux 5.4 or newer is needed for mounts; update the kernel",
    )
}

fn fuse() -> Vec<Check> {
    let mut checks = Vec::new();
    let unusable = terrace_fuse::check_available()
        .err()
        .map(|error| error.to_string());
    checks.push(Check::new(
        "FUSE",
        unusable.is_none(),
        unusable.clone().unwrap_or_else(|| "/dev/fuse can be used".into()),
        "mounts need it: 'modprobe fuse' (in a container: --device /dev/fuse --cap-add SYS_ADMIN); \
         without it 'terrace ls', 'cat', 'put' and 'get' work, and 'terrace serve' for volumes",
    ));
    let is_root = rustix::process::geteuid().is_root();
    checks.push(fuse_over_ring(terrace_fuse::ring_switch(), is_root, unusable));
    let grouped =
        fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.trim() == "1");
    let found = if grouped {
        "each session is scheduled as a group"
    } else {
        "off"
    };
    checks.push(Check::new(
        "scheduler autogroups",
        !grouped,
        found,
        "mounts work with them; programs of other sessions than the one that started the daemon take about twice as long \
         for small files; as root 'sysctl kernel.sched_autogroup_enabled=0'",
    ));
    if !is_root {
        let found = std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|directory| directory.join("fusermount3").exists())
        });
        let text = if found { "is there" } else { "is missing" };
        checks.push(Check::new(
            "fusermount3",
            found,
            text,
            "users other than root mount with it: install the package fuse3",
        ));
        let allowed = fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
        let text = if allowed { "allowed" } else { "not allowed" };
        checks.push(Check::new(
            "allow_other",
            allowed,
            text,
            "to let other users into your mounts, add the line user_allow_other to /etc/fuse.conf",
        ));
    }
    checks
}

/// `unusable`: why FUSE itself cannot be used, whatever the switch says.
fn fuse_over_ring(switch: RingSwitch, is_root: bool, unusable: Option<String>) -> Check {
    let name = "FUSE over io_uring";
    if let Some(why) = unusable {
        let found = format!("cannot be used, as FUSE cannot: {why}");
        return Check::new(name, false, found, "what is said of FUSE helps here too");
    }
    let (works, found) = match switch {
        RingSwitch::On => (true, "mounts use it"),
        RingSwitch::Off if is_root => (true, "off; the next mount turns it on"),
        RingSwitch::Off => (false, "off"),
        RingSwitch::Absent => (false, "this kernel has none"),
        RingSwitch::Forbidden => (false, "io_uring is forbidden here"),
    };
    Check::new(
        name,
        works,
        found,
        "mounts work without, small files more slowly; needs Linux 6.14 or newer, as root \
         'echo Y > /sys/module/fuse/parameters/enable_uring', and kernel.io_uring_disabled=0",
    )
}

fn attaching() -> Check {
    let mut hindrances = Vec::new();
    if terrace_fuse::check_available().is_err() {
        hindrances.push("FUSE cannot be used".to_owned());
    }
    if let Err(error) = terrace_fuse::LoopDevice::check_available() {
        let text = error.to_string();
        hindrances.push(text.split("; ").next().unwrap_or_default().to_owned());
    }
    let is_root = rustix::process::geteuid().is_root();
    attaching_as(&UblkHere::look(), is_root, hindrances)
}

/// `hindrances`: what stands in the way of loop devices.
fn attaching_as(ublk: &UblkHere, is_root: bool, mut hindrances: Vec<String>) -> Check {
    const WITHOUT: &str = "'terrace serve' gives volumes to qemu and NBD clients without; to attach them, let root run the pool where \
                           /dev/fuse and /dev/loop-control, or ublk, can be used ('modprobe fuse', 'modprobe loop', 'modprobe ublk_drv')";
    let name = "attached volumes";
    let Some(why) = ublk.hindrance() else {
        let (well, found, advice) = ublk.advice();
        return Check::new(name, well, found, advice);
    };
    if !is_root {
        return Check::new(name, false, "only root can attach volumes", WITHOUT);
    }
    if hindrances.is_empty() {
        let (well, found, advice) = ublk.advice();
        return Check::new(name, well, found, advice);
    }
    hindrances.push(why);
    let found = format!("volumes cannot be attached: {}", hindrances.join(", and "));
    Check::new(name, false, found, WITHOUT)
}

fn open_files() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    Check::new(
        "open files",
        most >= 4096,
        format!("at most {most}"),
        "raise it: 'ulimit -n 65536', or LimitNOFILE in the unit",
    )
}

fn memory() -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kibibytes| kibibytes * 1024)
    };
    let (total, available) = (
        value("MemTotal:").unwrap_or(0),
        value("MemAvailable:").unwrap_or(0),
    );
    Check::new(
        "memory",
        available >= 256 << 20,
        format!("{} available of {}", format_size(available), format_size(total)),
        "lower the budget: 'terrace pool set memory=128M POOL'",
    )
}

fn state_directory(session: &Session) -> Check {
    let path: &Path = session.places.state();
    let available = rustix::fs::statvfs(path)
        .map(|found| found.f_bavail * found.f_frsize)
        .unwrap_or(0);
    let found = format!("{}, {} available", path.display(), format_size(available));
    Check::new(
        "state directory",
        available >= 16 << 20,
        found,
        "make room there: mounts and logs are written to it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_promised_of_fuse_where_it_cannot_be_used() {
        for switch in [RingSwitch::On, RingSwitch::Off, RingSwitch::Absent] {
            let check = fuse_over_ring(switch, true, Some("open /dev/fuse: no permission".into()));
            assert_eq!(check.state, "warning", "{switch:?}");
            assert!(
                check
                    .found
                    .contains("cannot be used, as FUSE cannot: open /dev/fuse: no permission")
            );
        }
        assert_eq!(fuse_over_ring(RingSwitch::On, false, None).state, "ok");
        assert_eq!(fuse_over_ring(RingSwitch::Off, false, None).state, "warning");
    }

    #[test]
    fn no_devices_are_promised_that_cannot_be_made() {
        let absent = UblkHere::Absent;
        let check = attaching_as(&absent, true, Vec::new());
        assert!(check.found.contains("through loop devices"), "{}", check.found);
        let check = attaching_as(&absent, true, vec!["FUSE cannot be used".into()]);
        assert!(
            check
                .found
                .contains("cannot be attached: FUSE cannot be used, and there is no /dev/ublk"),
            "{}",
            check.found
        );
        assert!(check.advice.contains("'terrace serve'") && check.state == "warning");
        let check = attaching_as(&absent, false, Vec::new());
        assert!(check.found.contains("only root") && check.advice.contains("'terrace serve'"));
        let usable = UblkHere::Usable { resizes: true };
        assert_eq!(attaching_as(&usable, true, vec!["no loop".into()]).state, "ok");
    }
}
