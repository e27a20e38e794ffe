//! What runs when the daemon breaks down: a panic hook and handlers of fatal signals that write the crash report, and abort.
//!
//! Invariants: nothing here allocates, locks or can panic before the report is written (a panic may come while any lock is held, and for
//! want of memory); the process ends within [`ENDING_SECONDS`] even if a write does not return; the first to break down writes, and others
//! wait for its end.

use std::{
    cell::UnsafeCell,
    fmt::{self, Write},
    fs::File,
    mem::MaybeUninit,
    os::fd::IntoRawFd,
    panic::PanicHookInfo,
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
    time::Duration,
};

use terrace_device::ServedRequest;

use super::report::now_nanoseconds;

/// Longest report, bytes.
const TEXT_BYTES_MAX: usize = 4096;
/// How long the last words may take, seconds.
const ENDING_SECONDS: u32 = 1;
/// Signals that mean a broken process.
const FATAL: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGSYS,
];

/// The report's descriptor.
static REPORT: AtomicI32 = AtomicI32::new(-1);
static ENDING: AtomicBool = AtomicBool::new(false);
static BEFORE: Before = Before(UnsafeCell::new([const { MaybeUninit::uninit() }; FATAL.len()]));

/// What was done on each signal before.
struct Before(UnsafeCell<[MaybeUninit<libc::sigaction>; FATAL.len()]>);

// SAFETY: written by `install` before the handler that reads it is in place, and never again.
unsafe impl Sync for Before {}

/// The text of the report: not on the stack, since that for signals is small.
static TEXT: TextPlace = TextPlace(UnsafeCell::new(Text::new()));

struct TextPlace(UnsafeCell<Text>);

// SAFETY: who set `ENDING` alone uses it, until the process ends.
unsafe impl Sync for TextPlace {}

/// Text in fixed memory: what does not fit is left out.
struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Text {
    const fn new() -> Self {
        Self {
            bytes: [0; TEXT_BYTES_MAX],
            length: 0,
        }
    }

    fn line(&mut self, key: &str, value: &dyn fmt::Display) {
        let _ = writeln!(self, "{key} {}", OneLine(value));
    }

    fn write_to(&self, descriptor: i32) {
        let mut rest = &self.bytes[..self.length];
        while descriptor >= 0 && !rest.is_empty() {
            rest = rest.get(write_some(descriptor, rest)..).unwrap_or_default();
        }
    }
}

/// Writes some of it; all counts as written where no more can be.
fn write_some(descriptor: i32, bytes: &[u8]) -> usize {
    // SAFETY: the memory is ours and as long as is said; a bad descriptor is an error.
    let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
    match usize::try_from(written) {
        Ok(written @ 1..) => written,
        // SAFETY: it reads the thread's own error number.
        _ if unsafe { *libc::__errno_location() } == libc::EINTR => 0,
        _ => bytes.len(),
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        Ok(())
    }
}

/// A value without line ends.
struct OneLine<'a>(&'a dyn fmt::Display);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Filter<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Filter<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                for piece in text.split_inclusive(['\n', '\r']) {
                    let line = piece.trim_end_matches(['\n', '\r']);
                    self.0.write_str(line)?;
                    if line.len() < piece.len() {
                        self.0.write_str(" ")?;
                    }
                }
                Ok(())
            }
        }
        write!(Filter(f), "{}", self.0)
    }
}

/// Straight to the standard error, whatever becomes of it.
struct Log;

impl Write for Log {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while !rest.is_empty() {
            let written = write_some(libc::STDERR_FILENO, rest.as_bytes());
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }
}

