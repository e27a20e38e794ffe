//! `Attached`: one volume, or a snapshot of one, as a loop device of this machine.
//!
//! Invariants: a device in use is not taken away unless forced; what was written to it is durable once it is.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{At, Volume};
use terrace_engine::Engine;
use terrace_fuse::{
    Content, FuseError, LoopDevice, MountOptions, Session, UnmountMode, VOLUME_OBJECT, VolumeFile,
};

use super::{
    super::{
        answers::failed,
        device_users::{holders_of, users_of},
    },
    device_names::{clear_remains, file_in, link_of, make_link, prepare_directory, remove_link},
};
use crate::{places::Places, registry::KnownAttachment};

/// How long a device that nobody holds may still be open: udev looks at each that was written to.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// See above.
pub struct Attached {
    pub known: KnownAttachment,
    /// The file underneath the device.
    file: PathBuf,
    pub device: LoopDevice,
    session: Session,
    /// Absent for a snapshot.
    volume: Option<Arc<Volume>>,
}

impl Attached {
    /// Mounts the file that shows a volume where nobody looks, and a loop device over it.
    pub fn make(
        places: &Places,
        pool: &str,
        engine: &Arc<Engine>,
        mut known: KnownAttachment,
    ) -> Result<Self, Failure> {
        let what = format!("attach '{}'", known.volume);
        let datasets = engine.datasets();
        let mut options = MountOptions::of(known.volume.clone());
        options.allow_other = Some(false);
        let (content, volume, block_bytes) = match known.volume.split_once('@') {
            Some((dataset, snapshot)) => {
                let view = datasets
                    .volume_view(dataset, &At::Snapshot(snapshot.to_owned()))
                    .map_err(|error| failed(&what, &error))?;
                options.read_only = true;
                let block_bytes = view.dataset().settings().block_bytes;
                (Content::ReadOnly(VolumeFile::past(view)), None, block_bytes)
            }
            None => {
                let volume = datasets
                    .volume(&known.volume)
                    .map_err(|error| failed(&what, &error))?;
                let settings = volume.dataset().settings();
                options.read_only = known.read_only || settings.readonly;
                let file = VolumeFile::new(volume.clone());
                (Content::Live(file), Some(volume), settings.block_bytes)
            }
        };
        let directory = prepare_directory(places, pool, &known.volume)
            .map_err(|error| Failure::new(what.clone(), error, "fix the state directory"))?;
        let file = file_in(&directory);
        clear_remains(&what, &directory)?;
        let session = terrace_fuse::mount(&directory, content, None, &options)
            .map_err(|error| unavailable(&what, &error))?;
        let device = LoopDevice::attach_as(&file, block_bytes, options.read_only, known.device.as_deref());
        let device = match device {
            Ok(device) => device,
            Err(error) => {
                if let Err(error) = session.unmount(UnmountMode::Lazy) {
                    tracing::warn!("{error}");
                }
                return Err(failed(&what, &error));
            }
        };
        let link = link_of(places, &known.volume);
        if let Err(error) = make_link(&link, device.path()) {
            tracing::warn!("make '{}': {error}", link.display());
        }
        known.device = Some(device.path().to_owned());
        Ok(Self {
            known,
            file,
            device,
            session,
            volume,
        })
    }

    /// Whether the device still shows the volume; anybody may detach it with `losetup -d`.
    pub fn is_live(&self) -> bool {
        self.device.shows(&self.file)
    }

    /// Whether the kernel has let go of the file underneath.
    pub fn has_ended(&self) -> bool {
        self.session.is_ended()
    }

    /// What users are told.
    pub fn answer(&self, places: &Places) -> Value {
        json!({
            "volume": self.known.volume,
            "device": self.device.path(),
            "link": link_of(places, &self.known.volume),
            "read_only": self.known.read_only,
        })
    }

    /// Fails while somebody uses the device.
    pub fn refuse_busy(&self) -> Result<(), Failure> {
        let device = self.device.path();
        let deadline = Instant::now() + RELEASE_PATIENCE;
        loop {
            if !self.is_live() {
                return Ok(());
            }
            let users = users_of(device);
            if users.is_empty() {
                return Ok(());
            }
            if !holders_of(device).is_empty() || Instant::now() > deadline {
                return Err(Failure::new(
                    format!("detach '{}'", self.known.volume),
                    format!("{} is in use: {}", device.display(), users.join(", ")),
                    "unmount or close it first, or add --force",
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets go of the device, then of the file underneath; whether that ends only with its last user.
    pub fn take_away(&self, places: &Places, force: bool) -> Result<bool, Failure> {
        let what = format!("detach '{}'", self.known.volume);
        if self.is_live() {
            self.device.detach().map_err(|error| failed(&what, &error))?;
        }
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut lazily = false;
        loop {
            match self.session.unmount(UnmountMode::IfUnused) {
                Ok(()) => break,
                Err(FuseError::Busy { .. })
                    if Instant::now() < deadline && (!force || users_of(self.device.path()).is_empty()) =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(_) => {
                    self.session
                        .unmount(UnmountMode::Lazy)
                        .map_err(|error| failed(&what, &error))?;
                    lazily = true;
                    break;
                }
            }
        }
        remove_link(places, &link_of(places, &self.known.volume), self.device.path());
        if let Some(directory) = self.file.parent() {
            let _ = fs::remove_dir(directory);
        }
        Ok(lazily)
    }

    /// Makes what was written durable.
    pub fn flush(&self) -> Result<(), Failure> {
        let what = format!("detach '{}'", self.known.volume);
        match &self.volume {
            Some(volume) => volume.flush().map_err(|error| failed(&what, &error)),
            None => Ok(()),
        }
    }

    /// The volume has another size: the kernel is told.
    pub fn resized(&self) -> Result<(), Failure> {
        let (device, volume) = (self.device.path().display(), &self.known.volume);
        let what = format!("tell {device} that '{volume}' has another size");
        self.session
            .invalidate_object(VOLUME_OBJECT, false)
            .map_err(|error| failed(&what, &error))?;
        // The loop device takes the size that the kernel knows of the file: it has to be asked for anew.
        fs::metadata(&self.file).map_err(|error| Failure::new(what.clone(), error, ""))?;
        self.device.refresh_size().map_err(|error| failed(&what, &error))
    }
}

fn unavailable(what: &str, error: &FuseError) -> Failure {
    match error {
        FuseError::Unavailable { .. } => Failure::new(
            what,
            error.to_string().replace(';', ","),
            "'terrace doctor' says more; without FUSE use 'terrace serve'",
        ),
        _ => failed(what, error),
    }
}
