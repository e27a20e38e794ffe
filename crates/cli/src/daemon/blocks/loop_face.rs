//! `LoopFace`: a volume as a loop device over a file that FUSE shows where nobody looks.
//!
//! Invariant: what could not be made whole leaves neither a device nor a mount.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use terrace_control::Failure;
use terrace_dataset::Environment;
use terrace_fuse::{Content, FuseError, LoopDevice, MountOptions, Session, UnmountMode, VOLUME_OBJECT};

use super::{
    attached::RELEASE_PATIENCE,
    device_names::{clear_remains, file_in, prepare_directory},
};
use crate::{
    daemon::{
        mounting::mount_within,
        support::{failed, users_of},
    },
    machine::Places,
};

/// See above.
pub struct LoopFace {
    /// The file underneath the device.
    file: PathBuf,
    device: LoopDevice,
    session: Session,
}

impl LoopFace {
    /// Mounts the file, made of content, the bytes of a logical block and whether it is for reading alone, and makes a device over it;
    /// `wanted` if that is free.
    pub fn make(
        environment: &Environment,
        places: &Places,
        pool: &str,
        volume: &str,
        (content, block_bytes, read_only): (Content, u32, bool),
        wanted: Option<&Path>,
    ) -> Result<Self, Failure> {
        let what = format!("attach '{volume}'");
        let mut options = MountOptions::of(volume.to_owned());
        options.allow_other = Some(false);
        options.read_only = read_only;
        let directory = prepare_directory(places, pool, volume)
            .map_err(|error| Failure::new(what.clone(), error, "fix the state directory"))?;
        let file = file_in(&directory);
        clear_remains(&what, &directory)?;
        let session = mount_within(environment, &directory, content, None, options)
            .map_err(|error| unavailable(&what, volume, &error, rustix::process::geteuid().is_root()))?;
        match LoopDevice::attach_as(&file, block_bytes, read_only, wanted) {
            Ok(device) => Ok(Self {
                file,
                device,
                session,
            }),
            Err(error) => {
                if let Err(error) = session.unmount(UnmountMode::Lazy) {
                    tracing::warn!("{error}");
                }
                match rustix::process::geteuid().is_root() {
                    true => Err(failed(&what, &error)),
                    false => Err(for_root_alone(&what, volume, &error)),
                }
            }
        }
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Whether the device still shows the volume; anybody may detach it with `losetup -d`.
    pub fn is_live(&self) -> bool {
        self.device.shows(&self.file)
    }

    /// Whether the kernel has let go of the file underneath.
    pub fn has_ended(&self) -> bool {
        self.session.is_ended()
    }

    /// Lets go of the device, then of the file underneath; whether that ends only with its last user.
    pub fn take_away(&self, what: &str, force: bool) -> Result<bool, Failure> {
        if self.is_live() {
            self.device.detach().map_err(|error| failed(what, &error))?;
        }
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut lazily = false;
        loop {
            match self.session.unmount(UnmountMode::IfUnused) {
                Ok(()) => break,
                Err(FuseError::Busy { .. })
                    if Instant::now() < deadline && (!force || users_of(self.device.path()).is_empty()) =>
                {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                Err(_) => {
                    self.session
                        .unmount(UnmountMode::Lazy)
                        .map_err(|error| failed(what, &error))?;
                    lazily = true;
                    break;
                }
            }
        }
        if let Some(directory) = self.file.parent() {
            let _ = fs::remove_dir(directory);
        }
        Ok(lazily)
    }

    /// The volume has another size: the kernel is told.
    pub fn resized(&self, what: &str) -> Result<(), Failure> {
        self.session
            .invalidate_object(VOLUME_OBJECT, false)
            .map_err(|error| failed(what, &error))?;
        // The loop device takes the size that the kernel knows of the file: it has to be asked for anew.
        fs::metadata(&self.file).map_err(|error| Failure::new(what, error, ""))?;
        self.device.refresh_size().map_err(|error| failed(what, &error))
    }
}

/// What stands in the way of the mount, and what does without.
fn unavailable(what: &str, volume: &str, error: &FuseError, is_root: bool) -> Failure {
    match error {
        FuseError::Unavailable { .. } | FuseError::Mount { .. } if !is_root => {
            for_root_alone(what, volume, error)
        }
        FuseError::Unavailable { device, cause } => Failure::new(
            what,
            format!("a loop device needs FUSE, which cannot be used here: {device}: {cause}"),
            format!("'terrace doctor' says what to change; {}", without_device(volume)),
        ),
        _ => failed(what, error),
    }
}

/// The device, or the mount underneath it, was refused to a user who is not root.
fn for_root_alone(what: &str, volume: &str, error: &dyn std::fmt::Display) -> Failure {
    let text = error.to_string();
    let why = text.split("; ").next().unwrap_or_default();
    Failure::new(
        what,
        format!("block devices are made by root alone, and the pool's daemon runs as another user ({why})"),
        format!(
            "have root run the pool, or do without a device: {}",
            without_device(volume)
        ),
    )
}

fn without_device(volume: &str) -> String {
    format!("'terrace serve {volume} --nbd unix:PATH' needs neither root nor FUSE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_have_a_device_is_told_what_does_without() {
        let absent = || FuseError::Unavailable {
            device: "/dev/fuse",
            cause: std::io::Error::other("not there"),
        };
        let refused = FuseError::Mount {
            directory: "/run/v".into(),
            cause: "Permission denied".into(),
        };
        let told = |error: &FuseError, is_root| unavailable("attach 't/v'", "t/v", error, is_root);
        for (error, is_root) in [(absent(), true), (absent(), false), (refused, false)] {
            let failure = told(&error, is_root);
            assert!(failure.remedy.contains("'terrace serve t/v --nbd"), "{failure}");
            assert_eq!(failure.why.contains("root alone"), !is_root, "{failure}");
        }
    }
}
