//! The Bitswap wire message: decoding with limits, encoding for each protocol version.
//!
//! Specification: <https://specs.ipfs.tech/bitswap-protocol/>. The field numbers are those of its protobuf schema.
//!
//! Goals: decoding uses no more memory than the peer sent (fields are slices of the frame, and repeated fields are
//! limited), and unknown fields are skipped. `prost` does the wire format; the loop is hand-written, because generated
//! decoders have no limits for repeated fields.
//!
//! Non-goals: hashing (the connection task does it before delivery) and deciding on responses.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use content::{Block, Cid};
use libp2p::StreamProtocol;
use prost::encoding::{self, DecodeContext, WireType};

/// The maximum length of a wantlist, in either direction (the Go implementation's limit).
pub const MAX_WANTS_PER_PEER: usize = 1_024;
/// The maximum length of a binary CID in a message, in bytes (the Go implementation's limit).
const MAX_CID_BYTES: usize = 168;
/// The maximum number of entries of a repeated field: four full wantlists.
pub const MAX_REPEATED: usize = 4 * MAX_WANTS_PER_PEER;

/// Protocol versions, newest first: the order in which they are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// `/ipfs/bitswap/1.2.0`: HAVE, DONT_HAVE and want types.
    V1_2,
    /// `/ipfs/bitswap/1.1.0`: blocks carry a CID prefix.
    V1_1,
    /// `/ipfs/bitswap/1.0.0`: bare blocks, CIDv0 only.
    V1_0,
}

impl Version {
    /// All supported versions, newest first.
    pub const ALL: [Self; 3] = [Self::V1_2, Self::V1_1, Self::V1_0];

    /// The protocol ID for stream negotiation.
    pub fn protocol(self) -> StreamProtocol {
        StreamProtocol::new(match self {
            Self::V1_2 => "/ipfs/bitswap/1.2.0",
            Self::V1_1 => "/ipfs/bitswap/1.1.0",
            Self::V1_0 => "/ipfs/bitswap/1.0.0",
        })
    }
}

/// The kind of a wantlist entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The block itself.
    Block,
    /// Whether the peer has it.
    Have,
    /// Cancels an earlier want.
    Cancel,
}

/// An entry of a wantlist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantEntry {
    /// The CID.
    pub cid: Cid,
    /// What is asked for.
    pub ask: Ask,
    /// Whether to respond with DONT_HAVE if the peer does not have the block.
    pub send_dont_have: bool,
}

/// A received block: data whose CID is not yet computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawBlock {
    /// CID version, codec, hash function and digest length; empty in version 1.0.0.
    pub prefix: Bytes,
    /// The data.
    pub data: Bytes,
}

/// A decoded message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Changes to the sender's wantlist.
    pub wants: Vec<WantEntry>,
    /// Whether `wants` replaces the whole wantlist.
    pub full: bool,
    /// The blocks.
    pub blocks: Vec<RawBlock>,
    /// Presences: CIDs that the sender has (`true`, HAVE) or does not have (`false`, DONT_HAVE).
    pub presences: Vec<(Cid, bool)>,
}

/// Why a frame is not a Bitswap message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The protobuf encoding is invalid.
    #[error("malformed protobuf: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A repeated field has too many entries.
    #[error("the message has more than {MAX_REPEATED} entries")]
    TooMany,
    /// A CID is invalid.
    #[error("a CID in the message is invalid")]
    Cid,
}

impl Message {
    /// Decodes a frame. Blocks are slices of the frame.
    ///
    /// # Errors
    /// [`DecodeError`] if the frame is malformed. Unknown fields are skipped.
    pub fn decode(mut frame: Bytes) -> Result<Self, DecodeError> {
        let mut message = Self::default();
        while frame.has_remaining() {
            let (tag, wire) = encoding::decode_key(&mut frame)?;
            match (tag, wire) {
                (1, WireType::LengthDelimited) => message.decode_wantlist(take(&mut frame)?)?,
                (2, WireType::LengthDelimited) => {
                    let data = take(&mut frame)?;
                    push(&mut message.blocks, RawBlock { prefix: Bytes::new(), data })?;
                }
                (3, WireType::LengthDelimited) => push(&mut message.blocks, decode_block(take(&mut frame)?)?)?,
                (4, WireType::LengthDelimited) => push(&mut message.presences, decode_presence(take(&mut frame)?)?)?,
                _ => encoding::skip_field(wire, tag, &mut frame, DecodeContext::default())?,
            }
        }
        Ok(message)
    }

