//! Sockets that the service manager has passed (sd_listen_fds(3)), by their names.
//!
//! | `FileDescriptorName=` | socket of |
//! |---|---|
//! | `http`, or none | the public listener |
//! | `https` | the public listener, with TLS |
//! | `admin` | the admin listener |

use config::ListenAddress;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType, getsockname, sockopt};
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The listener that a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The public listener.
    Http,
    /// The public listener, with TLS.
    Https,
    /// The admin listener.
    Admin,
}

/// A listening socket of the service manager.
#[derive(Debug)]
pub struct PassedSocket {
    /// The listener that it is for.
    pub purpose: Purpose,
    /// Its address.
    pub address: ListenAddress,
    /// The socket.
    pub socket: OwnedFd,
}

/// Takes the sockets that were passed; none if the process was not activated by a socket. Call it once.
///
/// # Errors
/// Why a socket cannot be used, with what to do about it.
pub fn passed() -> Result<Vec<PassedSocket>, String> {
    let sockets = sd_listen_fds::get().map_err(|error| format!("LISTEN_PID and LISTEN_FDS are invalid: {error}"))?;
    sockets.into_iter().map(|(name, socket)| read(&name.unwrap_or_default(), socket.into_std())).collect()
}

fn read(name: &str, socket: OwnedFd) -> Result<PassedSocket, String> {
    let purpose = purpose_of(name)?;
    // Programs that this one starts do not need it.
    let address = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|()| listening_address(&socket));
    let address = address.map_err(|error| {
        format!("the socket \"{name}\" of systemd cannot be used: {error}; its unit needs ListenStream= and Accept=no")
    })?;
    Ok(PassedSocket { purpose, address, socket })
}

/// The listener by the name of a socket. Without `FileDescriptorName=`, it is the name of the socket unit.
fn purpose_of(name: &str) -> Result<Purpose, String> {
    match name {
        "http" | "" | "unknown" | "causeway.socket" => Ok(Purpose::Http),
        "https" => Ok(Purpose::Https),
        "admin" => Ok(Purpose::Admin),
        _ => Err(format!(
            "systemd passes a socket with the name \"{name}\": set FileDescriptorName= in its unit to http, https or \
             admin"
        )),
    }
}

/// The address of a stream socket that listens.
fn listening_address(socket: &OwnedFd) -> io::Result<ListenAddress> {
    let fd = socket.as_fd();
    if sockopt::socket_type(fd)? != SocketType::STREAM || !sockopt::socket_acceptconn(fd)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a listening stream socket"));
    }
    let address: SocketAddrAny = getsockname(fd)?;
    match address.address_family() {
        AddressFamily::INET | AddressFamily::INET6 => Ok(SocketAddr::try_from(address)?.into()),
        AddressFamily::UNIX => Ok(ListenAddress::Unix(path_of(&SocketAddrUnix::try_from(address)?))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a TCP nor a Unix socket")),
    }
}

/// The path of a Unix socket; an abstract name is shown with `@`, as ss(8) does.
fn path_of(address: &SocketAddrUnix) -> PathBuf {
    let of_abstract = |name: &[u8]| PathBuf::from(format!("@{}", String::from_utf8_lossy(name)));
    let path = address.path().map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes())));
    path.or_else(|| address.abstract_name().map(of_abstract)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_are_read_by_their_names() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("http.sock");
        let tcp = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        for (name, purpose) in [
            ("http", Purpose::Http),
            ("", Purpose::Http),
            ("unknown", Purpose::Http),
            ("causeway.socket", Purpose::Http),
            ("https", Purpose::Https),
            ("admin", Purpose::Admin),
        ] {
            let listener = tcp();
            let address = listener.local_addr().expect("is bound");
            let passed = read(name, listener.into()).expect("is usable");
            assert_eq!((passed.purpose, passed.address), (purpose, address.into()), "{name}");
        }
        let passed = read("http", UnixListener::bind(&path).expect("binds").into()).expect("is usable");
        assert_eq!(passed.address, ListenAddress::Unix(path));

        let listener = tcp();
        let connected = TcpStream::connect(listener.local_addr().expect("is bound")).expect("connects");
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let file = tempfile::tempfile().expect("a file");
        for (name, socket, expected) in [
            ("web", OwnedFd::from(listener), "FileDescriptorName="),
            ("http", connected.into(), "is not a listening stream socket"),
            ("http", datagrams.into(), "is not a listening stream socket"),
            ("http", file.into(), "cannot be used"),
        ] {
            let error = read(name, socket).expect_err("is unusable");
            assert!(error.contains(expected), "{error}");
        }
    }
}
