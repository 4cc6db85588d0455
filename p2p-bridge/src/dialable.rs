//! [`Shape`]: parses the supported shapes of multiaddrs.
//!
//! A multiaddr has any components in any order and number, and libp2p's transports read them differently: TCP reads
//! from the end, WebSocket takes the host from the beginning and the path from the end, the DNS transport resolves
//! every name. A check of the first component alone would judge another address than the one that is dialled. So only a
//! few shapes are accepted, and a parsed [`Shape`] covers the whole address:
//!
//! ```text
//! ADDRESS  = DIRECT / DIRECT-with-peer "/p2p-circuit" [PEER] / "/memory/N" [PEER]
//! DIRECT   = HOST TRANSPORT [PEER] / "/dnsaddr/NAME" [PEER]
//! HOST     = "/ip4/IP" / "/ip6/IP" / "/dns/NAME" / "/dns4/NAME" / "/dns6/NAME"
//! TRANSPORT  = "/tcp/PORT" [ WS ] / "/udp/PORT/quic-v1" / BROWSER / HTTP
//! WS       = "/ws" / "/wss" / "/tls/ws" / "/tls/sni/NAME/ws"       (each with "/" or a path of its own)
//! BROWSER  = "/udp/PORT/quic-v1/webtransport" *CERTHASH / "/udp/PORT/webrtc-direct" *CERTHASH
//! HTTP     = ["/tcp/PORT"] ( "/http" / "/https" / "/tls/http" / "/tls/sni/NAME/http" ) ["/http-path/PATH"]
//! PEER     = "/p2p/ID"
//! ```
//!
//! A name is a host name (RFC 1123, section 2.1) that cannot be read as an IP address. A path is that of a URL (RFC
//! 3986, section 3.3) without a query. No port is zero. Browser transports and HTTP are announced, and not dialled by
//! the swarm.
//!
//! Non-goals: which scope an address belongs to, and from which sources it is dialled ([`crate::scope`]).

use libp2p::multiaddr::{Iter, Protocol};
use libp2p::{Multiaddr, PeerId};
use std::borrow::Cow;
use std::iter::Peekable;
use std::net::IpAddr;

/// The maximum length of an address, in bytes.
const BYTES_MAX: usize = 1024;
/// The maximum length of a path, in bytes.
const PATH_BYTES_MAX: usize = 256;
/// The maximum length of a host name and of a label (RFC 1035, section 2.3.4), in bytes.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// The maximum number of certificate hashes: those of the current and the next certificate.
const CERTHASHES_MAX: usize = 4;
/// Ports below this are reserved for other services, except for 80 and 443.
const UNPRIVILEGED_PORTS: u16 = 1024;

/// Why an address is not accepted. The text continues "it is not dialled: ".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShapeError(&'static str);

const TOO_LONG: ShapeError = ShapeError("it is too long");
const NO_HOST: ShapeError = ShapeError("it does not begin with an IP address or a host name");
const NO_NAME: ShapeError = ShapeError("its host name is invalid (only letters, digits, hyphens and dots are allowed)");
const NO_TRANSPORT: ShapeError = ShapeError("its transport is not supported (TCP, WebSocket and QUIC are)");
const NO_PORT: ShapeError = ShapeError("its port is zero");
const NO_PATH: ShapeError = ShapeError("its path is not a valid URL path");
const NO_RELAY: ShapeError = ShapeError("the peer ID of the relay is missing");
const TRAILING_COMPONENTS: ShapeError = ShapeError("it has unexpected components at the end");

/// The host of the first hop: the peer, or the relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host<'a> {
    /// An IP address.
    Ip(IpAddr),
    /// A host name, not yet resolved.
    Name(Cow<'a, str>),
    /// An in-memory transport, in tests.
    Memory,
}

/// The transport of the first hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportKind<'a> {
    /// TCP.
    Tcp {
        /// The port.
        port: u16,
    },
    /// WebSocket over TCP.
    WebSocket {
        /// The port.
        port: u16,
        /// Whether it uses TLS.
        tls: bool,
        /// The SNI, if it is not the host name.
        sni: Option<Cow<'a, str>>,
        /// The path of the request URI.
        path: Cow<'a, str>,
    },
    /// QUIC, version 1.
    Quic {
        /// The port.
        port: u16,
    },
    /// WebTransport or WebRTC, for browsers.
    Browser {
        /// The port.
        port: u16,
    },
    /// HTTP, which no transport of the swarm dials ([`crate::http_source`]).
    Http {
        /// The port, if it is not the default of the scheme.
        port: Option<u16>,
        /// Whether it uses TLS.
        tls: bool,
        /// The SNI, if it is not the host name.
        sni: Option<Cow<'a, str>>,
        /// The path prefix; empty if there is none.
        path: Cow<'a, str>,
    },
    /// `/dnsaddr`: the TXT records of the name have the addresses.
    Records,
    /// An in-memory transport, in tests.
    Memory,
}

