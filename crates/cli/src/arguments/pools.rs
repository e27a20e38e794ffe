//! The command line of pools and their tiers: `terrace pool …`, `terrace tier …`.

use std::path::PathBuf;

use clap::Subcommand;

use super::{devices::DeviceCommand, flags::Consent};

/// `terrace pool …`
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make a pool
    Create {
        /// Its name
        pool: String,
        /// A tier and its devices, fastest tier first: a block device, a file (made at the size if absent), a directory. A file
        /// takes its room at once; where the filesystem under it has not that much, it is made sparse, and that is said
        #[arg(long = "tier", value_name = "NAME=DEVICE[:SIZE][,DEVICE…]", required = true)]
        tiers: Vec<String>,
        /// How many devices of a tier hold each chunk
        #[arg(long, value_name = "TIER=N")]
        copies: Vec<String>,
        /// A property of the pool, or of its datasets
        #[arg(short, value_name = "PROPERTY=VALUE")]
        options: Vec<String>,
        /// Use devices that hold a pool or other data: what is on them is lost. Never one that is mounted or otherwise in use
        #[arg(short, long)]
        force: bool,
        /// Only say what would be made, of what sizes, and what would be overwritten
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// Encrypt everything (not built yet)
        #[arg(long, hide = true)]
        encrypt: bool,
    },
    /// List the pools that this machine knows
    List,
    /// Destroy a pool and everything in it
    Destroy {
        /// The pool
        pool: String,
        /// Also while files in it are open, devices of its volumes in use, or clients connected to them; and when it cannot be
        /// saved or opened any more: each device that takes a label is marked, and those that do not are named
        #[arg(short, long)]
        force: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Close a pool for use on another machine
    Export {
        /// The pool
        pool: String,
        /// Also while files in it are open
        #[arg(short, long)]
        force: bool,
    },
    /// Find pools by the labels on their devices, under whatever paths, and take them up
    Import {
        /// A directory to look in; /dev if nothing else is given
        #[arg(long, value_name = "DIRECTORY")]
        search: Vec<PathBuf>,
        /// Devices
        devices: Vec<PathBuf>,
        /// Take up this pool only
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
        /// Also a pool that was destroyed
        #[arg(long)]
        destroyed: bool,
        /// Also a pool of which devices are missing; what has no copy elsewhere cannot be read then. Or out of date: those are taken as
        /// they are, and what they missed is brought to them
        #[arg(long)]
        degraded: bool,
        /// Where the end of the log is damaged, or lies only on devices that are missing: open the last state that can be read, and
        /// give up for good what came later (implies --degraded)
        #[arg(long)]
        rewind: bool,
        /// Do not ask, with --rewind
        #[arg(short, long)]
        yes: bool,
        /// Only say what would be taken up, and with --rewind what would be given up
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Give a pool the newest format version, which older programs cannot open; without a pool, list the versions of all
    Upgrade {
        /// The pool
        pool: Option<String>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Devices that come and go
    #[command(flatten)]
    Devices(DeviceCommand),
    /// Show properties of a pool
    Get {
        /// The property, several with commas, or all
        property: String,
        /// The pool
        pool: String,
    },
    /// Set properties of a pool
    Set {
        /// PROPERTY=VALUE, any number of them
        #[arg(required = true, value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// The pool
        pool: String,
    },
}

/// `terrace tier …`
#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// List the tiers of a pool with their settings
    List {
        /// The pool
        pool: String,
    },
    /// List the devices of a pool by tier, with what they hold and how warm that is
    Devices {
        /// The pool
        pool: String,
    },
    /// Tell which share of reads other sizes of the fastest tier would answer, by the reads since the pool was opened
    WhatIf {
        /// The pool
        pool: String,
        /// Sizes of the fastest tier
        #[arg(long, value_name = "SIZE", required = true, num_args = 1..)]
        fast: Vec<String>,
    },
    /// Forget how often everything was used
    ClearHeat {
        /// The pool
        pool: String,
        /// Only say of how much
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Set how a tier is used: promote_after (reads an hour after which content leaves it for a faster tier), demote_after (time
    /// without use after which content leaves it for a slower one), high_water, low_water, landing (off, sequential, random, all:
    /// which new writes land on it), rate_limit, window (HH:MM-HH:MM in local time, when policies may move to and from it; what is
    /// asked for does not wait), hold, copies (1 to 4, each on a device of its own)
    Set {
        /// PROPERTY=VALUE, any number of them
        #[arg(required = true, value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// POOL/TIER
        #[arg(value_name = "POOL/TIER")]
        tier: String,
    },
}
