//! The messages of `/causeway/dag/1.0.0`: decoding with limits, encoding without copying blocks.
//!
//! A stream is opened by the peer that asks. Each message follows its length, an unsigned varint. The first message on a
//! stream is an [`Opening`], the asker's further ones are [`Control`]s, and the server's are [`Answer`]s:
//!
//! ```text
//! message Opening { oneof opening { Request request = 1; Join join = 2; } }
//! message Request { uint64 transfer = 1; bytes root = 2; repeated string path = 3; Scope scope = 4;
//!                   optional sint64 from = 5; optional sint64 to = 6; repeated bytes held = 7; uint64 budget = 8;
//!                   bool packed = 9; bool fragments = 10; }
//! enum Scope      { BLOCK = 0; ENTITY = 1; ALL = 2; FILE = 3; }
//! message Join    { uint64 transfer = 1; }
//! message Control { oneof control { Credit credit = 1; Skip skip = 2; } }
//! message Credit  { uint64 bytes = 1; }
//! message Skip    { bytes cid = 1; }
//! message Answer  { oneof answer { Block block = 1; Packed packed = 2; Absent absent = 3; End end = 4;
//!                                  Fragment fragment = 5; } }
//! message Block   { bytes cid = 1; bytes data = 2; }
//! message Packed  { bytes cid = 1; uint32 block_bytes = 2; bytes prefix = 3; bytes frame = 4; bytes suffix = 5; }
//! message Absent  { bytes cid = 1; }
//! message End     { Status status = 1; }
//! enum Status     { COMPLETE = 1; REFUSED = 2; BUSY = 3; BUDGET = 4; FAILED = 5; }
//! message Fragment { uint64 message = 1; uint64 length = 2; uint64 offset = 3; bytes data = 4; }
//! ```
//!
//! *Fragments.* A new stream of yamux has a window of 256 KiB, which a leaf of the usual size exceeds by its head. If the
//! asker accepts fragments, answers longer than [`FRAGMENT_BYTES`] are cut into pieces, which any streams carry; put
//! together, they are the message `Answer` without its length ([`super::fragments`]).
//!
//! Goals: decoding takes no more memory than the peer sent (blocks are slices of the frame), and its work is linear in
//! that; every field has a limit; unknown fields are skipped. The loops over fields are hand-written, because generated
//! decoders have no limits for repeated fields.
//!
//! Non-goals: hashing and decompression, which are for blocks that a verified block has named; what is sent and when.
//!
//! *The budget of a transfer* counts [`Answer::budget_bytes`] on both sides: block bytes, whether a block is sent plain
//! or packed, and [`ANSWER_OVERHEAD_BYTES`] for each block and absence, so that tiny blocks take a bounded number.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use content::scope::{DagScope, EntityBytes, ScopeOptions};
use content::stored::{Stored, ValueError};
use content::{Block, Cid, MAX_BLOCK_BYTES};
use libp2p::StreamProtocol;
use prost::encoding::{self, DecodeContext, WireType};

/// The protocol ID.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/causeway/dag/1.0.0");
/// The maximum length of an [`Opening`], in bytes.
pub const OPENING_BYTES_MAX: usize = 32 * 1024;
/// The maximum length of a [`Control`], in bytes.
pub const CONTROL_BYTES_MAX: usize = 1024;
/// The maximum length of an [`Answer`], in bytes: a block of the maximum size, and its fields.
pub const ANSWER_BYTES_MAX: usize = MAX_BLOCK_BYTES + 4 * 1024;
/// The length of all fragments of an answer but the last, in bytes: four fit into the first window of a stream, with
/// their heads and what negotiating the protocol takes.
pub const FRAGMENT_BYTES: usize = 64 * 1024 - 256;
/// The maximum number of names in a path.
pub const PATH_NAMES_MAX: usize = 64;
/// The maximum length of all names of a path, in bytes.
pub const PATH_BYTES_MAX: usize = 8 * 1024;
/// The maximum number of held subtrees in a request.
pub const HELD_MAX: usize = 256;
/// The maximum of a transfer's unused budget, in bytes. More is not an error, but is not remembered.
pub const BUDGET_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// What an answer takes of the budget besides the bytes of its block.
pub const ANSWER_OVERHEAD_BYTES: u64 = 256;
/// The minimum budget of a request, in bytes: any block fits. With less, a server might read blocks that it cannot send,
/// so it ends the transfer with [`EndStatus::Budget`] at once.
pub const BUDGET_BYTES_MIN: u64 = MAX_BLOCK_BYTES as u64 + ANSWER_OVERHEAD_BYTES;
/// The maximum length of a binary CID, in bytes, as in Bitswap.
const CID_BYTES_MAX: usize = 168;
/// The room for everything in an opening besides its path and its held subtrees.
const REQUEST_BYTES: usize = 512;

