//! Completions and man pages, from the same definitions as the commands.

use std::{fs, io, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;
use terrace_control::Failure;

use crate::{arguments::Arguments, output};

/// `terrace completions SHELL`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "terrace", &mut script);
    output::bytes(&script)
}

/// `terrace man [DIRECTORY]`.
pub fn man(directory: Option<&Path>) -> Result<(), Failure> {
    let command = Arguments::command();
    let Some(directory) = directory else {
        return output::bytes(&page(&command)?);
    };
    let fail =
        |error: io::Error| Failure::new(format!("write man pages to '{}'", directory.display()), error, "");
    fs::create_dir_all(directory).map_err(fail)?;
    write_pages(command, "", directory)
}

fn page(command: &clap::Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut text)
        .map_err(|error| Failure::new("make the man page", error, ""))?;
    Ok(text)
}

fn write_pages(command: clap::Command, above: &str, directory: &Path) -> Result<(), Failure> {
    let name = if above.is_empty() {
        command.get_name().to_owned()
    } else {
        format!("{above}-{}", command.get_name())
    };
    let path = directory.join(format!("{name}.1"));
    // The name on the page is the whole one, also of a command below another.
    let named = command.clone().name(&*Box::leak(name.clone().into_boxed_str()));
    fs::write(&path, page(&named)?)
        .map_err(|error| Failure::new(format!("write '{}'", path.display()), error, ""))?;
    for below in command
        .get_subcommands()
        .filter(|below| below.get_name() != "help" && !below.is_hide_set())
    {
        write_pages(below.clone(), &name, directory)?;
    }
    Ok(())
}
