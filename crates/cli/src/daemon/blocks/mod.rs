//! Volumes as block devices: attached as devices of this machine, served to NBD clients and virtual machines; brought back, taken
//! away.
//!
//! Invariants: what is attached or served is written down before it is made and struck off by `detach`, `unserve` or
//! `stop`; a daemon that is killed or told to end by a signal leaves the list, so that the next one brings it back, a
//! device under the same name if that is free. `work` is held while something is attached, served or taken away;
//! `state` never while the kernel or a client is waited for.

mod attached;
mod bring_back;
mod device_names;
mod loop_face;
mod partitions;
mod services;
#[cfg_attr(not(feature = "ublk"), path = "without_ublk.rs")]
mod ublk_face;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use attached::{Attached, RELEASE_PATIENCE};
pub use bring_back::clear_dead;
use bring_back::give_device;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use services::{Services, VHOST_USER, export_of};
use terrace_control::Failure;
use terrace_engine::Engine;

use crate::{
    daemon::support::{Missing, Parameters, Use, identity_of, users_of},
    machine::{KnownAttachment, KnownBlocks, KnownService, Places, Registry, Via},
};

#[derive(Default)]
struct State {
    attached: Vec<Arc<Attached>>,
    /// Taken away by force while in use: they end with their last user.
    leaving: Vec<Arc<Attached>>,
    /// What should be attached or served and could not be brought back.
    missing: Vec<Missing>,
}

/// The block devices and services of a pool.
pub struct Blocks {
    places: Places,
    pool: String,
    /// Whether the pool is being stopped.
    work: Mutex<bool>,
    state: Mutex<State>,
    services: Services,
}

