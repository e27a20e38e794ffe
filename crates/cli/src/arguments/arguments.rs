//! The command line: every command, its arguments and its help. Man pages and completions come from here too.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::{
    bench::BenchArguments,
    content::{DatasetCommand, FileCommand, PlacementCommand},
    datasets::ServeArguments,
    devices::EvacuateArguments,
    flags::Waiting,
    jobs::JobsArguments,
    pools::{PoolCommand, TierCommand},
    verify::VerifyArguments,
};
use crate::machine::Via;

/// One pool of fast and slow storage: tiers, dedup, compression, checksums, snapshots.
///
/// Sizes are written 512M or 1.5T (binary), times 30s, 5m, 60d. Exit status: 0 done, 1 failed, 2 wrong
/// usage: words, options, names and values of properties that are wrong wherever they are used.
#[derive(Debug, Parser)]
#[command(
    name = "terrace",
    version,
    propagate_version = true,
    max_term_width = 100,
    disable_help_subcommand = false
)]
pub struct Arguments {
    /// Print JSON (queries)
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Everything that `terrace` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make, list, import, export and destroy pools
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Show and set the tiers of a pool
    #[command(subcommand)]
    Tier(TierCommand),
    #[command(flatten)]
    Datasets(DatasetCommand),
    /// Make a volume, or a snapshot of one (VOLUME@NAME), a block device of this machine, and print which
    ///
    /// The device is one of ublk (/dev/ublkbN) where the kernel has that, else a loop device, with logical blocks of the
    /// volume's block_size; its partitions are devices beside it. Root alone can make one. It comes back with the daemon,
    /// and has a name that stays the same, for fstab and crypttab: disk/POOL/VOLUME in the run directory
    /// (/run/terrace/disk/POOL/VOLUME for root). 'terrace doctor' says which kind is made here, and why.
    Attach {
        /// The volume; one that is attached already stays as it is
        volume: String,
        /// Refuse writes (snapshots always do)
        #[arg(long = "ro")]
        read_only: bool,
        /// Through what
        #[arg(long, value_enum, default_value_t)]
        via: Via,
    },
    /// Take the block device of a volume away
    Detach {
        /// The volume, or its device (/dev/ublkbN, /dev/loopN), or the name of it that stays
        target: String,
        /// Also while it is in use: it ends with its last user
        #[arg(short, long)]
        force: bool,
    },
    /// Serve a volume, or a snapshot of one (VOLUME@NAME), to NBD clients or a virtual machine; print where they find it
    ///
    /// With --vhost-user a machine monitor such as qemu connects to the socket PATH, and the guest sees the volume as a
    /// virtio disk: -object memory-backend-memfd,id=m,size=RAM,share=on -machine memory-backend=m
    /// -chardev socket,id=c,path=PATH,reconnect=1 -device vhost-user-blk-pci,chardev=c,num-queues=4.
    /// Its sectors are those of the volume's block_size. A BIOS boots only from sectors of 512 bytes, and images of whole
    /// disks are made for these: 'terrace volume create --block-size 512', or 'terrace set block_size=512 VOLUME'.
    ///
    /// The export has the volume's name; several volumes may share an address. A Unix socket is made for its owner alone.
    /// Without --tls-cert there is no encryption and no password: who reaches the address can use the volume. With it,
    /// clients that do not begin TLS are refused, and with --tls-ca those without a certificate of that authority too.
    /// Certificates alone, no pre-shared keys; renewed files are used for the next client.
    Serve(ServeArguments),
    /// Stop serving a volume, everywhere; its clients are disconnected
    Unserve {
        /// The volume
        volume: String,
    },
    /// Start the daemon that holds a pool; mounts, devices and services that a dead daemon left come back
    Start {
        /// The pool
        pool: String,
        /// Stay in the foreground (for systemd)
        #[arg(long)]
        foreground: bool,
        /// Start although devices are missing, or are out of date: those are taken as they are, and what they missed is brought to
        /// them
        #[arg(long)]
        degraded: bool,
        /// Where the end of the log is damaged, or lies only on devices that are missing: open the last state that can be read, and
        /// give up for good what came later (implies --degraded)
        #[arg(long)]
        rewind: bool,
        /// Do not ask, with --rewind
        #[arg(short, long)]
        yes: bool,
        /// With --rewind: only say what would be given up, and change nothing
        #[arg(short = 'n', long, requires = "rewind")]
        dry_run: bool,
    },
    /// Unmount, detach and stop serving everything of a pool, close it and end its daemon
    Stop {
        /// The pool
        pool: String,
        /// Also while files are open: they get errors; and although not all can be saved: what is lost is said. A daemon that gives no
        /// sign of life is killed: what fsync made durable is safe
        #[arg(short, long)]
        force: bool,
    },
    /// Show a pool: health, space, tiers, jobs, datasets
    ///
    /// A pool that is named is started if it is not running. Without a name all that this machine knows are shown, and none is
    /// started: those that no daemon holds are 'stopped', and one whose daemon gives no sign of life for two seconds is 'not answering'
    /// (exit status 1; the others are shown).
    Status {
        /// The pool; all of them, as they are, if left out
        pool: Option<String>,
        /// Instead list every file that lost content with a device, or was found damaged by a reader or the last scrub, and the
        /// snapshots that hold it
        #[arg(long)]
        lost: bool,
    },
    /// Show the reads and writes of each device
    Iostat {
        /// [POOL] [INTERVAL]: the pool, and seconds between two reports; the totals are shown once without
        #[arg(num_args = 0..=2, value_name = "POOL|INTERVAL")]
        words: Vec<String>,
        /// How many reports to show
        #[arg(short, long)]
        count: Option<u64>,
    },
    /// Watch all pools that run: tiers, devices, caches, the warmest datasets, jobs
    ///
    /// On a terminal the screen is drawn anew each second until 'q' is typed. Elsewhere, and with --json, one report is printed,
    /// of what goes on during one interval; -n N prints N of them (JSON: one object a line), on a terminal too. No pool is
    /// started, unless it is named.
    Top {
        /// The pool; all that run if left out
        pool: Option<String>,
        /// Time between two reports
        #[arg(short, long, default_value = "1s", value_name = "TIME")]
        interval: String,
        /// How many reports to print
        #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Show what happened in a pool
    ///
    /// The newest 4,096 events are kept in the pool. What happens once it accepts no writes any more is kept in the state directory
    /// until the pool is opened again, and then put among the others.
    Events {
        /// The pool
        pool: Option<String>,
        /// Go on as things happen
        #[arg(short, long)]
        follow: bool,
    },
    /// Show the commands that changed a pool
    #[command(name = "command-log")]
    Log {
        /// The pool
        pool: String,
    },
    /// Show on which tiers a file or dataset lies, and why
    Where {
        /// A path below a mount, DATASET/PATH, or a dataset
        path: String,
        /// List the regions (1 MiB each) of a file or volume, or of all files in a directory: where each lies, and how warm it is
        #[arg(long)]
        regions: bool,
        /// The first region to list
        #[arg(long, value_name = "N", default_value_t = 0, requires = "regions")]
        from: u64,
        /// How many to list at most
        #[arg(long, value_name = "N", default_value_t = 1000, requires = "regions",
              value_parser = clap::value_parser!(u64).range(1..=100_000))]
        limit: u64,
    },
    #[command(flatten)]
    Placement(PlacementCommand),
    /// Forbid destroying snapshots, under a tag
    Hold {
        /// The tag
        tag: String,
        /// DATASET@NAME, any number of them
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
    /// Take a hold back, of each of these snapshots
    Release {
        /// The tag
        tag: String,
        /// DATASET@NAME, any number of them
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
    /// Let go of retained checkpoints that the property 'retention' no longer wants
    ///
    /// This happens by itself within seconds, also after 'terrace set retention=…'; here at once, and -n says which they are.
    /// What nothing holds any more is freed in the background ('status' says how much).
    Prune {
        /// The dataset
        dataset: String,
        /// Only say which
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Move everything off a device, which stays in the pool and takes nothing new
    Evacuate(EvacuateArguments),
    /// Show or control the work in the background
    Jobs(JobsArguments),
    /// Read and compare everything of a stopped pool, and change nothing; exit status 1 if anything is wrong
    ///
    /// Compares every copy of labels, roots, log entries, tables and chunks, and all counts. The pool need not be known
    /// here: devices and directories to look in do as well.
    ///
    /// With --rebuild NEWPOOL a pool that cannot be opened any more is saved as far as possible: its newest whole state if
    /// one is left, else what single tables, log entries and chunks tell, is put into NEWPOOL with its datasets, snapshots,
    /// links and attributes. What lost its name goes to 'lost+found'. The damaged pool is only read. Exit status 1 if
    /// something could not be placed; everything damaged or lost is named. '-n' only says what could be saved.
    Verify(VerifyArguments),
    /// Read everything in a pool and verify it, repairing what has a good copy
    Scrub {
        /// The pool
        pool: String,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Give the space of half-empty segments back
    Compact {
        /// The pool
        pool: String,
        /// Only say how much that could be
        #[arg(short = 'n', long)]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    #[command(flatten)]
    Files(FileCommand),
    /// Check this machine: kernel, FUSE, limits, memory, devices; say what to change
    Doctor,
    /// Show what Terrace does, on real data of this machine, in a pool of its own that is removed afterwards
    Demo {
        /// Where to put the pool's files; a temporary directory if left out
        directory: Option<PathBuf>,
        /// How much data to take from /usr/share and /usr/lib at most
        #[arg(long, default_value = "1G")]
        size: String,
        /// Do not use FUSE even if it is there
        #[arg(long)]
        no_fuse: bool,
    },
    /// Measure how fast a pool is here, on a mount of its own that is removed afterwards
    Bench(BenchArguments),
    /// What tests of Terrace itself need
    #[command(subcommand, hide = true)]
    Debug(DebugCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory, or print the main one
    Man {
        /// The directory
        directory: Option<PathBuf>,
    },
}

/// What tests need.
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// End the daemon of a pool as a broken invariant would
    Panic {
        /// The pool
        pool: String,
    },
}