    fn decode_wantlist(&mut self, mut list: Bytes) -> Result<(), DecodeError> {
        while list.has_remaining() {
            let (tag, wire) = encoding::decode_key(&mut list)?;
            match (tag, wire) {
                (1, WireType::LengthDelimited) => push(&mut self.wants, decode_want(take(&mut list)?)?)?,
                (2, WireType::Varint) => self.full = encoding::decode_varint(&mut list)? != 0,
                _ => encoding::skip_field(wire, tag, &mut list, DecodeContext::default())?,
            }
        }
        Ok(())
    }
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), DecodeError> {
    if list.len() >= MAX_REPEATED {
        return Err(DecodeError::TooMany);
    }
    list.push(item);
    Ok(())
}

fn take(buffer: &mut Bytes) -> Result<Bytes, DecodeError> {
    let mut field = Bytes::new();
    encoding::bytes::merge(WireType::LengthDelimited, &mut field, buffer, DecodeContext::default())?;
    Ok(field)
}

fn cid(bytes: &Bytes) -> Result<Cid, DecodeError> {
    if bytes.len() > MAX_CID_BYTES {
        return Err(DecodeError::Cid);
    }
    Cid::try_from(&bytes[..]).map_err(|_| DecodeError::Cid)
}

fn decode_want(mut entry: Bytes) -> Result<WantEntry, DecodeError> {
    let (mut block, mut cancel, mut have, mut send_dont_have) = (Bytes::new(), false, false, false);
    while entry.has_remaining() {
        let (tag, wire) = encoding::decode_key(&mut entry)?;
        match (tag, wire) {
            (1, WireType::LengthDelimited) => block = take(&mut entry)?,
            (3, WireType::Varint) => cancel = encoding::decode_varint(&mut entry)? != 0,
            (4, WireType::Varint) => have = encoding::decode_varint(&mut entry)? == 1,
            (5, WireType::Varint) => send_dont_have = encoding::decode_varint(&mut entry)? != 0,
            _ => encoding::skip_field(wire, tag, &mut entry, DecodeContext::default())?,
        }
    }
    let ask = match (cancel, have) {
        (true, _) => Ask::Cancel,
        (false, true) => Ask::Have,
        (false, false) => Ask::Block,
    };
    Ok(WantEntry { cid: cid(&block)?, ask, send_dont_have })
}

fn decode_block(mut block: Bytes) -> Result<RawBlock, DecodeError> {
    let mut raw = RawBlock { prefix: Bytes::new(), data: Bytes::new() };
    while block.has_remaining() {
        let (tag, wire) = encoding::decode_key(&mut block)?;
        match (tag, wire) {
            (1, WireType::LengthDelimited) => raw.prefix = take(&mut block)?,
            (2, WireType::LengthDelimited) => raw.data = take(&mut block)?,
            _ => encoding::skip_field(wire, tag, &mut block, DecodeContext::default())?,
        }
    }
    Ok(raw)
}

fn decode_presence(mut presence: Bytes) -> Result<(Cid, bool), DecodeError> {
    let (mut block, mut has) = (Bytes::new(), true);
    while presence.has_remaining() {
        let (tag, wire) = encoding::decode_key(&mut presence)?;
        match (tag, wire) {
            (1, WireType::LengthDelimited) => block = take(&mut presence)?,
            (2, WireType::Varint) => has = encoding::decode_varint(&mut presence)? == 0,
            _ => encoding::skip_field(wire, tag, &mut presence, DecodeContext::default())?,
        }
    }
    Ok((cid(&block)?, has))
}

/// Encodes wantlist changes as one framed message (with the length prefix), most urgent first.
///
/// Versions before 1.2.0 have no want types, so want-have becomes want-block, the only request that such peers can
/// answer. Version 1.0.0 supports only CIDv0; entries without a CIDv0 form are omitted.
pub fn encode_wants(entries: &[WantEntry], version: Version) -> Bytes {
    encode_wants_from(i32::MAX, entries, version)
}

