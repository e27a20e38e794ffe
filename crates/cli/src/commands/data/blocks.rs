//! `terrace attach`, `detach`, `serve` and `unserve`.

use std::path::Path;

use serde_json::{Value, json};
use terrace_control::Failure;

use crate::{
    arguments::{ServeArguments, split_pool},
    client::Client,
    commands::{Session, logged, tell_note},
    machine::{Registry, Via, output},
};

/// `terrace attach VOLUME`: prints the block device.
pub fn attach(session: &Session, volume: &str, read_only: bool, via: Via) -> Result<(), Failure> {
    let arguments = json!({ "volume": volume, "read_only": read_only, "via": via });
    let answer = session.change(volume, "attach", arguments)?;
    tell_note(&answer);
    if session.json {
        return output::json(&answer);
    }
    output::line(answer["device"].as_str().unwrap_or_default())
}

/// `terrace detach VOLUME|DEVICE`.
pub fn detach(session: &Session, target: &str, force: bool) -> Result<(), Failure> {
    let (pool, target) = if target.starts_with('/') {
        find_device(session, target)?
    } else {
        (split_pool(target)?.0.to_owned(), target.to_owned())
    };
    let mut client = Client::open(&session.places, &pool)?;
    let answer = client.call("detach", logged(json!({ "target": target, "force": force })))?;
    if session.json {
        return output::json(&answer);
    }
    Ok(())
}

/// The pool whose volume a device shows, and the device by its own name.
fn find_device(session: &Session, given: &str) -> Result<(String, String), Failure> {
    let device = std::fs::canonicalize(given).unwrap_or_else(|_| given.into());
    let registry = Registry::new(&session.places);
    for pool in registry.pools()? {
        let known = registry.blocks(&pool.name)?;
        let found = known
            .attached
            .into_iter()
            .find(|attached| attached.device.as_deref() == Some(&*device));
        if let Some(attached) = found {
            return Ok((pool.name, attached.volume));
        }
    }
    Err(Failure::new(
        format!("detach '{given}'"),
        "no volume is attached as this device",
        "'terrace status' lists what is attached",
    ))
}

/// `terrace serve VOLUME --nbd ADDRESS` or `--vhost-user PATH`: prints where clients find it.
pub fn serve(session: &Session, arguments: &ServeArguments) -> Result<(), Failure> {
    let volume = &arguments.volume;
    let what = format!("serve '{volume}'");
    let address = match (&arguments.vhost_user, &arguments.nbd) {
        (Some(path), _) => format!("vhost-user:{}", from_root(&what, path)?),
        (None, Some(address)) => absolute(volume, address)?,
        (None, None) => {
            let remedy = "give --nbd ADDRESS or --vhost-user PATH";
            return Err(Failure::new(what, "where is not said", remedy).as_usage());
        }
    };
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => Some(json!({
            "certificate": from_root(&what, certificate)?,
            "key": from_root(&what, key)?,
            "client_authority": match &arguments.tls_ca {
                Some(path) => Some(from_root(&what, path)?),
                None => None,
            },
        })),
        _ => None,
    };
    let request = json!({
        "volume": volume, "address": address, "read_only": arguments.read_only, "tls": tls,
    });
    let mut answer = session.change(volume, "serve", request)?;
    tell_note(&answer);
    let uri = uri(
        volume,
        answer["address"].as_str().unwrap_or_default(),
        tls.is_some(),
    );
    answer["uri"] = json!(uri);
    if session.json {
        return output::json(&answer);
    }
    output::line(&uri)
}

/// The daemon has another working directory than we.
fn absolute(volume: &str, address: &str) -> Result<String, Failure> {
    let Some(path) = address.strip_prefix("unix:").filter(|path| !path.is_empty()) else {
        return Ok(address.to_owned());
    };
    let what = format!("serve '{volume}' at '{address}'");
    from_root(&what, Path::new(path)).map(|path| format!("unix:{path}"))
}

fn from_root(what: &str, path: &Path) -> Result<String, Failure> {
    std::path::absolute(path)
        .ok()
        .and_then(|path| path.to_str().map(str::to_owned))
        .ok_or_else(|| {
            Failure::new(
                what,
                "the path is not UTF-8, or the working directory is gone",
                "give the path from the root",
            )
        })
}

/// As the NBD project writes addresses; qemu, nbdcopy and others take it. Of a vhost-user socket its path.
fn uri(volume: &str, address: &str, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    let escape = |text: &str| {
        let mut escaped = String::new();
        for byte in text.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'@' | b':' => {
                    escaped.push(char::from(byte));
                }
                other => escaped.push_str(&format!("%{other:02X}")),
            }
        }
        escaped
    };
    match address.split_once(':') {
        Some(("vhost-user", path)) => path.to_owned(),
        Some(("unix", path)) => format!("{scheme}+unix:///{}?socket={}", escape(volume), escape(path)),
        Some((_, host)) => format!("{scheme}://{host}/{}", escape(volume)),
        None => String::new(),
    }
}

/// For people: devices and addresses of volumes stand where the mounts of filesystems do.
pub fn beside_mounts(datasets: &mut Value) {
    for row in datasets.as_array_mut().into_iter().flatten() {
        let mut places: Vec<Value> = Vec::new();
        for key in ["mounts", "attached", "served"] {
            places.extend(row[key].as_array().into_iter().flatten().cloned());
        }
        if row["mounts"].is_array() {
            row["mounts"] = Value::Array(places);
        }
    }
}

/// `terrace unserve VOLUME`.
pub fn unserve(session: &Session, volume: &str) -> Result<(), Failure> {
    let answer = session.change(volume, "unserve", json!({ "volume": volume }))?;
    if session.json {
        return output::json(&answer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_clients_take_them() {
        assert_eq!(
            uri("tank/vm", "unix:/run/a b.sock", false),
            "nbd+unix:///tank/vm?socket=/run/a%20b.sock"
        );
        assert_eq!(
            uri("tank/vm@one", "tcp:[::1]:10809", true),
            "nbds://[::1]:10809/tank/vm@one"
        );
    }

    #[test]
    fn sockets_are_named_from_the_root() {
        assert_eq!(absolute("v", "unix:/a").unwrap(), "unix:/a");
        assert!(absolute("v", "unix:a").unwrap().starts_with("unix:/"));
        assert_eq!(absolute("v", "tcp:h:1").unwrap(), "tcp:h:1");
    }
}
