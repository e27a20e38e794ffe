//! Arguments: what can be typed.

mod arguments;
mod bench;
mod content;
mod datasets;
mod devices;
mod flags;
mod jobs;
pub(crate) mod names;
mod pools;
mod verify;

pub(crate) use arguments::{Arguments, Command, DebugCommand};
pub(crate) use bench::{BenchArguments, Suite};
pub(crate) use content::{DatasetCommand, FileCommand, PlacementCommand};
pub(crate) use datasets::{
    FsCommand, GetArguments, InheritArguments, ListArguments, ListKind, ServeArguments, VolumeCommand,
};
pub(crate) use devices::{DeviceCommand, EvacuateArguments};
pub(crate) use flags::{Consent, Waiting};
pub(crate) use jobs::{JobAction, JobChoice, JobsArguments};
pub(crate) use names::{split_pool, split_property};
pub(crate) use pools::{PoolCommand, TierCommand};
pub(crate) use verify::VerifyArguments;