/// While this is held nothing is attached, served, brought back or taken away: what a name means can change, and the list
/// with it.
pub struct Still<'a> {
    _work: MutexGuard<'a, bool>,
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

    /// Waits until nobody attaches, serves or takes away, and keeps others from it.
    pub fn hold_still(&self) -> Still<'_> {
        Still {
            _work: self.work.lock(),
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

    /// What is not as it should be with what is served, and what was taken away by force and is in use still.
    pub fn warnings(&self) -> Vec<Failure> {
        let mut warnings = self.services.warnings();
        let left = self.leaving();
        let told = |attached: &Arc<Attached>| {
            in_use_still(&format!("detach '{}'", attached.known.volume), attached, "")
        };
        warnings.extend(left.iter().map(told));
        warnings
    }

    /// What was taken away by force and whose users have not let go yet.
    fn leaving(&self) -> Vec<Arc<Attached>> {
        let state = self.state.lock();
        let left = state.leaving.iter().filter(|attached| !attached.has_ended());
        left.cloned().collect()
    }

    /// What is to be known of a device for writing while another one, taken away by force, is in use still: each has a cache of its
    /// own, and two filesystems that write there destroy each other.
    fn beside(&self, known: &KnownAttachment) -> Option<String> {
        let left = self.leaving();
        let writes = |other: &&Arc<Attached>| other.known.volume == known.volume && !other.known.read_only;
        let other = left.iter().find(writes).filter(|_| !known.read_only)?;
        let device = other.device().display();
        let mut words = vec![format!(
            "{device}, which was taken away by force, writes to it still"
        )];
        words.extend(users_of(other.device()));
        Some(format!(
            "{}; mount or write this one only when that is closed",
            words.join(", ")
        ))
    }

    /// The addresses where `volume` or its snapshots are served.
    pub fn addresses_of(&self, volume: &str) -> Vec<String> {
        self.services.addresses(|served| is_of(served, volume))
    }

    /// Where the volume itself is in use, and by whom, in words.
    pub fn uses_of(&self, volume: &str) -> Vec<String> {
        let attached = self.find(|attached| attached.known.volume == volume && attached.is_live());
        let device = attached.map(|attached| {
            let mut words = vec![format!("attached as {}", attached.device().display())];
            words.extend(users_of(attached.device()));
            words.join(", ")
        });
        let mut left = self.leaving();
        left.retain(|attached| attached.known.volume == volume);
        let left = left.iter().map(|attached| {
            let mut words = vec![format!(
                "still open as {}, which was taken away by force",
                attached.device().display()
            )];
            words.extend(users_of(attached.device()));
            words.join(", ")
        });
        let addresses = self.services.addresses(|served| served == volume);
        let served = addresses.iter().map(|address| format!("served at {address}"));
        device.into_iter().chain(left).chain(served).collect()
    }

    /// Refuses to rename or destroy what is attached or served, with what lies below it. It stays unused while `_still` is held.
    pub fn refuse_if_used(&self, _still: &Still<'_>, verb: &str, name: &str) -> Result<(), Failure> {
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
        if let Some(attached) = self.still_leaving(&below) {
            let why = format!(
                "'{}' is in use: {} was taken away by force, and somebody has it still open",
                attached.known.volume,
                attached.device().display()
            );
            return Err(Failure::new(what, why, "unmount or close it first"));
        }
        if let Some(service) = self.services.list().iter().find(|service| below(&service.volume)) {
            let why = format!("'{}' is in use: served at {}", service.volume, service.address);
            let remedy = format!("run 'terrace unserve {}' first", service.volume);
            return Err(Failure::new(what, why, remedy));
        }
        Ok(())
    }

    /// One of those that were taken away by force and whose users have not let go yet; those that have are forgotten, and
    /// their volumes with them.
    fn still_leaving(&self, wanted: &dyn Fn(&str) -> bool) -> Option<Arc<Attached>> {
        let deadline = Instant::now() + RELEASE_PATIENCE;
        loop {
            let (ended, found) = {
                let mut state = self.state.lock();
                let (ended, left): (Vec<_>, Vec<_>) = std::mem::take(&mut state.leaving)
                    .into_iter()
                    .partition(|attached| attached.has_ended());
                state.leaving = left;
                let found = state.leaving.iter().find(|other| wanted(&other.known.volume));
                (ended, found.cloned())
            };
            drop(ended);
            let found = found?;
            // The kernel lets go a moment after the last user did.
            if Instant::now() > deadline || !users_of(found.device()).is_empty() {
                return Some(found);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn refuse_stopping(&self, what: &str, stopping: bool) -> Result<(), Failure> {
        if !stopping {
            return Ok(());
        }
        let remedy = format!("run 'terrace start {}' when it has stopped", self.pool);
        Err(Failure::new(what, "the pool is being stopped", remedy))
    }

    /// `attach`. A volume that is attached already stays what it is.
    pub fn attach(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let volume = parameters.text("volume")?;
        let what = format!("attach '{volume}'");
        let stopping = self.work.lock();
        self.refuse_stopping(&what, *stopping)?;
        let known = KnownAttachment {
            read_only: parameters.flag("read_only")? || is_past(&volume),
            identity: identity_of(engine.datasets(), &what, &volume)?,
            volume,
            via: parameters.value::<Option<Via>>("via")?.unwrap_or_default(),
            device: None,
        };
        let existing = self.find(|attached| attached.known.volume == known.volume);
        if let Some(attached) = existing {
            if !attached.is_live() {
                // Detached behind our back.
                self.take_away(&attached, true)?;
            } else if attached.known.read_only == known.read_only && known.via.fits(attached.device()) {
                return Ok(attached.answer(&self.places));
            } else {
                let how = match (
                    attached.known.read_only == known.read_only,
                    attached.known.read_only,
                ) {
                    (true, _) => "in another way",
                    (_, true) => "read-only",
                    (_, false) => "for writing",
                };
                return Err(Failure::new(
                    what,
                    format!("it is attached {how} as {}", attached.device().display()),
                    format!("run 'terrace detach {}' first", known.volume),
                ));
            }
        }
        // What is remembered stays so if this fails.
        let mut before = None;
        self.change_list(|list| {
            let at = list
                .attached
                .iter()
                .position(|other| other.volume == known.volume);
            before = at.map(|at| list.attached.remove(at));
            list.attached.push(known.clone());
        })?;
        match Attached::make(&self.places, &self.pool, engine, known.clone()) {
            Ok(attached) => {
                self.forget_missing(Use::Attachment, &known.volume, None);
                let mut answer = self.remember(attached)?.answer(&self.places);
                answer["note"] = match self.beside(&known) {
                    Some(note) => json!(note),
                    None => note_of(engine, &known.volume),
                };
                Ok(answer)
            }
            Err(failure) => {
                self.change_list(|list| {
                    list.attached.retain(|other| other.volume != known.volume);
                    list.attached.extend(before);
                })?;
                Err(failure)
            }
        }
    }

    /// A device was made: it is kept, and written down which it is. `work` is held.
    fn remember(&self, attached: Attached) -> Result<Arc<Attached>, Failure> {
        let attached = Arc::new(attached);
        self.state.lock().attached.push(attached.clone());
        // 'readonly' may have been set otherwise before the device was known.
        attached.show_read_only();
        self.change_list(|list| give_device(list, &attached.known.volume, attached.device()))?;
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
            return self.forget_attached(&target);
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

    /// Takes a device away; what was written is durable afterwards, or given up if that is forced: a pool that accepts no writes must
    /// be stopped all the same.
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
        match attached.flush() {
            Err(failure) if force => {
                tracing::warn!("{failure}");
                Ok(())
            }
            flushed => flushed,
        }
    }

    /// `serve`. What is served at that address already stays.
    pub fn serve(&self, engine: &Arc<Engine>, parameters: &Parameters) -> Result<Value, Failure> {
        let volume = parameters.text("volume")?;
        let what = format!("serve '{volume}'");
        let stopping = self.work.lock();
        self.refuse_stopping(&what, *stopping)?;
        let wanted = KnownService {
            read_only: parameters.flag("read_only")? || is_past(&volume),
            identity: identity_of(engine.datasets(), &what, &volume)?,
            volume,
            address: parameters.text("address")?,
            tls: parameters.value("tls")?,
        };
        if let Some(service) = self.services.find(&wanted) {
            if service.read_only == wanted.read_only && service.tls == wanted.tls {
                let mut answer = service_row(&service);
                answer["note"] = Value::Null;
                return Ok(answer);
            }
            return Err(Failure::new(
                what,
                format!("it is served at {} otherwise", service.address),
                format!("run 'terrace unserve {}' first", wanted.volume),
            ));
        }
        // What is remembered stays so if this fails.
        let mut before = None;
        let is_same =
            |service: &KnownService| service.volume == wanted.volume && service.address == wanted.address;
        self.change_list(|list| {
            before = list
                .served
                .iter()
                .position(is_same)
                .map(|at| list.served.remove(at));
            list.served.push(wanted.clone());
        })?;
        let made = self.services.add(engine, &wanted);
        if made.is_ok() {
            self.forget_missing(Use::Service, &wanted.volume, Some(&wanted.address));
        }
        self.change_list(|list| {
            list.served.retain(|service| !is_same(service));
            list.served.extend(made.as_ref().ok().cloned().or(before));
        })?;
        let mut answer = service_row(&made?);
        // NBD clients choose their sectors themselves: those of qemu have 512 bytes.
        answer["note"] = match wanted.address.starts_with(VHOST_USER) {
            true => note_of(engine, &wanted.volume),
            false => Value::Null,
        };
        Ok(answer)
    }

    /// `unserve`: everywhere. Clients are disconnected; what they were told is durable stays so.
    pub fn unserve(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let volume = parameters.text("volume")?;
        let _work = self.work.lock();
        let mut addresses = self.services.remove(&volume);
        // What is remembered and could not be brought back is struck off.
        for service in Registry::new(&self.places).blocks(&self.pool)?.served {
            if service.volume == volume && !addresses.contains(&service.address) {
                addresses.push(service.address);
            }
        }
        if addresses.is_empty() {
            return Err(Failure::new(
                format!("unserve '{volume}'"),
                "it is not served",
                format!("'terrace status {}' lists what is", self.pool),
            ));
        }
        self.change_list(|list| list.served.retain(|service| service.volume != volume))?;
        self.forget_missing(Use::Service, &volume, None);
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
        attached.iter().try_for_each(|attached| attached.refuse_busy())?;
        // These end with the daemon, not with their users any more.
        match self.still_leaving(&|_| true) {
            None => Ok(()),
            Some(attached) => {
                let what = format!("detach '{}'", attached.known.volume);
                Err(in_use_still(&what, &attached, ", or add --force"))
            }
        }
    }

    /// For `pool destroy`: refuses while anybody is connected to what is served, as a mount in use refuses.
    pub fn refuse_connected(&self) -> Result<(), Failure> {
        // Who has just left may still be listed for a moment.
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let address = loop {
            let Some(address) = self.services.connected().into_iter().next() else {
                return Ok(());
            };
            if Instant::now() > deadline {
                break address;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let served = self.services.list();
        let volume = served.iter().find(|service| service.address == address);
        let volume = volume.map_or("a volume", |service| &service.volume);
        Err(Failure::new(
            format!("unserve '{volume}'"),
            format!("it is in use: clients are connected at {address}"),
            "disconnect them first, or add --force",
        ))
    }

    /// Takes everything away and forgets it.
    pub fn end_all(&self, force: bool) -> Result<(), Failure> {
        let mut stopping = self.work.lock();
        if !force {
            // Before anything is taken away.
            self.refuse_stop()?;
        }
        let attached = self.state.lock().attached.clone();
        self.services.stop();
        for attached in &attached {
            if !force {
                attached.refuse_busy()?;
            }
            self.take_away(attached, force)?;
        }
        self.state.lock().missing.clear();
        // Of what could not be brought back something may be left as well.
        clear_dead(&self.places, &self.pool)?;
        *stopping = true;
        Ok(())
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

    /// The property 'readonly' may be another one now.
    pub fn readonly_changed(&self) {
        let attached = self.state.lock().attached.clone();
        attached.iter().for_each(|attached| attached.show_read_only());
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

/// A device that was taken away by force and still has users.
fn in_use_still(what: &str, attached: &Attached, otherwise: &str) -> Failure {
    let device = attached.device().display();
    let users = users_of(attached.device());
    let by = match users.is_empty() {
        true => String::new(),
        false => format!(": {}", users.join(", ")),
    };
    Failure::new(
        what,
        format!("{device} was taken away by force, and is in use still{by}"),
        format!("unmount or close it{otherwise}"),
    )
}

/// What will surprise the users of a device: told if it can be found out.
fn note_of(engine: &Arc<Engine>, volume: &str) -> Value {
    let disk = export_of(engine, "look at it", volume, true).ok();
    json!(disk.and_then(|disk| partitions::note(volume, &*disk)))
}

/// A service, for programs.
fn service_row(service: &KnownService) -> Value {
    let KnownService {
        volume,
        address,
        read_only,
        tls,
        ..
    } = service;
    json!({ "volume": volume, "address": address, "read_only": read_only, "tls": tls })
}

/// Whether it is a snapshot, which is never written.
fn is_past(name: &str) -> bool {
    name.contains('@')
}

/// Whether `name` is `of`, or a snapshot of the volume `of`.
fn is_of(name: &str, of: &str) -> bool {
    name == of || name.split('@').next() == Some(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_belong_to_their_volume() {
        assert!(is_of("tank/a@x", "tank/a") && is_of("tank/a", "tank/a"));
        assert!(!is_of("tank/ab", "tank/a"));
        assert!(
            is_of("tank/a@x", "tank/a@x") && !is_of("tank/a@y", "tank/a@x") && !is_of("tank/a", "tank/a@x")
        );
    }
}
