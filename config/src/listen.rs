//! Where a listener listens, and which peers are trusted proxies. Both may be Unix sockets.
//!
//! The spelling is that of nginx: `unix:/run/causeway/http.sock` is a socket, and `unix:` stands for the peers of all
//! Unix sockets (`set_real_ip_from unix:`).

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What a Unix socket's path begins with; alone, the peers of all Unix sockets.
const UNIX: &str = "unix:";

/// The maximum length of the path of a Unix socket, in bytes: `sun_path` less its terminating zero (unix(7)).
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// The address by which the peers of Unix sockets are known, which have none: "this host" (RFC 1122, section 3.2.1.3).
/// No IP connection comes from it.
pub const UNIX_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a TCP port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The IP address and port, unless it is a Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some(path) => socket_path(path).map(Self::Unix),
            None => crate::values::address(text).map(Self::Tcp).map_err(|error| format!("{error}, or {UNIX}/PATH")),
        }
    }
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    if !Path::new(text).is_absolute() || text.ends_with('/') || text.contains('\0') {
        return Err(format!(
            "\"{UNIX}{text}\" is not an absolute path of a Unix socket, such as unix:/run/causeway.sock"
        ));
    }
    if text.len() > UNIX_PATH_BYTES_MAX {
        let length = text.len();
        return Err(format!(
            "the path \"{text}\" has {length} bytes, and that of a Unix socket at most {UNIX_PATH_BYTES_MAX}: choose a \
             shorter one"
        ));
    }
    Ok(PathBuf::from(text))
}

/// A network of trusted proxies, or the peers of Unix sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedProxy {
    /// The addresses of a network.
    Network(IpNet),
    /// The peers of all Unix sockets.
    UnixPeers,
}

impl TrustedProxy {
    /// Whether the peer with this address is trusted.
    pub fn includes(&self, peer: IpAddr) -> bool {
        match self {
            Self::Network(network) => peer != UNIX_PEER && network.contains(&peer),
            Self::UnixPeers => peer == UNIX_PEER,
        }
    }
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::UnixPeers => f.write_str(UNIX),
        }
    }
}

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            UNIX => Ok(Self::UnixPeers),
            _ if text.starts_with(UNIX) => {
                Err(format!("\"{text}\" has a path: \"{UNIX}\" alone stands for the peers of all Unix sockets"))
            }
            _ => crate::values::network(text)
                .map(Self::Network)
                .map_err(|error| format!("{error}, nor \"{UNIX}\" for the peers of Unix sockets")),
        }
    }
}

/// The address of a client or a peer, as it is shown: `unix:` for the peers of Unix sockets, as in nginx.
#[derive(Debug, Clone, Copy)]
pub struct ShownAddress(pub IpAddr);

impl fmt::Display for ShownAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == UNIX_PEER { f.write_str(UNIX) } else { self.0.fmt(f) }
    }
}

/// The permissions of a file, written in octal digits: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| format!("\"{text}\" is not a file mode in octal digits, such as 0660"))
    }
}

/// Serialises values as their text, and validates them when they are read.
macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.trim().parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text!(ListenAddress, TrustedProxy, FileMode);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_ports_and_absolute_paths() {
        let longest = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX - 1));
        let too_long = format!("{longest}x");
        let table = [
            ("127.0.0.1:80", Ok("127.0.0.1:80")),
            ("localhost:80", Ok("127.0.0.1:80")),
            ("[::1]:80", Ok("[::1]:80")),
            ("unix:/run/causeway/http.sock", Ok("unix:/run/causeway/http.sock")),
            (&longest, Ok(&*longest)),
            (&too_long, Err("at most 107")),
            ("unix:", Err("not an absolute path")),
            ("unix:http.sock", Err("not an absolute path")),
            ("unix:@name", Err("not an absolute path")),
            ("unix:/run/", Err("not an absolute path")),
            ("unix:/run/a\0b", Err("not an absolute path")),
            ("80", Err("unix:/PATH")),
        ];
        for (text, expected) in table {
            match (text.parse::<ListenAddress>(), expected) {
                (Ok(address), Ok(shown)) => assert_eq!(address.to_string(), shown),
                (Err(error), Err(reason)) => assert!(error.contains(reason), "{text}: {error}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }

    #[test]
    fn peers_of_unix_sockets_are_trusted_only_by_name() {
        let table = [
            ("unix:", UNIX_PEER, true),
            ("unix:", IpAddr::from([127, 0, 0, 1]), false),
            ("0.0.0.0/0", UNIX_PEER, false),
            ("0.0.0.0/0", IpAddr::from([192, 0, 2, 1]), true),
            ("10.0.0.0/8", IpAddr::from([10, 1, 2, 3]), true),
            ("10.0.0.0/8", IpAddr::from([11, 1, 2, 3]), false),
        ];
        for (text, peer, expected) in table {
            let proxy: TrustedProxy = text.parse().expect("is valid");
            assert_eq!((proxy.includes(peer), &*proxy.to_string()), (expected, text), "{peer}");
        }
        for (text, reason) in [("unix:/run/a.sock", "alone stands for"), ("nginx", "nor \"unix:\"")] {
            let error = text.parse::<TrustedProxy>().expect_err("is invalid");
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(ShownAddress(UNIX_PEER).to_string(), "unix:");
        assert_eq!(ShownAddress([192, 0, 2, 1].into()).to_string(), "192.0.2.1");
    }

    #[test]
    fn file_modes_are_octal() {
        for (text, expected) in [("0660", Some(0o660)), ("777", Some(0o777)), ("0", Some(0))] {
            assert_eq!(text.parse::<FileMode>().ok().map(|mode| mode.0), expected, "{text}");
        }
        for text in ["", "0o660", "+660", "-660", "1777", "0680", "rw-rw----", "66666666666666666666"] {
            assert!(text.parse::<FileMode>().is_err(), "{text}");
        }
        assert_eq!(FileMode(0o60).to_string(), "0060");
    }
}
