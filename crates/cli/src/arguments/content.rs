//! What makes, shows and changes datasets and files, and moves them by hand: the commands and their arguments.
//!
//! Invariant: each enum is taken apart in one match of `commands`, so that no command can lack one who does it.

use std::path::PathBuf;

use clap::Subcommand;

use super::{
    datasets::{FsCommand, GetArguments, InheritArguments, ListArguments, VolumeCommand},
    flags::{Consent, Waiting},
};

/// Datasets: made, shown, changed, mounted.
#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
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
    /// Set properties of filesystems and volumes
    Set {
        /// Any number of PROPERTY=VALUE, then any number of datasets: each gets all of them, one after the other. The first that
        /// cannot have them ends it
        #[arg(required = true, num_args = 2.., value_name = "PROPERTY=VALUE|DATASET")]
        words: Vec<String>,
    },
    /// Take the property's value from the parent dataset again
    Inherit(InheritArguments),
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
    ///
    /// Options: ro and rw; at=TIME|@SNAPSHOT|CHECKPOINT, a past state; remount, which changes the others of a mount that
    /// is there; allow_other (root's mounts have it); nosuid, nodev, noexec, nosymfollow; noatime (with the property
    /// atime=on, reads leave access times alone); sync (every change is durable before it returns), dirsync (changes of
    /// names are); lazytime, silent; context=… and its like where SELinux is active; ring=off (not through io_uring).
    /// nodiratime, relatime and strictatime are taken and shown: access times follow the rule of relatime, and those of
    /// directories no reads. default_permissions is always so. mand is taken and has no effect, as Linux has no
    /// mandatory locks. defaults, auto, noauto, nofail, _netdev, user, users, owner, group, x-… and comment=… are for
    /// who reads fstab; user and users bring nosuid, nodev and noexec, owner and group the first two.
    Mount {
        /// The filesystem
        dataset: Option<String>,
        /// An existing directory; that of the property 'mountpoint' if left out
        directory: Option<PathBuf>,
        /// ro, at=TIME|@SNAPSHOT|CHECKPOINT, remount, sync, noatime and what else mount(8) knows (see below)
        #[arg(short, value_name = "OPTION[,OPTION…]")]
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
}

/// The tiers on which files are.
#[derive(Debug, Subcommand)]
pub enum PlacementCommand {
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
}

/// Files of datasets that need not be mounted.
#[derive(Debug, Subcommand)]
pub enum FileCommand {
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
    /// Copy files or directories into a dataset; needs no mount. Root keeps their owners; anybody else owns what he puts
    Put {
        /// DATASET[/PATH]: an existing directory or the new name
        target: String,
        /// What to copy; standard input if left out or '-'
        sources: Vec<PathBuf>,
    },
}
