//! The command line of devices that come and go: `pool add|remove|replace|resize`, `evacuate`.

use clap::{Args, Subcommand};

use super::flags::Waiting;

/// Those below `terrace pool`.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Add devices to a tier, or to a new one; 'pool remove' undoes it
    Add {
        /// The pool
        pool: String,
        /// The tier and the devices: a block device, a file (made at the size if absent), a directory. A file takes its room
        /// at once; where the filesystem under it has not that much, it is made sparse, and that is said
        #[arg(value_name = "TIER=DEVICE[:SIZE][,DEVICE…]")]
        devices: String,
        /// Make a new tier that is faster than this one
        #[arg(long, value_name = "TIER", conflicts_with = "after")]
        before: Option<String>,
        /// Make a new tier that is slower than this one
        #[arg(long, value_name = "TIER")]
        after: Option<String>,
        /// How many devices of a new tier hold each chunk
        #[arg(long, value_name = "N", default_value_t = 1)]
        copies: u8,
        /// Use devices that hold a pool or other data: what is on them is lost. Never one that is mounted or otherwise in use
        #[arg(short, long)]
        force: bool,
        /// Only say what would be done
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Empty a device and take it out of the pool; its tier goes with the last one of it. Of one that fails or is missing,
    /// what can be read or was copied elsewhere is kept, and the files of the rest are named
    Remove {
        /// The pool
        pool: String,
        /// The device: its path, or its number (`2`, `device:2`)
        device: String,
        /// Also give up what cannot be read and has no other copy: of a device that fails or is missing
        #[arg(long)]
        lost: bool,
        /// Do not ask (with --lost)
        #[arg(short, long)]
        yes: bool,
        /// Only say what would be done
        #[arg(short = 'n', long)]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Put a new device in the place of another one, which is emptied and taken out; both stay if the job that does it is
    /// cancelled
    Replace {
        /// The pool
        pool: String,
        /// The device that goes: its path, or its number (`2`, `device:2`)
        old: String,
        /// The one that comes. A file is made at the size if absent, and takes its room at once; where the filesystem under it
        /// has not that much, it is made sparse, and that is said, with -n too
        #[arg(value_name = "NEW[:SIZE]")]
        new: String,
        /// Use a device that holds a pool or other data: what is on it is lost. Never one that is mounted or otherwise in use. Where that is content of this very pool
        /// that may have no other copy, it asks first
        #[arg(short, long)]
        force: bool,
        /// Do not ask (with --force)
        #[arg(short, long)]
        yes: bool,
        /// Only say what would be done
        #[arg(short = 'n', long)]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Use what a device has grown by; or, with a smaller size, empty its end and cut that off
    Resize {
        /// The pool
        pool: String,
        /// The device: its path, or its number (`2`, `device:2`)
        device: String,
        /// What it shall have, if that is less than now; a file or directory is cut off, a block device just not used
        /// beyond
        size: Option<String>,
        /// Do not ask (with a size)
        #[arg(short, long)]
        yes: bool,
        /// Only say what would be done (with a size)
        #[arg(short = 'n', long, requires = "size")]
        dry_run: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
}

/// `terrace evacuate`
#[derive(Debug, Args)]
pub struct EvacuateArguments {
    /// The pool
    pub pool: String,
    /// The device: its path, or its number (`2`, `device:2`)
    pub device: String,
    /// Put new data on a device again that was emptied
    #[arg(long)]
    pub undo: bool,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub waiting: Waiting,
}
