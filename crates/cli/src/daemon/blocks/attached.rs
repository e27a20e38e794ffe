//! `Attached`: one volume, or a snapshot of one, as a block device of this machine, of one kind or the other.
//!
//! Invariants: a device in use is not taken away unless forced; what was written to it is durable once it is.

use std::{
    fs::File,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{At, BlockDevice, PastVolume, ReadOnly, View, Volume};
use terrace_device::holders_of;
use terrace_engine::Engine;
use terrace_fuse::{Content, VolumeFile};

use super::{
    device_names::{link_of, make_link, remove_link},
    loop_face::LoopFace,
    ublk_face::{UblkFace, clear_ublk_remains},
};
use crate::{
    daemon::support::{failed, users_of},
    machine::{Choice, KnownAttachment, Places, UblkHere},
};

/// How long a device that nobody holds may still be open: udev looks at each that was written to.
pub const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// What is attached.
enum Source {
    Live(Arc<Volume>),
    Past(Arc<View>),
}

impl Source {
    fn open(engine: &Engine, what: &str, name: &str) -> Result<Self, Failure> {
        let datasets = engine.datasets();
        match name.split_once('@') {
            Some((dataset, snapshot)) => datasets
                .volume_view(dataset, &At::Snapshot(snapshot.to_owned()))
                .map(Self::Past)
                .map_err(|error| failed(what, &error)),
            None => datasets
                .volume(name)
                .map(Self::Live)
                .map_err(|error| failed(what, &error)),
        }
    }

    /// As a disk.
    fn disk(&self, what: &str, read_only: bool) -> Result<Arc<dyn BlockDevice>, Failure> {
        let disk: Arc<dyn BlockDevice> = match self {
            Self::Live(volume) => volume.clone(),
            Self::Past(view) => {
                Arc::new(PastVolume::new(view.clone()).map_err(|error| failed(what, &error))?)
            }
        };
        Ok(if read_only { Arc::new(ReadOnly(disk)) } else { disk })
    }

    /// As a file, the bytes of its logical block, and whether it is made for reading alone.
    fn file(&self, read_only: bool) -> (Content, u32, bool) {
        match self {
            Self::Live(volume) => {
                let content = Content::Live(VolumeFile::new(volume.clone()));
                (content, volume.dataset().settings().block_bytes, read_only)
            }
            Self::Past(view) => {
                let block_bytes = view.dataset().settings().block_bytes;
                (
                    Content::ReadOnly(VolumeFile::past(view.clone())),
                    block_bytes,
                    true,
                )
            }
        }
    }
}

enum Face {
    Loop(LoopFace),
    Ublk(UblkFace),
}

/// See above.
pub struct Attached {
    pub known: KnownAttachment,
    face: Face,
    /// Absent for a snapshot.
    volume: Option<Arc<Volume>>,
}

impl Attached {
    /// Makes the device, of the kind that was asked for or can be had.
    pub fn make(
        places: &Places,
        pool: &str,
        engine: &Arc<Engine>,
        mut known: KnownAttachment,
    ) -> Result<Self, Failure> {
        let what = format!("attach '{}'", known.volume);
        let source = Source::open(engine, &what, &known.volume)?;
        let wanted = known.device.as_deref();
        let choice = known.via.choose(wanted, &UblkHere::look()).map_err(|why| {
            Failure::new(
                what.clone(),
                format!("ublk cannot be used: {why}"),
                "'terrace doctor' says more; '--via loop' does without ublk",
            )
        })?;
        let over_loop = || {
            clear_ublk_remains(&what, places, pool, &known.volume)?;
            let file = source.file(known.read_only);
            LoopFace::make(engine.environment(), places, pool, &known.volume, file, wanted).map(Face::Loop)
        };
        let face = match choice {
            Choice::Loop => over_loop()?,
            Choice::Ublk { or_loop } => {
                let disk = source.disk(&what, known.read_only)?;
                match UblkFace::make(places, pool, &known.volume, disk, wanted) {
                    Ok(face) => Face::Ublk(face),
                    Err(failure) if or_loop => {
                        tracing::warn!("{failure}");
                        over_loop()?
                    }
                    Err(failure) => return Err(failure),
                }
            }
        };
        let volume = match source {
            Source::Live(volume) => Some(volume),
            Source::Past(_) => None,
        };
        let attached = Self {
            known: known.clone(),
            face,
            volume,
        };
        // The property may be set otherwise while the device is there: it is told, the device not made so.
        attached.show_read_only();
        let link = link_of(places, &known.volume);
        if let Err(error) = make_link(&link, attached.device()) {
            tracing::warn!("make '{}': {error}", link.display());
        }
        known.device = Some(attached.device().to_owned());
        Ok(Self { known, ..attached })
    }

    /// The block device.
    pub fn device(&self) -> &Path {
        match &self.face {
            Face::Loop(face) => face.path(),
            Face::Ublk(face) => face.path(),
        }
    }

    /// Whether the device still shows the volume.
    pub fn is_live(&self) -> bool {
        match &self.face {
            Face::Loop(face) => face.is_live(),
            Face::Ublk(face) => face.is_live(),
        }
    }

    /// Whether whoever used the device has noticed no more of the old daemon's end than a pause.
    pub fn has_continued(&self) -> bool {
        matches!(&self.face, Face::Ublk(face) if face.has_continued())
    }

    /// Whether the kernel has let go of what is underneath.
    pub fn has_ended(&self) -> bool {
        match &self.face {
            Face::Loop(face) => face.has_ended(),
            Face::Ublk(_) => true,
        }
    }

    /// What users are told.
    pub fn answer(&self, places: &Places) -> Value {
        json!({
            "volume": self.known.volume,
            "device": self.device(),
            "link": link_of(places, &self.known.volume),
            "read_only": self.known.read_only,
            "note": null,
        })
    }

    /// Fails while somebody uses the device.
    pub fn refuse_busy(&self) -> Result<(), Failure> {
        let device = self.device();
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

    /// Lets go of the device; whether something of it ends only with its last user.
    pub fn take_away(&self, places: &Places, force: bool) -> Result<bool, Failure> {
        let what = format!("detach '{}'", self.known.volume);
        let lazily = match &self.face {
            Face::Loop(face) => face.take_away(&what, force)?,
            Face::Ublk(face) => face.take_away(&what).map(|()| false)?,
        };
        remove_link(places, &link_of(places, &self.known.volume), self.device());
        Ok(lazily)
    }

    /// Tells the kernel whether 'readonly' is set now: who opens the device then knows. Who has it open is refused each write
    /// by the volume itself.
    pub fn show_read_only(&self) {
        let Some(volume) = self.volume.as_ref().filter(|_| !self.known.read_only) else {
            return;
        };
        let read_only = volume.dataset().settings().readonly;
        let told =
            File::open(self.device()).and_then(|device| terrace_fuse::tell_read_only(&device, read_only));
        if let Err(error) = told {
            tracing::warn!("tell {} of 'readonly': {error}", self.device().display());
        }
    }

    /// Makes what was written durable.
    pub fn flush(&self) -> Result<(), Failure> {
        let what = format!("detach '{}'", self.known.volume);
        match &self.volume {
            Some(volume) => volume.flush().map_err(|error| failed(&what, &error)),
            None => Ok(()),
        }
    }

    /// The volume has another size: the kernel is told. `false` if this kernel cannot be told while the device is there.
    pub fn resized(&self) -> Result<bool, Failure> {
        let (device, volume) = (self.device().display(), &self.known.volume);
        let what = format!("tell {device} that '{volume}' has another size");
        match &self.face {
            Face::Loop(face) => face.resized(&what).map(|()| true),
            Face::Ublk(face) => face.resized(&what),
        }
    }
}