/// The asker's number of a transfer, unique among its transfers on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

/// A request for the blocks of a DAG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The number by which further streams join.
    pub transfer: TransferId,
    /// Where the path begins.
    pub root: Cid,
    /// The names below the root. Their blocks are part of the answer.
    pub path: Vec<String>,
    /// The part of the DAG below the end of the path. Duplicates are never sent.
    pub scope: ScopeOptions,
    /// Subtrees that are not sent, because the asker has them.
    pub held: Vec<Cid>,
    /// What may be sent before a [`Control::Credit`], in bytes; [`BUDGET_BYTES_MIN`] at least.
    pub budget_bytes: u64,
    /// Whether the asker accepts [`Answer::Packed`].
    pub packed: bool,
    /// Whether the asker accepts [`Answer::Fragment`].
    pub fragments: bool,
}

/// The first message on a stream.
#[allow(clippy::large_enum_variant, reason = "there is one for each stream")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// Starts a transfer. The stream is its first one.
    Request(Request),
    /// Adds the stream to a transfer of the same connection.
    Join(TransferId),
}

/// A message of the asker on the first stream of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// So many more bytes may be sent.
    Credit(u64),
    /// The asker has this block and everything below it.
    Skip(Cid),
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndStatus {
    /// Everything was sent, or reported as absent.
    Complete,
    /// The peer is not served, or not with this request.
    Refused,
    /// The server has too many transfers.
    Busy,
    /// The budget was used up, and no credit came for too long; or that of the request is less than
    /// [`BUDGET_BYTES_MIN`].
    Budget,
    /// A block cannot be decoded, a limit of the traversal was exceeded, or the store failed.
    Failed,
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A block.
    Block {
        /// Its CID, as its parent or the request names it.
        cid: Cid,
        /// Its bytes, not verified.
        data: Bytes,
    },
    /// A block in its stored form.
    Packed(Packed),
    /// The block is not stored, or not served. Nothing below it is sent.
    Absent(Cid),
    /// The last message of a transfer, on its first stream.
    End(EndStatus),
    /// A part of a long answer.
    Fragment(Fragment),
}

/// A part of the message of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// The number of the message, among those of the transfer that are cut.
    pub message: u64,
    /// The length of the whole message, without the length before it.
    pub length: usize,
    /// The offset in the message, a multiple of [`FRAGMENT_BYTES`].
    pub offset: usize,
    /// The part: all but the last have [`FRAGMENT_BYTES`].
    pub data: Bytes,
}

/// A block in its stored form: compressed, and not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Its CID, as its parent or the request names it.
    pub cid: Cid,
    /// The length of the block once it is unpacked, which the shape of `stored` confirms.
    pub block_bytes: usize,
    /// The stored form.
    pub stored: Stored,
}

