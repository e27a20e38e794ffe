//! `terrace`: the command line, and (as `terrace start POOL --foreground`) the daemon that holds a pool.
//!
//! Invariants: an error is one line on standard error, `terrace: what failed: why; what to do`; the exit status is 0
//! when it was done, 1 when it failed, 2 when the command line was wrong; nothing that cannot be undone is done
//! without `--yes` or a question answered.

mod arguments;
mod client;
mod commands;
mod crash;
mod daemon;
mod machine;

use std::{ffi::OsString, io::Write, process::ExitCode};

use clap::{Parser, error::ErrorKind};
use terrace_control::Failure;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let words = match commands::data::mount_helper::translate(&words) {
        Ok(words) if words.is_empty() => return ExitCode::SUCCESS,
        Ok(words) => words,
        Err(failure) => return report(&failure),
    };
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    match commands::run(arguments) {
        Ok(code) => code,
        Err(failure) => report(&failure),
    }
}

fn report(failure: &Failure) -> ExitCode {
    // Whoever does not listen any more is no reason to end otherwise.
    let _ = writeln!(std::io::stderr(), "terrace: {failure}");
    ExitCode::from(if failure.usage { 2 } else { 1 })
}

/// Help and version as clap prints them; mistakes as one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            let text = error.render().to_string();
            let mut parts: Vec<&str> = Vec::new();
            let mut advice = "see 'terrace help'".to_owned();
            for part in text.split("\n\n") {
                let usage = part.strip_prefix("Usage:").unwrap_or_default();
                let words: Vec<&str> = usage.split_whitespace().collect();
                // That of a command; of all of them it says nothing.
                if words.get(1).is_some_and(|word| !word.starts_with(['[', '<'])) {
                    advice = format!("usage: {}", words.join(" "));
                }
                if part.starts_with("Usage:") || part.starts_with("For more information") {
                    break;
                }
                parts.push(part.trim());
            }
            // Beside the mistake, what clap thinks was meant.
            let message = parts.join("; ").split_whitespace().collect::<Vec<_>>().join(" ");
            let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
            eprintln!("terrace: understand the command: {message}; {advice}");
            ExitCode::from(2)
        }
    }
}
