//! `Presence`: what the labels say of a device that is or was away. How the marks are used: `labels/standing.rs`.

/// What the labels say of a device, besides that it belongs to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence {
    /// It has all that is to be on it.
    #[default]
    Whole,
    /// The pool is in use without it. It can know of no label of this pool's past above generation `since`, but for those that
    /// its entry lists as begun.
    Absent {
        /// That generation.
        since: u64,
    },
    /// It was away and is there again; content that was to have a copy on it may lack that.
    Behind,
}