/// A parsed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape<'a> {
    /// The host of the first hop.
    pub host: Host<'a>,
    /// The transport of the first hop.
    pub transport: TransportKind<'a>,
    /// The peer ID of the first hop, if present.
    pub peer: Option<PeerId>,
    /// `Some` if the address is a circuit through that peer; inside, the destination's peer ID if present.
    pub circuit: Option<Option<PeerId>>,
}

impl<'a> Shape<'a> {
    /// Parses an address. Everything in the address is in the result, except for certificate hashes and the IP family
    /// of a name.
    ///
    /// # Errors
    /// [`ShapeError`] for all other shapes.
    pub fn read(address: &'a Multiaddr) -> Result<Self, ShapeError> {
        if address.len() > BYTES_MAX {
            return Err(TOO_LONG);
        }
        let mut components = Components(address.iter().peekable());
        let (host, transport) = components.first_hop()?;
        let peer = components.peer();
        let circuit = components.circuit(&transport, peer)?;
        match components.0.next() {
            None => Ok(Self { host, transport, peer, circuit }),
            Some(_) => Err(TRAILING_COMPONENTS),
        }
    }

    /// Whether the host is an IP address, with nothing to resolve.
    pub fn is_literal(&self) -> bool {
        !matches!(self.host, Host::Name(_))
    }

    /// Whether it is a circuit through a relay.
    pub fn is_circuit(&self) -> bool {
        self.circuit.is_some()
    }

    /// Whether a transport of the swarm can dial it.
    pub fn is_dialled(&self) -> bool {
        !matches!(self.transport, TransportKind::Browser { .. } | TransportKind::Http { .. })
    }

    /// The port, if there is one.
    pub fn port(&self) -> Option<u16> {
        match self.transport {
            TransportKind::Tcp { port }
            | TransportKind::WebSocket { port, .. }
            | TransportKind::Quic { port }
            | TransportKind::Browser { port } => Some(port),
            TransportKind::Http { port, .. } => port,
            TransportKind::Records | TransportKind::Memory => None,
        }
    }

    /// Whether the port may be dialled when an untrusted peer supplies the address: it is not reserved for another
    /// service, which could take a handshake for an attack or a request.
    pub fn has_free_port(&self) -> bool {
        self.port().is_none_or(is_free_port)
    }

    /// Whether the WebSocket's path is `/`: an untrusted peer must not choose the path of an HTTP request.
    pub fn has_plain_path(&self) -> bool {
        !matches!(&self.transport, TransportKind::WebSocket { path, .. } if path != "/")
    }
}

/// Whether a port is 80, 443, or not reserved for another service.
pub fn is_free_port(port: u16) -> bool {
    matches!(port, 80 | 443 | UNPRIVILEGED_PORTS..)
}

/// The part of an address before the first peer ID: the first hop.
pub fn first_hop(address: &Multiaddr) -> Multiaddr {
    address.iter().take_while(|part| !matches!(part, Protocol::P2p(_) | Protocol::P2pCircuit)).collect()
}

/// Whether an address is reached by TCP, without a relay or a WebSocket.
pub fn is_tcp(address: &Multiaddr) -> bool {
    Shape::read(address)
        .is_ok_and(|shape| shape.circuit.is_none() && matches!(shape.transport, TransportKind::Tcp { .. }))
}

/// Whether two addresses are equal except for the peer ID at their end.
pub fn is_same(one: &Multiaddr, other: &Multiaddr) -> bool {
    let bare = |address: &Multiaddr| {
        let mut address = address.clone();
        if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
            address.pop();
        }
        address
    };
    bare(one) == bare(other)
}

/// The components that remain to be parsed.
struct Components<'a>(Peekable<Iter<'a>>);

impl<'a> Components<'a> {
    fn next_if(&mut self, expected: &Protocol<'_>) -> bool {
        self.0.next_if(|part| part == expected).is_some()
    }

    fn first_hop(&mut self) -> Result<(Host<'a>, TransportKind<'a>), ShapeError> {
        let host = match self.0.next().ok_or(NO_HOST)? {
            Protocol::Ip4(ip) => Host::Ip(ip.into()),
            Protocol::Ip6(ip) => Host::Ip(ip.into()),
            Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => Host::Name(checked_name(name)?),
            Protocol::Dnsaddr(name) => return Ok((Host::Name(checked_name(name)?), TransportKind::Records)),
            Protocol::Memory(_) => return Ok((Host::Memory, TransportKind::Memory)),
            _ => return Err(NO_HOST),
        };
        Ok((host, self.transport()?))
    }

