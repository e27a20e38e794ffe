//! The command line of `terrace bench`.

use std::path::PathBuf;

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
