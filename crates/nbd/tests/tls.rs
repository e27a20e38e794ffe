//! TLS: demanded before anything else, clients known by their certificates; and libnbd's tools as clients.

#![allow(clippy::unwrap_used)]

use crate::harness;

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use harness::{
    Client, Disk, MIB,
    holding::{HELD, Holding, QUICK, Release},
    request, serve, serve_with,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use terrace_nbd::{Tls, TlsError, TlsFiles};

/// An authority, and what it signed, as libnbd wants the files named.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let made = Self { directory };
        fs::write(made.path("ca-cert.pem"), authority.pem()).unwrap();
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            fs::write(made.path(&format!("{name}-cert.pem")), certificate.pem()).unwrap();
            fs::write(made.path(&format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        made
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            certificate: self.path("server-cert.pem"),
            key: self.path("server-key.pem"),
            client_authority: Some(self.path("ca-cert.pem")),
        }
    }

    fn server(&self) -> Option<Tls> {
        Some(Tls::load(self.files()).unwrap())
    }

    /// A client that trusts this authority, and shows `identity`'s certificate if there is one.
    fn client(&self, identity: Option<&Self>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.path("ca-cert.pem")).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match identity {
            None => builder.with_no_client_auth(),
            Some(of) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(of.path("client-cert.pem")).unwrap()],
                    PrivateKeyDer::from_pem_file(of.path("client-key.pem")).unwrap(),
                )
                .unwrap(),
        }
    }
}

/// Begins TLS on a connection that was greeted.
fn starttls(
    mut client: Client<UnixStream>,
    config: ClientConfig,
) -> Client<StreamOwned<ClientConnection, UnixStream>> {
    client.option(5, &[]);
    assert_eq!(client.option_reply(), (1, vec![]));
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    Client(StreamOwned::new(connection, client.0))
}

#[test]
fn without_tls_nothing_is_told() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve_with(dir.path(), &[("a", Disk::new(MIB))], certificates.server());
    let mut client = Client::connect(&path);
    // LIST, INFO, STRUCTURED_REPLY, contexts, EXTENDED_HEADERS, and one that nobody knows.
    for option in [3, 6, 8, 9, 10, 11, 77] {
        client.option(option, &[]);
        assert_eq!(client.option_reply().0, 0x8000_0005, "option {option}");
    }
    assert_eq!(client.go("a")[0].0, 0x8000_0005);
    client.option(5, b"data");
    assert_eq!(client.option_reply().0, 0x8000_0003);
    client.option(1, b"a");
    assert_eq!(
        client.0.read(&mut [0; 16]).unwrap(),
        0,
        "EXPORT_NAME has no other refusal"
    );
    let mut client = Client::connect(&path);
    client.option(2, &[]);
    assert_eq!(client.option_reply().0, 1);
    server.stop();
}

#[test]
fn what_was_received_with_what_takes_long_does_not_wait_for_it() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve_with(dir.path(), &[], certificates.server());
    for _ in 0..20 {
        let disk = Holding::new(MIB);
        server.add("a", disk.clone());
        let mut client = starttls(Client::connect(&path), certificates.client(Some(&certificates)));
        client.go("a");
        client
            .0
            .sock
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let _release = Release(&disk);
        // Several records, sent at once: what the first of them asks for takes long.
        let held = request(0, 0, 77, HELD, 64 << 10, &[]);
        let data = [7; 24 << 10];
        let others = (0..2).map(|cookie| request(0, 1, cookie, 2 * QUICK, data.len() as u32, &data));
        let message = std::iter::once(held).chain(others).collect::<Vec<_>>().concat();
        client.0.conn.writer().write_all(&message).unwrap();
        let mut records = Vec::new();
        while client.0.conn.wants_write() {
            client.0.conn.write_tls(&mut records).unwrap();
        }
        client.0.sock.write_all(&records).unwrap();
        let mut answered = [client.simple_reply(0).1, client.simple_reply(0).1];
        answered.sort_unstable();
        assert_eq!(answered, [0, 1]);
        disk.release();
        assert_eq!(client.simple_reply(64 << 10).1, 77);
        server.remove("a");
    }
    server.stop();
}

