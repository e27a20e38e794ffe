//! Volumes as block devices: attached to loop devices of this machine, served to NBD clients; brought back, taken
//! away.
//!
//! Invariants: what is attached or served is written down before it is made and struck off by `detach`, `unserve` or
//! `stop`; a daemon that is killed or told to end by a signal leaves the list, so that the next one brings it back, a
//! device under the same name if that is free. A device in use is not taken away unless forced. `work` is held while
//! something is attached, served or taken away; `state` never while the kernel or a client is waited for.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{At, Volume};
use terrace_engine::Engine;
use terrace_fuse::{
    Content, FuseError, LoopDevice, MountOptions, Session, UnmountMode, VOLUME_NAME, VOLUME_OBJECT,
    VolumeFile,
};
use terrace_nbd::{Address, Export, PastVolume, ReadOnly, Server};

use super::{
    answers::{Parameters, failed},
    device_users::{holders_of, users_of},
};
use crate::{
    places::{Places, make_private},
    registry::{KnownAttachment, KnownBlocks, KnownService, Registry},
};

/// Logical block size of attached volumes, bytes.
const BLOCK_BYTES: u32 = 4096;
/// How long a device that nobody holds may still be open: udev looks at each that was written to.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

struct Attached {
    known: KnownAttachment,
    /// The file underneath the device.
    file: PathBuf,
    device: LoopDevice,
    session: Session,
    /// Absent for a snapshot.
    volume: Option<Arc<Volume>>,
}

impl Attached {
    /// Whether the device still shows the volume; anybody may detach it with `losetup -d`.
    fn is_live(&self) -> bool {
        self.device.shows(&self.file)
    }
}

#[derive(Default)]
struct State {
    attached: Vec<Arc<Attached>>,
    /// Taken away by force while in use: they end with their last user.
    leaving: Vec<Arc<Attached>>,
    served: Vec<KnownService>,
    servers: Vec<Server>,
}

/// The block devices and services of a pool.
pub struct Blocks {
    places: Places,
    pool: String,
    work: Mutex<()>,
    state: Mutex<State>,
}

