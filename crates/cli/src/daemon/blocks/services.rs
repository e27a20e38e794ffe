//! `Services`: volumes, and snapshots of them, served to NBD clients and to virtual machines.
//!
//! Several volumes may share an NBD address; a server is there as long as it has an export. A vhost-user socket is one
//! volume's. Invariant: no lock is held
//! while names of hosts are looked up, files read, sockets made, or clients waited for. (Whoever adds and takes away does so
//! one after the other.)

use std::{
    collections::BTreeSet,
    net::{SocketAddr, ToSocketAddrs},
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;
use terrace_control::Failure;
use terrace_dataset::{At, BlockDevice, PastVolume, ReadOnly};
use terrace_engine::Engine;
use terrace_nbd::{Address, Server, Tls, TlsFiles};

use crate::{
    daemon::support::failed,
    machine::{KnownService, KnownTls},
};

#[derive(Default)]
struct State {
    served: Vec<KnownService>,
    servers: Vec<Arc<Server>>,
    /// With the volume that each shows.
    disks: Vec<(String, terrace_vhost_user::Server)>,
}

/// What stands before the path of a socket for virtual machines.
pub const VHOST_USER: &str = "vhost-user:";

/// See above.
#[derive(Default)]
pub struct Services {
    state: Mutex<State>,
}

impl Services {
    /// What is served now.
    pub fn list(&self) -> Vec<KnownService> {
        self.state.lock().served.clone()
    }

    /// The addresses where those are served that `wanted` tells by their volume.
    pub fn addresses(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let state = self.state.lock();
        let found = state.served.iter().filter(|service| wanted(&service.volume));
        found
            .map(|service| service.address.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// The addresses that clients or a virtual machine are connected to.
    pub fn connected(&self) -> Vec<String> {
        let state = self.state.lock();
        let nbd = state.servers.iter().filter(|server| server.clients() > 0);
        let disks = state.disks.iter().filter(|(_, disk)| disk.is_connected());
        nbd.map(|server| server.address().to_string())
            .chain(disks.map(|(_, disk)| format!("{VHOST_USER}{}", disk.path().display())))
            .collect()
    }

    /// What is not as it should be with what is served: certificates that were renewed by what cannot be used.
    pub fn warnings(&self) -> Vec<Failure> {
        let servers = self.state.lock().servers.clone();
        let warning = |server: &Arc<Server>| {
            let refused = server.tls()?.refused()?;
            Some(Failure::new(
                format!("renew the certificate of {}", server.address()),
                format!("{refused}; clients are shown the earlier one"),
                "give PEM files that belong together and that the daemon may read: the next client is shown them, no restart is needed",
            ))
        };
        servers.iter().filter_map(warning).collect()
    }

    /// The service at that address, however it is written.
    pub fn find(&self, wanted: &KnownService) -> Option<KnownService> {
        self.list()
            .into_iter()
            .find(|service| service.volume == wanted.volume && is_at(&service.address, &wanted.address))
    }

    /// Offers a volume at an address. What comes back names the port that was taken.
    pub fn add(&self, engine: &Arc<Engine>, wanted: &KnownService) -> Result<KnownService, Failure> {
        let what = format!("serve '{}'", wanted.volume);
        if let Some(path) = wanted.address.strip_prefix(VHOST_USER) {
            let disk = export_of(engine, &what, &wanted.volume, wanted.read_only)?;
            let server = terrace_vhost_user::Server::start(Path::new(path), &wanted.volume, disk).map_err(
                |error| {
                    let remedy =
                        "give the path of a socket that nobody else listens at, in an existing directory";
                    Failure::new(what, error, remedy)
                },
            )?;
            let mut state = self.state.lock();
            state.disks.push((wanted.volume.clone(), server));
            state.served.push(wanted.clone());
            return Ok(wanted.clone());
        }
        let address: Address = wanted
            .address
            .parse()
            .map_err(|error| failed(&what, &error).as_usage())?;
        let export = export_of(engine, &what, &wanted.volume, wanted.read_only)?;
        let mut service = wanted.clone();
        let bound: Vec<Address> = {
            let state = self.state.lock();
            state
                .servers
                .iter()
                .map(|server| server.address().clone())
                .collect()
        };
        let known = bound
            .into_iter()
            .find(|bound| is_at(&bound.to_string(), &wanted.address));
        if let Some(known) = known {
            let mut state = self.state.lock();
            if let Some(server) = state.servers.iter().find(|server| *server.address() == known) {
                let files = wanted.tls.as_ref().map(files_of);
                if server.tls().map(Tls::files) != files.as_ref() {
                    return Err(Failure::new(
                        what,
                        format!("{known} is there already, with other TLS options"),
                        "give the same options, or another address",
                    ));
                }
                server.add(&wanted.volume, export);
                service.address = known.to_string();
                state.served.push(service.clone());
                return Ok(service);
            }
        }
        let tls = match &wanted.tls {
            None => None,
            Some(tls) => Some(Tls::load(files_of(tls)).map_err(|error| {
                let remedy = "give PEM files that belong together and that the daemon may read";
                Failure::new(what.clone(), error, remedy)
            })?),
        };
        let server = Server::start(address, tls).map_err(|error| {
            Failure::new(
                what,
                error,
                "give a free port of this machine, or the path of a socket in an existing directory",
            )
        })?;
        server.add(&wanted.volume, export);
        service.address = server.address().to_string();
        let mut state = self.state.lock();
        state.servers.push(Arc::new(server));
        state.served.push(service.clone());
        Ok(service)
    }

    /// Takes a volume's services away; its clients are disconnected. The addresses where it was served.
    pub fn remove(&self, volume: &str) -> Vec<String> {
        let (gone, servers, disks) = {
            let mut state = self.state.lock();
            let (gone, kept) = std::mem::take(&mut state.served)
                .into_iter()
                .partition::<Vec<_>, _>(|service| service.volume == volume);
            state.served = kept;
            let (disks, others) = std::mem::take(&mut state.disks)
                .into_iter()
                .partition::<Vec<_>, _>(|(shown, _)| shown == volume);
            state.disks = others;
            (gone, state.servers.clone(), disks)
        };
        // Each waits for clients that do not take their answers.
        for server in &servers {
            server.remove(volume);
        }
        drop(servers);
        let idle = {
            let mut state = self.state.lock();
            let (idle, busy) = std::mem::take(&mut state.servers)
                .into_iter()
                .partition::<Vec<_>, _>(|server| server.exports().is_empty());
            state.servers = busy;
            idle
        };
        // Nobody else has them: they end.
        drop(idle);
        disks.into_iter().for_each(|(_, disk)| disk.stop());
        gone.into_iter().map(|service| service.address).collect()
    }

    /// Takes everything away.
    pub fn stop(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        drop(state.servers);
        state.disks.into_iter().for_each(|(_, disk)| disk.stop());
    }
}

fn files_of(known: &KnownTls) -> TlsFiles {
    TlsFiles {
        certificate: known.certificate.clone(),
        key: known.key.clone(),
        client_authority: known.client_authority.clone(),
    }
}

/// A volume, or a snapshot of one, as a disk.
pub fn export_of(
    engine: &Arc<Engine>,
    what: &str,
    volume: &str,
    read_only: bool,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let datasets = engine.datasets();
    let export: Arc<dyn BlockDevice> = match volume.split_once('@') {
        Some((dataset, snapshot)) => {
            let view = datasets
                .volume_view(dataset, &At::Snapshot(snapshot.to_owned()))
                .map_err(|error| failed(what, &error))?;
            Arc::new(PastVolume::new(view).map_err(|error| failed(what, &error))?)
        }
        None => datasets.volume(volume).map_err(|error| failed(what, &error))?,
    };
    Ok(if read_only {
        Arc::new(ReadOnly(export))
    } else {
        export
    })
}

/// Whether a server at `address` is what `wanted` asks for; a host may be written by its name there.
fn is_at(address: &str, wanted: &str) -> bool {
    let resolves = || {
        let (bound, host) = (address.strip_prefix("tcp:")?, wanted.strip_prefix("tcp:")?);
        let bound: SocketAddr = bound.parse().ok()?;
        Some(host.to_socket_addrs().ok()?.any(|known| known == bound))
    };
    address == wanted || resolves().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
        sync::mpsc,
    };

    use terrace_dataset::{BlockStatus, FsError};

    use super::*;
    use crate::machine::KnownIdentity;

    #[test]
    fn an_address_is_known_by_other_names() {
        assert!(is_at("unix:/a", "unix:/a"));
        assert!(!is_at("unix:/a", "unix:/b"));
        assert!(is_at("tcp:127.0.0.1:7", "tcp:127.0.0.1:7"));
        assert!(!is_at("tcp:127.0.0.1:7", "tcp:127.0.0.1:0"));
        assert!(!is_at("tcp:127.0.0.1:7", "nonsense"));
    }

    /// A disk that says when it is read, and whose reads take as long as the test wants.
    struct Slow(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);

    impl BlockDevice for Slow {
        fn size_bytes(&self) -> u64 {
            4096
        }
        fn block_bytes(&self) -> u32 {
            4096
        }
        fn read_only(&self) -> bool {
            true
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), FsError> {
            // However it ends: by a word, or with the test.
            let _ = self.0.send(());
            let _ = self.1.lock().recv();
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), FsError> {
            Err(FsError::ReadOnly)
        }
        fn write_zeroes(&self, _: u64, _: u64) -> Result<(), FsError> {
            Err(FsError::ReadOnly)
        }
        fn discard(&self, _: u64, _: u64) -> Result<(), FsError> {
            Err(FsError::ReadOnly)
        }
        fn flush(&self) -> Result<(), FsError> {
            Ok(())
        }
        fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn who_asks_what_is_served_does_not_wait_for_clients_that_leave() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let server = Server::start(Address::Unix(path.clone()), None).unwrap();
        let (go_on, waits) = mpsc::channel();
        let (begins, begun) = mpsc::channel();
        server.add("t/v", Arc::new(Slow(begins, Mutex::new(waits))));
        let services = Services::default();
        services.state.lock().servers.push(Arc::new(server));
        services.state.lock().served.push(KnownService {
            volume: "t/v".into(),
            address: format!("unix:{}", path.display()),
            read_only: false,
            tls: None,
            identity: KnownIdentity {
                dataset: 1,
                checkpoint: None,
            },
        });
        // Old-style choice of the export, and a read that is not answered yet.
        let mut client = UnixStream::connect(&path).unwrap();
        client.read_exact(&mut [0; 18]).unwrap();
        let mut message = 3u32.to_be_bytes().to_vec();
        message.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03t/v");
        client.write_all(&message).unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
        let mut read = 0x2560_9513u32.to_be_bytes().to_vec();
        read.extend([0; 20]);
        read.extend(4096u32.to_be_bytes());
        client.write_all(&read).unwrap();
        begun.recv().unwrap();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| services.remove("t/v"));
            while !services.list().is_empty() {
                std::thread::yield_now();
            }
            services.connected();
            // Once it is not waited for any more it is cut off.
            client.set_nonblocking(true).unwrap();
            let heard = client.read(&mut [0]).map_err(|error| error.kind());
            go_on.send(()).unwrap();
            assert_eq!(removing.join().unwrap().len(), 1);
            assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock));
        });
        assert!(!path.exists(), "nothing is served there any more");
    }
}
