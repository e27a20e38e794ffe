//! Devices as the kernel knows them: made, found again by their token, taken away.
//!
//! Invariant: only devices that carry a token that we were given are touched.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use terrace_dataset::BlockDevice;

use super::{
    config,
    control::Control,
    protocol::{
        ANY, Command, INFORMATION_BYTES, Information, STATE_QUIESCED, USER_RECOVERY, USER_RECOVERY_REISSUE,
    },
};
use crate::error::UblkError;

/// Where the kernel lists devices, by the names of their own files.
const LIST: &str = "/sys/class/ublk-char";
/// What a device must be able to do to be ours.
const RECOVERY: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE;
/// How long the kernel may take to notice that a server has died: before Linux 6.9 it looks every five seconds.
const DEATH_PATIENCE: Duration = Duration::from_secs(30);
/// How long a device without users may take to go.
const DELETE_PATIENCE: Duration = Duration::from_secs(5);

/// The block device.
pub fn disk_path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// The device's own file, through which it is served.
pub fn channel_path(number: u32) -> PathBuf {
    format!("/dev/ublkc{number}").into()
}

/// The N of `/dev/ublkbN`.
pub fn number_of(path: &Path) -> Option<u32> {
    path.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// Size of the disk that is there, bytes.
pub fn shown_size_bytes(number: u32) -> Option<u64> {
    let sectors = fs::read_to_string(format!("/sys/block/ublkb{number}/size")).ok()?;
    Some(sectors.trim().parse::<u64>().ok()? * crate::kernel::protocol::SECTOR_BYTES)
}

/// What the kernel knows of a device.
pub fn information(control: &Control, number: u32) -> io::Result<Information> {
    let mut bytes = [0; INFORMATION_BYTES];
    control.call(Command::GetInformation, number, &mut bytes, 0)?;
    Ok(Information::decode(&bytes))
}

/// The device that carries `token`.
pub fn find(control: &Control, token: u64) -> Option<Information> {
    let entries = fs::read_dir(LIST).ok()?;
    entries.flatten().find_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()?;
        information(control, number)
            .ok()
            .filter(|found| found.token == token)
    })
}

/// Makes a device for `disk`, under the number `wanted` if that is free. It has no disk before it is started.
pub fn add(
    control: &Control,
    disk: &dyn BlockDevice,
    token: u64,
    wanted: Option<u32>,
) -> Result<Information, UblkError> {
    let ask = |number| {
        let information = Information {
            queues: config::queues(),
            depth: config::DEPTH,
            state: 0,
            buffer_bytes: config::BUFFER_BYTES,
            number,
            flags: RECOVERY,
            token,
        };
        let mut bytes = information.encode();
        control.call(Command::Add, number, &mut bytes, 0)?;
        Ok(Information::decode(&bytes))
    };
    // A number that cannot be had again is no reason to have no device.
    let again = wanted.and_then(|number| ask(number).ok());
    let made = match again {
        Some(made) => made,
        None => ask(ANY).map_err(|cause: io::Error| UblkError::new("make", "a ublk device", cause))?,
    };
    if made.flags & RECOVERY != RECOVERY {
        let _ = control.call(Command::Delete, made.number, &mut [], 0);
        return Err(UblkError::NoRecovery);
    }
    let mut parameters = config::parameters(disk, made.buffer_bytes);
    control
        .call(Command::SetParameters, made.number, &mut parameters, 0)
        .map_err(|cause| {
            let _ = control.call(Command::Delete, made.number, &mut [], 0);
            UblkError::new("set up", disk_path(made.number).display().to_string(), cause)
        })?;
    Ok(made)
}

/// Prepares a device whose server died for the next one, once the kernel has noticed the death.
pub fn begin_recovery(control: &Control, number: u32) -> io::Result<()> {
    let deadline = Instant::now() + DEATH_PATIENCE;
    loop {
        match control.call(Command::StartRecovery, number, &mut [], 0) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// Waits until the kernel has noticed that the server of a device died: before, its requests would hold up its end.
pub fn wait_for_death(control: &Control, number: u32) {
    let deadline = Instant::now() + DEATH_PATIENCE;
    while information(control, number).is_ok_and(|found| found.state != STATE_QUIESCED && found.state != 0)
        && Instant::now() < deadline
    {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Takes the disk of a device away: its users get errors from then on.
pub fn stop(control: &Control, number: u32) -> io::Result<()> {
    control.call(Command::Stop, number, &mut [], 0)
}

/// Deletes a device that was stopped. While somebody still has it open, that goes on in the background, until its last
/// user is gone.
pub fn delete(control: Arc<Control>, number: u32) {
    let (ended, wait) = std::sync::mpsc::channel();
    let deleting = move || {
        let _ = ended.send(control.call(Command::Delete, number, &mut [], 0));
    };
    let started = thread::Builder::new().name("ublk-delete".into()).spawn(deleting);
    if let Err(error) = started {
        tracing::warn!("ublk: device {number} is not deleted: {error}");
        return;
    }
    if let Ok(Err(error)) = wait.recv_timeout(DELETE_PATIENCE) {
        tracing::warn!("ublk: device {number} is not deleted: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_by_their_names() {
        assert_eq!(number_of(&disk_path(12)), Some(12));
        assert_eq!(number_of(Path::new("/dev/loop3")), None);
        assert_eq!(number_of(Path::new("/dev/ublkb0p1")), None);
    }
}
