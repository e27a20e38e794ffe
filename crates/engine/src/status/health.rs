//! The state of a pool in one word, and what to do about it: the worst of what is wrong comes first.
//!
//! Invariant: from memory alone.

use super::builder::{StatusBuilder, stays};
use crate::{
    DeviceStatus, LostStatus, ScrubStatus, Status,
    devices::describe_too_few,
    reporting::{counted, describe_abandoned_tail, list_names},
};

/// Lost files that the state's detail names.
const NAMED_MAX: usize = 5;

impl StatusBuilder {
    /// `Status::state` and `Status::state_detail` of all the rest.
    pub(super) fn describe_health(&self, status: &Status) -> (String, String) {
        let pool = &status.pool;
        if let Some(why) = self.chunks.stopped() {
            let detail = format!(
                "writes are refused after an error: {why}; mend the cause, then 'terrace stop {pool} --force' and 'terrace start {pool}' \
             (what fsync made durable is safe, what was written since is not saved any more)"
            );
            return ("stopped".into(), detail);
        }
        match self.describe_degraded(status) {
            Some(detail) => ("degraded".into(), detail),
            None => ("online".into(), self.describe_notes(status)),
        }
    }

    /// Why it is degraded, if it is.
    fn describe_degraded(&self, status: &Status) -> Option<String> {
        let mut devices = status.tiers.iter().flat_map(|tier| &tier.devices);
        if let Some(device) = devices.find(|device| device.state != "online") {
            return Some(self.describe_bad(device, status));
        }
        let told = |words: String| (!words.is_empty()).then_some(words);
        told(self.integrity.metadata.describe_unreadable())
            .or_else(|| told(self.devices.resilver.describe_behind()))
            .or_else(|| told(Self::describe_few(status)))
            .or_else(|| {
                status
                    .scrub
                    .as_ref()
                    .and_then(|scrub| describe_damage(&status.pool, scrub))
            })
            .or_else(|| match self.chunks.unreadable_count() {
                0 => None,
                met => Some(describe_met(status, met)),
            })
            .or_else(|| {
                let lost = status.lost.as_ref().filter(|lost| lost.files > 0)?;
                Some(format!(
                    "{}; restore those files from a backup or a snapshot, or delete them",
                    describe_lost(&status.pool, lost)
                ))
            })
    }

    /// A device that is not well, those that are not either, and what that means.
    fn describe_bad(&self, device: &DeviceStatus, status: &Status) -> String {
        let mut detail = self.describe_bad_device(device);
        let others = status.tiers.iter().flat_map(|tier| &tier.devices);
        let others = others.filter(|other| other.state != "online" && other.number != device.number);
        let others: Vec<String> = others
            .map(|other| format!("'{}' ({})", other.path, other.state))
            .collect();
        if !others.is_empty() {
            let count = others.len() as u64;
            detail.push_str(&format!(
                "; so it is with {}",
                list_names(&others, NAMED_MAX, count)
            ));
        }
        if let Some(lost) = &status.lost {
            detail.push_str(&format!("; {}", describe_lost(&status.pool, lost)));
        }
        if let Some(cause) = self.chunks.given_up() {
            detail.push_str(&format!("; {}", describe_abandoned_tail(cause)));
        }
        detail.push_str(&self.integrity.metadata.describe_offline());
        let unreadable = self.integrity.metadata.describe_unreadable();
        if !unreadable.is_empty() {
            detail.push_str(&format!("; {unreadable}"));
        }
        detail
    }

    /// What is worth a word of a pool that is well.
    fn describe_notes(&self, status: &Status) -> String {
        let words = [
            self.chunks
                .given_up()
                .map(describe_abandoned_tail)
                .unwrap_or_default(),
            describe_errors(status),
            self.devices.goals.describe_set_aside(),
            self.describe_metadata(),
        ];
        let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
        words.join("; ")
    }

    /// Of a tier that takes content, and has fewer devices for it than it keeps copies; empty if there is none.
    fn describe_few(status: &Status) -> String {
        for tier in &status.tiers {
            let copies = usize::from(tier.copies);
            let devices = tier.devices.iter().filter(|device| stays(device)).count();
            if devices > 0 && devices < copies {
                return describe_too_few(&status.pool, &tier.name, copies, devices);
            }
        }
        String::new()
    }

    /// A warning while metadata comes near to what a root can list, or would be lost with one device of several; empty else.
    fn describe_metadata(&self) -> String {
        let near = metadata_warning(self.chunks.metadata_segments());
        let several = self.pool.device_count() > 1;
        match near.is_empty() && several && !self.chunks.is_mirrored() {
            true => ALONE.into(),
            false => near,
        }
    }
}

