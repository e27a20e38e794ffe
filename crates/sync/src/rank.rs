//! The order of all locks: first those of upper crates, then those of lower ones; within a crate from top to bottom.
//!
//! A thread takes a lock only while all that it holds come before it here. `io`: may be held across device I/O. `several`: a thread
//! may hold more than one, which it takes in an order of their own. What is not worth a line of its own is a [`Leaf`].

/// A place in the order of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Crate and name.
    pub name: &'static str,
    /// Locks are taken by ascending level.
    pub level: usize,
    /// May be held across device I/O.
    pub across_io: bool,
    /// A thread may hold several.
    pub several: bool,
}

/// Says at the type of a lock which place it has.
pub trait Rank {
    /// The place.
    const PLACE: Place;
}

macro_rules! ranks {
    ($($(#[$of_module:meta])* $module:ident { $($(#[$doc:meta])* $name:ident $(($flag:ident $(, $more:ident)?))?;)* })*) => {
        #[allow(non_camel_case_types, reason = "named as the modules are")]
        enum Module { $($module),* }

        $($(#[$of_module])*
        pub mod $module {
            use super::{Place, Rank};

            enum Level { $($name),* }

            $($(#[$doc])*
            #[derive(Debug)]
            pub enum $name {}

            impl Rank for $name {
                const PLACE: Place = Place {
                    name: concat!(stringify!($module), "::", stringify!($name)),
                    level: super::Module::$module as usize * 100 + Level::$name as usize,
                    across_io: matches_flag!(io $($flag $($more)?)?),
                    several: matches_flag!(several $($flag $($more)?)?),
                };
            })*
        })*

        /// All places, in order.
        pub const ALL: &[Place] = &[$($($module::$name::PLACE),*),*];
    };
}

macro_rules! matches_flag {
    (io io $($rest:ident)?) => {
        true
    };
    (io several io) => {
        true
    };
    (several several $($rest:ident)?) => {
        true
    };
    (several io several) => {
        true
    };
    ($($other:ident)*) => {
        false
    };
}

/// Nothing is taken, and no device asked, while one of these is held.
#[derive(Debug)]
pub enum Leaf {}

impl Rank for Leaf {
    const PLACE: Place = Place {
        name: "leaf",
        level: usize::MAX,
        across_io: false,
        several: false,
    };
}

ranks! {
    /// Of `terrace-engine`.
    engine {
        /// Closing, until all is saved.
        Saved (io);
        /// Devices that leave: one looks at a time.
        Settling (io);
        /// Devices that are to leave.
        Drains (io);
        /// What could not be read lately.
        ReadErrors;
        /// The copying of what lacks copies.
        Resilver (io);
        /// Its pause after a failure.
        ResilverPause;
        /// Why it lacks room.
        ResilverShort;
        /// Devices of which it was told that they fail.
        FailingTold (io);
        /// Devices of which it was told that they do not answer.
        SilentTold (io);
        /// Datasets of which it was told that nothing is retained.
        UnretainedTold (io);
        /// Metadata of which it was told that it is lost.
        MetadataTold (io);
        /// How far the scrub is, while that is written down.
        ScrubProgress (io);
        /// Numbers of events, while one is written.
        Events (io);
        /// The scrub that runs.
        Scrub;
        /// Files that are known to be lost.
        LostFiles;
        /// When a device is cut off next.
        NextCut;
    }
    /// Of `terrace-mover`.
    mover {
        /// All of the mover; let go for its I/O in most places.
        Mover (io);
    }
    /// Of `terrace-dataset`.
    dataset {
        /// One administrative change at a time.
        Administration (io);
        /// Renames of directories of one dataset, one at a time.
        Rename (io);
        /// A file or directory, in the order of their numbers.
        Inode (io, several);
        /// Clearing the landing tier: one at a time.
        LandingTurn (io);
        /// Freeing room: one at a time.
        RoomTurn (io);
        /// A step of the sweep.
        SweepStep (io);
        /// The handle of a dataset, while it is opened or closed.
        Handle (io);
        /// Commits of a dataset, in the order of their numbers.
        Commit (io, several);
        /// Writes ahead that are under way; of several datasets for a common commit.
        WriteAhead (io, several);
        /// Taking room from the store for all writers.
        RoomTaking (io);
        /// Counting against quotas: one at a time.
        Quotas;
        /// Views of the past of a dataset.
        Views;
        /// Checkpoints that retention has no room for.
        Unretained;
        /// Datasets by name and number.
        Registry;
        /// Name and properties of one.
        Record;
        /// Checkpoints that a dataset holds.
        Held;
        /// What is kept of the pool as a whole.
        Facts (io);
        /// Changes pass, a freeze stops them; of several datasets for a common commit.
        Gate (several);
        /// What a freeze took.
        Frozen;
        /// The state of one object.
        Object (several);
        /// Room of records that objects share.
        SharedRoom;
        /// Room that was taken ahead.
        PooledRoom;
        /// Room that what is dirty will need.
        Promised;
        /// When the reserve was missed last.
        ReserveMissed;
    }
    /// Of `terrace-cache`.
    cache {
        /// Forgetting the coldest regions: one at a time.
        HeatShrinking;
        /// Shares of the read cache.
        ReadCache;
        /// What was read ahead.
        Prefetched;
    }
    /// Of `terrace-chunk`: who works in the background.
    chunk {
        /// The turn of who does background work.
        Turn (io);
        /// Writing and merging of tables.
        Tables (io);
    }
    /// Of `terrace-dataset`, and asked for by the store while it makes room: what callers have set aside.
    usage {
        /// Room set aside for a dataset; asked for by who makes room in a store.
        SetAside;
        /// The dataset above, and that above it.
        Parents (several);
        /// Room set aside for files of all datasets.
        Files;
    }
    /// Of `terrace-chunk`: what writes and commits take.
    append {
        /// The group commit.
        Flushes;
        /// The open segment of a stream.
        Stream;
        /// Batches that are not in the log: never across I/O.
        Commit;
        /// Which segment holds what.
        Ledger;
        /// Segments that are being written.
        OpenSegments;
        /// One of them.
        OpenSegment;
        /// Write buffers for later.
        SpareBuffers;
    }
    /// Of `terrace-log`.
    log {
        /// The end of the log.
        Appending (io);
        /// Its copy on a slower device.
        CatchingUp (io);
    }
    /// Of `terrace-meta`.
    meta {
        /// Steps of upkeep.
        Worker (io);
        /// Writing of a manifest.
        Describing (io);
        /// The newest change of the tree.
        Newest;
        /// The version of the tree.
        Versions;
        /// What the newest manifest says.
        Described;
        /// Records in memory.
        Memtable;
    }
    /// Of `terrace-chunk`: places of tables, asked for by the tree.
    extents {
        /// Where tables lie.
        Extents;
    }
    /// Of `terrace-pool`.
    pool {
        /// Changes of labels.
        Labels (io);
        /// Writing of roots.
        Roots (io);
        /// Devices of the pool.
        Members;
        /// Which segments are free.
        FreeSpace;
    }
    /// Of `terrace-device`.
    device {
        /// Content that a volatile device holds back.
        Volatile;
        /// Pages of a device in memory.
        Pages;
        /// Open files of a directory of segments.
        Files (io);
        /// Whether a flush has failed.
        FlushGate;
        /// What of these is not flushed.
        Unflushed;
    }
}
