//! `terrace ls`, `cat`, `put`, `get`: files without a mount.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use terrace_control::{Answer, Failure, Message};
use terrace_device::format_size;

use crate::{
    arguments::split_pool,
    client::{Client, decode},
    commands::{Session, logged},
    machine::{Copied, Registry, TreeEntry, TreeWriter, from_wire, output, send_content, send_tree, to_wire},
};

/// `terrace ls`.
pub fn ls(session: &Session, paths: &[String], long: bool, recursive: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for path in paths {
        if paths.len() > 1 && !session.json {
            output::line(&format!("{path}:"))?;
        }
        let mut entries: Vec<TreeEntry> = Vec::new();
        session.client_for(path)?.call_with(
            "ls",
            json!({ "path": path, "recursive": recursive }),
            &mut |answer| {
                if let Answer::Item(item) = answer {
                    entries.push(decode(item)?);
                }
                Ok(())
            },
        )?;
        let mut entries: Vec<(Vec<u8>, TreeEntry)> = entries
            .into_iter()
            .filter_map(|entry| Some((from_wire(&entry.path)?, entry)))
            .collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        if session.json {
            rows.extend(entries.iter().map(|(name, entry)| entry_json(name, entry)));
        } else if long {
            print_long(&entries)?;
        } else {
            for (name, _) in &entries {
                output::bytes(name)?;
                output::bytes(b"\n")?;
            }
        }
    }
    if session.json { output::json(&rows) } else { Ok(()) }
}

fn time_text(entry: &TreeEntry) -> String {
    terrace_dataset::format_time(terrace_dataset::Time {
        seconds: entry.modified_seconds,
        nanos: entry.modified_nanoseconds,
    })
}

fn entry_json(name: &[u8], entry: &TreeEntry) -> Value {
    let mut row = json!({
        "name": String::from_utf8_lossy(name),
        "type": entry.kind,
        "mode": format!("{:04o}", entry.mode),
        "uid": entry.uid,
        "gid": entry.gid,
        "size_bytes": entry.size,
        "modified": time_text(entry),
    });
    if entry.kind == "symlink" {
        row["target"] = json!(String::from_utf8_lossy(
            &from_wire(&entry.target).unwrap_or_default()
        ));
    }
    row
}

fn print_long(entries: &[(Vec<u8>, TreeEntry)]) -> Result<(), Failure> {
    for (name, entry) in entries {
        let kind = match entry.kind.as_str() {
            "directory" => 'd',
            "symlink" => 'l',
            "fifo" => 'p',
            "socket" => 's',
            "device" => 'c',
            _ => '-',
        };
        let mut text = format!(
            "{kind}{} {:>5} {:>5} {:>8} {} ",
            mode_text(entry.mode),
            entry.uid,
            entry.gid,
            format_size(entry.size),
            time_text(entry)
        )
        .into_bytes();
        text.extend_from_slice(name);
        if entry.kind == "symlink" {
            text.extend_from_slice(b" -> ");
            text.extend_from_slice(&from_wire(&entry.target).unwrap_or_default());
        }
        text.push(b'\n');
        output::bytes(&text)?;
    }
    Ok(())
}