/// Why a frame is not a message of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DagMessageError {
    /// The protobuf encoding is invalid.
    #[error("malformed protobuf: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// The frame has none of the messages that may be sent, or several.
    #[error("the message has no content, or more than one")]
    Content,
    /// A CID is missing or invalid.
    #[error("a CID in the message is invalid")]
    Cid,
    /// The path has too many names, too long ones, empty ones, or ones that are not UTF-8.
    #[error("the path has more than {PATH_NAMES_MAX} names or {PATH_BYTES_MAX} bytes, or an invalid name")]
    Path,
    /// The range of bytes is not one.
    #[error("the range of bytes is invalid")]
    Range,
    /// The scope is one that this release does not know: later releases may have more of them.
    #[error("the scope is not known")]
    UnknownScope,
    /// There are too many held subtrees.
    #[error("the request has more than {HELD_MAX} held subtrees")]
    TooMany,
    /// A block is larger than blocks may be.
    #[error("a block exceeds the maximum of {MAX_BLOCK_BYTES} bytes")]
    TooLarge,
    /// A fragment is not one of a message.
    #[error("a fragment has a length or an offset that no message has")]
    Fragment,
    /// A packed block is not one zstd frame with its size.
    #[error("a packed block is malformed: {0}")]
    Packed(#[from] ValueError),
    /// A packed block has another size than its message says.
    #[error("a packed block has {found} bytes, not {expected}")]
    BlockBytes {
        /// The size in the message.
        expected: u64,
        /// The size of its parts.
        found: usize,
    },
}

type Decoded<T> = Result<T, DagMessageError>;

impl Request {
    /// Whether the path is short enough to be sent. Held subtrees beyond the limits are left out when the request is
    /// encoded.
    pub fn has_valid_path(&self) -> bool {
        path_is_valid(&self.path)
    }

    /// The fields of the message.
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(REQUEST_BYTES);
        encoding::uint64::encode(1, &self.transfer.0, &mut out);
        put_cid(2, &self.root, &mut out);
        self.path.iter().for_each(|name| put_field(3, name.as_bytes(), &mut out));
        encoding::uint32::encode(4, &scope_number(self.scope.scope), &mut out);
        if let Some((from, to)) = self.scope.entity_bytes.map(|bytes| bytes.bounds()) {
            encoding::sint64::encode(5, &from, &mut out);
            to.iter().for_each(|to| encoding::sint64::encode(6, to, &mut out));
        }
        encoding::uint64::encode(8, &self.budget_bytes, &mut out);
        encoding::bool::encode(9, &self.packed, &mut out);
        encoding::bool::encode(10, &self.fragments, &mut out);
        for cid in self.held.iter().take(HELD_MAX) {
            if out.len() + CID_BYTES_MAX + REQUEST_BYTES > OPENING_BYTES_MAX {
                break;
            }
            put_cid(7, cid, &mut out);
        }
        out
    }

    /// A request by the fields of its message.
    pub(crate) fn decode(mut rest: Bytes) -> Decoded<Self> {
        let (mut root, mut path, mut held) = (None, Vec::new(), Vec::new());
        let (mut transfer, mut scope, mut from, mut to, mut budget_bytes) = (0, 0, None, None, 0);
        let (mut packed, mut fragments) = (false, false);
        while rest.has_remaining() {
            match encoding::decode_key(&mut rest)? {
                (1, WireType::Varint) => transfer = encoding::decode_varint(&mut rest)?,
                (2, WireType::LengthDelimited) => root = Some(take_cid(&mut rest)?),
                (3, WireType::LengthDelimited) => {
                    let name = take(&mut rest)?;
                    push(&mut path, utf8(&name)?, PATH_NAMES_MAX, DagMessageError::Path)?;
                }
                (4, WireType::Varint) => scope = encoding::decode_varint(&mut rest)?,
                (5, WireType::Varint) => from = Some(zigzag(encoding::decode_varint(&mut rest)?)),
                (6, WireType::Varint) => to = Some(zigzag(encoding::decode_varint(&mut rest)?)),
                (7, WireType::LengthDelimited) => {
                    push(&mut held, take_cid(&mut rest)?, HELD_MAX, DagMessageError::TooMany)?;
                }
                (8, WireType::Varint) => budget_bytes = encoding::decode_varint(&mut rest)?,
                (9, WireType::Varint) => packed = encoding::decode_varint(&mut rest)? != 0,
                (10, WireType::Varint) => fragments = encoding::decode_varint(&mut rest)? != 0,
                (tag, wire) => skip(tag, wire, &mut rest)?,
            }
        }
        if !path_is_valid(&path) {
            return Err(DagMessageError::Path);
        }
        let scope = ScopeOptions { scope: scope_of(scope)?, entity_bytes: entity_bytes(from, to)?, duplicates: false };
        let root = root.ok_or(DagMessageError::Cid)?;
        Ok(Self { transfer: TransferId(transfer), root, path, scope, held, budget_bytes, packed, fragments })
    }
}

