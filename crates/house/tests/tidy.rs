//! The house stays tidy: floors only look down, files stay small and say what they are for, and no module is named
//! after nothing. The rules are those of `docs/design.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const LINES_MAX: usize = 800;
const EMPTY_NAMES: [&str; 6] = ["common", "helpers", "misc", "shared", "util", "utils"];
/// Pairs on the same floor that may depend on one another, (user, used): the contract and its implementations.
const SAME_FLOOR: [(&str, &str); 1] = [("terrace-chunk", "terrace-store")];
/// Declared for their features alone, (crate, dependency).
const FOR_FEATURES: [(&str, &str); 2] = [("faults", "proc-macro2"), ("house", "proc-macro2")];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate lies two below the root")
        .to_path_buf()
}

/// What a manifest says that matters here: its name, its floor, the Terrace crates it uses outside of tests.
struct Manifest {
    name: String,
    floor: u32,
    uses: Vec<String>,
}

fn manifests() -> Vec<Manifest> {
    let mut found = Vec::new();
    for entry in fs::read_dir(workspace().join("crates")).expect("crates/ is there") {
        let path = entry.expect("readable").path().join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let mut manifest = Manifest {
            name: String::new(),
            floor: u32::MAX,
            uses: Vec::new(),
        };
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line.to_string();
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            match section.as_str() {
                "[package]" if key == "name" => manifest.name = value.trim_matches('"').to_string(),
                "[package.metadata.terrace]" if key == "floor" => {
                    manifest.floor = value
                        .parse()
                        .unwrap_or_else(|_| panic!("{}: floor = {value}", path.display()));
                }
                "[dependencies]" if key.starts_with("terrace-") => {
                    let name = key.split('.').next().unwrap_or(key);
                    manifest.uses.push(name.to_string());
                }
                _ => {}
            }
        }
        assert!(!manifest.name.is_empty(), "{} names no package", path.display());
        assert_ne!(manifest.floor, u32::MAX, "{} names no floor", path.display());
        found.push(manifest);
    }
    found
}

fn source_files() -> Vec<PathBuf> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else {
            return;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(workspace().join("crates"))
        .expect("crates/ is there")
        .flatten()
    {
        for part in ["src", "tests", "benches", "examples"] {
            walk(&entry.path().join(part), &mut found);
        }
    }
    found.sort();
    assert!(found.len() > 20, "the walk finds the sources");
    found
}