/// The same, with decreasing priorities from `first_priority`: Go peers send blocks of equal priority in arbitrary
/// order, but readers need the beginning of a file first.
pub fn encode_wants_from(first_priority: i32, entries: &[WantEntry], version: Version) -> Bytes {
    let mut list = BytesMut::with_capacity(entries.len() * 56);
    for (priority, entry) in (1..=first_priority.max(1)).rev().chain(std::iter::repeat(1)).zip(entries) {
        let Some(cid) = wire_cid(&entry.cid, version) else { continue };
        let mut line = BytesMut::with_capacity(cid.len() + 16);
        encoding::bytes::encode(1, &cid, &mut line);
        encoding::int32::encode(2, &priority, &mut line);
        match entry.ask {
            Ask::Cancel => encoding::bool::encode(3, &true, &mut line),
            Ask::Have if version == Version::V1_2 => encoding::int32::encode(4, &1, &mut line),
            Ask::Have | Ask::Block => {}
        }
        if entry.send_dont_have && version == Version::V1_2 {
            encoding::bool::encode(5, &true, &mut line);
        }
        encode_field(1, &line, &mut list);
    }
    let mut body = BytesMut::with_capacity(list.len() + 8);
    encode_field(1, &list, &mut body);
    frame(&[&body])
}

/// Encodes a response as the parts of one framed message, to be written in order; the data of blocks is not copied.
///
/// Versions before 1.2.0 have no presences; 1.0.0 has no prefixes.
pub fn encode_answer(blocks: &[Block], presences: &[(Cid, bool)], version: Version) -> Vec<Bytes> {
    let mut parts: Vec<Bytes> = Vec::with_capacity(blocks.len() * 2 + 1);
    for block in blocks {
        parts.push(block_head(block, version));
        parts.push(block.data().clone());
    }
    if version == Version::V1_2 && !presences.is_empty() {
        parts.push(encode_presences(presences));
    }
    let total: usize = parts.iter().map(Bytes::len).sum();
    let mut length = BytesMut::with_capacity(10);
    encoding::encode_varint(total as u64, &mut length);
    parts.insert(0, length.freeze());
    parts
}

/// The part of a block's field before the data.
fn block_head(block: &Block, version: Version) -> Bytes {
    let data_bytes = block.data().len() as u64;
    let mut head = BytesMut::with_capacity(48);
    if version == Version::V1_0 {
        encoding::encode_key(2, WireType::LengthDelimited, &mut head);
        encoding::encode_varint(data_bytes, &mut head);
        return head.freeze();
    }
    let mut inner = BytesMut::with_capacity(32);
    encode_field(1, &prefix(block.cid()), &mut inner);
    encoding::encode_key(2, WireType::LengthDelimited, &mut inner);
    encoding::encode_varint(data_bytes, &mut inner);
    encoding::encode_key(3, WireType::LengthDelimited, &mut head);
    encoding::encode_varint(inner.len() as u64 + data_bytes, &mut head);
    head.extend_from_slice(&inner);
    head.freeze()
}

fn encode_presences(presences: &[(Cid, bool)]) -> Bytes {
    let mut out = BytesMut::with_capacity(presences.len() * 44);
    for (cid, has) in presences {
        let mut line = BytesMut::with_capacity(48);
        encoding::bytes::encode(1, &cid.to_bytes(), &mut line);
        if !has {
            encoding::int32::encode(2, &1, &mut line);
        }
        encode_field(4, &line, &mut out);
    }
    out.freeze()
}

/// The CID prefix of a block: four varints, also for CIDv0 (version 0, dag-pb, sha2-256, 32).
pub fn prefix(cid: &Cid) -> BytesMut {
    let mut out = BytesMut::with_capacity(16);
    let version: u64 = cid.version().into();
    for number in [version, cid.codec(), cid.hash().code(), cid.hash().digest().len() as u64] {
        encoding::encode_varint(number, &mut out);
    }
    out
}