impl Opening {
    /// The parts of the message with its length, to be written in order.
    pub fn encode(&self) -> Vec<Bytes> {
        let (tag, inner) = match self {
            Self::Request(request) => (1, request.encode()),
            Self::Join(transfer) => (2, number(transfer.0)),
        };
        vec![framed(tag, &inner)]
    }

    /// Decodes a frame without its length.
    ///
    /// # Errors
    /// [`DagMessageError`].
    pub fn decode(frame: Bytes) -> Decoded<Self> {
        decode_one(frame, |tag, inner| {
            Ok(Some(match tag {
                1 => Self::Request(Request::decode(inner)?),
                2 => Self::Join(TransferId(decode_number(inner)?)),
                _ => return Ok(None),
            }))
        })
    }
}

impl Control {
    /// The parts of the message with its length, to be written in order.
    pub fn encode(&self) -> Vec<Bytes> {
        let (tag, inner) = match self {
            Self::Credit(bytes) => (1, number(*bytes)),
            Self::Skip(cid) => (2, only_cid(cid)),
        };
        vec![framed(tag, &inner)]
    }

    /// Decodes a frame without its length.
    ///
    /// # Errors
    /// [`DagMessageError`].
    pub fn decode(frame: Bytes) -> Decoded<Self> {
        decode_one(frame, |tag, inner| {
            Ok(Some(match tag {
                1 => Self::Credit(decode_number(inner)?),
                2 => Self::Skip(decode_cid(inner)?),
                _ => return Ok(None),
            }))
        })
    }
}

impl EndStatus {
    /// All statuses.
    pub const ALL: [Self; 5] = [Self::Complete, Self::Refused, Self::Busy, Self::Budget, Self::Failed];

    fn number(self) -> u64 {
        match self {
            Self::Complete => 1,
            Self::Refused => 2,
            Self::Busy => 3,
            Self::Budget => 4,
            Self::Failed => 5,
        }
    }

    /// A missing status, or one of a later version, is a failure.
    fn of(number: u64) -> Self {
        Self::ALL.into_iter().find(|status| status.number() == number).unwrap_or(Self::Failed)
    }
}

impl Answer {
    /// A block, plain.
    pub fn plain(block: &Block) -> Self {
        Self::Block { cid: *block.cid(), data: block.data().clone() }
    }

    /// What it takes of the transfer's budget.
    pub fn budget_bytes(&self) -> u64 {
        match self {
            Self::Block { data, .. } => data.len() as u64 + ANSWER_OVERHEAD_BYTES,
            Self::Packed(packed) => packed.block_bytes as u64 + ANSWER_OVERHEAD_BYTES,
            Self::Absent(_) => ANSWER_OVERHEAD_BYTES,
            // The whole answer counts.
            Self::End(_) | Self::Fragment(_) => 0,
        }
    }

    /// Its bytes in memory and on the wire, approximately.
    pub fn wire_bytes(&self) -> usize {
        let block_bytes = match self {
            Self::Block { data, .. } => data.len(),
            Self::Packed(packed) => packed.wire_bytes(),
            Self::Fragment(fragment) => fragment.data.len(),
            Self::Absent(_) | Self::End(_) => 0,
        };
        block_bytes + ANSWER_OVERHEAD_BYTES as usize
    }