impl Blocks {
    /// None yet.
    pub fn new(places: Places, pool: &str) -> Self {
        Self {
            places,
            pool: pool.into(),
            work: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// The devices that show `volume` or its snapshots.
    pub fn devices_of(&self, volume: &str) -> Vec<String> {
        let state = self.state.lock();
        let found = state
            .attached
            .iter()
            .filter(|attached| is_of(&attached.known.volume, volume) && attached.is_live());
        found
            .map(|attached| attached.device.path().display().to_string())
            .collect()
    }

    /// The addresses where `volume` or its snapshots are served.
    pub fn addresses_of(&self, volume: &str) -> Vec<String> {
        let state = self.state.lock();
        let found = state
            .served
            .iter()
            .filter(|service| is_of(&service.volume, volume));
        found
            .map(|service| service.address.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Refuses to rename or destroy what is attached or served, with what lies below it.
    pub fn refuse_if_used(&self, verb: &str, name: &str) -> Result<(), Failure> {
        let below = |volume: &str| {
            volume
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        let state = self.state.lock();
        let what = format!("{verb} '{name}'");
        if let Some(attached) = state
            .attached
            .iter()
            .find(|attached| below(&attached.known.volume))
        {
            let why = format!(
                "'{}' is in use: attached as {}",
                attached.known.volume,
                attached.device.path().display()
            );
            let remedy = format!("run 'terrace detach {}' first", attached.known.volume);
            return Err(Failure::new(what, why, remedy));
        }
        if let Some(service) = state.served.iter().find(|service| below(&service.volume)) {
            let why = format!("'{}' is in use: served at {}", service.volume, service.address);
            let remedy = format!("run 'terrace unserve {}' first", service.volume);
            return Err(Failure::new(what, why, remedy));
        }
        Ok(())
    }

    /// Brings back what a dead daemon had attached and served.
    pub fn restore(&self, engine: &Arc<Engine>) {
        let _work = self.work.lock();
        let registry = Registry::new(&self.places);
        let mut known = match registry.blocks(&self.pool) {
            Ok(known) => known,
            Err(failure) => {
                tracing::warn!("{failure}");
                return;
            }
        };
        for attachment in &mut known.attached {
            let before = attachment.device.clone();
            match self.make_attachment(engine, attachment.clone()) {
                Ok(attached) => {
                    let device = attached.device.path().to_owned();
                    let said = match before {
                        Some(before) if before != device => format!(
                            "'{}' is now {}; {} is still in use: unmount what is mounted from it",
                            attachment.volume,
                            device.display(),
                            before.display()
                        ),
                        _ => format!(
                            "'{}' is attached again as {}",
                            attachment.volume,
                            device.display()
                        ),
                    };
                    tracing::info!("{said}");
                    engine.event("attach", &said);
                    attachment.device = Some(device);
                    self.state.lock().attached.push(Arc::new(attached));
                }
                Err(failure) => {
                    tracing::error!("{failure}");
                    engine.event("attach", &failure.to_string());
                }
            }
        }
        for service in &known.served {
            match self.make_service(engine, service) {
                Ok(service) => {
                    tracing::info!("'{}' is served again at {}", service.volume, service.address);
                    self.state.lock().served.push(service);
                }
                Err(failure) => {
                    tracing::error!("{failure}");
                    engine.event("serve", &failure.to_string());
                }
            }
        }
        if (!known.attached.is_empty() || !known.served.is_empty())
            && let Err(failure) = registry.save_blocks(&self.pool, &known)
        {
            tracing::warn!("{failure}");
        }
    }

    /// `attach`. A volume that is attached already stays what it is.
    pub fn attach(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let known = KnownAttachment {
            volume: parameters.text("volume")?,
            read_only: parameters.flag("read_only")?,
            device: None,
        };
        let what = format!("attach '{}'", known.volume);
        let _work = self.work.lock();
        let existing = self.find(|attached| attached.known.volume == known.volume);
        if let Some(attached) = existing {
            if !attached.is_live() {
                // Detached behind our back.
                self.take_away(&attached, true)?;
            } else if attached.known.read_only == known.read_only {
                return Ok(answer(&self.places, &attached));
            } else {
                let how = if attached.known.read_only {
                    "read-only"
                } else {
                    "for writing"
                };
                return Err(Failure::new(
                    what,
                    format!("it is attached {how} as {}", attached.device.path().display()),
                    format!("run 'terrace detach {}' first", known.volume),
                ));
            }
        }
        self.change_list(|list| {
            list.attached.retain(|other| other.volume != known.volume);
            list.attached.push(known.clone());
        })?;
        let attached = match self.make_attachment(engine, known.clone()) {
            Ok(attached) => Arc::new(attached),
            Err(failure) => {
                self.change_list(|list| list.attached.retain(|other| other.volume != known.volume))?;
                return Err(failure);
            }
        };
        self.state.lock().attached.push(attached.clone());
        self.change_list(|list| {
            if let Some(entry) = list
                .attached
                .iter_mut()
                .find(|other| other.volume == known.volume)
            {
                entry.device = Some(attached.device.path().to_owned());
            }
        })?;
        Ok(answer(&self.places, &attached))
    }

    /// Mounts the file that shows a volume where nobody looks, and a loop device over it.
    fn make_attachment(&self, engine: &Arc<Engine>, mut known: KnownAttachment) -> Result<Attached, Failure> {
        let what = format!("attach '{}'", known.volume);
        let datasets = engine.datasets();
        let mut options = MountOptions::of(known.volume.clone());
        options.allow_other = Some(false);
        let (content, volume) = match known.volume.split_once('@') {
            Some((dataset, snapshot)) => {
                let view = datasets
                    .volume_view(dataset, &At::Snapshot(snapshot.to_owned()))
                    .map_err(|error| failed(&what, &error))?;
                options.read_only = true;
                (Content::ReadOnly(VolumeFile::past(view)), None)
            }
            None => {
                let volume = datasets
                    .volume(&known.volume)
                    .map_err(|error| failed(&what, &error))?;
                options.read_only = known.read_only || volume.dataset().settings().readonly;
                (Content::Live(VolumeFile::new(volume.clone())), Some(volume))
            }
        };
        let directory = prepare_directory(&self.places, &self.pool, &known.volume)
            .map_err(|error| Failure::new(what.clone(), error, "fix the state directory"))?;
        let file = file_in(&directory);
        clear_remains(&what, &directory)?;
        let link = link_of(&self.places, &known.volume);
        if let Some(owner) = stranger_behind(&self.places, &link, &file) {
            return Err(Failure::new(
                what,
                format!("its name '{}' belongs to {owner}", link.display()),
                "detach that one first, or rename one of them",
            ));
        }
        let session = terrace_fuse::mount(&directory, content, None, &options)
            .map_err(|error| unavailable(&what, &error))?;
        let device = LoopDevice::attach_as(&file, BLOCK_BYTES, options.read_only, known.device.as_deref());
        let device = match device {
            Ok(device) => device,
            Err(error) => {
                if let Err(error) = session.unmount(UnmountMode::Lazy) {
                    tracing::warn!("{error}");
                }
                return Err(failed(&what, &error));
            }
        };
        if let Err(error) = make_link(&link, device.path()) {
            tracing::warn!("make '{}': {error}", link.display());
        }
        known.device = Some(device.path().to_owned());
        Ok(Attached {
            known,
            file,
            device,
            session,
            volume,
        })
    }

    /// `detach`: a volume or a device.
    pub fn detach(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let target = parameters.text("target")?;
        let force = parameters.flag("force")?;
        let _work = self.work.lock();
        let found = self
            .find(|attached| attached.known.volume == target || attached.device.path() == Path::new(&target));
        let Some(attached) = found else {
            return Err(Failure::new(
                format!("detach '{target}'"),
                "it is not attached",
                format!("'terrace status {}' lists what is", self.pool),
            ));
        };
        if !force {
            refuse_busy(&attached)?;
        }
        self.take_away(&attached, force)?;
        self.change_list(|list| {
            list.attached
                .retain(|other| other.volume != attached.known.volume)
        })?;
        Ok(json!({ "volume": attached.known.volume, "device": attached.device.path() }))
    }

    /// Lets go of the device, then of the file underneath; what was written is durable afterwards.
    fn take_away(&self, attached: &Arc<Attached>, force: bool) -> Result<(), Failure> {
        let what = format!("detach '{}'", attached.known.volume);
        if attached.is_live() {
            attached.device.detach().map_err(|error| failed(&what, &error))?;
        }
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut lazily = false;
        loop {
            match attached.session.unmount(UnmountMode::IfUnused) {
                Ok(()) => break,
                Err(FuseError::Busy { .. })
                    if Instant::now() < deadline
                        && (!force || users_of(attached.device.path()).is_empty()) =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(_) => {
                    attached
                        .session
                        .unmount(UnmountMode::Lazy)
                        .map_err(|error| failed(&what, &error))?;
                    lazily = true;
                    break;
                }
            }
        }
        let link = link_of(&self.places, &attached.known.volume);
        if fs::read_link(&link).is_ok_and(|target| target == attached.device.path()) {
            let _ = fs::remove_file(&link);
        }
        if let Some(directory) = attached.file.parent() {
            let _ = fs::remove_dir(directory);
        }
        let mut state = self.state.lock();
        state.attached.retain(|other| !Arc::ptr_eq(other, attached));
        state.leaving.retain(|other| !other.session.is_ended());
        if lazily {
            state.leaving.push(attached.clone());
        }
        drop(state);
        match &attached.volume {
            Some(volume) => volume.flush().map_err(|error| failed(&what, &error)),
            None => Ok(()),
        }
    }

    /// `serve`. What is served at that address already stays.
    pub fn serve(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let wanted = KnownService {
            volume: parameters.text("volume")?,
            address: parameters.text("address")?,
            read_only: parameters.flag("read_only")?,
        };
        let _work = self.work.lock();
        let served = self.state.lock().served.clone();
        let existing = served
            .into_iter()
            .find(|service| service.volume == wanted.volume && is_at(&service.address, &wanted.address));
        if let Some(service) = existing {
            if service.read_only == wanted.read_only {
                return Ok(json!(service));
            }
            return Err(Failure::new(
                format!("serve '{}'", wanted.volume),
                format!("it is served at {} otherwise", service.address),
                format!("run 'terrace unserve {}' first", wanted.volume),
            ));
        }
        self.change_list(|list| list.served.push(wanted.clone()))?;
        let made = self.make_service(engine, &wanted);
        self.change_list(|list| {
            list.served.retain(|service| !same(service, &wanted));
            list.served.extend(made.as_ref().ok().cloned());
        })?;
        let service = made?;
        self.state.lock().served.push(service.clone());
        Ok(json!(service))
    }

    /// Offers a volume at an address; several may share one. The answer names the port that was taken.
    fn make_service(&self, engine: &Arc<Engine>, wanted: &KnownService) -> Result<KnownService, Failure> {
        let what = format!("serve '{}'", wanted.volume);
        let address: Address = wanted
            .address
            .parse()
            .map_err(|error| failed(&what, &error).as_usage())?;
        let export = export_of(engine, &what, wanted)?;
        let mut service = wanted.clone();
        // Names of hosts are looked up, and sockets made, without the lock.
        let bound: Vec<Address> = {
            let state = self.state.lock();
            state
                .servers
                .iter()
                .map(|server| server.address().clone())
                .collect()
        };
        let known = bound
            .into_iter()
            .find(|bound| is_at(&bound.to_string(), &wanted.address));
        if let Some(known) = known {
            let state = self.state.lock();
            if let Some(server) = state.servers.iter().find(|server| *server.address() == known) {
                server.add(&wanted.volume, export);
                service.address = known.to_string();
                return Ok(service);
            }
        }
        let server = Server::start(address).map_err(|error| {
            Failure::new(
                what,
                error,
                "give a free port of this machine, or the path of a socket in an existing directory",
            )
        })?;
        server.add(&wanted.volume, export);
        service.address = server.address().to_string();
        self.state.lock().servers.push(server);
        Ok(service)
    }

    /// `unserve`: everywhere. Clients are disconnected; what they were told is durable stays so.
    pub fn unserve(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let volume = parameters.text("volume")?;
        let _work = self.work.lock();
        let (services, idle) = {
            let mut state = self.state.lock();
            let (gone, kept) = std::mem::take(&mut state.served)
                .into_iter()
                .partition::<Vec<_>, _>(|service| service.volume == volume);
            state.served = kept;
            for server in &state.servers {
                server.remove(&volume);
            }
            let (idle, busy) = std::mem::take(&mut state.servers)
                .into_iter()
                .partition::<Vec<_>, _>(|server| server.exports().is_empty());
            state.servers = busy;
            (gone, idle)
        };
        idle.into_iter().for_each(Server::stop);
        if services.is_empty() {
            return Err(Failure::new(
                format!("unserve '{volume}'"),
                "it is not served",
                format!("'terrace status {}' lists what is", self.pool),
            ));
        }
        self.change_list(|list| list.served.retain(|service| service.volume != volume))?;
        let addresses: Vec<_> = services.into_iter().map(|service| service.address).collect();
        Ok(json!({ "volume": volume, "addresses": addresses }))
    }

    /// A volume has another size: the kernel is told. NBD clients see it when they connect again.
    pub fn resized(&self, volume: &str) -> Result<(), Failure> {
        let _work = self.work.lock();
        let Some(attached) = self.find(|attached| attached.known.volume == volume) else {
            return Ok(());
        };
        if !attached.is_live() {
            return Ok(());
        }
        let what = format!(
            "tell {} that '{volume}' has another size",
            attached.device.path().display()
        );
        attached
            .session
            .invalidate_object(VOLUME_OBJECT, false)
            .map_err(|error| failed(&what, &error))?;
        // The loop device takes the size that the kernel knows of the file: it has to be asked for anew.
        fs::metadata(&attached.file).map_err(|error| Failure::new(what.clone(), error, ""))?;
        attached
            .device
            .refresh_size()
            .map_err(|error| failed(&what, &error))
    }

    /// For `stop`: refuses while a device is in use, before anything is taken away.
    pub fn refuse_stop(&self) -> Result<(), Failure> {
        let attached = self.state.lock().attached.clone();
        attached.iter().try_for_each(|attached| refuse_busy(attached))
    }

    /// Takes everything away and forgets it.
    pub fn end_all(&self, force: bool) -> Result<(), Failure> {
        let _work = self.work.lock();
        self.stop_servers();
        let attached = self.state.lock().attached.clone();
        for attached in &attached {
            if !force {
                refuse_busy(attached)?;
            }
            self.take_away(attached, force)?;
        }
        Registry::new(&self.places).save_blocks(&self.pool, &KnownBlocks::default())
    }

    /// Takes everything away when the daemon must end; it stays written down.
    pub fn end_all_by_force(&self) {
        let _work = self.work.lock();
        self.stop_servers();
        let attached = self.state.lock().attached.clone();
        for attached in &attached {
            if let Err(failure) = self.take_away(attached, true) {
                tracing::warn!("{failure}");
            }
        }
    }

    fn stop_servers(&self) {
        let servers = {
            let mut state = self.state.lock();
            state.served.clear();
            std::mem::take(&mut state.servers)
        };
        servers.into_iter().for_each(Server::stop);
    }

    fn find(&self, wanted: impl Fn(&Attached) -> bool) -> Option<Arc<Attached>> {
        let state = self.state.lock();
        state.attached.iter().find(|attached| wanted(attached)).cloned()
    }

    /// Changes what is written down. `work` is held.
    fn change_list(&self, change: impl FnOnce(&mut KnownBlocks)) -> Result<(), Failure> {
        let registry = Registry::new(&self.places);
        let mut list = registry.blocks(&self.pool)?;
        change(&mut list);
        registry.save_blocks(&self.pool, &list)
    }
}

/// Takes away what a dead daemon left of a pool's attached volumes, and forgets them. For when there is no daemon.
pub fn clear_dead(places: &Places, pool: &str) -> Result<(), Failure> {
    let registry = Registry::new(places);
    let known = registry.blocks(pool)?;
    if known == KnownBlocks::default() {
        return Ok(());
    }
    for attachment in &known.attached {
        let what = format!("detach '{}'", attachment.volume);
        let directory = directory_of(places, pool, &attachment.volume);
        if let Some(directory) = real(&directory) {
            clear_remains(&what, &directory)?;
            let _ = fs::remove_dir(&directory);
        }
        let link = link_of(places, &attachment.volume);
        if fs::read_link(&link).ok() == attachment.device {
            let _ = fs::remove_file(&link);
        }
    }
    registry.save_blocks(pool, &KnownBlocks::default())
}

/// Detaches the device of a dead daemon and takes the dead mount underneath away. The device first: once the mount
/// is out of the tree, the device no longer says what it shows.
fn clear_remains(what: &str, directory: &Path) -> Result<(), Failure> {
    if let Some(device) = LoopDevice::find(&file_in(directory)) {
        device.detach().map_err(|error| failed(what, &error))?;
    }
    terrace_fuse::clear_stale(directory)
        .map(drop)
        .map_err(|error| failed(what, &error))
}

fn refuse_busy(attached: &Attached) -> Result<(), Failure> {
    let device = attached.device.path();
    let deadline = Instant::now() + RELEASE_PATIENCE;
    loop {
        if !attached.is_live() {
            return Ok(());
        }
        let users = users_of(device);
        if users.is_empty() {
            return Ok(());
        }
        if !holders_of(device).is_empty() || Instant::now() > deadline {
            return Err(Failure::new(
                format!("detach '{}'", attached.known.volume),
                format!("{} is in use: {}", device.display(), users.join(", ")),
                "unmount or close it first, or add --force",
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn export_of(engine: &Arc<Engine>, what: &str, wanted: &KnownService) -> Result<Arc<dyn Export>, Failure> {
    let datasets = engine.datasets();
    let export: Arc<dyn Export> = match wanted.volume.split_once('@') {
        Some((dataset, snapshot)) => {
            let view = datasets
                .volume_view(dataset, &At::Snapshot(snapshot.to_owned()))
                .map_err(|error| failed(what, &error))?;
            Arc::new(PastVolume::new(view).map_err(|error| failed(what, &error))?)
        }
        None => datasets
            .volume(&wanted.volume)
            .map_err(|error| failed(what, &error))?,
    };
    Ok(if wanted.read_only {
        Arc::new(ReadOnly(export))
    } else {
        export
    })
}

fn answer(places: &Places, attached: &Attached) -> Value {
    json!({
        "volume": attached.known.volume,
        "device": attached.device.path(),
        "link": link_of(places, &attached.known.volume),
        "read_only": attached.known.read_only,
    })
}

fn same(a: &KnownService, b: &KnownService) -> bool {
    a.volume == b.volume && a.address == b.address
}

/// Whether a server at `address` is what `wanted` asks for; a host may be written by its name there.
fn is_at(address: &str, wanted: &str) -> bool {
    let resolves = || {
        let (bound, host) = (address.strip_prefix("tcp:")?, wanted.strip_prefix("tcp:")?);
        let bound: SocketAddr = bound.parse().ok()?;
        Some(host.to_socket_addrs().ok()?.any(|known| known == bound))
    };
    address == wanted || resolves().unwrap_or(false)
}

/// Whether `name` is the volume or a snapshot of it.
fn is_of(name: &str, volume: &str) -> bool {
    name.split('@').next() == Some(volume)
}

/// A dataset's name as one part of a path. Two names may become one: see [`stranger_behind`].
fn flat(name: &str) -> String {
    name.replace('/', "-")
}

fn link_of(places: &Places, volume: &str) -> PathBuf {
    places.link_directory().join(flat(volume))
}

fn directory_of(places: &Places, pool: &str, volume: &str) -> PathBuf {
    places.volume_directory(pool).join(flat(volume))
}

fn file_in(directory: &Path) -> PathBuf {
    directory.join(String::from_utf8_lossy(VOLUME_NAME).as_ref())
}

/// The directory by the name that the kernel knows; its last part, which may be a dead mount, is not looked at.
fn real(directory: &Path) -> Option<PathBuf> {
    let parent = directory.parent()?.canonicalize().ok()?;
    Some(parent.join(directory.file_name()?))
}

fn prepare_directory(places: &Places, pool: &str, volume: &str) -> std::io::Result<PathBuf> {
    let directory = directory_of(places, pool, volume);
    make_private(&places.volume_directory(pool))?;
    let directory = real(&directory).unwrap_or(directory);
    match fs::create_dir(&directory) {
        // It may be the mount of a dead daemon, which cannot be looked at.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(directory),
        made => made.map(|()| directory),
    }
}

/// Another volume's device behind a link, if it is attached.
fn stranger_behind(places: &Places, link: &Path, file: &Path) -> Option<String> {
    let device = LoopDevice::at(&fs::read_link(link).ok()?);
    let name = device.path().file_name()?;
    let place = Path::new("/sys/block").join(name).join("loop/backing_file");
    let shown = PathBuf::from(fs::read_to_string(place).ok()?.trim_end());
    let volumes = places.volume_directory("").canonicalize().ok()?;
    (shown != file && shown.starts_with(volumes)).then(|| device.path().display().to_string())
}

fn make_link(link: &Path, device: &Path) -> std::io::Result<()> {
    if let Some(directory) = link.parent() {
        make_private(directory)?;
    }
    let mut new = link.to_owned().into_os_string();
    new.push(format!(".new{}", std::process::id()));
    let new = PathBuf::from(new);
    let _ = fs::remove_file(&new);
    std::os::unix::fs::symlink(device, &new)?;
    fs::rename(&new, link)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_by_other_names() {
        assert!(is_at("unix:/a", "unix:/a"));
        assert!(!is_at("unix:/a", "unix:/b"));
        assert!(is_at("tcp:127.0.0.1:7", "tcp:127.0.0.1:7"));
        assert!(!is_at("tcp:127.0.0.1:7", "tcp:127.0.0.1:0"));
        assert!(!is_at("tcp:127.0.0.1:7", "nonsense"));
    }

    #[test]
    fn snapshots_belong_to_their_volume() {
        assert!(is_of("tank/a@x", "tank/a") && is_of("tank/a", "tank/a"));
        assert!(!is_of("tank/ab", "tank/a"));
        assert_eq!(flat("tank/a/b@x"), "tank-a-b@x");
    }
}
