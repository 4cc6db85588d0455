//! Private networks: the pre-shared key, and the options of a node on a private network.
//!
//! A private network encrypts all connections with a 32-byte key that its nodes share, below all other protocols
//! (<https://github.com/libp2p/specs/blob/master/pnet/Private-Networks-PSK-V1.md>). Peers without the key cannot
//! negotiate any protocol.
//!
//! Goals: read Kubo's `swarm.key` in its three encodings; no message contains the key. Non-goals: the cipher (libp2p
//! does it), and confidentiality among members, who all have the same key.

use crate::options::{BridgeOptions, DhtMode};
use libp2p::pnet::PreSharedKey;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The first line of a key file.
const FORMAT: &[u8] = b"/key/swarm/psk/1.0.0/";
const KEY_BYTES: usize = 32;
/// No encoding of a key is that long.
const FILE_BYTES_MAX: u64 = 1024;

/// The key of a private network. `Debug` shows only its fingerprint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SwarmKey(PreSharedKey);

/// Why the key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The path is a folder, a device or another special file.
    #[error("it is not a regular file")]
    NotAFile,
    /// The file is too long.
    #[error("it is longer than {FILE_BYTES_MAX} bytes, so it is not a swarm key")]
    TooLong,
    /// The first line is not the format's.
    #[error("its first line is not /key/swarm/psk/1.0.0/")]
    Format,
    /// The encoding is not supported.
    #[error("its second line is not /base16/, /base64/ or /bin/")]
    Encoding,
    /// The key does not match the encoding.
    #[error("its third line is not {KEY_BYTES} bytes in the encoding {0}")]
    Key(&'static str),
}

impl SwarmKey {
    /// Reads the key, and logs a warning if other users can read the file.
    ///
    /// # Errors
    /// [`KeyError`], which never contains content of the file.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        // Checked before opening, because opening a named pipe would block.
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(KeyError::NotAFile);
        }
        if is_open_to_others(&metadata) {
            let path = path.display();
            tracing::warn!(%path, "other users can read the key of the private network: chmod 0600 the file");
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Self::parse(&bytes)
    }

    /// Parses the content of a key file. Line ends may be CRLF, and there may be more of them after the key.
    ///
    /// # Errors
    /// [`KeyError`], except for I/O errors.
    pub fn parse(file: &[u8]) -> Result<Self, KeyError> {
        if file.len() as u64 > FILE_BYTES_MAX {
            return Err(KeyError::TooLong);
        }
        let (format, rest) = line(file).ok_or(KeyError::Format)?;
        if format != FORMAT {
            return Err(KeyError::Format);
        }
        let (encoding, rest) = line(rest).ok_or(KeyError::Encoding)?;
        let (encoding, key) = match encoding {
            b"/base16/" => ("/base16/", base16(rest)),
            b"/base64/" => ("/base64/", base64(rest)),
            b"/bin/" => ("/bin/", binary(rest)),
            _ => return Err(KeyError::Encoding),
        };
        key.map(|key| Self(PreSharedKey::new(key))).ok_or(KeyError::Key(encoding))
    }

    /// The fingerprint of the key: sixteen bytes in hexadecimal that do not reveal the key, as Kubo prints it.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint().to_string()
    }

    /// The key itself, for the cipher. Its `Display` shows the key.
    pub(crate) fn reveal(&self) -> PreSharedKey {
        self.0
    }
}

impl fmt::Debug for SwarmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SwarmKey").field(&self.fingerprint()).finish()
    }
}

#[cfg(unix)]
fn is_open_to_others(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn is_open_to_others(_: &std::fs::Metadata) -> bool {
    false
}

/// A line without its line end, and the rest.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    let line = line.trim_ascii_end();
    Some((line, rest))
}

fn base16(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let (digits, rest) = text.trim_ascii_end().as_chunks::<2>();
    if digits.len() != KEY_BYTES || !rest.is_empty() {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, [high, low]) in key.iter_mut().zip(digits) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(value(*high)? << 4 | value(*low)?).ok()?;
    }
    Some(key)
}

