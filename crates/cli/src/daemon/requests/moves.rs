//! Requests to move something by hand: `pin`, `unpin`, `promote`, `demote`, and what they would do.

use serde_json::{Value, json};
use terrace_control::{Exchange, Failure, Progress};
use terrace_dataset::FileKind;
use terrace_device::format_size;
use terrace_mover::JobInfo;

use super::where_is::Found;
use super::{properties, tiers, where_is};
use crate::daemon::{
    open_pool::OpenPool,
    support::{Parameters, StoredOnce, Subject, answers, failed},
};

/// In the place of a tier: no pin.
const NO_TIER: &str = "none";

/// `pin`, `unpin`, `promote`, `demote`: of a dataset, or of one file in it.
pub(crate) fn placement(
    pool: &OpenPool,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<Value, Failure> {
    let name = parameters.text("path")?;
    let mut action = parameters.text("action")?;
    let what = format!("{action} '{name}'");
    let subject = Subject::find(pool.engine(), &name)?;
    if action == "pin"
        && subject.is_dataset
        && parameters.optional_text("tier")?.as_deref() == Some(NO_TIER)
        && !parameters.flag("dry_run")?
    {
        // As the property of the dataset says it.
        action = "unpin".into();
    }
    let (number, object) = (subject.number, subject.for_mover());
    if !subject.is_dataset && !matches!(subject.kind, FileKind::File | FileKind::Directory) {
        return Err(Failure::new(
            what,
            "it is not a file",
            "name a file, a directory, a volume, or the whole dataset",
        ));
    }
    if parameters.flag("dry_run")? {
        if action == "promote" || action == "demote" {
            refuse_if_pinned(pool, &subject, &action)?;
        }
        return would_move(pool, parameters, &subject, &action);
    }
    // What is still in memory has no place yet.
    pool.sync()?;
    if matches!(action.as_str(), "promote" | "demote") {
        refuse_if_pinned(pool, &subject, &action)?;
    }
    let mover = pool.engine().mover();
    let refused = |error| failed(&what, &error);
    let jobs = match action.as_str() {
        // A dataset is pinned by its property, which those below it inherit.
        "pin" | "unpin" if subject.is_dataset => {
            let tier = match action.as_str() {
                "pin" => parameters.text("tier")?,
                _ => NO_TIER.into(),
            };
            let datasets = pool.engine().datasets();
            datasets
                .properties()
                .set(&subject.dataset, "pin", &tier)
                .map_err(|error| failed(&what, &error))?;
            properties::move_to_pins(pool, &subject.dataset)?
        }
        "pin" => vec![
            mover
                .pin(number, object, &parameters.text("tier")?)
                .map_err(refused)?,
        ],
        "unpin" if mover.own_pin(number, object).is_none() => {
            return unpin_what_has_none(pool, &subject);
        }
        "unpin" => Vec::from_iter(mover.unpin(number, object).map_err(refused)?),
        "promote" => vec![mover.promote(number, object).map_err(refused)?],
        "demote" => vec![mover.demote(number, object).map_err(refused)?],
        _ => return Err(Failure::new(what, "this is not known", "")),
    };
    if parameters.flag("wait").unwrap_or(false) {
        wait_for_moves(pool, &jobs, &action, &subject, parameters, exchange)?;
    }
    let pinned_to = parameters.optional_text("tier")?.filter(|_| action == "pin");
    let full = pinned_to.and_then(|tier| Some((tiers::pin_has_no_room(pool, &tier)?, tier)));
    if let Some((_, tier)) = full.as_ref().filter(|_| parameters.flag("wait").unwrap_or(false)) {
        refuse_if_not_all_fits(pool, &subject, tier, &what)?;
        return Ok(moved_json(&name, &jobs, None));
    }
    let full = full.map(|(why, tier)| format!("tier '{tier}', {why}"));
    let warning = full.map(|full| {
        format!(
            "it is pinned to {full}: what is not pinned there makes way, the coldest first; 'terrace where {name}' shows what \
             has come there, and what finds no room even so stays on other tiers"
        )
    });
    Ok(moved_json(&name, &jobs, warning))
}

/// Returns when all these moves by hand are over, also those behind one that failed; why the first that did, if one did.
fn wait_for_moves(
    pool: &OpenPool,
    ids: &[u64],
    action: &str,
    subject: &Subject,
    parameters: &Parameters,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    let (mut waiting, mut failure) = (ids.to_vec(), None);
    while !waiting.is_empty() {
        let mut jobs = pool.engine().mover().jobs();
        jobs.retain(|job| ids.contains(&job.id));
        if let Some(job) = jobs.iter().find(|job| waiting.contains(&job.id)) {
            exchange.progress(Progress {
                what: answers::in_progress(pool.name(), job.id, job.kind, job.state, &job.reason),
                done_bytes: jobs.iter().map(|job| job.done_bytes).sum(),
                total_bytes: jobs.iter().map(|job| job.total_bytes).sum(),
            })?;
        }
        for id in std::mem::take(&mut waiting) {
            let Some(job) = jobs.iter().find(|job| job.id == id) else {
                // It ended so long ago that it is not listed any more.
                continue;
            };
            match refuse_if_failed(pool, job, action, subject, parameters) {
                Ok(()) if job.state == "done" => {}
                Ok(()) => waiting.push(id),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if waiting.is_empty() {
            break;
        }
        if exchange.is_stopping() {
            return Err(Failure::new(
                format!("{action} '{}'", subject.name),
                "the pool is being stopped",
                "the job goes on after the next start",
            ));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    failure.map_or(Ok(()), Err)
}

/// Why a move by hand did not do what it was to do, if it is known not to.
fn refuse_if_failed(
    pool: &OpenPool,
    job: &JobInfo,
    action: &str,
    subject: &Subject,
    parameters: &Parameters,
) -> Result<(), Failure> {
    let what = format!("{action} '{}'", subject.name);
    match job.state {
        "done" => Ok(()),
        // The pin holds all the same.
        _ if job.fails => {
            if let Some(tier) = parameters.optional_text("tier")?
                && action == "pin"
                && tiers::pin_has_no_room(pool, &tier).is_some()
            {
                refuse_if_not_all_fits(pool, subject, &tier, &what)?;
            }
            let advice = format!(
                "the pin holds, and 'terrace jobs resume {}' tries at once",
                job.id
            );
            Err(Failure::new(what, &job.reason, advice))
        }
        "failed" | "cancelled" => Err(Failure::new(what, &job.reason, "")),
        _ => Ok(()),
    }
}

/// Whoever waited for a pin is told how much found no room.
fn refuse_if_not_all_fits(pool: &OpenPool, subject: &Subject, tier: &str, what: &str) -> Result<(), Failure> {
    let stored = found_with_below(pool, subject, Some(tier), true)?.stored;
    let stored = stored.unwrap_or_default();
    let tiers = pool.engine().store().space().tiers;
    let at = tiers.iter().position(|other| other.name == tier);
    let sum = |wanted: &dyn Fn(usize) -> bool| -> u64 {
        let by_tier = stored.by_tier().iter();
        by_tier
            .filter(|(on, _)| wanted(usize::from(**on)))
            .map(|(_, bytes)| bytes)
            .sum()
    };
    let (left, all) = (sum(&|on| Some(on) != at), sum(&|_| true));
    if left == 0 {
        return Ok(());
    }
    let (size, free) = at.and_then(|at| tiers.get(at)).map_or((0, 0), |tier| {
        (tier.size_bytes, tier.size_bytes.saturating_sub(tier.used_bytes))
    });
    Err(Failure::new(
        what,
        format!(
            "{} of {} found no room on tier '{tier}' and stay on other tiers: {} of its {} are free, which writes and \
             metadata need",
            format_size(left),
            format_size(all),
            format_size(free),
            format_size(size)
        ),
        format!(
            "the pin holds; make room ('terrace pool add', or 'terrace demote' and 'terrace unpin' of other content), \
             then 'terrace pin {} {tier} --wait' again",
            subject.name
        ),
    ))
}

/// A pin wins over what is asked for by hand: the command says so, and what takes the pin away.
fn refuse_if_pinned(pool: &OpenPool, subject: &Subject, action: &str) -> Result<(), Failure> {
    let Some(pin) = where_is::pin_of(pool, subject) else {
        return Ok(());
    };
    let up = action == "promote";
    let target = pool
        .engine()
        .mover()
        .shifted(subject.number, subject.for_mover(), up);
    let tiers = pool.engine().pool().tiers();
    let target = target.ok().and_then(|target| tiers.get(usize::from(target)));
    if target.is_some_and(|target| target.settings.name == pin.tier) {
        return Ok(());
    }
    let holder = pin.directory.as_deref().unwrap_or(match subject.is_dataset {
        true => &subject.dataset,
        false => &subject.name,
    });
    let own = pool.engine().mover().own_pin(subject.number, subject.for_mover());
    let (whose, holder) = match (&pin.directory, own) {
        (Some(directory), _) => (format!("by directory '{directory}'"), holder),
        (None, Some(_)) => ("by a pin of its own".to_owned(), holder),
        (None, None) if subject.is_dataset => ("by its property".to_owned(), holder),
        (None, None) => (
            format!("by dataset '{}' or another of its names", subject.dataset),
            subject.dataset.as_str(),
        ),
    };
    Err(Failure::new(
        format!("{action} '{}'", subject.name),
        format!("it is pinned to tier '{}', {whose}", pin.tier),
        format!("'terrace unpin {holder}' first, or pin it to another tier"),
    ))
}

/// There is no pin of its own to take away: whose holds, if any.
fn unpin_what_has_none(pool: &OpenPool, subject: &Subject) -> Result<Value, Failure> {
    let Some(pin) = where_is::pin_of(pool, subject) else {
        return Ok(moved_json(&subject.name, &[], Some("it was not pinned".into())));
    };
    let holder = pin.directory.unwrap_or_else(|| subject.dataset.clone());
    Err(Failure::new(
        format!("unpin '{}'", subject.name),
        format!(
            "it has no pin of its own; it is pinned to tier '{}' by '{holder}'",
            pin.tier
        ),
        format!("'terrace unpin {holder}' takes that pin away, and 'terrace pin' gives this one of its own"),
    ))
}

/// What lies where of a subject, and of the datasets below it that go by the pin of one that is to be `pinned`.
fn found_with_below(
    pool: &OpenPool,
    subject: &Subject,
    tier: Option<&str>,
    pinned: bool,
) -> Result<Found, Failure> {
    let mut found = where_is::found(pool, subject, tier, Some(StoredOnce::default()))?;
    if pinned && subject.is_dataset {
        for name in properties::pinned_with(pool, &subject.dataset) {
            if name != subject.dataset {
                let below = Subject::find(pool.engine(), &name)?;
                let beneath = where_is::found(pool, &below, tier, found.stored.take())?;
                (found.files, found.stored) = (found.files + beneath.files, beneath.stored);
            }
        }
    }
    Ok(found)
}

/// What would move, and whether it fits; changes nothing.
fn would_move(
    pool: &OpenPool,
    parameters: &Parameters,
    subject: &Subject,
    action: &str,
) -> Result<Value, Failure> {
    let what = format!("{action} '{}'", subject.name);
    let tiers = pool.engine().store().space().tiers;
    let target = match action {
        "pin" => {
            let name = parameters.text("tier")?;
            tiers.iter().position(|tier| tier.name == name).ok_or_else(|| {
                let names: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
                Failure::new(
                    &what,
                    format!("there is no tier '{name}'"),
                    format!(
                        "there are {}; 'terrace unpin {}' takes a pin away",
                        names.join(", "),
                        subject.name
                    ),
                )
            })?
        }
        _ => {
            let mover = pool.engine().mover();
            let target = mover.shifted(subject.number, subject.for_mover(), action == "promote");
            usize::from(target.map_err(|error| failed(&what, &error))?)
        }
    };
    let target_name = tiers.get(target).map(|tier| tier.name.as_str());
    let found = found_with_below(pool, subject, target_name, action == "pin")?;
    let stored = found.stored.unwrap_or_default();
    let others = stored
        .by_tier()
        .iter()
        .filter(|(tier, _)| usize::from(**tier) != target);
    let bytes: u64 = others.map(|(_, bytes)| bytes).sum();
    let (name, free_bytes) = tiers.get(target).map_or(("", 0), |tier| {
        (
            tier.name.as_str(),
            tier.size_bytes.saturating_sub(tier.used_bytes),
        )
    });
    Ok(json!({
        "path": subject.name,
        "files": found.files,
        "would_move_bytes": bytes,
        "tier": name,
        "tier_free_bytes": free_bytes,
    }))
}

/// The answer of a move by hand: `job` is the first of them, as long as there was one alone.
fn moved_json(path: &str, jobs: &[u64], warning: Option<String>) -> Value {
    json!({ "path": path, "job": jobs.first(), "jobs": jobs, "warning": warning })
}
