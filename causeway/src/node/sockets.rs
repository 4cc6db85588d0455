//! Listening sockets: bound here, or passed by systemd.
//!
//! Goals: an address that cannot be used fails the start with what to do about it; sockets of systemd outlive the
//! process, so that connections wait in them while it restarts.
//!
//! Non-goal: handing a socket to a second process with `SO_REUSEPORT`. Two processes cannot have one data folder: the
//! store is locked.

use super::activation::{self, PassedSocket, Purpose};
use config::{ConfigError, FileMode, ListenAddress, Loaded};
use gateway::listen::socket::{BACKLOG, Listener};
use gateway::listen::unix;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

/// A listening socket.
pub struct Bound {
    /// The socket.
    pub listener: Listener,
    /// Its address, with the number of a free port that was asked for.
    pub address: ListenAddress,
    /// The UDP socket with the same address and port, where HTTP/3 is spoken.
    pub udp: Option<UdpSocket>,
    /// The address of the settings; that of the socket if systemd passed it.
    configured: ListenAddress,
}

impl Bound {
    /// Whether the settings mean this socket by an address.
    pub fn is_at(&self, address: &ListenAddress) -> bool {
        *address == self.configured || *address == self.address
    }

    /// Binds the UDP socket for HTTP/3.
    fn bind_udp(&mut self) -> Result<(), String> {
        let Some(address) = self.address.tcp() else { return Ok(()) };
        let bound = UdpSocket::bind(address).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        self.udp = Some(bound.map_err(|error| format!("UDP for HTTP/3: {}", why_not_bound(&address, &error)))?);
        Ok(())
    }
}

/// The listening sockets of a node.
pub struct Sockets {
    /// Those of the public listener.
    pub public: Vec<Bound>,
    /// Those of the public listener with TLS.
    pub public_tls: Vec<Bound>,
    /// Those of the admin listener.
    pub admin: Vec<Bound>,
}

impl Sockets {
    /// Takes the sockets that systemd has passed, and binds the addresses of the settings for which there are none.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used, such as a port in use.
    pub async fn open(loaded: &Loaded) -> Result<Self, ConfigError> {
        let config::Config { http, admin, .. } = &loaded.config;
        let mut passed = activation::passed().map_err(|reason| loaded.error("http.listen", reason))?;
        let tcp = |addresses: &[SocketAddr]| addresses.iter().copied().map(ListenAddress::from).collect::<Vec<_>>();
        let http_setting = |key| AddressSetting { key, unix_mode: http.unix_mode };
        let public =
            take_or_bind(&mut passed, Purpose::Http, loaded, http_setting("http.listen"), &http.listen).await?;
        let (setting, addresses) = (http_setting("http.tls_listen"), tcp(&http.tls_listen));
        let mut public_tls = take_or_bind(&mut passed, Purpose::Https, loaded, setting, &addresses).await?;
        if http.http3 {
            // QUIC has no PROXY protocol.
            let direct = |bound: &&mut Bound| !http.proxy_protocol.iter().any(|address| bound.is_at(address));
            for bound in public_tls.iter_mut().filter(direct) {
                bound.bind_udp().map_err(|reason| loaded.error("http.http3", reason))?;
            }
        }
        let setting = AddressSetting { key: "admin.listen", unix_mode: admin.unix_mode };
        let admin = take_or_bind(&mut passed, Purpose::Admin, loaded, setting, &admin.listen).await?;
        Ok(Self { public, public_tls, admin })
    }