/// `rwxr-xr-x`, with set-id and sticky bits as `ls` shows them.
fn mode_text(mode: u32) -> String {
    let mut text = String::new();
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `terrace cat`.
pub fn cat(session: &Session, paths: &[String]) -> Result<(), Failure> {
    for path in paths {
        session
            .client_for(path)?
            .call_with("cat", json!({ "path": path }), &mut |answer| match answer {
                Answer::Content(content) => output::bytes(&content),
                _ => Ok(()),
            })?;
    }
    Ok(())
}

/// `terrace get DATASET/PATH [TO]`.
pub fn get(session: &Session, path: &str, to: Option<&str>) -> Result<(), Failure> {
    if to == Some("-") {
        return cat(session, &[path.to_owned()]);
    }
    let own_name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let own_name = own_name.split("@@").next().unwrap_or_default();
    if matches!(own_name, "" | "." | "..") {
        let why = "it has no name of its own to be written under";
        return Err(
            Failure::new(format!("get '{path}'"), why, "name what to get as it is called").as_usage(),
        );
    }
    crate::client::check_answers(&session.places, Path::new(to.unwrap_or(own_name)))?;
    let destination = match to {
        None => PathBuf::from(own_name),
        Some(to) if Path::new(to).is_dir() => Path::new(to).join(own_name),
        Some(to) => PathBuf::from(to),
    };
    let mut writer = TreeWriter::new(destination);
    session
        .client_for(path)?
        .call_with("get_tree", json!({ "path": path }), &mut |answer| match answer {
            Answer::Item(item) => writer.start(decode(item)?),
            Answer::Content(content) => writer.content(&content),
            Answer::ContentEnd => writer.end_content(),
            Answer::Progress(_) => Ok(()),
        })?;
    let copied = writer.finish()?;
    print_copied(session, &copied)
}

/// `terrace put DATASET[/PATH] [FILE…]`; also `terrace put FILE… DATASET[/PATH]`, as `cp` has it.
pub fn put(session: &Session, target: &str, sources: &[PathBuf]) -> Result<(), Failure> {
    let registry = Registry::new(&session.places);
    let names_pool = |text: &str| {
        split_pool(text).is_ok_and(|(pool, _)| registry.find(pool).is_ok_and(|found| found.is_some()))
    };
    let (target, sources) = match sources.split_last() {
        Some((last, others)) if !names_pool(target) && last.to_str().is_some_and(names_pool) => {
            let mut turned = vec![PathBuf::from(target)];
            turned.extend_from_slice(others);
            (last.to_string_lossy().into_owned(), turned)
        }
        _ => (target.to_owned(), sources.to_vec()),
    };
    if sources.len() > 1 && sources.iter().any(|source| source.as_os_str() == "-") {
        let why = "standard input has no name of its own to be written under beside others";
        let remedy = "write it alone: 'terrace put DATASET/PATH'";
        return Err(Failure::new(format!("put to '{target}'"), why, remedy).as_usage());
    }
    let mut copied = Copied::default();
    if sources.is_empty() || sources == [PathBuf::from("-")] {
        copied = add(copied, put_one(session, &target, None, false)?);
    }
    for source in sources.iter().filter(|source| source.as_os_str() != "-") {
        copied = add(
            copied,
            put_one(session, &target, Some(source), sources.len() > 1)?,
        );
    }
    print_copied(session, &copied)
}

fn add(a: Copied, b: Copied) -> Copied {
    Copied {
        files: a.files + b.files,
        bytes: a.bytes + b.bytes,
        others: a.others + b.others,
        skipped: a.skipped + b.skipped,
    }
}

/// Standard input as a file of this user, made now.
fn send_standard_input(client: &mut Client, target: &str) -> Result<(), Failure> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let entry = TreeEntry {
        kind: "file".into(),
        mode: 0o644,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        modified_seconds: i64::try_from(now.as_secs()).unwrap_or(0),
        modified_nanoseconds: now.subsec_nanos(),
        ..TreeEntry::default()
    };
    let item = Message::Item(serde_json::to_value(&entry).unwrap_or_default());
    let announced = client.connection().send(&item);
    announced.map_err(|error| crate::client::unreachable(target, &error))?;
    let name = Path::new("standard input");
    send_content(client.connection(), io::stdin().lock(), name).map(drop)
}

fn put_one(
    session: &Session,
    target: &str,
    source: Option<&Path>,
    is_one_of_several: bool,
) -> Result<Copied, Failure> {
    let (_, rest) = split_pool(target)?;
    if let Some(source) = source {
        crate::client::check_answers(&session.places, source)?;
    }
    if let Some(source) = source
        && let Err(error) = std::fs::symlink_metadata(source)
    {
        return Err(Failure::new(
            format!("read '{}'", source.display()),
            error,
            "check the path",
        ));
    }
    let name = match source {
        None if rest.is_empty() => {
            return Err(Failure::new(
                format!("put to '{target}'"),
                "standard input needs a file name",
                "write DATASET/PATH",
            )
            .as_usage());
        }
        None => None,
        Some(source) => {
            let absolute = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
            absolute.file_name().map(|name| to_wire(name.as_bytes()))
        }
    };
    let mut client: Client = session.client_for(target)?;
    // As cp has it: what is written as a directory is none to be made of a file.
    let means_directory = target.ends_with('/') && source.is_none_or(|source| !source.is_dir());
    let request = json!({
        "target": target, "name": name, "into_directory": is_one_of_several || means_directory,
    });
    client.send("put_tree", logged(request))?;
    let sent = match source {
        Some(source) => {
            let mut counted = Copied::default();
            send_tree(client.connection(), source, &mut counted).map(|()| counted.skipped)
        }
        None => send_standard_input(&mut client, target).map(|()| 0),
    };
    let skipped = match sent {
        Ok(skipped) => {
            let end = client.connection().send(&Message::Result(Value::Null));
            // If the daemon gave up in the middle, its answer says why.
            if let Err(error) = end {
                tracing::debug!("{error}");
            }
            skipped
        }
        Err(failure) => {
            // What the daemon says comes first: a broken pipe is only the consequence.
            let _ = client
                .connection()
                .send(&Message::Progress(terrace_control::Progress::default()));
            return Err(match client.finish(&mut |_| Ok(())) {
                Err(told)
                    if !told.why.contains("broke the protocol") && !told.what.starts_with("talk to") =>
                {
                    told
                }
                _ => failure,
            });
        }
    };
    let mut copied: Copied = decode(client.finish(&mut |_| Ok(()))?)?;
    copied.skipped += skipped;
    Ok(copied)
}

fn print_copied(session: &Session, copied: &Copied) -> Result<(), Failure> {
    if session.json {
        return output::json(copied);
    }
    if copied.skipped > 0 {
        eprintln!("terrace: left out {} sockets, pipes or devices", copied.skipped);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::mode_text;

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode_text(0o755), "rwxr-xr-x");
        assert_eq!(mode_text(0o4711), "rws--x--x");
        assert_eq!(mode_text(0o2640), "rw-r-S---");
        assert_eq!(mode_text(0o1777), "rwxrwxrwt");
    }
}
