//! What clients of a filesystem do: the table of their calls. Here the seed chooses which comes next, and on what; how a call
//! is done and compared is in `call.rs`.
//!
//! A new call is a struct that implements [`FileCall`], and a line in the table. Invariant: a filesystem stays within bounds
//! of objects and blocks: one that is crowded gets calls that make room.

use terrace_dataset::FileKind;
use terrace_sync::trace::operation;

use super::{
    attributes::{ChangeAttributes, ExtendedAttribute, SetTimes},
    call::Client,
    copying::CopyRange,
    file_data::{Allocate, Read, Truncate, Write},
    holds::{HoldOpen, LinkHeld, Release, Temporary},
    names::{Create, Link, Rename, Unlink, any_name},
};
use crate::{
    act::{Act, name_of},
    fs::{
        models::{Body, Node},
        world::World,
    },
    violation::Check,
};

/// Objects that a filesystem of the run has at most.
const OBJECTS_MAX: usize = 90;
/// Content that a filesystem of the run has at most, blocks.
const BLOCKS_MAX: usize = 1500;

/// What a call is done on, as chance picked it.
pub(crate) struct Chosen {
    /// A directory.
    pub(crate) dir: u64,
    /// Mostly a name that is there, for calls that need one.
    pub(crate) old: (u64, Vec<u8>),
    /// A file, if there is one.
    pub(crate) file: Option<u64>,
    /// All files.
    pub(crate) files: Vec<u64>,
}

/// A call of a client.
pub(crate) trait FileCall {
    /// What it is called.
    fn name(&self) -> &'static str {
        name_of::<Self>()
    }

    fn perform(&self, client: &mut Client<'_>, chosen: &Chosen) -> Check;
}

/// The calls with their weights. Those that come first make a filesystem fuller, the next ones make room.
const FILLING: [(u64, &dyn FileCall); 5] = [
    (14, &Create(FileKind::File)),
    (6, &Create(FileKind::Directory)),
    (3, &Create(FileKind::SymbolicLink)),
    (4, &Link),
    (25, &Write),
];
const MAKING_ROOM: [(u64, &dyn FileCall); 3] = [(10, &Unlink), (9, &Rename), (5, &Truncate)];
const OTHERS: [(u64, &dyn FileCall); 10] = [
    (4, &Allocate),
    (3, &CopyRange),
    (4, &ChangeAttributes),
    (5, &ExtendedAttribute),
    (2, &HoldOpen),
    (1, &Release),
    (5, &Read),
    (2, &Temporary),
    (2, &LinkHeld),
    (2, &SetTimes),
];

/// One call to one filesystem.
pub(crate) struct FilesystemCall;

impl Act<World> for FilesystemCall {
    fn perform(&mut self, world: &mut World) -> Check {
        let random = &mut world.rig.random;
        let index = random.index(world.models.filesystems.len());
        let tree = &world.models.filesystems[index].history.newest().tree;
        let directories = tree.objects(Node::is_directory);
        let files = tree.objects(|node| matches!(node.body, Body::File(_)));
        let names = tree.names();
        let dir = *random.pick(&directories);
        let old = match !names.is_empty() && random.chance(9, 10) {
            true => {
                let (dir, name, _) = random.pick(&names).clone();
                (dir, name)
            }
            false => (dir, any_name(random)),
        };
        let file = (!files.is_empty()).then(|| *random.pick(&files));
        let crowded = tree.len() > OBJECTS_MAX || tree.used_blocks() > BLOCKS_MAX;
        let (filling, making_room) = (weight(&FILLING), weight(&MAKING_ROOM));
        let mut at = match crowded {
            true => random.between(filling, filling + making_room - 1),
            false => random.below(filling + making_room + weight(&OTHERS)),
        };
        let chosen = Chosen {
            dir,
            old,
            file,
            files,
        };
        let calls = FILLING.iter().chain(&MAKING_ROOM).chain(&OTHERS);
        for (weight, call) in calls {
            if at < *weight {
                return operation(call.name(), || {
                    call.perform(&mut Client::of(world, index), &chosen)
                });
            }
            at -= weight;
        }
        Ok(())
    }
}

fn weight(calls: &[(u64, &dyn FileCall)]) -> u64 {
    calls.iter().map(|(weight, _)| weight).sum()
}