/// What the last scrub found and could not repair, if anything.
fn describe_damage(pool: &str, scrub: &ScrubStatus) -> Option<String> {
    let damaged = scrub.lost();
    if damaged == 0 {
        return None;
    }
    let named = match &scrub.files[..] {
        [] => "restore the files that it names".to_owned(),
        files => format!(
            "restore {}; 'terrace status {pool} --lost' lists all",
            list_names(files, NAMED_MAX, files.len() as u64),
        ),
    };
    let since = match scrub.errors_since {
        0 => String::new(),
        errors => format!(
            "; reading has met {} since then: 'terrace scrub {pool} --wait' looks again",
            counted(errors, "error")
        ),
    };
    Some(format!(
        "the last scrub found {} without a good copy; {named}{since}",
        counted(damaged, "damaged chunk")
    ))
}

/// Errors that were met on devices which are there all the same; empty if there were none, or a scrub that began after the
/// pool was opened has read all and left nothing.
fn describe_errors(status: &Status) -> String {
    let devices = status.tiers.iter().flat_map(|tier| &tier.devices);
    let met = |device: &&DeviceStatus| device.read_errors + device.write_errors + device.checksum_errors > 0;
    let devices: Vec<_> = devices.filter(met).collect();
    let Some(device) = devices.first() else {
        return String::new();
    };
    let more = match devices.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} other devices)"),
    };
    let pool = &status.pool;
    let scrub = status.scrub.as_ref().filter(|scrub| scrub.state == "done");
    let advice = match scrub.map(|scrub| scrub.errors_since) {
        Some(0) => format!(
            "the last scrub left nothing damaged; if they go on, 'terrace pool replace {pool} {} NEW'",
            device.path
        ),
        Some(since) => format!("{since} of them since the last scrub: {}", scrub_advice(pool)),
        None => scrub_advice(pool),
    };
    format!(
        "device '{}'{more} met {} read, {} write and {} checksum errors since the pool was opened: {advice}",
        device.path, device.read_errors, device.write_errors, device.checksum_errors
    )
}

fn scrub_advice(pool: &str) -> String {
    format!(
        "'terrace scrub {pool} --wait' reads everything, repairs what has a good copy and names the files of the rest"
    )
}

/// Damage that readers met since the last scrub.
fn describe_met(status: &Status, met: usize) -> String {
    let scrubbed = match status.scrub.as_ref().is_some_and(|scrub| scrub.state == "done") {
        true => "since the last scrub",
        false => "and no scrub has looked at them",
    };
    let named = match status.lost.as_ref().filter(|lost| !lost.names.is_empty()) {
        Some(lost) => format!(
            "restore {} from a backup or a snapshot ('terrace status {} --lost' lists all)",
            list_names(&lost.names, NAMED_MAX, lost.files),
            status.pool
        ),
        None => "its files are being looked for".to_owned(),
    };
    let errors = match describe_errors(status) {
        errors if errors.is_empty() => scrub_advice(&status.pool),
        errors => errors,
    };
    let met = counted(met as u64, "damaged chunk");
    format!("reading met {met} without a good copy {scrubbed}: {named}; {errors}")
}

fn describe_lost(pool: &str, lost: &LostStatus) -> String {
    if lost.state == "looking" {
        return "whether files lost content with it is being found out".into();
    }
    let least = if lost.complete { "" } else { "at least " };
    format!(
        "{least}{} cannot be read whole: {}; 'terrace status {pool} --lost' lists all",
        counted(lost.files, "file"),
        list_names(&lost.names, NAMED_MAX, lost.files)
    )
}

/// What is said while metadata has no second copy although there is a second device.
const ALONE: &str = "part of the metadata lies on one device only, since no other had room: it gets its second copy once there is room \
                     (delete files, destroy snapshots or 'terrace pool add' a device)";

/// From three quarters of the limit on.
fn metadata_warning((segments, most): (u64, u64)) -> String {
    if segments < most / 4 * 3 {
        return String::new();
    }
    format!(
        "metadata takes {segments} of at most {most} segments; beyond that no checkpoint can be made and writes end: \
         destroy snapshots or delete files"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_near_its_limit_is_told_before_it_is_too_late() {
        assert_eq!(metadata_warning((2999, 4000)), "");
        assert!(metadata_warning((3000, 4000)).contains("3000 of at most 4000"));
    }
}
