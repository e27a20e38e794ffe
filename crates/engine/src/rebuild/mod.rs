//! Rebuilding a pool whose tables are damaged beyond opening into a new pool, as far as the data allow.
//!
//! The source is only read. What its records still say (`terrace_chunk::Salvaged` finds the newest whole state, or the
//! newest word on each record) is put into the new pool record by record, chunks under new numbers, so that datasets,
//! snapshots, history, hard links, attributes and volumes come back as they were. What does not fit together any more is
//! mended as a filesystem check would: counts are made anew, what has no name goes to `lost+found`, what has no content is
//! named in the report.
//! Invariants: no byte of the source is changed; everything in the new pool was verified against its hash; a file that is
//! not whole is never reported as saved; what is reported as saved is durable when this returns. Memory is in proportion
//! to the numbers of chunks and objects.

mod content;
mod datasets;
mod namespace;
mod objects;
mod regions;

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use terrace_chunk::{How, Salvaged, Survey};
use terrace_device::Device;
use terrace_pool::{Pool, PoolError};

use crate::{EngineError, floors::Floors};

/// Lines of each list that are kept at most, unless all are asked for.
const LINES_MAX: usize = 10_000;

/// Gets the phase (`scan`, `copy`), bytes done and bytes in all.
pub type Progress<'a> = dyn FnMut(&'static str, u64, u64) + 'a;

/// A file, directory or volume in a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RebuiltFile {
    /// `DATASET/PATH` below the pool.
    pub path: String,
    /// What is wrong with it; empty if nothing is.
    pub reason: String,
    /// Blocks of 4 KiB that are missing; they read as zeroes.
    pub missing_blocks: u64,
    /// Only snapshots or the history miss them.
    pub only_history: bool,
}

/// A dataset of the new pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RebuiltDataset {
    /// Its name below the pool; empty for the pool's own.
    pub name: String,
    /// `filesystem` or `volume`.
    pub kind: String,
    /// Files, directories and so on.
    pub objects: u64,
    /// Content that it maps, bytes.
    pub bytes: u64,
    /// Snapshots and retained checkpoints.
    pub snapshots: u64,
    /// Its own record was lost: name and properties are made up.
    pub made_up: bool,
}

/// What a rebuilding found and placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RebuildReport {
    /// The damaged pool.
    pub pool: String,
    /// The new one; empty in a dry run.
    pub new_pool: String,
    /// `whole`: the newest state with all its metadata; `gap`: part of the log is missing; `tables`: put together from
    /// single tables and log entries; `chunks`: from chunks alone.
    pub state: String,
    /// Whether everything that was found was placed and nothing is known to be missing.
    pub complete: bool,
    /// The newest batch of changes in what was rebuilt.
    pub batch: u64,
    /// The newest that there was.
    pub newest_batch: u64,
    /// Bytes of segments read in search of them.
    pub scanned_bytes: u64,
    /// Bytes that no device returned.
    pub unreadable_bytes: u64,
    /// Chunks found on the devices, those no longer in use included.
    pub found_chunks: u64,
    /// Chunks placed.
    pub placed_chunks: u64,
    /// Their content, bytes.
    pub placed_bytes: u64,
    /// Chunks that are named somewhere and are nowhere.
    pub lost_chunks: u64,
    /// The datasets.
    pub datasets: Vec<RebuiltDataset>,
    /// Files, directories and volumes saved whole.
    pub saved: u64,
    /// Their names, when asked for.
    pub saved_files: Vec<RebuiltFile>,
    /// What is there with parts missing or attributes made up.
    pub damaged: Vec<RebuiltFile>,
    /// Names of which nothing else is left.
    pub lost: Vec<RebuiltFile>,
    /// What lost its name and was put into `lost+found`.
    pub found: Vec<RebuiltFile>,
    /// Further damage, in words.
    pub problems: Vec<String>,
    /// Whether the lists above name everything.
    pub lists_complete: bool,
}

/// What to do with what was found.
#[derive(Debug, Clone, Copy, Default)]
pub struct RebuildOptions {
    /// Name every file that was saved.
    pub list_saved: bool,
}

