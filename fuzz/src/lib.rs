//! What all targets share.

pub use libfuzzer_sys;

/// A program that gives any bytes to a parser, as they are; where they are behind a sum, also with the right one, since
/// else nothing but the sum would be tried.
#[macro_export]
macro_rules! target {
    ($parse:path) => {
        $crate::libfuzzer_sys::fuzz_target!(init: $crate::prepare(), |bytes: &[u8]| $parse(bytes));
    };
    ($parse:path, $seal:path) => {
        $crate::libfuzzer_sys::fuzz_target!(init: $crate::prepare(), |bytes: &[u8]| {
            $parse(bytes);
            let mut sealed = bytes.to_vec();
            $seal(&mut sealed);
            $parse(&sealed);
        });
    };
}

/// What Rust's own beginning of a program does, and libFuzzer's does not: writing to a closed socket is an error, and not
/// the end of the process.
pub fn prepare() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