#[test]
fn a_client_with_a_certificate_is_served() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(8 * MIB);
    let (server, path) = serve_with(dir.path(), &[("a", disk.clone())], certificates.server());
    let mut client = starttls(Client::connect(&path), certificates.client(Some(&certificates)));
    client.option(5, &[]);
    assert_eq!(client.option_reply().0, 0x8000_0003, "TLS in TLS");
    assert_eq!(client.go("a").last().unwrap().0, 1);
    let pattern: Vec<u8> = (0..3 * MIB + 512).map(|at| (at % 251) as u8).collect();
    client.request(1, 1, 1, 512, pattern.len() as u32, &pattern);
    assert_eq!(client.simple_reply(0), (0, 1, vec![]));
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1);
    client.request(0, 0, 2, 512, pattern.len() as u32, &[]);
    assert!(client.simple_reply(pattern.len()).2 == pattern);
    // Many at once, answered in any order by several threads: each record arrives whole and in its place.
    for cookie in 100..200u64 {
        client.request(0, 0, cookie, 512 + cookie, 8192, &[]);
    }
    let mut seen = Vec::new();
    for _ in 0..100 {
        let (error, cookie, content) = client.simple_reply(8192);
        assert_eq!(error, 0);
        assert!(content == pattern[cookie as usize..][..8192], "read {cookie}");
        seen.push(cookie);
    }
    seen.sort_unstable();
    assert_eq!(seen, (100..200).collect::<Vec<_>>());
    server.stop();
}

#[test]
fn a_client_that_cannot_show_who_it_is_gets_nothing() {
    let (certificates, stranger) = (Certificates::new(), Certificates::new());
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve_with(dir.path(), &[("secret", Disk::new(MIB))], certificates.server());
    for identity in [None, Some(&stranger)] {
        let mut client = starttls(Client::connect(&path), certificates.client(identity));
        let mut told = Vec::new();
        // LIST; the connection may end while it is sent.
        let _ = client.0.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
        let _ = client.0.read_to_end(&mut told);
        assert_eq!(told, b"");
    }
    // With no authority given, whoever trusts the server may come.
    server.stop();
    let mut files = certificates.files();
    files.client_authority = None;
    let open = Some(Tls::load(files).unwrap());
    let (server, path) = serve_with(dir.path(), &[("secret", Disk::new(MIB))], open);
    let mut client = starttls(Client::connect(&path), certificates.client(None));
    assert_eq!(client.go("secret").last().unwrap().0, 1);
    server.stop();
}

#[test]
fn what_is_slipped_in_behind_starttls_is_not_taken_for_the_clients_word() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve_with(dir.path(), &[("a", Disk::new(MIB))], certificates.server());
    let mut client = Client::connect(&path);
    // STARTTLS and LIST in one write: the second is no TLS record.
    let both = b"IHAVEOPT\0\0\0\x05\0\0\0\0IHAVEOPT\0\0\0\x03\0\0\0\0";
    client.0.write_all(both).unwrap();
    assert_eq!(client.option_reply(), (1, vec![]));
    let mut told = Vec::new();
    let _ = client.0.read_to_end(&mut told);
    assert_ne!(told.first(), Some(&0), "no answer to an option: {told:?}");
    server.stop();
}

#[test]
fn a_server_without_tls_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve(dir.path(), &[("a", Disk::new(MIB))]);
    let mut client = Client::connect(&path);
    client.option(5, &[]);
    assert_eq!(client.option_reply().0, 0x8000_0001);
    assert_eq!(client.go("a").last().unwrap().0, 1);
    server.stop();
}

