//! The command line of `terrace verify`, with `--rebuild`.

use std::path::PathBuf;

use clap::Args;

/// `terrace verify`
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// The pool, by its name here, or its devices (paths with a '/')
    #[arg(value_name = "POOL|DEVICE")]
    pub words: Vec<String>,
    /// Look for the devices in this directory, by their labels
    #[arg(long, value_name = "DIRECTORY")]
    pub search: Vec<PathBuf>,
    /// Save what can be saved into this pool: one made with 'pool create' and never used, or, with --tier, a new one
    #[arg(long, value_name = "NEWPOOL")]
    pub rebuild: Option<String>,
    /// A tier of the new pool and its devices, as in 'pool create'
    #[arg(
        long = "tier",
        value_name = "NAME=DEVICE[:SIZE][,DEVICE…]",
        requires = "rebuild"
    )]
    pub tiers: Vec<String>,
    /// How many devices of a tier of the new pool hold each chunk
    #[arg(long, value_name = "TIER=N", requires = "tiers")]
    pub copies: Vec<String>,
    /// A property of the new pool, or of its datasets
    #[arg(short, value_name = "PROPERTY=VALUE", requires = "tiers")]
    pub options: Vec<String>,
    /// Use devices for the new pool that hold a pool or other data: what is on them is lost
    #[arg(short, long, requires = "tiers")]
    pub force: bool,
    /// Only say what could be saved
    #[arg(short = 'n', long, requires = "rebuild")]
    pub dry_run: bool,
    /// Name every file that is saved, not only those that are not
    #[arg(long, requires = "rebuild")]
    pub list: bool,
}
