//! `Tls`: the certificate that a server shows, and whose clients it lets in.
//!
//! Certificates alone: the library (rustls) has no pre-shared keys. The files are looked at again when a client comes,
//! so that a renewed certificate needs no restart; one that cannot be used leaves the earlier one in place, which is told until
//! it is mended, and logged once. Invariant: with an authority given, a client without a certificate of it gets no byte of an export.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

/// Most bytes that a file of certificates or keys may have.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where certificate, key and authority lie, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// The private key of the first.
    pub key: PathBuf,
    /// Clients must show a certificate of this authority; without one any client may come.
    pub client_authority: Option<PathBuf>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read '{0}': {1}")]
    Read(PathBuf, io::Error),
    /// A file holds something else.
    #[error("'{0}' holds no {1} in PEM form")]
    Content(PathBuf, &'static str),
    /// They do not belong together, or cannot be used.
    #[error("use the certificate '{0}': {1}")]
    Refused(PathBuf, String),
}

/// What tells one state of the files from another.
type Stamp = Vec<Option<(SystemTime, u64)>>;

/// A server's side of TLS.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    stamp: Stamp,
    config: Arc<ServerConfig>,
    /// Why the files as they are now cannot be used; empty if these are the ones in use.
    refused: String,
}

impl Tls {
    /// Reads the files and tries them.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let stamp = stamp(&files);
        let config = configuration(&files)?;
        Ok(Self {
            files,
            current: Mutex::new(Current {
                stamp,
                config,
                refused: String::new(),
            }),
        })
    }

    /// Where they lie.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// For the next client.
    pub(crate) fn configuration(&self) -> Arc<ServerConfig> {
        self.look().0
    }

    /// Why the files cannot be used as they are now, so that clients are shown the earlier certificate.
    pub fn refused(&self) -> Option<String> {
        Some(self.look().1).filter(|why| !why.is_empty())
    }

    /// Takes the files over if they are others, and can be used.
    fn look(&self) -> (Arc<ServerConfig>, String) {
        let stamp = stamp(&self.files);
        let mut current = self.current.lock();
        if current.stamp == stamp {
            current.refused.clear();
        } else {
            // Also what was refused before: whether a file may be read its stamp does not tell.
            match configuration(&self.files) {
                Ok(config) => {
                    *current = Current {
                        stamp,
                        config,
                        refused: String::new(),
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    if current.refused != why {
                        tracing::warn!("NBD: {why}; the earlier certificate is still used");
                    }
                    current.refused = why;
                }
            }
        }
        (current.config.clone(), current.refused.clone())
    }
}

fn paths(files: &TlsFiles) -> impl Iterator<Item = &PathBuf> {
    [&files.certificate, &files.key]
        .into_iter()
        .chain(&files.client_authority)
}

fn stamp(files: &TlsFiles) -> Stamp {
    paths(files)
        .map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
        .collect()
}

fn content(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        use io::Read;
        let mut content = Vec::new();
        let file = std::fs::File::open(path)?;
        let length = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
        if length as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(content)
    };
    read().map_err(|error| TlsError::Read(path.to_owned(), error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content(path)?).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| TlsError::Content(path.to_owned(), "certificate"))
}

fn configuration(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let refused = |error: &dyn std::fmt::Display| {
        let path = files.certificate.clone();
        TlsError::Refused(path, error.to_string())
    };
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&content(&files.key)?)
        .map_err(|_| TlsError::Content(files.key.clone(), "private key"))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&error))?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut authorities = RootCertStore::empty();
            for certificate in certificates(path)? {
                let added = authorities.add(certificate);
                added.map_err(|_| TlsError::Content(path.clone(), "certificate of an authority"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
                .build()
                .map_err(|error| refused(&error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => refused(&format!(
                "the key '{}' belongs to another one",
                files.key.display()
            )),
            error => refused(&error),
        })?;
    Ok(Arc::new(config))
}