#[test]
fn floors_only_look_down() {
    let manifests = manifests();
    let floors: BTreeMap<&str, u32> = manifests.iter().map(|m| (m.name.as_str(), m.floor)).collect();
    let mut wrong = Vec::new();
    for manifest in &manifests {
        for used in &manifest.uses {
            let floor = *floors
                .get(used.as_str())
                .unwrap_or_else(|| panic!("{used} is not in the workspace"));
            let excused = SAME_FLOOR.contains(&(manifest.name.as_str(), used.as_str()));
            if floor > manifest.floor || (floor == manifest.floor && !excused) {
                wrong.push(format!(
                    "{} (floor {}) uses {used} (floor {floor})",
                    manifest.name, manifest.floor
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_pair_of_one_floor_is_excused_for_nothing() {
    let manifests = manifests();
    let idle: Vec<_> = SAME_FLOOR
        .into_iter()
        .filter(|(user, used)| {
            let needs =
                |manifest: &Manifest| manifest.name == *user && manifest.uses.iter().any(|name| name == used);
            !manifests.iter().any(needs)
        })
        .collect();
    assert!(idle.is_empty(), "{idle:?}");
}

/// Whether `text` has `name` as a word.
fn has_word(text: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part))
}

#[test]
fn every_declared_dependency_is_named_in_a_source() {
    let crates = workspace().join("crates");
    let sources: Vec<(PathBuf, String)> = source_files()
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(path).expect("readable")))
        .collect();
    let mut unused = Vec::new();
    let mut declared = String::new();
    for entry in fs::read_dir(&crates).expect("crates/ is there").flatten() {
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
        let own = entry.file_name().to_string_lossy().into_owned();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let Some((key, _)) = line.split_once('=') else {
                continue;
            };
            let name = key.trim().split('.').next().unwrap_or_default();
            let below = match section {
                "[dependencies]" => entry.path().join("src"),
                "[dev-dependencies]" => entry.path(),
                _ => continue,
            };
            let word = name.replace('-', "_");
            let is_named = sources
                .iter()
                .any(|(path, text)| path.starts_with(&below) && has_word(text, &word));
            if !is_named && !FOR_FEATURES.contains(&(&own, name)) {
                unused.push(format!("crates/{own} declares {name} and names it nowhere"));
            }
        }
        declared.push_str(&manifest);
    }
    let workspace = fs::read_to_string(workspace().join("Cargo.toml")).expect("readable");
    let (_, dependencies) = workspace
        .split_once("[workspace.dependencies]")
        .expect("there are some");
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    for (key, _) in dependencies.lines().filter_map(|line| line.split_once('=')) {
        let key = key.trim();
        if !declared
            .lines()
            .any(|line| line.starts_with(&format!("{key}.")) || line.starts_with(&format!("{key} ")))
        {
            unused.push(format!("no crate declares {key}"));
        }
    }
    assert!(unused.is_empty(), "{}", unused.join("\n"));
}

#[test]
fn files_stay_small() {
    let large: Vec<String> = source_files()
        .iter()
        .filter_map(|path| {
            let lines = fs::read_to_string(path).expect("readable").lines().count();
            (lines > LINES_MAX).then(|| format!("{}: {lines} lines, at most {LINES_MAX}", path.display()))
        })
        .collect();
    assert!(large.is_empty(), "{}", large.join("\n"));
}

#[test]
fn files_say_what_they_are_for() {
    let silent: Vec<String> = source_files()
        .iter()
        .filter(|path| !fs::read_to_string(path).expect("readable").starts_with("//! "))
        .map(|path| format!("{} does not open with a //! line", path.display()))
        .collect();
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

#[test]
fn modules_are_named_after_something() {
    let empty: Vec<String> = source_files()
        .iter()
        .filter(|path| {
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            let parent = path
                .parent()
                .and_then(Path::file_name)
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            EMPTY_NAMES.contains(&stem) || EMPTY_NAMES.contains(&parent)
        })
        .map(|path| path.display().to_string())
        .collect();
    assert!(empty.is_empty(), "named after nothing: {}", empty.join(", "));
}

/// Where `autotests` is off, a file that is not named would silently not run.
#[test]
fn every_file_of_tests_runs() {
    let mut forgotten = Vec::new();
    let mut crates_with_one_program = 0;
    for entry in fs::read_dir(workspace().join("crates"))
        .expect("crates/ is there")
        .flatten()
    {
        let tests = entry.path().join("tests");
        let Ok(all) = fs::read_to_string(tests.join("all.rs")) else {
            continue;
        };
        crates_with_one_program += 1;
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("readable");
        for path in fs::read_dir(&tests)
            .expect("readable")
            .flatten()
            .map(|entry| entry.path())
        {
            let name = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            let holds_code = path.extension().is_some_and(|extension| extension == "rs")
                || ["main.rs", "mod.rs"].iter().any(|file| path.join(file).exists());
            let named = all.lines().any(|line| line == format!("mod {name};"))
                || manifest.contains(&format!("path = \"tests/{name}.rs\""));
            if holds_code && !named {
                forgotten.push(format!(
                    "{} is named neither in all.rs nor in Cargo.toml",
                    path.display()
                ));
            }
        }
    }
    assert!(
        crates_with_one_program > 5,
        "the walk finds the programs of tests"
    );
    assert!(forgotten.is_empty(), "{}", forgotten.join("\n"));
}

#[test]
fn every_parser_that_is_fuzzed_has_a_target() {
    let mut parsers = BTreeSet::new();
    for path in source_files() {
        if path.file_name().is_none_or(|name| name != "fuzzing.rs") {
            continue;
        }
        let name = path.ancestors().nth(2).and_then(Path::file_name);
        let name = name.expect("crates/NAME/src/fuzzing.rs").to_string_lossy();
        let text = fs::read_to_string(&path).expect("readable");
        let functions = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("pub fn ")?;
            rest.strip_suffix("(bytes: &[u8]) {")
        });
        parsers.extend(functions.map(|function| (name.to_string(), function.to_string())));
    }
    assert!(parsers.len() > 30, "the parsers are found");
    let manifest = fs::read_to_string(workspace().join("fuzz/Cargo.toml")).expect("fuzz/ is there");
    let mut targets = fs::read_dir(workspace().join("fuzz/fuzz_targets"))
        .expect("it has targets")
        .count();
    for (name, function) in &parsers {
        let target = format!("{name}_{function}");
        let path = workspace().join(format!("fuzz/fuzz_targets/{target}.rs"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text.contains(&format!("terrace_{name}::fuzzing::{function}")),
            "{} does not call the parser",
            path.display()
        );
        assert!(
            manifest.contains(&format!("name = \"{target}\"")),
            "fuzz/Cargo.toml does not name {target}"
        );
        targets -= 1;
    }
    assert_eq!(targets, 0, "there are targets without a parser");
}