    /// The parts of the message with its length, to be written in order. Blocks and zstd frames are not copied.
    pub fn encode(&self) -> Vec<Bytes> {
        match self {
            Self::Block { cid, data } => {
                let mut head = BytesMut::with_capacity(CID_BYTES_MAX);
                put_cid(1, cid, &mut head);
                framed_before(1, head, 2, vec![data.clone()])
            }
            Self::Packed(packed) => packed.encode(),
            Self::Absent(cid) => vec![framed(3, &only_cid(cid))],
            Self::End(status) => vec![framed(4, &number(status.number()))],
            Self::Fragment(Fragment { message, length, offset, data }) => {
                encode_fragment(*message, *length, *offset, vec![data.clone()])
            }
        }
    }

    /// Decodes a frame without its length. Packed blocks are checked, and not decompressed.
    ///
    /// # Errors
    /// [`DagMessageError`].
    pub fn decode(frame: Bytes) -> Decoded<Self> {
        decode_one(frame, |tag, inner| {
            Ok(Some(match tag {
                1 => decode_block(inner)?,
                2 => Self::Packed(Packed::decode(inner)?),
                3 => Self::Absent(decode_cid(inner)?),
                4 => Self::End(EndStatus::of(decode_number(inner)?)),
                5 => Self::Fragment(Fragment::decode(inner)?),
                _ => return Ok(None),
            }))
        })
    }
}

impl Packed {
    /// A block in its stored form; `None` if it is stored uncompressed.
    pub fn new(cid: Cid, stored: Stored) -> Option<Self> {
        stored.packed_parts().map(|_| Self { cid, block_bytes: stored.shape().block_bytes(), stored })
    }

    /// The bytes that are sent: the parts, without the fields around them.
    pub fn wire_bytes(&self) -> usize {
        self.stored.value().len()
    }

    fn encode(&self) -> Vec<Bytes> {
        let [prefix, frame, suffix] = self.stored.packed_parts().unwrap_or_default();
        let mut head = BytesMut::with_capacity(CID_BYTES_MAX + prefix.len() + suffix.len());
        put_cid(1, &self.cid, &mut head);
        encoding::uint64::encode(2, &(self.block_bytes as u64), &mut head);
        put_field(3, &prefix, &mut head);
        put_field(5, &suffix, &mut head);
        framed_before(2, head, 4, vec![frame])
    }

    fn decode(mut rest: Bytes) -> Decoded<Self> {
        let (mut cid, mut expected, mut parts) = (None, 0, <[Bytes; 3]>::default());
        while rest.has_remaining() {
            match encoding::decode_key(&mut rest)? {
                (1, WireType::LengthDelimited) => cid = Some(take_cid(&mut rest)?),
                (2, WireType::Varint) => expected = encoding::decode_varint(&mut rest)?,
                (3, WireType::LengthDelimited) => parts[0] = take(&mut rest)?,
                (4, WireType::LengthDelimited) => parts[1] = take(&mut rest)?,
                (5, WireType::LengthDelimited) => parts[2] = take(&mut rest)?,
                (tag, wire) => skip(tag, wire, &mut rest)?,
            }
        }
        let cid = cid.ok_or(DagMessageError::Cid)?;
        let stored = Stored::from_packed_parts(parts.each_ref().map(|part| &part[..]))?;
        let found = stored.shape().block_bytes();
        if found as u64 != expected {
            return Err(DagMessageError::BlockBytes { expected, found });
        }
        Ok(Self { cid, block_bytes: found, stored })
    }
}