/// See `terrace_engine::rebuild`.
pub(crate) fn run<'a>(
    devices: Vec<Arc<dyn Device>>,
    target: Option<&'a Floors>,
    options: RebuildOptions,
    progress: &'a mut Progress<'a>,
) -> Result<RebuildReport, EngineError> {
    if let Some(target) = target {
        check_fresh(target)?;
    }
    let mut report = RebuildReport {
        lists_complete: true,
        ..RebuildReport::default()
    };
    let pool = open_source(devices, &mut report.problems)?;
    let total = Survey::total_bytes(&pool);
    let chunk_options = terrace_chunk::Options {
        threads: 0,
        ..Default::default()
    };
    let salvaged = Salvaged::open(pool.clone(), &chunk_options, &mut |done| {
        progress("scan", done, total)
    });
    describe(&pool, &salvaged, &mut report);
    if let Some(target) = target {
        report.new_pool = target.pool.name();
    }
    datasets::run(&salvaged, target, options, progress, &mut report)?;
    report.complete = report.damaged.is_empty()
        && report.lost.is_empty()
        && report.found.is_empty()
        && report.problems.is_empty()
        && report.lost_chunks == 0;
    Ok(report)
}

/// Opens what there is of the pool; devices that cannot be part of it are left out, and named.
fn open_source(
    mut devices: Vec<Arc<dyn Device>>,
    problems: &mut Vec<String>,
) -> Result<Arc<Pool>, EngineError> {
    let options = terrace_pool::OpenOptions {
        degraded: true,
        accept_stale: true,
        exported: true,
        destroyed: true,
        read_only: true,
        ..Default::default()
    };
    loop {
        let error = match Pool::open(devices.clone(), options.clone()) {
            Ok(pool) => {
                let missing = pool
                    .devices()
                    .into_iter()
                    .filter(|device| device.state == terrace_pool::DeviceState::Missing);
                problems.extend(missing.map(|device| {
                    format!(
                        "device {} (last seen as {}) is missing",
                        device.number, device.path
                    )
                }));
                return Ok(Arc::new(pool));
            }
            Err(error) => error,
        };
        let unfit = match &error {
            PoolError::NoLabel { path, .. }
            | PoolError::ForeignDevice { path, .. }
            | PoolError::DuplicateDevice { path, .. } => path.clone(),
            _ => return Err(error.into()),
        };
        let before = devices.len();
        devices.retain(|device| device.path() != unfit);
        if devices.is_empty() || devices.len() == before {
            return Err(error.into());
        }
        problems.push(format!("left out: {error}"));
    }
}

fn describe(pool: &Pool, salvaged: &Salvaged, report: &mut RebuildReport) {
    let survey = salvaged.survey();
    report.pool = pool.name();
    report.state = match salvaged.how() {
        How::Whole => "whole",
        How::Gap => "gap",
        How::Tables => "tables",
        How::Chunks => "chunks",
    }
    .into();
    report.batch = salvaged.sequence();
    report.newest_batch = salvaged.newest();
    report.scanned_bytes = survey.bytes;
    report.unreadable_bytes = survey.unreadable_bytes;
    let numbers: BTreeSet<_> = survey.chunks.iter().map(|place| place.id).collect();
    report.found_chunks = numbers.len() as u64;
    match salvaged.how() {
        How::Whole => {}
        How::Gap => report.problems.push(format!(
            "the log is broken behind batch {}: what lies in the gap is lost, what lies behind it was read",
            salvaged.sequence()
        )),
        How::Tables => {
            let (tables, unusable) = salvaged.tables();
            report.problems.push(format!(
                "no whole state is left: put together from {tables} tables and {} log entries found in segments; \
                 what was deleted may be back, what was changed last may be older",
                survey.entries.len()
            ));
            if unusable > 0 {
                report
                    .problems
                    .push(format!("{unusable} tables cannot be used: their index is damaged"));
            }
        }
        How::Chunks => report.problems.push(
            "no metadata is left: files are put together from what each chunk says of its owner, without names".into(),
        ),
    }
    if salvaged.left_out() {
        report
            .problems
            .push("the oldest log entries were left out: they would take too much memory".into());
    }
    if survey.unreadable_bytes > 0 {
        report.problems.push(format!(
            "{} bytes of the devices cannot be read",
            survey.unreadable_bytes
        ));
    }
}

/// The new pool must hold nothing, since all its records are made anew.
fn check_fresh(target: &Floors) -> Result<(), EngineError> {
    let refuse = |what: &str| {
        Err(EngineError::Invalid(format!(
            "pool '{}' {what}; rebuild into a pool that was made for it and never used",
            target.pool.name()
        )))
    };
    let datasets = target.datasets.list(None)?;
    if datasets.len() != 1 {
        return refuse("has datasets");
    }
    if datasets
        .iter()
        .any(|dataset| dataset.objects > 1 || dataset.snapshots > 0 || dataset.retained > 0)
    {
        return refuse("holds files or snapshots");
    }
    Ok(())
}
