//! `terrace get`, `set`, `inherit`, `hold`, `release`: what is asked or changed of several datasets or snapshots at once.
//!
//! Invariants: names that cannot be any are found before anything is changed; the first that fails ends the command, and the
//! error says what was changed before it, which stays; a command is in each pool's command log once.

use serde_json::{Value, json};
use terrace_control::Failure;

use crate::{
    arguments::{GetArguments, InheritArguments, split_pool, split_property},
    commands::{
        Session, logged,
        pool::{parse_properties, print_properties},
        tell_note,
    },
    machine::Registry,
};

/// `terrace get`: properties, or a copy of a file.
pub fn get_or_copy(session: &Session, arguments: &GetArguments) -> Result<(), Failure> {
    let Some((first, rest)) = arguments.words.split_first() else {
        return Ok(());
    };
    let names_property = |word: &str| {
        word == "all"
            || word.starts_with("user:")
            || word
                .split(',')
                .all(|part| part.starts_with("user:") || (!part.contains('/') && !part.contains('@')))
    };
    // A pool's name alone means its root dataset, unless a property of that name was asked of something.
    let is_pool = first.split(['/', '@']).next().is_some_and(|pool| {
        Registry::new(&session.places)
            .find(pool)
            .is_ok_and(|found| found.is_some())
    });
    if !names_property(first)
        || (is_pool && terrace_dataset::property_help(first).is_none() && first != "all")
    {
        if rest.len() > 1 {
            return Err(Failure::new(
                format!("copy '{first}'"),
                "more than one destination was given",
                "write 'terrace get DATASET/PATH [TO]'",
            )
            .as_usage());
        }
        return super::files::get(session, first, rest.first().map(String::as_str));
    }
    if rest.is_empty() {
        return Err(Failure::new(
            format!("get {first}"),
            "the dataset is missing",
            "write 'terrace get PROPERTY|all DATASET', or 'terrace get DATASET/PATH [TO]' for a file",
        )
        .as_usage());
    }
    let wanted: Vec<&str> = first.split(',').collect();
    let mut rows: Vec<Value> = Vec::new();
    for name in rest {
        let request = json!({ "name": name, "properties": wanted, "recursive": arguments.recursive });
        let found = session
            .client_for(name)
            .and_then(|mut client| client.ask::<Vec<Value>>("get_properties", request));
        match found {
            Ok(found) => rows.extend(found),
            Err(failure) => {
                // What was found is worth having although one of them is not there.
                if !rows.is_empty() {
                    print_properties(session, &rows)?;
                }
                return Err(failure);
            }
        }
    }
    print_properties(session, &rows)
}

/// `terrace set`: properties, then datasets; what has a `=` is a property, as no name can have one.
pub fn set(session: &Session, words: &[String]) -> Result<(), Failure> {
    let (properties, names) = words.split_at(words.iter().take_while(|word| word.contains('=')).count());
    let wrong = |why: &str| {
        let remedy = "write 'terrace set PROPERTY=VALUE… DATASET…'";
        Failure::new(format!("set {}", words.join(" ")), why, remedy).as_usage()
    };
    if let ([], Some(first)) = (properties, words.first()) {
        split_property(first)?;
    }
    if names.is_empty() {
        return Err(wrong("the dataset is missing"));
    }
    if let Some(late) = names.iter().find(|word| word.contains('=')) {
        return Err(wrong(&format!("'{late}' stands behind a dataset")));
    }
    let properties = parse_properties(properties)?;
    change_each(
        session,
        names,
        "set_properties",
        |name| json!({ "name": name, "properties": properties }),
    )
}

/// `terrace inherit`.
pub fn inherit(session: &Session, arguments: &InheritArguments) -> Result<(), Failure> {
    let (property, recursive) = (&arguments.property, arguments.recursive);
    change_each(
        session,
        &arguments.datasets,
        "inherit",
        |name| json!({ "name": name, "property": property, "recursive": recursive }),
    )
}

/// `terrace hold`, and `release` with `release`.
pub fn hold(session: &Session, tag: &str, names: &[String], release: bool) -> Result<(), Failure> {
    change_each(
        session,
        names,
        "hold",
        |name| json!({ "name": name, "tag": tag, "release": release }),
    )
}

/// Asks for one change of each of these, in order.
fn change_each(
    session: &Session,
    names: &[String],
    operation: &str,
    arguments: impl Fn(&str) -> Value,
) -> Result<(), Failure> {
    names.iter().try_for_each(|name| split_pool(name).map(drop))?;
    let mut pools: Vec<&str> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let (pool, _) = split_pool(name)?;
        let arguments = match pools.contains(&pool) {
            true => arguments(name),
            false => logged(arguments(name)),
        };
        let changed = session
            .client_for(name)
            .and_then(|mut client| client.call(operation, arguments));
        tell_note(&changed.map_err(|failure| after(failure, &names[..at]))?);
        pools.push(pool);
    }
    Ok(())
}

/// A failure after others were changed: it names these, and is no mistake of words alone any more, as something was done.
fn after(failure: Failure, changed: &[String]) -> Failure {
    let done = match changed {
        [] => return failure,
        [one] => format!("'{one}' was changed before that, and stays so"),
        all => format!("'{}' were changed before that, and stay so", all.join("', '")),
    };
    let remedy = match failure.remedy.is_empty() {
        true => done,
        false => format!("{}; {done}", failure.remedy),
    };
    Failure {
        remedy,
        usage: false,
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_after_others_says_which() {
        let wrong = || Failure::new("set x of 'c'", "no", "do y").as_usage();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(after(wrong(), &[]), wrong());
        let told = after(wrong(), &names(&["a", "b"]));
        assert!(!told.usage);
        assert_eq!(
            told.to_string(),
            "set x of 'c': no; do y; 'a', 'b' were changed before that, and stay so"
        );
        let told = after(Failure::new("w", "no", ""), &names(&["a"]));
        assert_eq!(told.remedy, "'a' was changed before that, and stays so");
    }
}
