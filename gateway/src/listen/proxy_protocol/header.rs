//! The header of the PROXY protocol, version 2, as a pure function of its bytes
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, section 2.2).
//!
//! Non-goals: version 1; type-length-value fields, which are skipped without being read.

use config::UNIX_PEER;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use thiserror::Error;

/// The maximum length of a header, in bytes: that of nginx. The specification has senders use at most 536.
pub const HEADER_BYTES_MAX: usize = 4096;

/// What each header begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the signature, the version, the command, the address family and the length of the rest.
const FIXED_BYTES: usize = 16;
/// What a header of version 1 begins with.
const VERSION_1: &[u8; 6] = b"PROXY ";
/// The lengths of two addresses and ports, by address family; those of paths without ports.
const TCP4_BYTES: usize = 2 * (4 + 2);
const TCP6_BYTES: usize = 2 * (16 + 2);
const UNIX_BYTES: usize = 2 * 108;

/// How much of a header was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// At least this number of bytes is missing; more of them follow the header.
    Partial {
        /// A number greater than zero.
        missing: usize,
    },
    /// The whole header and nothing else, with the address of the client; `None` if the proxy speaks for itself
    /// (command LOCAL).
    Complete(Option<SocketAddr>),
}

/// Why bytes are not an acceptable header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// It is a header of version 1.
    #[error("it has version 1 of the PROXY protocol: have the proxy send version 2")]
    Version1,
    /// There is no header.
    #[error("it does not begin with a PROXY protocol header")]
    Missing,
    /// The version is neither 1 nor 2.
    #[error("it has an unknown version of the PROXY protocol")]
    Version,
    /// The command is unknown.
    #[error("its PROXY protocol header has an unknown command")]
    Command,
    /// The transport protocol is not that of a stream, or unknown.
    #[error("its PROXY protocol header has an address family or a transport protocol that is not a stream's")]
    Family,
    /// The address is not that of a client.
    #[error("its PROXY protocol header has no address, an unspecified or a truncated one")]
    Address,
    /// The header is longer than [`HEADER_BYTES_MAX`].
    #[error("its PROXY protocol header is longer than {HEADER_BYTES_MAX} bytes")]
    TooLong,
}

/// Reads the beginning of a connection.
///
/// # Errors
/// [`HeaderError`]: the bytes cannot become a header, whatever follows.
pub fn parse(bytes: &[u8]) -> Result<Progress, HeaderError> {
    let signature = &bytes[..bytes.len().min(SIGNATURE.len())];
    if !SIGNATURE.starts_with(signature) {
        let prefix = &bytes[..bytes.len().min(VERSION_1.len())];
        return match VERSION_1.len() - prefix.len() {
            _ if !VERSION_1.starts_with(prefix) => Err(HeaderError::Missing),
            0 => Err(HeaderError::Version1),
            missing => Ok(Progress::Partial { missing }),
        };
    }
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(Progress::Partial { missing: FIXED_BYTES - bytes.len() });
    };
    let [version_and_command, family, high, low] = [fixed[12], fixed[13], fixed[14], fixed[15]];
    if version_and_command >> 4 != 2 {
        return Err(HeaderError::Version);
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if FIXED_BYTES + length > HEADER_BYTES_MAX {
        return Err(HeaderError::TooLong);
    }
    let is_local = match version_and_command & 0x0f {
        0 => true,
        1 => false,
        _ => return Err(HeaderError::Command),
    };
    match length.saturating_sub(rest.len()) {
        // The rest is ignored, whatever it is.
        0 if is_local => Ok(Progress::Complete(None)),
        0 => source(family, &rest[..length]).map(|source| Progress::Complete(Some(source))),
        missing => Ok(Progress::Partial { missing }),
    }
}

