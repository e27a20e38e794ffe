//! `terrace-sim`: runs seeds of the simulator, or replays one.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use terrace_sim::{
    hardware::{Coverage, FaultKind},
    run::{Level, Outcome, keep_panics, locks, regressions, run_many, run_seed},
};

/// Runs the engine on simulated disks, from seeds; the same seed does the same again.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// What to drive.
    #[arg(long, value_enum, default_value_t = Level::All)]
    level: Level,
    /// Replay this one seed.
    #[arg(long)]
    replay: Option<u64>,
    /// With --replay: print everything that happens.
    #[arg(long)]
    trace: bool,
    /// Threads; the number of processors if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Run for this many hours instead of a number of seeds.
    #[arg(long)]
    hours: Option<f64>,
    /// Run the kept seeds of this file first.
    #[arg(long)]
    regressions: Option<PathBuf>,
    /// Stop after this many failures.
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Write the page of the locks that each operation took to this file; a build with debug assertions.
    #[arg(long)]
    locks: Option<PathBuf>,
    /// Append `passed N` and `failed N` to this file.
    #[arg(long)]
    report: Option<PathBuf>,
}

fn show(outcome: &Outcome) {
    let mut out = std::io::stdout().lock();
    // Written and flushed at once: what was found must outlive a run that is killed. Nobody listening is no failure.
    let _ = out
        .write_all(words(outcome).as_bytes())
        .and_then(|()| out.flush());
}

fn words(outcome: &Outcome) -> String {
    let mut words = format!(
        "FAILED: {} seed {}: {}\n",
        outcome.level.words(),
        outcome.seed,
        outcome.violation.as_deref().unwrap_or("nothing wrong")
    );
    for line in &outcome.tail {
        words += &format!("    … {line}\n");
    }
    words += &format!(
        "    replay: cargo run --release --bin terrace-sim -- --level {} --replay {} --trace\n",
        outcome.level.words(),
        outcome.seed
    );
    words
}

fn replay(level: Level, seed: u64, trace: bool, coverage: &Arc<Coverage>) -> ExitCode {
    let outcome = run_seed(level, seed, trace, coverage);
    println!(
        "seed {seed}: {} events, trace hash {:016x}",
        outcome.events, outcome.hash
    );
    if outcome.violation.is_some() {
        show(&outcome);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Panics are reported with their seed; the hook's own message would come without it.
    if arguments.replay.is_none() {
        keep_panics();
    }
    let coverage = Arc::new(Coverage::default());
    if let Some(seed) = arguments.replay {
        return replay(arguments.level, seed, arguments.trace, &coverage);
    }
    if arguments.locks.is_some() {
        terrace_sync::trace::record();
    }
    let mut jobs = Vec::new();
    if let Some(path) = &arguments.regressions {
        match regressions::read(path) {
            Ok(kept) => jobs.extend(kept.iter().map(|one| (one.level, one.seed))),
            Err(error) => {
                eprintln!("cannot read the kept seeds: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let kept = jobs.len();
    let until = arguments
        .hours
        .map(|hours| Instant::now() + Duration::from_secs_f64(hours * 3600.0));
    let count = if until.is_some() {
        100_000_000
    } else {
        arguments.seeds
    };
    jobs.extend((arguments.from..arguments.from.saturating_add(count)).map(|seed| (arguments.level, seed)));
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(2, std::num::NonZero::get))
        .max(1);
    let began = Instant::now();
    let summary = run_many(&jobs, threads, arguments.failures, until, &coverage, &show);
    let seconds = began.elapsed().as_secs_f64().max(0.001);
    let mut failures = summary.failures.len() as u64;
    if failures > 0 {
        println!("\nall that failed:");
    }
    for outcome in &summary.failures {
        show(outcome);
    }
    let runs = summary.passed + failures;
    println!(
        "{runs} seeds from {} (and {kept} kept) at level {}: {:.1} seeds/s, {} events",
        arguments.from,
        arguments.level.words(),
        runs as f64 / seconds,
        summary.events
    );
    println!("faults that took effect:");
    for kind in FaultKind::ALL {
        println!("    {:<32}{:>10}", kind.words(), coverage.count(*kind));
    }
    // Few seeds cannot meet everything; from some hundred on, a kind that is never met is not tested.
    if arguments.level == Level::All && summary.passed >= 400 {
        // That one is met at a level of its own.
        let missing = coverage.missing().into_iter();
        for kind in missing.filter(|kind| *kind != FaultKind::Replaced) {
            println!("FAILED: no run met the fault '{}'", kind.words());
            failures += 1;
        }
    }
    if let Some(path) = &arguments.locks
        && let Err(error) = std::fs::write(path, locks::page())
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if let Some(path) = &arguments.report {
        let line = format!("passed {}\nfailed {failures}\n", summary.passed);
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            eprintln!("cannot write {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
