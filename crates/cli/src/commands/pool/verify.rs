//! `terrace verify`: reads a pool that is not in use, compares everything, and changes nothing.
//!
//! Invariant: devices are opened for reading only; the lock of a pool that this machine knows is held meanwhile, so that
//! no daemon starts.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use terrace_control::{Failure, Progress, RunLock};
use terrace_device::{Device, format_size, peek_path};
use terrace_engine::{VerifyReport, verify as verify_devices};

use super::rebuild;
use crate::{
    arguments::VerifyArguments,
    commands::Session,
    daemon::failure_of,
    machine::{Registry, output},
};

/// The pool to be read.
pub struct Source {
    /// Its name.
    pub name: String,
    /// Whether this machine knows it.
    pub known: bool,
    /// Its devices.
    pub devices: Vec<PathBuf>,
    lock: Option<RunLock>,
}

/// Progress in phases.
pub struct Reader {
    phase: &'static str,
    display: output::ProgressDisplay,
}

/// Nothing is shown yet.
pub fn reader() -> Reader {
    Reader {
        phase: "",
        display: output::ProgressDisplay::new(),
    }
}

impl Reader {
    /// Shows it; each phase counts for itself.
    pub fn show(&mut self, phase: &'static str, done_bytes: u64, total_bytes: u64) {
        if self.phase != phase {
            self.display.finish();
            (self.phase, self.display) = (phase, output::ProgressDisplay::new());
        }
        let what = phase.into();
        self.display.show(&Progress {
            what,
            done_bytes,
            total_bytes,
        });
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        self.display.finish();
    }
}

impl Source {
    /// One that the caller holds, or that nobody knows here.
    pub fn unheld(name: &str, devices: Vec<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            known: false,
            devices,
            lock: None,
        }
    }

    /// Opens its devices for reading; `some`: those that can be opened, if any.
    pub fn open(&self, what: &str, some: bool) -> Result<Vec<Arc<dyn Device>>, Failure> {
        let mut devices = Vec::new();
        let mut failure = None;
        for path in &self.devices {
            match peek_path(path) {
                Ok(device) => devices.push(device),
                Err(error) if some => {
                    tracing::warn!("going on without device '{}': {error}", path.display());
                    failure = Some(failure_of(what, &error));
                }
                Err(error) => return Err(failure_of(what, &error)),
            }
        }
        match failure {
            Some(failure) if devices.is_empty() => Err(failure),
            _ => Ok(devices),
        }
    }
}

/// `terrace verify`: exit status 1 if anything is wrong.
pub fn verify(session: &Session, arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    let source = find(session, arguments)?;
    if let Some(new_pool) = &arguments.rebuild {
        return rebuild::rebuild(session, arguments, &source, new_pool);
    }
    let pool = &source.name;
    let what = format!("verify pool '{pool}'");
    let devices = source.open(&what, false).map_err(|mut failure| {
        if failure.remedy.is_empty() {
            failure.remedy = format!(
                "a pool is verified with all its devices; without this one 'terrace start {pool} --degraded' opens it, and \
                 'terrace scrub {pool} --wait' reads what is left"
            );
        }
        failure
    })?;
    let mut progress = reader();
    let report = verify_devices(devices, &mut |done, total| progress.show("verify", done, total));
    let report = report.map_err(|error| {
        let mut failure = failure_of(&what, &error);
        let rebuild = format!("'terrace verify {pool} --rebuild NEWPOOL' saves what can be saved");
        failure.remedy = match failure.remedy.as_str() {
            "" => rebuild,
            remedy => format!("{remedy}; {rebuild}"),
        };
        failure
    })?;
    progress.finish();
    drop(source.lock);
    if session.json {
        output::json(&report)?;
    } else {
        print(&report)?;
    }
    if report.clean {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(
        what,
        format!(
            "{} damaged {}, {} lost in {}, {}, {} damaged labels, roots or log entries, {}, {}",
            report.damaged_copies,
            if report.damaged_copies == 1 {
                "copy"
            } else {
                "copies"
            },
            output::count(report.lost_chunks, "chunk"),
            output::count(report.files.len(), "file"),
            output::count(report.damaged_tables, "damaged table"),
            report.damaged_records,
            output::count(report.wrong_counts, "wrong count"),
            output::count(report.wrong_records, "wrong record")
        ),
        format!(
            "start the pool and run 'terrace scrub {pool}', which repairs what has a good copy; restore the files named"
        ),
    ))
}

