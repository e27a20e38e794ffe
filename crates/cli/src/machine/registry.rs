//! The pools that this machine knows: a file each, with the paths of its devices.
//!
//! Invariant: a hint. What a device says on its label wins; a lost registry is made again by `pool import`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use terrace_control::Failure;

use super::{
    places::{Places, check_pool_name, replace_file},
    volume_interface::Via,
};

/// Most bytes of a file that is read from the state directory.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What is known of a pool without opening it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownPool {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Where its devices were last.
    pub devices: Vec<PathBuf>,
    /// Those of them that were left out by whoever imported it, although they were there.
    pub left_out: Vec<PathBuf>,
    /// Its size when it was last seen, bytes.
    pub size_bytes: u64,
    /// How much was used then, bytes.
    pub used_bytes: u64,
    /// Its format version then; 0 if that is not known.
    pub format_version: u32,
}

/// Which dataset, or snapshot, a name meant when it was written down: later it may mean another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownIdentity {
    /// The dataset's number, which no other of its pool ever gets.
    pub dataset: u32,
    /// Of a snapshot.
    pub checkpoint: Option<u64>,
}

/// A mount that a pool should have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownMount {
    /// The dataset, with the pool and perhaps `@SNAPSHOT`.
    pub dataset: String,
    /// Where.
    pub directory: PathBuf,
    /// With which options.
    pub options: Vec<String>,
    /// What that meant.
    pub identity: KnownIdentity,
    /// What was mounted there already, by others: it may be covered again, and nothing else.
    pub covers: Option<String>,
}

/// A volume that a pool should have as a local block device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownAttachment {
    /// The volume, with the pool and perhaps `@SNAPSHOT`.
    pub volume: String,
    /// Whether it is to be read only.
    pub read_only: bool,
    /// Through what.
    pub via: Via,
    /// The block device that it was last.
    pub device: Option<PathBuf>,
    /// What that meant.
    pub identity: KnownIdentity,
}

/// What a service shows, and asks, in TLS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownTls {
    /// The certificate, in PEM form.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority whose certificates clients must show.
    pub client_authority: Option<PathBuf>,
}

/// A volume that a pool should serve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownService {
    /// The volume, with the pool and perhaps `@SNAPSHOT`.
    pub volume: String,
    /// `unix:PATH` or `tcp:HOST:PORT` for NBD, `vhost-user:PATH` for a virtual machine.
    pub address: String,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Absent if it is open to whoever reaches it.
    pub tls: Option<KnownTls>,
    /// What that meant.
    pub identity: KnownIdentity,
}

/// What a pool should have attached and served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownBlocks {
    /// As block devices of this machine.
    pub attached: Vec<KnownAttachment>,
    /// To clients.
    pub served: Vec<KnownService>,
}

/// The registry in the state directory.
pub struct Registry<'a> {
    places: &'a Places,
}

impl<'a> Registry<'a> {
    /// In these places.
    pub fn new(places: &'a Places) -> Self {
        Self { places }
    }

    /// All known pools, by name.
    pub fn pools(&self) -> Result<Vec<KnownPool>, Failure> {
        let directory = self.places.pool_directory();
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(&directory, &error)),
        };
        let mut pools = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
                continue;
            };
            if check_pool_name(name).is_ok()
                && let Some(pool) = self.find(name)?
            {
                pools.push(pool);
            }
        }
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pools)
    }

    /// A pool by name, if it is known.
    pub fn find(&self, name: &str) -> Result<Option<KnownPool>, Failure> {
        check_pool_name(name)?;
        read_json(&self.places.pool_file(name))
    }

    /// A pool by name, or an error that says what to do.
    pub fn require(&self, name: &str) -> Result<KnownPool, Failure> {
        self.find(name)?.ok_or_else(|| {
            let known: Vec<String> =
                self.pools().unwrap_or_default().into_iter().map(|pool| pool.name).collect();
            let remedy = if known.is_empty() {
                "make one with 'terrace pool create', or find one with 'terrace pool import --search DIRECTORY'".into()
            } else {
                format!("known here: {}; others are found by 'terrace pool import --search DIRECTORY'", known.join(", "))
            };
            Failure::new(format!("pool '{name}'"), "this machine knows no such pool", remedy)
        })
    }

    /// Keeps what is known of a pool. What another of that name had mounted, attached and served is none of its own.
    pub fn save(&self, pool: &KnownPool) -> Result<(), Failure> {
        if self.find(&pool.name)?.is_some_and(|known| known.id != pool.id) {
            self.forget(&pool.name)?;
        }
        write_json(&self.places.pool_file(&pool.name), pool)
    }

    /// Forgets a pool, its mounts and what it had attached and served.
    pub fn forget(&self, name: &str) -> Result<(), Failure> {
        check_pool_name(name)?;
        let places = self.places;
        for path in [
            places.pool_file(name),
            places.mounts_file(name),
            places.blocks_file(name),
            places.events_file(name),
            places.crash_file(name),
            places.aborts_file(name),
        ] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(unreadable(&path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The mounts that a pool should have.
    pub fn mounts(&self, name: &str) -> Result<Vec<KnownMount>, Failure> {
        check_pool_name(name)?;
        Ok(read_json(&self.places.mounts_file(name))?.unwrap_or_default())
    }

    /// Keeps the mounts that a pool should have.
    pub fn save_mounts(&self, name: &str, mounts: &[KnownMount]) -> Result<(), Failure> {
        check_pool_name(name)?;
        write_json(&self.places.mounts_file(name), &mounts)
    }

    /// What a pool should have attached and served.
    pub fn blocks(&self, name: &str) -> Result<KnownBlocks, Failure> {
        check_pool_name(name)?;
        Ok(read_json(&self.places.blocks_file(name))?.unwrap_or_default())
    }

    /// Keeps what a pool should have attached and served.
    pub fn save_blocks(&self, name: &str, blocks: &KnownBlocks) -> Result<(), Failure> {
        check_pool_name(name)?;
        write_json(&self.places.blocks_file(name), blocks)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    use std::io::Read;
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| unreadable(path, &error))?;
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        Failure::new(
            format!("read '{}'", path.display()),
            format!("it is damaged: {error}"),
            "remove it; 'terrace pool import' finds the pool again by its labels",
        )
    })
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Failure> {
    let text =
        serde_json::to_vec_pretty(value).map_err(|error| unreadable(path, &io::Error::other(error)))?;
    replace_file(path, &text).map_err(|error| {
        Failure::new(
            format!("write '{}'", path.display()),
            error,
            "make room, or set TERRACE_STATE_DIR",
        )
    })
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("use '{}'", path.display()),
        error,
        "check its owner and mode",
    )
}
