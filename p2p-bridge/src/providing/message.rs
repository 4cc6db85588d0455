//! The Kademlia messages of announcing: FIND_NODE with its response, and ADD_PROVIDER, which has none.
//!
//! Specification: <https://specs.ipfs.tech/routing/kad-dht/#message-schema>. A message is prefixed with its length as a
//! varint, and has at most 16 KiB in the known implementations. As with Bitswap, the protobuf fields are decoded by
//! hand, so that no more peers and addresses are decoded than an honest peer sends.

use super::walk::Peer;
use bytes::{Buf, BufMut, Bytes};
use futures::{AsyncRead, AsyncReadExt};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use prost::encoding::{self, DecodeContext, WireType};
use std::io;

/// The maximum length of a message to read, in bytes. Go peers with many addresses in their tables exceed the usual 16
/// KiB.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Maximum peers accepted from one response: the closest peers, the target itself, and a margin.
pub const PEERS_MAX: usize = 24;
/// Maximum addresses accepted of one peer, before filtering by scope.
pub const PEER_ADDRESSES_MAX: usize = 16;
/// Maximum addresses of the node in an announcement.
const SENT_ADDRESSES_MAX: usize = 8;

const ADD_PROVIDER: u64 = 2;
const FIND_NODE: u64 = 4;

/// Fields of a message.
const TYPE: u32 = 1;
const KEY: u32 = 2;
const CLOSER_PEERS: u32 = 8;
const PROVIDER_PEERS: u32 = 9;
/// Fields of a peer.
const PEER_ID: u32 = 1;
const PEER_ADDRESS: u32 = 2;
const PEER_CONNECTION: u32 = 3;
/// `CONNECTED`: the node's connection type to itself.
const CONNECTED: u64 = 1;

fn number(field: u32, value: u64, out: &mut Vec<u8>) {
    encoding::encode_key(field, WireType::Varint, out);
    encoding::encode_varint(value, out);
}

fn bytes(field: u32, value: &[u8], out: &mut Vec<u8>) {
    encoding::encode_key(field, WireType::LengthDelimited, out);
    encoding::encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

fn framed(kind: u64, key: &[u8], rest: &[u8], out: &mut Vec<u8>) {
    let head = 2 + 1 + encoding::encoded_len_varint(key.len() as u64) + key.len();
    encoding::encode_varint((head + rest.len()) as u64, out);
    number(TYPE, kind, out);
    bytes(KEY, key, out);
    out.put_slice(rest);
}

/// Encodes a FIND_NODE request.
pub fn find_node(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 8);
    framed(FIND_NODE, key, &[], &mut out);
    out
}

/// The encoded provider field of every announcement: the node's ID and addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Provider(Vec<u8>);

impl Provider {
    /// The provider field with some addresses.
    pub fn new(peer: &PeerId, addresses: &[Multiaddr]) -> Self {
        let mut about = Vec::new();
        bytes(PEER_ID, &peer.to_bytes(), &mut about);
        addresses.iter().take(SENT_ADDRESSES_MAX).for_each(|address| bytes(PEER_ADDRESS, address.as_ref(), &mut about));
        number(PEER_CONNECTION, CONNECTED, &mut about);
        let mut field = Vec::new();
        bytes(PROVIDER_PEERS, &about, &mut field);
        Self(field)
    }

    /// Appends the ADD_PROVIDER message of a key.
    pub fn add_provider(&self, key: &[u8], out: &mut Vec<u8>) {
        framed(ADD_PROVIDER, key, &self.0, out);
    }
}

/// Decodes the closer peers of a FIND_NODE response. Addresses are not filtered by scope; invalid peers are skipped.
///
/// # Errors
/// If the bytes are not a protobuf message.
pub fn closer_peers(mut message: Bytes) -> Result<Vec<Peer>, prost::DecodeError> {
    let mut peers = Vec::new();
    while message.has_remaining() {
        match encoding::decode_key(&mut message)? {
            (CLOSER_PEERS, WireType::LengthDelimited) => {
                let field = take(&mut message)?;
                if peers.len() < PEERS_MAX {
                    peers.extend(peer(field)?);
                }
            }
            (field, wire) => encoding::skip_field(wire, field, &mut message, DecodeContext::default())?,
        }
    }
    Ok(peers)
}

