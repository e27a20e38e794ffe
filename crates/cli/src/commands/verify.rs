//! `terrace verify`: reads a pool that is not in use, compares everything, and changes nothing.
//!
//! Invariant: devices are opened for reading only; the pool's lock is held meanwhile, so that no daemon starts.

use std::process::ExitCode;

use terrace_control::{Failure, Progress, RunLock};
use terrace_device::{format_size, peek_path};
use terrace_engine::{VerifyReport, verify as verify_devices};

use super::Session;
use crate::{daemon::failure_of, output, registry::Registry};

/// `terrace verify POOL`: exit status 1 if anything is wrong.
pub fn verify(session: &Session, pool: &str) -> Result<ExitCode, Failure> {
    let what = format!("verify pool '{pool}'");
    let known = Registry::new(&session.places).require(pool)?;
    let lock =
        RunLock::acquire(&session.places.lock_file(pool)).map_err(|error| failure_of(&what, &error))?;
    let _lock = lock.map_err(|_| {
        Failure::new(
            what.clone(),
            "it is in use by its daemon",
            format!(
                "run 'terrace stop {pool}' first, or use 'terrace scrub {pool}', which works on an open pool"
            ),
        )
    })?;
    let mut devices = Vec::new();
    for path in &known.devices {
        devices.push(peek_path(path).map_err(|error| failure_of(&what, &error))?);
    }
    let mut display = output::ProgressDisplay::new();
    let report = verify_devices(devices, &mut |done_bytes, total_bytes| {
        display.show(&Progress {
            what: "verify".into(),
            done_bytes,
            total_bytes,
        });
    })
    .map_err(|error| failure_of(&what, &error))?;
    display.finish();
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
            "{} damaged copies, {} chunks lost in {} files, {} damaged tables, {} wrong counts, {} wrong records",
            report.damaged_copies,
            report.lost_chunks,
            report.files.len(),
            report.damaged_tables,
            report.wrong_counts,
            report.wrong_records
        ),
        format!(
            "start the pool and run 'terrace scrub {pool}', which repairs what has a good copy; restore the files named"
        ),
    ))
}

fn print(report: &VerifyReport) -> Result<(), Failure> {
    output::line(&format!(
        "verified pool '{}': {} read, {} chunks in {} copies, {}",
        report.pool,
        format_size(report.bytes),
        report.chunks,
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
            "  lost: {} ({} blocks of 4 KiB{history})",
            file.path, file.blocks
        ))?;
    }
    if !report.files_complete {
        output::line("  there may be more files: some tables cannot be read")?;
    }
    report
        .problems
        .iter()
        .try_for_each(|problem| output::line(&format!("  {problem}")))
}
