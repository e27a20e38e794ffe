//! Volumes as block devices: attached as devices of this machine, served to NBD clients and virtual machines; brought back, taken
//! away.
//!
//! Invariants: what is attached or served is written down before it is made and struck off by `detach`, `unserve` or
//! `stop`; a daemon that is killed or told to end by a signal leaves the list, so that the next one brings it back, a
//! device under the same name if that is free. `work` is held while something is attached, served or taken away;
//! `state` never while the kernel or a client is waited for.

mod attached;
mod device_names;
mod loop_face;
mod services;
#[cfg_attr(not(feature = "ublk"), path = "without_ublk.rs")]
mod ublk_face;

use std::{fs, path::Path, sync::Arc};

use attached::Attached;
use device_names::{clear_remains, directory_of, link_of, real, remove_link};
use parking_lot::Mutex;
use serde_json::{Value, json};
use services::Services;
use terrace_control::Failure;
use terrace_engine::Engine;
use ublk_face::clear_ublk_remains;

use super::answers::Parameters;
use crate::{
    places::Places,
    registry::{KnownAttachment, KnownBlocks, KnownService, Registry},
    via::Via,
};

#[derive(Default)]
struct State {
    attached: Vec<Arc<Attached>>,
    /// Taken away by force while in use: they end with their last user.
    leaving: Vec<Arc<Attached>>,
}

/// The block devices and services of a pool.
pub struct Blocks {
    places: Places,
    pool: String,
    work: Mutex<()>,
    state: Mutex<State>,
    services: Services,
}