fn peer(mut about: Bytes) -> Result<Option<Peer>, prost::DecodeError> {
    let (mut id, mut addresses) = (None, Vec::new());
    while about.has_remaining() {
        match encoding::decode_key(&mut about)? {
            (PEER_ID, WireType::LengthDelimited) => id = PeerId::from_bytes(&take(&mut about)?).ok(),
            (PEER_ADDRESS, WireType::LengthDelimited) => {
                let address = Multiaddr::try_from(take(&mut about)?.to_vec());
                addresses.extend(address.ok().filter(|_| addresses.len() < PEER_ADDRESSES_MAX));
            }
            (field, wire) => encoding::skip_field(wire, field, &mut about, DecodeContext::default())?,
        }
    }
    let Some(id) = id else { return Ok(None) };
    // An address may end with the ID of its peer; addresses with another ID are invalid.
    addresses.retain(|address| match address.iter().last() {
        Some(Protocol::P2p(other)) => other == id,
        _ => true,
    });
    Ok(Some(Peer { id, addresses }))
}

fn take(buffer: &mut Bytes) -> Result<Bytes, prost::DecodeError> {
    let mut field = Bytes::new();
    encoding::bytes::merge(WireType::LengthDelimited, &mut field, buffer, DecodeContext::default())?;
    Ok(field)
}

/// Reads one message. Memory is allocated as bytes arrive, not by the declared length.
///
/// # Errors
/// `InvalidData` if the message exceeds [`MESSAGE_BYTES_MAX`], or an error of the stream.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut length = 0_usize;
    for shift in (0..=14).step_by(7) {
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        length |= usize::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            if length > MESSAGE_BYTES_MAX {
                break;
            }
            let mut message = Vec::with_capacity(length.min(4096));
            (&mut *stream).take(length as u64).read_to_end(&mut message).await?;
            return if message.len() == length { Ok(message.into()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the message exceeds the maximum length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(peers: &[(PeerId, &[&str])]) -> Vec<u8> {
        let mut out = Vec::new();
        number(TYPE, FIND_NODE, &mut out);
        for (peer, addresses) in peers {
            let mut about = Vec::new();
            bytes(PEER_ID, &peer.to_bytes(), &mut about);
            for address in *addresses {
                let address: Multiaddr = address.parse().expect("address");
                bytes(PEER_ADDRESS, address.as_ref(), &mut about);
            }
            number(PEER_CONNECTION, 0, &mut about);
            bytes(CLOSER_PEERS, &about, &mut out);
        }
        out
    }

    #[test]
    fn addresses_with_the_id_of_another_peer_are_dropped() {
        let (peer, other) = (PeerId::random(), PeerId::random());
        let foreign = format!("/ip4/9.9.9.9/tcp/1/p2p/{other}");
        let addresses = ["/ip4/8.8.8.8/tcp/1", &foreign, "/ip4/1.1.1.1/udp/1/quic-v1"];
        let found = closer_peers(answer(&[(peer, &addresses), (other, &[])]).into()).expect("reads");
        let texts: Vec<String> = found[0].addresses.iter().map(Multiaddr::to_string).collect();
        assert_eq!(texts, ["/ip4/8.8.8.8/tcp/1", "/ip4/1.1.1.1/udp/1/quic-v1"]);
        assert_eq!((found[0].id, &found[1]), (peer, &Peer { id: other, addresses: vec![] }));
    }

    #[test]
    fn responses_are_bounded() {
        let addresses = vec!["/ip4/8.8.8.8/tcp/1"; 100];
        let peers: Vec<_> = (0..100).map(|_| (PeerId::random(), &addresses[..])).collect();
        let found = closer_peers(answer(&peers).into()).expect("reads");
        assert_eq!((found.len(), found[0].addresses.len()), (PEERS_MAX, PEER_ADDRESSES_MAX));
    }

    #[test]
    fn announcements_are_framed() {
        let peer = PeerId::random();
        let address: Multiaddr = "/ip4/8.8.8.8/tcp/1".parse().expect("address");
        let mut out = Vec::new();
        Provider::new(&peer, std::slice::from_ref(&address)).add_provider(b"key", &mut out);
        let mut rest = Bytes::from(out);
        assert_eq!(encoding::decode_varint(&mut rest).expect("length"), rest.len() as u64);
        let mut expected = vec![8, 2, 18, 3, b'k', b'e', b'y', 74];
        let mut about = vec![10, peer.to_bytes().len() as u8];
        about.extend(peer.to_bytes());
        about.extend([18, address.len() as u8]);
        about.extend(address.to_vec());
        about.extend([24, 1]);
        expected.push(about.len() as u8);
        expected.extend(about);
        assert_eq!(rest, expected);
        assert_eq!(find_node(b"key"), [7, 8, 4, 18, 3, b'k', b'e', b'y']);
    }

    proptest! {
        #[test]
        fn arbitrary_input_is_decoded_or_rejected(bytes: Vec<u8>) {
            _ = closer_peers(bytes.clone().into());
            let mut stream = futures::io::Cursor::new(bytes);
            if let Ok(message) = futures::executor::block_on(read(&mut stream)) {
                prop_assert!(message.len() <= MESSAGE_BYTES_MAX);
            }
        }
    }
}