/// The standard alphabet with padding (RFC 4648, section 4), with line breaks anywhere.
fn base64(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let mut digits = text.trim_ascii_end().iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n'));
    let mut key = [0; KEY_BYTES];
    let (mut bits, mut held) = (0_u32, 0_u32);
    for byte in &mut key {
        while held < 8 {
            bits = bits << 6 | sextet(digits.next()?)?;
            held += 6;
        }
        held -= 8;
        *byte = u8::try_from(bits >> held).ok()?;
        bits &= (1 << held) - 1;
    }
    (digits.next() == Some(b'=') && digits.next().is_none()).then_some(key)
}

fn sextet(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

/// The raw bytes, optionally followed by one line end of an editor.
fn binary(bytes: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let (key, rest) = bytes.split_first_chunk()?;
    matches!(rest, b"" | b"\n" | b"\r\n").then_some(*key)
}

impl BridgeOptions {
    /// Restricts the options for a private network, so that the node does not reveal it to other peers unless
    /// configured to:
    ///
    /// - Private addresses are dialled: most members have no others.
    /// - DHT mode `auto` becomes `server`: no untrusted peers are asked for the node's reachability.
    /// - HTTP gateways in provider records are not used. Configured routers and gateways are.
    /// - UPnP is off, and only configured relays are used.
    /// - Multicast DNS stays as configured; it is off by default. It reveals the node and its listening addresses to
    ///   the local network, but not which private network it belongs to; in exchange, local members find each other
    ///   without a bootstrap peer. Peers without the key fail the handshake.
    #[must_use]
    pub fn for_private_network(mut self) -> Self {
        self.dial_private = true;
        if self.dht.mode == DhtMode::Auto {
            self.dht.mode = DhtMode::Server;
        }
        self.http.from_records = false;
        self.nat.upnp = false;
        self.nat.relay_client &= !self.nat.relays.is_empty();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::DhtOptions;
    use proptest::prelude::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHv8=";

    fn bytes() -> [u8; KEY_BYTES] {
        let mut bytes: [u8; KEY_BYTES] = std::array::from_fn(|i| i as u8);
        bytes[31] = 0xff;
        bytes
    }

    fn file(encoding: &str, key: &[u8]) -> Vec<u8> {
        [b"/key/swarm/psk/1.0.0/\n/", encoding.as_bytes(), b"/\n", key].concat()
    }

    #[test]
    fn a_key_is_read_in_all_encodings() {
        let broken = [&BASE64[..20], "\n", &BASE64[20..], "\r\n"].concat();
        let windows = format!("/key/swarm/psk/1.0.0/\r\n/base16/\r\n{HEX}\r\n");
        let table = [
            ("hexadecimal", file("base16", HEX.as_bytes())),
            ("capitals, a line end", file("base16", format!("{}\n", HEX.to_uppercase()).as_bytes())),
            ("line ends of Windows", windows.into_bytes()),
            ("base64", file("base64", BASE64.as_bytes())),
            ("base64 in lines", file("base64", broken.as_bytes())),
            ("the bytes themselves", file("bin", &bytes())),
            ("a line end after them", file("bin", &[&bytes()[..], b"\n"].concat())),
        ];
        for (what, file) in table {
            assert_eq!(SwarmKey::parse(&file).expect(what).reveal(), PreSharedKey::new(bytes()), "{what}");
        }
    }

    #[test]
    fn invalid_keys_are_rejected_without_revealing_them() {
        let secret = "5ec4e7".repeat(20);
        let table = [
            ("nothing", Vec::new(), "its first line"),
            ("one line", b"/key/swarm/psk/1.0.0/".to_vec(), "its first line"),
            ("another format", format!("/key/swarm/psk/2.0.0/\n/base16/\n{HEX}").into_bytes(), "its first line"),
            ("just the key", HEX.as_bytes().to_vec(), "its first line"),
            ("no encoding", b"/key/swarm/psk/1.0.0/\n".to_vec(), "its second line"),
            ("another encoding", file("base32", HEX.as_bytes()), "its second line"),
            ("no key", file("base16", b""), "its third line"),
            ("half a key", file("base16", &HEX.as_bytes()[..32]), "its third line"),
            ("an odd digit", file("base16", &HEX.as_bytes()[..63]), "its third line"),
            ("more than a key", file("base16", secret.as_bytes()), "its third line"),
            ("no digits", file("base16", HEX.replace('f', "g").as_bytes()), "its third line"),
            ("short base64", file("base64", &BASE64.as_bytes()[..40]), "its third line"),
            ("no padding", file("base64", &BASE64.as_bytes()[..43]), "its third line"),
            ("more after it", file("base64", [BASE64, "AAAA"].concat().as_bytes()), "its third line"),
            (
                "the other alphabet",
                file("base64", BASE64.replace('/', "_").replace('v', "-").as_bytes()),
                "its third line",
            ),
            ("31 bytes", file("bin", &bytes()[..31]), "its third line"),
            ("33 bytes", file("bin", &[&bytes()[..], b"x"].concat()), "its third line"),
            ("a book", file("bin", &[0; 2000]), "it is longer"),
        ];
        for (what, file, expected) in table {
            let error = SwarmKey::parse(&file).expect_err(what).to_string();
            assert!(error.starts_with(expected) && !error.contains("5ec4e7"), "{what}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_key_or_an_error(bytes: Vec<u8>, encoding in "(base16|base64|bin)") {
            let _ = SwarmKey::parse(&bytes);
            let _ = SwarmKey::parse(&file(&encoding, &bytes));
        }

        #[test]
        fn every_key_survives_its_encodings(key: [u8; KEY_BYTES]) {
            let text = PreSharedKey::new(key).to_key_file();
            prop_assert_eq!(SwarmKey::parse(text.as_bytes()).expect("a key").reveal(), PreSharedKey::new(key));
            prop_assert_eq!(SwarmKey::parse(&file("bin", &key)).expect("a key").reveal(), PreSharedKey::new(key));
        }
    }

    #[test]
    fn only_regular_files_are_read_and_the_key_is_not_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(matches!(SwarmKey::read(dir.path()), Err(KeyError::NotAFile)));
        assert!(matches!(SwarmKey::read(&dir.path().join("none")), Err(KeyError::Io(_))));
        let path = dir.path().join("swarm.key");
        std::fs::write(&path, file("base16", HEX.as_bytes())).expect("writes");
        let shown = format!("{:?}", SwarmKey::read(&path).expect("a key"));
        assert!(shown.len() < 50 && !shown.contains("0a0b0c"), "{shown}");
    }

    #[test]
    fn private_networks_restrict_the_options() {
        let relay = "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let mut options = BridgeOptions::new("data");
        let for_private_network = options.clone().for_private_network();
        assert!(for_private_network.dial_private && !for_private_network.http.from_records);
        assert!(
            !for_private_network.nat.upnp
                && !for_private_network.nat.relay_client
                && for_private_network.nat.hole_punching
        );
        for mdns in [false, true] {
            let options = BridgeOptions { mdns, ..options.clone() };
            assert_eq!(options.for_private_network().mdns, mdns, "as the operator asked");
        }
        options.nat.relays = vec![relay.parse().expect("a multiaddr")];
        assert!(options.clone().for_private_network().nat.relay_client, "configured relays are used");
        let table = [
            (DhtMode::Auto, DhtMode::Server),
            (DhtMode::Server, DhtMode::Server),
            (DhtMode::Client, DhtMode::Client),
            (DhtMode::Off, DhtMode::Off),
        ];
        for (mode, expected) in table {
            let options = BridgeOptions { dht: DhtOptions { mode }, ..options.clone() };
            assert_eq!(options.for_private_network().dht.mode, expected);
        }
    }
}