/// The codec, hash function and digest length of a block's prefix; an absent prefix (version 1.0.0) means CIDv0.
pub fn parse_prefix(mut prefix: Bytes) -> Result<(u64, u64, usize), DecodeError> {
    if prefix.is_empty() {
        return Ok((content::codec::DAG_PB, content::hashes::SHA2_256, 32));
    }
    let _version = encoding::decode_varint(&mut prefix)?;
    let codec = encoding::decode_varint(&mut prefix)?;
    let hash = encoding::decode_varint(&mut prefix)?;
    let digest_bytes = encoding::decode_varint(&mut prefix)?;
    Ok((codec, hash, usize::try_from(digest_bytes).map_err(|_| DecodeError::Cid)?))
}

fn wire_cid(cid: &Cid, version: Version) -> Option<Vec<u8>> {
    match version {
        Version::V1_2 | Version::V1_1 => Some(cid.to_bytes()),
        Version::V1_0 => Cid::new_v0(*cid.hash()).ok().map(|v0| v0.to_bytes()),
    }
}

fn encode_field(tag: u32, value: &[u8], out: &mut BytesMut) {
    encoding::encode_key(tag, WireType::LengthDelimited, out);
    encoding::encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

fn frame(parts: &[&[u8]]) -> Bytes {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = BytesMut::with_capacity(total + 10);
    encoding::encode_varint(total as u64, &mut out);
    for part in parts {
        out.put_slice(part);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{codec, hashes};
    use proptest::prelude::*;

    fn block(data: &[u8]) -> Block {
        Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::copy_from_slice(data)).expect("block")
    }

    /// Strips the length prefix.
    fn unframe(mut frame: Bytes) -> Bytes {
        let length = encoding::decode_varint(&mut frame).expect("length");
        assert_eq!(length, frame.len() as u64);
        frame
    }

    #[test]
    fn responses_round_trip_in_all_versions() {
        let blocks = [block(b"one"), block(b"two")];
        let absent = *block(b"three").cid();
        for version in Version::ALL {
            let parts = encode_answer(&blocks, &[(absent, false), (*blocks[0].cid(), true)], version);
            let message = Message::decode(unframe(parts.concat().into())).expect("decodes");
            assert_eq!(message.blocks.len(), 2);
            assert_eq!(message.blocks[1].data, "two");
            let expected = if version == Version::V1_0 { codec::DAG_PB } else { codec::RAW };
            let parsed = parse_prefix(message.blocks[0].prefix.clone()).expect("prefix");
            assert_eq!(parsed, (expected, hashes::SHA2_256, 32));
            let presences = if version == Version::V1_2 { 2 } else { 0 };
            assert_eq!(message.presences.len(), presences);
        }
    }

    #[test]
    fn wants_round_trip_and_old_peers_are_asked_for_blocks() {
        let cid = *block(b"x").cid();
        let entries = [
            WantEntry { cid, ask: Ask::Have, send_dont_have: true },
            WantEntry { cid, ask: Ask::Block, send_dont_have: false },
            WantEntry { cid, ask: Ask::Cancel, send_dont_have: false },
        ];
        let read = |version| Message::decode(unframe(encode_wants(&entries, version))).expect("decodes");
        assert_eq!(read(Version::V1_2).wants, entries);
        let old = read(Version::V1_1).wants;
        assert_eq!(old[0], WantEntry { cid, ask: Ask::Block, send_dont_have: false });
        // A raw block has no CIDv0, but a 1.0.0 peer can have its multihash as dag-pb.
        let oldest = read(Version::V1_0).wants;
        assert_eq!(oldest[0].cid, Cid::new_v0(*cid.hash()).expect("sha2-256"));
    }

    #[test]
    fn wants_have_decreasing_priorities() {
        /// The priorities of a framed wantlist, read from the wire format.
        fn priorities(framed: Bytes) -> Vec<u64> {
            let mut body = unframe(framed);
            encoding::decode_key(&mut body).expect("the wantlist");
            let mut list = take(&mut body).expect("the wantlist");
            let mut found = Vec::new();
            while list.has_remaining() {
                encoding::decode_key(&mut list).expect("an entry");
                let mut entry = take(&mut list).expect("an entry");
                encoding::decode_key(&mut entry).expect("its CID");
                take(&mut entry).expect("its CID");
                encoding::decode_key(&mut entry).expect("its priority");
                found.push(encoding::decode_varint(&mut entry).expect("its priority"));
            }
            found
        }
        let entry = WantEntry { cid: *block(b"x").cid(), ask: Ask::Block, send_dont_have: true };
        for (first, expected) in
            [(i32::MAX, [2_147_483_647, 2_147_483_646, 2_147_483_645]), (2, [2, 1, 1]), (-7, [1; 3])]
        {
            assert_eq!(priorities(encode_wants_from(first, &[(); 3].map(|()| entry.clone()), Version::V1_2)), expected);
        }
    }

    #[test]
    fn oversized_and_malformed_messages_are_errors() {
        let mut body = BytesMut::new();
        for _ in 0..=MAX_REPEATED {
            encode_field(2, b"", &mut body);
        }
        assert_eq!(Message::decode(body.freeze()), Err(DecodeError::TooMany));
        let mut long_cid = BytesMut::new();
        let (mut line, mut list) = (BytesMut::new(), BytesMut::new());
        encode_field(1, &[1; MAX_CID_BYTES + 1], &mut line);
        encode_field(1, &line, &mut list);
        encode_field(1, &list, &mut long_cid);
        assert_eq!(Message::decode(long_cid.freeze()), Err(DecodeError::Cid));
        assert!(Message::decode(Bytes::from_static(b"GET / HTTP/1.1\r\n")).is_err());
    }

    fn entries() -> impl Strategy<Value = Vec<WantEntry>> {
        let ask = prop_oneof![Just(Ask::Block), Just(Ask::Have), Just(Ask::Cancel)];
        let entry = (any::<[u8; 4]>(), ask, any::<bool>());
        let entry =
            entry.prop_map(|(data, ask, send_dont_have)| WantEntry { cid: *block(&data).cid(), ask, send_dont_have });
        proptest::collection::vec(entry, 0..40)
    }

    /// A response with these blocks, and as many presences of other blocks.
    fn answer(data: &[Vec<u8>]) -> (Vec<Block>, Vec<(Cid, bool)>, Bytes) {
        let blocks: Vec<Block> = data.iter().map(|data| block(data)).collect();
        let presences: Vec<_> =
            data.iter().map(|data| (*block(&[data, &b"!"[..]].concat()).cid(), data.len() % 2 == 0)).collect();
        let frame = unframe(encode_answer(&blocks, &presences, Version::V1_2).concat().into());
        (blocks, presences, frame)
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            entries in entries(),
            data in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..99), 0..20),
            first in any::<i32>(),
        ) {
            let wants = Message::decode(unframe(encode_wants_from(first, &entries, Version::V1_2))).expect("decodes");
            prop_assert_eq!(wants.wants, entries);
            let (blocks, presences, frame) = answer(&data);
            let message = Message::decode(frame).expect("decodes");
            prop_assert_eq!(message.presences, presences);
            prop_assert_eq!(message.blocks.len(), blocks.len());
            for (raw, block) in message.blocks.into_iter().zip(blocks) {
                let (codec, hash, digest_bytes) = parse_prefix(raw.prefix).expect("a prefix");
                prop_assert_eq!(Block::of(codec, hash, digest_bytes, raw.data), Ok(block));
            }
        }

        #[test]
        fn damaged_messages_never_decode_to_more_bytes(
            data in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..99), 1..20),
            cut in any::<prop::sample::Index>(),
            changed in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let (_, _, frame) = answer(&data);
            let mut bytes = frame.to_vec();
            for (at, to) in changed {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            let sent = bytes.len();
            if let Ok(message) = Message::decode(bytes.into()) {
                let held: usize = message.blocks.iter().map(|raw| raw.prefix.len() + raw.data.len()).sum();
                prop_assert!(held <= sent);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = Message::decode(bytes.into());
        }

        #[test]
        fn mutated_messages_never_panic(
            data in proptest::collection::vec(any::<u8>(), 0..64),
            at in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let block = block(&data);
            let answer = encode_answer(std::slice::from_ref(&block), &[(*block.cid(), true)], Version::V1_2);
            let mut bytes = unframe(answer.concat().into()).to_vec();
            let index = at.index(bytes.len());
            bytes[index] = to;
            let _ = Message::decode(bytes.into());
        }
    }
}
