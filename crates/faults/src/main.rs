//! `terrace-faults`: plants deliberate faults in a copy of the tree, for `scripts/mutants.sh`, which has the simulator notice them.
//!
//! A fault is a file of `crates/sim/faults`. It says in which item of which crate which code stands for which other
//! (`fault.rs`); it names no file and no line, so that code may move.

mod fault;
mod place;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
};

use fault::{Change, Fault, FaultError};
use place::Crates;

const USAGE: &str =
    "usage: terrace-faults check|list TREE [NAME]...   whether each still fits; what noticed it once
       terrace-faults plant TREE NAME             changes the tree; prints the files that it changed";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match &words[..] {
        ["check", tree, names @ ..] => check(Path::new(tree), names),
        ["list", tree, names @ ..] => list(Path::new(tree), names),
        ["plant", tree, name] => plant(Path::new(tree), name),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn directory(tree: &Path) -> PathBuf {
    tree.join("crates/sim/faults")
}

/// Those named, or all, in the order of their names; it is an error if there is none.
fn faults(tree: &Path, names: &[&str]) -> Result<Vec<(String, Fault)>, String> {
    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let directory = directory(tree);
    if names.is_empty() {
        let entries =
            std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let files = entries.flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
        names = files
            .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
            .collect();
        names.sort();
    }
    if names.is_empty() {
        return Err(format!(
            "there are no faults in {}: nothing was tested",
            directory.display()
        ));
    }
    let read = |name: String| {
        let fault = Fault::read(&directory.join(format!("{name}.toml")))
            .map_err(|error| format!("{name}: {error}"))?;
        Ok((name, fault))
    };
    names.into_iter().map(read).collect()
}

fn check(tree: &Path, names: &[&str]) -> Result<(), String> {
    let faults = faults(tree, names)?;
    let mut crates = Crates::of(tree);
    let mut unfit = 0;
    for (name, fault) in &faults {
        if let Err(error) = changed(&mut crates, fault) {
            eprintln!("{name}: {error}");
            unfit += 1;
        }
    }
    println!("{} faults, {unfit} do not fit", faults.len());
    match unfit {
        0 => Ok(()),
        _ => Err("mend their files in crates/sim/faults, or remove those whose code is gone".into()),
    }
}

fn list(tree: &Path, names: &[&str]) -> Result<(), String> {
    for (name, fault) in faults(tree, names)? {
        println!("{name} {}", fault.noticed.as_deref().unwrap_or("-"));
    }
    Ok(())
}

fn plant(tree: &Path, name: &str) -> Result<(), String> {
    let mut crates = Crates::of(tree);
    for (_, fault) in faults(tree, &[name])? {
        for (path, text) in changed(&mut crates, &fault).map_err(|error| format!("{name}: {error}"))? {
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{}", path.strip_prefix(tree).unwrap_or(&path).display());
        }
    }
    Ok(())
}

/// The files that a fault changes, as they are with it.
fn changed(crates: &mut Crates, fault: &Fault) -> Result<BTreeMap<PathBuf, String>, FaultError> {
    let mut changes = BTreeMap::<PathBuf, (String, Vec<(Range<usize>, &Change)>)>::new();
    for change in &fault.change {
        let place = crates.find(change)?;
        let (_, of_file) = changes.entry(place.path).or_insert((place.text, Vec::new()));
        of_file.push((place.range, change));
    }
    let mut planted = BTreeMap::new();
    for (path, (mut text, mut of_file)) in changes {
        of_file.sort_by_key(|(range, _)| range.start);
        if let Some(pair) = of_file.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
            return Err(FaultError::Meet(pair[1].1.item.clone()));
        }
        for (range, change) in of_file.into_iter().rev() {
            text.replace_range(range, change.with.trim());
        }
        planted.insert(path, text);
    }
    Ok(planted)
}
