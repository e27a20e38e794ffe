//! The terminal of `terrace top`: drawn on as a whole, left as it was found.
//!
//! Invariant: whatever ends it, but SIGKILL, the terminal has its own screen, cursor and line mode again.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

/// Ctrl-C and Ctrl-D arrive as bytes.
const QUIT: [u8; 4] = [b'q', b'Q', 3, 4];
/// Where the terminal does not say how large it is.
const SIZE: (usize, usize) = (24, 80);

/// A terminal that shows nothing else.
pub struct Screen {
    before: Termios,
    ended: Arc<AtomicBool>,
    drawn: Vec<String>,
}

impl Screen {
    /// Whether there is one: to draw on, and to type at.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Takes it.
    pub fn open() -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register(signal, ended.clone())?;
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Self {
            before,
            ended,
            drawn: Vec::new(),
        };
        // The other screen, and no cursor.
        write(b"\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Waits; whether it is to end.
    pub fn wait(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut size = terminal_size();
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // In pieces, so that signals and a new size are noticed.
            match typed(left.min(Duration::from_millis(200))) {
                Ok(Some(byte)) if QUIT.contains(&byte) => return true,
                Ok(_) => {}
                // The terminal is gone.
                Err(_) => return true,
            }
            if terminal_size() != size {
                size = terminal_size();
                let again = std::mem::take(&mut self.drawn);
                if self.draw(&again).is_err() {
                    return true;
                }
            }
        }
    }

    /// Shows these lines, as far as there is room.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        write(&frame(lines, terminal_size()))?;
        self.drawn = lines.to_vec();
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write(b"\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The bytes that show these lines on a terminal of so many rows and columns. Control characters, as a path may have them,
/// are not passed on.
fn frame(lines: &[String], (rows, columns): (usize, usize)) -> Vec<u8> {
    let shown = rows.saturating_sub(1);
    let mut text = String::from("\x1b[H");
    for line in lines.iter().take(shown) {
        let clean = line
            .chars()
            .map(|letter| if letter.is_control() { '?' } else { letter });
        text.extend(clean.take(columns));
        text.push_str("\x1b[K\r\n");
    }
    let foot = match lines.len().saturating_sub(shown) {
        0 => "q quits".to_owned(),
        more => format!("q quits; {more} more lines than the terminal has"),
    };
    text.extend(foot.chars().take(columns));
    text.push_str("\x1b[K\x1b[J");
    text.into_bytes()
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// A byte that was typed within the time.
fn typed(time: Duration) -> io::Result<Option<u8>> {
    let terminal = io::stdin();
    let mut wanted = [PollFd::new(&terminal, PollFlags::IN)];
    match poll(&mut wanted, Timespec::try_from(time).ok().as_ref()) {
        Ok(0) | Err(Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut byte = [0];
    match rustix::io::read(&terminal, &mut byte)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(Some(byte[0])),
    }
}

/// Rows and columns.
fn terminal_size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()).map(|found| (usize::from(found.ws_row), usize::from(found.ws_col))) {
        Err(_) | Ok((0, _) | (_, 0)) => SIZE,
        Ok(size) => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_terminal_and_passes_no_control_characters_on() {
        let lines: Vec<String> = ["abcdef", "x\x1b[2Jy", "third"].map(str::to_owned).to_vec();
        let text = String::from_utf8(frame(&lines, (3, 4))).unwrap();
        assert_eq!(text, "\x1b[Habcd\x1b[K\r\nx?[2\x1b[K\r\nq qu\x1b[K\x1b[J");
        let text = String::from_utf8(frame(&lines, (24, 80))).unwrap();
        assert!(text.contains("third\x1b[K\r\nq quits\x1b[K"), "{text}");
        assert!(
            String::from_utf8(frame(&lines, (0, 80)))
                .unwrap()
                .contains("3 more lines")
        );
    }
}
