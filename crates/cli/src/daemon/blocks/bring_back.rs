//! What is written down of attached and served volumes: brought back, struck off, kept true as names change.
//!
//! Invariants: what could not be brought back stays written down and is told; nothing comes back under a name that means
//! another volume by now; no two entries have the same device.

use std::{fs, path::Path, sync::Arc};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_engine::Engine;

use super::{
    Blocks, Still,
    attached::Attached,
    device_names::{clear_remains, directory_of, link_of, real, remove_link},
    ublk_face::clear_ublk_remains,
};
use crate::{
    daemon::support::{Missing, Use, check_identity, renamed},
    machine::{KnownAttachment, KnownBlocks, KnownService, Places, Registry},
};

impl Blocks {
    /// What should be attached or served and could not be brought back.
    pub fn missing(&self) -> Vec<Missing> {
        self.state.lock().missing.clone()
    }

    /// Brings back what should be attached and served and is not: what a dead daemon had, what could not be brought back
    /// before.
    pub fn restore(&self, engine: &Arc<Engine>) {
        let stopping = self.work.lock();
        if *stopping {
            return;
        }
        let registry = Registry::new(&self.places);
        let mut known = match registry.blocks(&self.pool) {
            Ok(known) => known,
            Err(failure) => {
                tracing::warn!("{failure}");
                let missing = Missing::list(&self.pool, "attached and served", failure);
                self.state.lock().missing = vec![missing];
                return;
            }
        };
        let mut missing = Vec::new();
        for attachment in &known.attached {
            if self
                .find(|attached| attached.known.volume == attachment.volume)
                .is_some()
            {
                continue;
            }
            if let Err(failure) = self.bring_back_attached(engine, attachment) {
                let place = attachment.device.as_ref();
                let place = place.map_or_else(String::new, |device| device.display().to_string());
                missing.push(Missing::new(Use::Attachment, &attachment.volume, place, failure));
            }
        }
        for service in &known.served {
            if self.services.find(service).is_some() {
                continue;
            }
            match self.bring_back_served(engine, service) {
                Ok(()) => tracing::info!("'{}' is served again at {}", service.volume, service.address),
                Err(failure) => {
                    let place = service.address.clone();
                    missing.push(Missing::new(Use::Service, &service.volume, place, failure));
                }
            }
        }
        for one in &missing {
            let said = one.failure(&self.pool).to_string();
            tracing::error!("{said}");
            let kind = if one.kind == Use::Service {
                "serve"
            } else {
                "attach"
            };
            engine.event(kind, &said);
        }
        let attached = self.state.lock().attached.clone();
        for one in &attached {
            give_device(&mut known, &one.known.volume, one.device());
        }
        self.state.lock().missing = missing;
        if (!known.attached.is_empty() || !known.served.is_empty())
            && let Err(failure) = registry.save_blocks(&self.pool, &known)
        {
            tracing::warn!("{failure}");
        }
    }

    fn bring_back_attached(&self, engine: &Arc<Engine>, attachment: &KnownAttachment) -> Result<(), Failure> {
        let what = format!("attach '{}' again", attachment.volume);
        check_identity(engine.datasets(), &what, &attachment.volume, attachment.identity)?;
        let before = attachment.device.clone();
        let attached = Attached::make(&self.places, &self.pool, engine, attachment.clone())?;
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
        self.state.lock().attached.push(Arc::new(attached));
        Ok(())
    }

    fn bring_back_served(&self, engine: &Arc<Engine>, service: &KnownService) -> Result<(), Failure> {
        let what = format!("serve '{}' again", service.volume);
        check_identity(engine.datasets(), &what, &service.volume, service.identity)?;
        self.services.add(engine, service).map(drop)
    }