/// From now on a panic ends the process, and `report` gets its last words.
pub fn install(report: Option<File>) {
    REPORT.store(report.map_or(-1, IntoRawFd::into_raw_fd), Ordering::SeqCst);
    std::panic::set_hook(Box::new(end_on_panic));
    for (number, signal) in FATAL.into_iter().enumerate() {
        // SAFETY: the handler only writes to open descriptors and its own stack, and sets signals; its memory of what was before is
        // written before it can run. It runs on the stack for signals that the standard library gives each thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let before = (*BEFORE.0.get())[number].as_mut_ptr();
            libc::sigaction(signal, std::ptr::null(), before);
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The process ends as it should: there is nothing to report any more.
pub fn close() {
    let report = REPORT.swap(-1, Ordering::SeqCst);
    if report >= 0 {
        // SAFETY: it was opened for this, and nobody finds it any more.
        unsafe { libc::close(report) };
    }
}

/// A name of a thread, as the kernel knows it.
struct ThreadName([u8; 16]);

impl ThreadName {
    fn own() -> Self {
        let mut name = [0u8; 16];
        // SAFETY: the call fills at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        Self(name)
    }
}

impl fmt::Display for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        write!(f, "'{}'", std::str::from_utf8(&self.0[..length]).unwrap_or("?"))
    }
}

/// What every report says. For who set `ENDING`.
fn begin() -> &'static mut Text {
    // Whatever does not return by then is not waited for.
    // SAFETY: both calls only set what the kernel keeps; the handler only sets and raises a signal.
    unsafe {
        libc::signal(libc::SIGALRM, on_alarm as *const () as usize);
        libc::alarm(ENDING_SECONDS);
    }
    // SAFETY: nobody else sets `ENDING`, and it is never cleared.
    let text = unsafe { &mut *TEXT.0.get() };
    text.line("ended", &now_nanoseconds());
    text.line("thread", &ThreadName::own());
    if let Some(request) = ServedRequest::of_this_thread() {
        text.line("request", &request);
    }
    text
}

fn end_on_panic(panic: &PanicHookInfo<'_>) {
    if ENDING.swap(true, Ordering::SeqCst) {
        // Another thread says why; nothing that this one holds matters any more.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let text = begin();
    match panic.location() {
        Some(place) => text.line("at", &place),
        None => text.line("at", &"an unknown place"),
    }
    let payload = panic.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    text.line("message", &message);
    text.write_to(REPORT.load(Ordering::SeqCst));
    let _ = writeln!(Log, "terrace: the daemon ends on an internal error:");
    text.write_to(libc::STDERR_FILENO);
    // It allocates and locks; all that matters is written.
    let backtrace = std::backtrace::Backtrace::capture();
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        let _ = writeln!(Log, "{backtrace}");
    }
    std::process::abort();
}

extern "C" fn on_alarm(_: i32) {
    // SAFETY: only signals are set. Whichever thread runs this, the process ends.
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        libc::raise(libc::SIGABRT);
    }
}

extern "C" fn on_signal(signal: i32, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid one with SA_SIGINFO.
    let is_sent = unsafe { information.as_ref() }.is_none_or(|information| information.si_code <= 0);
    if !ENDING.swap(true, Ordering::SeqCst) {
        let text = begin();
        text.line("signal", &signal);
        text.write_to(REPORT.load(Ordering::SeqCst));
        text.write_to(libc::STDERR_FILENO);
    }
    let known = FATAL.iter().position(|fatal| *fatal == signal);
    // SAFETY: only signals are set. A fault comes again on return, and meets what was there before (the standard library names an
    // overflow of a stack); a signal that was sent does not, and is sent again to end the process.
    unsafe {
        match known {
            Some(number) if !is_sent => {
                libc::sigaction(signal, (*BEFORE.0.get())[number].as_ptr(), std::ptr::null_mut());
            }
            _ => {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_report_stays_a_line_and_in_its_bounds() {
        let mut text = Text::new();
        text.line("message", &"one\ntwo\r\nat nowhere");
        assert_eq!(&text.bytes[..text.length], b"message one two  at nowhere\n");
        text.line("message", &"x".repeat(2 * TEXT_BYTES_MAX));
        assert_eq!(text.length, TEXT_BYTES_MAX);
        text.line("more", &1);
        assert_eq!(text.length, TEXT_BYTES_MAX);
    }
}