#[test]
fn a_renewed_certificate_is_used_and_a_broken_one_is_not() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let dir = tempfile::tempdir().unwrap();
    let (server, path) = serve_with(dir.path(), &[("a", Disk::new(MIB))], old.server());
    let works = |of: &Certificates| {
        let mut client = starttls(Client::connect(&path), of.client(Some(of)));
        client.0.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").is_ok() && client.0.read_exact(&mut [0; 20]).is_ok()
    };
    assert!(works(&old) && !works(&new));
    let refused = || server.tls().unwrap().refused().unwrap_or_default();
    let key = fs::read(old.path("server-key.pem")).unwrap();
    assert_eq!(refused(), "");
    fs::write(old.path("server-key.pem"), "broken").unwrap();
    assert!(works(&old));
    assert!(
        refused().contains("server-key.pem' holds no private key"),
        "{}",
        refused()
    );
    fs::copy(new.path("server-key.pem"), old.path("server-key.pem")).unwrap();
    assert!(refused().contains("belongs to another one"), "{}", refused());
    fs::write(old.path("server-key.pem"), key).unwrap();
    assert_eq!(refused(), "");
    for name in ["server-cert.pem", "server-key.pem", "ca-cert.pem"] {
        fs::copy(new.path(name), old.path(&format!("{name}.new"))).unwrap();
        fs::rename(old.path(&format!("{name}.new")), old.path(name)).unwrap();
    }
    assert!(works(&new));
    server.stop();
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let certificates = Certificates::new();
    let with = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = certificates.files();
        change(&mut files);
        Tls::load(files).unwrap_err()
    };
    let missing = with(&|files| files.key = "/nowhere/key.pem".into());
    assert!(matches!(missing, TlsError::Read(..)) && missing.to_string().contains("/nowhere/key.pem"));
    let wrong = with(&|files| files.certificate = certificates.path("server-key.pem"));
    assert!(
        wrong.to_string().contains("server-key.pem") && wrong.to_string().contains("no certificate"),
        "{wrong}"
    );
    let strange = with(&|files| files.key = certificates.path("client-key.pem"));
    assert!(
        matches!(strange, TlsError::Refused(..))
            && strange.to_string().contains("client-key.pem' belongs to another"),
        "{strange}"
    );
}

fn tool(program: &str, words: &[&str]) -> Option<std::process::Output> {
    Command::new(program).args(words).output().ok()
}

#[test]
fn libnbds_tools_over_tls() {
    let has_tls = tool("nbdinfo", &["--version"]).is_some() && tool("nbdcopy", &["--version"]).is_some();
    if !has_tls {
        eprintln!("skipped: there is no nbdinfo and nbdcopy here");
        return;
    }
    let (certificates, stranger) = (Certificates::new(), Certificates::new());
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(8 * MIB);
    let (server, path) = serve_with(dir.path(), &[("a", disk.clone())], certificates.server());
    let uri = |of: &Certificates| {
        let (socket, files) = (path.display(), of.directory.path().display());
        format!("nbds+unix:///a?socket={socket}&tls-certificates={files}")
    };
    let refused = tool("nbdinfo", &[&format!("nbd+unix:///a?socket={}", path.display())]).unwrap();
    assert!(!refused.status.success());
    let refused = tool("nbdinfo", &[&uri(&stranger)]).unwrap();
    assert!(!refused.status.success());
    let info = tool("nbdinfo", &["--json", &uri(&certificates)]).unwrap();
    let text = String::from_utf8_lossy(&info.stdout).into_owned() + &String::from_utf8_lossy(&info.stderr);
    if text.contains("compiled without TLS") {
        eprintln!("skipped: this libnbd has no TLS");
        return;
    }
    assert!(info.status.success(), "{text}");
    assert!(
        text.contains("\"TLS\": true") && text.contains(&format!("\"export-size\": {}", 8 * MIB)),
        "{text}"
    );
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    // Of a length that no block divides.
    let mut pattern: Vec<u8> = (0..8 * MIB - 123).map(|at| (at % 253) as u8).collect();
    fs::write(&from, &pattern).unwrap();
    pattern.resize(8 * MIB, 0);
    for (source, target) in [
        (from.to_str().unwrap(), &*uri(&certificates)),
        (&*uri(&certificates), to.to_str().unwrap()),
    ] {
        let copied = tool("nbdcopy", &["--flush", source, target]).unwrap();
        assert!(
            copied.status.success(),
            "{}",
            String::from_utf8_lossy(&copied.stderr)
        );
    }
    assert!(*disk.durable.lock() == pattern && fs::read(Path::new(&to)).unwrap() == pattern);
    server.stop();
}