impl Fragment {
    fn decode(mut rest: Bytes) -> Decoded<Self> {
        let (mut message, mut length, mut offset, mut data) = (0, 0, 0, Bytes::new());
        while rest.has_remaining() {
            match encoding::decode_key(&mut rest)? {
                (1, WireType::Varint) => message = encoding::decode_varint(&mut rest)?,
                (2, WireType::Varint) => length = encoding::decode_varint(&mut rest)?,
                (3, WireType::Varint) => offset = encoding::decode_varint(&mut rest)?,
                (4, WireType::LengthDelimited) => data = take(&mut rest)?,
                (tag, wire) => skip(tag, wire, &mut rest)?,
            }
        }
        let bytes = |number: u64| usize::try_from(number).map_err(|_| DagMessageError::Fragment);
        let (length, offset) = (bytes(length)?, bytes(offset)?);
        let is_cut = (FRAGMENT_BYTES + 1..=ANSWER_BYTES_MAX).contains(&length);
        let expected = length.saturating_sub(offset).min(FRAGMENT_BYTES);
        if !is_cut || offset % FRAGMENT_BYTES != 0 || expected == 0 || data.len() != expected {
            return Err(DagMessageError::Fragment);
        }
        Ok(Self { message, length, offset, data })
    }
}

/// The parts of a fragment's message with its length. Its data is not copied.
pub(super) fn encode_fragment(message: u64, length: usize, offset: usize, data: Vec<Bytes>) -> Vec<Bytes> {
    let mut head = BytesMut::with_capacity(32);
    for (tag, number) in [(1, message), (2, length as u64), (3, offset as u64)] {
        encoding::uint64::encode(tag, &number, &mut head);
    }
    framed_before(5, head, 4, data)
}

fn decode_block(mut rest: Bytes) -> Decoded<Answer> {
    let (mut cid, mut data) = (None, Bytes::new());
    while rest.has_remaining() {
        match encoding::decode_key(&mut rest)? {
            (1, WireType::LengthDelimited) => cid = Some(take_cid(&mut rest)?),
            (2, WireType::LengthDelimited) => data = take(&mut rest)?,
            (tag, wire) => skip(tag, wire, &mut rest)?,
        }
    }
    if data.len() > MAX_BLOCK_BYTES {
        return Err(DagMessageError::TooLarge);
    }
    Ok(Answer::Block { cid: cid.ok_or(DagMessageError::Cid)?, data })
}

/// The one message inside of a frame, of those that `decode` knows by their field number.
fn decode_one<T>(mut frame: Bytes, decode: impl Fn(u32, Bytes) -> Decoded<Option<T>>) -> Decoded<T> {
    let mut found = None;
    while frame.has_remaining() {
        match encoding::decode_key(&mut frame)? {
            (tag, WireType::LengthDelimited) => {
                let message = decode(tag, take(&mut frame)?)?;
                if message.is_some() && found.is_some() {
                    return Err(DagMessageError::Content);
                }
                found = message.or(found);
            }
            (tag, wire) => skip(tag, wire, &mut frame)?,
        }
    }
    found.ok_or(DagMessageError::Content)
}

/// A message whose field 1 is a number.
fn number(value: u64) -> BytesMut {
    let mut out = BytesMut::with_capacity(11);
    encoding::uint64::encode(1, &value, &mut out);
    out
}

fn decode_number(mut rest: Bytes) -> Decoded<u64> {
    let mut number = 0;
    while rest.has_remaining() {
        match encoding::decode_key(&mut rest)? {
            (1, WireType::Varint) => number = encoding::decode_varint(&mut rest)?,
            (tag, wire) => skip(tag, wire, &mut rest)?,
        }
    }
    Ok(number)
}

/// A message whose field 1 is a CID.
fn only_cid(cid: &Cid) -> BytesMut {
    let mut out = BytesMut::with_capacity(CID_BYTES_MAX);
    put_cid(1, cid, &mut out);
    out
}

fn decode_cid(mut rest: Bytes) -> Decoded<Cid> {
    let mut cid = None;
    while rest.has_remaining() {
        match encoding::decode_key(&mut rest)? {
            (1, WireType::LengthDelimited) => cid = Some(take_cid(&mut rest)?),
            (tag, wire) => skip(tag, wire, &mut rest)?,
        }
    }
    cid.ok_or(DagMessageError::Cid)
}

fn scope_number(scope: DagScope) -> u32 {
    match scope {
        DagScope::Block => 0,
        DagScope::Entity => 1,
        DagScope::All => 2,
        DagScope::File => 3,
    }
}

