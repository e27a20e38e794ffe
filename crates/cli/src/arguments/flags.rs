//! Flags that several commands have, with one meaning everywhere: whether the user agrees, and whether to wait.

use clap::Args;

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
