//! The rules, each a function from the workspace to what breaks it.

mod functions;
mod layout;
mod ownership;
mod records;
mod waiting;

pub use functions::{documents_have_short_lines, functions_are_short};
pub use layout::{folders_are_small, folders_import_downwards};
pub use ownership::{
    facades_hold_nothing_above, methods_call_no_circles, methods_lie_together, state_is_private,
    the_whole_is_not_passed,
};
pub use records::records_are_read_through_their_door;
pub use waiting::waiting_goes_through_its_seam;

/// The most files in a folder, `mod.rs` included.
pub const FILES_MAX: usize = 12;
/// The most files with inherent methods of one type.
pub const IMPL_FILES_MAX: usize = 4;
/// The most files of one type whose methods call one another in a circle.
pub const CIRCLE_MAX: usize = 3;
/// The most lines of a function.
pub const FUNCTION_LINES_MAX: usize = 100;
/// The most characters of a line in docs.
pub const DOC_LINE_MAX: usize = 120;