/// The pool that the words mean: one that is known here, or one that its labels tell.
fn find(session: &Session, arguments: &VerifyArguments) -> Result<Source, Failure> {
    let (devices, names): (Vec<&String>, Vec<&String>) =
        arguments.words.iter().partition(|word| word.contains('/'));
    let usage = |why: &str| {
        Failure::new(
            "verify",
            why,
            "name one pool, or give its devices by paths with a '/', or directories with --search",
        )
        .as_usage()
    };
    if names.len() > 1 {
        return Err(usage("more than one pool is named"));
    }
    let name = names.first().map(|name| name.as_str());
    let registry = Registry::new(&session.places);
    if devices.is_empty() && arguments.search.is_empty() {
        let known = registry.require(name.ok_or_else(|| usage("no pool is named"))?)?;
        return Ok(Source {
            lock: Some(hold(session, &known.name)?),
            devices: crate::daemon::device_paths(&known),
            name: known.name,
            known: true,
        });
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let search: Vec<PathBuf> = arguments.search.iter().map(|path| absolute(path)).collect();
    let devices: Vec<PathBuf> = devices.iter().map(|path| absolute(Path::new(path))).collect();
    for path in search.iter().chain(&devices) {
        if !path.exists() {
            let why = format!("'{}' does not exist", path.display());
            return Err(Failure::new(
                "verify",
                why,
                "give directories with --search, and devices by their paths",
            ));
        }
    }
    let (mut found, refused) = terrace_pool::scan(&search, &devices);
    found.retain(|pool| name.is_none_or(|name| name == pool.name));
    let pool = match found.len() {
        1 => found.remove(0),
        0 => {
            if let Some(error) = refused.first() {
                return Err(crate::daemon::failure_of("verify", error));
            }
            let why = "no label of such a pool is there";
            let remedy = "give more directories with --search, or the devices by their paths";
            return Err(Failure::new("verify", why, remedy));
        }
        _ => {
            let all: Vec<&str> = found.iter().map(|pool| pool.name.as_str()).collect();
            let why = format!("there are several pools: {}", all.join(", "));
            return Err(Failure::new(
                "verify",
                why,
                "name one of them, or give its devices alone",
            ));
        }
    };
    let same = registry
        .find(&pool.name)?
        .is_some_and(|known| known.id == terrace_pool::format_id(&pool.id));
    let mut paths: Vec<PathBuf> = pool.devices.iter().map(|device| device.path.clone()).collect();
    // Devices that were named are looked at even if their labels say nothing.
    paths.extend(
        devices
            .into_iter()
            .filter(|path| !pool.devices.iter().any(|device| device.path == *path)),
    );
    Ok(Source {
        lock: if same {
            Some(hold(session, &pool.name)?)
        } else {
            None
        },
        name: pool.name,
        known: same,
        devices: paths,
    })
}

fn hold(session: &Session, pool: &str) -> Result<RunLock, Failure> {
    let what = format!("verify pool '{pool}'");
    let lock =
        RunLock::acquire(&session.places.lock_file(pool)).map_err(|error| failure_of(&what, &error))?;
    lock.map_err(|_| {
        Failure::new(
            what.clone(),
            "it is in use by its daemon",
            format!(
                "run 'terrace stop {pool}' first, or use 'terrace scrub {pool}', which works on an open pool"
            ),
        )
    })
}

fn print(report: &VerifyReport) -> Result<(), Failure> {
    output::line(&format!(
        "verified pool '{}': {} read, {} in {} copies, {}",
        report.pool,
        format_size(report.bytes),
        output::count(report.chunks, "chunk"),
        report.copies,
        if report.clean {
            "nothing wrong"
        } else {
            "not clean"
        }
    ))?;
    for file in &report.files {
        let history = if file.only_history {
            ", only in snapshots"
        } else {
            ""
        };
        output::line(&format!(
            "  lost: {} ({} of 4 KiB{history})",
            file.path,
            output::count(file.blocks, "block")
        ))?;
    }
    if !report.files_complete {
        output::line("  there may be more files: some tables cannot be read")?;
    }
    report
        .problems
        .iter()
        .try_for_each(|problem| output::line(&format!("  {problem}")))?;
    match report.more_problems {
        0 => Ok(()),
        more => output::line(&format!("  and {more} more")),
    }
}
