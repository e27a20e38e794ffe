//! `terrace verify --rebuild`: what can be saved of a damaged pool, put into a new one.
//!
//! Invariants: the devices of the damaged pool are opened for reading only, and are never among those of the new one;
//! both pools are held meanwhile, so that no daemon starts.

use std::{path::PathBuf, process::ExitCode};

use terrace_control::{Failure, RunLock};
use terrace_device::format_size;
use terrace_engine::{
    OpenOptions, PoolSpec, RebuildOptions, RebuildReport, RebuiltFile, rebuild as rebuild_devices,
};

use super::{
    pools,
    verify::{Source, reader},
};
use crate::{
    arguments::VerifyArguments,
    commands::Session,
    daemon::{describe_pool, failure_of, open_pool},
    machine::{Registry, output},
};

/// Runs it: exit status 1 if something could not be placed.
pub fn rebuild(
    session: &Session,
    arguments: &VerifyArguments,
    source: &Source,
    new_pool: &str,
) -> Result<ExitCode, Failure> {
    let what = format!("rebuild pool '{}' into '{new_pool}'", source.name);
    let fail = |error: &dyn std::fmt::Display| failure_of(&what, error);
    if source.name == new_pool && source.known {
        return Err(Failure::new(
            what,
            "the damaged pool is never written to",
            "name another pool with --rebuild",
        )
        .as_usage());
    }
    let devices = source.open(&what, true)?;
    let options = RebuildOptions {
        list_saved: arguments.list,
    };
    let mut progress = reader();
    let report = if arguments.dry_run {
        let mut show = |phase: &'static str, done, total| progress.show(phase, done, total);
        rebuild_devices(devices, None, options, &mut show).map_err(|error| fail(&error))?
    } else {
        let registry = Registry::new(&session.places);
        if !arguments.tiers.is_empty() {
            refuse_overlap(&what, new_pool, arguments, source)?;
            let (tiers, copies) = (&arguments.tiers, &arguments.copies);
            pools::make(
                session,
                new_pool,
                tiers,
                copies,
                &arguments.options,
                arguments.force,
            )?;
        }
        let known = registry.require(new_pool).map_err(|failure| {
            let remedy =
                "make it with 'terrace pool create', or name its devices here with --tier NAME=DEVICE";
            Failure::new(what.clone(), failure.why, remedy)
        })?;
        let lock = RunLock::acquire(&session.places.lock_file(new_pool)).map_err(|error| fail(&error))?;
        let _lock = lock.map_err(|_| {
            let remedy = format!("run 'terrace stop {new_pool}' first");
            Failure::new(what.clone(), "the new pool is in use by its daemon", remedy)
        })?;
        let driven = || OpenOptions {
            threads: false,
            ..OpenOptions::default()
        };
        let engine = open_pool(&known, driven())?;
        let outcome = {
            let mut show = |phase: &'static str, done, total| progress.show(phase, done, total);
            rebuild_devices(devices, Some(&engine), options, &mut show)
        };
        drop(engine);
        let report = outcome.map_err(|error| {
            let mut failure = fail(&error);
            if failure.remedy.is_empty() {
                failure.remedy = format!(
                    "'{new_pool}' holds part of it: 'terrace pool destroy {new_pool}', then try again with a pool that is large enough"
                );
            }
            failure
        })?;
        // Opened once as a pool that is used: its records are read, and the event noted.
        let engine = open_pool(&known, driven())?;
        engine.event("rebuild", &format!("rebuilt from pool '{}'", source.name));
        let words: Vec<String> = std::env::args().skip(1).collect();
        engine.log_command("", &format!("terrace {}", words.join(" ")));
        let known = describe_pool(&engine);
        engine.close().map_err(|error| fail(&error))?;
        registry.save(&known)?;
        report
    };
    progress.finish();
    if session.json {
        output::json(&report)?;
    } else {
        print(&report)?;
    }
    if report.complete {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(
        what,
        format!(
            "{} damaged, {} lost, {} without a name; {} lost",
            output::count(report.damaged.len(), "file"),
            report.lost.len(),
            report.found.len(),
            output::count(report.lost_chunks, "chunk")
        ),
        "restore those named from a backup; keep the devices of the damaged pool until you have looked at the new one",
    ))
}

fn refuse_overlap(
    what: &str,
    new_pool: &str,
    arguments: &VerifyArguments,
    source: &Source,
) -> Result<(), Failure> {
    let spec = PoolSpec::parse(new_pool, &arguments.tiers, &arguments.copies, &arguments.options)
        .map_err(|error| failure_of(what, &error).as_usage())?;
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let own: Vec<PathBuf> = source.devices.iter().map(real).collect();
    for device in spec.tiers.iter().flat_map(|tier| &tier.devices) {
        if own.contains(&real(&device.path)) {
            return Err(Failure::new(
                what,
                format!("'{}' is a device of the damaged pool", device.path.display()),
                "the new pool needs devices of its own",
            )
            .as_usage());
        }
    }
    Ok(())
}

fn print(report: &RebuildReport) -> Result<(), Failure> {
    let state = match report.state.as_str() {
        "whole" => "its newest state is whole",
        "gap" => "part of its log is lost",
        "tables" => "its roots are lost: put together from tables and log entries",
        _ => "its tables are lost: put together from chunks alone",
    };
    let into = if report.new_pool.is_empty() {
        "would be saved".to_owned()
    } else {
        format!("saved in '{}'", report.new_pool)
    };
    output::line(&format!(
        "pool '{}': {state}; {} in {} {into} whole, {} in {}; {} damaged, {} lost, {} without a name",
        report.pool,
        output::count(report.saved, "file"),
        output::count(report.datasets.len(), "dataset"),
        format_size(report.placed_bytes),
        output::count(report.placed_chunks, "chunk"),
        report.damaged.len(),
        report.lost.len(),
        report.found.len(),
    ))?;
    let lists = [
        ("saved", &report.saved_files),
        ("damaged", &report.damaged),
        ("lost", &report.lost),
        ("found", &report.found),
    ];
    for (word, files) in lists {
        for file in files {
            output::line(&format!("  {word}: {}", describe(file)))?;
        }
    }
    if !report.lists_complete {
        output::line("  the lists end here; there is more")?;
    }
    report
        .problems
        .iter()
        .try_for_each(|problem| output::line(&format!("  {problem}")))
}

fn describe(file: &RebuiltFile) -> String {
    let mut text = file.path.clone();
    let mut notes = Vec::new();
    if !file.reason.is_empty() {
        notes.push(file.reason.clone());
    }
    if file.missing_blocks > 0 {
        notes.push(format!(
            "{} of 4 KiB",
            output::count(file.missing_blocks, "block")
        ));
    }
    if file.only_history {
        notes.push("only in snapshots".into());
    }
    if !notes.is_empty() {
        text.push_str(&format!(" ({})", notes.join("; ")));
    }
    text
}