fn scope_of(number: u64) -> Decoded<DagScope> {
    match number {
        0 => Ok(DagScope::Block),
        1 => Ok(DagScope::Entity),
        2 => Ok(DagScope::All),
        3 => Ok(DagScope::File),
        _ => Err(DagMessageError::UnknownScope),
    }
}

fn entity_bytes(from: Option<i64>, to: Option<i64>) -> Decoded<Option<EntityBytes>> {
    match (from, to) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(DagMessageError::Range),
        (Some(from), to) => EntityBytes::new(from, to).map(Some).map_err(|_| DagMessageError::Range),
    }
}

fn path_is_valid(path: &[String]) -> bool {
    let bytes: usize = path.iter().map(String::len).sum();
    path.len() <= PATH_NAMES_MAX && bytes <= PATH_BYTES_MAX && path.iter().all(|name| !name.is_empty())
}

fn utf8(name: &Bytes) -> Decoded<String> {
    std::str::from_utf8(name).map(str::to_owned).map_err(|_| DagMessageError::Path)
}

/// The value of a `sint64`.
fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn push<T>(list: &mut Vec<T>, item: T, max: usize, error: DagMessageError) -> Decoded<()> {
    if list.len() >= max {
        return Err(error);
    }
    list.push(item);
    Ok(())
}

pub(crate) fn skip(tag: u32, wire: WireType, rest: &mut Bytes) -> Decoded<()> {
    Ok(encoding::skip_field(wire, tag, rest, DecodeContext::default())?)
}

pub(crate) fn take(rest: &mut Bytes) -> Decoded<Bytes> {
    let mut field = Bytes::new();
    encoding::bytes::merge(WireType::LengthDelimited, &mut field, rest, DecodeContext::default())?;
    Ok(field)
}

/// A CID that takes all of the field.
pub(crate) fn take_cid(rest: &mut Bytes) -> Decoded<Cid> {
    let field = take(rest)?;
    if field.len() > CID_BYTES_MAX {
        return Err(DagMessageError::Cid);
    }
    let cid = Cid::try_from(&field[..]).map_err(|_| DagMessageError::Cid)?;
    if cid.encoded_len() == field.len() { Ok(cid) } else { Err(DagMessageError::Cid) }
}

pub(crate) fn put_cid(tag: u32, cid: &Cid, out: &mut BytesMut) {
    put_field(tag, &cid.to_bytes(), out);
}

pub(crate) fn put_field(tag: u32, value: &[u8], out: &mut BytesMut) {
    put_key(tag, value.len(), out);
    out.put_slice(value);
}

fn put_key(tag: u32, length: usize, out: &mut BytesMut) {
    encoding::encode_key(tag, WireType::LengthDelimited, out);
    encoding::encode_varint(length as u64, out);
}

/// The fields of a message, after their length.
pub(crate) fn framed_raw(fields: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(fields.len() + 10);
    encoding::encode_varint(fields.len() as u64, &mut out);
    out.put_slice(fields);
    out.freeze()
}

/// A message with its length, whose only field is `inner`.
pub(crate) fn framed(tag: u32, inner: &[u8]) -> Bytes {
    let mut head = BytesMut::with_capacity(inner.len() + 16);
    put_field(tag, inner, &mut head);
    framed_raw(&head)
}

/// The same, where the last field of `inner` has the value `last`, whose parts are not copied.
fn framed_before(tag: u32, mut inner: BytesMut, last_tag: u32, last: Vec<Bytes>) -> Vec<Bytes> {
    let last_bytes: usize = last.iter().map(Bytes::len).sum();
    put_key(last_tag, last_bytes, &mut inner);
    let mut key = BytesMut::with_capacity(16);
    put_key(tag, inner.len() + last_bytes, &mut key);
    let mut out = BytesMut::with_capacity(key.len() + inner.len() + 10);
    encoding::encode_varint((key.len() + inner.len() + last_bytes) as u64, &mut out);
    out.put_slice(&key);
    out.put_slice(&inner);
    [vec![out.freeze()], last].concat()
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
