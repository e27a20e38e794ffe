//! The command line: every command, its arguments and its help. Man pages and completions come from here too.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    device_arguments::{DeviceCommand, EvacuateArguments},
    verify_arguments::VerifyArguments,
    via::Via,
};

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
    /// Make filesystems
    #[command(subcommand)]
    Fs(FsCommand),
    /// Make and resize volumes (block devices)
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// List filesystems, volumes and snapshots
    List(ListArguments),
    /// Show properties (get PROPERTY|all X), or copy a file out of a dataset (get DATASET/PATH [TO])
    Get(GetArguments),
    /// Set properties of a filesystem, volume or snapshot
    Set {
        /// PROPERTY=VALUE, any number of them
        #[arg(required = true, value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// The dataset
        #[arg(value_name = "DATASET")]
        target: String,
    },
    /// Take the property's value from the parent dataset again
    Inherit {
        /// The property
        property: String,
        /// The dataset
        dataset: String,
    },
    /// Rename a filesystem, volume or snapshot
    Rename {
        /// The name now
        from: String,
        /// The new name, in the same pool
        to: String,
    },
    /// Destroy a filesystem, volume or snapshot with everything in it
    Destroy {
        /// The dataset, or DATASET@SNAPSHOT
        target: String,
        /// Also the datasets and snapshots below it
        #[arg(short, long)]
        recursive: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Take a snapshot: DATASET@NAME
    Snapshot {
        /// DATASET@NAME
        snapshot: String,
        /// Of all datasets below it too, at the same moment
        #[arg(short, long)]
        recursive: bool,
        /// A note kept with it
        #[arg(short = 'm', long = "message", default_value = "")]
        note: String,
    },
    /// Mount a filesystem, or a snapshot of it (DATASET@NAME), on a directory
    Mount {
        /// The filesystem
        dataset: Option<String>,
        /// An existing directory; that of the property 'mountpoint' if left out
        directory: Option<PathBuf>,
        /// ro, at=TIME|@SNAPSHOT|CHECKPOINT, allow_other
        #[arg(short, value_name = "OPTION[,OPTION…]", value_delimiter = ',')]
        options: Vec<String>,
    },
    /// Unmount a filesystem
    #[command(alias = "umount")]
    Unmount {
        /// The directory, or the dataset: all its mounts
        target: String,
        /// Also while files in it are open: they get errors
        #[arg(short, long)]
        force: bool,
    },
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
        /// Start although devices are missing
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
        /// Also while files are open: they get errors
        #[arg(short, long)]
        force: bool,
    },
    /// Show a pool: health, space, tiers, jobs, datasets
    ///
    /// A pool that is named is started if it is not running. Without a name all that this machine knows are shown, and none is
    /// started: those that no daemon holds are 'stopped'.
    Status {
        /// The pool; all of them, as they are, if left out
        pool: Option<String>,
        /// Instead list every file that lost content with a device, and the snapshots that hold it
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
    /// Keep a file, a directory with all that is and comes beneath, or a dataset on a tier
    Pin {
        /// A path below a mount, DATASET/PATH, or a dataset
        path: String,
        /// The tier
        tier: String,
        /// Only say how much would move, and where to
        #[arg(short = 'n', long)]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Let a file, directory or dataset move again
    Unpin {
        /// A path below a mount, DATASET/PATH, or a dataset
        path: String,
    },
    /// Move a file to the next faster tier; a directory with all that is beneath, or a dataset, to the fastest
    Promote {
        /// A path below a mount, DATASET/PATH, or a dataset
        path: String,
        /// Only say how much would move, and where to
        #[arg(short = 'n', long)]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Move a file to the next slower tier; a directory with all that is beneath, or a dataset, to the slowest
    Demote {
        /// A path below a mount, DATASET/PATH, or a dataset
        path: String,
        /// Only say how much would move, and where to
        #[arg(short = 'n', long)]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Forbid destroying a snapshot, under a tag
    Hold {
        /// The tag
        tag: String,
        /// DATASET@NAME
        snapshot: String,
    },
    /// Take a hold back
    Release {
        /// The tag
        tag: String,
        /// DATASET@NAME
        snapshot: String,
    },
    /// Let go of retained checkpoints that the property 'retention' no longer wants
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
    /// List a directory of a dataset; needs no mount
    Ls {
        /// DATASET[@SNAPSHOT][/PATH]
        #[arg(required = true)]
        paths: Vec<String>,
        /// Modes, owners, sizes and times too
        #[arg(short, long)]
        long: bool,
        /// Directories below too
        #[arg(short = 'R', long)]
        recursive: bool,
    },
    /// Print files of a dataset; needs no mount
    Cat {
        /// DATASET[@SNAPSHOT]/PATH
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Copy files or directories into a dataset; needs no mount
    Put {
        /// DATASET[/PATH]: an existing directory or the new name
        target: String,
        /// What to copy; standard input if left out or '-'
        sources: Vec<PathBuf>,
    },
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

/// `terrace bench`
#[derive(Debug, clap::Args)]
pub struct BenchArguments {
    /// What to measure
    #[arg(value_enum, default_value = "all")]
    pub suite: Suite,
    /// Where to put the pool's file; a temporary directory if left out
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// Measure the same in this directory, in turn, and show the ratio
    #[arg(long, value_name = "DIRECTORY")]
    pub beside: Option<PathBuf>,
    /// Size of the large file
    #[arg(long, default_value = "256M")]
    pub size: String,
    /// How many small files
    #[arg(long, default_value_t = 5000)]
    pub files: u32,
    /// How often; medians are shown
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
}

/// What `terrace bench` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// Everything
    All,
    /// One large file, in order, at random and with fsync
    Data,
    /// Many small files
    Files,
    /// The same content twice: what dedup saves
    Twice,
}

/// `terrace pool …`
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make a pool
    Create {
        /// Its name
        pool: String,
        /// A tier and its devices, fastest tier first: a block device, a file (made at the size if absent), a directory
        #[arg(long = "tier", value_name = "NAME=DEVICE[:SIZE][,DEVICE…]", required = true)]
        tiers: Vec<String>,
        /// How many devices of a tier hold each chunk
        #[arg(long, value_name = "TIER=N")]
        copies: Vec<String>,
        /// A property of the pool, or of its datasets
        #[arg(short, value_name = "PROPERTY=VALUE")]
        options: Vec<String>,
        /// Use devices that hold a pool or other data: what is on them is lost
        #[arg(short, long)]
        force: bool,
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
        /// Also while files in it are open, devices of its volumes in use, or clients connected to them
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
        /// Also a pool of which devices are missing; what has no copy elsewhere cannot be read then
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
    /// Set how a tier is used: promote_after, demote_after, high_water, low_water, landing (off, sequential, random, all: which
    /// new writes land on it), rate_limit, window, hold
    Set {
        /// PROPERTY=VALUE, any number of them
        #[arg(required = true, value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// POOL/TIER
        #[arg(value_name = "POOL/TIER")]
        tier: String,
    },
}

/// `terrace fs …`
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Make a filesystem
    Create {
        /// POOL/NAME
        dataset: String,
        /// A property
        #[arg(short, value_name = "PROPERTY=VALUE")]
        options: Vec<String>,
        /// Create the datasets above it too
        #[arg(short, long)]
        parents: bool,
    },
}

/// `terrace serve`
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// The volume
    pub volume: String,
    /// Where to listen: unix:PATH, or tcp:HOST:PORT (port 0 takes a free one)
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Option<String>,
    /// The socket for a virtual machine
    #[arg(long, value_name = "PATH", conflicts_with_all = ["nbd", "tls_cert"])]
    pub vhost_user: Option<PathBuf>,
    /// The server's certificate, and those between it and its authority, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Demand certificates that this authority signed from clients
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// Refuse writes (snapshots always do)
    #[arg(long = "ro")]
    pub read_only: bool,
}

/// `terrace volume …`
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume
    Create {
        /// POOL/NAME
        dataset: String,
        /// Its size
        #[arg(long)]
        size: String,
        /// Set no room aside for it
        #[arg(long)]
        sparse: bool,
        /// Logical block of its devices: 4K (the default) or 512, as images of whole disks and a BIOS want it; the same as
        /// -o block_size=SIZE
        #[arg(long, value_name = "SIZE")]
        block_size: Option<String>,
        /// Create the datasets above it too
        #[arg(short, long)]
        parents: bool,
        /// A property
        #[arg(short, value_name = "PROPERTY=VALUE")]
        options: Vec<String>,
    },
    /// Change the size of a volume; asks before it makes one smaller, as what is behind the new end is lost
    Resize {
        /// The volume
        volume: String,
        /// The new size
        size: String,
        #[command(flatten)]
        consent: Consent,
    },
}

/// `terrace list`
#[derive(Debug, Args)]
pub struct ListArguments {
    /// A pool or dataset; everything if left out
    pub target: Option<String>,
    /// Which kinds: fs, volume, snapshot, all
    #[arg(short = 't', long = "type", value_delimiter = ',', value_enum)]
    pub kinds: Vec<ListKind>,
    /// What is below it too
    #[arg(short, long)]
    pub recursive: bool,
}

/// Kinds of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListKind {
    /// Filesystems
    #[value(alias = "filesystem")]
    Fs,
    /// Volumes
    #[value(alias = "vol")]
    Volume,
    /// Snapshots
    #[value(alias = "snap")]
    Snapshot,
    /// All of them
    All,
}

/// `terrace get`
#[derive(Debug, Args)]
pub struct GetArguments {
    /// PROPERTY[,PROPERTY…]|all X…, or DATASET[@SNAPSHOT]/PATH [TO]
    #[arg(required = true, value_name = "PROPERTY|PATH")]
    pub words: Vec<String>,
    /// Properties of the datasets below too
    #[arg(short, long)]
    pub recursive: bool,
}

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
    pub id: u64,
    /// Its pool, if more than one is running
    #[arg(long)]
    pub pool: Option<String>,
}

/// For what cannot be undone.
#[derive(Debug, Clone, Copy, Args)]
pub struct Consent {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// For long work.
#[derive(Debug, Clone, Copy, Args)]
pub struct Waiting {
    /// Return when it is done (the default on a terminal)
    #[arg(long, overrides_with = "no_wait")]
    pub wait: bool,
    /// Return when it has started
    #[arg(long)]
    pub no_wait: bool,
}