    /// Checks what the settings cannot show about sockets of systemd. `has_tls` tells whether there are certificates
    /// for the public listener and for the admin listener.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that does not fit to a socket.
    pub fn check(&self, loaded: &Loaded, has_tls: (bool, bool)) -> Result<(), ConfigError> {
        let config::Config { http, admin, .. } = &loaded.config;
        if !self.public_tls.is_empty() && !has_tls.0 {
            let reason = "systemd passes a socket with the name \"https\", which needs http.tls_listen, \
                          and http.tls_certificate and http.tls_key, or http.acme_directory";
            return Err(loaded.error("http.tls_certificate", reason));
        }
        let may_be_exposed = has_tls.1 || admin.plaintext;
        let is_exposed = |bound: &&Bound| bound.address.tcp().is_some_and(|address| !address.ip().is_loopback());
        if let Some(exposed) = self.admin.iter().find(is_exposed).filter(|_| !may_be_exposed) {
            let reason = format!(
                "systemd passes {} with the name \"admin\", which can be reached by others: set admin.tls_certificate \
                 and admin.tls_key, or have systemd listen on a loopback address or a Unix socket",
                exposed.address
            );
            return Err(loaded.error("admin.listen", reason));
        }
        let public = || self.public.iter().chain(&self.public_tls);
        if let Some(address) = http.proxy_protocol.iter().find(|address| !public().any(|bound| bound.is_at(address))) {
            let sockets: Vec<String> = public().map(|bound| bound.address.to_string()).collect();
            let reason =
                format!("{address} is none of the sockets that systemd passes, which are {}", sockets.join(", "));
            return Err(loaded.error("http.proxy_protocol", reason));
        }
        Ok(())
    }
}

/// A setting with addresses.
#[derive(Clone, Copy)]
struct AddressSetting {
    key: &'static str,
    /// The permissions of its Unix sockets.
    unix_mode: FileMode,
}

async fn take_or_bind(
    passed: &mut Vec<PassedSocket>,
    purpose: Purpose,
    loaded: &Loaded,
    setting: AddressSetting,
    addresses: &[ListenAddress],
) -> Result<Vec<Bound>, ConfigError> {
    let taken: Vec<PassedSocket> = passed.extract_if(.., |socket| socket.purpose == purpose).collect();
    if taken.is_empty() {
        let mut bound = Vec::with_capacity(addresses.len());
        for address in addresses {
            bound.push(bind(loaded, setting, address).await?);
        }
        return Ok(bound);
    }
    let used = taken.into_iter().map(from_systemd).collect::<io::Result<Vec<_>>>();
    let used =
        used.map_err(|error| loaded.error(setting.key, format!("a socket of systemd cannot be used: {error}")))?;
    for Bound { address, .. } in &used {
        tracing::info!(%address, setting = setting.key, "using a socket of systemd in the place of the setting");
    }
    Ok(used)
}

/// A socket of systemd, which keeps it open when this process ends.
fn from_systemd(passed: PassedSocket) -> io::Result<Bound> {
    let PassedSocket { socket, address, .. } = passed;
    let listener = match address {
        ListenAddress::Tcp(_) => {
            let socket = std::net::TcpListener::from(socket);
            socket.set_nonblocking(true)?;
            Listener::from(TcpListener::from_std(socket)?)
        }
        ListenAddress::Unix(_) => {
            let socket = std::os::unix::net::UnixListener::from(socket);
            socket.set_nonblocking(true)?;
            Listener::from(UnixListener::from_std(socket)?)
        }
    };
    Ok(Bound { listener: listener.shared(), udp: None, configured: address.clone(), address })
}

async fn bind(loaded: &Loaded, setting: AddressSetting, address: &ListenAddress) -> Result<Bound, ConfigError> {
    let key = setting.key;
    let (listener, local) = match address {
        ListenAddress::Tcp(asked) => {
            let bound = bind_tcp(*asked);
            let (listener, local) = bound.map_err(|error| loaded.error(key, why_not_bound(asked, &error)))?;
            (Listener::from(listener), local.into())
        }
        ListenAddress::Unix(path) => {
            let bound = unix::bind(path, setting.unix_mode.0).await;
            (bound.map_err(|error| loaded.error(key, error.to_string()))?, address.clone())
        }
    };
    Ok(Bound { listener, udp: None, address: local, configured: address.clone() })
}

fn bind_tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of an earlier process, which are in TIME_WAIT, do not prevent a restart.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}

fn why_not_bound(address: &SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use: stop the program that has it, or choose another port")
        }
        io::ErrorKind::PermissionDenied => format!("this user may not listen on {address}"),
        io::ErrorKind::AddrNotAvailable => format!("{address} is not an address of this machine"),
        _ => format!("cannot listen on {address}: {error}"),
    }
}
