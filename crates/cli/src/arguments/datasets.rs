//! The command line of filesystems and volumes: made, resized, served, listed, and their properties.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::flags::Consent;

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
    /// Pools, datasets and snapshots; everything if left out
    #[arg(value_name = "DATASET")]
    pub targets: Vec<String>,
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

/// `terrace inherit`
#[derive(Debug, Args)]
pub struct InheritArguments {
    /// The property
    pub property: String,
    /// The datasets
    #[arg(required = true, value_name = "DATASET")]
    pub datasets: Vec<String>,
    /// All datasets below too: none of them keeps a value of its own
    #[arg(short, long)]
    pub recursive: bool,
}
