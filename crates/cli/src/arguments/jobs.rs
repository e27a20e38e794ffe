//! The command line of background jobs: `terrace jobs …`.

use clap::{Args, Subcommand};

/// `terrace jobs`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct JobsArguments {
    /// The pool; all of them if left out
    pub pool: Option<String>,
    /// What to do with a job
    #[command(subcommand)]
    pub action: Option<JobAction>,
}

/// `terrace jobs pause|resume|cancel`
#[derive(Debug, Subcommand)]
pub enum JobAction {
    /// Let a job rest
    Pause(JobChoice),
    /// Let it go on
    Resume(JobChoice),
    /// Give it up
    Cancel(JobChoice),
}

/// A job.
#[derive(Debug, Args)]
pub struct JobChoice {
    /// Its number, as 'terrace jobs' shows it
    #[arg(value_parser = parse_id)]
    pub id: u64,
    /// Its pool, if more than one is running
    #[arg(long)]
    pub pool: Option<String>,
}

fn parse_id(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "a job has a number, which 'terrace jobs' shows".to_owned())
}
