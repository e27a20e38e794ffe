//! `terrace bench`: how fast a pool is here, on a mount of its own, and beside it any other directory.
//!
//! Rates of one run can be compared with each other, not with those of another hour: machines are shared. For figures
//! beside ext4 and btrfs see `make bench`.

use std::{fs, io, path::Path};

use serde::Serialize;
use terrace_control::Failure;
use terrace_device::{format_size, parse_size};

use super::{
    bench_jobs::{self, Extent, Rate},
    scratch::Scratch,
};
use crate::{
    arguments::{BenchArguments, Suite},
    machine::output,
};

const POOL: &str = "bench";
const SMALLEST_BYTES: u64 = 8 << 20;

/// A job's rates, medians of the rounds.
#[derive(Serialize)]
struct Row {
    job: &'static str,
    unit: &'static str,
    terrace: f64,
    /// In the directory of `--beside`.
    beside: Option<f64>,
    /// `terrace / beside`.
    ratio: Option<f64>,
}

/// Runs it.
pub fn run(arguments: &BenchArguments, json: bool) -> Result<(), Failure> {
    let usage = |cause: &dyn std::fmt::Display| Failure::new("run the benchmark", cause, "").as_usage();
    let bytes = parse_size(&arguments.size).map_err(|error| usage(&error))? >> 20 << 20;
    if bytes < SMALLEST_BYTES || arguments.files == 0 || arguments.rounds == 0 {
        return Err(usage(&"it takes at least --size 8M, --files 1 and --rounds 1"));
    }
    terrace_fuse::check_available().map_err(|error| {
        Failure::new(
            "run the benchmark",
            error,
            "it needs a mount; 'terrace demo' works without",
        )
    })?;
    let extent = Extent {
        bytes,
        files: arguments.files,
    };
    let pool_bytes = bytes * 4 + u64::from(arguments.files) * (16 << 10) + (256 << 20);
    let scratch = Scratch::make(arguments.directory.as_deref(), POOL, pool_bytes + bytes)?;
    let image = scratch.directory().join("pool.img");
    let tier = format!("fast={}:{pool_bytes}", image.display());
    let mount = scratch.directory().join("mnt");
    fs::create_dir(&mount).map_err(|error| Failure::new("make the mount's directory", error, ""))?;
    let mount_text = mount.to_string_lossy().into_owned();
    scratch.run(&["pool", "create", POOL, "--tier", &tier])?;
    scratch.run(&["fs", "create", "bench/data"])?;
    scratch.run(&["mount", "bench/data", &mount_text])?;

    let mut found: [Vec<Rate>; 2] = [Vec::new(), Vec::new()];
    for round in 0..arguments.rounds {
        for suite in suites(arguments.suite) {
            eprintln!("round {} of {}: {suite:?}", round + 1, arguments.rounds);
            let seed = u64::from(round) + 1;
            found[0].extend(measure(suite, &mount, extent, seed)?);
            if let Some(beside) = &arguments.beside {
                let place = beside.join(format!("terrace-bench-{}", std::process::id()));
                let about = |error: io::Error| Failure::new(format!("use '{}'", place.display()), error, "");
                fs::create_dir(&place).map_err(about)?;
                let rates = measure(suite, &place, extent, seed);
                fs::remove_dir_all(&place).map_err(about)?;
                found[1].extend(rates?);
            }
        }
    }
    print(&found, extent, arguments.rounds, json)
}

fn suites(wanted: Suite) -> Vec<Suite> {
    match wanted {
        Suite::All => vec![Suite::Data, Suite::Files, Suite::Twice],
        one => vec![one],
    }
}

fn measure(suite: Suite, directory: &Path, extent: Extent, seed: u64) -> Result<Vec<Rate>, Failure> {
    let rates = match suite {
        Suite::Data => bench_jobs::data(directory, extent, seed),
        Suite::Files => bench_jobs::files(directory, extent, seed),
        Suite::Twice | Suite::All => bench_jobs::twice(directory, extent, seed),
    };
    rates.map_err(|error| {
        Failure::new(
            format!("measure in '{}'", directory.display()),
            error,
            "make room, or take less with --size and --files",
        )
    })
}

fn median(rates: &[Rate], job: &str) -> Option<f64> {
    let mut found: Vec<f64> = rates
        .iter()
        .filter(|rate| rate.job == job)
        .map(|rate| rate.per_second)
        .collect();
    found.sort_by(f64::total_cmp);
    found.get(found.len().checked_sub(1)? / 2).copied()
}

fn print(found: &[Vec<Rate>; 2], extent: Extent, rounds: u32, json: bool) -> Result<(), Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for rate in &found[0] {
        if rows.iter().any(|row| row.job == rate.job) {
            continue;
        }
        let terrace = median(&found[0], rate.job).unwrap_or_default();
        let beside = median(&found[1], rate.job);
        rows.push(Row {
            job: rate.job,
            unit: rate.unit,
            terrace,
            beside,
            ratio: beside.map(|beside| terrace / beside.max(1e-9)),
        });
    }
    if json {
        return output::json(&rows);
    }
    let text = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
    };
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.job.into(),
                row.unit.into(),
                text(Some(row.terrace), 0),
                text(row.beside, 0),
                text(row.ratio, 2),
            ]
        })
        .collect();
    output::table(&["JOB", "UNIT", "TERRACE", "BESIDE", "RATIO"], &cells, &[2, 3, 4])?;
    output::line(&format!(
        "{} of data, {}, medians of {rounds} rounds",
        format_size(extent.bytes),
        output::count(extent.files, "file")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(values: &[f64]) -> Vec<Rate> {
        values
            .iter()
            .map(|value| Rate {
                job: "job",
                unit: "",
                per_second: *value,
            })
            .collect()
    }

    #[test]
    fn medians_are_of_the_job_alone() {
        let mut found = rates(&[3.0, 1.0, 2.0]);
        found.push(Rate {
            job: "other",
            unit: "",
            per_second: 9.0,
        });
        assert_eq!(median(&found, "job"), Some(2.0));
        assert_eq!(median(&found, "none"), None);
    }

    #[test]
    fn every_job_measures_something_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let extent = Extent {
            bytes: 8 << 20,
            files: 20,
        };
        for suite in [Suite::Files, Suite::Twice] {
            let rates = measure(suite, directory.path(), extent, 1).unwrap();
            assert!(rates.iter().all(|rate| rate.per_second > 0.0));
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