impl Blocks {
    /// None yet.
    pub fn new(places: Places, pool: &str) -> Self {
        Self {
            places,
            pool: pool.into(),
            work: Mutex::default(),
            state: Mutex::default(),
            services: Services::default(),
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
            .map(|attached| attached.device().display().to_string())
            .collect()
    }

    /// The addresses where `volume` or its snapshots are served.
    pub fn addresses_of(&self, volume: &str) -> Vec<String> {
        self.services.addresses(|served| is_of(served, volume))
    }

    /// Refuses to rename or destroy what is attached or served, with what lies below it.
    pub fn refuse_if_used(&self, verb: &str, name: &str) -> Result<(), Failure> {
        let below = |volume: &str| {
            volume
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        let what = format!("{verb} '{name}'");
        if let Some(attached) = self.find(|attached| below(&attached.known.volume)) {
            let why = format!(
                "'{}' is in use: attached as {}",
                attached.known.volume,
                attached.device().display()
            );
            let remedy = format!("run 'terrace detach {}' first", attached.known.volume);
            return Err(Failure::new(what, why, remedy));
        }
        if let Some(service) = self.services.list().iter().find(|service| below(&service.volume)) {
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
            match Attached::make(&self.places, &self.pool, engine, attachment.clone()) {
                Ok(attached) => {
                    let device = attached.device().to_owned();
                    let said = match before {
                        _ if attached.has_continued() => {
                            format!("'{}' goes on as {}", attachment.volume, device.display())
                        }
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
            match self.services.add(engine, service) {
                Ok(service) => {
                    tracing::info!("'{}' is served again at {}", service.volume, service.address);
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
            via: parameters.value::<Option<Via>>("via")?.unwrap_or_default(),
            device: None,
        };
        let what = format!("attach '{}'", known.volume);
        let _work = self.work.lock();
        let existing = self.find(|attached| attached.known.volume == known.volume);
        if let Some(attached) = existing {
            if !attached.is_live() {
                // Detached behind our back.
                self.take_away(&attached, true)?;
            } else if attached.known.read_only == known.read_only && known.via.fits(attached.device()) {
                return Ok(attached.answer(&self.places));
            } else {
                let how = if attached.known.read_only {
                    "read-only"
                } else {
                    "for writing"
                };
                return Err(Failure::new(
                    what,
                    format!("it is attached {how} as {}", attached.device().display()),
                    format!("run 'terrace detach {}' first", known.volume),
                ));
            }
        }
        self.change_list(|list| {
            list.attached.retain(|other| other.volume != known.volume);
            list.attached.push(known.clone());
        })?;
        match Attached::make(&self.places, &self.pool, engine, known.clone()) {
            Ok(attached) => Ok(self.remember(attached)?.answer(&self.places)),
            Err(failure) => {
                self.change_list(|list| list.attached.retain(|other| other.volume != known.volume))?;
                Err(failure)
            }
        }
    }

    /// A device was made: it is kept, and written down which it is. `work` is held.
    fn remember(&self, attached: Attached) -> Result<Arc<Attached>, Failure> {
        let attached = Arc::new(attached);
        self.state.lock().attached.push(attached.clone());
        self.change_list(|list| {
            let mut entries = list.attached.iter_mut();
            if let Some(entry) = entries.find(|other| other.volume == attached.known.volume) {
                entry.device = Some(attached.device().to_owned());
            }
        })?;
        Ok(attached)
    }

    /// `detach`: a volume or a device.
    pub fn detach(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let target = parameters.text("target")?;
        let force = parameters.flag("force")?;
        let _work = self.work.lock();
        let found =
            self.find(|attached| attached.known.volume == target || attached.device() == Path::new(&target));
        let Some(attached) = found else {
            return Err(Failure::new(
                format!("detach '{target}'"),
                "it is not attached",
                format!("'terrace status {}' lists what is", self.pool),
            ));
        };
        if !force {
            attached.refuse_busy()?;
        }
        self.take_away(&attached, force)?;
        self.change_list(|list| {
            list.attached
                .retain(|other| other.volume != attached.known.volume)
        })?;
        Ok(json!({ "volume": attached.known.volume, "device": attached.device() }))
    }

    /// Takes a device away; what was written is durable afterwards.
    fn take_away(&self, attached: &Arc<Attached>, force: bool) -> Result<(), Failure> {
        let lazily = attached.take_away(&self.places, force)?;
        {
            let mut state = self.state.lock();
            state.attached.retain(|other| !Arc::ptr_eq(other, attached));
            state.leaving.retain(|other| !other.has_ended());
            if lazily {
                state.leaving.push(attached.clone());
            }
        }
        attached.flush()
    }

    /// `serve`. What is served at that address already stays.
    pub fn serve(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let wanted = KnownService {
            volume: parameters.text("volume")?,
            address: parameters.text("address")?,
            read_only: parameters.flag("read_only")?,
            tls: parameters.value("tls")?,
        };
        let _work = self.work.lock();
        if let Some(service) = self.services.find(&wanted) {
            if service.read_only == wanted.read_only && service.tls == wanted.tls {
                return Ok(json!(service));
            }
            return Err(Failure::new(
                format!("serve '{}'", wanted.volume),
                format!("it is served at {} otherwise", service.address),
                format!("run 'terrace unserve {}' first", wanted.volume),
            ));
        }
        self.change_list(|list| list.served.push(wanted.clone()))?;
        let made = self.services.add(engine, &wanted);
        self.change_list(|list| {
            list.served
                .retain(|service| service.volume != wanted.volume || service.address != wanted.address);
            list.served.extend(made.as_ref().ok().cloned());
        })?;
        Ok(json!(made?))
    }

    /// `unserve`: everywhere. Clients are disconnected; what they were told is durable stays so.
    pub fn unserve(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let volume = parameters.text("volume")?;
        let _work = self.work.lock();
        let addresses = self.services.remove(&volume);
        if addresses.is_empty() {
            return Err(Failure::new(
                format!("unserve '{volume}'"),
                "it is not served",
                format!("'terrace status {}' lists what is", self.pool),
            ));
        }
        self.change_list(|list| list.served.retain(|service| service.volume != volume))?;
        Ok(json!({ "volume": volume, "addresses": addresses }))
    }

    /// A volume has another size: the kernel is told, or the device made again under its name if nobody uses it. NBD has
    /// no such message that clients understand, nor has the vhost-user library: they see it when they connect again.
    /// Returns the addresses, and the device, where that is to be done.
    pub fn resized(&self, engine: &Arc<Engine>, volume: &str) -> Result<Vec<String>, Failure> {
        let _work = self.work.lock();
        let mut later = self.services.addresses(|served| served == volume);
        if let Some(attached) = self.find(|attached| attached.known.volume == volume)
            && attached.is_live()
            && !attached.resized()?
        {
            if attached.refuse_busy().is_err() {
                later.push(attached.device().display().to_string());
            } else {
                self.take_away(&attached, false)?;
                let again = Attached::make(&self.places, &self.pool, engine, attached.known.clone())?;
                self.remember(again)?;
            }
        }
        Ok(later)
    }

    /// For `stop`: refuses while a device is in use, before anything is taken away.
    pub fn refuse_stop(&self) -> Result<(), Failure> {
        let attached = self.state.lock().attached.clone();
        attached.iter().try_for_each(|attached| attached.refuse_busy())
    }

    /// Takes everything away and forgets it.
    pub fn end_all(&self, force: bool) -> Result<(), Failure> {
        let _work = self.work.lock();
        self.services.stop();
        let attached = self.state.lock().attached.clone();
        for attached in &attached {
            if !force {
                attached.refuse_busy()?;
            }
            self.take_away(attached, force)?;
        }
        Registry::new(&self.places).save_blocks(&self.pool, &KnownBlocks::default())
    }

    /// Takes everything away when the daemon must end; it stays written down.
    pub fn end_all_by_force(&self) {
        let _work = self.work.lock();
        self.services.stop();
        let attached = self.state.lock().attached.clone();
        for attached in &attached {
            if let Err(failure) = self.take_away(attached, true) {
                tracing::warn!("{failure}");
            }
        }
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
        clear_ublk_remains(&what, places, pool, &attachment.volume)?;
        let directory = directory_of(places, pool, &attachment.volume);
        if let Some(directory) = real(&directory) {
            clear_remains(&what, &directory)?;
            let _ = fs::remove_dir(&directory);
        }
        let link = link_of(places, &attachment.volume);
        if let Some(device) = &attachment.device {
            remove_link(places, &link, device);
        }
    }
    registry.save_blocks(pool, &KnownBlocks::default())
}

/// Whether `name` is the volume or a snapshot of it.
fn is_of(name: &str, volume: &str) -> bool {
    name.split('@').next() == Some(volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_belong_to_their_volume() {
        assert!(is_of("tank/a@x", "tank/a") && is_of("tank/a", "tank/a"));
        assert!(!is_of("tank/ab", "tank/a"));
    }
}