    /// Strikes off a volume that is remembered as attached and could not be brought back. `work` is held.
    pub(super) fn forget_attached(&self, target: &str) -> Result<Value, Failure> {
        let listed = Registry::new(&self.places).blocks(&self.pool)?.attached;
        let mut listed = listed.into_iter();
        let found =
            listed.find(|known| known.volume == target || known.device.as_deref() == Some(Path::new(target)));
        let Some(known) = found else {
            return Err(Failure::new(
                format!("detach '{target}'"),
                "it is not attached",
                format!("'terrace status {}' lists what is", self.pool),
            ));
        };
        clear_attachment(&self.places, &self.pool, &known)?;
        self.change_list(|list| list.attached.retain(|other| other.volume != known.volume))?;
        self.forget_missing(Use::Attachment, &known.volume, None);
        Ok(json!({ "volume": known.volume, "device": null }))
    }

    pub(super) fn forget_missing(&self, kind: Use, volume: &str, address: Option<&str>) {
        self.state.lock().missing.retain(|missing| {
            missing.kind != kind
                || missing.name != volume
                || address.is_some_and(|address| address != missing.place)
        });
    }

    /// A dataset or snapshot has another name; nothing of it is attached or served. What should be is remembered by it.
    pub fn renamed(&self, _still: &Still<'_>, from: &str, to: &str) {
        let change = |name: &mut String| {
            if let Some(new) = renamed(name, from, to) {
                *name = new;
            }
        };
        let changed = self.change_list(|list| {
            list.attached
                .iter_mut()
                .for_each(|known| change(&mut known.volume));
            list.served.iter_mut().for_each(|known| change(&mut known.volume));
        });
        if let Err(failure) = changed {
            tracing::warn!("{failure}");
        }
        let mut state = self.state.lock();
        state
            .missing
            .iter_mut()
            .for_each(|missing| change(&mut missing.name));
    }

    /// Datasets and snapshots are gone; none of them is attached or served. What should be is not remembered any more.
    pub fn destroyed(&self, _still: &Still<'_>, datasets: &[String], snapshots: &[String]) {
        let is_gone = |name: &String| {
            let dataset = name.split('@').next().unwrap_or(name);
            datasets.iter().any(|gone| gone == dataset) || snapshots.contains(name)
        };
        let mut gone = Vec::new();
        let changed = self.change_list(|list| {
            gone.extend(
                list.attached
                    .iter()
                    .filter(|known| is_gone(&known.volume))
                    .cloned(),
            );
            list.attached.retain(|known| !is_gone(&known.volume));
            list.served.retain(|known| !is_gone(&known.volume));
        });
        let cleared = gone
            .iter()
            .try_for_each(|known| clear_attachment(&self.places, &self.pool, known));
        if let Err(failure) = changed.and(cleared) {
            tracing::warn!("{failure}");
        }
        self.state
            .lock()
            .missing
            .retain(|missing| !is_gone(&missing.name));
    }
}

/// Takes away what a dead daemon left of a pool's attached volumes, and forgets them. For when there is no daemon.
pub fn clear_dead(places: &Places, pool: &str) -> Result<(), Failure> {
    let registry = Registry::new(places);
    // Of a list that cannot be read nothing can be taken away, and nothing is to come back.
    let known = registry.blocks(pool).unwrap_or_else(|failure| {
        tracing::warn!("{failure}");
        KnownBlocks::default()
    });
    for attachment in &known.attached {
        clear_attachment(places, pool, attachment)?;
    }
    registry.save_blocks(pool, &KnownBlocks::default())
}

/// Takes away what a dead daemon left of an attached volume.
fn clear_attachment(places: &Places, pool: &str, attachment: &KnownAttachment) -> Result<(), Failure> {
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
    Ok(())
}

/// Writes down which device a volume has; none that is remembered has it beside it.
pub(super) fn give_device(list: &mut KnownBlocks, volume: &str, device: &Path) {
    for known in &mut list.attached {
        if known.volume == volume {
            known.device = Some(device.to_owned());
        } else {
            known.device.take_if(|other| other == device);
        }
    }
}
