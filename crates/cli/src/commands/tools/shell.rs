//! Completions and man pages, from the same definitions as the commands.

use std::{fs, io, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;
use terrace_control::Failure;

use crate::{arguments::Arguments, machine::output};

/// `terrace completions SHELL`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "terrace", &mut script);
    output::bytes(&script)
}

/// `terrace man [DIRECTORY]`.
pub fn man(directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = without_help(Arguments::command());
    // Gives each command below its whole name, and the options that all have.
    command.build();
    let Some(directory) = directory else {
        return output::bytes(&page(&command)?);
    };
    let fail =
        |error: io::Error| Failure::new(format!("write man pages to '{}'", directory.display()), error, "");
    fs::create_dir_all(directory).map_err(fail)?;
    write_pages(&command, directory)
}

/// Without the commands 'help', which have no page.
fn without_help(command: clap::Command) -> clap::Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

fn page(command: &clap::Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .source(concat!("terrace ", env!("CARGO_PKG_VERSION")))
        .render(&mut text)
        .map_err(|error| Failure::new("make the man page", error, ""))?;
    Ok(text)
}

fn write_pages(command: &clap::Command, directory: &Path) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page(command)?)
        .map_err(|error| Failure::new(format!("write '{}'", path.display()), error, ""))?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, directory)?;
    }
    Ok(())
}