/// The source address, by the address family (upper four bits) and the transport protocol (lower four).
fn source(family: u8, addresses: &[u8]) -> Result<SocketAddr, HeaderError> {
    let address: SocketAddr = match (family, addresses.len()) {
        // AF_UNSPEC: the proxy does not know its client, which must not count as the proxy.
        (0x00, _) => return Err(HeaderError::Address),
        // The source comes first, its port after both addresses. Type-length-value fields follow.
        (0x11, TCP4_BYTES..) => {
            let [a, b, c, d] = [addresses[0], addresses[1], addresses[2], addresses[3]];
            (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([addresses[8], addresses[9]])).into()
        }
        (0x21, TCP6_BYTES..) => {
            let source: [u8; 16] = addresses[..16].try_into().map_err(|_| HeaderError::Address)?;
            (Ipv6Addr::from(source), u16::from_be_bytes([addresses[32], addresses[33]])).into()
        }
        (0x31, UNIX_BYTES..) => return Ok(SocketAddr::new(UNIX_PEER, 0)),
        (0x11 | 0x21 | 0x31, _) => return Err(HeaderError::Address),
        _ => return Err(HeaderError::Family),
    };
    // It stands for the peers of Unix sockets.
    match address.ip().to_canonical().is_unspecified() {
        true => Err(HeaderError::Address),
        false => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("fits");
        let [high, low] = length.to_be_bytes();
        [SIGNATURE, &[version_and_command, family, high, low][..], rest].concat()
    }

    fn tcp4() -> Vec<u8> {
        vec![192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x34, 0, 80]
    }

    fn tcp6() -> Vec<u8> {
        let address = |last: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets();
        [&address(1)[..], &address(2), &[0x12, 0x34, 0, 80]].concat()
    }

    #[test]
    fn headers_have_the_address_of_the_client() {
        let address = |text: &str| Some(text.parse::<SocketAddr>().expect("an address"));
        // A unique ID, and TLS fields.
        let fields = [&tcp4()[..], &[0x05, 0, 2, 1, 2, 0x20, 0, 5, 1, 0, 0, 0, 0]].concat();
        let mapped = [&Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets()[..], &[1; 20]].concat();
        let table = [
            (header(0x21, 0x11, &tcp4()), Ok(address("192.0.2.1:4660"))),
            (header(0x21, 0x11, &fields), Ok(address("192.0.2.1:4660"))),
            (header(0x21, 0x21, &tcp6()), Ok(address("[2001:db8::1]:4660"))),
            (header(0x21, 0x21, &mapped), Ok(address("[::ffff:192.0.2.1]:257"))),
            (header(0x21, 0x31, &[b'x'; 216]), Ok(Some(SocketAddr::new(UNIX_PEER, 0)))),
            // A health check of the proxy: LOCAL, whatever follows.
            (header(0x20, 0x00, &[]), Ok(None)),
            (header(0x20, 0x11, &tcp4()), Ok(None)),
            (header(0x20, 0xff, &[9; 5]), Ok(None)),
            // A client that the proxy does not know is not the proxy.
            (header(0x21, 0x00, &[]), Err(HeaderError::Address)),
            (header(0x21, 0x00, &[1; 100]), Err(HeaderError::Address)),
            (header(0x21, 0x11, &tcp4()[..11]), Err(HeaderError::Address)),
            (header(0x21, 0x21, &tcp6()[..35]), Err(HeaderError::Address)),
            (header(0x21, 0x31, &[b'x'; 215]), Err(HeaderError::Address)),
            (header(0x21, 0x11, &[0; 12]), Err(HeaderError::Address)),
            (header(0x21, 0x21, &[0; 36]), Err(HeaderError::Address)),
            // Datagrams, and families that do not exist.
            (header(0x21, 0x12, &tcp4()), Err(HeaderError::Family)),
            (header(0x21, 0x22, &tcp6()), Err(HeaderError::Family)),
            (header(0x21, 0x10, &tcp4()), Err(HeaderError::Family)),
            (header(0x21, 0x41, &tcp4()), Err(HeaderError::Family)),
            (header(0x22, 0x11, &tcp4()), Err(HeaderError::Command)),
            (header(0x11, 0x11, &tcp4()), Err(HeaderError::Version)),
            (header(0x31, 0x11, &tcp4()), Err(HeaderError::Version)),
            (header(0x21, 0x11, &[0; HEADER_BYTES_MAX - 15]), Err(HeaderError::TooLong)),
            (b"PROXY TCP4 192.0.2.1 198.51.100.2 1 80\r\n".to_vec(), Err(HeaderError::Version1)),
            (b"PROXY UNKNOWN\r\n".to_vec(), Err(HeaderError::Version1)),
            (b"GET / HTTP/1.1\r\n".to_vec(), Err(HeaderError::Missing)),
            (b"POST / HTTP/1.1\r\n".to_vec(), Err(HeaderError::Missing)),
            (b"\r\n\r\n\0\r\nQUIT\r".to_vec(), Err(HeaderError::Missing)),
            (b"\x16\x03\x01".to_vec(), Err(HeaderError::Missing)),
        ];
        for (bytes, expected) in table {
            assert_eq!(parse(&bytes), expected.map(Progress::Complete), "{bytes:x?}");
        }
        let longest = header(0x21, 0x11, &[1; HEADER_BYTES_MAX - 16]);
        assert_eq!(parse(&longest), Ok(Progress::Complete(address("1.1.1.1:257"))));
    }

    /// The beginnings of connections: of headers, and any bytes.
    fn beginnings() -> impl Strategy<Value = Vec<u8>> {
        let headers = (any::<u8>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..600)).prop_map(
            |(version_and_command, family, rest)| header(0x20 | (version_and_command & 0x13), family & 0x33, &rest),
        );
        let version_1 = prop::collection::vec(any::<u8>(), 0..20).prop_map(|rest| [&VERSION_1[..], &rest].concat());
        prop_oneof![headers, version_1, prop::collection::vec(any::<u8>(), 0..40)]
    }

    proptest! {
        /// A reader that asks for the missing bytes, and no more, reads exactly the header, in any number of steps.
        #[test]
        fn nothing_after_the_header_is_asked_for(bytes in beginnings(), step in 1..40_usize) {
            let mut received = 0;
            let end = loop {
                match parse(&bytes[..received]) {
                    Ok(Progress::Partial { missing }) => {
                        prop_assert!(missing > 0 && received + missing <= HEADER_BYTES_MAX);
                        if received == bytes.len() {
                            break None;
                        }
                        received = (received + missing.min(step)).min(bytes.len());
                    }
                    end => break Some(end),
                }
            };
            match end {
                Some(Ok(_)) => {
                    let length = u16::from_be_bytes([bytes[14], bytes[15]]);
                    prop_assert_eq!(received, 16 + usize::from(length));
                }
                Some(Err(error)) => {
                    // What follows does not change it.
                    let longer = [&bytes[..received], &[7; 50]].concat();
                    prop_assert_eq!(parse(&longer), Err(error));
                }
                None => prop_assert!(bytes.len() < 16 || bytes.starts_with(SIGNATURE)),
            }
        }
    }
}