    fn transport(&mut self) -> Result<TransportKind<'a>, ShapeError> {
        match self.0.peek() {
            Some(Protocol::Tcp(port)) => {
                let port = checked_port(*port)?;
                self.0.next();
                self.over_tcp(Some(port))
            }
            Some(Protocol::Udp(port)) => {
                let port = checked_port(*port)?;
                self.0.next();
                self.over_udp(port)
            }
            _ => self.over_tcp(None),
        }
    }

    fn over_udp(&mut self, port: u16) -> Result<TransportKind<'a>, ShapeError> {
        let is_browser = match self.0.next() {
            Some(Protocol::QuicV1) => self.next_if(&Protocol::WebTransport),
            Some(Protocol::WebRTCDirect) => true,
            _ => return Err(NO_TRANSPORT),
        };
        if !is_browser {
            return Ok(TransportKind::Quic { port });
        }
        for _ in 0..CERTHASHES_MAX {
            self.0.next_if(|part| matches!(part, Protocol::Certhash(_)));
        }
        Ok(TransportKind::Browser { port })
    }

    fn over_tcp(&mut self, port: Option<u16>) -> Result<TransportKind<'a>, ShapeError> {
        let outer = self.next_if(&Protocol::Tls);
        let sni = match self.0.peek() {
            Some(Protocol::Sni(name)) if outer => {
                let name = checked_name(name.clone())?;
                self.0.next();
                Some(name)
            }
            _ => None,
        };
        let is_ours = |part: &Protocol<'_>| match part {
            Protocol::Ws(_) => port.is_some(),
            Protocol::Wss(_) => port.is_some() && !outer,
            Protocol::Https => !outer,
            Protocol::Http => true,
            _ => false,
        };
        match (self.0.next_if(is_ours), port) {
            (Some(Protocol::Ws(path)), Some(port)) => {
                Ok(TransportKind::WebSocket { port, tls: outer, sni, path: checked_path(path)? })
            }
            (Some(Protocol::Wss(path)), Some(port)) => {
                Ok(TransportKind::WebSocket { port, tls: true, sni, path: checked_path(path)? })
            }
            (Some(http), port) => {
                Ok(TransportKind::Http { port, tls: outer || http == Protocol::Https, sni, path: self.http_path()? })
            }
            (None, Some(port)) if !outer => Ok(TransportKind::Tcp { port }),
            (None, _) => Err(NO_TRANSPORT),
        }
    }

    fn http_path(&mut self) -> Result<Cow<'a, str>, ShapeError> {
        match self.0.next_if(|part| matches!(part, Protocol::HttpPath(_))) {
            // The path is appended to a URL by segments, with special characters escaped.
            Some(Protocol::HttpPath(path)) if path.len() <= PATH_BYTES_MAX && !path.chars().any(char::is_control) => {
                Ok(path)
            }
            Some(_) => Err(NO_PATH),
            None => Ok(Cow::Borrowed("")),
        }
    }

    fn peer(&mut self) -> Option<PeerId> {
        match self.0.peek() {
            Some(Protocol::P2p(peer)) => {
                let peer = *peer;
                self.0.next();
                Some(peer)
            }
            _ => None,
        }
    }

    fn circuit(
        &mut self,
        first: &TransportKind<'_>,
        relay: Option<PeerId>,
    ) -> Result<Option<Option<PeerId>>, ShapeError> {
        if !self.next_if(&Protocol::P2pCircuit) {
            return Ok(None);
        }
        match first {
            TransportKind::Browser { .. } | TransportKind::Http { .. } | TransportKind::Memory => {
                Err(TRAILING_COMPONENTS)
            }
            _ if relay.is_none() => Err(NO_RELAY),
            _ => Ok(Some(self.peer())),
        }
    }
}

fn checked_port(port: u16) -> Result<u16, ShapeError> {
    if port == 0 { Err(NO_PORT) } else { Ok(port) }
}

fn checked_name(name: Cow<'_, str>) -> Result<Cow<'_, str>, ShapeError> {
    if is_host_name(&name) { Ok(name) } else { Err(NO_NAME) }
}

fn checked_path(path: Cow<'_, str>) -> Result<Cow<'_, str>, ShapeError> {
    let is_path = path.len() <= PATH_BYTES_MAX && path.starts_with('/') && path.bytes().all(is_of_path);
    if is_path { Ok(path) } else { Err(NO_PATH) }
}

/// The bytes of a path: `pchar` of RFC 3986, and slashes.
fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@%".contains(&byte)
}

/// Whether a text is a host name. Underscores are allowed, because names of containers have them. A name whose last
/// label is a number would be an IP address in one of many notations
/// (<https://url.spec.whatwg.org/#ends-in-a-number-checker>).
fn is_host_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(is_of_label)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let hexadecimal = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    let is_number = hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= NAME_BYTES_MAX && !is_number && name.split('.').all(is_label)
}

#[cfg(test)]
pub(crate) mod tests;
